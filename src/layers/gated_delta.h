/* A gated delta net layer (Qwen3-Next, Qwen3.5): projections, a short convolution, the gated delta
 * rule, a gated norm of each head; up to but without the output projection, as attention. */
#ifndef CSGL_LAYERS_GATED_DELTA_H
#define CSGL_LAYERS_GATED_DELTA_H

#include "layers/linear.h"

struct gated_delta_layer {
    struct linear_layer qkvz;  /* parts q, k, v, z; columns, by whole heads */
    struct linear_layer gates; /* parts b, a: a value each for every value head */
    struct linear_layer out;   /* rows */
    struct tensor conv;        /* [conv_rows + 1, conv_channels] */
    struct tensor rate;        /* [1, n_v_heads]: e^A_log */
    struct tensor dt_bias;     /* [1, n_v_heads] */
    struct tensor norm;        /* [1, v_dim] */
    float eps;
    struct state_slots slots; /* this layer's share of the pool */
};

/* Intermediates of gated_delta_forward, made once a step and used by every layer. */
struct gated_delta_scratch {
    struct tensor qkvz;  /* [T, conv_channels + n_v_heads * v_dim] */
    struct tensor conv;  /* [T, conv_channels] */
    struct tensor gates; /* [T, 2 n_v_heads] */
};

/* layout->n_layers 0: nothing is taken. */
size_t gated_delta_scratch_bytes(const struct state_layout *layout, int32_t max_rows);
struct gated_delta_scratch gated_delta_scratch_make(struct forward *f,
                                                    const struct state_layout *layout);

/* x [T, H] -> out [T, n_v_heads * v_dim]. */
void gated_delta_forward(struct forward *f, const struct gated_delta_layer *layer,
                         const struct gated_delta_scratch *scratch, const struct tensor *x,
                         const struct tensor *out);

#endif
