/* Loading: what is refused and with which words, GGUF vocabularies, and what a loaded tokenizer
 * says. */
#include "base/file.h"
#include "tokenizer/encoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test_heap.h"

#define BYTE_LEVEL                                                                                 \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"

/* A tokenizer.json of the parts given; each may be NULL for what is usual. */
struct document {
    const char *added, *normalizer, *pre_tokenizer, *post_processor, *decoder, *options, *vocab,
        *merges;
};

static enum status load(const struct document *d, struct tokenizer **out, struct error *error)
{
    struct str json = {0};
    str_printf(&json,
               "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
               "\"post_processor\":%s,\"decoder\":%s,\"model\":{\"type\":\"BPE\",%s"
               "\"vocab\":%s,\"merges\":%s}}",
               d->added ? d->added : "[]", d->normalizer ? d->normalizer : "null",
               d->pre_tokenizer ? d->pre_tokenizer : BYTE_LEVEL,
               d->post_processor ? d->post_processor : "null", d->decoder ? d->decoder : "null",
               d->options ? d->options : "",
               d->vocab ? d->vocab : "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3}",
               d->merges ? d->merges : "[\"a b\"]");
    enum status status = tokenizer_load_json_memory(str_z(&json), json.len, out, error);
    str_done(&json);
    return status;
}

static void refuses(struct document d, enum status expected, const char *words)
{
    struct tokenizer *t;
    struct error error = {OK, ""};
    enum status status = load(&d, &t, &error);
    if (status != expected || !strstr(error.message, words))
        fail_msg("expected \"%s\", found %s: %s", words, status_name(status), error.message);
    assert_null(t);
    assert_int_equal(error.status, status);
    assert_int_equal(load(&d, &t, NULL), expected);
}

static struct tokenizer *accepts(struct document d)
{
    struct tokenizer *t;
    struct error error;
    if (load(&d, &t, &error) != OK)
        fail_msg("%s", error.message);
    return t;
}

/* Encodes `text` and compares with `n` ids. */
static void encodes(const struct tokenizer *t, const char *text, unsigned flags, size_t n,
                    const int32_t *expected)
{
    struct encoder *encoder;
    struct token_ids ids = {0};
    struct error error;
    assert_int_equal(encoder_new(t, 1 << 16, &encoder, &error), OK);
    assert_int_equal(encoder_encode(encoder, text, strlen(text), flags, &ids, &error), OK);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.ids[i], expected[i]);
    token_ids_done(&ids);
    encoder_free(encoder);
}

#define ENCODES(t, text, flags, ...)                                                               \
    encodes(t, text, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),                    \
            (int32_t[]){__VA_ARGS__})

static void other_kinds_of_tokenizer_are_refused_by_name(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct error error;
    static const char unigram[] =
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1.5]]}}";
    assert_int_equal(tokenizer_load_json_memory(unigram, sizeof unigram - 1, &t, &error),
                     ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "Unigram"));
    static const char behind[] = "{\"model\":{\"vocab\":{\"a\":0},\"type\":\"WordPiece\"}}";
    assert_int_equal(tokenizer_load_json_memory(behind, sizeof behind - 1, &t, &error),
                     ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "WordPiece"));

    refuses((struct document){.normalizer = "{\"type\":\"Lowercase\"}"}, ERROR_UNSUPPORTED,
            "\"Lowercase\"");
    refuses((struct document){.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
                                            "\"NFC\"},{\"type\":\"Strip\"}]}"},
            ERROR_UNSUPPORTED, "\"Strip\"");
    refuses((struct document){.pre_tokenizer = "null"}, ERROR_UNSUPPORTED, "ByteLevel");
    refuses((struct document){.pre_tokenizer = "{\"type\":\"Metaspace\"}"}, ERROR_UNSUPPORTED,
            "\"Metaspace\"");
    refuses((struct document){.pre_tokenizer =
                                  "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL
                                  ",{\"type\":\"Digits\"}]}"},
            ERROR_UNSUPPORTED, "\"Digits\" behind ByteLevel");
    refuses((struct document){.post_processor = "{\"type\":\"BertProcessing\"}"}, ERROR_UNSUPPORTED,
            "\"BertProcessing\"");
    refuses((struct document){.decoder = "{\"type\":\"WordPiece\"}"}, ERROR_UNSUPPORTED,
            "\"WordPiece\"");
    refuses((struct document){.options = "\"byte_fallback\":true,"}, ERROR_UNSUPPORTED,
            "byte_fallback");
    refuses((struct document){.options = "\"dropout\":0.1,"}, ERROR_UNSUPPORTED, "dropout");
    refuses((struct document){.options = "\"end_of_word_suffix\":\"</w>\","}, ERROR_UNSUPPORTED,
            "end_of_word_suffix");
}

#define SPLIT(pattern, behavior)                                                                   \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" pattern           \
    ",\"behavior\":\"" behavior "\",\"invert\":false}," BYTE_LEVEL "]}"

static void patterns_that_are_not_understood_are_refused(void **state)
{
    (void)state;
    refuses((struct document){.pre_tokenizer = SPLIT("{\"Regex\":\"(unclosed\"}", "Isolated")},
            ERROR_UNSUPPORTED, "(unclosed");
    refuses((struct document){.pre_tokenizer = SPLIT("{\"Regex\":\"[a-z&&[b]]\"}", "Isolated")},
            ERROR_UNSUPPORTED, "&&");
    refuses((struct document){.pre_tokenizer = SPLIT("{\"Glob\":\"*\"}", "Isolated")},
            ERROR_INVALID, "neither a Regex nor a String");
    refuses((struct document){.pre_tokenizer = SPLIT("{\"String\":\"-\"}", "Sideways")},
            ERROR_UNSUPPORTED, "\"Sideways\"");
}

/* Exponential in backtracking without a bound on its steps. */
static void a_pattern_that_runs_away_is_an_error_not_a_hang(void **state)
{
    (void)state;
    struct tokenizer *t = accepts(
        (struct document){.pre_tokenizer = SPLIT("{\"Regex\":\"(a|a|aa)+(b|c)\"}", "Removed")});
    struct encoder *encoder;
    struct token_ids ids = {0};
    struct error error;
    assert_int_equal(encoder_new(t, 0, &encoder, &error), OK);
    char text[200];
    memset(text, 'a', sizeof text);
    assert_int_equal(encoder_encode(encoder, text, sizeof text, 0, &ids, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "regular expression"));
    token_ids_done(&ids);
    encoder_free(encoder);
    tokenizer_free(t);
}

static void inconsistent_vocabularies_are_refused(void **state)
{
    (void)state;
    refuses((struct document){.vocab = "{\"a\":0,\"b\":0}", .merges = "[]"}, ERROR_INVALID, "id 0");
    refuses((struct document){.vocab = "{\"a\":0,\"a\":1}", .merges = "[]"}, ERROR_INVALID,
            "\"a\" is in the vocabulary twice");
    refuses((struct document){.vocab = "{\"a\":-1}"}, ERROR_INVALID, "\"a\"");
    refuses((struct document){.vocab = "{\"a\":4194304}"}, ERROR_INVALID, "4194303");
    refuses((struct document){.vocab = "{\"a\":1.5}"}, ERROR_INVALID, "whole number");
    refuses((struct document){.vocab = "[\"a\"]"}, ERROR_INVALID, "lacks a vocabulary");
    refuses((struct document){.merges = "[\"a c\"]"}, ERROR_INVALID, "not in the vocabulary");
    refuses((struct document){.merges = "[\"b a\"]"}, ERROR_INVALID, "not in the vocabulary");
    refuses((struct document){.merges = "[\"ab\"]"}, ERROR_INVALID, "merge");
    refuses((struct document){.merges = "[\"a b c\"]"}, ERROR_INVALID, "merge");
    refuses((struct document){.merges = "[[\"a\",\"b\",\"c\"]]"}, ERROR_INVALID, "merge");
    refuses((struct document){.merges = "[7]"}, ERROR_INVALID, "merge");
    refuses((struct document){.merges = "{}"}, ERROR_INVALID, "merges are not a list");
    refuses((struct document){.options = "\"unk_token\":\"?\","}, ERROR_INVALID, "unk_token");
    refuses((struct document){.added = "[{\"id\":9,\"content\":\"x\"},{\"id\":9,\"content\":"
                                       "\"y\"}]"},
            ERROR_INVALID, "id 9");
    refuses((struct document){.added = "[{\"content\":\"x\"}]"}, ERROR_INVALID, "lacks its id");
    refuses((struct document){.added = "[{\"id\":5,\"content\":\"x\",\"special\":1}]"},
            ERROR_INVALID, "flag");
    refuses((struct document){.post_processor =
                                  "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
                                  "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                                  "\"special_tokens\":{\"<s>\":{\"ids\":[77]}}}"},
            ERROR_INVALID, "77");
    refuses((struct document){.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":["
                                                "{\"SpecialToken\":{\"id\":\"<s>\"}}],"
                                                "\"special_tokens\":{}}"},
            ERROR_INVALID, "<s>");
}

static void long_tokens_are_refused(void **state)
{
    (void)state;
    struct str vocab = {0}, added = {0};
    str_append_z(&vocab, "{\"");
    str_append_z(&added, "[{\"id\":5,\"content\":\"");
    for (int i = 0; i < 70000; i++) {
        str_append_char(&vocab, 'a');
        str_append_char(&added, 'a');
    }
    str_append_z(&vocab, "\":0}");
    str_append_z(&added, "\"}]");
    refuses((struct document){.vocab = vocab.data, .merges = "[]"}, ERROR_LIMIT, "65536");
    refuses((struct document){.added = added.data}, ERROR_LIMIT, "4096");
    str_done(&vocab);
    str_done(&added);
}

/* A file cut anywhere is an error with a sentence, never anything else. */
static void a_truncated_file_is_refused(void **state)
{
    (void)state;
    struct str json = {0};
    struct error error;
    assert_int_equal(
        file_read(SOURCE_DIR "/tests/data/tokenizer/small_llama3.json", 1 << 20, &json, &error),
        OK);
    struct tokenizer *t;
    for (size_t n = 0; n + 1 < json.len; n += 7) {
        error.message[0] = '\0';
        assert_int_not_equal(tokenizer_load_json_memory(json.data, n, &t, &error), OK);
        assert_true(error.message[0] != '\0');
        assert_null(t);
    }
    str_done(&json);
    assert_int_equal(tokenizer_load(SOURCE_DIR "/tests/no-such-file.json", &t, &error),
                     ERROR_NOT_FOUND);
    assert_int_equal(tokenizer_load(SOURCE_DIR "/tests/CMakeLists.txt", &t, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "CMakeLists.txt: "));
}

static void merges_may_come_before_the_vocabulary(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"merges\":[[\"a\",\"b\"],[\"ab\",\"a\"]],\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
        "\"aba\":3}},\"pre_tokenizer\":" BYTE_LEVEL "}";
    struct tokenizer *t;
    struct error error;
    assert_int_equal(tokenizer_load_json_memory(json, sizeof json - 1, &t, &error), OK);
    ENCODES(t, "ababa", 0, 2, 3);
    tokenizer_free(t);
}

static void the_lowest_rank_merges_first_and_the_leftmost_of_equals(void **state)
{
    (void)state;
    struct tokenizer *t =
        accepts((struct document){.vocab = "{\"a\":0,\"b\":1,\"aa\":2,\"ab\":3,\"aab\":4,\"c\":5}",
                                  .merges = "[\"a b\",\"a a\",\"a ab\"]"});
    ENCODES(t, "aaab", 0, 2, 3);
    ENCODES(t, "aab", 0, 4);
    ENCODES(t, "aaaaa", 0, 2, 2, 0);
    /* A byte without a token, and no unknown token, leaves nothing: its neighbours meet. */
    ENCODES(t, "azb", 0, 3);
    tokenizer_free(t);
}

static void unknown_bytes_are_one_token_each_unless_fused(void **state)
{
    (void)state;
    struct tokenizer *t = accepts((struct document){.options = "\"unk_token\":\"\\u0120\","});
    ENCODES(t, "azza", 0, 0, 3, 3, 0);
    tokenizer_free(t);
    t = accepts((struct document){.options = "\"unk_token\":\"\\u0120\",\"fuse_unk\":true,"});
    ENCODES(t, "zza", 0, 3, 0);
    tokenizer_free(t);
}

static void a_template_puts_tokens_around_the_text_when_asked(void **state)
{
    (void)state;
    struct tokenizer *t = accepts((struct document){
        .added = "[{\"id\":9,\"content\":\"<s>\",\"special\":true,\"normalized\":false}]",
        .post_processor =
            "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
            "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
            "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"two\"}}],"
            "\"special_tokens\":{\"<s>\":{\"ids\":[9]},\"two\":{\"ids\":[0,1]}}}]}"});
    ENCODES(t, "ab", 0, 2);
    ENCODES(t, "ab", ENCODE_ADD_SPECIAL, 9, 2, 0, 1);
    ENCODES(t, "<s>ab", ENCODE_ADD_SPECIAL, 9, 9, 2, 0, 1);
    ENCODES(t, "", ENCODE_ADD_SPECIAL, 9, 0, 1);
    ENCODES(t, "<s>ab", ENCODE_PLAIN_SPECIAL, 2); /* < s > have no tokens here */
    tokenizer_free(t);
}

static void a_loaded_tokenizer_answers_for_its_tokens(void **state)
{
    (void)state;
    struct tokenizer *t = accepts((struct document){
        .added =
            "[{\"id\":9,\"content\":\"<s>\",\"special\":true},{\"id\":7,\"content\":\"\\u0120\"},"
            "{\"id\":12,\"content\":\"\"}]"});
    size_t len;
    assert_int_equal(tokenizer_size(t), 10);
    assert_memory_equal(tokenizer_token_bytes(t, 2, &len), "ab", 2);
    assert_int_equal(len, 2);
    /* An added token that the vocabulary has keeps the vocabulary's id, and its own spelling. */
    assert_int_equal(tokenizer_token_flags(t, 3), TOKEN_ADDED);
    assert_memory_equal(tokenizer_token_bytes(t, 3, &len), "\xC4\xA0", 2);
    assert_null(tokenizer_token_bytes(t, 7, &len));
    assert_null(tokenizer_token_bytes(t, 10, &len));
    assert_null(tokenizer_token_bytes(t, -1, &len));
    assert_int_equal(tokenizer_token_flags(t, 9), TOKEN_ADDED | TOKEN_SPECIAL);
    assert_int_equal(tokenizer_token_flags(t, 0), 0);
    assert_int_equal(tokenizer_find(t, "<s>", 3), 9);
    assert_int_equal(tokenizer_find(t, "ab", 2), 2);
    assert_int_equal(tokenizer_find(t, " ", 1), 3);
    assert_int_equal(tokenizer_find(t, "abc", 3), -1);
    tokenizer_free(t);
}

/* The package would take the accented letter of such a token for a byte when it decodes; csgl does
 * not. */
static void a_normalized_added_token_decodes_to_what_it_matched(void **state)
{
    (void)state;
    struct tokenizer *t =
        accepts((struct document){.normalizer = "{\"type\":\"NFC\"}",
                                  .added = "[{\"id\":9,\"content\":\"cafe\\u0301\","
                                           "\"normalized\":true}]"});
    ENCODES(t, "acaf\xC3\xA9 cafe\xCC\x81", 0, 0, 9, 3, 9);
    size_t len;
    assert_memory_equal(tokenizer_token_bytes(t, 9, &len), "caf\xC3\xA9", 5);
    assert_int_equal(len, 5);
    assert_int_equal(tokenizer_find(t, "cafe\xCC\x81", 6), 9);
    tokenizer_free(t);
}

static struct vocab gguf_vocab(void)
{
    static const char *const tokens[] = {"<|end|>",  "a", "b",       "ab",
                                         "\xC4\xA0", "1", "<think>", "\xC3\x86"};
    static const int32_t types[] = {3, 1, 1, 1, 1, 1, 4, 1};
    static const char *const merges[] = {"a b"};
    return (struct vocab){.model = "gpt2",
                          .pre = "smollm",
                          .n_tokens = 8,
                          .tokens = tokens,
                          .token_types = types,
                          .n_merges = 1,
                          .merges = merges,
                          .bos_id = 0,
                          .eos_id = -1};
}

static void a_gguf_vocabulary_becomes_a_tokenizer(void **state)
{
    (void)state;
    struct vocab vocab = gguf_vocab();
    struct tokenizer *t;
    struct error error;
    if (tokenizer_load_vocab(&vocab, &t, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_equal(tokenizer_token_flags(t, 0), TOKEN_ADDED | TOKEN_SPECIAL);
    assert_int_equal(tokenizer_token_flags(t, 6), TOKEN_ADDED);
    ENCODES(t, "ab 11<think><|end|>", 0, 3, 4, 5, 5, 6, 0);
    tokenizer_free(t);
    vocab.add_bos = true;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), OK);
    ENCODES(t, "ab", ENCODE_ADD_SPECIAL, 0, 3);
    tokenizer_free(t);
    vocab.add_eos = true;
    vocab.eos_id = 6;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), OK);
    ENCODES(t, "ab", ENCODE_ADD_SPECIAL, 0, 3, 6);
    tokenizer_free(t);
    static const char *const known[] = {"qwen2", "llama-bpe", "gpt-2", "default", "gpt-4o", NULL};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        vocab.pre = known[i];
        assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), OK);
        tokenizer_free(t);
    }
}

static void a_gguf_vocabulary_that_is_wrong_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t;
    struct error error;
    struct vocab vocab = gguf_vocab();
    vocab.pre = "tekken";
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "\"tekken\""));
    vocab = gguf_vocab();
    vocab.model = "llama";
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "\"llama\""));
    vocab = gguf_vocab();
    static const char *const broken[] = {"<|end|>", "a", "b", "ab", "\xC4", "1", "<think>", "c"};
    vocab.tokens = broken;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "UTF-8"));
    vocab = gguf_vocab();
    static const char *const merges[] = {"ab"};
    vocab.merges = merges;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_INVALID);
    vocab = gguf_vocab();
    vocab.bos_id = -1;
    vocab.add_bos = true;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_INVALID);
    vocab.bos_id = 99;
    assert_int_equal(tokenizer_load_vocab(&vocab, &t, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "99"));
    assert_null(t);
}

/* 3,600 tokens of two letters and the merges that make them. */
static void a_tokenizer_says_what_it_takes(void **state)
{
    (void)state;
    enum { N = 60 };
    struct str vocab = {0}, merges = {0};
    for (int i = 0; i < N; i++)
        str_printf(&vocab, "%s\"%c\":%d", i ? "," : "{", 'A' + i + (i > 26), i);
    for (int i = 0; i < N * N; i++) {
        int left = 'A' + i / N + (i / N > 26), right = 'A' + i % N + (i % N > 26);
        str_printf(&vocab, ",\"%c%c\":%d", left, right, N + i);
        str_printf(&merges, "%s\"%c %c\"", i ? "," : "[", left, right);
    }
    str_append_char(&vocab, '}');
    str_append_char(&merges, ']');
    size_t before = heap_bytes();
    struct tokenizer *t =
        accepts((struct document){.vocab = str_z(&vocab), .merges = str_z(&merges)});
    size_t taken = heap_bytes() - before, said = tokenizer_memory(t);
    if (heap_is_counted() && (taken < said || taken > said + said / 20 + 4096))
        fail_msg("%zu bytes are said to be taken; it were %zu", said, taken);
    tokenizer_free(t);
    str_done(&vocab);
    str_done(&merges);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_kinds_of_tokenizer_are_refused_by_name),
        cmocka_unit_test(patterns_that_are_not_understood_are_refused),
        cmocka_unit_test(a_pattern_that_runs_away_is_an_error_not_a_hang),
        cmocka_unit_test(inconsistent_vocabularies_are_refused),
        cmocka_unit_test(long_tokens_are_refused),
        cmocka_unit_test(a_truncated_file_is_refused),
        cmocka_unit_test(merges_may_come_before_the_vocabulary),
        cmocka_unit_test(the_lowest_rank_merges_first_and_the_leftmost_of_equals),
        cmocka_unit_test(unknown_bytes_are_one_token_each_unless_fused),
        cmocka_unit_test(a_template_puts_tokens_around_the_text_when_asked),
        cmocka_unit_test(a_loaded_tokenizer_answers_for_its_tokens),
        cmocka_unit_test(a_normalized_added_token_decodes_to_what_it_matched),
        cmocka_unit_test(a_tokenizer_says_what_it_takes),
        cmocka_unit_test(a_gguf_vocabulary_becomes_a_tokenizer),
        cmocka_unit_test(a_gguf_vocabulary_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
