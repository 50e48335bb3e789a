#include "layers/rope.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static enum status read_type(struct rope_config *out, const struct json *scaling,
                             struct error *error)
{
    const char *type = json_string(json_get(scaling, "rope_type"));
    if (!type)
        type = json_string(json_get(scaling, "type"));
    /* mrope: a text's three positions are equal. */
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)
        out->type = ROPE_DEFAULT;
    else if (strcmp(type, "linear") == 0)
        out->type = ROPE_LINEAR;
    else if (strcmp(type, "dynamic") == 0 && !json_is_null(json_get(scaling, "alpha")))
        out->type = ROPE_ALPHA;
    else if (strcmp(type, "llama3") == 0)
        out->type = ROPE_LLAMA3;
    else if (strcmp(type, "yarn") == 0)
        out->type = ROPE_YARN;
    else
        return error_set(error, ERROR_UNSUPPORTED,
                         "rope type \"%s\" is not supported; default, linear, llama3, yarn and "
                         "dynamic with alpha are",
                         type);
    return OK;
}

/* transformers: attention_factor, or the ratio of two mscales (DeepSeek), or 0.1 ln(factor) + 1. */
static double mscale(double factor, double m)
{
    return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

static double yarn_attention_factor(const struct json *scaling, double factor)
{
    const struct json *given = json_get(scaling, "attention_factor");
    if (!json_is_null(given))
        return json_number(given, 1.0);
    double m = json_number(json_get(scaling, "mscale"), 0.0);
    double m_all = json_number(json_get(scaling, "mscale_all_dim"), 0.0);
    return m != 0.0 && m_all != 0.0 ? mscale(factor, m) / mscale(factor, m_all)
                                    : mscale(factor, 1.0);
}

static enum status check(const struct rope_config *c, struct error *error)
{
    if (c->dim < 2 || c->dim % 2)
        return error_set(error, ERROR_INVALID, "rotary dims are %d; an even number >= 2 is needed",
                         (int)c->dim);
    if (!(c->theta > 0.0) || !isfinite(c->theta))
        return error_set(error, ERROR_INVALID, "rope_theta is %g; it must be positive", c->theta);
    if (c->type == ROPE_ALPHA && !(c->alpha > 0.0 && isfinite(c->alpha) && c->dim > 2))
        return error_set(error, ERROR_INVALID,
                         "the rope alpha is %g with %d rotary dims; it must be positive, with more "
                         "than 2 dims",
                         c->alpha, (int)c->dim);
    if (c->type != ROPE_DEFAULT && c->type != ROPE_ALPHA &&
        !(c->factor > 0.0 && isfinite(c->factor)))
        return error_set(error, ERROR_INVALID, "the rope factor is %g; it must be positive",
                         c->factor);
    if (c->type >= ROPE_LLAMA3 && !(c->original_context > 0.0 && isfinite(c->original_context)))
        return error_set(error, ERROR_INVALID,
                         "original_max_position_embeddings is %g; it must be positive",
                         c->original_context);
    if (c->type == ROPE_LLAMA3 &&
        !(c->low_freq_factor > 0.0 && c->high_freq_factor > c->low_freq_factor))
        return error_set(error, ERROR_INVALID,
                         "high_freq_factor is %g; it must be above low_freq_factor, %g, and that "
                         "above 0",
                         c->high_freq_factor, c->low_freq_factor);
    if (c->type == ROPE_YARN && !(c->beta_fast > 0.0 && c->beta_slow > 0.0 && c->theta > 1.0 &&
                                  c->attention_factor > 0.0 && isfinite(c->attention_factor)))
        return error_set(error, ERROR_INVALID,
                         "yarn has beta_fast %g, beta_slow %g, a factor of %g on attention and a "
                         "theta of %g; they must be positive, and theta above 1",
                         c->beta_fast, c->beta_slow, c->attention_factor, c->theta);
    return OK;
}

enum status rope_config_rotate(struct rope_config *c, int32_t head_dim, double partial,
                               struct error *error)
{
    if (!(partial > 0.0 && partial <= 1.0))
        return error_set(error, ERROR_INVALID,
                         "partial_rotary_factor is %g; it must be above 0 and at most 1", partial);
    c->dim = (int32_t)(head_dim * partial);
    return check(c, error);
}

enum status rope_config_read(struct rope_config *out, const struct json *config, int32_t head_dim,
                             struct error *error)
{
    const struct json *scaling = json_get(config, "rope_parameters");
    const struct json *flat = scaling;
    if (json_is_null(scaling)) {
        scaling = json_get(config, "rope_scaling");
        flat = config;
    }
    *out = (struct rope_config){0};
    enum status status = read_type(out, scaling, error);
    if (status != OK)
        return status;
    double max_position = json_number(json_get(config, "max_position_embeddings"), 0.0);
    double partial = json_number(json_get(flat, "partial_rotary_factor"), 1.0);
    /* The class default of every family here; published files state it. */
    out->theta = json_number(json_get(flat, "rope_theta"), 10000.0);
    out->original_context =
        json_number(json_get(scaling, "original_max_position_embeddings"), max_position);
    out->factor = json_number(json_get(scaling, "factor"), max_position / out->original_context);
    out->alpha = json_number(json_get(scaling, "alpha"), 0.0);
    out->low_freq_factor = json_number(json_get(scaling, "low_freq_factor"), 1.0);
    out->high_freq_factor = json_number(json_get(scaling, "high_freq_factor"), 4.0);
    out->beta_fast = json_number(json_get(scaling, "beta_fast"), 32.0);
    out->beta_slow = json_number(json_get(scaling, "beta_slow"), 1.0);
    out->truncate = json_bool(json_get(scaling, "truncate"), true);
    out->attention_factor = yarn_attention_factor(scaling, out->factor);
    return rope_config_rotate(out, head_dim, partial, error);
}

/* Llama 3.1: long wavelengths are divided by the factor, short ones kept, a band between blended.
 */
static double llama3_frequency(const struct rope_config *c, double f)
{
    double wavelength = 2.0 * pi / f;
    if (wavelength < c->original_context / c->high_freq_factor)
        return f;
    if (wavelength > c->original_context / c->low_freq_factor)
        return f / c->factor;
    double smooth = (c->original_context / wavelength - c->low_freq_factor) /
                    (c->high_freq_factor - c->low_freq_factor);
    return (1.0 - smooth) * f / c->factor + smooth * f;
}

/* YaRN (arXiv:2309.00071, 3.2): the dim at which a full context makes `rotations` turns. */
static double yarn_dim(const struct rope_config *c, double rotations)
{
    return c->dim * log(c->original_context / (rotations * 2.0 * pi)) / (2.0 * log(c->theta));
}

static double yarn_frequency(const struct rope_config *c, double f, int32_t i)
{
    double low = yarn_dim(c, c->beta_fast), high = yarn_dim(c, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, c->dim - 1.0);
    if (low == high)
        high += 0.001; /* as transformers does, against a division by zero */
    double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return f / c->factor * ramp + f * (1.0 - ramp);
}

void rope_frequencies(const struct rope_config *c, float *inv_freq, float *scale)
{
    double theta = c->theta;
    if (c->type == ROPE_ALPHA)
        theta *= pow(c->alpha, c->dim / (c->dim - 2.0));
    for (int32_t i = 0; i < c->dim / 2; i++) {
        double f = pow(theta, -2.0 * i / c->dim);
        if (c->type == ROPE_LINEAR)
            f /= c->factor;
        else if (c->type == ROPE_LLAMA3)
            f = llama3_frequency(c, f);
        else if (c->type == ROPE_YARN)
            f = yarn_frequency(c, f, i);
        inv_freq[i] = (float)f;
    }
    *scale = c->type == ROPE_YARN ? (float)c->attention_factor : 1.0f;
}

struct tensor rope_forward(struct forward *f, const struct rope_layer *layer)
{
    struct tensor angles = forward_tensor(f, f->n_tokens, layer->inv_freq.cols * 2);
    device_rope_angles(f->device, &(struct rope_angles_args){.positions = f->positions,
                                                             .inv_freq = layer->inv_freq,
                                                             .out = angles,
                                                             .scale = layer->scale});
    return angles;
}
