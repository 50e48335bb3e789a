/* Mixture of experts: a router chooses a few of many feed-forward blocks for each row; a shared one
 * may serve all rows beside them. */
#ifndef CSGL_LAYERS_MOE_H
#define CSGL_LAYERS_MOE_H

#include "layers/mlp.h"

struct moe_layer {
    struct linear_layer router; /* whole: a logit an expert, then the shared expert's gate if any */
    struct experts *experts;    /* their inner columns are split over ranks */
    int32_t n_experts, top_k;
    bool is_normalised; /* weights of the chosen experts sum to 1 */
    enum activation activation;
    float alpha, limit; /* of CLAMPED_SWIGLU */
    bool has_shared, has_shared_gate;
    struct mlp_layer shared;
};

/* Intermediates of moe_forward, made once a step and used by every layer. */
struct moe_scratch {
    struct tensor logits;  /* [T, experts + 1] */
    struct tensor experts; /* i32 [T, top_k] */
    struct tensor weights; /* [T, top_k] */
    struct tensor shared;  /* [T, H]; where no layer has a shared expert, without columns */
};

/* The widest layers of a model, for its scratch. */
struct moe_shape {
    int32_t n_experts, top_k; /* n_experts 0: no layer is sparse, nothing is taken */
    int32_t hidden;
    bool has_shared;
};

size_t moe_scratch_bytes(const struct moe_shape *shape, int32_t max_rows);
struct moe_scratch moe_scratch_make(struct forward *f, const struct moe_shape *shape, int32_t rows);

/* x [T, H] -> out [T, H]; out may be x. `mlp` serves the shared expert. */
void moe_forward(struct forward *f, const struct moe_layer *layer,
                 const struct moe_scratch *scratch, const struct mlp_scratch *mlp,
                 const struct tensor *x, const struct tensor *out);

#endif
