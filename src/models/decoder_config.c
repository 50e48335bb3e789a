/* The configuration of a decoder: keys, bounds, which layers slide. */
#include "models/config.h"
#include "models/decoder.h"

#include <string.h>

enum { MAX_DIM = 1 << 20, MAX_VOCAB = 1 << 22, MAX_CONTEXT = 1 << 24, MAX_HEADS = 4096 };

static enum status read_shape(const struct json *config, struct decoder_config *c,
                              struct error *error)
{
    struct {
        const char *key;
        int32_t max, otherwise;
        int32_t *out;
    } counts[] = {
        {"num_hidden_layers", DECODER_MAX_LAYERS, 0, &c->n_layers},
        {"hidden_size", MAX_DIM, 0, &c->hidden},
        {"vocab_size", MAX_VOCAB, 0, &c->vocab_size},
        {"num_attention_heads", MAX_HEADS, 0, &c->n_heads},
        {"max_position_embeddings", MAX_CONTEXT, 2048, &c->max_positions},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        enum status status = config_count(config, counts[i].key, counts[i].max, counts[i].otherwise,
                                          counts[i].out, error);
        if (status != OK)
            return status;
    }
    enum status status = OK;
    /* Models whose layers are all sparse leave it out; decoder_new misses it in others. */
    if (!json_is_null(json_get(config, "intermediate_size")))
        status = config_count(config, "intermediate_size", MAX_DIM, 0, &c->intermediate, error);
    if (status == OK)
        status = config_count(config, "num_key_value_heads", MAX_HEADS, c->n_heads, &c->n_kv_heads,
                              error);
    if (status != OK)
        return status;
    if (c->n_heads % c->n_kv_heads)
        return error_set(error, ERROR_INVALID,
                         "%d attention heads are not a multiple of %d key-value heads", c->n_heads,
                         c->n_kv_heads);
    return OK;
}

enum status decoder_config_read(const struct json *config, struct decoder_config *c,
                                struct error *error)
{
    *c = (struct decoder_config){.head = HEAD_IF_PRESENT};
    enum status status = read_shape(config, c, error);
    if (status != OK)
        return status;
    int32_t head_dim = c->hidden / c->n_heads;
    status = config_count(config, "head_dim", 1024, head_dim, &c->head_dim, error);
    if (status != OK)
        return status;
    double eps;
    status = config_positive(config, "rms_norm_eps", 1e-6, &eps, error);
    if (status != OK)
        return status;
    c->eps = (float)eps;
    const struct json *activation = json_get(config, "hidden_act");
    if (!json_is_null(activation) && !json_string_is(activation, "silu"))
        return error_set(error, ERROR_UNSUPPORTED,
                         "activation \"%s\" is not supported by this family; silu is",
                         json_string(activation) ? json_string(activation) : "?");
    const struct json *tied = json_get(config, "tie_word_embeddings");
    if (!json_is_null(tied))
        c->head = json_bool(tied, false) ? HEAD_TIED : HEAD_OWN;
    return rope_config_read(&c->rope, config, c->head_dim, error);
}

enum status decoder_read_layer_types(const struct json *types, struct decoder_config *c,
                                     struct error *error)
{
    if (types->type != JT_ARRAY || types->n != (size_t)c->n_layers)
        return error_set(error, ERROR_INVALID,
                         "\"layer_types\" must be a list of %d entries, one a layer", c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->is_sliding[i] = json_string_is(&types->items[i], "sliding_attention");
        if (!c->is_sliding[i] && !json_string_is(&types->items[i], "full_attention"))
            return error_set(error, ERROR_UNSUPPORTED,
                             "layer type \"%s\" of layer %d is not supported by this family; "
                             "full_attention and sliding_attention are",
                             json_string(&types->items[i]) ? json_string(&types->items[i]) : "?",
                             (int)i);
    }
    return OK;
}

enum status decoder_read_windows(const struct json *config, struct decoder_config *c,
                                 struct error *error)
{
    const struct json *types = json_get(config, "layer_types");
    if (!json_bool(json_get(config, "use_sliding_window"), false))
        return OK;
    if (!json_is_null(types)) {
        enum status status = decoder_read_layer_types(types, c, error);
        if (status != OK)
            return status;
    } else {
        int64_t first = 28; /* the class default of max_window_layers */
        json_int(json_get(config, "max_window_layers"), 0, DECODER_MAX_LAYERS, &first);
        for (int32_t i = (int32_t)first; i < c->n_layers; i++)
            c->is_sliding[i] = true;
    }
    return config_count(config, "sliding_window", MAX_CONTEXT, 4096, &c->window, error);
}
