// One mistake a BUG that Apple's compiler refuses and C++ without address spaces accepts. BUG 0 has
// none.
#include "kernels/kd.h"

KD_INLINE float first_of(threadgroup const float *s)
{
    return s[0];
}

KERNEL(bug, CBUF(float, in, 0), BUF(float, out, 1), PARM(kd_no_args, p, 2))
{
    TG_ARRAY(float, s, 64);
    float own[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    s[TID] = in[TID];
    threadgroup_barrier(mem_flags::mem_threadgroup);
#if BUG == 0
    out[TID] = first_of(s) + own[TID & 3u];
#elif BUG == 1 // device memory for threadgroup memory
    out[TID] = first_of(in);
#elif BUG == 2 // a thread's own
    out[TID] = first_of(own);
#elif BUG == 3
    threadgroup const float *t = in;
    out[TID] = t[0];
#elif BUG == 4 // a cast does not move memory
    out[TID] = ((threadgroup const float *)in)[0];
#elif BUG == 5 // only read
    device float *t = in;
    t[TID] = own[0];
#elif BUG == 6
    p.unused = 1;
    out[TID] = own[0];
#endif
}
