/* gpt-oss: layers with a window and full ones take turns, heads have sinks, every layer is a
 * mixture of experts with biases and a clamped gate. */
#include "models/config.h"
#include "models/decoder.h"

enum { MAX_DIM = 1 << 20 };

static const char gguf_type[] = "gpt-oss";

/* The class's rope scaling, for configurations that have none. */
static void default_rope(struct rope_config *rope, int32_t head_dim)
{
    *rope = (struct rope_config){.type = ROPE_YARN,
                                 .dim = head_dim,
                                 .theta = 150000,
                                 .factor = 32,
                                 .original_context = 4096,
                                 .beta_fast = 32,
                                 .beta_slow = 1,
                                 .attention_factor = 1.3465735902799727}; /* 0.1 ln 32 + 1 */
}

static enum status read_windows(const struct json *config, struct decoder_config *c,
                                struct error *error)
{
    const struct json *types = json_get(config, "layer_types");
    if (!json_is_null(types)) {
        enum status status = decoder_read_layer_types(types, c, error);
        if (status != OK)
            return status;
    }
    for (int32_t i = 0; i < c->n_layers && json_is_null(types); i += 2)
        c->is_sliding[i] = true;
    return config_count(config, "sliding_window", 1 << 24, 128, &c->window, error);
}

static enum status read_experts(const struct json *config, struct decoder_config *c,
                                struct error *error)
{
    bool is_gguf = json_string_is(json_get(config, "model_type"), gguf_type);
    double limit;
    enum status status = config_positive(config, "swiglu_limit", 7.0, &limit, error);
    c->moe = (struct moe_config){.n_experts = 128,
                                 .top_k = 4,
                                 .intermediate = c->intermediate,
                                 .has_bias = true,
                                 .is_interleaved = true,
                                 .is_transposed = true,
                                 .activation = ACTIVATION_CLAMPED_SWIGLU,
                                 .alpha = 1.702f,
                                 .limit = (float)limit,
                                 .router = is_gguf ? "gate" : "router"};
    for (int32_t i = 0; i < c->n_layers; i++)
        c->is_sparse[i] = true;
    if (status == OK)
        status = moe_config_read(config, &c->moe, error);
    c->moe.is_normalised = true; /* whatever a file says: the class has no such key */
    return status;
}

static enum status gpt_oss_configure(const struct json *config, const struct comm *comm,
                                     struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status == OK)
        status = config_count(config, "intermediate_size", MAX_DIM, 0, &c.intermediate, error);
    if (status != OK)
        return status;
    if (json_is_null(json_get(config, "rms_norm_eps")))
        c.eps = 1e-5f; /* this family's class default */
    if (json_is_null(json_get(config, "rope_parameters")) &&
        json_is_null(json_get(config, "rope_scaling")))
        default_rope(&c.rope, c.head_dim);
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), true);
    c.has_qkv_bias = has_attention_bias;
    c.has_o_bias = has_attention_bias;
    c.has_sinks = true;
    status = read_windows(config, &c, error);
    if (status == OK)
        status = read_experts(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"gpt_oss", gguf_type, NULL};

const struct model_family gpt_oss_family = {
    .name = "gpt_oss",
    .model_types = model_types,
    .configure = gpt_oss_configure,
    DECODER_FAMILY_CALLS,
};
