// Matrices of 8 x 8 floats that a simdgroup holds together: Metal's own, and elsewhere the same
// from simd functions, for the emulator and for compilers that check.
#ifndef CSGL_KERNELS_FRAG_H
#define CSGL_KERNELS_FRAG_H

#ifdef __METAL_VERSION__
#include <metal_simdgroup_matrix>

typedef simdgroup_float8x8 kd_frag;

KD_INLINE void kd_frag_zero(thread kd_frag &f)
{
    f = simdgroup_float8x8(0.0f);
}

// Element [r][c] is from[r * stride + c].
KD_INLINE void kd_frag_load(thread kd_frag &f, threadgroup const float *from, uint stride, uint)
{
    simdgroup_load(f, from, stride);
}

// Element [r][c] is from[c * stride + r].
KD_INLINE void kd_frag_load_turned(thread kd_frag &f, threadgroup const float *from, uint stride,
                                   uint)
{
    simdgroup_load(f, from, stride, ulong2(0, 0), true);
}

KD_INLINE void kd_frag_store(thread kd_frag &f, threadgroup float *to, uint stride, uint)
{
    simdgroup_store(f, to, stride);
}

// c += a b.
KD_INLINE void kd_frag_add_product(thread kd_frag &c, thread kd_frag &a, thread kd_frag &b, uint)
{
    simdgroup_multiply_accumulate(c, a, b, c);
}
#else
// Lane l has elements 2 l and 2 l + 1 of the rows one behind another.
struct kd_frag {
    float x, y;
};

KD_INLINE void kd_frag_zero(thread kd_frag &f)
{
    f.x = 0.0f;
    f.y = 0.0f;
}

KD_INLINE void kd_frag_load(thread kd_frag &f, threadgroup const float *from, uint stride,
                            uint lane)
{
    threadgroup const float *at = from + lane / 4u * stride + lane % 4u * 2u;
    f.x = at[0];
    f.y = at[1];
}

KD_INLINE void kd_frag_load_turned(thread kd_frag &f, threadgroup const float *from, uint stride,
                                   uint lane)
{
    threadgroup const float *at = from + lane % 4u * 2u * stride + lane / 4u;
    f.x = at[0];
    f.y = at[stride];
}

KD_INLINE void kd_frag_store(thread kd_frag &f, threadgroup float *to, uint stride, uint lane)
{
    threadgroup float *at = to + lane / 4u * stride + lane % 4u * 2u;
    at[0] = f.x;
    at[1] = f.y;
}

KD_INLINE void kd_frag_add_product(thread kd_frag &c, thread kd_frag &a, thread kd_frag &b,
                                   uint lane)
{
    KD_UNROLL for (uint k = 0; k < 8; k++)
    {
        const float left = simd_shuffle(k % 2 ? a.y : a.x, lane / 4u * 4u + k / 2u);
        c.x = fma(left, simd_shuffle(b.x, k * 4u + lane % 4u), c.x);
        c.y = fma(left, simd_shuffle(b.y, k * 4u + lane % 4u), c.y);
    }
}
#endif

#endif
