#include "models/feed_forward.h"

#include "models/config.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DIM = 1 << 20, MAX_NAME = 128 };

struct name {
    char text[MAX_NAME];
};

static struct name join(const char *prefix, const char *name)
{
    struct name out;
    snprintf(out.text, sizeof out.text, "%s.%s", prefix, name);
    return out;
}

enum status moe_config_read(const struct json *config, struct moe_config *c, struct error *error)
{
    const char *count_key =
        json_is_null(json_get(config, "num_experts")) ? "num_local_experts" : "num_experts";
    struct {
        const char *key;
        int32_t max, *value;
    } counts[] = {
        {count_key, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", MOE_MAX_EXPERTS, &c->top_k},
        {"moe_intermediate_size", MAX_DIM, &c->intermediate},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        enum status status = config_count(config, counts[i].key, counts[i].max, *counts[i].value,
                                          counts[i].value, error);
        if (status != OK)
            return status;
    }
    if (c->top_k > c->n_experts)
        return error_set(error, ERROR_INVALID,
                         "num_experts_per_tok is %d; it must be at most %s, %d", (int)c->top_k,
                         count_key, (int)c->n_experts);
    c->is_normalised = json_bool(json_get(config, "norm_topk_prob"), c->is_normalised);
    return OK;
}

enum status moe_read_layers(const struct json *config, int32_t n_layers, bool *is_sparse,
                            struct error *error)
{
    int32_t step;
    enum status status = config_count(config, "decoder_sparse_step", INT32_MAX, 1, &step, error);
    if (status != OK)
        return status;
    for (int32_t i = 0; i < n_layers; i++)
        is_sparse[i] = (i + 1) % step == 0;
    const struct json *dense = json_get(config, "mlp_only_layers");
    if (json_is_null(dense))
        return OK;
    if (dense->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID,
                         "the configuration's \"mlp_only_layers\" must be a list of layers");
    for (size_t i = 0; i < dense->n; i++) {
        int64_t layer;
        if (!json_int(&dense->items[i], 0, n_layers - 1, &layer))
            return error_set(error, ERROR_INVALID,
                             "entry %zu of \"mlp_only_layers\" must be a layer from 0 to %d", i,
                             (int)n_layers - 1);
        is_sparse[layer] = false;
    }
    return OK;
}

struct moe_shape moe_shape_of(const struct moe_config *c, int32_t hidden)
{
    return (struct moe_shape){.n_experts = c->n_experts,
                              .top_k = c->top_k,
                              .hidden = hidden,
                              .has_shared = c->shared_intermediate > 0};
}

/* Hunyuan's older files hold up and gate in one weight, in this order. */
static enum status load_gate_up(struct loader *l, const char *prefix, int32_t hidden, int32_t n,
                                bool has_bias, struct linear_layer *out, struct error *error)
{
    struct name gate = join(prefix, "gate_proj"), up = join(prefix, "up_proj");
    struct name fused = join(prefix, "gate_and_up_proj");
    struct linear_part parts[] = {{gate.text, n, hidden, has_bias, 0},
                                  {up.text, n, hidden, has_bias, 0}};
    struct stored_rows stored[] = {{2 * n, {n, 1, 1}}, {2 * n, {0, 1, 1}}};
    if (!loader_is_fused(l, gate.text, fused.text))
        return loader_linear(l, parts, 2, SHARD_COLUMNS, out, error);
    parts[0].name = parts[1].name = fused.text;
    return loader_linear_rows(l, parts, stored, 2, SHARD_COLUMNS, out, error);
}

enum status mlp_load(struct loader *l, const char *prefix, int32_t hidden, int32_t intermediate,
                     bool has_bias, struct mlp_layer *out, struct error *error)
{
    struct name down = join(prefix, "down_proj");
    struct linear_part back = {down.text, hidden, intermediate, has_bias, 0};
    enum status status =
        load_gate_up(l, prefix, hidden, intermediate, has_bias, &out->gate_up, error);
    return status == OK ? loader_linear(l, &back, 1, SHARD_ROWS, &out->down, error) : status;
}

enum status moe_load(struct loader *l, const char *prefix, int32_t hidden,
                     const struct moe_config *c, struct moe_layer *out, struct error *error)
{
    *out = (struct moe_layer){.n_experts = c->n_experts,
                              .top_k = c->top_k,
                              .is_normalised = c->is_normalised,
                              .activation = c->activation,
                              .alpha = c->alpha,
                              .limit = c->limit,
                              .has_shared = c->shared_intermediate > 0,
                              .has_shared_gate = c->shared_intermediate > 0 && c->shared_gate};
    struct name router = join(prefix, c->router);
    struct name gate = join(prefix, out->has_shared_gate ? c->shared_gate : "");
    struct linear_part parts[] = {{router.text, c->n_experts, hidden, c->has_bias, 0},
                                  {gate.text, 1, hidden, false, 0}};
    struct expert_shape shape = {.n_experts = c->n_experts,
                                 .top_k = c->top_k,
                                 .hidden = hidden,
                                 .intermediate = c->intermediate,
                                 .has_bias = c->has_bias,
                                 .is_interleaved = c->is_interleaved,
                                 .is_transposed = c->is_transposed};
    enum status status = loader_router(l, parts, out->has_shared_gate ? 2 : 1, &out->router, error);
    if (status == OK)
        status = loader_experts(l, prefix, &shape, &out->experts, error);
    if (status == OK && out->has_shared)
        status = mlp_load(l, join(prefix, c->shared).text, hidden, c->shared_intermediate, false,
                          &out->shared, error);
    return status;
}
