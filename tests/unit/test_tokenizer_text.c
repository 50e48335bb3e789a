/* The parts that work on text: UTF-8, NFC, places of marks, and the incremental detokenizer. */
#include "tokenizer/detokenizer.h"
#include "tokenizer/encoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/split_regex.h"
#include "tokenizer/split_rules.h"
#include "tokenizer/unicode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct tokenizer *load_small(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s.json", SOURCE_DIR, name);
    struct tokenizer *t;
    struct error error;
    if (tokenizer_load(path, &t, &error) != OK)
        fail_msg("%s", error.message);
    return t;
}

static void check_lossy(const char *bytes, size_t n, const char *expected)
{
    struct str out = {0};
    struct error error;
    assert_int_equal(replace_invalid_utf8(bytes, n, &out, NULL, &error), OK);
    assert_string_equal(str_z(&out), expected);
    str_done(&out);
}

#define LOSSY(bytes, expected) check_lossy(bytes, sizeof bytes - 1, expected)
#define R UTF8_REPLACEMENT

/* The rows of table 3-8 and its neighbours in chapter 3 of The Unicode Standard, and Python's
 * answers. */
static void broken_utf8_is_replaced_by_maximal_parts(void **state)
{
    (void)state;
    LOSSY("plain", "plain");
    LOSSY("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A");
    LOSSY("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A");
    LOSSY("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B");
    LOSSY("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A");
    LOSSY("\xF0\x9F\x98", R);
    LOSSY("a\xF0\x9F", "a" R);
    LOSSY("12345678\xE4\xBD\xA0\xE4", "12345678\xE4\xBD\xA0" R);
}

static void check_nfc(const char *text, const char *expected)
{
    struct str out = {0};
    struct nfc_scratch scratch = {0};
    struct error error;
    bool changed;
    assert_int_equal(normalize_nfc(text, strlen(text), &scratch, &out, NULL, &changed, &error), OK);
    assert_int_equal(changed, strcmp(text, expected) != 0);
    if (changed)
        assert_string_equal(str_z(&out), expected);
    nfc_scratch_done(&scratch);
    str_done(&out);
}

static void nfc_composes_orders_and_excludes(void **state)
{
    (void)state;
    check_nfc("", "");
    check_nfc("caf\xC3\xA9", "caf\xC3\xA9");
    check_nfc("cafe\xCC\x81", "caf\xC3\xA9");
    /* U+0316 (220) goes before U+0301 (230), and does not block it. */
    check_nfc("e\xCC\x81\xCC\x96", "\xC3\xA9\xCC\x96");
    /* Hangul: L V T, and LV T. */
    check_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81");
    check_nfc("\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81");
    /* Singletons, and a composition exclusion that stays apart. */
    check_nfc("\xE2\x84\xA6", "\xCE\xA9");
    check_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");
    /* A starter in between blocks. */
    check_nfc("ae\xCC\x81", "a\xC3\xA9");
    check_nfc("\xCC\x81x", "\xCC\x81x");
}

static void a_long_run_of_marks_costs_no_more_than_its_length(void **state)
{
    (void)state;
    struct str text = {0}, out = {0};
    struct nfc_scratch scratch = {0};
    struct error error;
    bool changed;
    str_append_char(&text, 'q');
    for (int i = 0; i < 300000; i++)
        str_append_z(&text, i % 2 ? "\xCC\x96" : "\xCC\x80");
    clock_t start = clock();
    assert_int_equal(normalize_nfc(text.data, text.len, &scratch, &out, NULL, &changed, &error),
                     OK);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10.0);
    assert_true(changed);
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.data, "q\xCC\x96\xCC\x96", 5);
    assert_memory_equal(out.data + out.len - 4, "\xCC\x80\xCC\x80", 4);
    nfc_scratch_done(&scratch);
    str_done(&text);
    str_done(&out);
}

static void an_edit_says_where_its_result_came_from(void **state)
{
    (void)state;
    const char *text = "ab e\xCC\x81 cd \xE2\x84\xA6!";
    struct str out = {0};
    struct nfc_scratch scratch = {0};
    struct text_edits edits = {0};
    struct error error;
    bool changed;
    assert_int_equal(normalize_nfc(text, strlen(text), &scratch, &out, &edits, &changed, &error),
                     OK);
    assert_string_equal(out.data, "ab \xC3\xA9 cd \xCE\xA9!");
    /* Places of the source, and how much of the result lies wholly before them. */
    static const size_t places[][2] = {{0, 0},  {3, 3},  {4, 3},  {5, 3},   {6, 5},  {7, 6},
                                       {10, 9}, {11, 9}, {12, 9}, {13, 11}, {14, 12}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        assert_int_equal(text_edits_map(&edits, places[i][0]), places[i][1]);
    nfc_scratch_done(&scratch);
    text_edits_done(&edits);
    str_done(&out);
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENDING "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LEADS "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const struct {
    enum split_rule rule;
    const char *pattern;
} rules[] = {
    {SPLIT_RULE_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                      "\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_QWEN2, CONTRACTIONS "|" LEADS "\\p{L}+|\\p{N}" ENDING},
    {SPLIT_RULE_QWEN35, CONTRACTIONS "|" LEADS "[\\p{L}\\p{M}]+|\\p{N}"
                                     "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                                     "\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_LLAMA3, CONTRACTIONS "|" LEADS "\\p{L}+|\\p{N}{1,3}" ENDING},
    {SPLIT_RULE_O200K,
     LEADS UPPERS "*" LOWERS "+" CONTRACTIONS "?|" LEADS UPPERS "+" LOWERS "*" CONTRACTIONS
                  "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
                  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_DEEPSEEK_NUMBERS, "\\p{N}{1,3}"},
    {SPLIT_RULE_DEEPSEEK_CJK, "[一-龥぀-ゟ゠-ヿ]+"},
    {SPLIT_RULE_DEEPSEEK_WORDS,
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
};

static void check_split(enum split_rule rule, struct split_regex *regex,
                        struct split_regex_scratch *scratch, const char *text, size_t n)
{
    struct error error;
    for (size_t at = 0, start, end; at < n; at = end) {
        bool found;
        assert_int_equal(
            split_regex_find(regex, scratch, text, n, at, &found, &start, &end, &error), OK);
        for (size_t bytes; at < (found ? start : n); at += bytes) {
            assert_null(split_rule_match(rule, text + at, text + n));
            utf8_decode(text + at, &bytes);
        }
        if (!found)
            return;
        assert_true(end > at);
        const char *mine = split_rule_match(rule, text + at, text + n);
        if (mine != text + end)
            fail_msg("rule %d takes \"%.*s\" of \"%s\", its pattern \"%.*s\"", (int)rule,
                     (int)(mine ? mine - text - (ptrdiff_t)at : 0), text + at, text,
                     (int)(end - at), text + at);
    }
}

/* PCRE2 is an independent reader of the same patterns. The characters are old enough for any
 * version of it. */
static void the_matchers_split_as_their_patterns_say(void **state)
{
    (void)state;
    static const char *const units[] = {"a",
                                        "b",
                                        "S",
                                        "s",
                                        "t",
                                        "T",
                                        "L",
                                        "l",
                                        "re",
                                        "D",
                                        "Z",
                                        "'",
                                        "'s",
                                        "'LL",
                                        "'\xC5\xBF",
                                        "1",
                                        "23",
                                        " ",
                                        " ",
                                        "  ",
                                        "\t",
                                        "\n",
                                        "\r",
                                        "\r\n",
                                        "/",
                                        "//",
                                        "!",
                                        "-",
                                        "\"",
                                        "\xC2\xA0",
                                        "\xC2\x85",
                                        "\xE3\x80\x80",
                                        "\xC3\xA9",
                                        "\xC3\x89",
                                        "\xC7\x85",
                                        "\xCA\xB0",
                                        "\xC2\xAA",
                                        "\xE6\x97\xA5",
                                        "\xCC\x81",
                                        "\xD9\xA3",
                                        "\xC2\xBD",
                                        "\xE2\x85\xA7",
                                        "\xE2\x80\x8B",
                                        "\xF0\x9F\x91\x8D",
                                        "\xE0\xA4\xBF",
                                        "\xC5\xBF"};
    enum { N_UNITS = sizeof units / sizeof units[0] };
    struct split_regex_scratch *scratch = split_regex_scratch_new();
    assert_non_null(scratch);
    struct error error;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct split_regex *regex;
        const char *pattern = rules[i].pattern;
        assert_int_equal(split_rule_of_pattern(pattern, strlen(pattern)), rules[i].rule);
        assert_int_equal(split_regex_new(pattern, strlen(pattern), &regex, &error), OK);
        unsigned seed = 7;
        struct str text = {0};
        for (int k = 0; k < 30000; k++) {
            str_clear(&text);
            for (int n = 1 + k % 9; n > 0; n--) {
                seed = seed * 1664525u + 1013904223u;
                str_append_z(&text, units[(seed >> 12) % N_UNITS]);
            }
            check_split(rules[i].rule, regex, scratch, text.data, text.len);
        }
        str_done(&text);
        split_regex_free(regex);
    }
    assert_int_equal(split_rule_of_pattern("\\p{L}+", 6), SPLIT_RULE_NONE);
    split_regex_scratch_free(scratch);
}

static struct encoder *new_encoder(const struct tokenizer *t, size_t cache_bytes)
{
    struct encoder *encoder;
    struct error error;
    assert_int_equal(encoder_new(t, cache_bytes, &encoder, &error), OK);
    return encoder;
}

static void encode(struct encoder *encoder, const char *text, unsigned flags, struct token_ids *ids)
{
    struct error error;
    ids->n = 0;
    assert_int_equal(encoder_encode(encoder, text, strlen(text), flags, ids, &error), OK);
}

/* Without normalization a token ends where the bytes before it say. */
static void a_mark_counts_the_tokens_wholly_before_it(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_llama3");
    struct encoder *encoder = new_encoder(t, 1 << 20);
    const char *text = "<|im_start|>user\nThe ferries left, it's 12345!<|im_end|>\n"
                       "<|im_start|>assistant\n\xE6\xB8\xA1\xE5\x8F\xA3 fin";
    size_t n = strlen(text), marks[200], found[200];
    for (size_t i = 0; i <= n; i++)
        marks[i] = i;
    struct token_ids ids = {0};
    struct error error;
    for (unsigned flags = 0; flags <= ENCODE_ADD_SPECIAL; flags++) {
        ids.n = 0;
        assert_int_equal(
            encoder_encode_marked(encoder, text, n, flags, marks, n + 1, found, &ids, &error), OK);
        size_t nth = flags, end = 0, len = 0; /* the template puts one token before the text */
        for (size_t i = 0; i <= n; i++) {
            while (nth < ids.n - flags && tokenizer_token_bytes(t, ids.ids[nth], &len) &&
                   end + len <= i) {
                end += len;
                nth++;
            }
            assert_int_equal(found[i], nth);
        }
        assert_int_equal(found[n], ids.n - flags);
    }
    token_ids_done(&ids);
    encoder_free(encoder);
    tokenizer_free(t);
}

static void marks_survive_normalization_and_broken_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_qwen2");
    struct encoder *encoder = new_encoder(t, 1 << 20);
    /* é in two characters, a broken byte, and control tokens around them. */
    const char *text = "<|im_start|>e\xCC\x81<|im_end|>\xFF<|im_end|>x";
    const size_t marks[] = {0, 12, 13, 15, 25, 26, 36, 37};
    size_t found[8];
    struct token_ids ids = {0};
    struct error error;
    assert_int_equal(
        encoder_encode_marked(encoder, text, strlen(text), 0, marks, 8, found, &ids, &error), OK);
    size_t n_accent = 0;
    while (ids.ids[1 + n_accent] != tokenizer_find(t, "<|im_end|>", 10))
        n_accent++;
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 1);
    assert_int_equal(found[2], 1); /* inside the character */
    assert_int_equal(found[3], 1 + n_accent);
    assert_int_equal(found[4], 2 + n_accent);
    assert_int_equal(found[5], ids.n - 2); /* all of U+FFFD is before it */
    assert_int_equal(found[6], ids.n - 1);
    assert_int_equal(found[7], ids.n);
    assert_int_equal(encoder_encode_marked(encoder, text, 3, 0, marks, 2, found, &ids, &error),
                     ERROR_INVALID);
    token_ids_done(&ids);
    encoder_free(encoder);
    tokenizer_free(t);
}

static void a_failed_call_leaves_the_ids_that_were_there(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_qwen2");
    struct encoder *encoder = new_encoder(t, 0);
    struct token_ids ids = {0};
    struct error error;
    encode(encoder, "The ferry", 0, &ids);
    size_t n = ids.n;
    const size_t marks[] = {5, 2};
    size_t found[2];
    assert_int_equal(encoder_encode_marked(encoder, "abcdef", 6, 0, marks, 2, found, &ids, &error),
                     ERROR_INVALID);
    assert_int_equal(ids.n, n);
    assert_int_equal(encoder_encode(encoder, "", ENCODER_MAX_TEXT_BYTES + 1u, 0, &ids, &error),
                     ERROR_LIMIT);
    assert_int_equal(ids.n, n);
    token_ids_done(&ids);
    encoder_free(encoder);
    tokenizer_free(t);
}

static void the_cache_changes_nothing(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_qwen2");
    struct encoder *with = new_encoder(t, 4096), *without = new_encoder(t, 0);
    struct token_ids a = {0}, b = {0};
    char text[128];
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(text, sizeof text, "The ferry %u left-%xthe quay%.*s", i * 7919u % 991u, i % 307u,
                 (int)(i % 40), "abcdefghijklmnopqrstuvwxyzabcdefghijklmn");
        encode(with, text, 0, &a);
        encode(without, text, 0, &b);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    }
    token_ids_done(&a);
    token_ids_done(&b);
    encoder_free(with);
    encoder_free(without);
    tokenizer_free(t);
}

/* Seconds to encode a megabyte made by repeating or drawing from `letters`. */
static double time_megabyte(struct encoder *encoder, const char *letters, bool at_random)
{
    struct str text = {0};
    struct token_ids ids = {0};
    struct error error;
    unsigned seed = 1;
    size_t n_letters = strlen(letters);
    for (size_t i = 0; i < 1000000; i++) {
        seed = seed * 1664525u + 1013904223u;
        str_append_char(&text, letters[(at_random ? seed >> 16 : (unsigned)i) % n_letters]);
    }
    clock_t start = clock();
    assert_int_equal(encoder_encode(encoder, text.data, text.len, 0, &ids, &error), OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_true(ids.n > 1000 && ids.n <= text.len);
    str_done(&text);
    token_ids_done(&ids);
    return seconds;
}

/* Quadratic work would take many minutes; the bound leaves room for sanitizers and busy machines.
 */
static void a_megabyte_without_a_place_to_split_is_no_trouble(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_qwen2");
    struct encoder *encoder = new_encoder(t, 1 << 20);
    assert_true(time_megabyte(encoder, "a", false) < 20.0);
    assert_true(time_megabyte(encoder, "the", false) < 20.0);
    assert_true(time_megabyte(encoder, "abcdefghijklmnopqrstuvwxyz", true) < 20.0);
    assert_true(time_megabyte(encoder, " ", false) < 20.0);
    encoder_free(encoder);
    tokenizer_free(t);
}

/* Pushes ids one by one; every text that comes out must be whole UTF-8. */
static void push_all(const struct tokenizer *t, const int32_t *ids, size_t n, struct str *out)
{
    struct detokenizer d;
    struct detokenizer_piece piece;
    struct error error;
    detokenizer_init(&d, t);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(detokenizer_push(&d, ids[i], &piece, &error), OK);
        assert_int_equal(utf8_valid_prefix(piece.text, piece.len), piece.len);
        assert_int_equal(piece.id, ids[i]);
        str_append(out, piece.text, piece.len);
        str_append(out, piece.added, piece.added_len);
    }
    assert_int_equal(detokenizer_finish(&d, &piece, &error), OK);
    str_append(out, piece.text, piece.len);
    detokenizer_done(&d);
}

/* All sequences of up to four of these bytes: leads, continuations, limits and plain ones. */
static void pieces_add_up_to_the_text_with_broken_parts_replaced(void **state)
{
    (void)state;
    static const char bytes[] = "a\x80\x9F\xA0\xBF\xC3\xE0\xE4\xED\xF0\xF4\xFF";
    struct tokenizer *t = load_small("small_smollm");
    struct str out = {0}, expected = {0};
    struct error error;
    size_t n_bytes = sizeof bytes - 1, total = n_bytes * n_bytes * n_bytes * n_bytes;
    for (size_t i = 0; i < total; i++) {
        char text[4];
        int32_t ids[4];
        size_t rest = i;
        for (size_t k = 0; k < 4; k++, rest /= n_bytes) {
            text[k] = bytes[rest % n_bytes];
            ids[k] = tokenizer_find(t, &text[k], 1);
            assert_true(ids[k] >= 0);
        }
        str_clear(&out);
        push_all(t, ids, 4, &out);
        assert_int_equal(replace_invalid_utf8(text, 4, &expected, NULL, &error), OK);
        assert_string_equal(str_z(&out), expected.data);
    }
    str_done(&out);
    str_done(&expected);
    tokenizer_free(t);
}

static void a_special_token_travels_alone_and_ends_an_open_character(void **state)
{
    (void)state;
    struct tokenizer *t = load_small("small_qwen2");
    struct detokenizer d;
    struct detokenizer_piece piece;
    struct error error;
    int32_t end = tokenizer_find(t, "<|im_end|>", 10), think = tokenizer_find(t, "<think>", 7);
    assert_int_equal(tokenizer_token_flags(t, end), TOKEN_ADDED | TOKEN_SPECIAL);
    assert_int_equal(tokenizer_token_flags(t, think), TOKEN_ADDED);
    detokenizer_init(&d, t);
    assert_int_equal(detokenizer_push(&d, tokenizer_find(t, "\xE4", 1), &piece, &error), OK);
    assert_int_equal(piece.len + piece.added_len, 0);
    assert_int_equal(detokenizer_push(&d, end, &piece, &error), OK);
    assert_string_equal(piece.text, R);
    assert_int_equal(piece.added_len, 10);
    assert_memory_equal(piece.added, "<|im_end|>", 10);
    assert_int_equal(piece.flags, TOKEN_ADDED | TOKEN_SPECIAL);
    assert_int_equal(piece.id, end);
    assert_int_equal(detokenizer_push(&d, think, &piece, &error), OK);
    assert_int_equal(piece.len, 0);
    assert_int_equal(piece.flags, TOKEN_ADDED);
    assert_int_equal(detokenizer_push(&d, tokenizer_size(t) + 5, &piece, &error), OK);
    assert_int_equal(piece.len + piece.added_len, 0);
    assert_int_equal(detokenizer_push(&d, -1, &piece, &error), OK);
    assert_int_equal(piece.len + piece.added_len, 0);
    detokenizer_done(&d);

    const int32_t ids[] = {tokenizer_find(t, "\xC3", 1), end, tokenizer_find(t, "\xA9", 1)};
    struct str out = {0};
    assert_int_equal(tokenizer_decode(t, ids, 3, true, &out, &error), OK);
    assert_string_equal(out.data, "\xC3\xA9");
    str_done(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_utf8_is_replaced_by_maximal_parts),
        cmocka_unit_test(nfc_composes_orders_and_excludes),
        cmocka_unit_test(a_long_run_of_marks_costs_no_more_than_its_length),
        cmocka_unit_test(an_edit_says_where_its_result_came_from),
        cmocka_unit_test(the_matchers_split_as_their_patterns_say),
        cmocka_unit_test(a_mark_counts_the_tokens_wholly_before_it),
        cmocka_unit_test(marks_survive_normalization_and_broken_bytes),
        cmocka_unit_test(a_failed_call_leaves_the_ids_that_were_there),
        cmocka_unit_test(the_cache_changes_nothing),
        cmocka_unit_test(a_megabyte_without_a_place_to_split_is_no_trouble),
        cmocka_unit_test(pieces_add_up_to_the_text_with_broken_parts_replaced),
        cmocka_unit_test(a_special_token_travels_alone_and_ends_an_open_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
