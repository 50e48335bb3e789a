/* The feed-forward blocks of a layer, dense or a mixture of experts: their configuration and their
 * weights by name. */
#ifndef CSGL_MODELS_FEED_FORWARD_H
#define CSGL_MODELS_FEED_FORWARD_H

#include "layers/moe.h"
#include "models/loader.h"

#include "base/json.h"

/* The mixture of a model's sparse layers. Names are those behind "model.layers.N.mlp.". */
struct moe_config {
    int32_t n_experts, top_k, intermediate;
    int32_t shared_intermediate;        /* 0: no shared expert */
    bool is_normalised;                 /* weights of the chosen experts sum to 1 */
    bool has_bias;                      /* router and experts */
    bool is_interleaved, is_transposed; /* as in struct expert_shape */
    enum activation activation;
    float alpha, limit;
    const char *router, *shared;
    const char *shared_gate; /* NULL: none */
};

/* What one layer has instead of the model's values; 0: the model's. */
struct moe_sizes {
    int32_t n_experts, top_k, intermediate, shared_intermediate;
};

/* Replaces the values in `out` (the family's defaults) by those of the keys that most families
 * spell alike: num_experts or num_local_experts, num_experts_per_tok, moe_intermediate_size,
 * norm_topk_prob. Refuses more chosen experts than there are. */
enum status moe_config_read(const struct json *config, struct moe_config *out, struct error *error);

/* Which layers are sparse, by decoder_sparse_step and mlp_only_layers. */
enum status moe_read_layers(const struct json *config, int32_t n_layers, bool *is_sparse,
                            struct error *error);

/* The scratch that layers of this configuration need. */
struct moe_shape moe_shape_of(const struct moe_config *config, int32_t hidden);

/* down(silu(gate x) * up x) from PREFIX.{gate,up,down}_proj or .gate_and_up_proj and .down_proj. */
enum status mlp_load(struct loader *loader, const char *prefix, int32_t hidden,
                     int32_t intermediate, bool has_bias, struct mlp_layer *out,
                     struct error *error);

/* The router, experts and shared expert at PREFIX, "model.layers.N.mlp". */
enum status moe_load(struct loader *loader, const char *prefix, int32_t hidden,
                     const struct moe_config *config, struct moe_layer *out, struct error *error);

#endif
