/* The sampler draws from the distribution that the parameters describe, the same for the same seed.
 */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 50, DRAWS = 200000 };

static void fill_logits(float *logits)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = 4.0f * sinf((float)i * 1.7f) + 0.01f * (float)i;
}

static struct sample draw(const struct sampling_params *p, const struct token_history *history,
                          int64_t position, const float *logits)
{
    struct sampler sampler;
    struct sample sample;
    float copy[VOCAB];
    memcpy(copy, logits, sizeof copy);
    assert_int_equal(sampler_init(&sampler, VOCAB, NULL), OK);
    assert_int_equal(sampler_draw(&sampler, p, history, position, copy, &sample, NULL), OK);
    sampler_done(&sampler);
    return sample;
}

/* The distribution by definition: sort, cut, renormalise. */
struct ranked {
    double p;
    int token;
};

static int by_probability(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->p < y->p ? 1 : x->p > y->p ? -1 : x->token - y->token;
}

static void expected(const struct sampling_params *p, const float *logits, double *out)
{
    struct ranked r[VOCAB];
    double sum = 0, kept = 0, before = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += r[i].p = exp(logits[i] / p->temperature);
    for (int i = 0; i < VOCAB; i++) {
        r[i].p /= sum;
        r[i].token = i;
        out[i] = 0;
    }
    qsort(r, VOCAB, sizeof r[0], by_probability);
    int n = p->top_k > 0 && p->top_k < VOCAB ? p->top_k : VOCAB;
    for (sum = 0, kept = 0; kept < n; kept++)
        sum += r[(int)kept].p;
    double total = 0;
    for (int i = 0; i < n; i++) {
        if ((p->top_p < 1 && before / sum >= p->top_p) || r[i].p < p->min_p * r[0].p)
            break;
        out[r[i].token] = r[i].p;
        before += r[i].p;
        total += r[i].p;
    }
    for (int i = 0; i < VOCAB; i++)
        out[i] /= total;
}

static void draws_from_the_described_distribution(void **state)
{
    (void)state;
    struct {
        float temperature, top_p, min_p;
        int top_k;
    } cases[] = {{1, 1, 0, 0},     {0.5f, 1, 0, 0},    {2, 0.9f, 0, 0},       {1, 1, 0, 5},
                 {1, 0.7f, 0, 12}, {1.5f, 1, 0.2f, 0}, {1, 0.95f, 0.05f, 20}, {1, 1e-6f, 0, 0}};
    float logits[VOCAB];
    fill_logits(logits);
    struct sampler sampler;
    assert_int_equal(sampler_init(&sampler, VOCAB, NULL), OK);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sampling_params p = sampling_params_default();
        p.temperature = cases[c].temperature;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        p.top_k = cases[c].top_k;
        p.seed = 42 + c;
        double want[VOCAB];
        int n_seen[VOCAB] = {0};
        expected(&p, logits, want);
        for (int i = 0; i < DRAWS; i++) {
            float copy[VOCAB];
            struct sample sample;
            memcpy(copy, logits, sizeof copy);
            assert_int_equal(sampler_draw(&sampler, &p, NULL, i, copy, &sample, NULL), OK);
            n_seen[sample.token]++;
        }
        for (int i = 0; i < VOCAB; i++) {
            /* Five standard deviations of a binomial count. */
            double spread = 5 * sqrt(want[i] * (1 - want[i]) / DRAWS) + 1e-9;
            assert_true(fabs((double)n_seen[i] / DRAWS - want[i]) <= spread);
        }
    }
    sampler_done(&sampler);
}

static void same_seed_and_position_give_the_same_token(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill_logits(logits);
    struct sampling_params p = sampling_params_default();
    p.temperature = 1.3f;
    int n_different = 0;
    for (int64_t position = 0; position < 100; position++) {
        p.seed = 1;
        int32_t token = draw(&p, NULL, position, logits).token;
        assert_int_equal(draw(&p, NULL, position, logits).token, token);
        p.seed = 2;
        n_different += draw(&p, NULL, position, logits).token != token;
    }
    assert_true(n_different > 50);
}

static void greedy_takes_the_first_of_equals_and_ignores_nan(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    logits[3] = logits[9] = 5.0f;
    logits[1] = NAN;
    struct sampling_params p = sampling_params_default();
    assert_int_equal(draw(&p, NULL, 0, logits).token, 3);
    struct logit_bias bias = {.token = 20, .bias = 100};
    p.biases = &bias;
    p.n_biases = 1;
    assert_int_equal(draw(&p, NULL, 0, logits).token, 20);
}

static void penalties_follow_their_formulas(void **state)
{
    (void)state;
    struct token_history history;
    assert_int_equal(token_history_init(&history, VOCAB, NULL), OK);
    token_history_add(&history, 1, false); /* in the prompt only */
    token_history_add(&history, 2, true);
    token_history_add(&history, 2, true);
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -10.0f;
    logits[1] = 4.0f;
    logits[2] = 4.1f;
    logits[3] = 3.0f;
    struct sampling_params p = sampling_params_default();
    assert_int_equal(draw(&p, &history, 0, logits).token, 2);
    p.presence_penalty = 0.2f; /* 2 falls to 3.9, below 1; 1 is untouched */
    assert_int_equal(draw(&p, &history, 0, logits).token, 1);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.04f; /* twice: 4.02, still above */
    assert_int_equal(draw(&p, &history, 0, logits).token, 2);
    p.frequency_penalty = 0.06f; /* 3.98 */
    assert_int_equal(draw(&p, &history, 0, logits).token, 1);
    p.frequency_penalty = 0;
    p.repetition_penalty = 1.5f; /* prompt and output: 2.67, 2.73 */
    assert_int_equal(draw(&p, &history, 0, logits).token, 3);
    token_history_clear(&history);
    assert_int_equal(draw(&p, &history, 0, logits).token, 2);
    token_history_done(&history);
}

static void logprobs_are_of_the_raw_distribution(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill_logits(logits);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(logits[i]);
    struct sampling_params p = sampling_params_default();
    struct logit_bias bias = {.token = 7, .bias = 50};
    p.biases = &bias;
    p.n_biases = 1;
    p.n_logprobs = 3;
    struct sample s = draw(&p, NULL, 0, logits);
    assert_int_equal(s.token, 7);
    assert_true(fabs(s.logprob - (logits[7] - log(sum))) < 1e-5);
    assert_int_equal(s.n_top, 3);
    for (int k = 0; k < 3; k++) {
        assert_true(fabs(s.top[k].logprob - (logits[s.top[k].token] - log(sum))) < 1e-5);
        int n_above = 0;
        for (int i = 0; i < VOCAB; i++)
            n_above += logits[i] > logits[s.top[k].token];
        assert_int_equal(n_above, k);
    }
}

static void refuses_values_out_of_range_by_name(void **state)
{
    (void)state;
    struct error error;
    struct sampling_params p = sampling_params_default();
    assert_int_equal(sampling_params_check(&p, VOCAB, &error), OK);
    p.temperature = -1;
    assert_int_equal(sampling_params_check(&p, VOCAB, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "temperature"));
    p = sampling_params_default();
    p.top_p = NAN;
    assert_int_equal(sampling_params_check(&p, VOCAB, &error), ERROR_INVALID);
    struct logit_bias bias = {.token = VOCAB, .bias = 1};
    p = sampling_params_default();
    p.biases = &bias;
    p.n_biases = 1;
    assert_int_equal(sampling_params_check(&p, VOCAB, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "logit_bias"));
}

static void logits_without_a_number_are_an_error(void **state)
{
    (void)state;
    struct sampler sampler;
    struct sample sample;
    struct error error;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = NAN;
    struct sampling_params p = sampling_params_default();
    assert_int_equal(sampler_init(&sampler, VOCAB, NULL), OK);
    assert_int_equal(sampler_draw(&sampler, &p, NULL, 0, logits, &sample, &error), ERROR_INVALID);
    logits[4] = INFINITY;
    assert_int_equal(sampler_draw(&sampler, &p, NULL, 0, logits, &sample, &error), ERROR_INVALID);
    sampler_done(&sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_from_the_described_distribution),
        cmocka_unit_test(same_seed_and_position_give_the_same_token),
        cmocka_unit_test(greedy_takes_the_first_of_equals_and_ignores_nan),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(logprobs_are_of_the_raw_distribution),
        cmocka_unit_test(refuses_values_out_of_range_by_name),
        cmocka_unit_test(logits_without_a_number_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
