/* Hunyuan's dense models: RMSNorm on each head of q and k after RoPE, a theta raised by alpha
 * (models.md 1.10). */
#include "models/decoder.h"

static enum status hunyuan_configure(const struct json *config, const struct comm *comm,
                                     struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status != OK)
        return status;
    if (json_is_null(json_get(config, "rms_norm_eps")))
        c.eps = 1e-5f; /* this family's class default */
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), false);
    c.has_qkv_bias = has_attention_bias;
    c.has_o_bias = has_attention_bias;
    c.has_qk_norm = json_bool(json_get(config, "use_qk_norm"), true);
    c.norm_last = true;
    return decoder_new(&c, comm, out, error);
}

static const char *const model_types[] = {"hunyuan_v1_dense", NULL};

const struct model_family hunyuan_dense_family = {
    .name = "hunyuan_v1_dense",
    .model_types = model_types,
    .configure = hunyuan_configure,
    DECODER_FAMILY_CALLS,
};
