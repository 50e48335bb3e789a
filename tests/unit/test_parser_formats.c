/* Every format against a table of outputs and the messages that they mean, whole and cut into
 * pieces at random; choosing a format; limits. */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "unit/parser_run.h"

enum { RANDOM_SPLITS = 60 };

struct table {
    struct str text;
    struct arena arena;
    struct json tree;
};

static void load(struct table *t)
{
    struct error error = {0};
    if (file_read(SOURCE_DIR "/tests/data/parser/formats.json", 1 << 22, &t->text, &error) != OK ||
        json_parse(&t->arena, t->text.data, t->text.len, &t->tree, &error) != OK)
        fail_msg("%s", error.message);
}

static void unload(struct table *t)
{
    arena_done(&t->arena);
    str_done(&t->text);
}

static void case_config(const struct json *c, struct parser_config *config)
{
    *config = (struct parser_config){0};
    assert_int_equal(
        parser_reasoning_named(json_string(json_get(c, "reasoning")), &config->reasoning, NULL),
        OK);
    assert_int_equal(parser_tools_named(json_string(json_get(c, "tools")), &config->tools, NULL),
                     OK);
    config->keep_control_tokens = json_bool(json_get(c, "keep_control_tokens"), false);
}

static void check_run(const struct parser_run *run, const char *name, size_t max, uint32_t seed,
                      const struct str *expected)
{
    struct parser_message m = {0};
    struct error error = {0};
    struct str got = {0};
    const char *wrong = run_parser(run, max, seed, &m, &error);
    if (wrong)
        fail_msg("%s (pieces of %zu, seed %u): %s: %s", name, max, seed, wrong, error.message);
    describe(&m, &got);
    if (!same_text(&got, expected))
        fail_msg("%s (pieces of %zu, seed %u):\n got      %s\n expected %s", name, max, seed,
                 str_z(&got), str_z(expected));
    str_done(&got);
    parser_message_done(&m);
}

static void outputs_mean_the_messages_of_the_table_however_they_are_cut(void **state)
{
    (void)state;
    struct table t = {0};
    load(&t);
    const struct json *cases = json_get(&t.tree, "cases");
    assert_true(cases->n > 120);
    for (size_t i = 0; i < cases->n; i++) {
        const struct json *c = &cases->items[i], *tail = json_get(c, "tail");
        const struct json *output = json_get(c, "output");
        struct parser_config config;
        case_config(c, &config);
        struct parser_run run = {
            .config = &config,
            .tools = json_bool(json_get(c, "no_tools"), false) ? NULL : json_get(&t.tree, "tools"),
            .tail = tail ? tail->text : "",
            .tail_len = tail ? tail->n : 0,
            .text = output->text,
            .text_len = output->n,
            .reason = json_string_is(json_get(c, "finish"), "length") ? PARSER_LENGTH : PARSER_STOP,
            .has_control = true};
        struct str expected = {0};
        json_write(&expected, json_get(c, "expect"));
        const char *name = json_string(json_get(c, "name"));
        check_run(&run, name, 0, 0, &expected);
        check_run(&run, name, 1, 0, &expected);
        for (uint32_t seed = 1; seed <= RANDOM_SPLITS; seed++)
            check_run(&run, name, 1 + seed % 24, seed, &expected);
        str_done(&expected);
    }
    unload(&t);
}

/* Pushes a piece and compares its events, "r:TEXT c:TEXT b:NAME a:TEXT e:". */
static void expect_events(struct output_parser *parser, const char *piece, const char *expected)
{
    assert_int_equal(output_parser_push(parser, piece, strlen(piece), false, NULL), OK);
    struct str got = {0};
    size_t n;
    const struct parser_event *events = output_parser_events(parser, &n);
    for (size_t k = 0; k < n; k++)
        str_printf(&got, "%s%c:%.*s", k ? " " : "", "rcbae"[events[k].type], (int)events[k].len,
                   events[k].text);
    assert_string_equal(str_z(&got), expected);
    str_done(&got);
}

/* Pushes n pieces, each with its events, and ends; one call is ended. */
static void expect_stream(const struct parser_config *config, const char *tail,
                          const struct table *t, const char *const *pieces,
                          const char *const *expected, size_t n)
{
    struct output_parser *parser;
    assert_int_equal(output_parser_new(config, tail, strlen(tail), json_get(&t->tree, "tools"),
                                       &parser, NULL),
                     OK);
    for (size_t i = 0; i < n; i++)
        expect_events(parser, pieces[i], expected[i]);
    assert_int_equal(output_parser_finish(parser, PARSER_STOP, NULL), OK);
    assert_int_equal(output_parser_n_ended_calls(parser), 1);
    output_parser_free(parser);
}

/* Text that cannot be part of a tag must not wait for more; calls must stream. */
static void text_is_reported_as_soon_as_it_is_certain(void **state)
{
    (void)state;
    struct table t = {0};
    load(&t);
    static const char *const pieces[] = {"Hm",
                                         " yes",
                                         "\n</thi",
                                         "nk>\n\n",
                                         "Well, a < b",
                                         "\n\n",
                                         "<tool_call>\n",
                                         "{\"name\": \"get_time\", \"arg",
                                         "uments\": {\"x",
                                         "\": \"ab",
                                         "cd\"}",
                                         "}\n</tool_call>"};
    static const char *const expected[] = {
        "r:Hm",       "r: yes",  "",  "", "c:Well, a < b", "", "", "", "b:get_time a:{\"x",
        "a:\": \"ab", "a:cd\"}", "e:"};
    struct parser_config config = {.reasoning = PARSER_REASONING_QWEN3,
                                   .tools = PARSER_TOOLS_QWEN25};
    expect_stream(&config, "\n<think>\n", &t, pieces, expected, sizeof pieces / sizeof *pieces);
    unload(&t);
}

/* A string argument comes as it is written; a closing tag waits until it is known to be one. */
static void glm_s_string_arguments_stream(void **state)
{
    (void)state;
    struct table t = {0};
    load(&t);
    static const char *const pieces[] = {
        "<tool_call>",   "write_", "file\n",       "<arg_key>content</arg_key>",
        "\n<arg_value>", "one",    " two\n",       "</arg_val",
        "ue>",           " three", "</arg_value>", "\n</tool_call>"};
    static const char *const expected[] = {
        "",        "",          "", "", "b:write_file a:{\"content\": ",
        "a:\"one", "a: two\\n", "", "", "a:</arg_value> three",
        "",        "a:\"} e:"};
    struct parser_config config = {.reasoning = PARSER_REASONING_NONE, .tools = PARSER_TOOLS_GLM};
    expect_stream(&config, "\n", &t, pieces, expected, sizeof pieces / sizeof *pieces);
    unload(&t);
}

/* GLM's names: those of up to 256 bytes with the blanks behind them, wherever the text is cut. */
static void a_bare_name_s_limit_does_not_depend_on_the_cutting(void **state)
{
    (void)state;
    static const struct {
        int n_letters, n_blanks;
        size_t n_calls;
    } cases[] = {{256, 0, 1}, {257, 0, 0}, {252, 4, 1}, {252, 5, 0}, {252, 300, 0}};
    struct table t = {0};
    load(&t);
    struct parser_config config = {.reasoning = PARSER_REASONING_NONE, .tools = PARSER_TOOLS_GLM};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str text = {0};
        str_append_z(&text, "<tool_call>");
        for (int k = 0; k < cases[i].n_letters; k++)
            str_append_char(&text, 'x');
        for (int k = 0; k < cases[i].n_blanks; k++)
            str_append_char(&text, '\t');
        str_append_z(&text, "<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>");
        struct parser_run run = {.config = &config,
                                 .tools = json_get(&t.tree, "tools"),
                                 .tail = "\n",
                                 .tail_len = 1,
                                 .text = text.data,
                                 .text_len = text.len};
        for (size_t max = 0; max < 3; max++) {
            struct parser_message m = {0};
            assert_null(run_parser(&run, max, 1, &m, NULL));
            assert_int_equal(m.n_calls, cases[i].n_calls);
            parser_message_done(&m);
        }
        str_done(&text);
    }
    unload(&t);
}

/* A header that is too long is content, whole characters at a time wherever the text is cut. */
static void a_long_header_is_content(void **state)
{
    (void)state;
    struct parser_config config = {.tools = PARSER_TOOLS_GPT_OSS};
    struct str text = {0};
    for (int k = 0; k < 3000; k++)
        str_append(&text, k == 7 ? "a\0b" : "\xE2\x82\xAC", 3);
    struct parser_run run = {
        .config = &config, .tail = "", .text = text.data, .text_len = text.len};
    for (size_t max = 0; max < 5; max++) {
        struct parser_message m = {0};
        assert_null(run_parser(&run, max, 1, &m, NULL));
        assert_true(same_text(&m.content, &text));
        parser_message_done(&m);
    }
    str_done(&text);
}

static void bytes_that_are_not_utf8_become_replacement_characters(void **state)
{
    (void)state;
    struct parser_config config = {.reasoning = PARSER_REASONING_QWEN3};
    static const char text[] = "a\xC3\xA9\xE2\x82"
                               "b\xFF\xF0\x9F\x98\x80\xF0\x9F";
    struct parser_run run = {
        .config = &config, .tail = "", .text = text, .text_len = sizeof text - 1};
    for (size_t max = 0; max < 4; max++) {
        struct parser_message m = {0};
        assert_null(run_parser(&run, max, 1, &m, NULL));
        assert_string_equal(str_z(&m.content), "a\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD"
                                               "b\xEF\xBF\xBD"
                                               "\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD");
        parser_message_done(&m);
    }
}

static void held_text_is_limited(void **state)
{
    (void)state;
    struct table t = {0};
    load(&t);
    struct parser_config config = {.tools = PARSER_TOOLS_QWEN25, .max_held_bytes = 1000};
    struct str text = {0};
    struct error error = {0};
    struct parser_message m = {0};
    str_append_z(&text, "<tool_call>{\"arguments\": {\"a\": \"");
    for (int i = 0; i < 2000; i++)
        str_append_char(&text, 'x');
    struct parser_run run = {.config = &config,
                             .tools = json_get(&t.tree, "tools"),
                             .tail = "",
                             .text = text.data,
                             .text_len = text.len};
    assert_string_equal(run_parser(&run, 10, 1, &m, &error), "output_parser_push fails");
    assert_int_equal(error.status, ERROR_LIMIT);
    assert_non_null(strstr(error.message, "1000"));
    parser_message_done(&m);
    str_done(&text);
    unload(&t);
}

static void names_are_those_of_sglang(void **state)
{
    (void)state;
    enum parser_reasoning reasoning;
    enum parser_tools tools;
    struct error error = {0};
    assert_int_equal(parser_reasoning_named("deepseek-r1", &reasoning, NULL), OK);
    assert_int_equal(reasoning, PARSER_REASONING_DEEPSEEK_R1);
    assert_int_equal(parser_reasoning_named("deepseek_r1", &reasoning, NULL), OK);
    assert_int_equal(parser_tools_named("hermes", &tools, NULL), OK);
    assert_int_equal(tools, PARSER_TOOLS_QWEN25);
    assert_int_equal(parser_tools_named("qwen3", &tools, &error), ERROR_INVALID);
    assert_string_equal(error.message,
                        "--tool-call-parser \"qwen3\" is not known; it can be auto, none, qwen25, "
                        "qwen, hermes, qwen3_coder, llama3, hunyuan, deepseekv3, deepseekv31, "
                        "glm45, glm47, gpt-oss");
}

static void check_choice(const char *template, enum parser_reasoning reasoning,
                         enum parser_tools tools)
{
    struct parser_config config = {0};
    parser_choose(&config, template);
    assert_int_equal(config.reasoning, reasoning);
    assert_int_equal(config.tools, tools);
}

static void the_chat_template_shows_the_format(void **state)
{
    (void)state;
    check_choice(NULL, PARSER_REASONING_NONE, PARSER_TOOLS_NONE);
    check_choice("{{ messages }}", PARSER_REASONING_NONE, PARSER_TOOLS_NONE);
    check_choice("'\\n</think>\\n' '<tool_call>\\n{\"name\": \"' + tool_call.name",
                 PARSER_REASONING_QWEN3, PARSER_TOOLS_QWEN25);
    check_choice("'<tool_call>\\n<function=' + tool_call.name", PARSER_REASONING_NONE,
                 PARSER_TOOLS_QWEN3_CODER);
    check_choice("<tool_call>{function-name}\n<arg_key> tool_call.name", PARSER_REASONING_NONE,
                 PARSER_TOOLS_GLM);
    check_choice("<|start|>assistant<|channel|>final<|message|>", PARSER_REASONING_GPT_OSS,
                 PARSER_TOOLS_GPT_OSS);
    check_choice("'<think>\\n' '</think>\\n<answer>\\n' '<tool_calls>['", PARSER_REASONING_HUNYUAN,
                 PARSER_TOOLS_HUNYUAN);
    struct parser_config config = {.reasoning = PARSER_REASONING_NONE,
                                   .response = (const struct parser_response *)&config};
    parser_choose(&config, "</think>");
    assert_int_equal(config.reasoning, PARSER_REASONING_NONE);
    assert_null(config.response);
}

/* Published templates, where the machine has them. */
static void published_templates_show_their_format(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        enum parser_reasoning reasoning;
        enum parser_tools tools;
    } table[] = {
        {"Qwen-Qwen3-0.6B", PARSER_REASONING_QWEN3, PARSER_TOOLS_QWEN25},
        {"Qwen-Qwen2.5-7B-Instruct", PARSER_REASONING_NONE, PARSER_TOOLS_QWEN25},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", PARSER_REASONING_NONE, PARSER_TOOLS_QWEN25},
        {"Qwen3-Coder", PARSER_REASONING_NONE, PARSER_TOOLS_QWEN3_CODER},
        {"Qwen3.5-4B", PARSER_REASONING_QWEN3, PARSER_TOOLS_QWEN3_CODER},
        {"Qwen3.8-27B", PARSER_REASONING_QWEN3, PARSER_TOOLS_QWEN3_CODER},
        {"meta-llama-Llama-3.1-8B-Instruct", PARSER_REASONING_NONE, PARSER_TOOLS_LLAMA3},
        {"meta-llama-Llama-3.2-3B-Instruct", PARSER_REASONING_NONE, PARSER_TOOLS_LLAMA3},
        {"openai-gpt-oss-120b", PARSER_REASONING_GPT_OSS, PARSER_TOOLS_GPT_OSS},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", PARSER_REASONING_QWEN3, PARSER_TOOLS_DEEPSEEK},
        {"GLM-4.6", PARSER_REASONING_QWEN3, PARSER_TOOLS_GLM},
        {"mistralai-Mistral-Nemo-Instruct-2407", PARSER_REASONING_NONE, PARSER_TOOLS_NONE}};
    const char *data = getenv("CSGL_TEST_DATA");
    int n = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char path[4096];
        struct str text = {0};
        snprintf(path, sizeof path, "%s/templates/%s.jinja",
                 data ? data : SOURCE_DIR "/../shared/data", table[i].file);
        if (file_read(path, 1 << 20, &text, NULL) == OK) {
            struct parser_config config = {0};
            parser_choose(&config, str_z(&text));
            if (config.reasoning != table[i].reasoning || config.tools != table[i].tools)
                fail_msg("%s: %d %d", table[i].file, config.reasoning, config.tools);
            n++;
        }
        str_done(&text);
    }
    if (!n) {
        printf("skipped: no published templates here\n");
        skip();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_mean_the_messages_of_the_table_however_they_are_cut),
        cmocka_unit_test(text_is_reported_as_soon_as_it_is_certain),
        cmocka_unit_test(glm_s_string_arguments_stream),
        cmocka_unit_test(a_long_header_is_content),
        cmocka_unit_test(a_bare_name_s_limit_does_not_depend_on_the_cutting),
        cmocka_unit_test(bytes_that_are_not_utf8_become_replacement_characters),
        cmocka_unit_test(held_text_is_limited),
        cmocka_unit_test(names_are_those_of_sglang),
        cmocka_unit_test(the_chat_template_shows_the_format),
        cmocka_unit_test(published_templates_show_their_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
