#include "scheduler/scheduler.h"

#include "base/system.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A request that cannot be admitted lets smaller ones pass for this long, then it holds the queue.
 */
static const double age_limit = 2.0;

/* Prompt tokens of a step before their speed is known. */
enum { FIRST_CHUNK = 128, MIN_CHUNK = 16 };

struct scheduler {
    struct executor executor;
    struct kv_cache *cache;
    struct scheduler_options options;
    scheduler_emit emit;
    void *emit_context;
    struct request **requests; /* [max_queue + max_running] in order of arrival */
    int32_t n_requests;
    struct batch batch;
    /* The step being made: whose row is the i-th wanted one, and each sequence's request. */
    struct request **want_requests;  /* [scheduler_max_want] */
    struct request **batch_requests; /* [max_running] */
    struct draw *draws;              /* [scheduler_max_want] */
    struct sample *samples;          /* [scheduler_max_want] */
    int32_t n_prefill;               /* prompt tokens in the batch */
    int32_t n_scored;                /* wanted rows beyond one a sequence */
    double seconds_per_token;        /* of prefill, smoothed; 0: unknown */
    struct scheduler_figures figures;
    struct trace *trace; /* NULL: nothing is recorded */
};

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
    s->want_requests = calloc(n_want, sizeof *s->want_requests);
    s->batch_requests = calloc(n, sizeof *s->batch_requests);
    s->draws = calloc(n_want, sizeof *s->draws);
    s->samples = calloc(n_want, sizeof *s->samples);
    bool is_complete =
        s->requests && s->want_requests && s->batch_requests && s->draws && s->samples;
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

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_requests; i++)
        request_free(s->requests[i]);
    batch_done(&s->batch);
    free(s->requests);
    free(s->want_requests);
    free(s->batch_requests);
    free(s->draws);
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
static void trace_stage(struct scheduler *s, const struct request *r, const char *name,
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

static void trace_step(struct scheduler *s, double begin)
{
    bool has_decodes = s->batch.n_tokens > s->n_prefill;
    const char *name = !s->n_prefill ? "decode" : has_decodes ? "mixed" : "prefill";
    trace_record(s->trace,
                 &(struct trace_event){.kind = TRACE_STEP,
                                       .phase = s->n_prefill ? TRACE_PREFILL : TRACE_DECODE,
                                       .name = name,
                                       .begin = begin,
                                       .end = system_seconds(),
                                       .id = s->figures.steps,
                                       .values = {s->batch.n_tokens, s->batch.n_sequences}});
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
        trace_stage(s, r, "decode", r->first_token, event.n_output);
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

/* Takes the request's row away; what was committed stays in the tree. */
static void leave_row(struct scheduler *s, struct request *r)
{
    if (r->row < 0)
        return;
    kv_cache_leave_row(s->cache, r->row, r->tokens);
    r->row = -1;
    s->figures.n_running--;
    s->figures.n_waiting++;
    r->state = REQUEST_WAITING;
}

static void remove_request(struct scheduler *s, struct request *r)
{
    int32_t i = 0;
    while (s->requests[i] != r)
        i++;
    leave_row(s, r);
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
    return s->n_requests > 0;
}

struct scheduler_figures scheduler_figures(const struct scheduler *s)
{
    return s->figures;
}

/* --- making a step ---------------------------------------------------------------------------- */

/* Back into the queue, at its place by arrival; it will compute again what the tree does not keep.
 */
static void preempt(struct scheduler *s, struct request *r)
{
    leave_row(s, r);
    s->figures.preemptions++;
}

static bool is_in_batch(const struct scheduler *s, const struct request *r)
{
    for (int32_t i = 0; i < s->batch.n_sequences; i++)
        if (s->batch_requests[i] == r)
            return true;
    return false;
}

/* The youngest request with a row that came after `r`, or `r` itself. A younger one that is in the
 * batch already (a decoding row beside a prompt) cannot be taken out: NULL if there are only such.
 */
static struct request *choose_victim(const struct scheduler *s, struct request *r)
{
    bool has_younger = false;
    for (int32_t i = s->n_requests; i-- > 0;) {
        if (s->requests[i] == r)
            break;
        if (s->requests[i]->row >= 0 && !is_in_batch(s, s->requests[i]))
            return s->requests[i];
        has_younger |= s->requests[i]->row >= 0;
    }
    return has_younger ? NULL : r;
}

/* The i-th wanted row is the one before token `place` of the request. */
static void add_draw(struct scheduler *s, struct request *r, int32_t i, int32_t place)
{
    int32_t n_output = request_n_output(r);
    bool is_too_early = n_output < r->min_tokens;
    s->want_requests[i] = r;
    if (place < r->n_tokens) {
        s->draws[i] = (struct draw){
            .params = &r->params, .position = place, .is_given = true, .given = r->tokens[place]};
        return;
    }
    s->draws[i] = (struct draw){.params = &r->params,
                                .history = r->has_history ? &r->history : NULL,
                                .position = n_output,
                                .banned = r->stop_tokens,
                                .n_banned = is_too_early ? r->n_stop_tokens : 0};
}

/* Adds n tokens of a row to the batch. When pages run out, younger rows give theirs, at last the
 * request itself. False if it is not in the batch; its turn comes when the younger rows of this
 * step have ended or run out of pages themselves. */
static bool add_to_batch(struct scheduler *s, struct request *r, int32_t n, enum batch_want want)
{
    int32_t from = s->cache->length[r->row];
    while (batch_add(&s->batch, s->cache, r->row, r->tokens + from, n, want, NULL) != OK) {
        struct request *victim = choose_victim(s, r);
        if (victim)
            preempt(s, victim);
        if (!victim || victim == r)
            return false;
    }
    s->batch_requests[s->batch.n_sequences - 1] = r;
    int32_t n_want = want == WANT_ALL ? n : want == WANT_LAST ? 1 : 0;
    for (int32_t i = n - n_want; i < n; i++)
        add_draw(s, r, s->batch.n_want - n + i, from + i + 1);
    return true;
}

static void add_decodes(struct scheduler *s)
{
    for (int32_t i = 0; i < s->n_requests; i++)
        if (s->requests[i]->state == REQUEST_DECODE)
            add_to_batch(s, s->requests[i], 1, WANT_LAST);
}

/* Prompt tokens that this step may still take: bounded in number and, by what they have cost so
 * far, in time. */
static int32_t prefill_room(const struct scheduler *s)
{
    int32_t room = s->options.max_prefill_length, by_time = FIRST_CHUNK;
    if (s->seconds_per_token > 0.0) {
        double n = s->options.max_step_seconds / s->seconds_per_token;
        by_time = n < MIN_CHUNK ? MIN_CHUNK : n > room ? room : (int32_t)n;
    }
    return (by_time < room ? by_time : room) - s->n_prefill;
}

static void add_chunk(struct scheduler *s, struct request *r)
{
    int32_t left = r->n_tokens - s->cache->length[r->row], room = prefill_room(s);
    int32_t n = left < room ? left : room, most = s->options.max_scored - s->n_scored + 1;
    enum batch_want want = n == left ? WANT_LAST : WANT_NONE;
    if (request_is_scored(r)) {
        n = n < most ? n : most;
        want = WANT_ALL;
    }
    if (n <= 0 || !add_to_batch(s, r, n, want))
        return;
    s->n_prefill += n;
    s->n_scored += want == WANT_ALL ? n - 1 : 0;
}

/* True if the pages of the rest of the request's tokens can be had, with one more for each row that
 * runs, so that admission does not at once lead to preemption. */
static bool has_room(const struct scheduler *s, const struct request *r)
{
    int32_t left = r->n_tokens - s->cache->length[r->row];
    int32_t need = left / s->cache->page_size + 1 + s->figures.n_running;
    for (int32_t g = 0; g < s->cache->n_groups; g++) {
        struct kv_counts counts = kv_cache_counts(s->cache, g);
        int32_t window = s->cache->groups[g].window;
        int32_t limit = window ? kv_pages_needed(window, r->n_tokens, s->options.max_prefill_length,
                                                 s->cache->page_size) +
                                     s->figures.n_running
                               : need;
        if (counts.n_free + counts.n_evictable < (need < limit ? need : limit))
            return false;
    }
    return true;
}

enum admission { ADMITTED, NO_ROOM, WAITS_FOR_PREFIX };

/* Gives a waiting request a row that starts with what the cache has of its tokens. */
static enum admission admit(struct scheduler *s, struct request *r)
{
    struct kv_prompt prompt = {.key = r->cache_key,
                               .tokens = r->tokens,
                               .n_tokens = r->n_tokens,
                               .max_cached = request_max_cached(r),
                               .marks = r->marks,
                               .n_marks = r->n_marks};
    struct kv_match match = kv_cache_match(s->cache, &prompt);
    if (match.pending_length > match.length)
        return WAITS_FOR_PREFIX; /* another row is computing it */
    r->row = kv_cache_open_prompt(s->cache, &prompt);
    if (r->row < 0)
        return NO_ROOM;
    /* Alone, a request always fits: the plan made room for a whole context. */
    if (s->figures.n_running > 0 && !has_room(s, r)) {
        kv_cache_close_row(s->cache, r->row);
        r->row = -1;
        return NO_ROOM;
    }
    int32_t n_cached = s->cache->length[r->row];
    r->state = REQUEST_PREFILL;
    if (r->admitted == 0.0) {
        r->admitted = system_seconds();
        trace_stage(s, r, "queue", r->submitted, r->n_prompt);
        r->n_cached = n_cached;
    }
    s->figures.cached_tokens += (uint64_t)n_cached;
    s->figures.kv_hit_tokens += (uint64_t)s->cache->rows[r->row].n_kv_hit;
    s->figures.snapshot_hit_tokens += kv_cache_has_states(s->cache) ? (uint64_t)n_cached : 0;
    s->figures.n_running++;
    s->figures.n_waiting--;
    return ADMITTED;
}

/* Goes on with prompts that have a row, then admits others, oldest first. */
static void add_prefills(struct scheduler *s)
{
    double now = system_seconds();
    for (int32_t i = 0; i < s->n_requests && prefill_room(s) > 0; i++)
        if (s->requests[i]->state == REQUEST_PREFILL)
            add_chunk(s, s->requests[i]);
    for (int32_t i = 0; i < s->n_requests && prefill_room(s) > 0; i++) {
        struct request *r = s->requests[i];
        if (r->state != REQUEST_WAITING || s->batch.n_sequences == s->batch.max_sequences)
            continue;
        switch (admit(s, r)) {
        case ADMITTED:
            add_chunk(s, r);
            break;
        case NO_ROOM:
            if (now - r->submitted > age_limit)
                return;
            break;
        case WAITS_FOR_PREFIX:
            break;
        }
    }
}

static void make_batch(struct scheduler *s)
{
    batch_clear(&s->batch);
    s->n_prefill = s->n_scored = 0;
    if (s->options.policy == POLICY_MIXED)
        add_decodes(s);
    add_prefills(s);
    if (s->options.policy == POLICY_PREFILL_FIRST && s->batch.n_tokens == 0)
        add_decodes(s);
    if (s->batch.n_tokens > 0)
        batch_finish(&s->batch, s->cache);
}

/* --- after the step --------------------------------------------------------------------------- */

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
    if (sample->token < 0) {
        emit(s, r, NULL, false, FINISH_ERROR,
             "the model produced no finite logit; its weights are damaged or overflow");
        remove_request(s, r);
        return;
    }
    bool is_silent;
    enum finish_reason finish = request_add_token(r, sample->token, &is_silent);
    if (r->first_token == 0.0) {
        r->first_token = system_seconds();
        trace_stage(s, r, "prefill", r->admitted, r->n_prompt);
    }
    r->state = REQUEST_DECODE;
    emit(s, r, sample, r->has_stop || is_silent, finish, NULL);
    if (finish != FINISH_NONE)
        remove_request(s, r);
}

/* What this step's tokens cost tells how many the next may have. Scored ones cost more. */
static void learn_speed(struct scheduler *s, double seconds)
{
    if (s->n_prefill < MIN_CHUNK || s->n_scored > 0)
        return;
    double each = seconds / s->batch.n_tokens;
    s->seconds_per_token = s->seconds_per_token == 0.0 ? each : (s->seconds_per_token + each) / 2.0;
}

static void fail_batch(struct scheduler *s, const char *message)
{
    int32_t n = s->batch.n_sequences;
    for (int32_t i = 0; i < n; i++) {
        emit(s, s->batch_requests[i], NULL, false, FINISH_ERROR, message);
        remove_request(s, s->batch_requests[i]);
    }
}

enum status scheduler_step(struct scheduler *s, struct error *error)
{
    make_batch(s);
    if (s->batch.n_tokens == 0)
        return OK;
    double start = system_seconds();
    struct error inner = {0};
    enum status status =
        s->executor.run(s->executor.context, &s->batch, s->draws, s->samples, &inner);
    if (status != OK) {
        fail_batch(s, inner.message);
        return error_set(error, status, "%s", inner.message);
    }
    learn_speed(s, system_seconds() - start);
    s->figures.steps++;
    s->figures.last_batch_size = s->batch.n_sequences;
    s->figures.prefill_tokens += (uint64_t)s->n_prefill;
    s->figures.decode_tokens += (uint64_t)(s->batch.n_tokens - s->n_prefill);
    /* The tree first, so that a prefix is there before its answer ends. */
    for (int32_t i = 0; i < s->batch.n_sequences; i++) {
        struct request *r = s->batch_requests[i];
        kv_cache_commit(s->cache, r->row, r->tokens, s->cache->length[r->row]);
    }
    for (int32_t i = 0; i < s->batch.n_want; i++) {
        if (request_is_scored(s->want_requests[i]))
            take_score(s, s->want_requests[i], &s->draws[i], &s->samples[i]);
        if (!s->draws[i].is_given)
            take_token(s, s->want_requests[i], &s->samples[i]);
    }
    if (s->trace)
        trace_step(s, start);
    assert(scheduler_check(s)); /* debug and sanitizer builds */
    return OK;
}

bool scheduler_check(const struct scheduler *s)
{
    int32_t n_running = 0;
    for (int32_t i = 0; i < s->n_requests; i++) {
        const struct request *r = s->requests[i];
        if ((r->row >= 0) != (r->state != REQUEST_WAITING))
            return false;
        if (r->row < 0)
            continue;
        n_running++;
        int32_t length = s->cache->length[r->row];
        if (length < 0 || length >= r->n_tokens + 1 ||
            (r->state == REQUEST_DECODE && length != r->n_tokens - 1))
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
