/* GGUF files as they should be: names, row order, configuration, vocabulary. */
#include "unit/gguf_files.h"

/* Rows or elements are 0, 1, 2, ... */
static void expect_counting(const struct checkpoint *c, const char *name, int64_t rows,
                            int64_t cols)
{
    struct weight w;
    struct error error = {0};
    if (checkpoint_weight(c, name, &w, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_equal(w.rows, rows);
    assert_int_equal(w.cols, cols);
    float values[16];
    for (int64_t r = 0; r < rows; r++) {
        weight_row_dequantize(&w, r, values);
        for (int64_t i = 0; i < cols; i++)
            assert_true(values[i] == (float)(r * cols + i));
    }
}

static void a_llama_is_read_under_hugging_face_names_and_order(void **state)
{
    (void)state;
    struct str file = small_llama();
    struct test_folder folder;
    folder_make(&folder);
    folder_write(&folder, "m.gguf", file.data, file.len);
    struct checkpoint *c = expect_open(folder_file(&folder, "m.gguf"));
    assert_true(checkpoint_is_gguf(c));
    expect_counting(c, "model.embed_tokens.weight", 6, 1);
    expect_counting(c, "model.layers.0.self_attn.q_proj.weight", 8, 1);
    expect_counting(c, "model.layers.0.self_attn.k_proj.weight", 4, 1);
    expect_counting(c, "model.layers.0.self_attn.v_proj.weight", 4, 1);
    expect_counting(c, "model.layers.0.self_attn.q_proj.bias", 1, 8);
    expect_counting(c, "model.layers.0.self_attn.k_proj.bias", 1, 4);
    struct weight w;
    struct error error;
    assert_int_equal(checkpoint_weight(c, "rope_freqs.weight", &w, &error), OK);
    assert_int_equal(w.cols, 2);
    assert_int_equal(checkpoint_weight(c, "model.layers.0.self_attn.q_proj.weight", &w, &error),
                     OK);
    assert_int_equal(w.rope_head_dim, 4);
    assert_int_equal(checkpoint_weight(c, "model.layers.0.self_attn.v_proj.weight", &w, &error),
                     OK);
    assert_int_equal(w.rope_head_dim, 0);
    assert_false(checkpoint_has(c, "token_embd.weight"));
    assert_int_equal(checkpoint_bytes(c), (6 + 8 + 4 + 4 + 8 + 4 + 2) * 4);
    checkpoint_release(c, &w);
    expect_config(checkpoint_config(c),
                  "{\"model_type\": \"llama\", \"vocab_size\": 6, \"num_hidden_layers\": 1, "
                  "\"max_position_embeddings\": 2048, \"hidden_size\": 8, \"intermediate_size\": "
                  "16, \"num_attention_heads\": 2, \"rms_norm_eps\": 1e-05, "
                  "\"num_key_value_heads\": 1, \"head_dim\": 4, \"rope_theta\": 1e+06, "
                  "\"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": false, "
                  "\"bos_token_id\": 1, \"eos_token_id\": 0}");
    expect_config(checkpoint_generation_config(c), "{\"bos_token_id\": 1, \"eos_token_id\": 0}");
    checkpoint_free(c);
    folder_remove(&folder);
    str_done(&file);
}

static void other_architectures_keep_their_row_order(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "qwen3", "unheard-of"};
    for (int i = 0; i < 3; i++) {
        static const float counting[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        static const char *const modules[][2] = {
            {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
            {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
            {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
            {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"},
            {"blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
            {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"},
            {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
            {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"},
            {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
            {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
            {"output_norm.weight", "model.norm.weight"},
            {"output.weight", "lm_head.weight"},
            {"blk.x.ffn_up.weight", "blk.x.ffn_up.weight"},
            {"blk.0.something", "blk.0.something"},
        };
        struct gguf_file f = {0};
        put_architecture(&f, names[i], 2, 1);
        for (size_t m = 0; m < sizeof modules / sizeof modules[0]; m++)
            tensor(&f, modules[m][0], 0, 8, 0, counting, sizeof counting);
        struct str file = finish(&f, 32);
        struct checkpoint *c = expect_read(&file);
        for (size_t m = 0; m < sizeof modules / sizeof modules[0]; m++)
            expect_counting(c, modules[m][1], 1, 8);
        assert_true(json_string_is(json_get(checkpoint_config(c), "model_type"), names[i]));
        assert_false(json_bool(json_get(checkpoint_config(c), "tie_word_embeddings"), true));
        struct vocab vocab;
        assert_int_equal(checkpoint_vocab(c, &vocab, NULL), ERROR_NOT_FOUND);
        checkpoint_free(c);
        str_done(&file);
    }
}

static void rope_scaling_head_size_and_layer_arrays_reach_the_config(void **state)
{
    (void)state;
    struct gguf_file f = {0};
    static const int32_t widths[] = {16, 32};
    put_architecture(&f, "qwen3", 4, 2);
    key_u32(&f, "qwen3.attention.key_length", 128);
    key_u32(&f, "qwen3.rope.dimension_count", 64);
    key_i32s(&f, "qwen3.feed_forward_length", widths, 2);
    key_u32(&f, "qwen3.attention.sliding_window", 512);
    key_string(&f, "qwen3.rope.scaling.type", "yarn");
    key_f32(&f, "qwen3.rope.scaling.factor", 4);
    key_u32(&f, "qwen3.rope.scaling.original_context_length", 32768);
    key_f32(&f, "qwen3.rope.scaling.yarn_beta_fast", 32.1f);
    key_f32(&f, "qwen3.rope.scaling.attn_factor", 2);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_u32(&f, "tokenizer.ggml.eos_token_id", 4);
    key_u32(&f, "tokenizer.ggml.eot_token_id", 0);
    key_u32(&f, "tokenizer.ggml.eom_token_id", 4);
    struct str file = finish(&f, 32);
    struct checkpoint *c = expect_read(&file);
    /* 2 * (0.1 ln 4 + 1) */
    expect_config(checkpoint_config(c),
                  "{\"model_type\": \"qwen3\", \"vocab_size\": 5, \"intermediate_size\": [16, 32], "
                  "\"num_attention_heads\": 4, \"sliding_window\": 512, \"num_key_value_heads\": "
                  "2, \"head_dim\": 128, \"partial_rotary_factor\": 0.5, \"rope_theta\": 10000, "
                  "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
                  "\"original_max_position_embeddings\": 32768, \"beta_fast\": 32.1, "
                  "\"attention_factor\": 2.2772589}, \"tie_word_embeddings\": true, "
                  "\"attention_bias\": false, \"mlp_bias\": false, \"eos_token_id\": [4, 0]}");
    checkpoint_free(c);
    str_done(&file);
    put_architecture(&f, "qwen2", 4, 2);
    key_f32(&f, "qwen2.rope.scale_linear", 2.5f);
    file = finish(&f, 32);
    c = expect_read(&file);
    const struct json *scaling = json_get(checkpoint_config(c), "rope_scaling");
    expect_config(scaling, "{\"rope_type\": \"linear\", \"factor\": 2.5}");
    checkpoint_free(c);
    str_done(&file);
}

static void hunyuan_s_keys_and_widths_reach_the_config(void **state)
{
    (void)state;
    struct gguf_file f = {0};
    put_architecture(&f, "hunyuan-moe", 4, 2);
    key_u32(&f, "hunyuan-moe.feed_forward_length", 64);
    key_u32(&f, "hunyuan-moe.rope.dimension_count", 32);
    key_f32(&f, "hunyuan-moe.rope.freq_base", 11158840);
    key_string(&f, "hunyuan-moe.rope.scaling.type", "none");
    key_u32(&f, "hunyuan-moe.expert_count", 8);
    key_u32(&f, "hunyuan-moe.expert_used_count", 2);
    key_u32(&f, "hunyuan-moe.expert_feed_forward_length", 32);
    key_u32(&f, "hunyuan-moe.expert_shared_feed_forward_length", 128);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    struct str file = finish(&f, 32);
    struct checkpoint *c = expect_read(&file);
    expect_config(checkpoint_config(c),
                  "{\"model_type\": \"hunyuan_v1_moe\", \"vocab_size\": 5, "
                  "\"intermediate_size\": 64, \"num_attention_heads\": 4, \"num_experts\": 8, "
                  "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
                  "\"shared_expert_intermediate_size\": 128, \"num_key_value_heads\": 2, "
                  "\"rope_theta\": 1.115884e+07, \"use_qk_norm\": false, \"num_shared_expert\": 2, "
                  "\"moe_topk\": 2, \"norm_topk_prob\": false, \"tie_word_embeddings\": true, "
                  "\"attention_bias\": false, \"mlp_bias\": false}");
    checkpoint_free(c);
    str_done(&file);
}

static void the_vocabulary_is_handed_out(void **state)
{
    (void)state;
    struct str file = small_llama();
    struct checkpoint *c = expect_read(&file);
    struct vocab v;
    assert_int_equal(checkpoint_vocab(c, &v, NULL), OK);
    assert_string_equal(v.model, "gpt2");
    assert_string_equal(v.pre, "smollm");
    assert_int_equal(v.n_tokens, 5);
    assert_int_equal(v.n_merges, 1);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(v.tokens[i], tokens[i]);
        assert_int_equal(v.token_types[i], token_types[i]);
    }
    assert_string_equal(v.merges[0], merges[0]);
    assert_int_equal(v.bos_id, 1);
    assert_int_equal(v.eos_id, 0);
    assert_false(v.add_bos);
    assert_string_equal(v.chat_template, "{{ messages }}");
    checkpoint_free(c);
    str_done(&file);
}

static void llama_3_implies_a_bos_unless_the_file_says_otherwise(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct gguf_file f = {0};
        put_architecture(&f, "qwen2", 1, 1);
        key_string(&f, "tokenizer.ggml.pre", "llama-bpe");
        key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
        if (i == 1) {
            key_begin(&f, "tokenizer.ggml.add_bos_token", BOOL);
            str_append_char(&f.keys, 0);
        }
        struct str file = finish(&f, 32);
        struct checkpoint *c = expect_read(&file);
        struct vocab v;
        assert_int_equal(checkpoint_vocab(c, &v, NULL), OK);
        assert_true(v.add_bos == (i == 0));
        assert_int_equal(v.bos_id, -1);
        assert_null(v.token_types);
        assert_null(v.model);
        assert_null(v.chat_template);
        checkpoint_free(c);
        str_done(&file);
    }
}

static void the_file_says_whether_texts_end_in_an_eos(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct gguf_file f = {0};
        put_architecture(&f, "qwen3", 1, 1);
        key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
        if (i > 0) {
            key_begin(&f, "tokenizer.ggml.add_eos_token", BOOL);
            str_append_char(&f.keys, i == 1);
        }
        struct str file = finish(&f, 32);
        struct checkpoint *c = expect_read(&file);
        struct vocab v;
        assert_int_equal(checkpoint_vocab(c, &v, NULL), OK);
        assert_true(v.add_eos == (i == 1));
        checkpoint_free(c);
        str_done(&file);
    }
}

/* Steps that grow with the square of a million would outlast the test's time limit. */
static void a_vocabulary_of_a_million_tokens_is_read(void **state)
{
    (void)state;
    enum { N = 1000000 };
    struct gguf_file f = {0};
    struct vocab v;
    put_architecture(&f, "qwen2", 1, 1);
    for (int k = 0; k < 2; k++) {
        key_begin(&f, k ? "tokenizer.ggml.merges" : "tokenizer.ggml.tokens", ARRAY);
        put_u32(&f.keys, STRING);
        put_u64(&f.keys, N);
        for (int i = 0; i < N; i++) {
            char text[32];
            snprintf(text, sizeof text, "token %d", i);
            put_string(&f.keys, text);
        }
    }
    struct str file = finish(&f, 32);
    struct checkpoint *c = expect_read(&file);
    assert_int_equal(checkpoint_vocab(c, &v, NULL), OK);
    assert_int_equal(v.n_tokens, N);
    assert_string_equal(v.tokens[0], "token 0");
    assert_string_equal(v.tokens[N - 1], "token 999999");
    checkpoint_free(c);
    str_done(&file);
}

static void every_value_type_and_nested_arrays_are_passed_over(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t bytes;
    } scalars[] = {{U8, 1},  {I8, 1},   {U16, 2}, {I16, 2}, {U32, 4}, {I32, 4},
                   {F32, 4}, {BOOL, 1}, {U64, 8}, {I64, 8}, {F64, 8}};
    struct gguf_file f = {0};
    put_llama(&f);
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        char key[16];
        snprintf(key, sizeof key, "s%zu", i);
        key_begin(&f, key, scalars[i].type);
        put_bytes(&f.keys, "01234567", scalars[i].bytes);
        snprintf(key, sizeof key, "a%zu", i);
        key_begin(&f, key, ARRAY);
        put_u32(&f.keys, scalars[i].type);
        put_u64(&f.keys, 2);
        put_bytes(&f.keys, "0123456789abcdef", scalars[i].bytes * 2);
    }
    key_begin(&f, "nested", ARRAY);
    put_u32(&f.keys, ARRAY);
    put_u64(&f.keys, 2);
    for (int i = 0; i < 2; i++) {
        put_u32(&f.keys, i ? STRING : U8);
        put_u64(&f.keys, i ? 1 : 0);
    }
    put_string(&f.keys, "inner");
    struct str file = finish(&f, 32);
    struct checkpoint *c = expect_read(&file);
    expect_counting(c, "model.embed_tokens.weight", 6, 1);
    checkpoint_free(c);
    str_done(&file);
}

static void alignment_is_honoured_down_to_single_bytes(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {1, 8, 32, 4096};
    for (int i = 0; i < 4; i++) {
        struct gguf_file f = {0};
        put_llama(&f);
        key_u32(&f, "general.alignment", alignments[i]);
        key_string(&f, "odd", "x"); /* moves the data to an odd place */
        struct str file = finish(&f, alignments[i]);
        struct checkpoint *c = expect_read(&file);
        expect_counting(c, "model.layers.0.self_attn.q_proj.weight", 8, 1);
        checkpoint_free(c);
        str_done(&file);
    }
    static const uint32_t wrong[] = {0, 3, 1u << 31};
    for (int i = 0; i < 3; i++) {
        struct gguf_file f = {0};
        put_llama(&f);
        key_u32(&f, "general.alignment", wrong[i]);
        expect_unreadable(&f, ERROR_INVALID, "general.alignment");
    }
}

static void quantized_and_unknown_types(void **state)
{
    (void)state;
    struct gguf_file f = {0};
    uint8_t block[210] = {0};
    put_architecture(&f, "qwen2", 1, 1);
    tensor(&f, "q4", 2, 32, 2, block, 36);
    tensor(&f, "q6k", 14, 256, 1, block, 210);
    tensor(&f, "q3k", 11, 256, 1, block, 110);
    tensor(&f, "mx", 39, 64, 1, block, 34);
    tensor(&f, "iq4", 23, 256, 1, block, 136);
    tensor(&f, "future", 99, 7, 1, block, 1);
    struct str file = finish(&f, 32);
    struct checkpoint *c = expect_read(&file);
    struct weight w;
    struct error error = {0};
    assert_int_equal(checkpoint_weight(c, "q4", &w, &error), OK);
    assert_true(w.encoding == WEIGHT_Q4_0 && w.rows == 2 && w.cols == 32);
    assert_int_equal(checkpoint_weight(c, "q6k", &w, &error), OK);
    assert_true(w.encoding == WEIGHT_Q6_K && w.rows == 1 && w.cols == 256);
    assert_int_equal(checkpoint_weight(c, "q3k", &w, &error), OK);
    assert_true(w.encoding == WEIGHT_Q3_K && w.rows == 1 && w.cols == 256);
    assert_int_equal(checkpoint_weight(c, "mx", &w, &error), OK);
    assert_true(w.encoding == WEIGHT_MXFP4 && w.rows == 1 && w.cols == 64);
    assert_int_equal(checkpoint_weight(c, "iq4", &w, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "iq4"));
    assert_non_null(strstr(error.message, "IQ4_XS"));
    assert_non_null(strstr(error.message, "memory.gguf"));
    assert_int_equal(checkpoint_weight(c, "future", &w, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "type 99"));
    checkpoint_free(c);
    str_done(&file);
}

static const char *const part_names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                         "m-00003-of-00003.gguf"};

/* File `no` of a llama split in three: the first one has all the model's keys. */
static void write_part(struct test_folder *folder, uint32_t no, uint32_t said_no, uint32_t count,
                       uint32_t n_tensors)
{
    static const float query[8] = {0, 2, 1, 3, 4, 6, 5, 7}, key[4] = {0, 2, 1, 3};
    static const float embedding[6] = {0, 1, 2, 3, 4, 5};
    struct gguf_file f = {0};
    if (no == 0) {
        put_architecture(&f, "llama", 2, 1);
        put_vocabulary(&f);
    }
    key_u32(&f, "split.no", said_no);
    key_u32(&f, "split.count", count);
    key_u32(&f, "split.tensors.count", n_tensors);
    if (no == 1) {
        tensor(&f, "token_embd.weight", 0, 1, 6, embedding, sizeof embedding);
        tensor(&f, "blk.0.attn_q.weight", 0, 1, 8, query, sizeof query);
    }
    if (no == 2)
        tensor(&f, "blk.0.attn_k.weight", 0, 1, 4, key, sizeof key);
    struct str file = finish(&f, 32);
    folder_write(folder, part_names[no], file.data, file.len);
    str_done(&file);
}

static void any_file_of_a_split_model_opens_all_of_them(void **state)
{
    (void)state;
    struct test_folder folder;
    folder_make(&folder);
    for (uint32_t no = 0; no < 3; no++)
        write_part(&folder, no, no, 3, 3);
    for (int no = 0; no < 3; no++) {
        struct checkpoint *c = expect_open(folder_file(&folder, part_names[no]));
        expect_counting(c, "model.embed_tokens.weight", 6, 1);
        expect_counting(c, "model.layers.0.self_attn.q_proj.weight", 8, 1);
        expect_counting(c, "model.layers.0.self_attn.k_proj.weight", 4, 1);
        assert_int_equal(checkpoint_bytes(c), (6 + 8 + 4) * 4);
        struct vocab v;
        assert_int_equal(checkpoint_vocab(c, &v, NULL), OK);
        assert_int_equal(v.n_tokens, 5);
        checkpoint_free(c);
    }
    folder_remove(&folder);
}

static void a_split_model_that_does_not_fit_together_is_refused(void **state)
{
    (void)state;
    struct test_folder folder;
    folder_make(&folder);
    for (uint32_t no = 0; no < 3; no++)
        write_part(&folder, no, no, 3, 3);
    struct {
        uint32_t no, said_no, count, n_tensors;
        const char *words;
    } cases[] = {
        {0, 0, 3, 4, "says 4, but its 3 files hold 3 tensors"},
        {1, 0, 3, 3, "file 2 of 3, its metadata file 1 of 3"},
        {2, 2, 4, 3, "file 3 of 3, its metadata file 3 of 4"},
        {1, 0, 1, 3, "file 2 of 3, its metadata file 1 of 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t no = cases[i].no;
        write_part(&folder, no, cases[i].said_no, cases[i].count, cases[i].n_tensors);
        expect_refused(folder_file(&folder, part_names[no]), ERROR_INVALID, cases[i].words);
        write_part(&folder, no, no, 3, 3);
    }
    struct str again = {0};
    struct error error;
    assert_int_equal(file_read(folder_file(&folder, part_names[1]), 1 << 20, &again, &error), OK);
    folder_write(&folder, part_names[2], again.data, again.len);
    str_done(&again);
    expect_refused(folder_file(&folder, part_names[2]), ERROR_INVALID, "occurs twice");
    folder_unlink(&folder, part_names[1]);
    expect_refused(folder_file(&folder, part_names[2]), ERROR_NOT_FOUND,
                   "m-00002-of-00003.gguf is missing");
    expect_refused(folder_file(&folder, part_names[1]), ERROR_NOT_FOUND, "is missing");
    expect_refused(folder_file(&folder, "m-00001-of-99999.gguf"), ERROR_LIMIT, "limit is 4096");
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_is_read_under_hugging_face_names_and_order),
        cmocka_unit_test(other_architectures_keep_their_row_order),
        cmocka_unit_test(rope_scaling_head_size_and_layer_arrays_reach_the_config),
        cmocka_unit_test(hunyuan_s_keys_and_widths_reach_the_config),
        cmocka_unit_test(the_vocabulary_is_handed_out),
        cmocka_unit_test(llama_3_implies_a_bos_unless_the_file_says_otherwise),
        cmocka_unit_test(the_file_says_whether_texts_end_in_an_eos),
        cmocka_unit_test(a_vocabulary_of_a_million_tokens_is_read),
        cmocka_unit_test(every_value_type_and_nested_arrays_are_passed_over),
        cmocka_unit_test(alignment_is_honoured_down_to_single_bytes),
        cmocka_unit_test(quantized_and_unknown_types),
        cmocka_unit_test(any_file_of_a_split_model_opens_all_of_them),
        cmocka_unit_test(a_split_model_that_does_not_fit_together_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
