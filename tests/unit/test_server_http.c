/* The HTTP server with clients that behave: replies, keep-alive, pipelining, HEAD, errors, CORS,
 * stopping. */
#include "server_http_case.h"

static struct http_limits default_limits(void)
{
    struct http_limits limits;
    http_limits_default(&limits);
    return limits;
}

static int start(void **state)
{
    struct http_limits limits = default_limits();
    return case_setup(state, &limits);
}

static void a_connection_serves_one_request_after_the_other(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    for (int i = 0; i < 5; i++) {
        client_ask(&client, "GET /hello");
        assert_int_equal(client_read_reply(&client, &reply, true), 200);
        assert_string_equal(reply.body.data, "hello");
        assert_string_equal(reply_field(&reply, "content-type"), "text/plain");
        assert_null(reply_field(&reply, "connection"));
        assert_null(reply_field(&reply, "access-control-allow-origin"));
    }
    client_send(&client, "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply_field(&reply, "connection"), "close");
    assert_true(client_is_closed(&client));
    client_close(&client);
    reply_done(&reply);
}

static void the_handler_sees_the_request_and_adds_fields(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_send(&client,
                "\r\nDELETE /inspect?a=%20b HTTP/1.1\r\nHost: a\r\nx-TEST: some\tid\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply.body.data, "DELETE|/inspect|a=%20b|some\tid");
    assert_string_equal(reply_field(&reply, "x-request-id"), "someid");
    client_close(&client);
    reply_done(&reply);
}

static void bodies_arrive_whole_by_length_and_by_chunks(void **state)
{
    enum { BYTES = 3000000 };
    struct client client;
    struct reply reply = {0};
    struct str text = {0};
    client_open(&client, *state);
    str_printf(&text, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", BYTES);
    for (int i = 0; i < BYTES; i++)
        str_append_char(&text, (char)('a' + i % 23));
    client_send(&client, text.data);
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_int_equal(reply.body.len, BYTES);
    assert_memory_equal(reply.body.data, text.data + text.len - BYTES, BYTES);
    client_send(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_send(&client, "4\r\nab");
    sleep_ms(5);
    client_send(&client, "cd\r\n1;x\r\ne\r\n0\r\nT: x\r");
    sleep_ms(5);
    client_send(&client, "\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply.body.data, "abcde");
    assert_int_equal(case_read_stats(*state).body_bytes, 0);
    str_done(&text);
    client_close(&client);
    reply_done(&reply);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    enum { N = 600 };
    struct client client;
    struct reply reply = {0};
    struct str text = {0};
    client_open(&client, *state);
    str_append_z(&text, "GET /later?20000 HTTP/1.1\r\nHost: a\r\n\r\n");
    for (int i = 0; i < N; i++)
        str_printf(&text, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n%05d", i);
    assert_true(text.len < 64 << 10);
    client_send(&client, text.data);
    client_read_reply(&client, &reply, true);
    assert_string_equal(reply.body.data, "later");
    for (int i = 0; i < N; i++) {
        assert_int_equal(client_read_reply(&client, &reply, true), 200);
        assert_int_equal(atoi(reply.body.data), i);
    }
    str_done(&text);
    client_close(&client);
    reply_done(&reply);
}

static void head_and_options_have_no_body(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_ask(&client, "HEAD /hello");
    assert_int_equal(client_read_reply(&client, &reply, false), 200);
    assert_string_equal(reply_field(&reply, "content-length"), "5");
    client_ask(&client, "HEAD /nowhere");
    assert_int_equal(client_read_reply(&client, &reply, false), 404);
    client_ask(&client, "HEAD /stream?100,3,5");
    assert_int_equal(client_read_reply(&client, &reply, false), 200);
    client_ask(&client, "OPTIONS /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 204);
    assert_string_equal(reply_field(&reply, "allow"), "GET, HEAD");
    assert_null(reply_field(&reply, "content-length"));
    client_ask(&client, "GET /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply.body.data, "hello");
    client_close(&client);
    reply_done(&reply);
}

static void errors_are_json_with_their_status(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_ask(&client, "GET /nowhere");
    assert_int_equal(client_read_reply(&client, &reply, true), 404);
    assert_string_equal(reply_field(&reply, "content-type"), "application/json");
    assert_string_equal(reply.body.data,
                        "{\"error\": {\"message\": \"There is no such path.\", "
                        "\"type\": \"invalid_request_error\", \"param\": null, \"code\": null}}\n");
    client_ask(&client, "GET /busy");
    assert_int_equal(client_read_reply(&client, &reply, true), 503);
    assert_string_equal(reply_field(&reply, "retry-after"), "7");
    assert_string_equal(reply.body.data,
                        "{\"error\": {\"message\": \"Too \\\"busy\\\".\", \"type\": "
                        "\"server_error\", \"param\": \"model\", \"code\": \"overloaded\"}}\n");
    client_ask(&client, "DELETE /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 405);
    assert_string_equal(reply_field(&reply, "allow"), "GET, HEAD");
    client_ask(&client, "TEAPOT /hello");
    assert_int_equal(client_read_reply(&client, &reply, true), 501);
    assert_string_equal(reply_field(&reply, "content-type"), "application/json");
    assert_string_equal(reply_field(&reply, "connection"), "close");
    assert_non_null(strstr(reply.body.data, "\"server_error\""));
    assert_true(client_is_closed(&client));
    client_close(&client);
    reply_done(&reply);
}

static void clients_of_http_1_0_get_a_body_that_ends_with_the_connection(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_send(&client, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply_field(&reply, "connection"), "keep-alive");
    client_send(&client, "GET /stream?100,20,10 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_null(reply_field(&reply, "transfer-encoding"));
    assert_int_equal(reply.body.len, 200);
    client_close(&client);
    reply_done(&reply);
}

static void a_client_that_waits_for_leave_gets_it(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_send(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                         "Content-Length: 2\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 100);
    client_send(&client, "ok");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_string_equal(reply.body.data, "ok");
    /* who does not wait needs none */
    client_send(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                         "Content-Length: 2\r\n\r\nok");
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    client_send(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
                         "Content-Length: 99999999999\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 413);
    client_close(&client);
    reply_done(&reply);
}

static void an_answer_reaches_a_client_that_stopped_sending(void **state)
{
    struct client client;
    struct reply reply = {0};
    client_open(&client, *state);
    client_ask(&client, "GET /big?3000000");
    shutdown(client.fd, SHUT_WR);
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    assert_int_equal(reply.body.len, 3000000);
    assert_true(client_is_closed(&client));
    client_close(&client);
    reply_done(&reply);
}

static void cors_is_answered_for_the_allowed_origin(void **state)
{
    struct http_case the_case;
    struct http_options options = {.limits = default_limits(), .cors_origin = "https://a.example"};
    struct client client;
    struct reply reply = {0};
    (void)state;
    case_start_options(&the_case, &options);
    client_open(&client, &the_case);
    client_send(&client, "OPTIONS /hello HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\n"
                         "Access-Control-Request-Method: POST\r\n"
                         "Access-Control-Request-Headers: authorization,content-type\r\n\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 204);
    assert_int_equal(atomic_load(&the_case.handled), 0);
    assert_string_equal(reply_field(&reply, "access-control-allow-origin"), "https://a.example");
    assert_string_equal(reply_field(&reply, "access-control-allow-headers"),
                        "authorization,content-type");
    assert_non_null(strstr(reply_field(&reply, "access-control-allow-methods"), "POST"));
    client_ask(&client, "GET /nowhere");
    assert_int_equal(client_read_reply(&client, &reply, true), 404);
    assert_string_equal(reply_field(&reply, "access-control-allow-origin"), "https://a.example");
    client_send(&client, "nonsense\r\n");
    assert_int_equal(client_read_reply(&client, &reply, true), 400);
    assert_string_equal(reply_field(&reply, "access-control-allow-origin"), "https://a.example");
    client_close(&client);
    reply_done(&reply);
    case_stop(&the_case);
}

static void stopping_lets_answers_end_and_closes_the_rest(void **state)
{
    struct http_case the_case;
    struct http_limits limits = default_limits();
    struct client idle, busy, streaming;
    struct reply reply = {0};
    (void)state;
    case_start(&the_case, &limits);
    client_open(&idle, &the_case);
    client_ask(&idle, "GET /hello");
    client_read_reply(&idle, &reply, true);
    client_open(&busy, &the_case);
    client_ask(&busy, "GET /later?200000");
    client_open(&streaming, &the_case);
    client_ask(&streaming, "GET /stream?20000,10,5");
    case_wait_handled(&the_case, 3);
    case_command_send(&the_case, 's');
    assert_true(client_is_closed(&idle));
    assert_int_equal(client_read_reply(&busy, &reply, true), 200);
    assert_string_equal(reply_field(&reply, "connection"), "close");
    assert_true(client_is_closed(&busy));
    assert_int_equal(client_read_reply(&streaming, &reply, true), 200);
    assert_int_equal(reply.body.len, 50);
    assert_true(client_is_closed(&streaming));
    client_close(&idle);
    client_close(&busy);
    client_close(&streaming);
    sleep_ms(100);
    case_command_send(&the_case, 'q');
    pthread_join(the_case.thread, NULL);
    assert_int_equal(http_server_stats(the_case.server).active, 0);
    assert_int_equal(http_server_stats(the_case.server).connections, 0);
    assert_int_equal(pthread_create(&the_case.thread, NULL, case_loop, &the_case), 0);
    case_stop(&the_case);
    reply_done(&reply);
}

static void freeing_the_server_tells_the_owners_of_pending_requests(void **state)
{
    struct http_case the_case;
    struct http_limits limits = default_limits();
    struct client pending, streaming;
    (void)state;
    case_start(&the_case, &limits);
    client_open(&pending, &the_case);
    client_open(&streaming, &the_case);
    client_ask(&pending, "GET /later?-1");
    client_ask(&streaming, "GET /stream?1000,1000000,5");
    case_wait_handled(&the_case, 2);
    case_stop(&the_case);
    assert_int_equal(atomic_load(&the_case.closed), 2);
    client_close(&pending);
    client_close(&streaming);
}

static void a_socket_pair_can_be_adopted(void **state)
{
    struct event_base *base = event_base_new();
    struct http_case the_case = {.base = base};
    struct http_options options = {
        .limits = default_limits(), .handler = case_handle, .context = &the_case};
    struct error error = {0};
    struct reply reply = {0};
    int ends[2];
    (void)state;
    assert_int_equal(http_server_new(base, &options, &the_case.server, &error), OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(http_server_adopt(the_case.server, ends[0], &error), OK);
    struct client client = {.fd = ends[1]};
    client_ask(&client, "GET /hello");
    event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    assert_int_equal(client_read_reply(&client, &reply, true), 200);
    client_close(&client);
    event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    assert_int_equal(http_server_stats(the_case.server).connections, 0);
    http_server_free(the_case.server);
    event_base_free(base);
    reply_done(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_serves_one_request_after_the_other),
        cmocka_unit_test(the_handler_sees_the_request_and_adds_fields),
        cmocka_unit_test(bodies_arrive_whole_by_length_and_by_chunks),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(head_and_options_have_no_body),
        cmocka_unit_test(errors_are_json_with_their_status),
        cmocka_unit_test(clients_of_http_1_0_get_a_body_that_ends_with_the_connection),
        cmocka_unit_test(a_client_that_waits_for_leave_gets_it),
        cmocka_unit_test(an_answer_reaches_a_client_that_stopped_sending),
        cmocka_unit_test(cors_is_answered_for_the_allowed_origin),
        cmocka_unit_test(stopping_lets_answers_end_and_closes_the_rest),
        cmocka_unit_test(freeing_the_server_tells_the_owners_of_pending_requests),
        cmocka_unit_test(a_socket_pair_can_be_adopted),
    };
    return cmocka_run_group_tests(tests, start, case_teardown);
}
