/* What the tests of the scheduler have in common: its sizes, how it is made over an executor of the
 * test's own, and how it is run to the end. */
#ifndef CSGL_TEST_SCHEDULER_SETUP_H
#define CSGL_TEST_SCHEDULER_SETUP_H

#include "scheduler/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 1000, PAGE = 4, MAX_RUNNING = 8, CONTEXT = 400, MAX_LIVE = 64, EOS = 7 };

/* Executors without and with a queue. */
enum { N_EXECUTORS = 2 };

static inline uint64_t mix(uint64_t hash, int32_t token)
{
    hash = (hash ^ (uint64_t)(uint32_t)token) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* --- the executor ----------------------------------------------------------------------------- */

/* What of a draw is known when its step is queued. */
struct drawing {
    bool is_given, bans_end;
    int32_t given;
    int64_t position;
    int32_t n_seen; /* different tokens of the history; 0: no penalty */
};

typedef enum status (*stub_run)(void *context, const struct batch *batch,
                                const struct drawing *draws, struct sample *out,
                                struct error *error);

/* An executor over a test's own run. With a queue, a step runs as late as it can: when its samples
 * are taken, and the next step is queued by then. Only then it is known which tokens it draws for
 * the next. */
struct stub {
    stub_run run;
    void *context;
    struct kv_cache *cache;
    bool has_queue, refuses;
    struct {
        struct batch batch; /* a copy */
        struct drawing *draws;
    } steps[2];
    unsigned n_queued, n_taken;
    int n_ahead;          /* steps that were queued while another was */
    struct sample *drawn; /* by the last step that ran */
};

static inline enum status stub_run_oldest(struct stub *stub, struct error *error)
{
    unsigned i = stub->n_taken++ % 2;
    struct batch *b = &stub->steps[i].batch;
    for (int32_t t = 0; t < b->n_tokens; t++) {
        int32_t token = b->drawn_by[t] < 0 ? b->tokens[t] : stub->drawn[b->drawn_by[t]].token;
        b->tokens[t] = token < 0 ? 0 : token; /* as fill_ids does */
    }
    return stub->run(stub->context, b, stub->steps[i].draws, stub->drawn, error);
}

static inline void stub_init_copy(struct stub *stub, unsigned i, const struct batch *b)
{
    struct batch *copy = &stub->steps[i].batch;
    size_t n = (size_t)b->max_want;
    assert_int_equal(
        batch_init(copy, stub->cache, b->max_tokens, b->max_sequences, b->max_want, NULL), OK);
    stub->steps[i].draws = calloc(n, sizeof *stub->steps[i].draws);
    if (!stub->drawn)
        stub->drawn = calloc(n, sizeof *stub->drawn);
    assert_true(stub->steps[i].draws && stub->drawn);
}

static inline enum status stub_queue(void *context, const struct batch *b, const struct draw *draws,
                                     struct error *error)
{
    struct stub *stub = context;
    unsigned i = stub->n_queued % 2;
    struct batch *copy = &stub->steps[i].batch;
    assert_true(b->n_tokens > 0 && stub->n_queued - stub->n_taken < (stub->has_queue ? 2 : 1));
    if (stub->refuses)
        return error_set(error, ERROR_IO, "the device is gone");
    if (!copy->memory)
        stub_init_copy(stub, i, b);
    assert_int_equal(copy->memory_bytes, b->memory_bytes);
    memcpy(copy->memory, b->memory, b->memory_bytes);
    copy->n_tokens = b->n_tokens;
    copy->n_sequences = b->n_sequences;
    copy->n_want = b->n_want;
    copy->n_snapshots = b->n_snapshots;
    copy->n_copies = b->n_copies;
    for (int32_t k = 0; k < b->n_want; k++)
        stub->steps[i].draws[k] =
            (struct drawing){.is_given = draws[k].is_given,
                             .given = draws[k].given,
                             .bans_end = draws[k].n_banned > 0,
                             .position = draws[k].position,
                             .n_seen = draws[k].history ? draws[k].history->n_distinct : 0};
    /* Only what is in flight can be awaited. */
    for (int32_t t = 0; t < b->n_tokens; t++)
        assert_true(b->drawn_by[t] < 0 || stub->n_queued != stub->n_taken);
    stub->n_ahead += stub->n_queued++ != stub->n_taken;
    return OK;
}

static inline enum status stub_take(void *context, struct sample *out, struct error *error)
{
    struct stub *stub = context;
    int32_t n = stub->steps[stub->n_taken % 2].batch.n_want;
    assert_true(stub->n_taken != stub->n_queued);
    enum status status = stub_run_oldest(stub, error);
    if (status == OK)
        memcpy(out, stub->drawn, (size_t)n * sizeof *out);
    return status;
}

static inline struct executor stub_executor(struct stub *stub)
{
    return (struct executor){
        .context = stub, .has_queue = stub->has_queue, .queue = stub_queue, .take = stub_take};
}

static inline void stub_done(struct stub *stub)
{
    assert_int_equal(stub->n_taken, stub->n_queued);
    for (int i = 0; i < 2; i++) {
        batch_done(&stub->steps[i].batch);
        free(stub->steps[i].draws);
    }
    free(stub->drawn);
}

/* --- the scheduler ---------------------------------------------------------------------------- */

/* The cache, and a scheduler over it; of `spec` what differs between tests is filled. */
static inline struct scheduler *open_scheduler(struct kv_cache *cache, struct kv_cache_spec spec,
                                               struct scheduler_options options,
                                               struct executor executor, scheduler_emit emit,
                                               void *context)
{
    static const int32_t eos_ids[] = {EOS};
    struct scheduler *scheduler;
    spec.page_size = PAGE;
    spec.n_rows = options.max_running = MAX_RUNNING;
    spec.max_length = options.context_length = CONTEXT;
    options.max_queue = MAX_LIVE;
    options.max_step_seconds = 10.0;
    options.vocab_size = VOCAB;
    options.eos_ids = eos_ids;
    options.n_eos = 1;
    assert_int_equal(kv_cache_init(cache, &spec, NULL), OK);
    assert_int_equal(scheduler_new(&scheduler, executor, cache, &options, emit, context, NULL), OK);
    return scheduler;
}

static inline void step_scheduler(struct scheduler *scheduler)
{
    assert_int_equal(scheduler_step(scheduler, NULL), OK);
    assert_true(scheduler_check(scheduler));
}

static inline void run_scheduler(struct scheduler *scheduler)
{
    for (int n = 0; scheduler_has_work(scheduler); n++) {
        step_scheduler(scheduler);
        assert_true(n < 100000);
    }
}

#endif
