/* response_template and response_schema against transformers' own parsers
 * (tools/make_parser_vectors.py), whole and cut into pieces; what is refused when they are loaded.
 */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "unit/parser_run.h"

enum { RANDOM_SPLITS = 40 };

static enum status load_response(const char *key, const struct json *declaration,
                                 struct parser_response **out, struct error *error)
{
    struct json_member member = {.key = key, .key_len = strlen(key), .value = *declaration};
    struct json config = {.type = JT_OBJECT, .n = 1, .members = &member};
    return parser_response_new(&config, out, error);
}

/* Equal as Python values: numbers by value, objects whatever their order. */
static bool same_value(const struct json *a, const struct json *b)
{
    if (a->type != b->type || (a->type != JT_NUMBER && a->type != JT_BOOL && a->n != b->n))
        return false;
    bool same = true;
    switch (a->type) {
    case JT_NUMBER:
        return json_number(a, 0) == json_number(b, 1);
    case JT_BOOL:
        return a->boolean == b->boolean;
    case JT_STRING:
        return memcmp(a->text, b->text, a->n) == 0;
    case JT_ARRAY:
        for (size_t i = 0; i < a->n && same; i++)
            same = same_value(&a->items[i], &b->items[i]);
        return same;
    case JT_OBJECT:
        for (size_t i = 0; i < a->n && same; i++) {
            const struct json *other = json_get(b, a->members[i].key);
            same = other && same_value(&a->members[i].value, other);
        }
        return same;
    default:
        return true;
    }
}

static bool same_as_recorded(const struct parser_message *m, const struct json *expect)
{
    const struct json *calls = json_get(expect, "calls");
    bool same = json_string_is(json_get(expect, "content"), str_z(&m->content)) &&
                json_string_is(json_get(expect, "reasoning"), str_z(&m->reasoning)) &&
                calls->n == m->n_calls;
    for (size_t i = 0; i < m->n_calls && same; i++) {
        const struct parser_call *call = &m->calls[i];
        struct arena arena = {0};
        struct json arguments;
        same = call->is_ended && call->is_valid &&
               json_string_is(json_get(&calls->items[i], "name"), str_z(&call->name)) &&
               json_parse(&arena, str_z(&call->arguments), call->arguments.len, &arguments, NULL) ==
                   OK &&
               same_value(&arguments, json_get(&calls->items[i], "arguments"));
        arena_done(&arena);
    }
    return same;
}

/* Where transformers raises an error, the text must come back: all of it for a schema. */
static bool is_kept(const struct parser_message *m, const struct json *output)
{
    return m->content.len > 0 && strstr(output->text, str_z(&m->content)) != NULL;
}

static void check_case(const struct parser_run *run, const struct json *c, const char *name)
{
    struct parser_message whole = {0};
    for (uint32_t seed = 0; seed <= RANDOM_SPLITS; seed++) {
        struct parser_message m = {0};
        struct error error = {0};
        struct str got = {0};
        size_t max = seed ? 1 + (seed - 1) % 12 : 0;
        const char *wrong = run_parser(run, max, seed, &m, &error);
        if (wrong)
            fail_msg("%s: %s: %s", name, wrong, error.message);
        describe(&m, &got);
        const struct json *expect = json_get(c, "expect");
        struct str expected = {0};
        if (expect)
            json_write(&expected, expect);
        if (expect ? !same_as_recorded(&m, expect) : !is_kept(&m, json_get(c, "output")))
            fail_msg("%s: %s (pieces of %zu):\n got      %s\n expected %s", name,
                     json_get(c, "output")->text, max, str_z(&got), str_z(&expected));
        if (seed && !same_message(&m, &whole))
            fail_msg("%s: %s: pieces of %zu change the message: %s", name,
                     json_get(c, "output")->text, max, str_z(&got));
        str_done(&got);
        str_done(&expected);
        if (seed)
            parser_message_done(&m);
        else
            whole = m;
    }
    parser_message_done(&whole);
}

static int check_file(const char *path, const char *key)
{
    struct str text = {0};
    struct arena arena = {0};
    struct json tree;
    struct error error = {0};
    int n = 0;
    if (file_read(path, 1 << 22, &text, &error) != OK ||
        json_parse(&arena, text.data, text.len, &tree, &error) != OK)
        fail_msg("%s", error.message);
    const struct json *rows = json_get(&tree, "declarations");
    for (size_t i = 0; i < rows->n; i++) {
        const char *name = json_string(json_get(&rows->items[i], "name"));
        const struct json *cases = json_get(&rows->items[i], "cases");
        struct parser_response *response;
        if (load_response(key, json_get(&rows->items[i], "declaration"), &response, &error) != OK)
            fail_msg("%s: %s", name, error.message);
        struct parser_config config = {.response = response};
        for (size_t k = 0; k < cases->n; k++, n++) {
            const struct json *tail = json_get(&cases->items[k], "tail");
            const struct json *output = json_get(&cases->items[k], "output");
            struct parser_run run = {.config = &config,
                                     .tools = json_get(&tree, "tools"),
                                     .tail = tail->text,
                                     .tail_len = tail->n,
                                     .text = output->text,
                                     .text_len = output->n};
            check_case(&run, &cases->items[k], name);
        }
        parser_response_free(response);
    }
    arena_done(&arena);
    str_done(&text);
    return n;
}

static void templates_mean_what_transformers_makes_of_them(void **state)
{
    (void)state;
    assert_true(check_file(SOURCE_DIR "/tests/data/parser/templates.json", "response_template") >
                30);
}

static void schemas_mean_what_transformers_made_of_them(void **state)
{
    (void)state;
    assert_true(check_file(SOURCE_DIR "/tests/data/parser/schemas.json", "response_schema") > 15);
}

static void check_refused(const char *config_text, enum status expected, const char *part)
{
    struct arena arena = {0};
    struct json config;
    struct error error = {0};
    struct parser_response *response;
    assert_int_equal(json_parse(&arena, config_text, strlen(config_text), &config, &error), OK);
    enum status status = parser_response_new(&config, &response, &error);
    if (status != expected || !strstr(error.message, part))
        fail_msg("%s: %s: %s", config_text, status_name(status), error.message);
    assert_null(response);
    arena_done(&arena);
}

static void declarations_that_cannot_be_kept_are_refused(void **state)
{
    (void)state;
#define TEMPLATE(fields)                                                                           \
    "{\"response_template\": {\"start_anchor\": \"x\", \"fields\": " fields "}}"
    check_refused("{\"response_template\": 3}", ERROR_INVALID, "object");
    check_refused("{\"response_template\": {\"fields\": {\"content\": {}}}}", ERROR_INVALID,
                  "start_anchor");
    check_refused("{\"response_template\": {\"version\": 2}}", ERROR_UNSUPPORTED, "version 2");
    check_refused("{\"response_template\": {\"extra\": 2}}", ERROR_UNSUPPORTED, "extra");
    check_refused(TEMPLATE("{}"), ERROR_INVALID, "fields");
    check_refused(TEMPLATE("{\"a\": {}, \"b\": {}}"), ERROR_INVALID, "opener");
    check_refused(TEMPLATE("{\"a\": {\"what\": 1}}"), ERROR_UNSUPPORTED, "what");
    check_refused(TEMPLATE("{\"a\": {\"open\": \"\"}}"), ERROR_INVALID, "not empty");
    check_refused(TEMPLATE("{\"a\": {\"open\": []}}"), ERROR_INVALID, "list");
    check_refused(TEMPLATE("{\"a\": {\"open\": \"x\", \"open_pattern\": \"x\"}}"), ERROR_INVALID,
                  "both");
    check_refused(TEMPLATE("{\"a\": {\"open_pattern\": \"(\"}}"), ERROR_INVALID, "not understood");
    check_refused(TEMPLATE("{\"a\": {\"open_pattern\": \"(?P<n>x)\"}}"), ERROR_INVALID,
                  "named groups");
    check_refused(TEMPLATE("{\"a\": {\"join\": \"\"}}"), ERROR_INVALID, "join");
    check_refused(TEMPLATE("{\"a\": {\"transform_each\": true}}"), ERROR_INVALID, "transform");
    check_refused(TEMPLATE("{\"a\": {\"content\": \"yaml\"}}"), ERROR_INVALID, "parser");
    check_refused(TEMPLATE("{\"a\": {\"transform\": [\"x {y}\"]}}"), ERROR_INVALID, "mixes");
    check_refused("{\"response_schema\": {\"properties\": {\"a\": {\"x-regex\": \"[\"}}}}",
                  ERROR_INVALID, "not understood");
    check_refused("{\"response_schema\": {\"x-parser-args\": {\"transform\": \"sort(@)\"}}}",
                  ERROR_UNSUPPORTED, "functions");
    struct parser_response *response;
    struct json empty = {.type = JT_OBJECT};
    assert_int_equal(parser_response_new(&empty, &response, NULL), OK);
    assert_null(response);
}

/* A parser by a template of these fields. */
struct template_parser {
    struct arena arena;
    struct str text;
    struct parser_response *response;
    struct parser_config config;
    struct output_parser *parser;
};

static void template_open(struct template_parser *t, const char *fields, const struct json *tools)
{
    struct json config_tree;
    *t = (struct template_parser){0};
    str_printf(&t->text, "{\"response_template\": {\"start_anchor\": \">\", \"fields\": %s}}",
               fields);
    assert_int_equal(json_parse(&t->arena, t->text.data, t->text.len, &config_tree, NULL), OK);
    assert_int_equal(parser_response_new(&config_tree, &t->response, NULL), OK);
    t->config = (struct parser_config){.response = t->response};
    assert_int_equal(output_parser_new(&t->config, "", 0, tools, &t->parser, NULL), OK);
}

static void template_close(struct template_parser *t)
{
    output_parser_free(t->parser);
    parser_response_free(t->response);
    arena_done(&t->arena);
    str_done(&t->text);
}

/* The function f. */
static struct json_member f_name = {
    .key = "name", .key_len = 4, .value = {.type = JT_STRING, .n = 1, .text = "f"}};
static struct json f_function = {.type = JT_OBJECT, .n = 1, .members = &f_name};
static const struct json f_tools = {.type = JT_ARRAY, .n = 1, .items = &f_function};

/* Text must not wait for the end, and structured regions must not be lost when they are cut off. */
static void check_pieces(const char *fields, const char *const *pieces, const char *const *expected,
                         size_t n, enum parser_reason reason, const struct json *tools)
{
    struct template_parser t;
    template_open(&t, fields, tools);
    for (size_t i = 0; i <= n; i++) {
        struct str got = {0};
        size_t n_events;
        if (i < n)
            assert_int_equal(
                output_parser_push(t.parser, pieces[i], strlen(pieces[i]), false, NULL), OK);
        else
            assert_int_equal(output_parser_finish(t.parser, reason, NULL), OK);
        const struct parser_event *events = output_parser_events(t.parser, &n_events);
        for (size_t k = 0; k < n_events; k++)
            str_printf(&got, "%c:%.*s", "rcbae"[events[k].type], (int)events[k].len,
                       events[k].text);
        assert_string_equal(str_z(&got), expected[i]);
        str_done(&got);
    }
    template_close(&t);
}

static void template_text_streams_and_cut_off_calls_are_kept(void **state)
{
    (void)state;
    static const char fields[] =
        "{\"content\": {}, \"thinking\": {\"open\": \"<t>\", \"close\": \"</t>\"}, \"tool_calls\": "
        "{\"open_pattern\": \"<c (?P<n>\\\\w+)>\", \"close\": \"</c>\", \"content\": "
        "\"xml-inline\", "
        "\"content_args\": {\"tag_pattern\": \"<(?P<key>\\\\w)>(?P<value>.)\"}, "
        "\"transform\": {\"name\": \"{n}\", \"arguments\": \"{content}\"}}}";
    static const char *const pieces[] = {"<t> a", " b ", "</t",
                                         ">c <",  " ",   "<c f><a>1</c><c g><b>2"};
    const char *now[] = {"r:a", "r: b", "", "c:c", "c: <", "b:fa:{\"a\": \"1\"}e:", "c:<c g><b>2"};
    check_pieces(fields, pieces, now, 6, PARSER_LENGTH, &f_tools);
    now[6] = "b:ga:{\"b\": \"2\"}e:";
    check_pieces(fields, pieces, now, 6, PARSER_STOP, &f_tools);
    now[6] = "c:<c g><b>2";
    now[5] = "c:<c f><a>1</c>";
    check_pieces(fields, pieces, now, 6, PARSER_STOP, NULL);
}

/* The message that pieces give by a template of these fields. */
static void run_template(const char *fields, const char *const *pieces, int n_pieces,
                         struct parser_message *out)
{
    struct template_parser t;
    template_open(&t, fields, &f_tools);
    *out = (struct parser_message){0};
    for (int i = 0; i < n_pieces; i++) {
        assert_int_equal(output_parser_push(t.parser, pieces[i], strlen(pieces[i]), false, NULL),
                         OK);
        assert_null(collect(t.parser, out));
    }
    assert_int_equal(output_parser_finish(t.parser, PARSER_STOP, NULL), OK);
    assert_null(collect(t.parser, out));
    template_close(&t);
}

/* A pattern that backtracks without end gives up, and the text is still there. */
static void a_runaway_pattern_loses_nothing(void **state)
{
    (void)state;
    static const char fields[] =
        "{\"content\": {}, \"thinking\": {\"open_pattern\": \"(a+)+$b\", \"close\": \"</t>\"}}";
    static const char *const pieces[] = {"x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac",
                                         "d"};
    struct parser_message m;
    run_template(fields, pieces, 2, &m);
    assert_string_equal(str_z(&m.content),
                        "x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaacd");
    parser_message_done(&m);
}

/* Arguments that a template takes as text are valid if the text is an object. */
static void arguments_as_text_are_valid_if_they_are_an_object(void **state)
{
    (void)state;
    static const char fields[] =
        "{\"content\": {}, \"tool_calls\": {\"open_pattern\": \"<c (?P<n>\\\\w+)>\", \"close\": "
        "\"</c>\", \"transform\": {\"name\": \"{n}\", \"arguments\": \"{content}\"}}}";
    static const struct {
        const char *arguments;
        bool is_valid;
    } cases[] = {
        {" {\"a\": 1}", true}, {"\": \"", false}, {"[1]", false}, {"3", false}, {"{", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *pieces[] = {"<c f>", cases[i].arguments, "</c>"};
        struct parser_message m;
        run_template(fields, pieces, 3, &m);
        assert_int_equal(m.n_calls, 1);
        assert_int_equal(m.calls[0].is_valid, cases[i].is_valid);
        parser_message_done(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_mean_what_transformers_makes_of_them),
        cmocka_unit_test(schemas_mean_what_transformers_made_of_them),
        cmocka_unit_test(declarations_that_cannot_be_kept_are_refused),
        cmocka_unit_test(template_text_streams_and_cut_off_calls_are_kept),
        cmocka_unit_test(a_runaway_pattern_loses_nothing),
        cmocka_unit_test(arguments_as_text_are_valid_if_they_are_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
