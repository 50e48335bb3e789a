/* Weights for the native linears (src/kernels/cuda): codes and 16-bit floats in the order in which
 * the matrix unit takes them. */
#ifndef CSGL_DEVICE_GPU_GPU_TILES_H
#define CSGL_DEVICE_GPU_GPU_TILES_H

#include "device/gpu/gpu_device.h"

/* name, bits a code, groups a tile has levels for (0: floats), bytes of a row's levels for a group:
 * a scale and a bias of 2 or 4 bytes each, or a scale of 2. First come those of codes, which int8
 * inputs can be multiplied with; e2m1: floats of 4 bits. */
#define GPU_CODE_FORMS(X)                                                                          \
    X(q4, 4, 1, 4)                                                                                 \
    X(q4s2, 4, 2, 4)                                                                               \
    X(q4s2w, 4, 2, 8)                                                                              \
    X(q4s4w, 4, 4, 8)                                                                              \
    X(q8, 8, 1, 4)                                                                                 \
    X(q8s2, 8, 2, 4)                                                                               \
    X(q8s2w, 8, 2, 8)                                                                              \
    X(q8s4w, 8, 4, 8)
#define GPU_TILE_FORMS(X)                                                                          \
    GPU_CODE_FORMS(X)                                                                              \
    X(e2m1, 4, 2, 2)                                                                               \
    X(f16, 16, 0, 0)                                                                               \
    X(bf16, 16, 0, 0)

#define GPU_TILE_ENUM(name, bits, spans, level_bytes) GPU_TILE_##name,
enum gpu_tile_form {
    GPU_CODE_FORMS(GPU_TILE_ENUM) N_GPU_CODE_FORMS,
    GPU_TILE_LAST_CODE = N_GPU_CODE_FORMS - 1,
    GPU_TILE_e2m1,
    GPU_TILE_f16,
    GPU_TILE_bf16,
    N_GPU_TILE_FORMS
};
#undef GPU_TILE_ENUM

struct gpu_tile_info {
    uint32_t bits, spans, level_bytes;
};

extern const struct gpu_tile_info gpu_tile_infos[N_GPU_TILE_FORMS];

/* How weights lie: one run of memory with the tiles, then from the offsets on the levels, a power
 * of two for each row of weights that brings them into the range of f16 (f32, of codes alone), the
 * biases of the outputs (f32) and the inputs' order (i32); an offset of 0: none. */
struct gpu_tile_shape {
    enum gpu_tile_form form;
    uint32_t rows, cols, n_tiles, level_shift;
    bool is_bf16;
    size_t levels, row_factors, out_bias, order, bytes;
};

/* How the slices lie as one matrix, one below the other; false where the native kernels do not take
 * them. Takes no memory. The slices are such that gpu_weight_describe takes each. */
bool gpu_tiles_describe(const struct weight_slice *slices, int n_slices,
                        struct gpu_tile_shape *out);

/* Writes slices of that shape to `to` [bytes], zeroed. False: no memory. */
bool gpu_tiles_pack(const struct weight_slice *slices, int n_slices,
                    const struct gpu_tile_shape *shape, uint8_t *to);

/* Loads slices of that shape into zeroed memory of the GPU. */
enum status gpu_tiles_load(struct gpu_device *gpu, const struct weight_slice *slices, int n_slices,
                           const struct gpu_tile_shape *shape, const struct gpu_range *to,
                           struct error *error);

/* The column within its tile at a position of its inputs (kernels/args.h, struct kd_inputs). */
uint32_t gpu_tile_column(uint32_t position, uint32_t spans);

#endif
