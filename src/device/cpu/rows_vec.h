/* The row-wise kernels in the names of vec_*.h: a file for an instruction set includes its vec_*.h,
 * then this, and fills its table. A loop takes whole vectors, then what is left: loads and stores
 * of some lanes alone cost up to a third of a kernel's time (docs/performance.md). */
#ifndef CSGL_DEVICE_CPU_ROWS_VEC_H
#define CSGL_DEVICE_CPU_ROWS_VEC_H

#include "device/cpu/rows.h"

#include <math.h>
#include <stddef.h>

/* x, which is added to the residual if there is one. */
static inline vec take(const float *x, float *residual)
{
    vec v = vec_load(x);
    if (residual) {
        v = vec_add(v, vec_load(residual));
        vec_store(residual, v);
    }
    return v;
}

/* The same of the first n lanes, zeros behind. */
static inline vec take_first(const float *x, float *residual, int n)
{
    vec v = vec_load_first(x, n);
    if (residual) {
        v = vec_add(v, vec_load_first(residual, n));
        vec_store_first(residual, v, n);
    }
    return v;
}

/* residual += x when there is one; the sum of the squares of what is to be normalised. */
static inline float sum_squares(const float *x, float *residual, int n)
{
    vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    int i = 0;
    for (; i + 4 * VEC_LANES <= n; i += 4 * VEC_LANES)
        for (int j = 0; j < 4; j++) {
            int at = i + j * VEC_LANES;
            vec v = take(x + at, residual ? residual + at : NULL);
            sums[j] = vec_fma(v, v, sums[j]);
        }
    for (int j = 0; i < n; j++, i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec v = take_first(x + i, residual ? residual + i : NULL, some);
        sums[j] = vec_fma(v, v, sums[j]);
    }
    return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

static inline vec normed(vec v, vec weight, vec factor, vec more)
{
    return vec_mul(vec_mul(v, factor), vec_add(weight, more));
}

static void rms_norm(const float *x, float *residual, const float *weight, float *out, int n,
                     float eps, float add)
{
    float squares = sum_squares(x, residual, n);
    if (!out)
        return;
    const float *from = residual ? residual : x;
    vec factor = vec_set(1 / sqrtf(squares / (float)n + eps)), more = vec_set(add);
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out + i, normed(vec_load(from + i), vec_load(weight + i), factor, more));
    if (i < n) {
        vec v = vec_load_first(from + i, n - i), w = vec_load_first(weight + i, n - i);
        vec_store_first(out + i, normed(v, w, factor, more), n - i);
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

/* x / (1 + e^-gate) */
static inline vec gated(vec x, vec gate)
{
    return vec_div(x, vec_add(vec_set(1), vec_exp(vec_sub(vec_set(0), gate))));
}

static void silu_mul(const float *gate, const float *up, float *out, int n)
{
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        vec g = vec_load(gate + i);
        vec_store(out + i, vec_mul(gated(g, g), vec_load(up + i)));
    }
    if (i < n) {
        vec g = vec_load_first(gate + i, n - i), u = vec_load_first(up + i, n - i);
        vec_store_first(out + i, vec_mul(gated(g, g), u), n - i);
    }
}

static void sigmoid_mul(const float *x, const float *gate, float *out, int n)
{
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out + i, gated(vec_load(x + i), vec_load(gate + i)));
    if (i < n) {
        vec v = vec_load_first(x + i, n - i), g = vec_load_first(gate + i, n - i);
        vec_store_first(out + i, gated(v, g), n - i);
    }
}

/* The smaller of a number and a limit; a NaN in v stays. */
static inline vec vec_at_most(vec v, vec limit)
{
    vec zero = vec_set(0);
    return vec_sub(zero, vec_max(vec_sub(zero, limit), vec_sub(zero, v)));
}

/* Of a vector of each; as clamped_swiglu. */
static inline vec swiglu(vec gate, vec up, float alpha, float limit)
{
    vec most = vec_set(limit), one = vec_set(1);
    vec g = vec_at_most(gate, most), u = vec_max(vec_set(-limit), vec_at_most(up, most));
    vec e = vec_exp(vec_mul(g, vec_set(-alpha)));
    return vec_mul(vec_div(g, vec_add(one, e)), vec_add(u, one));
}

static void clamped_swiglu(const float *gate, const float *up, float *out, int n, float alpha,
                           float limit)
{
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out + i, swiglu(vec_load(gate + i), vec_load(up + i), alpha, limit));
    if (i < n) {
        vec g = vec_load_first(gate + i, n - i), u = vec_load_first(up + i, n - i);
        vec_store_first(out + i, swiglu(g, u, alpha, limit), n - i);
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
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out + i, vec_fma(vec_load(x + i), factor, vec_load(out + i)));
    if (i < n) {
        vec v = vec_load_first(x + i, n - i), sum = vec_load_first(out + i, n - i);
        vec_store_first(out + i, vec_fma(v, factor, sum), n - i);
    }
}

static void weigh(const float *x, float max, float inverse, float *out, int n)
{
    vec most = vec_set(max), factor = vec_set(inverse);
    int i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        vec_store(out + i, vec_exp(vec_mul(vec_sub(vec_load(x + i), most), factor)));
    if (i < n) {
        vec distance = vec_sub(vec_load_first(x + i, n - i), most);
        vec_store_first(out + i, vec_exp(vec_mul(distance, factor)), n - i);
    }
}

#endif
