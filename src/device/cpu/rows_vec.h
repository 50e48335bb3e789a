/* The row-wise kernels in the names of vec_*.h: a file for an instruction set includes its vec_*.h,
 * then this, and fills its table. */
#ifndef CSGL_DEVICE_CPU_ROWS_VEC_H
#define CSGL_DEVICE_CPU_ROWS_VEC_H

#include "device/cpu/rows.h"

#include <math.h>
#include <stddef.h>

/* residual += x when there is one; the sum of the squares of what is to be normalised. */
static inline float sum_squares(const float *x, float *residual, int n)
{
    vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    for (int i = 0; i < n;) {
        for (int j = 0; j < 4 && i < n; j++, i += VEC_LANES) {
            int some = n - i < VEC_LANES ? n - i : VEC_LANES;
            vec v = vec_load_first(x + i, some);
            if (residual) {
                v = vec_add(v, vec_load_first(residual + i, some));
                vec_store_first(residual + i, v, some);
            }
            sums[j] = vec_fma(v, v, sums[j]);
        }
    }
    return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static void rms_norm(const float *x, float *residual, const float *weight, float *out, int n,
                     float eps, float add)
{
    float squares = sum_squares(x, residual, n);
    if (!out)
        return;
    const float *from = residual ? residual : x;
    vec factor = vec_set(1 / sqrtf(squares / (float)n + eps)), more = vec_set(add);
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec w = vec_add(vec_load_first(weight + i, some), more);
        vec v = vec_mul(vec_load_first(from + i, some), factor);
        vec_store_first(out + i, vec_mul(v, w), some);
    }
}

static void rotate(float *head, const float *angles, int n_rotated)
{
    int half = n_rotated / 2, i = 0;
    float *other = head + half;
    for (; i + VEC_LANES <= half; i += VEC_LANES) {
        vec c, s, a = vec_load(head + i), b = vec_load(other + i);
        vec_load_2(angles + 2 * i, &c, &s);
        vec_store(head + i, vec_fnma(b, s, vec_mul(a, c)));
        vec_store(other + i, vec_fma(a, s, vec_mul(b, c)));
    }
    for (; i < half; i++) {
        float c = angles[2 * i], s = angles[2 * i + 1], a = head[i], b = other[i];
        head[i] = a * c - b * s;
        other[i] = b * c + a * s;
    }
}

static void silu_mul(const float *gate, const float *up, float *out, int n)
{
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec g = vec_load_first(gate + i, some), u = vec_load_first(up + i, some);
        vec e = vec_exp(vec_sub(vec_set(0), g));
        vec_store_first(out + i, vec_mul(vec_div(g, vec_add(vec_set(1), e)), u), some);
    }
}

static void sigmoid_mul(const float *x, const float *gate, float *out, int n)
{
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec e = vec_exp(vec_sub(vec_set(0), vec_load_first(gate + i, some)));
        vec v = vec_div(vec_load_first(x + i, some), vec_add(vec_set(1), e));
        vec_store_first(out + i, v, some);
    }
}

/* The smaller of a number and a limit; a NaN in v stays. */
static inline vec vec_at_most(vec v, vec limit)
{
    vec zero = vec_set(0);
    return vec_sub(zero, vec_max(vec_sub(zero, limit), vec_sub(zero, v)));
}

static void clamped_swiglu(const float *gate, const float *up, float *out, int n, float alpha,
                           float limit)
{
    vec most = vec_set(limit), least = vec_set(-limit), one = vec_set(1), slope = vec_set(-alpha);
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec g = vec_at_most(vec_load_first(gate + i, some), most);
        vec u = vec_max(least, vec_at_most(vec_load_first(up + i, some), most));
        vec e = vec_exp(vec_mul(g, slope));
        vec_store_first(out + i, vec_mul(vec_div(g, vec_add(one, e)), vec_add(u, one)), some);
    }
}

static float sum_exp(const float *x, int n, float max)
{
    vec sum = vec_set(0), most = vec_set(max);
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        sum = vec_add(sum, vec_exp(vec_sub(vec_load(x + i), most)));
    if (i < n) {
        vec last = vec_exp(vec_sub(vec_load_first(x + i, n - i), most));
        sum = vec_add(sum, vec_keep(last, 0, n - i, vec_set(0)));
    }
    return vec_sum(sum);
}

static void add_scaled(const float *x, float scale, float *out, int n)
{
    vec factor = vec_set(scale);
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec sum = vec_fma(vec_load_first(x + i, some), factor, vec_load_first(out + i, some));
        vec_store_first(out + i, sum, some);
    }
}

static void weigh(const float *x, float max, float inverse, float *out, int n)
{
    vec most = vec_set(max), factor = vec_set(inverse);
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec distance = vec_sub(vec_load_first(x + i, some), most);
        vec_store_first(out + i, vec_exp(vec_mul(distance, factor)), some);
    }
}

#endif
