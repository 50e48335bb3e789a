/* The gated feed-forward block: down(silu(gate x) * up x). */
#ifndef CSGL_LAYERS_MLP_H
#define CSGL_LAYERS_MLP_H

#include "layers/linear.h"

struct mlp_layer {
    struct linear_layer gate_up; /* two parts, columns */
    struct linear_layer down;    /* rows */
};

/* Intermediates of mlp_forward, made once a step and used by every layer. */
struct mlp_scratch {
    struct tensor gate_up; /* [T, 2I on this rank], or wider */
    struct tensor act;     /* [T, I on this rank], or wider */
};

/* x [T, H] -> out [T, H]; out may be x. */
void mlp_forward(struct forward *f, const struct mlp_layer *layer,
                 const struct mlp_scratch *scratch, const struct tensor *x,
                 const struct tensor *out);

/* The same without the sum over ranks: each rank's part of `out`. */
void mlp_forward_part(struct forward *f, const struct mlp_layer *layer,
                      const struct mlp_scratch *scratch, const struct tensor *x,
                      const struct tensor *out);

#endif
