/* Vectors of f32 for AVX2, FMA and F16C: the names of vec_avx512.h, half as wide. */
#ifndef CSGL_DEVICE_CPU_VEC_AVX2_H
#define CSGL_DEVICE_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { VEC_LANES = 8, VEC_REGISTERS = 16 };
typedef __m256 vec;

static inline vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}

static inline __m256i vec_lane(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

static inline __m256i vec_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), vec_lane());
}

/* The first n values (0 <= n <= VEC_LANES), zeros behind; nothing behind them is touched. */
static inline vec vec_load_first(const float *p, int n)
{
    return n == VEC_LANES ? vec_load(p) : _mm256_maskload_ps(p, vec_first(n));
}

static inline void vec_store_first(float *p, vec v, int n)
{
    if (n == VEC_LANES)
        vec_store(p, v);
    else
        _mm256_maskstore_ps(p, vec_first(n), v);
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Rows of bf16 pairs: the first and the second of each of n pairs, zeros behind. */
static inline void vec_load_bf16_pairs(const uint16_t *p, int n, vec *first, vec *second)
{
    __m256i pairs = n == VEC_LANES
                        ? _mm256_loadu_si256((const __m256i *)(const void *)p)
                        : _mm256_maskload_epi32((const int *)(const void *)p, vec_first(n));
    *first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    *second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xFFFF0000)));
}

static inline vec vec_load_f16_first(const uint16_t *p, int n)
{
    if (n == VEC_LANES)
        return vec_load_f16(p);
    uint16_t some[VEC_LANES] = {0};
    memcpy(some, p, (size_t)n * sizeof *p);
    return vec_load_f16(some);
}

/* 2 * VEC_LANES values taken apart into those at even and at odd places. */
static inline void vec_load_2(const float *p, vec *even, vec *odd)
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xDD);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

/* a * b + c */
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* a * b - c */
static inline vec vec_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}

/* c - a * b */
static inline vec vec_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* A NaN in b stays. */
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline float vec_sum(vec v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* Of each lane and all before it. */
static inline vec vec_prefix_sum(vec v)
{
    v = vec_add(v, (vec)_mm256_slli_si256((__m256i)v, 4));
    v = vec_add(v, (vec)_mm256_slli_si256((__m256i)v, 8));
    vec low = _mm256_permute_ps(v, 0xFF); /* the last of each half in all of it */
    return vec_add(v, _mm256_permute2f128_ps(low, low, 0x08));
}

static inline float vec_largest(vec v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline bool vec_any_above(vec v, float limit)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(v, vec_set(limit), _CMP_GT_OQ)) != 0;
}

/* v in the lanes first <= i < end, `other` elsewhere. Any integers. */
static inline vec vec_keep(vec v, int first, int end, vec other)
{
    __m256i drop = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), vec_lane());
    __m256i keep = _mm256_andnot_si256(drop, vec_first(end));
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(keep));
}

/* 2^n * 2^r for integral n of -252 to 254 and |r| <= 0.5: minimax polynomial of degree 6, relative
 * error 3e-9 before rounding, exact at r = 0. The power is multiplied in two steps, so that results
 * near the ends of the range are right. */
static inline vec vec_exp2_parts(vec n, vec r)
{
    vec p = vec_set(1.559467468e-04f);
    p = vec_fma(p, r, vec_set(1.340664381e-03f));
    p = vec_fma(p, r, vec_set(9.617692984e-03f));
    p = vec_fma(p, r, vec_set(5.550310551e-02f));
    p = vec_fma(p, r, vec_set(2.402265278e-01f));
    p = vec_fma(p, r, vec_set(6.931472150e-01f));
    p = vec_fma(p, r, vec_set(1.0f));
    __m256i power = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(power, 1);
    __m256i rest = _mm256_sub_epi32(power, half), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    return vec_mul(vec_mul(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

static inline vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^x for x <= 127; 0 far below. */
static inline vec vec_exp2(vec x)
{
    x = vec_max(vec_set(-200.0f), x);
    vec n = vec_round(x);
    return vec_exp2_parts(n, vec_sub(x, n));
}

/* e^x within 2e-7 where that is a normal number; 0 and infinity beyond. */
static inline vec vec_exp(vec x)
{
    x = _mm256_min_ps(vec_set(100.0f), vec_max(vec_set(-120.0f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.442695022e+00f)));
    vec r = vec_fma(x, vec_set(1.442695022e+00f), vec_sub(vec_set(0.0f), n));
    return vec_exp2_parts(n, vec_fma(x, vec_set(1.925962991e-08f), r));
}

/* Rounds n values to f16, to nearest even. */
static inline void vec_round_f16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i += 8) {
        int some = n - i < 8 ? n - i : 8;
        __m128i h = _mm256_cvtps_ph(vec_load_first(from + i, some),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        memcpy(to + i, &h, (size_t)some * sizeof *to);
    }
}

#endif
