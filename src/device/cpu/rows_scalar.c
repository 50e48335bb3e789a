/* The row-wise ops' scalar twin: plain loops, double accumulation; it judges the other levels. */
#include "device/cpu/rows.h"

#include <math.h>

static void rms_norm(const float *x, float *residual, const float *weight, float *out, int n,
                     float eps, float add)
{
    if (residual)
        for (int i = 0; i < n; i++)
            residual[i] += x[i];
    if (!out)
        return;
    const float *v = residual ? residual : x;
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)v[i] * (double)v[i];
    double factor = 1 / sqrt(squares / n + (double)eps);
    for (int i = 0; i < n; i++)
        out[i] = (float)((double)v[i] * factor * ((double)weight[i] + (double)add));
}

static void rotate(float *head, const float *angles, int n_rotated)
{
    int half = n_rotated / 2;
    for (int i = 0; i < half; i++) {
        double c = (double)angles[2 * i], s = (double)angles[2 * i + 1];
        double a = (double)head[i], b = (double)head[i + half];
        head[i] = (float)(a * c - b * s);
        head[i + half] = (float)(b * c + a * s);
    }
}

static void silu_mul(const float *gate, const float *up, float *out, int n)
{
    for (int i = 0; i < n; i++) {
        double g = (double)gate[i];
        out[i] = (float)(g / (1 + exp(-g)) * (double)up[i]);
    }
}

static void sigmoid_mul(const float *x, const float *gate, float *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)((double)x[i] / (1 + exp(-(double)gate[i])));
}

static void clamped_swiglu(const float *gate, const float *up, float *out, int n, float alpha,
                           float limit)
{
    for (int i = 0; i < n; i++) {
        double g = gate[i] > limit ? (double)limit : (double)gate[i];
        double u = up[i] > limit ? (double)limit : up[i] < -limit ? (double)-limit : (double)up[i];
        out[i] = (float)((u + 1) * g / (1 + exp(-(double)alpha * g)));
    }
}

static float sum_exp(const float *x, int n, float max)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)max);
    return (float)sum;
}

static void add_scaled(const float *x, float scale, float *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)((double)x[i] * (double)scale + (double)out[i]);
}

const struct row_kernels row_kernels_scalar = ROW_KERNELS;
