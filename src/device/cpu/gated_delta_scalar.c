/* The gated delta rule's scalar twin: row by row, in double; it judges the other levels. */
#include "device/cpu/gated_delta.h"

#include <math.h>
#include <stdint.h>

static void normalize(const float *x, float *out, int n, float scale)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    double factor = (double)scale / sqrt(squares + 1e-6);
    for (int i = 0; i < n; i++)
        out[i] = (float)((double)x[i] * factor);
}

/* One row on a state in double. `sum` is [v_dim]. */
static void step(const struct delta_rows *rows, int t, double *state, double *sum)
{
    int k_dim = rows->k_dim, v_dim = rows->v_dim;
    const float *q = rows->q + (size_t)t * (size_t)k_dim, *k = rows->k + (size_t)t * (size_t)k_dim;
    const float *v = rows->v + (size_t)t * rows->v_stride;
    float *out = rows->out + (size_t)t * rows->out_stride;
    float *delta = rows->delta + (size_t)t * (size_t)v_dim;
    double decay = exp((double)rows->g[t]), beta = (double)rows->beta[t];
    for (int j = 0; j < v_dim; j++)
        sum[j] = 0;
    for (int i = 0; i < k_dim; i++)
        for (int j = 0; j < v_dim; j++)
            sum[j] += (state[i * v_dim + j] *= decay) * (double)k[i];
    for (int j = 0; j < v_dim; j++) {
        double d = beta * ((double)v[j] - sum[j]), o = 0;
        for (int i = 0; i < k_dim; i++) {
            state[i * v_dim + j] += (double)k[i] * d;
            o += state[i * v_dim + j] * (double)q[i];
        }
        delta[j] = (float)d;
        out[j] = (float)o;
    }
}

static void advance(const struct delta_rows *rows, float *state)
{
    int n = rows->k_dim * rows->v_dim;
    double *exact = (double *)(void *)rows->memory;
    for (int i = 0; i < n; i++)
        exact[i] = (double)state[i];
    for (int t = 0; t < rows->n; t++)
        step(rows, t, exact, exact + n);
    for (int i = 0; i < n; i++)
        state[i] = (float)exact[i];
}

static void replay(const float *k, const float *delta, float g, float *state, int k_dim, int v_dim)
{
    double decay = exp((double)g);
    for (int i = 0; i < k_dim; i++)
        for (int j = 0; j < v_dim; j++) {
            float *s = state + i * v_dim + j;
            *s = (float)((double)*s * decay + (double)k[i] * (double)delta[j]);
        }
}

static void convolve(const float *const *rows, int n_rows, const float *weight, size_t stride,
                     float *out, int n)
{
    for (int c = 0; c < n; c++) {
        double sum = 0;
        for (int j = 0; j < n_rows; j++)
            sum += (double)weight[(size_t)j * stride + (size_t)c] * (double)rows[j][c];
        out[c] = (float)(sum / (1 + exp(-sum)));
    }
}

const struct delta_kernels delta_kernels_scalar = {
    .normalize = normalize, .advance = advance, .replay = replay, .convolve = convolve};
