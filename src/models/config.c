#include "models/config.h"

#include <math.h>

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
