/* Kernels of the gated delta rule and of its convolution; drivers in gated_delta.c and conv1d.c
 * hand them one value head, or a stretch of channels, at a time. */
#ifndef CSGL_DEVICE_CPU_GATED_DELTA_H
#define CSGL_DEVICE_CPU_GATED_DELTA_H

#include <stddef.h>
#include <stdint.h>

enum {
    DELTA_CHUNK = 64,    /* most rows that a kernel is handed at once */
    DELTA_STEPS = 16,    /* up to so many are computed one by one, as in a decode step */
    DELTA_MAX_DIM = 1024 /* of a key or a value */
};

/* n rows of one value head. Arrays of rows begin at the head's own columns. */
struct delta_rows {
    int n, k_dim, v_dim;
    const float *q, *k; /* [n][k_dim], q times k_dim^-1/2, k of length 1 */
    const float *v;     /* [n], v_stride floats apart */
    size_t v_stride;
    const float *g, *beta; /* [n] */
    float *out;            /* [n], out_stride floats apart */
    size_t out_stride;
    float *delta;  /* [n][v_dim] */
    float *memory; /* for the kernel, see delta_memory_floats */
};

struct delta_kernels {
    /* out = x * scale / sqrt(sum x^2 + 1e-6) */
    void (*normalize)(const float *x, float *out, int n, float scale);
    /* Advances `state` [k_dim][v_dim] by the rows; fills out and delta. */
    void (*advance)(const struct delta_rows *rows, float *state);
    /* state = e^g state + k delta^T, with the arithmetic of up to DELTA_STEPS rows in `advance`. */
    void (*replay)(const float *k, const float *delta, float g, float *state, int k_dim, int v_dim);
    /* out[c] = silu(sum over j of weight[j * stride + c] * rows[j][c]) for n channels. */
    void (*convolve)(const float *const *rows, int n_rows, const float *weight, size_t stride,
                     float *out, int n);
};

/* Floats of `memory`: enough for every level. */
static inline size_t delta_memory_floats(int k_dim, int v_dim)
{
    size_t chunk = DELTA_CHUNK, k = (size_t)k_dim, v = (size_t)v_dim;
    size_t chunked = chunk * (k + v) + 2 * chunk * chunk, twin = 2 * (k * v + 2 * v);
    return chunked > twin ? chunked : twin;
}

/* One table a file; those of an instruction set exist where it does. */
extern const struct delta_kernels delta_kernels_scalar;
extern const struct delta_kernels delta_kernels_avx2;
extern const struct delta_kernels delta_kernels_avx512;
extern const struct delta_kernels delta_kernels_neon;

#endif
