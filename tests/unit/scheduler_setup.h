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

static inline uint64_t mix(uint64_t hash, int32_t token)
{
    hash = (hash ^ (uint64_t)(uint32_t)token) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

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
