/* The argument structs of the kernels, shared by the host and every target: words of 4 bytes, and
 * of 8 at multiples of 8. Strides and counts are in elements. */
#ifndef CSGL_KERNELS_ARGS_H
#define CSGL_KERNELS_ARGS_H

#ifndef KD_KERNELS
#include <stdint.h>
#endif

enum {
    KD_SIMD_WIDTH = 32,
    KD_ROW_THREADS = 256, /* of kernels that give a threadgroup to a row */
    KD_MAX_SIMDS = KD_ROW_THREADS / KD_SIMD_WIDTH
};

/* In the order of enum dtype and of the float encodings of enum weight_encoding. */
enum kd_dtype { KD_F32, KD_F16, KD_BF16 };

struct kd_no_args {
    uint32_t unused;
};

struct kd_embed {
    uint32_t cols, dtype; /* of the table's rows: enum kd_dtype */
    uint32_t ids_stride, out_stride;
};

struct kd_rms_norm {
    uint32_t cols;
    uint32_t x_stride, residual_stride, out_stride;
    uint32_t has_residual, has_out;
    float eps, plus; /* plus: 1 or 0, added to the weights */
};

struct kd_rope_angles {
    uint32_t pairs; /* a row: half the dims */
    uint32_t positions_stride, out_stride;
    float scale;
};

/* One of q and k. */
struct kd_norm_rope {
    uint32_t head_dim, rotated; /* rotated: the dims at its start that turn */
    uint32_t stride, angles_stride;
    uint32_t has_norm, is_norm_last;
    float eps, plus;
};

struct kd_silu_mul {
    uint32_t cols; /* of out */
    uint32_t gate_up_stride, out_stride;
};

struct kd_sigmoid_mul {
    uint32_t cols;
    uint32_t x_stride, gate_stride, out_stride;
};

struct kd_gated_norm {
    uint32_t head_dim;
    uint32_t x_stride, z_stride, out_stride;
    float eps;
};

struct kd_gather {
    uint32_t words; /* of 2 bytes, a row */
    uint32_t rows_stride;
    uint32_t x_words, out_words; /* strides */
};

struct kd_moe_route {
    uint32_t n_experts, n_chosen;
    uint32_t logits_stride, experts_stride, weights_stride;
    uint32_t is_normalised;
};

#endif
