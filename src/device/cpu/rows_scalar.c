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

/* vec_exp of vec_*.h, one by one: all of its values in f32, so that the bits are those of every
 * other level. */
static void weigh(const float *x, float max, float inverse, float *out, int n)
{
    static const float log2_e = 1.442695022e+00f, log2_e_rest = 1.925962991e-08f;
    static const float terms[] = {1.340664381e-03f, 9.617692984e-03f, 5.550310551e-02f,
                                  2.402265278e-01f, 6.931472150e-01f, 1.0f};
    for (int i = 0; i < n; i++) {
        float v = (x[i] - max) * inverse;
        v = v >= -100.0f ? v : -100.0f;
        float power = rintf(v * log2_e);
        float r = fmaf(v, log2_e_rest, fmaf(v, log2_e, -power));
        float p = 1.559467468e-04f;
        for (int k = 0; k < 6; k++)
            p = fmaf(p, r, terms[k]);
        out[i] = ldexpf(p, (int)power);
    }
}

const struct row_kernels row_kernels_scalar = ROW_KERNELS;
