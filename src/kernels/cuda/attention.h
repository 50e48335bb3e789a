// What both native attentions share: scores are kept in base 2.
#ifndef CSGL_KERNELS_CUDA_ATTENTION_H
#define CSGL_KERNELS_CUDA_ATTENTION_H

#include "native.h"

#define NO_SCORE (-1.0e30f)
#define LOG2_E 1.44269504f

// Where places lie in the pages of a KV head: 16-bit values (T is uint16_t) or codes (int8_t) with
// two scales a place. Pages hold a power of two of places, of at least KD_MIN_NATIVE_PAGE.
template <class T> struct kv_head {
    enum { HAS_CODES = sizeof(T) == 1, SCALE_VALUES = HAS_CODES ? 2 : 0 };
    const T *k;
    const uint32_t *scales; // bf16, that of K is the low half
    const int32_t *table;
    size_t page_values, v_offset; // from a page to the next, from K to V
    uint32_t shift, mask;

    NATIVE kv_head(const uint8_t *pages, const int32_t *sequence_table, uint32_t head,
                   uint32_t dims, const kd_pages &p)
        : k((const T *)pages + (size_t)head * p.page_size * dims),
          scales((const uint32_t *)(pages + (size_t)2 * p.n_heads * p.page_size * dims) +
                 head * p.page_size),
          table(sequence_table),
          page_values((size_t)2 * p.n_heads * p.page_size * (dims + SCALE_VALUES)),
          v_offset((size_t)p.n_heads * p.page_size * dims),
          shift(31 - __clz((int)p.page_size)), mask(p.page_size - 1)
    {
    }

    // K of a place on page `page`.
    NATIVE const T *on_page(uint32_t page, uint32_t place, uint32_t dims) const
    {
        return k + page * page_values + (place & mask) * dims;
    }

    // The scales of a place of codes.
    NATIVE const uint32_t *scales_on(uint32_t page, uint32_t place) const
    {
        return scales + page * (page_values / 4) + (place & mask);
    }
};

// The share of token `i` of a piece of codes in those behind it (kernels/codes.h).
NATIVE float piece_share(uint32_t i)
{
    return i == 0 ? 1.0f : i == 1 ? 0.5f : 0.4f;
}

NATIVE float k_scale(uint32_t both)
{
    return __uint_as_float(both << 16);
}

NATIVE float v_scale(uint32_t both)
{
    return __uint_as_float(both & 0xFFFF0000u);
}

// Turns a head of D values by a Hadamard matrix of length 1: a lane has N of them, and lanes whose
// numbers differ in the bits from `from` on, below `to`, the others.
template <int D, int N> NATIVE void turn(float (&x)[N], uint32_t from, uint32_t to)
{
    const float factor = D == 64 ? 0.125f : D == 128 ? 0.088388346f : 0.0625f;
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((i & step) == 0) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
#pragma unroll
    for (uint32_t step = from; step < to; step *= 2)
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float other = __shfl_xor_sync(EVERY_LANE, x[i], step);
            x[i] = (threadIdx.x & step) != 0 ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] *= factor;
}

NATIVE float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

#endif
