/* What surrounds the template: normalised messages, marks, continuing a message,
 * tokenizer_config.json. */
#include "base/json.h"
#include "template/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

struct fixture {
    struct arena arena;
    struct chat_template *t;
    struct chat_input input;
    struct chat_output out;
    struct error error;
    enum status status;
};

static const struct json *parse(struct fixture *f, const char *text)
{
    struct json *json = arena_alloc(&f->arena, sizeof *json);
    struct error error = {0};
    if (text && json_parse(&f->arena, text, strlen(text), json, &error) != OK)
        fail_msg("%s", error.message);
    return text ? json : NULL;
}

/* Renders `source` over `messages` (JSON); the rest of the input may have been set before. */
static void render(struct fixture *f, const char *source, const char *messages)
{
    f->input.messages = parse(f, messages);
    f->status = chat_template_new(&f->t, source, strlen(source), &f->error);
    if (f->status == OK)
        f->status = chat_template_render(f->t, &f->input, &f->out, &f->error);
}

static void done(struct fixture *f)
{
    chat_output_done(&f->out);
    chat_template_free(f->t);
    arena_done(&f->arena);
}

static void expect_text(const char *source, const char *messages, const char *expected)
{
    struct fixture f = {0};
    render(&f, source, messages);
    if (f.status != OK)
        fail_msg("%s", f.error.message);
    assert_string_equal(str_z(&f.out.text), expected);
    done(&f);
}

static void expect_error(const char *source, const char *messages, enum status status,
                         const char *sentence)
{
    struct fixture f = {0};
    render(&f, source, messages);
    assert_int_equal(f.status, status);
    assert_string_equal(f.error.message, sentence);
    done(&f);
}

#define DUMP "{{ messages[0] | tojson }}"

static void test_null_content(void **state)
{
    (void)state;
    const char *messages =
        "[{\"role\":\"assistant\",\"content\":null,\"name\":null,\"tool_calls\":[]}]";
    expect_text(DUMP, messages, "{\"role\": \"assistant\", \"content\": \"\"}");
    expect_text(DUMP "{% if messages[0].content is none %}!{% endif %}", messages,
                "{\"role\": \"assistant\", \"content\": null}!");
    expect_text(DUMP, "[{\"role\":\"assistant\"}]", "{\"role\": \"assistant\", \"content\": \"\"}");
}

static void test_content_parts(void **state)
{
    (void)state;
    const char *parts =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"x\":1},"
        "{\"type\":\"input_text\",\"text\":\"b\"}]}]";
    const char *walk = "{% for c in messages[0]['content'] %}{% endfor %}";
    char source[400];
    expect_text("{{ messages[0].content }}", parts, "a\nb");
    snprintf(source, sizeof source, "%s%s", walk, DUMP);
    expect_text(source, parts,
                "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
                "{\"type\": \"text\", \"text\": \"b\"}]}");
    /* A template that only knows parts gets parts; one that asks for strings gets strings. */
    expect_text(source, "[{\"role\":\"user\",\"content\":\"s\"}]",
                "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"s\"}]}");
    snprintf(source, sizeof source, "%s%s{%% if messages[0].content is string %%}!{%% endif %%}",
             walk, DUMP);
    expect_text(source, "[{\"role\":\"user\",\"content\":\"s\"}]",
                "{\"role\": \"user\", \"content\": \"s\"}!");
}

static void test_malformed_messages(void **state)
{
    (void)state;
    expect_error(DUMP, "{}", ERROR_INVALID, "messages is not a list");
    expect_error(DUMP, "[1]", ERROR_INVALID, "messages[0] is not an object");
    expect_error(DUMP, "[{\"role\":\"user\",\"content\":\"\"},{\"content\":\"x\"}]", ERROR_INVALID,
                 "messages[1] has no role");
    expect_error(DUMP, "[{\"role\":\"user\",\"content\":5}]", ERROR_INVALID,
                 "messages[0].content is neither a string nor a list of parts");
    expect_error(
        DUMP,
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
        "\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
        ERROR_INVALID,
        "messages[0].content[1] is a part of type 'image_url'; only text parts are supported");
    expect_error(DUMP, "[{\"role\":\"assistant\",\"tool_calls\":{}}]", ERROR_INVALID,
                 "messages[0].tool_calls is not a list");
}

static void test_arguments(void **state)
{
    (void)state;
    const char *call = "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                       "\"arguments\":\"{\\\"a\\\": 1.50}\"}}]}]";
    const char *field = "messages[0].tool_calls[0].function.arguments";
    char source[400];
    snprintf(source, sizeof source, "{{ %s | tojson }}", field);
    expect_text(source, call, "{\"a\": 1.5}");
    expect_text(source,
                "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                "\"arguments\":\"{oops\"}}]}]",
                "{\"value\": \"{oops\"}");
    /* A template that adds them to a string wants the text as it came. */
    snprintf(source, sizeof source, "{{ 'x' + %s }}", field);
    expect_text(source, call, "x{\"a\": 1.50}");
}

static void test_roles_and_reasoning(void **state)
{
    (void)state;
    expect_text("{{ messages[0].role }}", "[{\"role\":\"developer\",\"content\":\"\"}]", "system");
    expect_text("{{ messages[0].role }}{# developer #}", "[{\"role\":\"developer\"}]", "developer");
    const char *reasoned = "[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning\":\"r\"}]";
    expect_text("{{ messages[0].reasoning_content }}", reasoned, "r");
    expect_text("{{ messages[0].thinking }}", reasoned, "r");
}

static void test_kwargs(void **state)
{
    (void)state;
    struct fixture f = {0};
    f.input.kwargs = parse(&f, "{\"enable_thinking\":false,\"tools\":[1],\"bos_token\":\"B\"}");
    struct chat_token bos = {"bos_token", "<s>"};
    f.input.tokens = &bos;
    f.input.n_tokens = 1;
    render(&f, "{{ enable_thinking }} {{ tools }} {{ bos_token }} {{ documents }}", "[]");
    assert_string_equal(str_z(&f.out.text), "False None B None");
    done(&f);
    f = (struct fixture){0};
    f.input.kwargs = parse(&f, "{\"messages\":[]}");
    render(&f, "x", "[]");
    assert_int_equal(f.status, ERROR_INVALID);
    assert_non_null(strstr(f.error.message, "'messages'"));
    done(&f);
}

static void test_errors_name_the_line(void **state)
{
    (void)state;
    expect_error("a\n{{ nope.x }}", "[]", ERROR_INVALID,
                 "chat template line 2: 'nope' is undefined");
    expect_error("{{ messages[0].content.foo.bar }}", "[{\"role\":\"user\",\"content\":\"\"}]",
                 ERROR_INVALID, "chat template line 1: 'str object' has no attribute 'foo'");
    expect_error("{{ raise_exception('Roles must alternate.') }}", "[]", ERROR_INVALID,
                 "Roles must alternate.");
    expect_error("\n\n{{ 1 + }}", "[]", ERROR_INVALID,
                 "chat template line 3: an expression was expected");
    expect_error("{% include 'x' %}", "[]", ERROR_INVALID,
                 "chat template line 1: the tag 'include' is unknown or out of place");
    expect_error("{{ 1 | frobnicate }}", "[]", ERROR_UNSUPPORTED,
                 "chat template line 1: the filter 'frobnicate' is not known");
    expect_error("\xff", "[]", ERROR_INVALID, "chat template byte 0 is not UTF-8");
}

/* ---- marks ---- */

#define CHAT                                                                                       \
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"u\"},"              \
    "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"v\"}]"

static void expect_marks(const char *source, size_t header_end, const size_t starts[4])
{
    struct fixture f = {0};
    render(&f, source, CHAT);
    if (f.status != OK)
        fail_msg("%s", f.error.message);
    assert_int_equal(f.out.n_messages, 4);
    for (size_t i = 0; i < 4; i++)
        if (f.out.message_starts[i] != starts[i])
            fail_msg("%s: message %zu begins at %zu, not %zu", source, i, f.out.message_starts[i],
                     starts[i]);
    assert_int_equal(f.out.header_end, header_end);
    done(&f);
}

static void test_marks(void **state)
{
    (void)state;
    /* every message in the loop, after a scan that prints nothing */
    expect_marks("<s>{% for m in messages[::-1] %}{% set x = m.role %} {% endfor %}"
                 "{% for m in messages %}[{{ m.content }}]{% endfor %}",
                 10, (const size_t[]){7, 10, 13, 16});
    /* the first printed iteration counts, whatever a later loop prints */
    expect_marks("{% for m in messages %}[{{ m.content }}]{% endfor %}"
                 "{% for m in messages %}{{ m.role }}{% endfor %}",
                 3, (const size_t[]){0, 3, 6, 9});
    /* the system prompt folded into a header */
    expect_marks(
        "HEAD{{ messages[0].content }}{% for m in messages[1:] %}{{ m.content }};{% endfor %}", 5,
        (const size_t[]){0, 5, 7, 9});
    /* a selection of the messages; what it leaves out begins where the next begins */
    expect_marks("{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.content }}{% "
                 "endfor %}.",
                 0, (const size_t[]){0, 0, 1, 1});
    /* no loop over messages */
    expect_marks("{{ messages[3].content }}", 0, (const size_t[]){0, 0, 0, 0});
    /* the last user message in its own place */
    expect_marks("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}{% "
                 "endfor %}!",
                 1, (const size_t[]){0, 1, 2, 4});
}

static void test_places_where_chats_part(void **state)
{
    (void)state;
    const char *source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
                         "{% if add_generation_prompt %}<a>{% endif %}";
    struct chat_template *t;
    struct chat_texts texts = {.messages = {CHAT, strlen(CHAT)}};
    struct chat_input input = {.add_generation_prompt = true};
    struct chat_output out = {0};
    size_t marks[CHAT_MAX_MARKS];
    assert_int_equal(chat_template_new(&t, source, strlen(source), NULL), OK);
    assert_int_equal(chat_template_render_json(t, &texts, &input, &out, NULL), OK);
    assert_string_equal(str_z(&out.text), "[S][u][a][v]<a>");
    size_t tail = chat_template_tail(t, &texts, &input, &out);
    assert_int_equal(tail, 12);
    assert_int_equal(chat_output_marks(&out, tail, marks), 3);
    assert_int_equal(marks[0], 3);
    assert_int_equal(marks[1], 9);
    assert_int_equal(marks[2], 12);
    /* A message alone: no header, and it begins where the text does. */
    out.header_end = 0;
    out.n_messages = 1;
    assert_int_equal(chat_output_marks(&out, tail, marks), 1);
    assert_int_equal(marks[0], 12);
    chat_output_done(&out);
    chat_template_free(t);
}

/* ---- continuing ---- */

static void test_continue_final_message(void **state)
{
    (void)state;
    const char *source = "{% for m in messages %}<{{ m.content }}>\n{% endfor %}";
    const char *trimming = "{% for m in messages %}<{{ m.content | trim }}>\n{% endfor %}";
    const char *messages = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                           "\"content\":\"The answer  \"}]";
    struct fixture f = {.input.continue_final_message = true};
    render(&f, source, messages);
    assert_int_equal(f.status, OK);
    assert_string_equal(str_z(&f.out.text), "<q>\n<The answer  ");
    assert_int_equal(f.out.message_starts[1], 4);
    done(&f);
    f = (struct fixture){.input.continue_final_message = true};
    render(&f, trimming, messages);
    assert_string_equal(str_z(&f.out.text), "<q>\n<The answer");
    done(&f);
    f = (struct fixture){.input.continue_final_message = true};
    render(&f, "no {# content #}", messages);
    assert_int_equal(f.status, ERROR_INVALID);
    done(&f);
    f = (struct fixture){.input.continue_final_message = true, .input.add_generation_prompt = true};
    render(&f, source, messages);
    assert_int_equal(f.status, ERROR_INVALID);
    done(&f);
}

/* ---- tokenizer_config.json ---- */

static void expect_template(const char *config, bool tools, const char *expected)
{
    struct fixture f = {0};
    const char *source = NULL;
    size_t len = 0;
    enum status status = chat_template_find(parse(&f, config), tools, &source, &len, &f.error);
    assert_int_equal(status, expected ? OK : ERROR_NOT_FOUND);
    if (expected) {
        assert_int_equal(len, strlen(expected));
        assert_string_equal(source, expected);
    }
    arena_done(&f.arena);
}

static void test_config(void **state)
{
    (void)state;
    const char *list =
        "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"R\"},{\"name\":\"tool_use\","
        "\"template\":\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}";
    expect_template("{\"chat_template\":\"abc\"}", true, "abc");
    expect_template(list, true, "T");
    expect_template(list, false, "D");
    expect_template("{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"}]}", true, "D");
    expect_template("{}", false, NULL);
    expect_template("{\"chat_template\":[{\"name\":\"rag\",\"template\":\"R\"}]}", false, NULL);
    struct fixture f = {0};
    struct chat_token tokens[CHAT_MAX_TOKENS];
    size_t n = chat_tokens_read(
        parse(&f,
              "{\"eos_token\":{\"content\":\"</s>\"},\"bos_token\":\"<s>\",\"unk_token\":null}"),
        tokens);
    assert_int_equal(n, 2);
    assert_string_equal(tokens[0].name, "bos_token");
    assert_string_equal(tokens[0].text, "<s>");
    assert_string_equal(tokens[1].name, "eos_token");
    assert_string_equal(tokens[1].text, "</s>");
    arena_done(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_content),
        cmocka_unit_test(test_content_parts),
        cmocka_unit_test(test_malformed_messages),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_roles_and_reasoning),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_errors_name_the_line),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_places_where_chats_part),
        cmocka_unit_test(test_continue_final_message),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
