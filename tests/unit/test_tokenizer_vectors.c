/* Ids and texts against the recorded answers of the `tokenizers` package. The small tokenizers are
 * in the repository; the real ones are looked for in the data folder and in the default model, and
 * their vectors are skipped without them. */
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/encoder.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_BYTES = 64 << 20, SWEEP_BLOCK = 1024 };

/* A file of tools/make_tokenizer_vectors.py, which describes the format. */
struct vectors {
    struct str data;
    size_t at;
};

static void read_whole(const char *path, struct str *out)
{
    struct error error;
    if (file_read(path, MAX_BYTES, out, &error) != OK)
        fail_msg("%s", error.message);
}

static void open_vectors(struct vectors *v, const char *name, const char *magic)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s", SOURCE_DIR, name);
    *v = (struct vectors){{0}, 8};
    read_whole(path, &v->data);
    assert_true(v->data.len > 8 && memcmp(v->data.data, magic, 8) == 0);
}

static size_t next_number(struct vectors *v)
{
    size_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(v->at < v->data.len && shift < 64);
        unsigned char byte = (unsigned char)v->data.data[v->at++];
        value |= (size_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

static uint32_t next_hash(struct vectors *v)
{
    uint32_t hash = 0;
    assert_true(v->at + 4 <= v->data.len);
    for (int i = 0; i < 4; i++)
        hash |= (uint32_t)(unsigned char)v->data.data[v->at++] << (8 * i);
    return hash;
}

/* CRC-32 (as zlib's), four bits at a time. */
static uint32_t crc32_of(const void *data, size_t n)
{
    static const uint32_t table[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
        0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
        0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
    };
    const unsigned char *p = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

struct text {
    const char *bytes;
    size_t n;
};

/* The texts point into `v`. */
static struct text *read_texts(struct vectors *v, size_t *n)
{
    open_vectors(v, "texts.bin", "CSGLTXT1");
    *n = next_number(v);
    struct text *texts = calloc(*n, sizeof *texts);
    assert_non_null(texts);
    for (size_t i = 0; i < *n; i++) {
        texts[i].n = next_number(v);
        texts[i].bytes = v->data.data + v->at;
        v->at += texts[i].n;
        assert_true(v->at <= v->data.len);
    }
    return texts;
}

static void sweep_text(size_t block, struct str *out)
{
    str_clear(out);
    for (size_t i = block * SWEEP_BLOCK; i < (block + 1) * SWEEP_BLOCK; i++) {
        unsigned c = (unsigned)i;
        if (c >= 0xD800 && c < 0xE000)
            continue;
        str_append_char(out, 'x');
        str_append_utf8(out, c);
        str_append_z(out, "y ");
        str_append_utf8(out, c);
        str_append_utf8(out, c);
        str_append_z(out, "1'");
        str_append_utf8(out, c);
        str_append_char(out, ' ');
    }
}

static void check_sweep(struct encoder *encoder, const char *name, struct vectors *v)
{
    struct str text = {0};
    struct token_ids ids = {0};
    struct error error;
    for (size_t n = next_number(v), i = 0; i < n; i++) {
        size_t block = next_number(v);
        uint32_t expected = next_hash(v);
        sweep_text(block, &text);
        ids.n = 0;
        assert_int_equal(encoder_encode(encoder, str_z(&text), text.len, 0, &ids, &error), OK);
        if (crc32_of(ids.ids, ids.n * sizeof *ids.ids) != expected)
            fail_msg("%s: the sweep differs between U+%04zX and U+%04zX", name, block * SWEEP_BLOCK,
                     (block + 1) * SWEEP_BLOCK - 1);
    }
    str_done(&text);
    token_ids_done(&ids);
}

static void print_ids(const char *what, const int32_t *ids, size_t n)
{
    print_error("%s:", what);
    for (size_t i = 0; i < n && i < 60; i++)
        print_error(" %d", (int)ids[i]);
    print_error("\n");
}

static void check_decoding(const struct tokenizer *t, const char *name, size_t nth,
                           const int32_t *ids, size_t n, struct vectors *v)
{
    struct str out = {0};
    struct error error;
    for (int skip = 0; skip < 2; skip++) {
        uint32_t expected = next_hash(v);
        str_clear(&out);
        assert_int_equal(tokenizer_decode(t, ids, n, skip, &out, &error), OK);
        if (crc32_of(str_z(&out), out.len) != expected)
            fail_msg("%s: text %zu decodes to \"%s\"", name, nth, str_z(&out));
    }
    str_done(&out);
}

static void check_encodings(const struct tokenizer *t, struct encoder *encoder, const char *name,
                            const struct text *texts, size_t n_texts, struct vectors *v)
{
    struct token_ids ids = {0};
    int32_t *expected = NULL;
    struct error error;
    size_t n = next_number(v);
    assert_true(n > 1000);
    for (size_t i = 0; i < n; i++) {
        size_t nth = next_number(v);
        unsigned flags = (unsigned)next_number(v);
        size_t n_expected = next_number(v);
        assert_true(nth < n_texts && n_expected < v->data.len);
        expected = realloc(expected, (n_expected + 1) * sizeof *expected);
        for (size_t k = 0; k < n_expected; k++)
            expected[k] = (int32_t)next_number(v);
        ids.n = 0;
        assert_int_equal(
            encoder_encode(encoder, texts[nth].bytes, texts[nth].n, flags, &ids, &error), OK);
        if (ids.n != n_expected || memcmp(ids.ids, expected, n_expected * sizeof *expected) != 0) {
            print_ids("expected", expected, n_expected);
            print_ids("found", ids.ids, ids.n);
            fail_msg("%s: text %zu with flags %u, \"%.*s\", is encoded differently", name, nth,
                     flags, (int)texts[nth].n, texts[nth].bytes);
        }
        check_decoding(t, name, nth, expected, n_expected, v);
    }
    assert_int_equal(v->at, v->data.len);
    free(expected);
    token_ids_done(&ids);
}

static void check_tokenizer(const struct tokenizer *t, const char *name)
{
    struct error error;
    struct vectors texts_file, v;
    size_t n_texts;
    struct text *texts = read_texts(&texts_file, &n_texts);
    char file_name[64];
    snprintf(file_name, sizeof file_name, "%s.vec", name);
    open_vectors(&v, file_name, "CSGLVEC1");
    struct encoder *encoder;
    assert_int_equal(encoder_new(t, ENCODER_DEFAULT_CACHE_BYTES, &encoder, &error), OK);
    check_sweep(encoder, name, &v);
    check_encodings(t, encoder, name, texts, n_texts, &v);
    encoder_free(encoder);
    free(texts);
    str_done(&texts_file.data);
    str_done(&v.data);
}

static void check_small(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s.json", SOURCE_DIR, name);
    struct tokenizer *t;
    struct error error;
    if (tokenizer_load(path, &t, &error) != OK)
        fail_msg("%s", error.message);
    check_tokenizer(t, name);
    tokenizer_free(t);
}

static void nfc_added_tokens_and_the_qwen2_pattern(void **state)
{
    (void)state;
    check_small("small_qwen2");
}

static void the_qwen35_pattern(void **state)
{
    (void)state;
    check_small("small_qwen35");
}

static void ignored_merges_and_a_template(void **state)
{
    (void)state;
    check_small("small_llama3");
}

static void merges_as_strings_and_the_o200k_pattern(void **state)
{
    (void)state;
    check_small("small_o200k");
}

static void the_three_patterns_of_deepseek(void **state)
{
    (void)state;
    check_small("small_deepseek");
}

static void single_digits_and_the_gpt2_pattern(void **state)
{
    (void)state;
    check_small("small_smollm");
}

static void unknown_bytes_and_every_split_behavior(void **state)
{
    (void)state;
    check_small("small_mixed");
}

static void fused_unknown_bytes(void **state)
{
    (void)state;
    check_small("small_fused");
}

/* The text of NAME/tokenizer.json in the data folder, or of its .xz; false if it is not there. */
static bool read_real(const char *name, struct str *out)
{
    const char *folder = getenv("CSGL_TEST_DATA");
    char path[512], command[600];
    snprintf(path, sizeof path, "%s/%s/tokenizer.json",
             folder ? folder : SOURCE_DIR "/../shared/data", name);
    if (file_exists(path)) {
        read_whole(path, out);
        return true;
    }
    snprintf(command, sizeof command, "xz -dc '%s.xz' 2>/dev/null", path);
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return false;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
        str_append(out, buffer, n);
    return pclose(pipe) == 0 && out->len > 0;
}

static void check_real(const char *name)
{
    struct str json = {0};
    if (!read_real(name, &json)) {
        str_done(&json);
        print_message("skipped: no %s/tokenizer.json in the data folder\n", name);
        skip();
    }
    struct tokenizer *t;
    struct error error;
    if (tokenizer_load_json_memory(json.data, json.len, &t, &error) != OK)
        fail_msg("%s", error.message);
    str_done(&json);
    check_tokenizer(t, name);
    tokenizer_free(t);
}

static void qwen3(void **state)
{
    (void)state;
    check_real("qwen3");
}

/* From the vocabulary inside the default model's GGUF. */
static void smollm2(void **state)
{
    (void)state;
    const char *path = getenv("CSGL_TEST_MODEL");
    struct checkpoint *checkpoint;
    struct vocab v;
    struct tokenizer *t;
    struct error error = {0};
    if (!path || !file_exists(path)) {
        print_message("skipped: CSGL_TEST_MODEL names no file\n");
        skip();
    }
    if (checkpoint_open(&checkpoint, path, &error) != OK ||
        checkpoint_vocab(checkpoint, &v, &error) != OK)
        fail_msg("%s", error.message);
    if (tokenizer_load_vocab(&v, &t, &error) != OK)
        fail_msg("%s", error.message);
    check_tokenizer(t, "smollm2");
    tokenizer_free(t);
    checkpoint_free(checkpoint);
}

static void gpt_oss(void **state)
{
    (void)state;
    check_real("gpt-oss");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nfc_added_tokens_and_the_qwen2_pattern),
        cmocka_unit_test(the_qwen35_pattern),
        cmocka_unit_test(ignored_merges_and_a_template),
        cmocka_unit_test(merges_as_strings_and_the_o200k_pattern),
        cmocka_unit_test(the_three_patterns_of_deepseek),
        cmocka_unit_test(single_digits_and_the_gpt2_pattern),
        cmocka_unit_test(unknown_bytes_and_every_split_behavior),
        cmocka_unit_test(fused_unknown_bytes),
        cmocka_unit_test(qwen3),
        cmocka_unit_test(smollm2),
        cmocka_unit_test(gpt_oss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
