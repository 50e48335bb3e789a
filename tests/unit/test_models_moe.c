/* Configurations of mixtures of experts: which layers are sparse, what is refused. */
#include "models/decoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

extern const struct model_family qwen2_moe_family, qwen3_moe_family;

/* The keys that all these tests need; what a test says behind them counts. */
static const char *const keys =
    "\"num_hidden_layers\": 6, \"hidden_size\": 64, \"intermediate_size\": 96, \"vocab_size\": 32, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_experts\": 8, "
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
    "\"shared_expert_intermediate_size\": 40";

static enum status parse(const char *more, struct arena *arena, struct json *out,
                         struct error *error)
{
    char text[2048];
    snprintf(text, sizeof text, "{%s%s%s}", keys, *more ? ", " : "", more);
    return json_parse(arena, text, strlen(text), out, error);
}

static enum status configure(const struct model_family *family, const char *more, int n_ranks,
                             struct error *error)
{
    struct arena arena = {0};
    struct json json;
    struct comm comm = {.n_ranks = n_ranks};
    struct model *model = NULL;
    assert_int_equal(parse(more, &arena, &json, error), OK);
    enum status status = family->configure(&json, &comm, &model, error);
    arena_done(&arena);
    if (status == OK)
        family->free(model);
    else
        assert_null(model);
    return status;
}

static void layers_are_sparse_by_step_and_list(void **unused)
{
    (void)unused;
    static const struct {
        const char *more, *sparse; /* a letter a layer */
    } cases[] = {
        {"", "ssssss"},
        {"\"decoder_sparse_step\": 2", "-s-s-s"},
        {"\"decoder_sparse_step\": 4", "---s--"},
        {"\"decoder_sparse_step\": 7", "------"},
        {"\"mlp_only_layers\": [0, 5, 5]", "-ssss-"},
        {"\"mlp_only_layers\": [1], \"decoder_sparse_step\": 2", "---s-s"},
        {"\"mlp_only_layers\": null", "ssssss"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct json json;
        struct error error;
        bool is_sparse[6];
        assert_int_equal(parse(cases[i].more, &arena, &json, &error), OK);
        assert_int_equal(moe_read_layers(&json, 6, is_sparse, &error), OK);
        for (int layer = 0; layer < 6; layer++)
            assert_int_equal(is_sparse[layer], cases[i].sparse[layer] == 's');
        arena_done(&arena);
        assert_int_equal(configure(&qwen2_moe_family, cases[i].more, 1, &error), OK);
        assert_int_equal(configure(&qwen3_moe_family, cases[i].more, 2, &error), OK);
    }
}

static void the_newer_name_of_the_number_of_experts_is_read(void **unused)
{
    (void)unused;
    struct arena arena = {0};
    struct json json;
    struct error error;
    struct moe_config c = {.n_experts = 128, .top_k = 8, .intermediate = 768};
    static const char text[] = "{\"num_local_experts\": 5, \"num_experts_per_tok\": 3, "
                               "\"norm_topk_prob\": true}";
    assert_int_equal(json_parse(&arena, text, sizeof text - 1, &json, &error), OK);
    assert_int_equal(moe_config_read(&json, &c, &error), OK);
    assert_true(c.n_experts == 5 && c.top_k == 3 && c.intermediate == 768 && c.is_normalised);
    arena_done(&arena);
}

static void contradictions_are_refused_with_a_sentence(void **unused)
{
    (void)unused;
    static const struct {
        const char *more;
        int n_ranks;
        const char *words;
    } cases[] = {
        {"\"num_experts_per_tok\": 9", 1, "num_experts_per_tok is 9; it must be at most"},
        {"\"num_experts_per_tok\": 0", 1, "\"num_experts_per_tok\" must be a whole number"},
        {"\"num_experts\": 5000", 1, "\"num_experts\" must be a whole number from 1 to 4096"},
        {"\"num_experts\": \"8\"", 1, "\"num_experts\" must be"},
        {"\"moe_intermediate_size\": -1", 1, "\"moe_intermediate_size\" must be"},
        {"\"shared_expert_intermediate_size\": 0", 1, "\"shared_expert_intermediate_size\" must"},
        {"\"decoder_sparse_step\": 0", 1, "\"decoder_sparse_step\" must be"},
        {"\"mlp_only_layers\": [6]", 1,
         "entry 0 of \"mlp_only_layers\" must be a layer from 0 to 5"},
        {"\"mlp_only_layers\": [0, true]", 1, "entry 1 of \"mlp_only_layers\""},
        {"\"mlp_only_layers\": 3", 1, "\"mlp_only_layers\" must be a list"},
        {"\"moe_intermediate_size\": 25", 2, "25 of an expert) cannot be split over 2 ranks"},
        {"\"shared_expert_intermediate_size\": 41", 2, "cannot be split over 2 ranks"},
        {"\"hidden_act\": \"gelu\"", 1, "activation \"gelu\" is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        assert_int_not_equal(configure(&qwen2_moe_family, cases[i].more, cases[i].n_ranks, &error),
                             OK);
        if (!strstr(error.message, cases[i].words))
            fail_msg("%s: %s", cases[i].more, error.message);
    }
}

static void quantizing_leaves_routers_and_lets_the_loader_do_fused_stacks(void **unused)
{
    (void)unused;
    struct checkpoint *c;
    struct error error = {0};
    struct weight w;
    const char *single = SOURCE_DIR "/tests/models/qwen2_moe_top4";
    assert_int_equal(checkpoint_open(&c, single, &error), OK);
    assert_int_equal(checkpoint_quantize(c, 4, 32, &error), OK);
    assert_int_equal(checkpoint_weight(c, "model.layers.0.mlp.gate.weight", &w, &error), OK);
    assert_true(weight_is_float(&w));
    assert_int_equal(
        checkpoint_weight(c, "model.layers.0.mlp.experts.6.up_proj.weight", &w, &error), OK);
    assert_false(weight_is_float(&w));
    checkpoint_free(c);
    const char *stacks = SOURCE_DIR "/tests/models/qwen3_moe_top10";
    assert_int_equal(checkpoint_open(&c, stacks, &error), OK);
    assert_int_equal(checkpoint_quantize(c, 4, 32, &error), OK);
    assert_int_equal(
        checkpoint_weight(c, "model.layers.0.mlp.switch_mlp.up_proj.weight", &w, &error), OK);
    assert_false(weight_is_float(&w));
    checkpoint_free(c);
    const char *fused = SOURCE_DIR "/tests/models/qwen2_moe_top1_tied";
    assert_int_equal(checkpoint_open(&c, fused, &error), OK);
    assert_int_equal(checkpoint_quantize(c, 4, 32, &error), OK);
    assert_int_equal(checkpoint_weight(c, "model.layers.1.mlp.experts.gate_up_proj", &w, &error),
                     OK);
    assert_true(weight_is_float(&w));
    checkpoint_quantize_floats(c, &w);
    assert_true(w.encoding == WEIGHT_AFFINE && w.levels.bits == 4 && w.levels.group == 32);
    /* 24 columns are no whole groups. */
    assert_int_equal(checkpoint_weight(c, "model.layers.1.mlp.experts.down_proj", &w, &error), OK);
    checkpoint_quantize_floats(c, &w);
    assert_true(weight_is_float(&w));
    checkpoint_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_sparse_by_step_and_list),
        cmocka_unit_test(the_newer_name_of_the_number_of_experts_is_read),
        cmocka_unit_test(contradictions_are_refused_with_a_sentence),
        cmocka_unit_test(quantizing_leaves_routers_and_lets_the_loader_do_fused_stacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
