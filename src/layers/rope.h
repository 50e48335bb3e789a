/* Rotary position embedding: frequencies of every scaling that the supported families use. */
#ifndef CSGL_LAYERS_ROPE_H
#define CSGL_LAYERS_ROPE_H

#include "base/error.h"
#include "base/json.h"
#include "layers/forward.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_ALPHA, /* Hunyuan: a larger theta, whatever the length ("dynamic" with "alpha") */
    ROPE_LLAMA3,
    ROPE_YARN
};

struct rope_config {
    enum rope_type type;
    int32_t dim; /* rotated dims R of each head, even */
    double theta;
    double factor;                            /* LINEAR, LLAMA3, YARN */
    double alpha;                             /* ALPHA */
    double original_context;                  /* LLAMA3, YARN */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double beta_fast, beta_slow;              /* YARN */
    double attention_factor;                  /* YARN: multiplies cos and sin */
    bool truncate;                            /* YARN: ramp ends rounded to whole dims */
};

struct rope_layer {
    struct tensor inv_freq; /* [1, R/2] */
    float scale;            /* of cos and sin */
};

/* Reads `rope_parameters`, or rope_theta and rope_scaling, of a model's configuration. head_dim is
 * the default of R (partial_rotary_factor shortens it). Formulas: transformers'
 * modeling_rope_utils. */
enum status rope_config_read(struct rope_config *out, const struct json *config, int32_t head_dim,
                             struct error *error);

/* Rotates the part `partial` of each head, 0 < partial <= 1; refuses a part that is no even number
 * of dims. */
enum status rope_config_rotate(struct rope_config *config, int32_t head_dim, double partial,
                               struct error *error);

/* inv_freq[R/2] and the scale of cos and sin. */
void rope_frequencies(const struct rope_config *config, float *inv_freq, float *scale);

/* The table [T, R] of this step's angles. */
struct tensor rope_forward(struct forward *f, const struct rope_layer *layer);

#endif
