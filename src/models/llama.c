/* Llama 2, 3, 3.1, 3.2, SmolLM2 and dense Mistral (models.md 1.1). */
#include "models/dense.h"

static enum status llama_configure(const struct json *config, const struct comm *comm,
                                   struct model **out, struct error *error)
{
    struct dense_config c;
    enum status status = dense_config_read(config, &c, error);
    if (status != OK)
        return status;
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), false);
    c.has_qkv_bias = has_attention_bias;
    c.has_o_bias = has_attention_bias;
    c.has_mlp_bias = json_bool(json_get(config, "mlp_bias"), false);
    /* Only Mistral slides, all its layers, when its window is not null. */
    bool is_mistral = json_string_is(json_get(config, "model_type"), "mistral");
    status = dense_read_windows(config, is_mistral, 0, &c, error);
    return status == OK ? dense_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"llama", "mistral", NULL};

const struct model_family llama_family = {
    .name = "llama",
    .model_types = model_types,
    .configure = llama_configure,
    DENSE_FAMILY_CALLS,
};
