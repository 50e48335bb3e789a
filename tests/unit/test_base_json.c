/* The JSON reader, tree and writer against Python's verdicts (tools/make_json_vectors.py), and what
 * the vectors cannot show: events, numbers, limits. */
#include "base/file.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t load_u32(const char *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static void python_accepts_and_writes_the_same(void **state)
{
    (void)state;
    struct str file = {0}, text = {0};
    struct error error = {0};
    int n[2] = {0, 0};
    if (file_read(SOURCE_DIR "/tests/data/json/vectors.bin", 1 << 22, &file, &error) != OK)
        fail_msg("%s", error.message);
    for (const char *at = file.data; at < file.data + file.len;) {
        bool is_accepted = *at != 0;
        uint32_t len = load_u32(at + 1);
        char *document = malloc(len + 1u); /* of its exact size, so that a read behind it shows */
        assert_non_null(document);
        memcpy(document, at + 5, len);
        at += 5 + len;
        uint32_t expected_len = load_u32(at);
        const char *expected = at + 4;
        at = expected + expected_len;
        struct arena arena = {0};
        struct json tree;
        error = (struct error){0};
        enum status status = json_parse(&arena, document, len, &tree, &error);
        if ((status == OK) != is_accepted)
            fail_msg("%.*s: %s, Python %s it: %s", (int)len, document, status_name(status),
                     is_accepted ? "accepts" : "refuses", error.message);
        if (status == OK) {
            str_clear(&text);
            json_write(&text, &tree);
            if (text.len != expected_len || memcmp(str_z(&text), expected, expected_len) != 0)
                fail_msg("%.*s became %s, Python writes %.*s", (int)len, document, str_z(&text),
                         (int)expected_len, expected);
        } else {
            assert_int_equal(error.status, status);
            assert_true(error.message[0] != 0);
            assert_true(json_parse(&arena, document, len, &tree, NULL) == status);
        }
        n[is_accepted]++;
        arena_done(&arena);
        free(document);
    }
    assert_true(n[0] > 2000 && n[1] > 400);
    str_done(&file);
    str_done(&text);
}

static struct json parse(struct arena *arena, const char *text)
{
    struct json tree;
    struct error error = {0};
    if (json_parse(arena, text, strlen(text), &tree, &error) != OK)
        fail_msg("%s: %s", text, error.message);
    return tree;
}

static void the_reader_reports_events_in_order(void **state)
{
    (void)state;
    const char text[] = "{\"a\": [1, \"\\u00e9\"], \"b\": {}, \"c\": [true, false, null]}";
    static const enum json_event events[] = {
        JSON_OBJECT, JSON_KEY,    JSON_ARRAY,      JSON_NUMBER,     JSON_STRING, JSON_ARRAY_END,
        JSON_KEY,    JSON_OBJECT, JSON_OBJECT_END, JSON_KEY,        JSON_ARRAY,  JSON_TRUE,
        JSON_FALSE,  JSON_NULL,   JSON_ARRAY_END,  JSON_OBJECT_END, JSON_END};
    struct json_reader r;
    struct error error = {0};
    json_reader_init(&r, text, sizeof text - 1);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        assert_int_equal(json_next(&r, &error), events[i]);
        if (i == 1)
            assert_true(json_text_is(&r, "a") && !json_text_is(&r, "ab") && !json_text_is(&r, ""));
        if (i == 4)
            assert_true(json_text_is(&r, "\xC3\xA9"));
    }
    assert_int_equal(json_next(&r, &error), JSON_FAILED); /* past the end, again and again */
    assert_int_equal(json_next(&r, &error), JSON_FAILED);
    json_reader_done(&r);
}

static void skipping_leaves_the_reader_behind_the_value(void **state)
{
    (void)state;
    const char text[] = "{\"a\": [[1, {\"x\": []}], 2], \"b\": 3, \"c\": 4}";
    struct json_reader r;
    struct error error = {0};
    json_reader_init(&r, text, sizeof text - 1);
    assert_int_equal(json_next(&r, &error), JSON_OBJECT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(json_next(&r, &error), JSON_KEY);
        assert_int_equal(r.text[0], 'a' + i);
        assert_int_equal(json_skip(&r, json_next(&r, &error), &error), OK);
    }
    assert_int_equal(json_next(&r, &error), JSON_OBJECT_END);
    assert_int_equal(json_next(&r, &error), JSON_END);
    json_reader_done(&r);
    json_reader_init(&r, "[[1", 3);
    assert_int_equal(json_skip(&r, json_next(&r, &error), &error), ERROR_INVALID);
    json_reader_done(&r);
}

static void integers_are_whole_and_in_range(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_int;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"42", true, 42},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"1e3", true, 1000},
        {"2.0", true, 2},
        {"2.5", false, 0},
        {"1e18", true, 1000000000000000000},
        {"1e19", false, 0},
        {"1e400", false, 0},
        {"1e-3", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
        {"0.00000000000000000000000000000000000000000000000000000000000000000001", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena = {0};
        struct json tree = parse(&arena, cases[i].text);
        int64_t value = 7;
        assert_int_equal(json_int(&tree, INT64_MIN, INT64_MAX, &value), cases[i].is_int);
        assert_true(!cases[i].is_int || value == cases[i].value);
        arena_done(&arena);
    }
    struct arena arena = {0};
    struct json tree = parse(&arena, "10");
    int64_t value;
    assert_true(json_int(&tree, 10, 10, &value));
    assert_false(json_int(&tree, 11, 20, &value));
    assert_false(json_int(&tree, 0, 9, &value));
    assert_false(json_int(NULL, 0, 9, &value));
    arena_done(&arena);
}

static void values_are_found_by_key_and_type(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct json tree = parse(
        &arena, "{\"s\": \"x\", \"n\": 1.5, \"b\": true, \"z\": null, \"a\": [1], \"s\": \"last\", "
                "\"k\\u0000\": 1}");
    assert_int_equal(tree.n, 7);
    assert_string_equal(json_string(json_get(&tree, "s")), "last"); /* as in Python */
    assert_true(json_string_is(json_get(&tree, "s"), "last"));
    assert_false(json_string_is(json_get(&tree, "s"), "las"));
    assert_false(json_string_is(json_get(&tree, "n"), "1.5"));
    assert_true(json_number(json_get(&tree, "n"), 0) == 1.5);
    assert_true(json_number(json_get(&tree, "s"), 7) == 7);
    assert_true(json_bool(json_get(&tree, "b"), false));
    assert_true(json_bool(json_get(&tree, "n"), true));
    assert_true(json_is_null(json_get(&tree, "z")) && json_is_null(json_get(&tree, "absent")));
    assert_false(json_is_null(json_get(&tree, "a")));
    assert_null(json_get(&tree, "k")); /* the key has a NUL more */
    assert_null(json_get(json_get(&tree, "a"), "0"));
    assert_null(json_get(NULL, "s"));
    assert_null(json_string(json_get(&tree, "a")));
    arena_done(&arena);
}

static void depth_is_limited_to_128(void **state)
{
    (void)state;
    for (int n = 128; n <= 129; n++) {
        for (int kind = 0; kind < 2; kind++) {
            struct str text = {0};
            for (int i = 0; i < n; i++)
                str_append_z(&text, kind ? "{\"a\":" : "[");
            str_append_z(&text, kind ? "1" : "");
            for (int i = 0; i < n; i++)
                str_append_z(&text, kind ? "}" : "]");
            struct arena arena = {0};
            struct json tree;
            struct error error = {0};
            enum status status = json_parse(&arena, text.data, text.len, &tree, &error);
            assert_int_equal(status, n == 128 ? OK : ERROR_LIMIT);
            arena_done(&arena);
            str_done(&text);
        }
    }
}

static void memory_is_limited_by_the_arena(void **state)
{
    (void)state;
    struct str text = {0};
    str_append_z(&text, "[0");
    for (int i = 0; i < 10000; i++)
        str_append_z(&text, ",{\"k\":[]}");
    str_append_char(&text, ']');
    struct arena arena = {.limit = 1 << 16};
    struct json tree;
    struct error error = {0};
    assert_int_equal(json_parse(&arena, text.data, text.len, &tree, &error), ERROR_LIMIT);
    assert_true(arena.used <= 1 << 16);
    assert_non_null(strstr(error.message, "65536"));
    arena_done(&arena);
    str_done(&text);
}

static void a_document_cut_anywhere_is_refused(void **state)
{
    (void)state;
    const char text[] =
        "{\"a\": [1.5e3, \"\\ud83d\\ude00\xF0\x9F\x98\x80\", true, {}], \"b\": null}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *copy = malloc(n + 1);
        assert_non_null(copy);
        memcpy(copy, text, n);
        struct arena arena = {0};
        struct json tree;
        struct error error = {0};
        assert_int_equal(json_parse(&arena, copy, n, &tree, &error), ERROR_INVALID);
        assert_non_null(strstr(error.message, "byte"));
        arena_done(&arena);
        free(copy);
    }
    struct arena arena = {0};
    struct json tree;
    assert_int_equal(json_parse(&arena, NULL, 0, &tree, NULL), ERROR_INVALID);
    arena_done(&arena);
}

static void strings_are_escaped_as_python_does(void **state)
{
    (void)state;
    struct str out = {0};
    json_write_string(&out, "\0\x01\x1F \"\\/\b\f\n\r\t\x7F\xC3\xA9", 15);
    assert_string_equal(str_z(&out),
                        "\"\\u0000\\u0001\\u001f \\\"\\\\/\\b\\f\\n\\r\\t\x7F\xC3\xA9\"");
    str_clear(&out);
    json_write_string(&out, "", 0);
    assert_string_equal(str_z(&out), "\"\"");
    str_done(&out);
}

static void utf8_sequences_are_measured_strictly(void **state)
{
    (void)state;
    /* Every code point is one sequence of the length that its encoder gave it; surrogates are not.
     */
    for (unsigned c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 37) {
        struct str out = {0};
        str_append_utf8(&out, c);
        bool is_surrogate = c >= 0xD800 && c < 0xE000;
        assert_int_equal(utf8_sequence(out.data, out.len), is_surrogate ? 0 : out.len);
        if (out.len > 1)
            assert_int_equal(utf8_sequence(out.data, out.len - 1), 0);
        str_done(&out);
    }
    static const char *const wrong[] = {"\x80",
                                        "\xC0\x80",
                                        "\xC1\xBF",
                                        "\xE0\x9F\xBF",
                                        "\xF0\x8F\xBF\xBF",
                                        "\xF4\x90\x80\x80",
                                        "\xF5\x80\x80\x80",
                                        "\xFF",
                                        "\xE2\x28\xA1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(utf8_sequence(wrong[i], strlen(wrong[i])), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(python_accepts_and_writes_the_same),
        cmocka_unit_test(the_reader_reports_events_in_order),
        cmocka_unit_test(skipping_leaves_the_reader_behind_the_value),
        cmocka_unit_test(integers_are_whole_and_in_range),
        cmocka_unit_test(values_are_found_by_key_and_type),
        cmocka_unit_test(depth_is_limited_to_128),
        cmocka_unit_test(memory_is_limited_by_the_arena),
        cmocka_unit_test(a_document_cut_anywhere_is_refused),
        cmocka_unit_test(strings_are_escaped_as_python_does),
        cmocka_unit_test(utf8_sequences_are_measured_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
