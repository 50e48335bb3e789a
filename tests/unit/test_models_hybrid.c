/* Configurations of models with gated delta nets: where the keys are found, what a sequence keeps,
 * what is refused. */
#include "models/decoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

extern const struct model_family qwen3_5_family, qwen3_next_family;

/* The keys that all these tests need; what a test says behind them counts. */
static const char *const keys =
    "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"intermediate_size\": 64, \"vocab_size\": 32, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, "
    "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 6, \"linear_key_head_dim\": 16, "
    "\"linear_value_head_dim\": 8, \"linear_conv_kernel_dim\": 4";

/* Configures from `format` with the keys above in the place of its %s. */
static enum status configure(const struct model_family *family, const char *format, int n_ranks,
                             struct model **out, struct error *error)
{
    char text[2048];
    struct arena arena = {0};
    struct json json;
    struct comm comm = {.n_ranks = n_ranks};
    size_t before = (size_t)(strstr(format, "%s") - format);
    snprintf(text, sizeof text, "%.*s%s%s", (int)before, format, keys, format + before + 2);
    assert_int_equal(json_parse(&arena, text, strlen(text), &json, error), OK);
    enum status status = family->configure(&json, &comm, out, error);
    arena_done(&arena);
    return status;
}

static void keys_are_found_under_text_config(void **state)
{
    (void)state;
    static const char *const formats[] = {
        "{%s}",
        "{\"tie_word_embeddings\": false, \"vision_config\": {\"hidden_size\": 7}, "
        "\"text_config\": {%s}}",
    };
    for (int i = 0; i < 2; i++) {
        struct model *model;
        struct error error;
        assert_int_equal(configure(&qwen3_5_family, formats[i], 1, &model, &error), OK);
        assert_int_equal(model->hidden, 64);
        assert_int_equal(model->n_kv_groups, 1);
        assert_int_equal(model->kv_groups[0].n_layers, 1);
        qwen3_5_family.free(model);
    }
}

static void a_rank_keeps_the_states_of_its_heads(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct model *model;
        struct error error;
        assert_int_equal(configure(&qwen3_5_family, "{%s}", n_ranks, &model, &error), OK);
        const struct state_layout *s = &model->states;
        assert_int_equal(s->n_layers, 3);
        assert_int_equal(s->n_v_heads, 6 / n_ranks);
        assert_int_equal(s->k_dim, 16);
        assert_int_equal(s->v_dim, 8);
        assert_int_equal(s->conv_channels, (2 * 2 * 16 + 6 * 8) / n_ranks);
        assert_int_equal(s->conv_rows, 3);
        qwen3_5_family.free(model);
    }
}

static void what_cannot_be_run_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *format;
        int n_ranks;
        const char *says;
    } cases[] = {
        {"{%s, \"linear_num_value_heads\": 5}", 1, "5 linear value heads are not a multiple of 2"},
        {"{%s, \"linear_conv_kernel_dim\": 1}", 1, "\"linear_conv_kernel_dim\" is 1; 2 to 16"},
        {"{%s, \"linear_key_head_dim\": 2048}", 1, "\"linear_key_head_dim\""},
        {"{%s, \"layer_types\": [\"linear_attention\"]}", 1, "a list of 4 entries"},
        {"{%s, \"layer_types\": [\"linear_attention\", \"mamba\", \"mamba\", \"mamba\"]}", 1,
         "layer type \"mamba\" of layer 1"},
        {"{%s, \"full_attention_interval\": 1}", 1, "0 of 4 layers are linear attention"},
        {"{%s, \"full_attention_interval\": 9}", 1, "4 of 4 layers are linear attention"},
        {"{%s, \"linear_num_key_heads\": 3}", 2, "3 linear key heads cannot be split over 2 ranks"},
        {"{%s, \"linear_value_heads_tiled\": true}", 2, "a GGUF's order of 6 value heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model *model = NULL;
        struct error error = {0};
        enum status status =
            configure(&qwen3_5_family, cases[i].format, cases[i].n_ranks, &model, &error);
        assert_true(status == ERROR_INVALID || status == ERROR_UNSUPPORTED);
        if (!strstr(error.message, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", error.message, cases[i].says);
    }
}

static void a_dense_layer_needs_its_intermediate_size(void **state)
{
    (void)state;
    struct model *model;
    struct error error = {0};
    assert_int_equal(configure(&qwen3_next_family,
                               "{%s, \"intermediate_size\": null, \"mlp_only_layers\": [2]}", 1,
                               &model, &error),
                     ERROR_INVALID);
    assert_non_null(strstr(error.message, "\"intermediate_size\", which layer 2 needs"));
    assert_int_equal(
        configure(&qwen3_next_family, "{%s, \"intermediate_size\": null}", 1, &model, &error), OK);
    qwen3_next_family.free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_found_under_text_config),
        cmocka_unit_test(a_rank_keeps_the_states_of_its_heads),
        cmocka_unit_test(what_cannot_be_run_is_refused_with_a_sentence),
        cmocka_unit_test(a_dense_layer_needs_its_intermediate_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
