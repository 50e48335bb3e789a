/* How tokens are drawn: bias, penalties, temperature, top-k, top-p, min-p, and a draw that depends
 * on nothing but (seed, choice, position, purpose). Order of steps as in vLLM and transformers:
 * bias; repetition, presence and frequency penalty; temperature; top-k; top-p; min-p. The
 * arithmetic is the device's (device/ops.h: edit_logits, sample, logprobs); logits do not leave it.
 */
#ifndef CSGL_ENGINE_SAMPLER_H
#define CSGL_ENGINE_SAMPLER_H

#include "base/error.h"
#include "device/ops.h"

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

/* Whether any penalty is on, which needs a history. */
bool sampling_params_has_penalty(const struct sampling_params *params);

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
size_t token_history_bytes(int32_t vocab_size);
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

/* How one row's token is drawn. */
struct draw {
    const struct sampling_params *params;
    const struct token_history *history; /* NULL when no penalty is on */
    int64_t position;                    /* tokens of the answer so far */
    const int32_t *banned;               /* ids that must not be drawn (end of text too early) */
    int32_t n_banned;
    bool is_given; /* `given` is the token: only its logprobs are asked for */
    int32_t given;
};

/* What the host keeps of a step's draws until it reads what came of them. */
struct drawn_row {
    int32_t n_top; /* logprobs wanted; -1: none, not even the token's */
    int32_t given; /* the token, if nothing was drawn; else -1 */
};

/* The results of one step, laid out as they are on the device. */
struct drawn_step {
    struct drawn_row *rows; /* [max_rows], of the host alone */
    int32_t *tokens;        /* [max_rows] */
    float *logprobs;        /* [max_rows] */
    int32_t *top_tokens;    /* [max_rows][SAMPLER_MAX_LOGPROBS] */
    float *top_logprobs;    /* [max_rows][SAMPLER_MAX_LOGPROBS] */
    int32_t n;
};

enum { SAMPLER_STEPS = 2 /* that may be queued and not taken */ };

/* Draws from rows of logits in a device's memory. */
struct sampler {
    struct device *device;
    int32_t n_tokens, max_rows, max_edits;
    /* Of one row at a time: 1 + the place of a token's edit, 0: none. */
    int32_t *places;           /* [n_tokens] */
    struct logit_edit ignored; /* stands for those of tokens behind n_tokens */
    /* What goes to the device, and what comes back. `memory` is laid out as `host` is up to the end
     * of the first step's results: on the device each step overwrites those of the one before,
     * whose copy to the host is queued by then. */
    struct sample_row *rows;  /* [max_rows] */
    struct logit_edit *edits; /* [max_edits] */
    struct drawn_step steps[SAMPLER_STEPS];
    unsigned n_queued, n_taken; /* steps ever; step i is in steps[i % SAMPLER_STEPS] */
    void *host;
    struct buffer memory;
    /* The draws being made, and those of them that are on the device: their edits fit together. */
    const struct draw *draws;
    int32_t n_draws, first, end, n_edits;
    unsigned uses;
};

/* For max_rows rows a step, from the first n_tokens of their logits. The device is kept.
 * ERROR_LIMIT: the results of so many rows are more than a device hands out at once. */
enum status sampler_init(struct sampler *sampler, struct device *device, int32_t n_tokens,
                         int32_t max_rows, struct error *error);
void sampler_done(struct sampler *sampler);

/* What one takes, beside the workspace that sample_reserve makes. */
size_t sampler_device_bytes(int32_t n_tokens, int32_t max_rows);
size_t sampler_host_bytes(int32_t n_tokens, int32_t max_rows);

/* Brings what n draws need to the device; they are kept until sampler_queue. */
enum status sampler_prepare(struct sampler *sampler, const struct draw *draws, int32_t n,
                            struct error *error);

/* Draws the prepared tokens from `logits` [n, at least n_tokens], which is changed, and queues
 * their way to the host; waits for nothing on a device with a queue. At most SAMPLER_STEPS are
 * queued and not taken. `ops` runs the operations: the device, or one that measures it. Logits that
 * are no numbers never win; a row without a finite one gets token -1. */
enum status sampler_queue(struct sampler *sampler, struct device *ops, const struct tensor *logits,
                          struct error *error);

/* Waits for the oldest step that was queued and not taken, and for nothing behind it; fills its
 * samples, as many as it had draws. Also after an error the step counts as taken. */
enum status sampler_take(struct sampler *sampler, struct sample *out, struct error *error);

/* Where the tokens [max_rows, 1] of the step that was queued last lie on the device. */
struct tensor sampler_tokens(const struct sampler *sampler);

/* 64 bits that are a function of the arguments alone, uniform over seeds and positions. */
uint64_t sampler_bits(uint64_t seed, uint32_t choice, int64_t position, uint32_t purpose);

#endif
