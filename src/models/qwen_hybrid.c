/* Qwen3-Next, Qwen3.5 and its mixtures (Qwen3.6 and 3.8 use the same types): three of four layers
 * are gated delta nets, the others full attention with a gate; zero-centred norms, RoPE on a
 * quarter of each head. Vision-language files keep the decoder's keys under
 * "text_config"; only the text part is read. */
#include "models/config.h"
#include "models/decoder.h"

enum { MAX_DIM = 1 << 20 };

static enum status read_layer_types(const struct json *text, struct decoder_config *c,
                                    struct error *error)
{
    const struct json *types = json_get(text, "layer_types");
    int32_t interval;
    enum status status =
        config_count(text, "full_attention_interval", DECODER_MAX_LAYERS, 4, &interval, error);
    if (status != OK)
        return status;
    if (!json_is_null(types) && (types->type != JT_ARRAY || types->n != (size_t)c->n_layers))
        return error_set(error, ERROR_INVALID,
                         "\"layer_types\" must be a list of %d entries, one a layer", c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct json *type = json_is_null(types) ? NULL : &types->items[i];
        c->is_linear[i] = type ? json_string_is(type, "linear_attention") : (i + 1) % interval != 0;
        if (type && !c->is_linear[i] && !json_string_is(type, "full_attention"))
            return error_set(error, ERROR_UNSUPPORTED,
                             "layer type \"%s\" of layer %d is not supported by this family; "
                             "linear_attention and full_attention are",
                             json_string(type) ? json_string(type) : "?", (int)i);
        c->delta.n_layers += c->is_linear[i];
    }
    if (c->delta.n_layers == 0 || c->delta.n_layers == c->n_layers)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%d of %d layers are linear attention; this family needs both kinds",
                         (int)c->delta.n_layers, (int)c->n_layers);
    return OK;
}

/* The class default is a quarter; old files have the key beside rope_scaling. */
static enum status read_rotary_dims(const struct json *text, struct decoder_config *c,
                                    struct error *error)
{
    const struct json *outer = json_get(text, "partial_rotary_factor");
    if (!json_is_null(json_get(json_get(text, "rope_parameters"), "partial_rotary_factor")))
        return OK;
    return rope_config_rotate(&c->rope, c->head_dim,
                              json_is_null(outer) ? 0.25 : json_number(outer, 0.0), error);
}

static const struct json *text_of(const struct json *config)
{
    const struct json *text = json_get(config, "text_config");
    return json_is_null(text) ? config : text;
}

/* What the three families share. */
static enum status read_hybrid(const struct json *config, struct decoder_config *c,
                               struct error *error)
{
    const struct json *text = text_of(config), *tied = json_get(config, "tie_word_embeddings");
    int32_t head_dim;
    enum status status = decoder_config_read(text, c, error);
    if (status == OK)
        status = config_count(text, "head_dim", 1024, 0, &head_dim, error);
    if (status == OK)
        status = read_layer_types(text, c, error);
    if (status == OK)
        status = delta_net_config_read(text, &c->delta, error);
    if (status != OK)
        return status;
    /* A wrapper's own word counts. */
    if (!json_is_null(tied))
        c->head = json_bool(tied, false) ? HEAD_TIED : HEAD_OWN;
    status = read_rotary_dims(text, c, error);
    c->has_qkv_bias = c->has_o_bias = json_bool(json_get(text, "attention_bias"), false);
    c->has_qk_norm = true;
    c->has_gate = true;
    c->has_raw_norms = true;
    c->delta.is_tiled = json_bool(json_get(text, "linear_value_heads_tiled"), false);
    return status;
}

/* A shared expert with a gate beside those that are chosen. */
static enum status read_mixture(const struct json *text, const struct moe_config *defaults,
                                struct decoder_config *c, struct error *error)
{
    c->moe = *defaults;
    c->moe.is_normalised = true;
    c->moe.router = "gate";
    c->moe.shared = "shared_expert";
    c->moe.shared_gate = "shared_expert_gate";
    enum status status = moe_config_read(text, &c->moe, error);
    return status == OK ? config_count(text, "shared_expert_intermediate_size", MAX_DIM, 512,
                                       &c->moe.shared_intermediate, error)
                        : status;
}

static enum status qwen3_5_configure(const struct json *config, const struct comm *comm,
                                     struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = read_hybrid(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static enum status qwen3_5_moe_configure(const struct json *config, const struct comm *comm,
                                         struct model **out, struct error *error)
{
    struct decoder_config c;
    struct moe_config defaults = {.n_experts = 256, .top_k = 8, .intermediate = 512};
    enum status status = read_hybrid(config, &c, error);
    if (status == OK)
        status = read_mixture(text_of(config), &defaults, &c, error);
    c.moe.is_normalised = true; /* whatever norm_topk_prob says */
    for (int32_t i = 0; i < DECODER_MAX_LAYERS; i++)
        c.is_sparse[i] = true;
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static enum status qwen3_next_configure(const struct json *config, const struct comm *comm,
                                        struct model **out, struct error *error)
{
    struct decoder_config c;
    struct moe_config defaults = {.n_experts = 512, .top_k = 10, .intermediate = 512};
    enum status status = read_hybrid(config, &c, error);
    if (status == OK)
        status = read_mixture(text_of(config), &defaults, &c, error);
    if (status == OK)
        status = moe_read_layers(text_of(config), c.n_layers, c.is_sparse, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const qwen3_5_types[] = {"qwen3_5", "qwen3_5_text", NULL};
static const char *const qwen3_5_moe_types[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};
static const char *const qwen3_next_types[] = {"qwen3_next", NULL};

const struct model_family qwen3_5_family = {
    .name = "qwen3_5",
    .model_types = qwen3_5_types,
    .configure = qwen3_5_configure,
    DECODER_FAMILY_CALLS,
};

const struct model_family qwen3_5_moe_family = {
    .name = "qwen3_5_moe",
    .model_types = qwen3_5_moe_types,
    .configure = qwen3_5_moe_configure,
    DECODER_FAMILY_CALLS,
};

const struct model_family qwen3_next_family = {
    .name = "qwen3_next",
    .model_types = qwen3_next_types,
    .configure = qwen3_next_configure,
    DECODER_FAMILY_CALLS,
};
