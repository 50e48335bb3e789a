/* Prompts that are scored, through the scheduler and the engine: the logprobs are those of the
 * reference's logits. */
#include "models/model_case.h"
#include "scheduler/scheduler.h"
#include "test_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 16, MAX_SCORED = 6, N_TOP = 3, CHUNK = 24 };

/* Logits of these models are of order 1, and theirs are within 1e-4 of the reference's. */
static const double tolerance = 4e-4;

struct scores {
    const struct model_case *model;
    int32_t n_told;
    bool has_ended;
};

static double log_sum(const float *logits, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i]);
    return log(sum);
}

static void on_event(void *context, const struct token_event *event)
{
    struct scores *s = context;
    const struct model_case *c = s->model;
    assert_int_not_equal(event->finish, FINISH_ERROR);
    s->has_ended |= event->finish != FINISH_NONE;
    if (!event->is_prompt)
        return;
    const struct sample *sample = event->sample;
    assert_int_equal(sample->token, c->tokens[s->n_told]);
    if (s->n_told++ == 0) {
        assert_true(isnan(sample->logprob) && sample->n_top == 0);
        return;
    }
    const float *logits = c->logits + (size_t)(s->n_told - 2) * (size_t)c->vocab_size;
    double sum = log_sum(logits, c->vocab_size);
    assert_true(fabs(sample->logprob - (logits[sample->token] - sum)) <= tolerance);
    assert_int_equal(sample->n_top, N_TOP);
    for (int k = 0; k < N_TOP; k++) {
        int n_before = 0;
        for (int32_t i = 0; i < c->vocab_size; i++)
            n_before += logits[i] > logits[sample->top[k].token] + tolerance;
        assert_true(n_before <= k);
        assert_true(fabs(sample->top[k].logprob - (logits[sample->top[k].token] - sum)) <=
                    tolerance);
    }
}

static void score(const char *name, const char *device)
{
    struct model_case c;
    struct case_engine e;
    struct engine_executor executor;
    struct scheduler *scheduler;
    struct case_options case_options = case_options_default();
    case_options.device = device;
    model_case_open(&c, name);
    case_engine_open(&e, &c, &case_options, comm_self());
    struct scores s = {.model = &c};
    struct scheduler_options options = {.max_running = 2,
                                        .max_queue = 2,
                                        .max_prefill_length = CHUNK,
                                        .max_scored = MAX_SCORED,
                                        .max_step_seconds = 10.0,
                                        .context_length = c.n_tokens + 1,
                                        .vocab_size = c.vocab_size};
    assert_int_equal(engine_executor_init(&executor, e.engine, c.vocab_size, NULL), OK);
    assert_int_equal(scheduler_new(&scheduler, engine_executor_table(&executor),
                                   engine_cache(e.engine), &options, on_event, &s, NULL),
                     OK);
    struct request_options request = {.uid = 1,
                                      .ids = c.tokens,
                                      .n_ids = c.n_tokens,
                                      .params = sampling_params_default(),
                                      .max_tokens = 1,
                                      .scores_prompt = true};
    request.params.n_logprobs = N_TOP;
    assert_int_equal(scheduler_submit(scheduler, &request, NULL), OK);
    while (!s.has_ended)
        assert_int_equal(scheduler_step(scheduler, NULL), OK);
    assert_int_equal(s.n_told, c.n_tokens);
    scheduler_free(scheduler);
    engine_executor_done(&executor);
    case_engine_done(&e);
    model_case_done(&c);
}

static void scores_of_a_prompt_are_the_references(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3_gqa8", "llama_gqa3_tied", "mistral_sliding",
                                        "qwen3_5_even_tied", "gpt_oss_gqa2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        score(names[i], NULL);
        if (test_gpu())
            score(names[i], test_gpu());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_of_a_prompt_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
