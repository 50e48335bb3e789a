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

// What another lane has, by one simd function: on the emulator all lanes wait for each.
KD_INLINE kd_frag kd_frag_of(thread kd_frag &f, uint lane)
{
    const ulong both =
        simd_shuffle((ulong)as_type<uint>(f.x) | (ulong)as_type<uint>(f.y) << 32, lane);
    kd_frag other;
    other.x = as_type<float>((uint)both);
    other.y = as_type<float>((uint)(both >> 32));
    return other;
}

KD_INLINE void kd_frag_add_product(thread kd_frag &c, thread kd_frag &a, thread kd_frag &b,
                                   uint lane)
{
    KD_UNROLL for (uint k = 0; k < 8; k += 2)
    {
        const kd_frag left = kd_frag_of(a, lane / 4u * 4u + k / 2u);
        const kd_frag upper = kd_frag_of(b, k * 4u + lane % 4u);
        const kd_frag lower = kd_frag_of(b, k * 4u + 4u + lane % 4u);
        c.x = fma(left.y, lower.x, fma(left.x, upper.x, c.x));
        c.y = fma(left.y, lower.y, fma(left.x, upper.y, c.y));
    }
}
#endif

#endif
