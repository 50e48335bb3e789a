/* From logits to a token: bias, penalties, temperature, top-k, top-p, min-p, and a draw that
 * depends on nothing but (seed, choice, position, purpose). Order of steps as in vLLM and
 * transformers: bias; repetition, presence and frequency penalty; temperature; top-k; top-p; min-p.
 */
#ifndef CSGL_ENGINE_SAMPLER_H
#define CSGL_ENGINE_SAMPLER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLER_MAX_LOGPROBS = 20 };

struct logit_bias {
    int32_t token;
    float bias;
};

struct sampling_params {
    float temperature;        /* 0: the most likely token */
    int32_t top_k;            /* 0: off */
    float top_p;              /* 1: off; keeps tokens whose more likely ones have mass < top_p */
    float min_p;              /* 0: off; keeps tokens of probability >= min_p * the highest */
    float repetition_penalty; /* 1: off; prompt and output: l > 0 ? l / p : l * p */
    float presence_penalty;   /* 0: off; output tokens only: l - p */
    float frequency_penalty;  /* 0: off; output tokens only: l - p * count */
    const struct logit_bias *biases; /* borrowed */
    int32_t n_biases;
    uint64_t seed;
    uint32_t choice;    /* which of several answers to one prompt */
    int32_t n_logprobs; /* -1: none; else so many alternatives, at most SAMPLER_MAX_LOGPROBS */
};

/* temperature 0, everything off, seed 0, no logprobs. */
struct sampling_params sampling_params_default(void);

/* ERROR_INVALID naming the field that is out of its range. */
enum status sampling_params_check(const struct sampling_params *params, int32_t vocab_size,
                                  struct error *error);

/* What the penalties need to know of one sequence. */
struct token_history {
    int32_t vocab_size;
    int32_t n_distinct;
    int32_t *distinct;  /* [vocab_size] ids seen, in order of first sight */
    int32_t *n_outputs; /* [vocab_size] times generated */
    bool *is_seen;      /* [vocab_size] */
};

enum status token_history_init(struct token_history *history, int32_t vocab_size,
                               struct error *error);
void token_history_done(struct token_history *history);
void token_history_clear(struct token_history *history);
void token_history_add(struct token_history *history, int32_t token, bool is_output);

struct token_logprob {
    int32_t token;
    float logprob;
};

struct sample {
    int32_t token;
    float logprob; /* with n_logprobs >= 0: of the model's own distribution, before all steps */
    int32_t n_top;
    struct token_logprob top[SAMPLER_MAX_LOGPROBS]; /* most likely first */
};

/* Memory of one caller: candidates of one row at a time. */
struct sampler {
    int32_t vocab_size;
    struct candidate {
        float logit;
        int32_t token;
    } * candidates; /* [vocab_size] */
    float *raw;     /* [vocab_size] the model's logits, when logprobs are asked for */
};

enum status sampler_init(struct sampler *sampler, int32_t vocab_size, struct error *error);
void sampler_done(struct sampler *sampler);

/* Draws the token at output position `position`. `logits` [vocab_size] is changed. `history` may be
 * NULL when no penalty is on. Logits that are not numbers never win; if none is one, ERROR_INVALID.
 */
enum status sampler_draw(struct sampler *sampler, const struct sampling_params *params,
                         const struct token_history *history, int64_t position, float *logits,
                         struct sample *out, struct error *error);

/* A uniform number in [0, 1) that is a function of its arguments alone. */
double sampler_uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t purpose);

#endif
