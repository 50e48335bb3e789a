/* The sampler draws from the distribution that the parameters describe, the same for the same seed.
 */
#include "device/cpu/cpu.h"
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

/* A sampler on the CPU, and a row of logits in its memory. */
struct bench {
    struct device *device;
    struct sampler sampler;
    struct buffer logits;
    struct tensor row;
};

static void bench_init(struct bench *b)
{
    struct cpu_options options = {.n_threads = 1, .isa = cpu_isa_best()};
    assert_int_equal(cpu_device_open(&b->device, &options, NULL), OK);
    assert_int_equal(sampler_init(&b->sampler, b->device, VOCAB, 1, NULL), OK);
    assert_int_equal(
        b->device->table->buffer_alloc(b->device, VOCAB * sizeof(float), &b->logits, NULL), OK);
    b->row = (struct tensor){&b->logits, 0, DTYPE_F32, 1, VOCAB, VOCAB};
}

static void bench_done(struct bench *b)
{
    b->device->table->buffer_free(b->device, &b->logits);
    sampler_done(&b->sampler);
    b->device->table->close(b->device);
}

static struct sample bench_draw(struct bench *b, const struct draw *draw, const float *logits)
{
    struct sample sample;
    b->device->table->buffer_write(b->device, &b->logits, 0, logits, VOCAB * sizeof(float), NULL);
    assert_int_equal(sampler_prepare(&b->sampler, draw, 1, NULL), OK);
    assert_int_equal(sampler_queue(&b->sampler, b->device, &b->row, NULL), OK);
    assert_int_equal(sampler_take(&b->sampler, &sample, NULL), OK);
    return sample;
}

static struct sample draw_from(const struct draw *draw, const float *logits)
{
    struct bench b;
    bench_init(&b);
    struct sample sample = bench_draw(&b, draw, logits);
    bench_done(&b);
    return sample;
}

static struct sample draw(const struct sampling_params *p, const struct token_history *history,
                          int64_t position, const float *logits)
{
    return draw_from(&(struct draw){.params = p, .history = history, .position = position}, logits);
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
    struct bench b;
    bench_init(&b);
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
            struct draw one = {.params = &p, .position = i};
            n_seen[bench_draw(&b, &one, logits).token]++;
        }
        for (int i = 0; i < VOCAB; i++) {
            /* Five standard deviations of a binomial count. */
            double spread = 5 * sqrt(want[i] * (1 - want[i]) / DRAWS) + 1e-9;
            assert_true(fabs((double)n_seen[i] / DRAWS - want[i]) <= spread);
        }
    }
    bench_done(&b);
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

static void logits_without_a_number_give_no_token(void **state)
{
    (void)state;
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = NAN;
    struct sampling_params p = sampling_params_default();
    assert_int_equal(draw(&p, NULL, 0, logits).token, -1);
    p.temperature = 1;
    p.n_logprobs = 2;
    assert_int_equal(draw(&p, NULL, 0, logits).token, -1);
    logits[4] = INFINITY;
    assert_int_equal(draw(&p, NULL, 0, logits).token, -1);
}

static void banned_tokens_and_the_vocabularys_padding_are_not_drawn(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill_logits(logits);
    logits[5] = 40;
    logits[6] = 30;
    struct sampling_params p = sampling_params_default();
    int32_t banned[] = {5, VOCAB + 3};
    struct logit_bias bias = {.token = VOCAB + 3, .bias = 100};
    struct draw one = {.params = &p, .banned = banned, .n_banned = 2};
    p.biases = &bias;
    p.n_biases = 1;
    assert_int_equal(draw_from(&one, logits).token, 6);
}

static void a_given_token_is_not_drawn_and_has_its_logprob(void **state)
{
    (void)state;
    float logits[VOCAB];
    fill_logits(logits);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(logits[i]);
    struct sampling_params p = sampling_params_default();
    p.n_logprobs = 1;
    struct sample s = draw_from(&(struct draw){.params = &p, .is_given = true, .given = 9}, logits);
    assert_int_equal(s.token, 9);
    assert_true(fabs(s.logprob - (logits[9] - log(sum))) < 1e-5);
    assert_int_equal(s.n_top, 1);
}

/* Sixteen rows whose edits do not fit on the device together are drawn as one by one. */
static void rows_whose_edits_do_not_fit_together_are_drawn_as_alone(void **state)
{
    (void)state;
    enum { ROWS = 16 };
    struct bench b;
    struct sampler many;
    struct buffer memory;
    struct token_history histories[ROWS];
    struct sampling_params params[ROWS];
    struct draw draws[ROWS];
    struct sample samples[ROWS];
    float logits[ROWS][VOCAB];
    bench_init(&b);
    assert_int_equal(sampler_init(&many, b.device, VOCAB, ROWS, NULL), OK);
    assert_int_equal(b.device->table->buffer_alloc(b.device, sizeof logits, &memory, NULL), OK);
    for (int i = 0; i < ROWS; i++) {
        fill_logits(logits[i]);
        logits[i][i] += 3;
        assert_int_equal(token_history_init(&histories[i], VOCAB, NULL), OK);
        for (int k = 0; k < 5 * i; k++)
            token_history_add(&histories[i], k * 7 % VOCAB, k % 2);
        params[i] = sampling_params_default();
        params[i].temperature = i % 3 ? 0.8f : 0;
        params[i].presence_penalty = 0.7f;
        params[i].repetition_penalty = 1.2f;
        params[i].n_logprobs = i % 4 - 1;
        draws[i] = (struct draw){.params = &params[i], .history = &histories[i], .position = i};
    }
    b.device->table->buffer_write(b.device, &memory, 0, logits, sizeof logits, NULL);
    struct tensor rows = {&memory, 0, DTYPE_F32, ROWS, VOCAB, VOCAB};
    assert_int_equal(sampler_prepare(&many, draws, ROWS, NULL), OK);
    assert_true(many.end < ROWS);
    assert_int_equal(sampler_queue(&many, b.device, &rows, NULL), OK);
    assert_int_equal(sampler_take(&many, samples, NULL), OK);
    for (int i = 0; i < ROWS; i++) {
        struct sample alone = bench_draw(&b, &draws[i], logits[i]);
        assert_int_equal(samples[i].token, alone.token);
        assert_true(samples[i].logprob == alone.logprob);
        assert_int_equal(samples[i].n_top, i % 4 > 0 ? i % 4 - 1 : 0);
        for (int k = 0; k < samples[i].n_top; k++)
            assert_int_equal(samples[i].top[k].token, alone.top[k].token);
        token_history_done(&histories[i]);
    }
    b.device->table->buffer_free(b.device, &memory);
    sampler_done(&many);
    bench_done(&b);
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
        cmocka_unit_test(logits_without_a_number_give_no_token),
        cmocka_unit_test(banned_tokens_and_the_vocabularys_padding_are_not_drawn),
        cmocka_unit_test(a_given_token_is_not_drawn_and_has_its_logprob),
        cmocka_unit_test(rows_whose_edits_do_not_fit_together_are_drawn_as_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
