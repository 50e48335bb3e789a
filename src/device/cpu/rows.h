/* Kernels of the row-wise ops: a driver in rows.c hands them one row or one head at a time. */
#ifndef CSGL_DEVICE_CPU_ROWS_H
#define CSGL_DEVICE_CPU_ROWS_H

struct row_kernels {
    /* With residual: residual += x, then out = norm(residual); without (NULL): out = norm(x).
     * out NULL: the sum alone. out may be x. norm(v) = v / sqrt(mean(v^2) + eps) * (w + add). */
    void (*rms_norm)(const float *x, float *residual, const float *weight, float *out, int n,
                     float eps, float add);
    /* head[i], head[i + n_rotated/2] rotated by angle i < n_rotated/2; angles are cos, sin pairs.
     */
    void (*rotate)(float *head, const float *angles, int n_rotated);
    /* out = gate / (1 + e^-gate) * up */
    void (*silu_mul)(const float *gate, const float *up, float *out, int n);
    /* out = x / (1 + e^-gate) */
    void (*sigmoid_mul)(const float *x, const float *gate, float *out, int n);
    /* out = (clamp(up, -limit, limit) + 1) * g / (1 + e^(-alpha g)), g = min(gate, limit) */
    void (*clamped_swiglu)(const float *gate, const float *up, float *out, int n, float alpha,
                           float limit);
    /* The sum of e^(x - max); max is the largest x. */
    float (*sum_exp)(const float *x, int n, float max);
    /* out += scale * x */
    void (*add_scaled)(const float *x, float scale, float *out, int n);
    /* out = e^((x - max) * inverse), max the largest x: the same bits at every level where that is
     * e^-100 or more. Below it and for a NaN, out is no more than e^-100, or a NaN. */
    void (*weigh)(const float *x, float max, float inverse, float *out, int n);
};

/* The table of a file that names its kernels as the members are named. */
#define ROW_KERNELS                                                                                \
    {                                                                                              \
        .rms_norm = rms_norm, .rotate = rotate, .silu_mul = silu_mul, .sigmoid_mul = sigmoid_mul,  \
        .clamped_swiglu = clamped_swiglu, .sum_exp = sum_exp, .add_scaled = add_scaled,            \
        .weigh = weigh                                                                             \
    }

/* One table a file; those of an instruction set exist where it does. */
extern const struct row_kernels row_kernels_scalar;
extern const struct row_kernels row_kernels_avx2;
extern const struct row_kernels row_kernels_avx512;
extern const struct row_kernels row_kernels_neon;

#endif
