/* Configurations of gpt-oss and Hunyuan: which layers share pages and which have none, what is
 * refused. */
#include "models/decoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

extern const struct model_family gpt_oss_family, hunyuan_dense_family, hunyuan_moe_family;

/* Configures from the keys that all families need and those of a test. */
static enum status configure(const struct model_family *family, const char *more, int n_ranks,
                             struct model **out, struct error *error)
{
    static const char *const keys =
        "\"num_hidden_layers\": 6, \"hidden_size\": 64, \"vocab_size\": 32, "
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32";
    char text[2048];
    struct arena arena = {0};
    struct json json;
    struct comm comm = {.n_ranks = n_ranks};
    snprintf(text, sizeof text, "{%s%s%s}", keys, *more ? ", " : "", more);
    assert_int_equal(json_parse(&arena, text, strlen(text), &json, error), OK);
    enum status status = family->configure(&json, &comm, out, error);
    arena_done(&arena);
    return status;
}

static void expect_groups(const struct model_family *family, const char *more, int32_t n_full,
                          int32_t n_sliding, int32_t window)
{
    struct model *model;
    struct error error = {0};
    if (configure(family, more, 1, &model, &error) != OK)
        fail_msg("%s", error.message);
    int32_t g = 0;
    if (n_full) {
        assert_int_equal(model->kv_groups[g].n_layers, n_full);
        assert_int_equal(model->kv_groups[g++].window, 0);
    }
    if (n_sliding) {
        assert_int_equal(model->kv_groups[g].n_layers, n_sliding);
        assert_int_equal(model->kv_groups[g++].window, window);
    }
    assert_int_equal(model->n_kv_groups, g);
    family->free(model);
}

static void layers_slide_in_turn_or_as_layer_types_say(void **state)
{
    (void)state;
    expect_groups(&gpt_oss_family, "\"intermediate_size\": 32", 3, 3, 128);
    expect_groups(&gpt_oss_family,
                  "\"intermediate_size\": 32, \"sliding_window\": 7, \"layer_types\": "
                  "[\"full_attention\", \"full_attention\", \"full_attention\", "
                  "\"full_attention\", \"sliding_attention\", \"full_attention\"]",
                  5, 1, 7);
}

static void layers_that_share_keys_and_values_have_no_pages(void **state)
{
    (void)state;
    expect_groups(&hunyuan_moe_family, "\"intermediate_size\": 32", 6, 0, 0);
    expect_groups(&hunyuan_moe_family, "\"intermediate_size\": 32, \"use_cla\": true", 3, 0, 0);
    expect_groups(&hunyuan_moe_family,
                  "\"intermediate_size\": 32, \"use_cla\": true, \"cla_share_factor\": 4", 2, 0, 0);
}

static void what_cannot_be_run_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const struct model_family *family;
        const char *more;
        int n_ranks;
        const char *says;
    } cases[] = {
        {&gpt_oss_family, "", 1, "\"intermediate_size\""},
        {&gpt_oss_family, "\"intermediate_size\": 32, \"num_local_experts\": 2", 1,
         "num_experts_per_tok is 4; it must be at most num_local_experts, 2"},
        {&gpt_oss_family, "\"intermediate_size\": 32, \"layer_types\": [\"full_attention\"]", 1,
         "a list of 6 entries"},
        {&gpt_oss_family, "\"intermediate_size\": 32, \"sliding_window\": 0", 1,
         "\"sliding_window\" must be a whole number from 1"},
        {&gpt_oss_family, "\"intermediate_size\": 32, \"swiglu_limit\": -7", 1,
         "\"swiglu_limit\" must be a positive number"},
        {&gpt_oss_family, "\"intermediate_size\": 33", 2, "33 of an expert"},
        {&hunyuan_dense_family, "", 1, "\"intermediate_size\""},
        {&hunyuan_dense_family,
         "\"intermediate_size\": 32, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", 1,
         "rope type \"dynamic\" is not supported"},
        {&hunyuan_dense_family,
         "\"intermediate_size\": 32, \"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": -1}", 1,
         "the rope alpha is -1"},
        {&hunyuan_moe_family,
         "\"intermediate_size\": 32, \"num_experts\": 4, \"moe_topk\": [1, 2, 3, 4, 5, 1]", 1,
         "moe_topk is 5 in layer 4; it must be at most num_experts, 4"},
        {&hunyuan_moe_family, "\"intermediate_size\": 32, \"num_experts\": [4, 4]", 1,
         "one for each of 6 layers"},
        {&hunyuan_moe_family,
         "\"intermediate_size\": 32, \"num_experts\": 4, \"num_shared_expert\": 1000000", 1,
         "\"num_shared_expert\""},
        {&hunyuan_moe_family,
         "\"intermediate_size\": 32, \"num_experts\": 4, \"moe_intermediate_size\": [32, 32, 32, "
         "31, 32, 32]",
         2, "31 of an expert"},
        {&hunyuan_moe_family,
         "\"intermediate_size\": 32, \"use_cla\": true, \"cla_share_factor\": 0", 1,
         "\"cla_share_factor\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model *model = NULL;
        struct error error = {0};
        enum status status =
            configure(cases[i].family, cases[i].more, cases[i].n_ranks, &model, &error);
        if (status != ERROR_INVALID && status != ERROR_UNSUPPORTED)
            fail_msg("%s gives status %d", cases[i].more, (int)status);
        if (!strstr(error.message, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", error.message, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_slide_in_turn_or_as_layer_types_say),
        cmocka_unit_test(layers_that_share_keys_and_values_have_no_pages),
        cmocka_unit_test(what_cannot_be_run_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
