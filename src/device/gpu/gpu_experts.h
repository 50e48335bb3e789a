/* Experts as tiles for the native kernels: linear_flat.cu, linear_many.cu and linear_inputs.cu for
 * the products, moe.metal for what sorts rows by expert and adds up what the experts made. */
#ifndef CSGL_DEVICE_GPU_GPU_EXPERTS_H
#define CSGL_DEVICE_GPU_GPU_EXPERTS_H

#include "device/gpu/gpu_tiles.h"

/* The experts of a layer: of each a matrix of gate and up, one below the other, and one of down. */
struct gpu_experts {
    int32_t n_experts;
    struct gpu_tile_shape gate_up, down;
    struct gpu_memory *gate_up_memory, *down_memory;
};

/* The shapes of experts like this one; false where the native kernels do not take them, rows have
 * chosen too many, or inputs must not be rounded. */
bool gpu_experts_describe(const struct gpu_device *gpu, const struct expert_slices *slices,
                          int32_t n_experts, int32_t top_k, struct gpu_experts *out);

/* Bytes of the experts themselves, and of the workspace for ops of max_rows rows. */
struct device_bytes gpu_experts_tile_bytes(const struct gpu_experts *experts, int32_t top_k,
                                           int32_t max_rows);

/* Takes memory for described experts and for ops of max_rows rows; gpu_experts_done gives back what
 * is theirs alone, also after an error. */
enum status gpu_experts_alloc(struct gpu_device *gpu, struct gpu_experts *experts, int32_t top_k,
                              int32_t max_rows, struct error *error);
void gpu_experts_done(struct gpu_device *gpu, struct gpu_experts *experts);

/* Writes expert e, which lies as the one that was described; ERROR_UNSUPPORTED if it does not. */
enum status gpu_experts_write(struct gpu_device *gpu, const struct gpu_experts *experts, int32_t e,
                              const struct expert_slices *slices, struct error *error);

/* The op, for x of at most max_rows rows. */
void gpu_experts_run(struct gpu_device *gpu, const struct gpu_experts *experts,
                     const struct moe_ffn_args *args);

#endif
