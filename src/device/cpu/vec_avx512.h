/* Vectors of f32 for AVX-512, under the names that rows_vec.h and attention_vec.h are written in.
 * vec_avx2.h and vec_neon.h have the same names; a vector holds VEC_LANES values. */
#ifndef CSGL_DEVICE_CPU_VEC_AVX512_H
#define CSGL_DEVICE_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { VEC_LANES = 16, VEC_REGISTERS = 32 };
typedef __m512 vec;

static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}

static inline __mmask16 vec_first(int n)
{
    return (__mmask16)_bzhi_u32(0xFFFF, (unsigned)n);
}

/* The first n values (0 <= n <= VEC_LANES), zeros behind; nothing behind them is touched. */
static inline vec vec_load_first(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vec_first(n), p);
}

static inline void vec_store_first(float *p, vec v, int n)
{
    _mm512_mask_storeu_ps(p, vec_first(n), v);
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Rows of bf16 pairs: the first and the second of each of n pairs, zeros behind. */
static inline void vec_load_bf16_pairs(const uint16_t *p, int n, vec *first, vec *second)
{
    __m512i pairs = _mm512_maskz_loadu_epi32(vec_first(n), p);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000)));
}

static inline vec vec_load_f16_first(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vec_first(n), p));
}

/* 2 * VEC_LANES values taken apart into those at even and at odd places. */
static inline void vec_load_2(const float *p, vec *even, vec *odd)
{
    const __m512i even_at =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    *even = _mm512_permutex2var_ps(a, even_at, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(even_at, _mm512_set1_epi32(1)), b);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c */
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a * b - c */
static inline vec vec_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}

/* c - a * b */
static inline vec vec_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* A NaN in b stays. */
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline float vec_sum(vec v)
{
    return _mm512_reduce_add_ps(v);
}

/* Of each lane and all before it. */
static inline vec vec_prefix_sum(vec v)
{
    const __m512i zero = _mm512_setzero_si512();
    v = vec_add(v, (vec)_mm512_alignr_epi32((__m512i)v, zero, 15));
    v = vec_add(v, (vec)_mm512_alignr_epi32((__m512i)v, zero, 14));
    v = vec_add(v, (vec)_mm512_alignr_epi32((__m512i)v, zero, 12));
    return vec_add(v, (vec)_mm512_alignr_epi32((__m512i)v, zero, 8));
}

static inline float vec_largest(vec v)
{
    return _mm512_reduce_max_ps(v);
}

static inline bool vec_any_above(vec v, float limit)
{
    return _mm512_cmp_ps_mask(v, vec_set(limit), _CMP_GT_OQ) != 0;
}

/* v in the lanes first <= i < end, `other` elsewhere. Any integers. */
static inline vec vec_keep(vec v, int first, int end, vec other)
{
    first = first < 0 ? 0 : first > 16 ? 16 : first;
    end = end < 0 ? 0 : end > 16 ? 16 : end;
    __mmask16 keep = (__mmask16)(vec_first(end) & ~vec_first(first));
    return _mm512_mask_blend_ps(keep, other, v);
}

/* 2^n * 2^r for integral n and |r| <= 0.5: minimax polynomial of degree 6, relative error 3e-9
 * before rounding, exact at r = 0. */
static inline vec vec_exp2_parts(vec n, vec r)
{
    vec p = vec_set(1.559467468e-04f);
    p = vec_fma(p, r, vec_set(1.340664381e-03f));
    p = vec_fma(p, r, vec_set(9.617692984e-03f));
    p = vec_fma(p, r, vec_set(5.550310551e-02f));
    p = vec_fma(p, r, vec_set(2.402265278e-01f));
    p = vec_fma(p, r, vec_set(6.931472150e-01f));
    p = vec_fma(p, r, vec_set(1.0f));
    return _mm512_scalef_ps(p, n);
}

static inline vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^x for finite x. */
static inline vec vec_exp2(vec x)
{
    vec n = vec_round(x);
    return vec_exp2_parts(n, vec_sub(x, n));
}

/* e^x within 2e-7 where that is a normal number; 0 and infinity beyond. */
static inline vec vec_exp(vec x)
{
    x = _mm512_min_ps(vec_set(100.0f), vec_max(vec_set(-120.0f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.442695022e+00f)));
    vec r = vec_fma(x, vec_set(1.442695022e+00f), vec_sub(vec_set(0.0f), n));
    return vec_exp2_parts(n, vec_fma(x, vec_set(1.925962991e-08f), r));
}

/* Rounds n values to f16, to nearest even. */
static inline void vec_round_f16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 some = vec_first(n - i < 16 ? n - i : 16);
        __m256i h = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(some, from + i),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(to + i, some, h);
    }
}

#endif
