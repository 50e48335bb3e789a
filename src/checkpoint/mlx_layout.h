/* The tensors of a folder of floats as mlx-lm names, stacks and orders them, each with the place in
 * the original files that its rows come from. Reads no values. */
#ifndef CSGL_CHECKPOINT_MLX_LAYOUT_H
#define CSGL_CHECKPOINT_MLX_LAYOUT_H

#include "checkpoint/checkpoint_struct.h"

/* How a tensor comes about: its bytes as they are, row by row, or as codes and levels. */
enum mlx_way { MLX_COPIED, MLX_GATHERED, MLX_QUANTIZED };

struct mlx_tensor {
    const char *name; /* as written; of a quantized one "STEM.weight" */
    enum mlx_way way;
    int n_dims;
    int64_t dims[TENSOR_DIMS_MAX]; /* of the floats */
    const struct tensor *source;
    const struct tensor *const *singles; /* [n], experts in tensors of their own; or NULL */
    int64_t n, rows, cols;               /* experts (1: it is no stack), and what each has */
    int64_t stride, offset, step; /* row i of expert e is row e * stride + offset + i * step */
    bool is_turned;               /* the source is [n, cols, stride]: what is a row lies upright */
    bool is_norm;                 /* 1 is added: the source holds w - 1 */
};

/* Zero-initialise; mlx_layout_make; mlx_layout_done. Strings and arrays are the checkpoint's. */
struct mlx_layout {
    struct mlx_tensor *items;
    size_t n, cap;
};

/* All tensors of the language model, in the order of the files. checkpoint_quantize has been
 * called. `is_tied`: the head is the embedding. ERROR_UNSUPPORTED names experts that mlx-lm could
 * not find. */
enum status mlx_layout_make(struct checkpoint *checkpoint, bool is_tied, struct mlx_layout *out,
                            struct error *error);
void mlx_layout_done(struct mlx_layout *layout);

/* Expert e as floats, of which row i of the tensor is row *first + i * *step. `scratch` has room
 * for rows * cols values of a tensor that is turned. */
void mlx_tensor_rows(const struct mlx_tensor *tensor, int64_t e, uint8_t *scratch,
                     struct weight *out, int64_t *first, int64_t *step);

#endif
