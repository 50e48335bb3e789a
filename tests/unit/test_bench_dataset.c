/* Datasets: lengths, seeds, shared beginnings, ShareGPT's JSON. */
#include "base/str.h"
#include "bench/dataset.h"
#include "bench/sharegpt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dataset_options random_options(void)
{
    return (struct dataset_options){.kind = DATASET_RANDOM,
                                    .n_prompts = 200,
                                    .seed = 5,
                                    .vocab_size = 100,
                                    .input_len = 40,
                                    .output_len = 20,
                                    .range_ratio = 0.5};
}

static void random_lengths_and_ids_are_within_their_bounds(void **state)
{
    (void)state;
    struct dataset d;
    struct dataset_options o = random_options();
    int shortest = 1000, longest = 0;
    assert_int_equal(dataset_make(&d, &o, NULL), OK);
    assert_int_equal(d.n, 200);
    for (int i = 0; i < d.n; i++) {
        const struct bench_prompt *p = &d.prompts[i];
        shortest = p->n_ids < shortest ? p->n_ids : shortest;
        longest = p->n_ids > longest ? p->n_ids : longest;
        assert_true(p->output_len >= 10 && p->output_len <= 20);
        for (int k = 0; k < p->n_ids; k++)
            assert_true(p->ids[k] >= 0 && p->ids[k] < 100);
    }
    assert_int_equal(shortest, 20);
    assert_int_equal(longest, 40);
    dataset_done(&d);
}

static void a_seed_repeats_a_dataset_and_another_does_not(void **state)
{
    (void)state;
    struct dataset a, b, c;
    struct dataset_options o = random_options();
    o.range_ratio = 1.0;
    assert_int_equal(dataset_make(&a, &o, NULL), OK);
    assert_int_equal(dataset_make(&b, &o, NULL), OK);
    o.seed = 6;
    assert_int_equal(dataset_make(&c, &o, NULL), OK);
    assert_memory_equal(a.prompts[7].ids, b.prompts[7].ids, 40 * sizeof(int32_t));
    assert_memory_not_equal(a.prompts[7].ids, c.prompts[7].ids, 40 * sizeof(int32_t));
    dataset_done(&a);
    dataset_done(&b);
    dataset_done(&c);
}

static void groups_share_their_beginning_alone(void **state)
{
    (void)state;
    struct dataset d;
    struct dataset_options o = {.kind = DATASET_SHARED_PREFIX,
                                .n_prompts = 6,
                                .seed = 1,
                                .vocab_size = 1000,
                                .output_len = 3,
                                .n_groups = 2,
                                .prefix_len = 32,
                                .question_len = 8};
    assert_int_equal(dataset_make(&d, &o, NULL), OK);
    const struct bench_prompt *p = d.prompts;
    assert_int_equal(p[0].n_ids, 40);
    assert_memory_equal(p[0].ids, p[2].ids, 32 * sizeof(int32_t));
    assert_memory_not_equal(p[0].ids, p[1].ids, 32 * sizeof(int32_t));
    assert_memory_not_equal(p[0].ids + 32, p[2].ids + 32, 8 * sizeof(int32_t));
    dataset_done(&d);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    struct dataset d;
    struct error error;
    struct dataset_options o = random_options();
    o.n_prompts = 0;
    assert_int_equal(dataset_make(&d, &o, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "--num-prompts"));
    o = random_options();
    o.kind = DATASET_SHAREGPT;
    assert_int_equal(dataset_make(&d, &o, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "--dataset-path"));
}

/* --- ShareGPT --------------------------------------------------------------------------------- */

static const char conversations[] =
    "[{\"id\": \"x\", \"conversations\": ["
    "{\"from\": \"human\", \"value\": \"What is the capital of France? \\u00e9\"},"
    "{\"from\": \"gpt\", \"value\": \"It is Paris, as every child knows.\"},"
    "{\"from\": \"human\", \"value\": \"ignored\"}]},"
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"alone, without an answer to it\"}]},"
    "{\"conversations\": [{\"value\": \"hi\"}, {\"value\": \"an answer to a prompt too short\"}]},"
    "{\"other\": [1, {\"a\": null}], \"conversations\": ["
    "{\"value\": \"Another question of some length?\"}, {\"value\": \"And its answer, "
    "longer.\"}]}]";

static enum status parse(struct dataset *d, const struct dataset_options *o, const char *text,
                         struct error *error)
{
    *d = (struct dataset){.prompts = calloc((size_t)o->n_prompts, sizeof *d->prompts)};
    return sharegpt_parse(d, o, text, strlen(text), error);
}

static void sharegpt_takes_first_messages_with_answers(void **state)
{
    (void)state;
    struct dataset d;
    struct dataset_options o = {.kind = DATASET_SHAREGPT, .n_prompts = 10, .seed = 1};
    assert_int_equal(parse(&d, &o, conversations, NULL), OK);
    assert_int_equal(d.n, 2);
    assert_string_equal(d.prompts[0].text, "What is the capital of France? \xc3\xa9");
    assert_int_equal(d.prompts[0].output_len, 8);
    assert_string_equal(d.prompts[1].text, "Another question of some length?");
    dataset_done(&d);
}

static void text_that_is_no_json_is_refused_without_a_place_for_the_sentence(void **state)
{
    (void)state;
    struct dataset d;
    struct dataset_options o = {.kind = DATASET_SHAREGPT, .n_prompts = 10};
    static const char *const texts[] = {"data: x", "[", "[{", "[{\"conversations\": [{", "{}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(parse(&d, &o, texts[i], NULL), ERROR_INVALID);
        dataset_done(&d);
    }
}

static int32_t encode_bytes(void *context, const char *text, size_t len, int32_t *ids, int32_t cap)
{
    (*(int *)context)++;
    for (size_t i = 0; i < len && i < (size_t)cap; i++)
        ids[i] = (unsigned char)text[i];
    return (int32_t)(len < (size_t)cap ? len : (size_t)cap);
}

static void sharegpt_is_encoded_when_somebody_can(void **state)
{
    (void)state;
    struct dataset d;
    int n_calls = 0;
    struct dataset_options o = {.kind = DATASET_SHAREGPT,
                                .n_prompts = 10,
                                .seed = 1,
                                .encode = encode_bytes,
                                .encode_context = &n_calls};
    assert_int_equal(parse(&d, &o, conversations, NULL), OK);
    assert_int_equal(d.prompts[0].n_ids, 33);
    assert_int_equal(d.prompts[0].ids[0], 'W');
    assert_int_equal(d.prompts[0].output_len, 34);
    assert_true(n_calls >= 4);
    dataset_done(&d);
}

static void a_sample_has_as_many_as_were_asked_for(void **state)
{
    (void)state;
    struct str text = {0};
    struct dataset d;
    struct dataset_options o = {.kind = DATASET_SHAREGPT, .n_prompts = 5, .seed = 3};
    bool has_late = false;
    for (int i = 0; i < 500; i++)
        str_printf(&text,
                   "%s{\"conversations\": [{\"value\": \"question number %d, is it?\"}, "
                   "{\"value\": \"an answer that is long enough\"}]}",
                   i ? "," : "[", i);
    str_append_z(&text, "]");
    assert_int_equal(parse(&d, &o, str_z(&text), NULL), OK);
    assert_int_equal(d.n, 5);
    for (int i = 0; i < d.n; i++)
        has_late |= atoi(strpbrk(d.prompts[i].text, "0123456789")) > 4;
    assert_true(has_late);
    dataset_done(&d);
    str_done(&text);
}

static void text_that_is_no_sharegpt_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{}",
                                        "[]",
                                        "[1]",
                                        "[{\"conversations\": [1]}]",
                                        "[{\"conversations\": [{\"value\": \"cut",
                                        "[{\"conversations\": \"text\"}]"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct dataset d;
        struct error error = {0};
        struct dataset_options o = {.kind = DATASET_SHAREGPT, .n_prompts = 2};
        assert_int_equal(parse(&d, &o, texts[i], &error), ERROR_INVALID);
        assert_true(error.message[0]);
        dataset_done(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lengths_and_ids_are_within_their_bounds),
        cmocka_unit_test(a_seed_repeats_a_dataset_and_another_does_not),
        cmocka_unit_test(groups_share_their_beginning_alone),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(text_that_is_no_json_is_refused_without_a_place_for_the_sentence),
        cmocka_unit_test(sharegpt_takes_first_messages_with_answers),
        cmocka_unit_test(sharegpt_is_encoded_when_somebody_can),
        cmocka_unit_test(a_sample_has_as_many_as_were_asked_for),
        cmocka_unit_test(text_that_is_no_sharegpt_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
