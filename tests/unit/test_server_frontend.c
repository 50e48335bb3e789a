/* The frontend process against a tokenizer and a scheduler that are played by the test. */
#include "server_peer.h"

#include <math.h>

static void assert_text(const struct json *value, const char *text)
{
    assert_non_null(json_string(value));
    assert_string_equal(json_string(value), text);
}

static const struct peer_script hello = {.pieces = {{"Hello", "", false}, {" world", "", false}},
                                         .n_pieces = 2};

#define CHAT "/v1/chat/completions"
#define MESSAGES_FIELD "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static void a_chat_is_answered_whole(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    peer_play(p, &hello);
    struct answer_text a =
        client_ask(p, "POST", CHAT, "{\"model\":\"tiny-model\"," MESSAGES_FIELD "}");
    assert_int_equal(200, a.status);
    assert_text(json_at(&a.json, "object"), "chat.completion");
    assert_text(json_at(&a.json, "model"), "org/tiny-model");
    assert_int_equal(0, strncmp(json_string(json_at(&a.json, "id")), "chatcmpl-", 9));
    assert_text(json_at(&a.json, "choices.0.message.role"), "assistant");
    assert_text(json_at(&a.json, "choices.0.message.content"), "Hello world");
    assert_text(json_at(&a.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(7, (int)json_number(json_at(&a.json, "usage.prompt_tokens"), 0));
    assert_int_equal(3, (int)json_number(json_at(&a.json, "usage.completion_tokens"), 0));
    assert_int_equal(10, (int)json_number(json_at(&a.json, "usage.total_tokens"), 0));
    assert_int_equal(
        3, (int)json_number(json_at(&a.json, "usage.prompt_tokens_details.cached_tokens"), 0));
    assert_true(json_number(json_at(&a.json, "timings.prefill_ms"), 0) == 500);
    assert_string_equal("[{\"role\": \"user\", \"content\": \"Hi\"}]", str_z(&p->text));
    assert_int_equal(PROMPT_CHAT, p->settings.kind);
    assert_true(isnan(p->settings.temperature));
    assert_int_equal(-1, p->settings.max_tokens);
    assert_int_equal(-1, p->settings.top_k);
    assert_int_equal(-1, p->settings.n_logprobs);
    answer_text_done(&a);
    peer_stop(p);
}

static void a_chat_is_streamed_one_event_a_token(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct arena arena = {0};
    struct json event;
    peer_play(p, &hello);
    struct answer_text a = client_ask(
        p, "POST", CHAT,
        "{\"stream\":true,\"stream_options\":{\"include_usage\":true}," MESSAGES_FIELD "}");
    const char *at = str_z(&a.body);
    assert_int_equal(200, a.status);
    assert_non_null(strstr(a.head.data, "text/event-stream"));
    assert_true(stream_next(&at, &arena, &event));
    assert_text(json_at(&event, "object"), "chat.completion.chunk");
    assert_text(json_at(&event, "choices.0.delta.role"), "assistant");
    assert_true(stream_next(&at, &arena, &event));
    assert_text(json_at(&event, "choices.0.delta.content"), "Hello");
    assert_true(json_is_null(json_at(&event, "choices.0.finish_reason")));
    assert_non_null(json_get(&event, "usage"));
    assert_true(stream_next(&at, &arena, &event));
    assert_text(json_at(&event, "choices.0.delta.content"), " world");
    assert_true(stream_next(&at, &arena, &event));
    assert_text(json_at(&event, "choices.0.finish_reason"), "stop");
    assert_int_equal(0, json_at(&event, "choices.0.delta")->n);
    assert_true(stream_next(&at, &arena, &event));
    assert_int_equal(0, json_at(&event, "choices")->n);
    assert_int_equal(3, (int)json_number(json_at(&event, "usage.completion_tokens"), 0));
    assert_false(stream_next(&at, &arena, &event));
    assert_int_equal(0, *at);
    arena_done(&arena);
    answer_text_done(&a);
    peer_stop(p);
}

static void pieces_that_overtake_their_prompt_are_kept(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct peer_script script = hello;
    script.is_early = true;
    peer_play(p, &script);
    struct answer_text a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
    assert_text(json_at(&a.json, "choices.0.message.content"), "Hello world");
    answer_text_done(&a);
    peer_stop(p);
}

static void several_choices_and_prompts_have_their_places(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct peer_script script = hello;
    script.finish = FINISH_LENGTH;
    peer_play(p, &script);
    struct answer_text a =
        client_ask(p, "POST", "/v1/completions",
                   "{\"prompt\":[\"a\",\"bc\"],\"n\":2,\"echo\":true,\"seed\":5,\"max_tokens\":2}");
    assert_int_equal(200, a.status);
    assert_int_equal(4, json_at(&a.json, "choices")->n);
    assert_text(json_at(&a.json, "choices.1.text"), "aHello world");
    assert_text(json_at(&a.json, "choices.2.text"), "bcHello world");
    assert_int_equal(2, (int)json_number(json_at(&a.json, "choices.2.index"), 0));
    assert_text(json_at(&a.json, "choices.3.finish_reason"), "length");
    assert_int_equal(14, (int)json_number(json_at(&a.json, "usage.prompt_tokens"), 0));
    assert_int_equal(8, (int)json_number(json_at(&a.json, "usage.completion_tokens"), 0));
    assert_int_equal(4, p->n_prompts);
    assert_int_equal(1, p->settings.choice);
    assert_int_equal(5, p->settings.seed);
    assert_int_equal(2, p->settings.max_tokens);
    assert_int_equal(PROMPT_ADD_SPECIAL, p->settings.flags);
    answer_text_done(&a);
    peer_stop(p);
}

static void logprobs_have_openais_shapes(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    const struct peer_script script = {.pieces = {{"é", "", false}, {"x", "", false}},
                                       .n_pieces = 2};
    peer_play(p, &script);
    struct answer_text a =
        client_ask(p, "POST", "/v1/completions", "{\"prompt\":[1,2,3],\"logprobs\":2}");
    assert_int_equal(PROMPT_IDS, p->settings.kind);
    assert_int_equal(2, p->settings.n_logprobs);
    assert_int_equal(2, json_at(&a.json, "choices.0.logprobs.tokens")->n);
    assert_text(json_at(&a.json, "choices.0.logprobs.tokens.0"), "é");
    assert_true(json_number(json_at(&a.json, "choices.0.logprobs.token_logprobs.1"), 0) == -0.25);
    assert_true(json_number(json_at(&a.json, "choices.0.logprobs.top_logprobs.1.?"), 0) == -1.5);
    assert_int_equal(1, (int)json_number(json_at(&a.json, "choices.0.logprobs.text_offset.1"), 0));
    answer_text_done(&a);

    a = client_ask(p, "POST", CHAT, "{\"logprobs\":true,\"top_logprobs\":1," MESSAGES_FIELD "}");
    assert_int_equal(2, json_at(&a.json, "choices.0.logprobs.content")->n);
    assert_text(json_at(&a.json, "choices.0.logprobs.content.1.token"), "x");
    assert_int_equal(0xC3,
                     (int)json_number(json_at(&a.json, "choices.0.logprobs.content.0.bytes.0"), 0));
    assert_int_equal(1, json_at(&a.json, "choices.0.logprobs.content.0.top_logprobs")->n);
    answer_text_done(&a);
    peer_stop(p);
}

static void reasoning_and_tool_calls_are_told_apart(void **state)
{
    (void)state;
    struct server_options options = {.reasoning_parser = "qwen3", .tool_call_parser = "hermes"};
    struct peer *p = peer_start(&options);
    const struct peer_script script = {
        .tail = "<|im_start|>assistant\n<think>\n",
        .pieces = {{"Let me", "", false},
                   {" see.", "", false},
                   {"\n", "</think>", false},
                   {"\n\n", "", false},
                   {"", "<tool_call>", false},
                   {"\n{\"name\": \"weather\", \"arguments\": ", "", false},
                   {"{\"city\": \"Paris\"}", "", false},
                   {"}\n", "</tool_call>", false}},
        .n_pieces = 8};
    static const char tools[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":"
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]";
    struct str body = {0};
    peer_play(p, &script);
    str_printf(&body, "{%s," MESSAGES_FIELD "}", tools);
    struct answer_text a = client_ask(p, "POST", CHAT, body.data);
    assert_int_equal(200, a.status);
    assert_text(json_at(&a.json, "choices.0.message.reasoning_content"), "Let me see.");
    assert_true(json_is_null(json_at(&a.json, "choices.0.message.content")));
    assert_text(json_at(&a.json, "choices.0.message.tool_calls.0.function.name"), "weather");
    assert_text(json_at(&a.json, "choices.0.message.tool_calls.0.function.arguments"),
                "{\"city\": \"Paris\"}");
    assert_text(json_at(&a.json, "choices.0.finish_reason"), "tool_calls");
    assert_true(p->tools.len > 0);
    answer_text_done(&a);

    /* Streamed, it says the same. */
    struct arena arena = {0};
    struct json event;
    struct str arguments = {0}, reasoning = {0};
    const char *id = NULL;
    str_clear(&body);
    str_printf(&body, "{\"stream\":true,%s," MESSAGES_FIELD "}", tools);
    a = client_ask(p, "POST", CHAT, body.data);
    for (const char *at = str_z(&a.body); stream_next(&at, &arena, &event);) {
        const struct json *delta = json_at(&event, "choices.0.delta");
        const struct json *call = json_at(delta, "tool_calls.0");
        const char *text = json_string(json_get(delta, "reasoning_content"));
        str_append_z(&reasoning, text ? text : "");
        if (!call)
            continue;
        assert_int_equal(0, (int)json_number(json_get(call, "index"), -1));
        if (!id)
            id = json_string(json_get(call, "id"));
        else
            assert_null(json_get(call, "id"));
        text = json_string(json_at(call, "function.arguments"));
        str_append_z(&arguments, text ? text : "");
    }
    assert_non_null(id);
    assert_int_equal(0, strncmp(id, "call_", 5));
    assert_string_equal(str_z(&arguments), "{\"city\": \"Paris\"}");
    assert_string_equal(str_z(&reasoning), "Let me see.");
    assert_text(json_at(&event, "choices.0.finish_reason"), "tool_calls");
    str_done(&arguments);
    str_done(&reasoning);
    str_done(&body);
    arena_done(&arena);
    answer_text_done(&a);
    peer_stop(p);
}

static void a_refused_prompt_is_a_proper_status(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    const struct peer_script script = {
        .status = 400, .error = "the prompt has 5000 tokens", .code = "context_length_exceeded"};
    peer_play(p, &script);
    struct answer_text a =
        client_ask(p, "POST", CHAT, "{\"stream\":true,\"n\":3," MESSAGES_FIELD "}");
    assert_int_equal(400, a.status);
    assert_text(json_at(&a.json, "error.code"), "context_length_exceeded");
    assert_text(json_at(&a.json, "error.param"), "messages");
    assert_text(json_at(&a.json, "error.message"), "the prompt has 5000 tokens");
    answer_text_done(&a);
    peer_stop(p);
}

static void an_error_is_told_inside_a_stream_that_has_begun(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct peer_script script = hello;
    script.finish = FINISH_ERROR;
    script.http_status = 507;
    peer_play(p, &script);
    struct answer_text a = client_ask(p, "POST", CHAT, "{\"stream\":true," MESSAGES_FIELD "}");
    const char *error = strstr(str_z(&a.body), "data: {\"error\"");
    assert_int_equal(200, a.status);
    assert_non_null(error);
    assert_non_null(strstr(error, "it broke"));
    assert_non_null(strstr(error, "data: [DONE]\n\n"));
    answer_text_done(&a);
    script.n_pieces = 0; /* before the first token it is a status */
    peer_play(p, &script);
    a = client_ask(p, "POST", CHAT, "{\"stream\":true," MESSAGES_FIELD "}");
    assert_int_equal(507, a.status);
    assert_text(json_at(&a.json, "error.message"), "it broke");
    answer_text_done(&a);
    peer_stop(p);
}

static void a_client_that_leaves_cancels_its_request(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct peer_script script = {.is_silent = true};
    for (int is_deaf = 0; is_deaf < 2; is_deaf++) {
        script.is_deaf = is_deaf;
        peer_play(p, &script);
        peer_settle(p);
        int before = p->n_prompts, cancels = p->n_cancels;
        peer_settle(p);
        int fd = client_connect(p);
        client_send(fd, "POST", CHAT, NULL, "{\"n\":2," MESSAGES_FIELD "}");
        assert_true(peer_wait_count(p, &p->n_prompts, before + 2));
        double start = peer_seconds();
        close(fd);
        assert_true(peer_wait_count(p, &p->n_cancels, cancels + 2));
        assert_true(peer_seconds() - start < 1);
    }
    peer_stop(p);
}

static void a_lost_process_ends_its_requests(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct peer_script script = {.is_silent = true};
    peer_play(p, &script);
    int whole = client_connect(p), stream = client_connect(p);
    client_send(whole, "POST", CHAT, NULL, "{" MESSAGES_FIELD "}");
    client_send(stream, "POST", CHAT, NULL, "{\"stream\":true," MESSAGES_FIELD "}");
    assert_true(peer_wait_count(p, &p->n_prompts, 2));
    usleep(1500 * 1000); /* the stream's head goes out although no token came */
    atomic_store(&p->board->state[ROLE_SCHEDULER], PROCESS_DOWN);
    struct answer_text a = client_receive(whole);
    assert_int_equal(503, a.status);
    assert_non_null(strstr(a.head.data, "retry-after: "));
    answer_text_done(&a);
    a = client_receive(stream);
    assert_int_equal(200, a.status);
    assert_non_null(strstr(str_z(&a.body), "data: {\"error\""));
    answer_text_done(&a);

    a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
    assert_int_equal(503, a.status);
    assert_text(json_at(&a.json, "error.code"), "not_ready");
    answer_text_done(&a);
    a = client_ask(p, "GET", "/health", NULL);
    assert_int_equal(503, a.status);
    answer_text_done(&a);

    /* The successor: what comes of the old epoch is not read. */
    uint64_t old = p->last_uid;
    atomic_store(&p->board->generation, 2);
    atomic_store(&p->board->started_at[ROLE_SCHEDULER], 2);
    atomic_store(&p->board->state[ROLE_SCHEDULER], PROCESS_READY);
    peer_play(p, &hello);
    pthread_mutex_lock(&p->lock);
    peer_pieces(p, old, -1);
    pthread_mutex_unlock(&p->lock);
    a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
    assert_int_equal(200, a.status);
    assert_text(json_at(&a.json, "choices.0.message.content"), "Hello world");
    assert_int_equal(2, uid_epoch(p->last_uid));
    answer_text_done(&a);
    peer_stop(p);
}

static void health_tells_a_scheduler_that_hangs(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct answer_text a = client_ask(p, "GET", "/health", NULL);
    assert_int_equal(200, a.status);
    answer_text_done(&a);
    pthread_mutex_lock(&p->lock); /* the peer now beats no more */
    usleep(20000);
    atomic_store(&p->board->scheduler_heartbeat, (uint64_t)((peer_seconds() - 60) * 1e9));
    int fd = client_connect(p);
    client_send(fd, "GET", "/health", NULL, NULL);
    a = client_receive(fd);
    pthread_mutex_unlock(&p->lock);
    assert_int_equal(503, a.status);
    assert_non_null(strstr(str_z(&a.body), "does not answer"));
    answer_text_done(&a);
    atomic_store(&p->board->is_draining, 1);
    a = client_ask(p, "POST", "/generate", "{\"prompt\":\"x\"}");
    assert_int_equal(503, a.status);
    answer_text_done(&a);
    peer_stop(p);
}

static void a_full_queue_is_refused(void **state)
{
    (void)state;
    struct server_options options = {.max_queue = 4};
    struct peer *p = peer_start(&options);
    peer_play(p, &hello);
    atomic_store(&p->board->waiting, 4);
    struct answer_text a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
    assert_int_equal(503, a.status);
    assert_text(json_at(&a.json, "error.code"), "queue_full");
    assert_non_null(strstr(a.head.data, "retry-after: "));
    answer_text_done(&a);
    atomic_store(&p->board->waiting, 3);
    a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
    assert_int_equal(200, a.status);
    answer_text_done(&a);
    peer_stop(p);
}

static void keys_are_asked_for_where_they_should_be(void **state)
{
    (void)state;
    static const char *const keys[] = {"secret", "other"};
    static const char *const open_paths[] = {"/", "/health", "/version", "/v1"};
    static const char *const closed_paths[] = {"/v1/models", "/metrics", "/get_server_info"};
    struct server_options options = {.api_keys = keys, .n_api_keys = 2};
    struct peer *p = peer_start(&options);
    for (size_t i = 0; i < 4; i++) {
        struct answer_text a = client_ask(p, "GET", open_paths[i], NULL);
        assert_int_equal(200, a.status);
        answer_text_done(&a);
    }
    for (size_t i = 0; i < 3; i++) {
        static const char *const given[] = {"", "authorization: Bearer secre\r\n",
                                            "authorization: Bearer secretsecret\r\n",
                                            "authorization: Bearer other\r\n"};
        for (int k = 0; k < 4; k++) {
            int fd = client_connect(p);
            client_send(fd, "GET", closed_paths[i], given[k], NULL);
            struct answer_text a = client_receive(fd);
            assert_int_equal(k == 3 ? 200 : 401, a.status);
            answer_text_done(&a);
        }
    }
    peer_stop(p);
}

static void request_ids_go_in_and_out(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    int fd = client_connect(p);
    client_send(fd, "GET", "/version", "x-request-id: abc-1\r\n", NULL);
    struct answer_text a = client_receive(fd);
    assert_non_null(strstr(a.head.data, "x-request-id: abc-1"));
    answer_text_done(&a);
    a = client_ask(p, "GET", "/nothing", NULL);
    assert_int_equal(404, a.status);
    assert_non_null(strstr(a.head.data, "x-request-id: req-"));
    answer_text_done(&a);
    a = client_ask(p, "GET", "/generate", NULL);
    assert_int_equal(405, a.status);
    answer_text_done(&a);

    struct peer_script script = {.is_silent = true};
    peer_play(p, &script);
    fd = client_connect(p);
    client_send(fd, "POST", CHAT, "x-request-id: to-abort\r\n", "{" MESSAGES_FIELD "}");
    assert_true(peer_wait_count(p, &p->n_prompts, 1));
    a = client_ask(p, "POST", "/abort_request", "{\"rid\":\"another\"}");
    assert_int_equal(0, (int)json_number(json_get(&a.json, "aborted"), -1));
    answer_text_done(&a);
    a = client_ask(p, "POST", "/abort_request", "{\"rid\":\"to-abort\"}");
    assert_int_equal(1, (int)json_number(json_get(&a.json, "aborted"), -1));
    answer_text_done(&a);
    a = client_receive(fd);
    assert_int_equal(400, a.status);
    assert_text(json_at(&a.json, "error.code"), "request_aborted");
    assert_true(peer_wait_count(p, &p->n_cancels, 1));
    answer_text_done(&a);
    peer_stop(p);
}

static void the_small_endpoints_answer(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    struct answer_text a = client_ask(p, "GET", "/v1/models", NULL);
    assert_text(json_at(&a.json, "data.0.id"), "org/tiny-model");
    assert_text(json_at(&a.json, "data.1.id"), "alias");
    assert_int_equal(4096, (int)json_number(json_at(&a.json, "data.0.max_model_len"), 0));
    answer_text_done(&a);
    a = client_ask(p, "GET", "/v1/models/org%2Ftiny-model", NULL);
    assert_int_equal(200, a.status);
    answer_text_done(&a);
    a = client_ask(p, "GET", "/v1/models/gpt-4", NULL);
    assert_int_equal(404, a.status);
    answer_text_done(&a);
    a = client_ask(p, "POST", "/tokenize", "{\"prompt\":\"hello\",\"return_token_strs\":true}");
    assert_int_equal(2, (int)json_number(json_get(&a.json, "count"), 0));
    assert_int_equal(12, (int)json_number(json_at(&a.json, "tokens.1"), 0));
    assert_text(json_at(&a.json, "token_strs.1"), "llo");
    answer_text_done(&a);
    a = client_ask(p, "POST", "/detokenize", "{\"tokens\":[11,12]}");
    assert_text(json_get(&a.json, "prompt"), "hello");
    answer_text_done(&a);
    a = client_ask(p, "POST", "/detokenize", "{\"tokens\":[1000]}");
    assert_int_equal(400, a.status);
    answer_text_done(&a);
    a = client_ask(p, "POST", "/flush_cache", "");
    assert_int_equal(200, a.status);
    assert_int_equal(1, p->n_flushes);
    answer_text_done(&a);
    a = client_ask(p, "GET", "/get_server_info", NULL);
    assert_text(json_get(&a.json, "served_model_name"), "org/tiny-model");
    answer_text_done(&a);
    a = client_ask(p, "GET", "/get_model_info", NULL);
    assert_text(json_get(&a.json, "model_path"), "/models/tiny");
    answer_text_done(&a);
    a = client_ask(p, "GET", "/", NULL);
    assert_non_null(strstr(a.head.data, "text/html"));
    assert_non_null(strstr(str_z(&a.body), "</html>"));
    answer_text_done(&a);
    peer_stop(p);
}

static void generate_speaks_both_dialects(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    const struct peer_script script = {.pieces = {{"one\ntwo", "", false}, {"!", "<s>", true}},
                                       .n_pieces = 2};
    peer_play(p, &script);
    struct answer_text a = client_ask(p, "POST", "/generate",
                                      "{\"prompt\":\"x\",\"max_tokens\":5,\"ignore_eos\":true}");
    assert_string_equal(str_z(&a.body), "data: one\ndata: two\ndata: !\ndata: [DONE]\n");
    assert_int_equal(1, p->settings.ignore_eos);
    answer_text_done(&a);
    a = client_ask(p, "POST", "/generate",
                   "{\"text\":\"x\",\"sampling_params\":{\"max_new_tokens\":9,"
                   "\"temperature\":0,\"stop\":[\"END\"]}}");
    assert_text(json_get(&a.json, "text"), "one\ntwo!");
    assert_text(json_at(&a.json, "meta_info.finish_reason.type"), "stop");
    assert_int_equal(7, (int)json_number(json_at(&a.json, "meta_info.prompt_tokens"), 0));
    assert_int_equal(9, p->settings.max_tokens);
    assert_true(p->settings.temperature == 0);
    assert_string_equal("END", p->first_stop);
    answer_text_done(&a);
    a = client_ask(p, "POST", "/generate", "{\"text\":\"x\",\"stream\":true}");
    assert_non_null(strstr(str_z(&a.body), "data: {\"text\":\"one\\ntwo\""));
    assert_non_null(strstr(str_z(&a.body), "data: {\"text\":\"one\\ntwo!\""));
    answer_text_done(&a);
    peer_stop(p);
}

static void metrics_count_what_happened(void **state)
{
    (void)state;
    struct peer *p = peer_start(NULL);
    peer_play(p, &hello);
    atomic_store(&p->board->prefill_tokens, 1234);
    atomic_store(&p->board->n_restarts[ROLE_SCHEDULER], 2);
    for (int i = 0; i < 3; i++) {
        struct answer_text a = client_ask(p, "POST", CHAT, "{" MESSAGES_FIELD "}");
        answer_text_done(&a);
    }
    struct answer_text a = client_ask(p, "POST", CHAT, "{\"n\":0," MESSAGES_FIELD "}");
    answer_text_done(&a);
    static const char *const lines[] = {
        "\ncsgl_requests_total{endpoint=\"chat\",outcome=\"stop\"} 3\n",
        "\ncsgl_requests_total{endpoint=\"chat\",outcome=\"refused\"} 1\n",
        "\ncsgl_prompt_tokens_total 21\n",
        "\ncsgl_cached_prompt_tokens_total 9\n",
        "\ncsgl_generated_tokens_total 9\n",
        "\ncsgl_prefill_tokens_total 1234\n",
        "\ncsgl_time_to_first_token_seconds_count 3\n",
        "\ncsgl_time_per_output_token_seconds_bucket{le=\"+Inf\"} 3\n",
        "\ncsgl_process_restarts_total{role=\"scheduler\"} 2\n",
    };
    a = client_ask(p, "GET", "/metrics", NULL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(str_z(&a.body), lines[i]))
            fail_msg("/metrics lacks%s", lines[i]);
    answer_text_done(&a);
    peer_stop(p);
}

static void silent_streams_get_comments(void **state)
{
    (void)state;
    struct server_options options = {.keep_alive_seconds = 1};
    struct peer *p = peer_start(&options);
    struct peer_script script = {.is_silent = true};
    char buffer[4096] = "";
    size_t n = 0;
    peer_play(p, &script);
    int fd = client_connect(p);
    client_send(fd, "POST", CHAT, NULL, "{\"stream\":true," MESSAGES_FIELD "}");
    for (double end = peer_seconds() + 5;
         peer_seconds() < end && !strstr(buffer, ": keep-alive\n\n");) {
        ssize_t got = recv(fd, buffer + n, sizeof buffer - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        buffer[n] = 0;
    }
    assert_non_null(strstr(buffer, ": keep-alive\n\n"));
    close(fd);
    peer_stop(p);
}

/* One event a token, none merged or lost, with many streams at once; what it costs is printed. */
static void many_streams_are_cheap(void **state)
{
    (void)state;
    enum { STREAMS = 64, TOKENS = 800, PIECES = 8 };
    struct peer *p = peer_start(NULL);
    struct peer_script script = {.n_pieces = PIECES, .n_repeats = TOKENS / PIECES};
    struct timespec before, after;
    clockid_t clock;
    int fds[STREAMS];
    for (int i = 0; i < PIECES; i++)
        script.pieces[i] = (struct peer_piece){" token", "", false};
    peer_play(p, &script);
    pthread_getcpuclockid(p->server, &clock);
    clock_gettime(clock, &before);
    double start = peer_seconds();
    for (int i = 0; i < STREAMS; i++) {
        fds[i] = client_connect(p);
        client_send(fds[i], "POST", CHAT, NULL, "{\"stream\":true," MESSAGES_FIELD "}");
    }
    for (int i = 0; i < STREAMS; i++) {
        struct answer_text a = client_receive(fds[i]);
        int n = 0;
        for (const char *at = str_z(&a.body); (at = strstr(at, "{\"content\":\" token\"}")); at++)
            n++;
        assert_int_equal(TOKENS, n);
        answer_text_done(&a);
    }
    double seconds = peer_seconds() - start;
    clock_gettime(clock, &after);
    double cpu =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    print_message("%d streams x %d tokens: %.2f us of the frontend's CPU an event, %.0f events/s\n",
                  STREAMS, TOKENS, 1e6 * cpu / (STREAMS * TOKENS), STREAMS * TOKENS / seconds);
    peer_stop(p);
}

/* The same at a steady pace, as a scheduler sends: one token for every stream, step by step. */
static void steady_streams_are_cheap(void **state)
{
    (void)state;
    enum { STREAMS = 64, STEPS = 400, STEP_US = 1280 };
    static const struct peer_piece token = {" token", "", false}, nothing = {"", "", false};
    struct peer *p = peer_start(NULL);
    struct peer_script script = {.is_silent = true};
    struct timespec before, after;
    clockid_t clock;
    int fds[STREAMS];
    peer_play(p, &script);
    for (int i = 0; i < STREAMS; i++) {
        fds[i] = client_connect(p);
        client_send(fds[i], "POST", CHAT, NULL, "{\"stream\":true," MESSAGES_FIELD "}");
    }
    assert_true(peer_wait_count(p, &p->n_prompts, STREAMS));
    pthread_mutex_lock(&p->lock); /* this thread sends in the peer's place */
    pthread_getcpuclockid(p->server, &clock);
    clock_gettime(clock, &before);
    double start = peer_seconds();
    for (int step = 0; step < STEPS; step++) {
        bool is_last = step == STEPS - 1;
        while (peer_seconds() < start + 1e-6 * STEP_US * step)
            usleep(100);
        for (unsigned i = 1; i <= STREAMS; i++) /* uids count from 1 in epoch 1 */
            peer_send_piece(p, (uint64_t)1 << 32 | i, is_last ? &nothing : &token, 100,
                            is_last ? FINISH_STOP : FINISH_NONE, step + 1, -1);
        outbox_flush(&p->to_frontend);
    }
    for (int i = 0; i < STREAMS; i++) {
        struct answer_text a = client_receive(fds[i]);
        int n = 0;
        for (const char *at = str_z(&a.body); (at = strstr(at, "{\"content\":\" token\"}")); at++)
            n++;
        assert_int_equal(STEPS - 1, n);
        answer_text_done(&a);
    }
    clock_gettime(clock, &after);
    pthread_mutex_unlock(&p->lock);
    double cpu =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    print_message("%d streams x %d steps a second: %.2f us of the frontend's CPU an event\n",
                  STREAMS, 1000000 / STEP_US, 1e6 * cpu / (STREAMS * STEPS));
    peer_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_is_answered_whole),
        cmocka_unit_test(a_chat_is_streamed_one_event_a_token),
        cmocka_unit_test(pieces_that_overtake_their_prompt_are_kept),
        cmocka_unit_test(several_choices_and_prompts_have_their_places),
        cmocka_unit_test(logprobs_have_openais_shapes),
        cmocka_unit_test(reasoning_and_tool_calls_are_told_apart),
        cmocka_unit_test(a_refused_prompt_is_a_proper_status),
        cmocka_unit_test(an_error_is_told_inside_a_stream_that_has_begun),
        cmocka_unit_test(a_client_that_leaves_cancels_its_request),
        cmocka_unit_test(a_lost_process_ends_its_requests),
        cmocka_unit_test(health_tells_a_scheduler_that_hangs),
        cmocka_unit_test(a_full_queue_is_refused),
        cmocka_unit_test(keys_are_asked_for_where_they_should_be),
        cmocka_unit_test(request_ids_go_in_and_out),
        cmocka_unit_test(the_small_endpoints_answer),
        cmocka_unit_test(generate_speaks_both_dialects),
        cmocka_unit_test(metrics_count_what_happened),
        cmocka_unit_test(silent_streams_get_comments),
        cmocka_unit_test(many_streams_are_cheap),
        cmocka_unit_test(steady_streams_are_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
