/* Reading a model's configuration: integers within bounds, layer types. */
#ifndef CSGL_MODELS_CONFIG_H
#define CSGL_MODELS_CONFIG_H

#include "base/error.h"
#include "base/json.h"

/* Refuses keys that families read with a default and whose value has another type; also below
 * text_config, rope_parameters and rope_scaling. */
enum status config_check_types(const struct json *config, struct error *error);

/* `key` as an integer in [1, max]; when absent or null, `otherwise` (> 0), or an error if that is
 * 0. */
enum status config_count(const struct json *config, const char *key, int32_t max, int32_t otherwise,
                         int32_t *out, struct error *error);

/* `key` as a positive finite number, `otherwise` when absent. */
enum status config_positive(const struct json *config, const char *key, double otherwise,
                            double *out, struct error *error);

#endif
