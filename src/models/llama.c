/* Llama 2, 3, 3.1, 3.2, SmolLM2 and dense Mistral. */
#include "models/config.h"
#include "models/decoder.h"

/* All of Mistral's layers slide, unless the window is null; when absent it is 4096, the class
 * default. (transformers' Llama has no windows, whatever its configuration says.) */
static enum status read_mistral_window(const struct json *config, struct decoder_config *c,
                                       struct error *error)
{
    const struct json *window = json_get(config, "sliding_window");
    if (window && window->type == JT_NULL)
        return OK;
    for (int32_t i = 0; i < c->n_layers; i++)
        c->is_sliding[i] = true;
    return config_count(config, "sliding_window", 1 << 24, 4096, &c->window, error);
}

static enum status llama_configure(const struct json *config, const struct comm *comm,
                                   struct model **out, struct error *error)
{
    struct decoder_config c;
    enum status status = decoder_config_read(config, &c, error);
    if (status != OK)
        return status;
    bool has_attention_bias = json_bool(json_get(config, "attention_bias"), false);
    c.has_qkv_bias = has_attention_bias;
    c.has_o_bias = has_attention_bias;
    c.has_mlp_bias = json_bool(json_get(config, "mlp_bias"), false);
    if (json_string_is(json_get(config, "model_type"), "mistral"))
        status = read_mistral_window(config, &c, error);
    return status == OK ? decoder_new(&c, comm, out, error) : status;
}

static const char *const model_types[] = {"llama", "mistral", NULL};

const struct model_family llama_family = {
    .name = "llama",
    .model_types = model_types,
    .configure = llama_configure,
    DECODER_FAMILY_CALLS,
};
