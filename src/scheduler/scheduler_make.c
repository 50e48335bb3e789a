/* The choice of each step: which rows decode, which prompts go on, who is admitted, and who gives
 * its row up when pages run out. */
#include "scheduler/scheduler_struct.h"

#include "base/system.h"

#include <assert.h>

/* A request that cannot be admitted lets smaller ones pass for this long, then it holds the queue.
 */
static const double age_limit = 2.0;

/* Prompt tokens of a step before their speed is known. */
enum { FIRST_CHUNK = 128 };

/* Back into the queue, at its place by arrival; it will compute again what the tree does not keep.
 */
static void preempt(struct scheduler *s, struct request *r)
{
    scheduler_leave_row(s, r);
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
    struct step *step = scheduler_step_at(s, s->n_in_flight);
    int32_t n_output = place - r->n_prompt; /* tokens of the answer by then */
    bool is_too_early = n_output < r->min_tokens;
    step->want_requests[i] = r;
    if (place < r->n_tokens) {
        step->draws[i] = (struct draw){
            .params = &r->params, .position = place, .is_given = true, .given = r->tokens[place]};
        return;
    }
    step->draws[i] = (struct draw){.params = &r->params,
                                   .history = r->has_history ? &r->history : NULL,
                                   .position = n_output,
                                   .banned = r->stop_tokens,
                                   .n_banned = is_too_early ? r->n_stop_tokens : 0};
    r->state = REQUEST_DECODE;
    r->n_awaited++;
    r->drawn_by = i;
}

/* Only a row that decodes can have its token awaited. */
static enum status add_tokens(struct scheduler *s, const struct request *r, int32_t n,
                              enum batch_want want)
{
    if (r->n_awaited > 0)
        return batch_add_drawn(&s->batch, s->cache, r->row, r->drawn_by, NULL);
    const int32_t *tokens = r->tokens + s->cache->length[r->row];
    return batch_add(&s->batch, s->cache, r->row, tokens, n, want, NULL);
}

/* Adds n tokens of a row to the batch. When pages run out, younger rows give theirs, at last the
 * request itself. False if it is not in the batch; its turn comes when the younger rows of this
 * step have ended or run out of pages themselves. */
static bool add_to_batch(struct scheduler *s, struct request *r, int32_t n, enum batch_want want)
{
    int32_t from = s->cache->length[r->row];
    while (add_tokens(s, r, n, want) != OK) {
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

/* But those that the awaited token will end by their limit. */
static void add_decodes(struct scheduler *s)
{
    for (int32_t i = 0; i < s->n_requests; i++) {
        struct request *r = s->requests[i];
        if (r->state == REQUEST_DECODE && request_n_output(r) + r->n_awaited < r->max_tokens)
            add_to_batch(s, r, 1, WANT_LAST);
    }
}

/* Prompt tokens that this step may still take: bounded in number and, by what they have cost so
 * far, in time. */
static int32_t prefill_room(struct scheduler *s)
{
    int32_t room = s->options.max_prefill_length, by_time = FIRST_CHUNK;
    if (s->seconds_per_token > 0.0) {
        double n = s->options.max_step_seconds / s->seconds_per_token;
        by_time = n < MIN_CHUNK ? MIN_CHUNK : n > room ? room : (int32_t)n;
    }
    return (by_time < room ? by_time : room) - scheduler_step_at(s, s->n_in_flight)->n_prefill;
}

static void add_chunk(struct scheduler *s, struct request *r)
{
    struct step *step = scheduler_step_at(s, s->n_in_flight);
    int32_t left = r->n_tokens - s->cache->length[r->row], room = prefill_room(s);
    int32_t n = left < room ? left : room, most = s->options.max_scored - step->n_scored + 1;
    enum batch_want want = n == left ? WANT_LAST : WANT_NONE;
    if (request_is_scored(r)) {
        n = n < most ? n : most;
        want = WANT_ALL;
    }
    if (n <= 0 || !add_to_batch(s, r, n, want))
        return;
    step->n_prefill += n;
    step->n_scored += want == WANT_ALL ? n - 1 : 0;
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
        scheduler_trace_stage(s, r, "queue", r->submitted, r->n_prompt);
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
        if (r->state != REQUEST_WAITING || r->n_awaited > 0 ||
            s->batch.n_sequences == s->batch.max_sequences)
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

void scheduler_make_batch(struct scheduler *s)
{
    struct step *step = scheduler_step_at(s, s->n_in_flight);
    batch_clear(&s->batch);
    step->n_want = step->n_prefill = step->n_scored = 0;
    if (s->options.policy == POLICY_MIXED)
        add_decodes(s);
    add_prefills(s);
    if (s->options.policy == POLICY_PREFILL_FIRST && s->batch.n_tokens == 0)
        add_decodes(s);
    if (s->batch.n_tokens > 0)
        batch_finish(&s->batch, s->cache);
    step->n_want = s->batch.n_want;
    step->n_tokens = s->batch.n_tokens;
    step->n_sequences = s->batch.n_sequences;
}
