/* Grouped-query self-attention over the paged cache, up to but without the output projection, so
 * that the last layer can drop rows nobody wants before it. */
#ifndef CSGL_LAYERS_ATTENTION_H
#define CSGL_LAYERS_ATTENTION_H

#include "layers/linear.h"

struct attention_layer {
    struct linear_layer qkv;      /* parts q, k, v or q, gate, k, v; columns, by whole heads */
    bool shares_kv;               /* qkv has q alone; pages hold another layer's keys and values */
    struct linear_layer o;        /* rows */
    struct tensor q_norm, k_norm; /* [1, D]; buffer NULL: none */
    struct tensor sinks;          /* [1, n_heads]; buffer NULL: none */
    float eps;
    bool norm_plus_one;          /* the file holds w - 1 */
    bool norm_last;              /* q and k are rotated first, then normed */
    int32_t n_heads, n_kv_heads; /* on this rank */
    int32_t head_dim;
    bool has_gate;  /* the result is multiplied by sigmoid(gate) */
    int32_t window; /* 0: full */
    float scale;
    int32_t group;         /* index of its KV group */
    struct kv_pages pages; /* this layer's share of the pool */
};

/* x [T, H] -> out [T, n_heads * D]. qkv [T, qkv.n_out] is scratch, angles [T, R]. */
void attention_forward(struct forward *f, const struct attention_layer *layer,
                       const struct tensor *angles, const struct tensor *x,
                       const struct tensor *qkv, const struct tensor *out);

#endif
