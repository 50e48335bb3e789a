// Sums over a threadgroup.
#ifndef CSGL_KERNELS_REDUCE_H
#define CSGL_KERNELS_REDUCE_H

// The sum of all threads' values, the same for all, in `n_simds` simdgroups; `parts` [n_simds] may
// be used again after a barrier. The kernel passes its LANE and SGID on: Metal knows them in
// kernels alone.
KD_INLINE float kd_sum(float value, threadgroup float *parts, uint n_simds, uint lane, uint simd)
{
    const float part = simd_sum(value);
    if (lane == 0)
        parts[simd] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint i = 0; i < n_simds; i++)
        sum += parts[i];
    return sum;
}

#endif
