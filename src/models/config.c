#include "models/config.h"

#include <math.h>

/* Keys that are read with a default, where a value of another type would be taken for none. */
static const struct {
    const char *key;
    enum json_type type;
} known[] = {
    {"attention_bias", JT_BOOL},
    {"mlp_bias", JT_BOOL},
    {"qkv_bias", JT_BOOL},
    {"tie_word_embeddings", JT_BOOL},
    {"norm_topk_prob", JT_BOOL},
    {"use_sliding_window", JT_BOOL},
    {"use_qk_norm", JT_BOOL},
    {"use_mixed_mlp_moe", JT_BOOL},
    {"use_cla", JT_BOOL},
    {"linear_value_heads_tiled", JT_BOOL},
    {"truncate", JT_BOOL},
    {"max_window_layers", JT_NUMBER},
    {"rope_theta", JT_NUMBER},
    {"partial_rotary_factor", JT_NUMBER},
    {"factor", JT_NUMBER},
    {"alpha", JT_NUMBER},
    {"low_freq_factor", JT_NUMBER},
    {"high_freq_factor", JT_NUMBER},
    {"beta_fast", JT_NUMBER},
    {"beta_slow", JT_NUMBER},
    {"attention_factor", JT_NUMBER},
    {"mscale", JT_NUMBER},
    {"mscale_all_dim", JT_NUMBER},
    {"original_max_position_embeddings", JT_NUMBER},
    {"rope_type", JT_STRING},
    {"hidden_act", JT_STRING},
    {"rope_parameters", JT_OBJECT},
    {"rope_scaling", JT_OBJECT},
    {"text_config", JT_OBJECT},
};

enum status config_check_types(const struct json *config, struct error *error)
{
    static const char *const words[] = {[JT_BOOL] = "true or false",
                                        [JT_NUMBER] = "a number",
                                        [JT_STRING] = "a string",
                                        [JT_OBJECT] = "an object"};
    static const char *const nested[] = {"text_config", "rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct json *value = json_get(config, known[i].key);
        if (!json_is_null(value) && value->type != known[i].type)
            return error_set(error, ERROR_INVALID, "the configuration's \"%s\" must be %s",
                             known[i].key, words[known[i].type]);
    }
    enum status status = OK;
    for (size_t i = 0; i < sizeof nested / sizeof nested[0] && status == OK; i++) {
        const struct json *inner = json_get(config, nested[i]);
        if (!json_is_null(inner))
            status = config_check_types(inner, error);
    }
    return status;
}

enum status config_count(const struct json *config, const char *key, int32_t max, int32_t otherwise,
                         int32_t *out, struct error *error)
{
    const struct json *value = json_get(config, key);
    int64_t n;
    if (json_is_null(value)) {
        *out = otherwise;
        return otherwise > 0
                   ? OK
                   : error_set(error, ERROR_INVALID,
                               "the configuration lacks \"%s\", which this family needs", key);
    }
    if (!json_int(value, 1, max, &n))
        return error_set(error, ERROR_INVALID,
                         "the configuration's \"%s\" must be a whole number from 1 to %d", key,
                         (int)max);
    *out = (int32_t)n;
    return OK;
}

enum status config_positive(const struct json *config, const char *key, double otherwise,
                            double *out, struct error *error)
{
    const struct json *value = json_get(config, key);
    *out = json_is_null(value) ? otherwise : json_number(value, NAN);
    if (!(*out > 0.0) || !isfinite(*out))
        return error_set(error, ERROR_INVALID,
                         "the configuration's \"%s\" must be a positive number", key);
    return OK;
}
