/* Vectors of f32 for NEON: the names of vec_avx512.h, a quarter as wide. */
#ifndef CSGL_DEVICE_CPU_VEC_NEON_H
#define CSGL_DEVICE_CPU_VEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { VEC_LANES = 4, VEC_REGISTERS = 32 };
typedef float32x4_t vec;

static inline vec vec_set(float x)
{
    return vdupq_n_f32(x);
}

static inline vec vec_load(const float *p)
{
    return vld1q_f32(p);
}

static inline void vec_store(float *p, vec v)
{
    vst1q_f32(p, v);
}

static inline int32x4_t vec_lane(void)
{
    static const int32_t lanes[VEC_LANES] = {0, 1, 2, 3};
    return vld1q_s32(lanes);
}

static inline uint32x4_t vec_first(int n)
{
    return vcltq_s32(vec_lane(), vdupq_n_s32(n));
}

/* The first n values (0 <= n <= VEC_LANES), zeros behind; nothing behind them is touched. */
static inline vec vec_load_first(const float *p, int n)
{
    if (n == VEC_LANES)
        return vec_load(p);
    float some[VEC_LANES] = {0};
    for (int i = 0; i < n; i++)
        some[i] = p[i];
    return vec_load(some);
}

static inline void vec_store_first(float *p, vec v, int n)
{
    if (n == VEC_LANES) {
        vec_store(p, v);
        return;
    }
    float some[VEC_LANES];
    vec_store(some, v);
    for (int i = 0; i < n; i++)
        p[i] = some[i];
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline vec vec_load_f16_first(const uint16_t *p, int n)
{
    if (n == VEC_LANES)
        return vec_load_f16(p);
    uint16_t some[VEC_LANES] = {0};
    memcpy(some, p, (size_t)n * sizeof *p);
    return vec_load_f16(some);
}

/* Rows of bf16 pairs: the first and the second of each of n pairs, zeros behind. */
static inline void vec_load_bf16_pairs(const uint16_t *p, int n, vec *first, vec *second)
{
    uint16_t some[2 * VEC_LANES] = {0};
    if (n < VEC_LANES)
        p = memcpy(some, p, (size_t)n * 2 * sizeof *p);
    uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(p));
    *first = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    *second = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000)));
}

/* 2 * VEC_LANES values taken apart into those at even and at odd places. */
static inline void vec_load_2(const float *p, vec *even, vec *odd)
{
    float32x4x2_t both = vld2q_f32(p);
    *even = both.val[0];
    *odd = both.val[1];
}

static inline vec vec_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return vsubq_f32(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}

static inline vec vec_div(vec a, vec b)
{
    return vdivq_f32(a, b);
}

/* a * b + c */
static inline vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}

/* a * b - c */
static inline vec vec_fms(vec a, vec b, vec c)
{
    return vfmaq_f32(vnegq_f32(c), a, b);
}

/* c - a * b */
static inline vec vec_fnma(vec a, vec b, vec c)
{
    return vfmsq_f32(c, a, b);
}

/* A NaN stays. */
static inline vec vec_max(vec a, vec b)
{
    return vmaxq_f32(a, b);
}

static inline float vec_sum(vec v)
{
    return vaddvq_f32(v);
}

/* Of each lane and all before it. */
static inline vec vec_prefix_sum(vec v)
{
    const vec zero = vdupq_n_f32(0);
    v = vaddq_f32(v, vextq_f32(zero, v, 3));
    return vaddq_f32(v, vextq_f32(zero, v, 2));
}

static inline float vec_largest(vec v)
{
    return vmaxvq_f32(v);
}

static inline bool vec_any_above(vec v, float limit)
{
    return vmaxvq_u32(vcgtq_f32(v, vec_set(limit))) != 0;
}

/* v in the lanes first <= i < end, `other` elsewhere. Any integers. */
static inline vec vec_keep(vec v, int first, int end, vec other)
{
    uint32x4_t keep = vandq_u32(vcgeq_s32(vec_lane(), vdupq_n_s32(first)), vec_first(end));
    return vbslq_f32(keep, v, other);
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
    int32x4_t power = vcvtnq_s32_f32(n), half = vshrq_n_s32(power, 1);
    int32x4_t rest = vsubq_s32(power, half), bias = vdupq_n_s32(127);
    int32x4_t a = vshlq_n_s32(vaddq_s32(half, bias), 23);
    int32x4_t b = vshlq_n_s32(vaddq_s32(rest, bias), 23);
    return vec_mul(vec_mul(p, vreinterpretq_f32_s32(a)), vreinterpretq_f32_s32(b));
}

static inline vec vec_round(vec x)
{
    return vrndnq_f32(x);
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
    x = vminq_f32(vec_set(100.0f), vec_max(vec_set(-120.0f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.442695022e+00f)));
    vec r = vec_fma(x, vec_set(1.442695022e+00f), vec_sub(vec_set(0.0f), n));
    return vec_exp2_parts(n, vec_fma(x, vec_set(1.925962991e-08f), r));
}

/* Rounds n values to f16, to nearest even. */
static inline void vec_round_f16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(vec_load_first(from + i, some)));
        memcpy(to + i, &h, (size_t)some * sizeof *to);
    }
}

#endif
