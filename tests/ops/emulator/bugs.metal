// One bug a kernel, as they happen on GPUs; test_emulator.c says what each is to be found as.
// Threadgroups of 64 threads, 64 floats in and out.
#include "kernels/kd.h"

#define BUG(name) KERNEL(name, CBUF(float, in, 0), BUF(float, out, 1), PARM(kd_no_args, p, 2))

BUG(none)
{
    TG_ARRAY(float, s, 64);
    s[TID] = in[TID];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[TID] = s[63u - TID];
}

BUG(missing_barrier)
{
    TG_ARRAY(float, s, 64);
    s[TID] = in[TID];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[TID] = s[63u - TID];
}

BUG(missing_barrier_before_reuse)
{
    TG_ARRAY(float, s, 64);
    float sum = 0.0f;
    for (uint i = 0; i < 4; i++) {
        s[TID] = in[TID] * (float)i;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum += s[63u - TID];
    }
    out[TID] = sum;
}

BUG(lockstep_assumed)
{
    TG_ARRAY(float, s, 64);
    s[TID] = in[TID];
    out[TID] = s[TID ^ 1u];
}

BUG(barrier_of_other_memory)
{
    TG_ARRAY(float, s, 64);
    s[TID] = in[TID];
    threadgroup_barrier(mem_flags::mem_device);
    out[TID] = s[63u - TID];
}

BUG(reads_past_a_buffer)
{
    out[TID] = in[TID + 1u];
}

BUG(writes_past_an_array)
{
    TG_ARRAY(float, s, 64);
    TG_ARRAY(float, next, 64);
    next[TID] = in[TID];
    s[TID + (TID == 63u ? 1u : 0u)] = in[TID];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[TID] = next[0];
}

BUG(barriers_of_two_branches)
{
    if (TID < 32u) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[TID] = in[TID];
}

BUG(threads_end_before_a_barrier)
{
    if (TID >= 60u)
        return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[TID] = in[TID];
}

BUG(simd_function_of_some)
{
    float v = in[TID];
    if (v > 0.5f)
        v = simd_sum(v);
    out[TID] = v;
}

BUG(reads_what_nobody_wrote)
{
    TG_ARRAY(float, s, 64);
    if (TID < 40u)
        s[TID] = in[TID];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[TID] = s[TID] + 1.0f;
}

BUG(two_groups_write_one_place)
{
    out[TID] = in[TID];
}
