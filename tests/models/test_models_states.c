/* Models with recurrent layers behind the scheduler: whatever was cached, evicted, preempted or
 * cancelled, the logits are those of a fresh run on the CPU. CSGL_TEST_GPU names the device that
 * serves, as --device does. */
#include "device/device_open.h"
#include "models/model_case.h"
#include "scheduler/scheduler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    N_REQUESTS = 200,
    MAX_LIVE = 32,
    MAX_RUNNING = 4,
    CONTEXT = 160,
    MAX_ANSWER = 24,
    PAGE = 16
};

/* Steps of another shape sum in another order; logits of these models are of order 1. */
static const double tolerance = 5e-4;

/* --- a world: the served engine, and a fresh one beside it ------------------------------------ */

struct live {
    uint64_t uid;
    int32_t tokens[CONTEXT];
    int32_t n_prompt, n_tokens;
    float logprobs[MAX_ANSWER];
};

struct side {
    struct device *device;
    struct engine *engine;
};

struct world {
    const struct model_case *model;
    struct side served, fresh;
    struct engine_executor executor;
    struct scheduler *scheduler;
    struct live live[MAX_LIVE];
    int n_checked, n_wrong;
    double worst;
};

static void open_side(struct side *side, const char *device, const struct model_case *c,
                      int32_t max_want, int32_t n_pages, int32_t n_states)
{
    struct error error = {0};
    struct cpu_options cpu = {
        .n_threads = 2, .isa = cpu_isa_best(), .activations = ACTIVATIONS_FLOAT};
    struct memory_request request = {.kv_dtype = DTYPE_F32,
                                     .page_size = PAGE,
                                     .max_running = MAX_RUNNING,
                                     .context_length = CONTEXT,
                                     .max_step_tokens = CONTEXT + MAX_RUNNING,
                                     .max_want = max_want,
                                     .memory_ratio = 0.9,
                                     .n_pages = n_pages,
                                     .n_states = n_states};
    if (device_open(&side->device, device, &cpu, &error) != OK)
        fail_msg("%s", error.message);
    if (engine_open(&side->engine, c->checkpoint, side->device, comm_self(), &request, NULL, NULL,
                    &error) != OK)
        fail_msg("%s: %s", c->name, error.message);
}

static void close_side(struct side *side)
{
    engine_free(side->engine);
    side->device->table->close(side->device);
}

static double log_probability(const float *logits, int32_t n, int32_t token)
{
    double max = -INFINITY, sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return logits[token] - max - log(sum);
}

/* Runs the whole sequence at once on the other engine and compares each answered token. */
static void check_answer(struct world *w, const struct live *l)
{
    struct batch batch;
    struct kv_cache *cache = engine_cache(w->fresh.engine);
    int32_t n = l->n_tokens - 1, row = kv_cache_open_row(cache);
    assert_int_equal(engine_batch_init(w->fresh.engine, &batch, NULL), OK);
    batch_clear(&batch);
    assert_int_equal(batch_add(&batch, cache, row, l->tokens, n, WANT_ALL, NULL), OK);
    assert_int_equal(engine_step(w->fresh.engine, &batch, NULL), OK);
    for (int32_t i = l->n_prompt; i < l->n_tokens; i++) {
        double fresh = log_probability(engine_logits(w->fresh.engine, i - 1), w->model->vocab_size,
                                       l->tokens[i]);
        double difference = fabs(fresh - (double)l->logprobs[i - l->n_prompt]);
        w->worst = difference > w->worst ? difference : w->worst;
        w->n_wrong += !(difference <= tolerance);
    }
    w->n_checked += l->n_tokens - l->n_prompt;
    kv_cache_close_row(cache, row);
    batch_done(&batch);
}

static void on_event(void *context, const struct token_event *event)
{
    struct world *w = context;
    struct live *l = w->live;
    while (l->uid != event->uid)
        l++;
    if (event->sample) {
        l->logprobs[l->n_tokens - l->n_prompt] = event->sample->logprob;
        l->tokens[l->n_tokens++] = event->sample->token;
    }
    if (event->finish == FINISH_NONE)
        return;
    assert_int_not_equal(event->finish, FINISH_ERROR);
    if (l->n_tokens > l->n_prompt)
        check_answer(w, l);
    l->uid = 0;
}

static struct world *new_world(const struct model_case *c, int32_t n_pages, int32_t n_states)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->model = c;
    open_side(&w->served, getenv("CSGL_TEST_GPU"), c, MAX_RUNNING, n_pages, n_states);
    open_side(&w->fresh, "cpu", c, CONTEXT, 0, 0);
    struct scheduler_options options = {.policy = POLICY_MIXED,
                                        .max_running = MAX_RUNNING,
                                        .max_queue = MAX_LIVE,
                                        .max_prefill_length = 64,
                                        .max_step_seconds = 10.0,
                                        .context_length = CONTEXT,
                                        .vocab_size = c->vocab_size};
    assert_int_equal(engine_executor_init(&w->executor, w->served.engine, c->vocab_size, NULL), OK);
    assert_int_equal(scheduler_new(&w->scheduler, engine_executor_table(&w->executor),
                                   engine_cache(w->served.engine), &options, on_event, w, NULL),
                     OK);
    return w;
}

static void end_world(struct world *w)
{
    scheduler_free(w->scheduler);
    engine_executor_done(&w->executor);
    close_side(&w->served);
    close_side(&w->fresh);
    free(w);
}

static void step(struct world *w)
{
    assert_int_equal(scheduler_step(w->scheduler, NULL), OK);
    assert_true(scheduler_check(w->scheduler));
}

static struct live *free_live(struct world *w)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (w->live[i].uid == 0)
            return &w->live[i];
    return NULL;
}

static void submit(struct world *w, struct live *l, uint64_t uid, int32_t max_tokens,
                   const int32_t *marks, int32_t n_marks)
{
    l->uid = uid;
    l->n_tokens = l->n_prompt;
    struct request_options o = {.uid = uid,
                                .ids = l->tokens,
                                .n_ids = l->n_prompt,
                                .marks = marks,
                                .n_marks = n_marks,
                                .params = sampling_params_default(),
                                .max_tokens = max_tokens};
    o.params.temperature = 1.0f;
    o.params.seed = uid;
    o.params.n_logprobs = 0;
    assert_int_equal(scheduler_submit(w->scheduler, &o, NULL), OK);
}

static void add_tokens(const struct world *w, struct live *l, int32_t n, int32_t seed)
{
    for (int32_t i = 0; i < n; i++)
        l->tokens[l->n_prompt++] = (seed * 97 + i * i * 31 + 5) % w->model->vocab_size;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void for_models_with_states(void (*check)(const struct model_case *))
{
    int n, n_found = 0;
    char **names = model_case_list(&n);
    for (int i = 0; i < n; i++) {
        struct model_case c;
        struct model *model;
        model_case_open(&c, names[i]);
        assert_int_equal(model_configure(c.checkpoint, comm_self(), &model, NULL), OK);
        bool has_states = model->states.n_layers > 0;
        model_free(model);
        if (has_states)
            check(&c);
        n_found += has_states;
        model_case_done(&c);
        free(names[i]);
    }
    free(names);
    assert_true(n_found > 0);
}

/* Requests over a few trunks, some of which go on with what an earlier one had, answer included. */
static void submit_random(struct world *w, uint64_t uid, struct live *history)
{
    struct live *l = free_live(w);
    int32_t mark = 1 + rand() % 60;
    l->n_prompt = 0;
    if (rand() % 3 == 0 && history->n_tokens > 0 && history->n_tokens < CONTEXT / 2) {
        *l = *history;
        l->n_prompt = rand() % 4 ? l->n_tokens : 1 + rand() % l->n_tokens;
    } else if (rand() % 4) {
        add_tokens(w, l, 20 + (rand() % 3) * 19, rand() % 2);
    }
    add_tokens(w, l, 1 + rand() % 25, rand() % 1000);
    submit(w, l, uid, 1 + rand() % MAX_ANSWER, &mark, rand() % 2);
    *history = *l;
}

static void check_interleavings(const struct model_case *c)
{
    struct world *w = new_world(c, CONTEXT / PAGE + 1, 9);
    struct live history = {0};
    uint64_t uid = 0;
    srand(5);
    while (uid < N_REQUESTS || scheduler_has_work(w->scheduler)) {
        if (uid < N_REQUESTS && rand() % 3 == 0 && free_live(w))
            submit_random(w, ++uid, &history);
        if (rand() % 30 == 0 && uid > 0)
            scheduler_cancel(w->scheduler, 1 + (uint64_t)rand() % uid);
        if (rand() % 200 == 0)
            kv_cache_flush(engine_cache(w->served.engine));
        step(w);
    }
    struct scheduler_figures f = scheduler_figures(w->scheduler);
    struct kv_statistics k = engine_cache(w->served.engine)->statistics;
    printf("%s: %d tokens, worst difference %.1e, %llu preemptions, %llu cached tokens, %llu "
           "snapshots, %llu evicted, %llu copied pages\n",
           c->name, w->n_checked, w->worst, (unsigned long long)f.preemptions,
           (unsigned long long)f.cached_tokens, (unsigned long long)k.snapshots,
           (unsigned long long)k.evicted_snapshots, (unsigned long long)k.copied_pages);
    assert_int_equal(w->n_wrong, 0);
    assert_true(w->n_checked > 1000 && f.preemptions > 0 && f.cached_tokens > 1000 &&
                k.evicted_snapshots > 50 && k.copied_pages > 50);
    end_world(w);
}

static void any_interleaving_gives_the_logits_of_a_fresh_run(void **state)
{
    (void)state;
    for_models_with_states(check_interleavings);
}

/* Runs one request alone; returns the prompt tokens that were computed. */
static uint64_t run_one(struct world *w, struct live *l, const int32_t *marks, int32_t n_marks)
{
    uint64_t before = scheduler_figures(w->scheduler).prefill_tokens;
    struct live *own = free_live(w);
    *own = *l;
    submit(w, own, 1, 8, marks, n_marks);
    while (scheduler_has_work(w->scheduler))
        step(w);
    *l = *own;
    return scheduler_figures(w->scheduler).prefill_tokens - before;
}

static void check_reuse(const struct model_case *c)
{
    struct world *w = new_world(c, 40, 20);
    const int32_t header = 45;
    for (int32_t i = 0; i < 3; i++) { /* questions behind one system prompt */
        struct live l = {0};
        add_tokens(w, &l, header, 1);
        add_tokens(w, &l, 20, 100 + i);
        assert_int_equal(run_one(w, &l, &header, 1), i == 0 ? 65 : 20);
    }
    struct live chat = {0};
    add_tokens(w, &chat, 30, 7);
    for (int32_t turn = 0; turn < 5; turn++) {
        int32_t known = chat.n_tokens;
        uint64_t n = run_one(w, &chat, NULL, 0);
        if (turn > 0)
            assert_true(n <= (uint64_t)(chat.n_prompt - known + PAGE));
        chat.n_prompt = chat.n_tokens;
        add_tokens(w, &chat, 11, 200 + turn);
    }
    assert_int_equal(w->n_wrong, 0);
    end_world(w);
}

static void what_is_known_is_not_computed_again(void **state)
{
    (void)state;
    for_models_with_states(check_reuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_interleaving_gives_the_logits_of_a_fresh_run),
        cmocka_unit_test(what_is_known_is_not_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
