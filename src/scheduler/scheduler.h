/* The scheduler: decides what each step computes. Continuous batching over the ragged batch,
 * chunked prefill, prefix reuse, preemption, cancellation. One thread owns it. Knows requests, not
 * tensors. */
#ifndef CSGL_SCHEDULER_SCHEDULER_H
#define CSGL_SCHEDULER_SCHEDULER_H

#include "base/trace.h"
#include "engine/executor.h"
#include "kvcache/kv_cache.h"
#include "scheduler/request.h"

enum scheduler_policy {
    POLICY_PREFILL_FIRST, /* prompts first, then decode: the reference behaviour */
    POLICY_MIXED          /* decode rows ride along with a prefill chunk */
};

struct scheduler_options {
    enum scheduler_policy policy;
    int32_t max_running;
    int32_t max_queue;          /* requests that may wait */
    int32_t max_prefill_length; /* prompt tokens of a step, at most */
    /* Rows of a step with logits, beyond one a running request, for prompts that are scored: these
     * are cut to so many tokens a step. 0: no prompt can be scored. */
    int32_t max_scored;
    double max_step_seconds; /* a step's prompt tokens are cut to about this time */
    int32_t context_length, vocab_size;
    const int32_t *eos_ids; /* kept */
    int32_t n_eos;
    const struct tokenizer *tokenizer; /* kept; for stop strings */
};

/* What happens to a request. Borrowed for the call. */
struct token_event {
    uint64_t uid;
    const struct sample *sample; /* NULL: no token, only the end */
    bool is_prompt;              /* a token of a prompt that is scored; the first has no logprob */
    bool has_text;               /* `text` is all that this token adds to the answer */
    struct bytes text;
    enum finish_reason finish;
    const char *error; /* FINISH_ERROR */
    /* When it ends: */
    int32_t n_prompt, n_cached, n_output;
    double queue_seconds, prefill_seconds, decode_seconds;
};

typedef void (*scheduler_emit)(void *context, const struct token_event *event);

struct scheduler_figures {
    int32_t n_running, n_waiting, last_batch_size;
    uint64_t steps /* queued */, prefill_tokens, decode_tokens, preemptions;
    /* Of prompts: tokens that were not computed; those whose K and V were there; those of the first
     * that a snapshot of the recurrent state saved. */
    uint64_t cached_tokens, kv_hit_tokens, snapshot_hit_tokens;
};

struct scheduler;

/* Rows of a step whose logits may be wanted. */
static inline int32_t scheduler_max_want(int32_t max_running, int32_t max_scored)
{
    return max_running + max_scored;
}

/* The executor, cache and what the options point to are kept until scheduler_free. */
enum status scheduler_new(struct scheduler **out, struct executor executor, struct kv_cache *cache,
                          const struct scheduler_options *options, scheduler_emit emit,
                          void *emit_context, struct error *error);
void scheduler_free(struct scheduler *scheduler);

/* Queues a request. ERROR_LIMIT: the queue is full, or the prompt does not fit the context;
 * ERROR_INVALID: a field is out of its range. Nothing is emitted then. */
enum status scheduler_submit(struct scheduler *scheduler, const struct request_options *options,
                             struct error *error);

/* Ends a request before the next step; one that is not there is no error. Its end is emitted, and
 * what a step in flight draws for it is dropped. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t uid);
void scheduler_cancel_all(struct scheduler *scheduler);

/* Whether there is a request, or a step whose samples were not taken yet. */
bool scheduler_has_work(const struct scheduler *scheduler);

/* Queues the next step, if there is something to do, and emits the tokens of the one before; where
 * the executor has no queue, those of the step itself. A failure of the executor ends every request
 * that has a row or a token in flight with FINISH_ERROR, empties the cache and is returned. */
enum status scheduler_step(struct scheduler *scheduler, struct error *error);

/* Records steps, stages of requests and the executor's ops from now on; NULL ends it. Meanwhile no
 * step is queued behind another, as each is measured by itself. */
void scheduler_trace(struct scheduler *scheduler, struct trace *trace);

struct scheduler_figures scheduler_figures(const struct scheduler *scheduler);

/* True if every row has one owner, states fit the cache, and the cache is sound. */
bool scheduler_check(const struct scheduler *scheduler);

#endif
