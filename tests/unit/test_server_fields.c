/* Fields of requests: what is honoured, what is accepted, what is refused and how; template
 * variables; the table of uids. */
#include "base/file.h"
#include "server/request.h"
#include "server/uid_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {"org/model", "alias"};
static const struct server_options options = {.model_names = names, .n_model_names = 2};
static const struct request_setup plain_setup = {.options = &options, .vocab_size = 100};

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static enum status read_chat(struct request *r, const char *fields, struct refusal *refusal)
{
    char body[4096];
    snprintf(body, sizeof body, "{" CHAT "%s%s}", *fields ? "," : "", fields);
    return request_read(r, &plain_setup, API_CHAT, body, strlen(body), refusal);
}

static void what_is_left_out_is_unset(void **state)
{
    (void)state;
    struct request r;
    struct refusal refusal;
    assert_int_equal(OK, read_chat(&r, "", &refusal));
    assert_true(isnan(r.settings.temperature) && isnan(r.settings.top_p));
    assert_true(isnan(r.settings.min_p) && isnan(r.settings.repetition_penalty));
    assert_true(isnan(r.settings.presence_penalty) && isnan(r.settings.frequency_penalty));
    assert_int_equal(-1, r.settings.top_k);
    assert_int_equal(-1, r.settings.max_tokens);
    assert_int_equal(-1, r.settings.min_tokens);
    assert_int_equal(-1, r.settings.n_logprobs);
    assert_int_equal(1, r.n);
    assert_int_equal(0, r.settings.kwargs.n);
    request_done(&r);
}

static void fields_are_honoured(void **state)
{
    (void)state;
    struct request r;
    struct refusal refusal;
    assert_int_equal(
        OK, read_chat(&r,
                      "\"model\":\"model\",\"temperature\":0.5,\"top_p\":0,\"top_k\":-1,"
                      "\"min_p\":0.1,\"max_completion_tokens\":12,\"n\":3,\"seed\":-1,"
                      "\"stop\":\"END\",\"stop_token_ids\":[5,99],\"logit_bias\":{\"7\":-100},"
                      "\"presence_penalty\":-2,\"frequency_penalty\":2,\"logprobs\":true,"
                      "\"top_logprobs\":20,\"stream\":true,"
                      "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,"
                      "\"min_tokens\":1,\"cache_salt\":\"s\",\"continue_final_message\":true",
                      &refusal));
    assert_true(r.settings.temperature == 0.5 && r.settings.min_p == 0.1);
    assert_true(r.settings.top_p > 0 && r.settings.top_p < 1e-8);
    assert_int_equal(0, r.settings.top_k);
    assert_int_equal(12, r.settings.max_tokens);
    assert_int_equal(3, r.n);
    assert_true(r.settings.seed == UINT64_MAX);
    assert_int_equal(1, r.settings.stop.n);
    assert_memory_equal("END", r.settings.stop.items[0].data, 3);
    assert_int_equal(99, r.settings.stop_tokens.items[1]);
    assert_int_equal(7, r.settings.bias_tokens.items[0]);
    assert_true(r.settings.bias_values.items[0] == -100.0f);
    assert_int_equal(20, r.settings.n_logprobs);
    assert_true(r.is_stream && r.include_usage);
    assert_int_equal(1, r.settings.ignore_eos);
    assert_int_equal(1, r.settings.cache_salt.n);
    assert_true(r.settings.flags & PROMPT_CONTINUE_FINAL);
    request_done(&r);
}

static void what_asks_for_nothing_is_accepted(void **state)
{
    (void)state;
    static const char *const accepted[] = {
        "\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"service_tier\":\"auto\"",
        "\"safety_identifier\":\"x\",\"prompt_cache_key\":\"y\"",
        "\"response_format\":{\"type\":\"text\"},\"parallel_tool_calls\":true",
        "\"anything_at_all\":null,\"temperature\":null,\"tools\":null",
        "\"n\":1,\"presence_penalty\":0,\"frequency_penalty\":0.0,\"logprobs\":false",
        "\"modalities\":[\"text\"],\"verbosity\":\"medium\",\"length_penalty\":1.0",
        "\"tools\":[],\"tool_choice\":\"auto\",\"functions\":[],\"function_call\":\"none\"",
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":false}}]",
        "\"stream\":true,\"stream_options\":{\"include_obfuscation\":false}",
        "\"skip_special_tokens\":true,\"model\":\"alias\"",
    };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        struct request r;
        struct refusal refusal;
        if (read_chat(&r, accepted[i], &refusal) != OK)
            fail_msg("%s: %s", accepted[i], refusal.message);
        request_done(&r);
    }
}

struct refused {
    const char *fields, *param;
    int http_status;
    const char *part; /* of the message */
};

static void the_rest_is_refused_by_name(void **state)
{
    (void)state;
    static const struct refused cases[] = {
        {"\"temperature\":2.5", "temperature", 400, "from 0 to 2"},
        {"\"temperature\":\"hot\"", "temperature", 400, "\"hot\""},
        {"\"temperature\":1e999", "temperature", 400, "1e999"},
        {"\"top_p\":-0.1", "top_p", 400, "from 0 to 1"},
        {"\"max_tokens\":0", "max_tokens", 400, "from 1 to 2147483647"},
        {"\"max_tokens\":1.5", "max_tokens", 400, "whole number"},
        {"\"n\":129", "n", 400, "from 1 to 128"},
        {"\"stop\":[\"a\",\"\"]", "stop", 400, "1 to 1024 bytes"},
        {"\"stop\":[1]", "stop", 400, "string"},
        {"\"stop\":\"a\\u0000b\"", "stop", 400, "string"},
        {"\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\","
         "\"13\",\"14\",\"15\",\"16\",\"17\"]",
         "stop", 400, "an array of 17"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias", 400, "keys must be token ids"},
        {"\"logit_bias\":{\"100\":1}", "logit_bias", 400, "0 to 99"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias", 400, "-100 to 100"},
        {"\"stop_token_ids\":[100]", "stop_token_ids", 400, "0 to 99"},
        {"\"top_logprobs\":3", "top_logprobs", 400, "needs 'logprobs'"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs", 400, "from 0 to 20"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options", 400, "'stream' is true"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", 400, "json_object"},
        {"\"parallel_tool_calls\":false", "parallel_tool_calls", 400, "not supported"},
        {"\"tool_choice\":\"required\"", "tool_choice", 400, "cannot force"},
        {"\"tool_choice\":{\"type\":\"function\"}", "tool_choice", 400, "cannot force"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]",
         "tools[0].function.strict", 400, "schema"},
        {"\"tools\":[{\"type\":\"web_search\"}]", "tools[0]", 400, "function"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name", 400,
         "string"},
        {"\"guided_json\":{}", "guided_json", 400, "not supported"},
        {"\"best_of\":2", "best_of", 400, "not a field"},
        {"\"verbosity\":\"low\"", "verbosity", 400, "\"low\""},
        {"\"reasoning_effort\":\"huge\"", "reasoning_effort", 400, "one of none"},
        {"\"model\":\"gpt-4\"", "model", 404, "'org/model', 'alias'"},
        {"\"messages\":[]", "messages", 400, "at least one"},
        {"\"messages\":[{\"content\":\"x\"}]", "messages[0].role", 400, "missing"},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "messages[0].content", 400, "5"},
        {"\"prompt\":\"x\"", "prompt", 400, "one of them"},
        {"\"continue_final_message\":true,\"add_generation_prompt\":true", "continue_final_message",
         400, "both"},
        {"\"seed\":1.5", "seed", 400, "whole number"},
        {"\"chat_template_kwargs\":[]", "chat_template_kwargs", 400, "an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct refused *c = &cases[i];
        struct request r;
        struct refusal refusal = {0};
        if (read_chat(&r, c->fields, &refusal) == OK)
            fail_msg("%s is accepted", c->fields);
        if (refusal.http_status != c->http_status || strcmp(refusal.param, c->param) != 0 ||
            !strstr(refusal.message, c->part))
            fail_msg("%s: %d, %s, %s", c->fields, refusal.http_status, refusal.param,
                     refusal.message);
        request_done(&r);
    }
}

static void bodies_that_are_no_object_are_refused(void **state)
{
    (void)state;
    static const char *const bodies[] = {"",      "[]", "{", "nul", "{\"prompt\":\"\xff\"}",
                                         "{} {}", "{}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct request r;
        struct refusal refusal = {0};
        assert_int_not_equal(OK, request_read(&r, &plain_setup, API_COMPLETIONS, bodies[i],
                                              strlen(bodies[i]), &refusal));
        assert_int_equal(400, refusal.http_status);
        request_done(&r);
    }
}

static void prompts_have_four_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        size_t n;
        enum prompt_kind kind;
    } cases[] = {{"{\"prompt\":\"a\"}", 1, PROMPT_TEXT},
                 {"{\"prompt\":[\"a\",\"b\"]}", 2, PROMPT_TEXT},
                 {"{\"prompt\":[1,2,3]}", 1, PROMPT_IDS},
                 {"{\"prompt\":[[1,2],[3]]}", 2, PROMPT_IDS},
                 {"{\"prompt\":[[1,2]],\"echo\":true,\"logprobs\":1}", 1, PROMPT_IDS}};
    static const char *const bad[] = {"{\"prompt\":[]}",
                                      "{\"prompt\":[100]}",
                                      "{\"prompt\":[-1]}",
                                      "{\"prompt\":[[]]}",
                                      "{\"prompt\":{}}",
                                      "{\"prompt\":[1,\"a\"]}",
                                      "{\"prompt\":[1],\"echo\":true}"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request r;
        struct refusal refusal = {0};
        assert_int_equal(OK, request_read(&r, &plain_setup, API_COMPLETIONS, cases[i].body,
                                          strlen(cases[i].body), &refusal));
        assert_int_equal(cases[i].n, r.n_prompts);
        assert_int_equal(cases[i].kind, r.prompts[0].kind);
        request_done(&r);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct request r;
        struct refusal refusal = {0};
        if (request_read(&r, &plain_setup, API_COMPLETIONS, bad[i], strlen(bad[i]), &refusal) == OK)
            fail_msg("%s is accepted", bad[i]);
        request_done(&r);
    }
}

static void template_variables_override_in_order(void **state)
{
    (void)state;
    static const struct {
        const char *fields, *defaults;
        bool knows_xhigh;
        const char *kwargs;
    } cases[] = {
        {"", NULL, false, ""},
        {"\"reasoning_effort\":\"none\"", NULL, true, "{\"enable_thinking\": false}"},
        {"\"reasoning_effort\":\"minimal\"", NULL, true, "{\"enable_thinking\": false}"},
        {"\"reasoning_effort\":\"high\"", NULL, true,
         "{\"enable_thinking\": true, \"reasoning_effort\": \"xhigh\"}"},
        {"\"reasoning_effort\":\"xhigh\"", NULL, false,
         "{\"enable_thinking\": true, \"reasoning_effort\": \"high\"}"},
        {"\"reasoning_effort\":\"low\",\"enable_thinking\":false", NULL, false,
         "{\"enable_thinking\": false}"},
        {"\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":false}", NULL,
         false, "{\"enable_thinking\": false}"},
        {"\"chat_template_kwargs\":{\"a\":1,\"tools\":[],\"b\":{\"c\":null}}",
         "{\"a\":2,\"d\":\"x\"}", false, "{\"d\": \"x\", \"a\": 1, \"b\": {\"c\": null}}"},
        {"\"enable_thinking\":true", "{\"enable_thinking\":false,\"reasoning_effort\":\"low\"}",
         false, "{\"reasoning_effort\": \"low\", \"enable_thinking\": true}"},
        {"", "{\"enable_thinking\":false,\"reasoning_effort\":\"low\"}", false,
         "{\"enable_thinking\": false}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct json defaults;
        struct request r;
        struct refusal refusal = {0};
        char body[512];
        struct request_setup setup = {.options = &options, .knows_xhigh = cases[i].knows_xhigh};
        if (cases[i].defaults) {
            assert_int_equal(OK, json_parse(&arena, cases[i].defaults, strlen(cases[i].defaults),
                                            &defaults, NULL));
            setup.default_kwargs = &defaults;
        }
        snprintf(body, sizeof body, "{" CHAT "%s%s}", *cases[i].fields ? "," : "", cases[i].fields);
        assert_int_equal(OK, request_read(&r, &setup, API_CHAT, body, strlen(body), &refusal));
        assert_string_equal(cases[i].kwargs, str_z(&r.kwargs_text));
        request_done(&r);
        arena_done(&arena);
    }
}

/* The rows of the tables under "Fields of requests": which endpoints a name has. */
static unsigned documented(const char *text, const char *name)
{
    static const struct {
        const char *word;
        unsigned api;
    } words[] = {{"chat", API_CHAT},
                 {"completions", API_COMPLETIONS},
                 {"generate", API_GENERATE},
                 {"sampling", API_SAMPLING}};
    char quoted[64];
    unsigned apis = 0;
    snprintf(quoted, sizeof quoted, "`%s`", name);
    for (const char *row = text; (row = strstr(row, "\n| `")); row += 2) {
        char line[2048], *names_end;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(row + 1, "\n"), row + 1);
        names_end = strstr(line, "` | ");
        if (!names_end)
            continue;
        names_end[1] = 0;
        char *where = names_end + 4;
        where[strcspn(where, "|")] = 0;
        for (size_t i = 0; strstr(line, quoted) && i < 4; i++)
            apis |= strstr(where, words[i].word) ? words[i].api : 0;
    }
    return apis;
}

static void the_documentation_lists_the_same_fields(void **state)
{
    (void)state;
    struct str text = {0};
    const char *name, *other;
    unsigned apis, more;
    assert_int_equal(OK, file_read(SOURCE_DIR "/docs/api.md", 1 << 20, &text, NULL));
    char *start = strstr(text.data, "## Fields of requests"), *end = strstr(start, "\n## Answers");
    assert_non_null(end);
    *end = 0;
    for (size_t i = 0; fields_list(i, &name, &apis); i++) {
        for (size_t k = 0; fields_list(k, &other, &more); k++)
            if (strcmp(name, other) == 0)
                apis |= more;
        if (documented(start, name) != apis)
            fail_msg("'%s': docs/api.md says %u, the table says %u", name, documented(start, name),
                     apis);
    }
    str_done(&text);
}

static void uids_are_found_until_they_are_removed(void **state)
{
    (void)state;
    enum { N = 5000 };
    static struct waiter waiters[N];
    static bool is_in[N];
    struct uid_table table = {0};
    unsigned random = 1;
    assert_null(uid_table_get(&table, 1));
    for (int i = 0; i < N; i++)
        waiters[i].uid = (uint64_t)(i / 1000 + 1) << 32 | (unsigned)i;
    for (int step = 0; step < 40000; step++) {
        random = random * 1103515245u + 12345u;
        int i = (int)(random >> 8) % N;
        if (is_in[i])
            uid_table_remove(&table, waiters[i].uid);
        else
            assert_true(uid_table_put(&table, &waiters[i]));
        is_in[i] = !is_in[i];
        if (step % 1000)
            continue;
        for (int k = 0; k < N; k++)
            assert_ptr_equal(is_in[k] ? &waiters[k] : NULL, uid_table_get(&table, waiters[k].uid));
    }
    uid_table_done(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_out_is_unset),
        cmocka_unit_test(fields_are_honoured),
        cmocka_unit_test(what_asks_for_nothing_is_accepted),
        cmocka_unit_test(the_rest_is_refused_by_name),
        cmocka_unit_test(bodies_that_are_no_object_are_refused),
        cmocka_unit_test(prompts_have_four_shapes),
        cmocka_unit_test(template_variables_override_in_order),
        cmocka_unit_test(the_documentation_lists_the_same_fields),
        cmocka_unit_test(uids_are_found_until_they_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
