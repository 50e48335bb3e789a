/* Damaged and hostile GGUF files: each is refused with a sentence. */
#include "unit/gguf_files.h"

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct str file = small_llama();
    struct test_folder folder;
    folder_make(&folder);
    char path[256];
    snprintf(path, sizeof path, "%s", folder_file(&folder, "m.gguf"));
    for (size_t n = 0; n < file.len; n++) {
        folder_write(&folder, "m.gguf", file.data, n);
        expect_refused(path, ERROR_INVALID, NULL);
    }
    folder_remove(&folder);
    str_done(&file);
}

/* No byte can be changed to something that harms: the file opens or a sentence comes back. */
static void any_changed_byte_is_survived(void **state)
{
    (void)state;
    struct str file = small_llama();
    static const uint8_t masks[] = {0xFF, 0x80, 0x01};
    int n_refused = 0;
    for (size_t i = 0; i < file.len * 3; i++) {
        file.data[i / 3] = (char)(file.data[i / 3] ^ masks[i % 3]);
        struct checkpoint *c;
        struct error error = {0};
        if (read_memory(&file, &c, &error) == OK) {
            float row[16];
            struct weight w;
            if (checkpoint_weight(c, "model.layers.0.self_attn.k_proj.weight", &w, NULL) == OK &&
                w.cols <= 16)
                weight_row_dequantize(&w, w.rows - 1, row);
        } else {
            assert_true(error.message[0] && error.status != OK);
            n_refused++;
        }
        checkpoint_free(c);
        file.data[i / 3] = (char)(file.data[i / 3] ^ masks[i % 3]);
    }
    assert_true(n_refused > 500);
    str_done(&file);
}

/* A file that is only a header, with these counts. */
static void expect_header_refused(const char *magic, uint32_t version, uint64_t n_tensors,
                                  uint64_t n_keys, enum status status, const char *words)
{
    struct str file = {0};
    str_append_z(&file, magic);
    put_u32(&file, version);
    put_u64(&file, n_tensors);
    put_u64(&file, n_keys);
    struct checkpoint *c;
    struct error error = {0};
    assert_int_equal(read_memory(&file, &c, &error), status);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" is not in: %s", words, error.message);
    checkpoint_free(c);
    str_done(&file);
}

static void hostile_headers_are_refused(void **state)
{
    (void)state;
    expect_header_refused("GGML", 3, 0, 0, ERROR_INVALID, "not a GGUF");
    expect_header_refused("version https://git-lfs.github.com/spec/v1", 0, 0, 0, ERROR_INVALID,
                          "git lfs pull");
    expect_header_refused("GGUF", 1, 0, 0, ERROR_UNSUPPORTED, "version 1");
    expect_header_refused("GGUF", 4, 0, 0, ERROR_UNSUPPORTED, "version 4");
    expect_header_refused("GGUF", 0x03000000, 0, 0, ERROR_UNSUPPORTED, "big-endian");
    expect_header_refused("GGUF", 3, 0, UINT64_MAX, ERROR_LIMIT, "keys");
    expect_header_refused("GGUF", 3, 0, 60000, ERROR_INVALID, "ends inside");
    expect_header_refused("GGUF", 3, UINT64_MAX, 0, ERROR_LIMIT, "tensors");
    expect_header_refused("GGUF", 3, 60000, 0, ERROR_INVALID, "ends inside");
    expect_header_refused("GGUF", 3, 0, 0, ERROR_INVALID, "general.architecture");
}

static void hostile_keys_are_refused(void **state)
{
    (void)state;
    struct gguf_file f = {0};
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "qwen2.attention.head_count", 1);
    expect_unreadable(&f, ERROR_INVALID, "occurs twice");
    key_u32(&f, "", 1);
    expect_unreadable(&f, ERROR_INVALID, "empty");
    key_u32(&f, "\xC0\x80", 1);
    expect_unreadable(&f, ERROR_INVALID, "UTF-8");
    key_begin(&f, "x", 13);
    put_u64(&f.keys, 0);
    expect_unreadable(&f, ERROR_INVALID, "unknown type 13");
    key_begin(&f, "x", STRING);
    put_u64(&f.keys, UINT64_MAX);
    expect_unreadable(&f, ERROR_INVALID, "ends inside");
    key_begin(&f, "x", ARRAY);
    put_u32(&f.keys, 77);
    put_u64(&f.keys, 1);
    expect_unreadable(&f, ERROR_INVALID, "unknown type 77");
    static const uint32_t items[] = {U8, U64, STRING, ARRAY};
    for (int i = 0; i < 4; i++) {
        key_begin(&f, "x", ARRAY);
        put_u32(&f.keys, items[i]);
        put_u64(&f.keys, i == 1 ? UINT64_MAX / 8 + 1 : UINT64_MAX);
        expect_unreadable(&f, ERROR_INVALID, "ends inside");
    }
    key_begin(&f, "x", ARRAY);
    for (int i = 0; i < 1000; i++) {
        put_u32(&f.keys, ARRAY);
        put_u64(&f.keys, 1);
    }
    expect_unreadable(&f, ERROR_LIMIT, "nested");
    key_u32(&f, "general.architecture", 1);
    expect_unreadable(&f, ERROR_INVALID, "general.architecture");
    key_string(&f, "general.architecture", "\xFF");
    expect_unreadable(&f, ERROR_INVALID, "general.architecture");
    put_architecture(&f, "llama", 0, 1);
    expect_unreadable(&f, ERROR_INVALID, "head_count");
    put_architecture(&f, "qwen2", 1, 1);
    key_f32(&f, "qwen2.rope.freq_base", __builtin_inff());
    expect_unreadable(&f, ERROR_INVALID, "finite");
    put_architecture(&f, "qwen2", 1, 1);
    key_string(&f, "qwen2.embedding_length", "big");
    expect_unreadable(&f, ERROR_INVALID, "qwen2.embedding_length");
    put_architecture(&f, "qwen2", 1, 1);
    key_string(&f, "qwen2.rope.scaling.type", "\xFF");
    expect_unreadable(&f, ERROR_INVALID, "UTF-8");
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "split.count", 5000);
    expect_unreadable(&f, ERROR_INVALID, "split.count");
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "split.count", 3);
    expect_unreadable(&f, ERROR_INVALID, "split.no");
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "split.count", 3);
    key_u32(&f, "split.no", 3);
    expect_unreadable(&f, ERROR_INVALID, "below split.count (3)");
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "split.count", 3);
    key_u32(&f, "split.no", 1);
    key_string(&f, "split.tensors.count", "many");
    expect_unreadable(&f, ERROR_INVALID, "split.tensors.count");
    put_architecture(&f, "qwen2", 1, 1);
    key_u32(&f, "split.count", 3);
    key_u32(&f, "split.no", 1);
    key_u32(&f, "split.tensors.count", 7);
    expect_unreadable(&f, ERROR_INVALID, "file 2 of the 3 of a split GGUF");
}

static void hostile_tensors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n_dims;
        uint64_t dims[4];
        uint32_t type;
        uint64_t offset;
        enum status status;
        const char *words;
    } cases[] = {
        {"", 1, {1}, 0, 0, ERROR_INVALID, "empty"},
        {"a\tb", 1, {1}, 0, 0, ERROR_INVALID, "control character"},
        {"t", 5, {1}, 0, 0, ERROR_LIMIT, "5 dimensions"},
        {"t", UINT32_MAX, {1}, 0, 0, ERROR_LIMIT, "dimensions"},
        {"t", 1, {33}, 2, 0, ERROR_INVALID, "whole blocks of 32"},
        {"t", 2, {255, 1}, 14, 0, ERROR_INVALID, "whole blocks of 256"},
        {"t", 1, {100}, 0, 0, ERROR_INVALID, "do not lie"},
        {"t", 1, {1}, 0, UINT64_MAX, ERROR_INVALID, "do not lie"},
        {"t", 1, {1}, 0, UINT64_MAX - 3, ERROR_INVALID, "do not lie"},
        {"t", 1, {1}, 0, 61, ERROR_INVALID, "do not lie"},
        {"t", 1, {1ull << 62}, 0, 0, ERROR_INVALID, "do not lie"},
        {"t", 1, {1ull << 63}, 0, 0, ERROR_INVALID, "overflows"},
        {"t", 2, {1ull << 33, 1ull << 33}, 0, 0, ERROR_INVALID, "do not lie"},
        {"t", 3, {1, 1ull << 33, 1ull << 33}, 0, 0, ERROR_INVALID, "overflows"},
        {"t", 4, {1, 1ull << 21, 1ull << 21, 1ull << 22}, 0, 0, ERROR_INVALID, "overflows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf_file f = {0};
        put_architecture(&f, "qwen2", 1, 1);
        put_string(&f.infos, cases[i].name);
        put_u32(&f.infos, cases[i].n_dims);
        for (uint32_t d = 0; d < cases[i].n_dims && d < 4; d++)
            put_u64(&f.infos, cases[i].dims[d]);
        put_u32(&f.infos, cases[i].type);
        put_u64(&f.infos, cases[i].offset);
        f.n_tensors = 1;
        char data[64] = {0};
        put_bytes(&f.data, data, sizeof data);
        expect_unreadable(&f, cases[i].status, cases[i].words);
    }
    struct gguf_file f = {0};
    static const float values[6] = {0};
    put_architecture(&f, "qwen2", 1, 1);
    tensor(&f, "t", 0, 1, 0, values, 4);
    tensor(&f, "t", 0, 1, 0, values, 4);
    expect_unreadable(&f, ERROR_INVALID, "occurs twice");
    put_architecture(&f, "llama", 2, 2);
    tensor(&f, "blk.0.attn_q.weight", 0, 1, 6, values, sizeof values);
    expect_unreadable(&f, ERROR_INVALID, "blk.0.attn_q.weight");
    put_architecture(&f, "llama", 4, 4);
    tensor(&f, "blk.0.attn_k.bias", 0, 6, 0, values, sizeof values);
    expect_unreadable(&f, ERROR_INVALID, "blk.0.attn_k.bias");
    put_architecture(&f, "llama", 1, 1);
    tensor(&f, "blk.0.attn_q.bias", 8, 32, 0, "0123456789abcdef0123456789abcdefgh", 34);
    expect_unreadable(&f, ERROR_UNSUPPORTED, "a bias must be");
    put_architecture(&f, "qwen2", 1, 1);
    tensor(&f, "output.weight", 0, 1, 0, values, 4);
    tensor(&f, "lm_head.weight", 0, 1, 0, values, 4);
    expect_unreadable(&f, ERROR_INVALID, "both read as lm_head.weight");
}

static void hostile_vocabularies_are_refused(void **state)
{
    (void)state;
    struct gguf_file f = {0};
    put_architecture(&f, "qwen2", 1, 1);
    key_i32s(&f, "tokenizer.ggml.tokens", token_types, 5);
    expect_unreadable(&f, ERROR_INVALID, "not an array of strings");
    put_architecture(&f, "qwen2", 1, 1);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_i32s(&f, "tokenizer.ggml.token_type", token_types, 4);
    expect_unreadable(&f, ERROR_INVALID, "token_type");
    put_architecture(&f, "qwen2", 1, 1);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_strings(&f, "tokenizer.ggml.token_type", tokens, 5);
    expect_unreadable(&f, ERROR_INVALID, "token_type");
    put_architecture(&f, "qwen2", 1, 1);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_u32(&f, "tokenizer.ggml.merges", 5);
    expect_unreadable(&f, ERROR_INVALID, "merges");
    put_architecture(&f, "qwen2", 1, 1);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_u32(&f, "tokenizer.ggml.eos_token_id", 5);
    expect_unreadable(&f, ERROR_INVALID, "outside the vocabulary of 5");
    put_architecture(&f, "qwen2", 1, 1);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 5);
    key_u32(&f, "tokenizer.chat_template", 5);
    expect_unreadable(&f, ERROR_INVALID, "chat_template");
    put_architecture(&f, "qwen2", 1, 1);
    key_begin(&f, "tokenizer.ggml.tokens", ARRAY);
    put_u32(&f.keys, STRING);
    put_u64(&f.keys, 1);
    put_u64(&f.keys, 3);
    put_bytes(&f.keys, "a\0b", 3);
    expect_unreadable(&f, ERROR_INVALID, "contains a NUL");
}

static void paths_that_are_no_gguf_are_refused(void **state)
{
    (void)state;
    struct test_folder folder;
    folder_make(&folder);
    char path[256];
    snprintf(path, sizeof path, "%s", folder_file(&folder, "m.gguf"));
    expect_refused(path, ERROR_NOT_FOUND, NULL);
    folder_write_text(&folder, "m.gguf", "");
    expect_refused(path, ERROR_INVALID, "not a GGUF");
    folder_unlink(&folder, "m.gguf");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(path, ERROR_INVALID, "not a regular file");
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(any_changed_byte_is_survived),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(hostile_keys_are_refused),
        cmocka_unit_test(hostile_tensors_are_refused),
        cmocka_unit_test(hostile_vocabularies_are_refused),
        cmocka_unit_test(paths_that_are_no_gguf_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
