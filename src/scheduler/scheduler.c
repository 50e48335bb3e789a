/* Where the executor has a queue, a step is queued while the one before it runs, so that the device
 * never waits for this thread: it makes the next step, reads the tokens of the last one and hands
 * them on while the device works. A row's next token is not known then; the batch says which row of
 * the step before draws it. That goes well because the device works in the order of its queue and
 * because all else about the next step is known:
 *
 * - A request that reaches its limit with the awaited token is left out. One that turns out to have
 *   ended, or is cancelled, has a row too many in flight, whose sample nobody takes. Its pages and
 *   its state's slot are given away at once: who gets them writes them in a later step.
 * - Whole pages are shared when their step is queued, for the same reason, but only up to the last
 *   token that is known: no prompt ever matches an awaited one.
 * - A row that is preempted with a token in flight is admitted again when it has that token.
 * - Penalties need the token. While a token of such a request is in flight the next step waits for
 *   it: if the request sat out instead, it would get every other step alone. */
#include "scheduler/scheduler_struct.h"

#include "base/system.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status scheduler_new(struct scheduler **out, struct executor executor, struct kv_cache *cache,
                          const struct scheduler_options *options, scheduler_emit emit,
                          void *emit_context, struct error *error)
{
    *out = NULL;
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(error, sizeof *s);
    *s = (struct scheduler){.executor = executor,
                            .cache = cache,
                            .options = *options,
                            .emit = emit,
                            .emit_context = emit_context};
    size_t n = (size_t)options->max_running;
    int32_t max_want = scheduler_max_want(options->max_running, options->max_scored);
    size_t n_want = (size_t)max_want;
    s->requests = calloc(n + (size_t)options->max_queue, sizeof *s->requests);
    s->batch_requests = calloc(n, sizeof *s->batch_requests);
    s->samples = calloc(n_want, sizeof *s->samples);
    bool is_complete = s->requests && s->batch_requests && s->samples;
    for (int32_t i = 0; i < MAX_IN_FLIGHT; i++) {
        struct step *step = &s->steps[i];
        step->want_requests = calloc(n_want, sizeof *step->want_requests);
        step->draws = calloc(n_want, sizeof *step->draws);
        is_complete = is_complete && step->want_requests && step->draws;
    }
    /* A mixed step holds a chunk and a token of every row. */
    enum status status =
        is_complete
            ? batch_init(&s->batch, cache, options->max_prefill_length + options->max_running,
                         options->max_running, max_want, error)
            : error_memory(error, n_want * sizeof *s->samples);
    if (status != OK) {
        scheduler_free(s);
        return status;
    }
    *out = s;
    return OK;
}

/* Waits for the oldest step in flight, which is not in flight then. */
static enum status take_samples(struct scheduler *s, struct error *error)
{
    s->oldest = (s->oldest + 1) % MAX_IN_FLIGHT;
    s->n_in_flight--;
    return s->executor.take(s->executor.context, s->samples, error);
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    while (s->n_in_flight > 0)
        take_samples(s, NULL);
    for (int32_t i = 0; i < s->n_requests; i++)
        request_free(s->requests[i]);
    batch_done(&s->batch);
    for (int32_t i = 0; i < MAX_IN_FLIGHT; i++) {
        free(s->steps[i].want_requests);
        free(s->steps[i].draws);
    }
    free(s->requests);
    free(s->batch_requests);
    free(s->samples);
    free(s);
}

/* --- requests come and go --------------------------------------------------------------------- */

static enum status check_tokens(const struct scheduler *s, const char *what, const int32_t *ids,
                                int32_t n, struct error *error)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->options.vocab_size)
            return error_set(error, ERROR_INVALID, "%s %d is %d; the vocabulary has ids 0 to %d",
                             what, i, ids[i], s->options.vocab_size - 1);
    return OK;
}

enum status scheduler_submit(struct scheduler *s, const struct request_options *o,
                             struct error *error)
{
    if (s->figures.n_waiting >= s->options.max_queue)
        return error_set(error, ERROR_LIMIT,
                         "%d requests are waiting, which is the limit; try again later",
                         s->figures.n_waiting);
    if (o->n_ids < 1)
        return error_set(error, ERROR_INVALID, "the prompt is empty");
    if (o->n_ids >= s->options.context_length)
        return error_set(error, ERROR_LIMIT, "the prompt has %d tokens and the context holds %d",
                         o->n_ids, s->options.context_length);
    if (o->max_tokens == 0)
        return error_set(error, ERROR_INVALID, "max_tokens is 0; at least 1 is needed");
    if (o->scores_prompt && s->options.max_scored == 0)
        return error_set(error, ERROR_UNSUPPORTED, "prompts cannot be scored here");
    enum status status = check_tokens(s, "prompt token", o->ids, o->n_ids, error);
    if (status == OK)
        status = check_tokens(s, "stop token", o->stop_tokens, o->n_stop_tokens, error);
    if (status == OK)
        status = sampling_params_check(&o->params, s->options.vocab_size, error);
    struct request *r;
    if (status == OK)
        status = request_new(&r, o, s->options.eos_ids, s->options.n_eos, s->options.tokenizer,
                             s->options.vocab_size, s->options.context_length, error);
    if (status != OK)
        return status;
    s->requests[s->n_requests++] = r;
    s->figures.n_waiting++;
    return OK;
}

static double since(double from, double to)
{
    return from > 0.0 && to > from ? to - from : 0.0;
}

void scheduler_trace(struct scheduler *s, struct trace *trace)
{
    s->trace = trace;
    if (s->executor.trace)
        s->executor.trace(s->executor.context, trace);
}

/* One stage of a request's life, when it is over. */
void scheduler_trace_stage(struct scheduler *s, const struct request *r, const char *name,
                           double begin, int32_t n_tokens)
{
    if (s->trace && begin > 0.0)
        trace_record(s->trace, &(struct trace_event){.kind = TRACE_REQUEST,
                                                     .phase = TRACE_NO_PHASE,
                                                     .name = name,
                                                     .begin = begin,
                                                     .end = system_seconds(),
                                                     .id = r->uid,
                                                     .values = {n_tokens}});
}

static void trace_step(struct scheduler *s, const struct step *step, double begin)
{
    bool has_decodes = step->n_tokens > step->n_prefill;
    const char *name = !step->n_prefill ? "decode" : has_decodes ? "mixed" : "prefill";
    trace_record(s->trace,
                 &(struct trace_event){.kind = TRACE_STEP,
                                       .phase = step->n_prefill ? TRACE_PREFILL : TRACE_DECODE,
                                       .name = name,
                                       .begin = begin,
                                       .end = system_seconds(),
                                       .id = s->figures.steps,
                                       .values = {step->n_tokens, step->n_sequences}});
}

static void emit(struct scheduler *s, const struct request *r, const struct sample *sample,
                 bool has_text, enum finish_reason finish, const char *error)
{
    struct token_event event = {.uid = r->uid,
                                .sample = sample,
                                .has_text = has_text,
                                .text = bytes_of(&r->text),
                                .finish = finish,
                                .error = error,
                                .n_prompt = r->n_prompt,
                                .n_cached = r->n_cached,
                                .n_output = request_n_output(r)};
    if (finish != FINISH_NONE) {
        scheduler_trace_stage(s, r, "decode", r->first_token, event.n_output);
        double now = system_seconds();
        event.queue_seconds = since(r->submitted, r->admitted > 0.0 ? r->admitted : now);
        event.prefill_seconds = since(r->admitted, r->first_token > 0.0 ? r->first_token : now);
        event.decode_seconds = since(r->first_token, now);
    }
    s->emit(s->emit_context, &event);
}

/* A token of a prompt that is scored. */
static void tell_prompt_token(struct scheduler *s, struct request *r, const struct sample *sample)
{
    struct token_event event = {.uid = r->uid, .sample = sample, .is_prompt = true};
    s->emit(s->emit_context, &event);
    r->n_told++;
}

/* Hands the row's whole pages to the tree, as far as their tokens are known. */
static void share_row(struct scheduler *s, const struct request *r)
{
    int32_t length = s->cache->length[r->row];
    kv_cache_commit(s->cache, r->row, r->tokens, length < r->n_tokens ? length : r->n_tokens);
}

static void lose_row(struct scheduler *s, struct request *r)
{
    r->row = -1;
    s->figures.n_running--;
    s->figures.n_waiting++;
    r->state = REQUEST_WAITING;
}

/* Takes the request's row away; what was committed stays in the tree. The state is that behind the
 * last token that was fed: one that is known, as rows leave only between the taking of one step's
 * samples and the making of the next. */
void scheduler_leave_row(struct scheduler *s, struct request *r)
{
    if (r->row < 0)
        return;
    assert(s->cache->length[r->row] <= r->n_tokens);
    kv_cache_leave_row(s->cache, r->row, r->tokens);
    lose_row(s, r);
}

/* The same for a row whose state is no good. */
static void drop_row(struct scheduler *s, struct request *r)
{
    if (r->row < 0)
        return;
    kv_cache_close_row(s->cache, r->row);
    lose_row(s, r);
}

/* What steps in flight draw for the request is nobody's. */
static void forget_draws(struct scheduler *s, const struct request *r)
{
    for (int32_t i = 0; i < MAX_IN_FLIGHT; i++)
        for (int32_t k = 0; k < s->steps[i].n_want; k++)
            if (s->steps[i].want_requests[k] == r)
                s->steps[i].want_requests[k] = NULL;
}

static void remove_request(struct scheduler *s, struct request *r)
{
    int32_t i = 0;
    while (s->requests[i] != r)
        i++;
    scheduler_leave_row(s, r);
    forget_draws(s, r);
    s->figures.n_waiting--;
    memmove(&s->requests[i], &s->requests[i + 1],
            (size_t)(s->n_requests - i - 1) * sizeof *s->requests);
    s->n_requests--;
    request_free(r);
}

void scheduler_cancel(struct scheduler *s, uint64_t uid)
{
    for (int32_t i = 0; i < s->n_requests; i++) {
        struct request *r = s->requests[i];
        if (r->uid != uid)
            continue;
        str_clear(&r->text);
        emit(s, r, NULL, r->has_stop, FINISH_CANCELLED, NULL);
        remove_request(s, r);
        return;
    }
}

void scheduler_cancel_all(struct scheduler *s)
{
    while (s->n_requests > 0)
        scheduler_cancel(s, s->requests[s->n_requests - 1]->uid);
}

bool scheduler_has_work(const struct scheduler *s)
{
    return s->n_requests > 0 || s->n_in_flight > 0;
}

struct scheduler_figures scheduler_figures(const struct scheduler *s)
{
    return s->figures;
}

/* --- what comes of a step --------------------------------------------------------------------- */

/* What came of one wanted row of a prompt that is scored. */
static void take_score(struct scheduler *s, struct request *r, const struct draw *draw,
                       const struct sample *sample)
{
    if (r->n_told == 0)
        tell_prompt_token(s, r, &(struct sample){.token = r->tokens[0], .logprob = NAN});
    if (draw->is_given && draw->position == r->n_told) /* not once more after a preemption */
        tell_prompt_token(s, r, sample);
}

static void take_token(struct scheduler *s, struct request *r, const struct sample *sample)
{
    r->n_awaited--;
    if (sample->token < 0) {
        emit(s, r, NULL, false, FINISH_ERROR,
             "the model produced no finite logit; its weights are damaged or overflow");
        drop_row(s, r);
        remove_request(s, r);
        return;
    }
    bool is_silent;
    enum finish_reason finish = request_add_token(r, sample->token, &is_silent);
    if (r->first_token == 0.0) {
        r->first_token = system_seconds();
        scheduler_trace_stage(s, r, "prefill", r->admitted, r->n_prompt);
    }
    if (r->row >= 0)
        share_row(s, r); /* a step in flight may have been fed with the token */
    emit(s, r, sample, r->has_stop || is_silent, finish, NULL);
    if (finish != FINISH_NONE)
        remove_request(s, r);
}

/* What this step's tokens cost tells how many the next may have. Scored ones cost more. */
static void learn_speed(struct scheduler *s, const struct step *step, double seconds)
{
    if (step->n_prefill < MIN_CHUNK || step->n_scored > 0)
        return;
    double each = seconds / step->n_tokens;
    s->seconds_per_token = s->seconds_per_token == 0.0 ? each : (s->seconds_per_token + each) / 2.0;
}

/* Rows whose requests are gone are not counted. */
static void count_step(struct scheduler *s, const struct step *step)
{
    s->figures.last_batch_size = step->n_sequences;
    s->figures.prefill_tokens += (uint64_t)step->n_prefill;
    for (int32_t i = 0; i < step->n_tokens - step->n_prefill; i++)
        s->figures.decode_tokens += step->want_requests[i] != NULL;
}

/* --- the queue of steps ----------------------------------------------------------------------- */

/* Queues the next step, if there is one. */
static enum status begin_step(struct scheduler *s, struct error *error)
{
    struct step *step = scheduler_step_at(s, s->n_in_flight);
    scheduler_make_batch(s);
    if (step->n_tokens == 0)
        return OK;
    step->begin = system_seconds();
    step->is_traced = s->trace != NULL;
    enum status status = s->executor.queue(s->executor.context, &s->batch, step->draws, error);
    if (status != OK)
        return status;
    s->n_in_flight++;
    s->figures.steps++;
    for (int32_t i = 0; i < step->n_sequences; i++)
        share_row(s, s->batch_requests[i]);
    return OK;
}

/* Waits for the oldest step in flight and takes what came of it. */
static enum status end_step(struct scheduler *s, struct error *error)
{
    struct step *step = scheduler_step_at(s, 0);
    enum status status = take_samples(s, error);
    if (status != OK)
        return status;
    /* It ran when it was queued and the one before it had ended. */
    double begin = step->begin > s->last_end ? step->begin : s->last_end;
    s->last_end = system_seconds();
    learn_speed(s, step, s->last_end - begin);
    count_step(s, step);
    for (int32_t i = 0; i < step->n_want; i++) {
        if (step->want_requests[i] && request_is_scored(step->want_requests[i]))
            take_score(s, step->want_requests[i], &step->draws[i], &s->samples[i]);
        if (step->want_requests[i] && !step->draws[i].is_given)
            take_token(s, step->want_requests[i], &s->samples[i]);
    }
    if (s->trace && step->is_traced)
        trace_step(s, step, begin);
    return OK;
}

/* The device has failed, and what it has computed since nobody knows. */
static void fail_all(struct scheduler *s, const char *message)
{
    while (s->n_in_flight > 0)
        take_samples(s, NULL);
    for (int32_t i = 0; i < s->n_requests;) {
        struct request *r = s->requests[i];
        if (r->row < 0 && r->n_awaited == 0) {
            i++;
            continue;
        }
        emit(s, r, NULL, false, FINISH_ERROR, message);
        drop_row(s, r);
        remove_request(s, r);
    }
    kv_cache_flush(s->cache);
}

/* Whether a step may be queued behind the one in flight. */
static bool has_queue(const struct scheduler *s)
{
    return s->executor.has_queue && !s->trace;
}

/* Whether the next step can be made before the samples of the one in flight are known. */
static bool can_run_ahead(struct scheduler *s)
{
    const struct step *step = scheduler_step_at(s, 0);
    for (int32_t i = 0; i < step->n_want; i++) {
        const struct request *r = step->want_requests[i];
        if (r && r->has_history)
            return false;
    }
    return has_queue(s);
}

enum status scheduler_step(struct scheduler *s, struct error *error)
{
    struct error inner = {0};
    enum status status = OK;
    if (s->n_in_flight > 0 && !can_run_ahead(s))
        status = end_step(s, &inner);
    int32_t n_before = s->n_in_flight;
    if (status == OK)
        status = begin_step(s, &inner);
    int32_t n_left = has_queue(s) ? s->n_in_flight - n_before : 0;
    while (status == OK && s->n_in_flight > n_left)
        status = end_step(s, &inner);
    if (status != OK) {
        fail_all(s, inner.message);
        return error_set(error, status, "%s", inner.message);
    }
    assert(scheduler_check(s)); /* debug and sanitizer builds */
    return OK;
}

/* Draws of the request in steps in flight. */
static int32_t count_draws(const struct scheduler *s, const struct request *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_in_flight; i++) {
        const struct step *step = &s->steps[(s->oldest + i) % MAX_IN_FLIGHT];
        for (int32_t k = 0; k < step->n_want; k++)
            n += step->want_requests[k] == r && !step->draws[k].is_given;
    }
    return n;
}

bool scheduler_check(const struct scheduler *s)
{
    int32_t n_running = 0;
    for (int32_t i = 0; i < s->n_requests; i++) {
        const struct request *r = s->requests[i];
        if ((r->row >= 0) != (r->state != REQUEST_WAITING) || r->n_awaited != count_draws(s, r))
            return false;
        if (r->row < 0)
            continue;
        n_running++;
        int32_t length = s->cache->length[r->row];
        if (length < 0 || length >= r->n_tokens + 1 ||
            (r->state == REQUEST_DECODE && length != r->n_tokens - 1 + r->n_awaited) ||
            (r->state == REQUEST_PREFILL && r->n_awaited > 0))
            return false;
        for (int32_t k = 0; k < i; k++)
            if (s->requests[k]->row == r->row)
                return false;
    }
    int32_t n_open = 0;
    for (int32_t row = 0; row < s->cache->n_rows; row++)
        n_open += s->cache->length[row] >= 0;
    return n_open == n_running && n_running == s->figures.n_running &&
           s->n_requests - n_running == s->figures.n_waiting && kv_cache_check(s->cache);
}
