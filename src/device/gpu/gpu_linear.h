/* What linears and experts of tiles share: the choice of a kernel, and the workspace. */
#ifndef CSGL_DEVICE_GPU_GPU_LINEAR_H
#define CSGL_DEVICE_GPU_GPU_LINEAR_H

#include "device/gpu/gpu_tiles.h"

/* The kernels for a form, of linear_flat.cu and linear_many.cu. */
enum { GPU_FLAT_8, GPU_FLAT_8X2, GPU_FLAT_16, GPU_MANY_64, GPU_MANY_128, N_GPU_TILE_KERNELS };

/* Which kernel, for how many outputs and rows a threadgroup; shared_bytes 0: of linear_flat.cu. */
struct gpu_tile_choice {
    enum gpu_kernel_name kernel;
    uint32_t outputs, rows, n_threads, shared_bytes;
};

/* One of linear_flat.cu for `columns` 16-bit rows, where n_tiles rows of tiles share the GPU. */
struct gpu_tile_choice gpu_choose_flat(const struct gpu_device *gpu, enum gpu_tile_form form,
                                       const enum gpu_kernel_name names[N_GPU_TILE_KERNELS],
                                       int64_t n_tiles, uint32_t columns);

/* A kernel of linear_many.cu for 64 or 128 rows. */
struct gpu_tile_choice gpu_choose_many(enum gpu_tile_form form,
                                       const enum gpu_kernel_name names[N_GPU_TILE_KERNELS],
                                       uint32_t rows);

/* Whether n_small threadgroups of 64 x 64 take longer than n_large of 256 x 128. */
bool gpu_large_is_faster(const struct gpu_device *gpu, int64_t n_small, int64_t n_large);

/* Threads for a row of inputs: four positions each, fewer where rows keep all processors busy. */
uint32_t gpu_input_threads(const struct gpu_device *gpu, uint32_t positions, int64_t n_rows);

/* Makes room in the memory that ops share for what lies there during one of them. */
enum status gpu_workspace_reserve(struct gpu_device *gpu, size_t bytes, struct error *error);

#endif
