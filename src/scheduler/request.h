/* One request on its way through the scheduler. */
#ifndef CSGL_SCHEDULER_REQUEST_H
#define CSGL_SCHEDULER_REQUEST_H

#include "engine/sampler.h"
#include "kvcache/kv_cache.h"
#include "message/message.h"
#include "scheduler/stop_strings.h"
#include "tokenizer/detokenizer.h"

/* What a request asks for. Everything is borrowed for the call that takes it. */
struct request_options {
    uint64_t uid;
    const int32_t *ids; /* the prompt */
    int32_t n_ids;
    uint64_t cache_key;   /* prompts of different keys share no cache */
    const int32_t *marks; /* see kv_prompt; at most KV_MAX_MARKS, more are ignored */
    int32_t n_marks;
    struct sampling_params params; /* `biases` is copied */
    int32_t max_tokens;            /* < 0: as many as the context holds */
    int32_t min_tokens;            /* no end of text before */
    bool ignore_eos;
    const int32_t *stop_tokens; /* end the answer as the end-of-text ids do */
    int32_t n_stop_tokens;
    const char *const *stop; /* NUL-terminated */
    int32_t n_stop;
    bool scores_prompt; /* the prompt's tokens are told too, with their logprobs */
    double submitted;   /* system_seconds() */
};

enum request_state {
    REQUEST_WAITING, /* no row: new, or preempted */
    REQUEST_PREFILL, /* has a row; tokens before the last are not all in the cache */
    REQUEST_DECODE   /* all tokens but the last are in the cache; the last may still be awaited */
};

struct request {
    uint64_t uid;
    enum request_state state;
    int32_t row;     /* of the cache; -1 while waiting */
    int32_t *tokens; /* [cap] prompt and answer */
    int32_t n_prompt, n_tokens, max_tokens /* of the answer */;
    int32_t n_awaited; /* tokens behind n_tokens that steps in flight draw */
    int32_t drawn_by;  /* of the last of them: the wanted row of its step */
    bool scores_prompt;
    int32_t n_told; /* of a prompt that is scored */
    uint64_t cache_key;
    int32_t marks[KV_MAX_MARKS], n_marks;
    struct sampling_params params;
    struct logit_bias *biases;
    int32_t
        *stop_tokens; /* ends the answer: end-of-text ids unless ignored, and the request's own */
    int32_t n_stop_tokens, min_tokens;
    bool has_history;
    struct token_history history;
    bool has_stop; /* the scheduler itself makes the text */
    char **stop_copies;
    struct stop_strings stop;
    struct detokenizer detokenizer;
    struct str text; /* of the last token, when has_stop */
    int32_t n_cached, n_preemptions;
    bool is_cancelled;
    double submitted, admitted, first_token; /* system_seconds(); 0: not yet */
};

/* Copies what it keeps. `eos_ids` end the answer unless ignore_eos; `tokenizer` is kept. The
 * options have been checked against the context (scheduler_submit). */
enum status request_new(struct request **out, const struct request_options *options,
                        const int32_t *eos_ids, int32_t n_eos, const struct tokenizer *tokenizer,
                        int32_t vocab_size, int32_t context_length, struct error *error);
void request_free(struct request *request);

/* Tokens of the answer so far. */
static inline int32_t request_n_output(const struct request *r)
{
    return r->n_tokens - r->n_prompt;
}

/* Whether logits of prompt tokens are still to be seen: row i of the prompt scores token i + 1. */
static inline bool request_is_scored(const struct request *r)
{
    return r->scores_prompt && r->n_told < r->n_prompt;
}

/* Tokens that may come from the cache: all but those whose logits are wanted. */
static inline int32_t request_max_cached(const struct request *r)
{
    return !request_is_scored(r) ? r->n_tokens - 1 : r->n_told > 0 ? r->n_told - 1 : 0;
}

/* Adds a drawn token; `r->text` becomes what it adds to the text when has_stop. The result says
 * whether and how the answer ends with it; `is_silent` that the token is no part of the text. */
enum finish_reason request_add_token(struct request *r, int32_t token, bool *is_silent);

#endif
