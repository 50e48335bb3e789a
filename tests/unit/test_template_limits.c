/* A hostile template ends with an error, soon; and a long chat renders in linear time. */
#include "base/file.h"
#include "base/json.h"
#include "template/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The status of compiling and rendering `source` without messages. */
static enum status try(const char *source, size_t len, struct error *error)
{
    struct json messages = {.type = JT_ARRAY};
    struct chat_input input = {.messages = &messages};
    struct chat_template *t = NULL;
    struct chat_output out = {0};
    enum status status = chat_template_new(&t, source, len, error);
    if (status == OK)
        status = chat_template_render(t, &input, &out, error);
    chat_output_done(&out);
    chat_template_free(t);
    return status;
}

static void expect_limit(const char *source, const char *word)
{
    struct error error = {0};
    double begin = seconds();
    enum status status = try(source, strlen(source), &error);
    if (status != ERROR_LIMIT || !strstr(error.message, word))
        fail_msg("%.80s: %s: %s", source, status_name(status), error.message);
    assert_true(seconds() - begin < 60); /* under sanitizers, on a busy machine */
}

static void test_render_limits(void **state)
{
    (void)state;
    expect_limit("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
                 "steps");
    expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "macros");
    expect_limit("{{ range(1000000) }}", "range");
    expect_limit("{{ range(-9223372036854775807, 9223372036854775807) }}", "range");
    expect_limit("{{ 'a' * 100000000 }}", "repeated");
    expect_limit("{{ [0] * 60000000 }}", "memory");
    expect_limit("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
                 "{% set ns.x = ns.x + ns.x %}{% endfor %}",
                 "string");
    expect_limit("{% set x = 'a' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}", "MiB");
    expect_limit("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}"
                 "{% endfor %}{{ ns.x }}",
                 "nested");
    expect_limit("{% set ns = namespace(x=[], y=[]) %}{% for i in range(1000) %}"
                 "{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
                 "nested");
    expect_limit("{% set x = [] %}{{ x.append(x) }}{{ x }}", "nested");
    expect_limit("{% set x = [1] %}{% for i in x %}{% set _ = x.append(i) %}{% endfor %}", "limit");
    expect_limit("{% set x = range(30000)|list %}{% for i in x %}{% if -1 in x %}{% endif %}"
                 "{% endfor %}",
                 "steps");
    expect_limit("{{ '%9999999d' % 1 }}", "width");
    expect_limit("{{ 'a'.center(1000000000000) }}", "long");
    expect_limit("{% set x = 'aaaaaaaaaaaaaaaa' * 100000 %}{{ x.replace('', x) }}", "MiB");
}

/* `n` copies of `open`, a middle, and `n` copies of `close`. */
static void expect_nesting_refused(const char *open, const char *middle, const char *close,
                                   size_t n)
{
    struct str source = {0};
    struct error error = {0};
    for (size_t i = 0; i < n; i++)
        str_append_z(&source, open);
    str_append_z(&source, middle);
    for (size_t i = 0; i < n; i++)
        str_append_z(&source, close);
    enum status status = try(str_z(&source), source.len, &error);
    if (status != ERROR_LIMIT)
        fail_msg("%s: %s: %s", open, status_name(status), error.message);
    str_done(&source);
}

static void test_source_limits(void **state)
{
    (void)state;
    expect_nesting_refused("{% if 1 %}", "", "{% endif %}", 5000);
    expect_nesting_refused("{% for i in [1] %}", "", "{% endfor %}", 5000);
}

static void test_expression_nesting(void **state)
{
    (void)state;
    static const char *const parts[][3] = {
        {"(", "1", ")"},   {"[", "", "]"},
        {"not ", "1", ""}, {"-", "1", ""},
        {"1+", "1", ""},   {"'a'~", "'b'", ""},
        {"", "x", ".y"},   {"", "x", "|list"},
        {"", "x", "[0]"},  {"1 if 0 else ", "1", ""},
        {"{1:", "1", "}"}, {"range(", "1", ")"},
    };
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        struct str source = {0};
        struct error error = {0};
        str_append_z(&source, "{{ ");
        for (size_t i = 0; i < 20000; i++)
            str_append_z(&source, parts[k][0]);
        str_append_z(&source, parts[k][1]);
        for (size_t i = 0; i < 20000; i++)
            str_append_z(&source, parts[k][2]);
        str_append_z(&source, " }}");
        enum status status = try(str_z(&source), source.len, &error);
        /* A chain of ~ is one flat list. */
        if (status != (k == 5 ? OK : ERROR_LIMIT))
            fail_msg("%s: %s: %s", parts[k][0], status_name(status), error.message);
        str_done(&source);
    }
}

static void test_source_size(void **state)
{
    (void)state;
    struct str source = {0};
    struct error error = {0};
    for (size_t i = 0; i < (1 << 20) + 1; i++)
        str_append_char(&source, 'x');
    assert_int_equal(try(str_z(&source), source.len, &error), ERROR_LIMIT);
    assert_int_equal(try(str_z(&source), source.len - 1, &error), OK);
    str_done(&source);
}

/* ---- speed ---- */

static void build_chat(struct str *out, size_t n)
{
    str_append_z(out, "[{\"role\":\"system\",\"content\":\"You are helpful.\"}");
    for (size_t i = 0; i < n; i++)
        str_printf(out, ",{\"role\":\"%s\",\"content\":\"message %zu %s\"}",
                   i % 2 ? "assistant" : "user", i,
                   "with a sentence or two of text, so that there is something to copy around.");
    str_append_char(out, ']');
}

static double best_render(const struct chat_template *t, size_t n_messages, size_t *bytes)
{
    struct arena arena = {0};
    struct str text = {0};
    struct json messages;
    struct error error = {0};
    double best = 1e9;
    build_chat(&text, n_messages);
    assert_int_equal(json_parse(&arena, text.data, text.len, &messages, &error), OK);
    struct chat_input input = {.messages = &messages, .add_generation_prompt = true};
    for (int i = 0; i < 15; i++) {
        struct chat_output out;
        double begin = seconds();
        if (chat_template_render(t, &input, &out, &error) != OK)
            fail_msg("%s", error.message);
        double took = seconds() - begin;
        best = took < best ? took : best;
        *bytes = out.text.len;
        chat_output_done(&out);
    }
    str_done(&text);
    arena_done(&arena);
    return best;
}

static void time_template(const char *path)
{
    struct str source = {0};
    struct chat_template *t = NULL;
    struct error error = {0};
    size_t bytes = 0;
    assert_int_equal(file_read(path, 1 << 20, &source, &error), OK);
    double begin = seconds();
    assert_int_equal(chat_template_new(&t, str_z(&source), source.len, &error), OK);
    double compiled = seconds() - begin;
    double small = best_render(t, 100, &bytes), big = best_render(t, 1000, &bytes);
    print_message("%s: compiled in %.0f us; 100 messages in %.0f us, 1000 in %.0f us\n",
                  strrchr(path, '/') + 1, compiled * 1e6, small * 1e6, big * 1e6);
    assert_true(big < 40 * small + 0.01); /* linear, with room for noise */
    chat_template_free(t);
    str_done(&source);
}

static void test_long_chats(void **state)
{
    (void)state;
    const char *data = getenv("CSGL_TEST_DATA");
    struct str path = {0};
    time_template(SOURCE_DIR "/tests/data/templates/chatml.jinja");
    path_join(&path, data ? data : SOURCE_DIR "/../shared/data", "templates/Qwen-Qwen3-0.6B.jinja");
    if (file_exists(str_z(&path)))
        time_template(str_z(&path));
    else
        print_message("%s is absent; not timed\n", str_z(&path));
    str_done(&path);
}

/* A string built piece by piece costs its length, not its square. */
static void test_string_building(void **state)
{
    (void)state;
    struct error error = {0};
    const char *source = "{% set ns = namespace(x='') %}{% for i in range(100000) %}"
                         "{% set ns.x = ns.x + '0123456789' %}{% endfor %}{{ ns.x | length }}";
    double begin = seconds();
    if (try(source, strlen(source), &error) != OK)
        fail_msg("%s", error.message);
    assert_true(seconds() - begin < 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render_limits),      cmocka_unit_test(test_source_limits),
        cmocka_unit_test(test_expression_nesting), cmocka_unit_test(test_source_size),
        cmocka_unit_test(test_long_chats),         cmocka_unit_test(test_string_building),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
