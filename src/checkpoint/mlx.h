/* Weights as MLX quantizes them: X.weight holds codes in U32 words, X.scales and X.biases the
 * levels of their groups, config.json says how many bits and columns. */
#ifndef CSGL_CHECKPOINT_MLX_H
#define CSGL_CHECKPOINT_MLX_H

#include "base/json.h"
#include "checkpoint/tensors.h"

enum mlx_mode { MLX_AFFINE, MLX_MXFP4, MLX_MXFP8, MLX_NVFP4 };

struct mlx_format {
    enum mlx_mode mode;
    int32_t bits, group;
};

/* config.json's block; `block` NULL: the checkpoint is not quantized by MLX. */
struct mlx_quantization {
    const struct json *block; /* the defaults, and overrides under the names of modules */
    struct mlx_format format;
};

/* The block of a configuration that has one ("quantization", or "quantization_config" without a
 * quant_method, there or in "text_config"). Its defaults are checked, overrides when asked for. */
enum status mlx_quantization_read(const struct json *config, struct mlx_quantization *out,
                                  struct error *error);

/* Whether the mode has these bits and groups. */
bool mlx_format_is_possible(const struct mlx_format *format);

/* Whether this weight is quantized, a matrix of floats or a stack of them, as MLX does except that
 * routers stay floats; it is then shown so. */
bool mlx_make(const struct mlx_format *format, const struct tensor *tensor, struct weight *out);

/* The weight of the module `path` (as the file spells it) from its three tensors; `biases` is NULL
 * where there is none. What shapes, types and the configuration say must agree. */
enum status mlx_weight(const struct mlx_quantization *quantization, const char *path,
                       const struct tensor *codes, const struct tensor *scales,
                       const struct tensor *biases, struct weight *out, struct error *error);

#endif
