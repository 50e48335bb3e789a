/* Hunyuan, dense: RMSNorm on each head of q and k after RoPE, a theta raised by
 * alpha. Its mixtures (1.11), such as A13B, add a shared expert without a gate and sizes that may
 * differ by layer; keys and values of one layer may serve several. */
#include "models/config.h"
#include "models/decoder.h"

enum { MAX_DIM = 1 << 20 };

/* What both kinds have in common. */
static enum status read_attention(const struct json *config, struct decoder_config *c,
                                  struct error *error)
{
    enum status status = decoder_config_read(config, c, error);
    if (status == OK)
        status = config_count(config, "intermediate_size", MAX_DIM, 0, &c->intermediate, error);
    if (status != OK)
        return status;
    if (json_is_null(json_get(config, "rms_norm_eps")))
        c->eps = 1e-5f; /* this family's class default */
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), false);
    c->has_qkv_bias = has_attention_bias;
    c->has_o_bias = has_attention_bias;
    c->has_qk_norm = json_bool(json_get(config, "use_qk_norm"), true);
    c->norm_last = true;
    return OK;
}

static enum status hunyuan_dense_configure(const struct json *config, const struct comm *comm,
                                           struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = read_attention(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

/* Entry `layer` of `key`, which is a number or a list of one a layer. */
static enum status read_entry(const struct json *config, const char *key, int32_t layer,
                              int32_t n_layers, int32_t max, int32_t otherwise, int32_t *out,
                              struct error *error)
{
    const struct json *value = json_get(config, key);
    if (json_is_null(value) || value->type != JT_ARRAY)
        return config_count(config, key, max, otherwise, out, error);
    int64_t n;
    if (value->n < (size_t)n_layers || !json_int(&value->items[layer], 1, max, &n))
        return error_set(
            error, ERROR_INVALID,
            "the configuration's \"%s\" must be a whole number from 1 to %d, or a list "
            "of such, one for each of %d layers",
            key, (int)max, (int)n_layers);
    *out = (int32_t)n;
    return OK;
}

static enum status read_layer(const struct json *config, struct decoder_config *c, int32_t i,
                              struct error *error)
{
    struct moe_sizes *sizes = &c->moe_sizes[i];
    int32_t n_shared = 1;
    enum status status = read_entry(config, "num_experts", i, c->n_layers, MOE_MAX_EXPERTS, 1,
                                    &sizes->n_experts, error);
    if (status != OK || sizes->n_experts == 1)
        return status; /* a dense layer */
    c->is_sparse[i] = true;
    status =
        read_entry(config, "moe_topk", i, c->n_layers, MOE_MAX_EXPERTS, 1, &sizes->top_k, error);
    if (status == OK)
        status = read_entry(config, "moe_intermediate_size", i, c->n_layers, MAX_DIM,
                            c->intermediate, &sizes->intermediate, error);
    if (status == OK)
        status = read_entry(config, "num_shared_expert", i, c->n_layers, MAX_DIM / c->intermediate,
                            1, &n_shared, error);
    if (status == OK && sizes->top_k > sizes->n_experts)
        return error_set(error, ERROR_INVALID,
                         "moe_topk is %d in layer %d; it must be at most num_experts, %d",
                         (int)sizes->top_k, (int)i, (int)sizes->n_experts);
    if (status == OK && json_bool(json_get(config, "use_mixed_mlp_moe"), true))
        sizes->shared_intermediate = n_shared * c->intermediate;
    return status;
}

static enum status hunyuan_moe_configure(const struct json *config, const struct comm *comm,
                                         struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = read_attention(config, &c, error);
    if (status == OK && json_bool(json_get(config, "use_cla"), false))
        status =
            config_count(config, "cla_share_factor", DECODER_MAX_LAYERS, 2, &c.kv_share, error);
    if (status != OK)
        return status;
    c.moe = (struct moe_config){.is_normalised = true, .router = "gate.wg", .shared = "shared_mlp"};
    for (int32_t i = 0; i < c.n_layers && status == OK; i++)
        status = read_layer(config, &c, i, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const dense_types[] = {"hunyuan_v1_dense", NULL};
static const char *const moe_types[] = {"hunyuan_v1_moe", "hunyuan", NULL};

const struct model_family hunyuan_dense_family = {
    .name = "hunyuan_v1_dense",
    .model_types = dense_types,
    .configure = hunyuan_dense_configure,
    DECODER_FAMILY_CALLS,
};

const struct model_family hunyuan_moe_family = {
    .name = "hunyuan_v1_moe",
    .model_types = moe_types,
    .configure = hunyuan_moe_configure,
    DECODER_FAMILY_CALLS,
};
