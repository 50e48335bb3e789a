/* Qwen3, dense: RMSNorm on each head of q and k before RoPE, head_dim of its own.
 */
#include "models/decoder.h"

static enum status qwen3_configure(const struct json *config, const struct comm *comm,
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
    status = decoder_read_windows(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"qwen3", NULL};

const struct model_family qwen3_family = {
    .name = "qwen3",
    .model_types = model_types,
    .configure = qwen3_configure,
    DECODER_FAMILY_CALLS,
};
