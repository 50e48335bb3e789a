/* Qwen3-MoE and Qwen3-Coder's mixtures: Qwen3's attention, sparse layers without a shared expert.
 */
#include "models/config.h"
#include "models/decoder.h"

static enum status qwen3_moe_configure(const struct json *config, const struct comm *comm,
                                       struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status != OK)
        return status;
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), false);
    c.has_qkv_bias = has_attention_bias;
    c.has_o_bias = has_attention_bias;
    c.has_qk_norm = true;
    /* All layers slide, or none. */
    bool is_sliding = json_bool(json_get(config, "use_sliding_window"), false);
    for (int32_t i = 0; i < c.n_layers; i++)
        c.is_sliding[i] = is_sliding;
    if (is_sliding)
        status = config_count(config, "sliding_window", 1 << 24, 4096, &c.window, error);
    c.moe =
        (struct moe_config){.n_experts = 128, .top_k = 8, .intermediate = 768, .router = "gate"};
    if (status == OK)
        status = moe_config_read(config, &c.moe, error);
    if (status == OK)
        status = moe_read_layers(config, c.n_layers, c.is_sparse, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"qwen3_moe", NULL};

const struct model_family qwen3_moe_family = {
    .name = "qwen3_moe",
    .model_types = model_types,
    .configure = qwen3_moe_configure,
    DECODER_FAMILY_CALLS,
};
