/* The request parser alone: what it accepts, what it refuses with which status, and that the split
 * of the bytes does not matter. */
#include "server/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GET "GET / HTTP/1.1\r\nHost: a\r\n"
#define POST "POST / HTTP/1.1\r\nHost: a\r\n"

static struct http_limits limits_small(void)
{
    struct http_limits limits;
    http_limits_default(&limits);
    limits.max_head_bytes = 2000;
    limits.max_target_bytes = 300;
    limits.max_body_bytes = 100;
    return limits;
}

/* Feeds `text` in pieces that end at `split` and at the end; bytes not used are `left`. Each piece
 * is a copy of its exact size, so that a read behind it shows. */
static enum http_event feed(struct http_parser *parser, const char *text, size_t bytes,
                            size_t split, size_t *left)
{
    enum http_event event = HTTP_MORE;
    size_t at = 0;
    while (at < bytes && (event == HTTP_MORE || event == HTTP_HEAD)) {
        size_t end = at < split ? split : bytes;
        char *piece = malloc(end - at);
        assert_non_null(piece);
        memcpy(piece, text + at, end - at);
        size_t used = http_parser_feed(parser, piece, end - at, &event);
        assert_true(used <= end - at);
        if (event == HTTP_MORE)
            assert_int_equal(used, end - at);
        free(piece);
        at += used;
    }
    *left = bytes - at;
    return event;
}

/* 0 for a complete request, -1 for an incomplete one, else the status of its refusal. */
static int verdict(struct http_parser *parser, const char *text, size_t bytes, size_t split)
{
    size_t left;
    enum http_event event = feed(parser, text, bytes, split, &left);
    if (event == HTTP_BAD) {
        assert_non_null(parser->message);
        return parser->status;
    }
    return event == HTTP_DONE ? 0 : -1;
}

static void expect_verdict(const char *text, size_t bytes, int expected)
{
    struct http_limits limits = limits_small();
    for (size_t split = 1; split <= bytes; split++) {
        struct http_parser parser;
        http_parser_init(&parser, &limits);
        int got = verdict(&parser, text, bytes, split);
        if (got != expected)
            fail_msg("split at %zu: %d instead of %d for:\n%s", split, got, expected, text);
        http_parser_done(&parser);
    }
}

static void requests_get_the_status_they_deserve_however_they_are_split(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {0, GET "\r\n"},
        {0, "\r\n\r\n" GET "\r\n"},
        {0, "GET / HTTP/1.0\r\n\r\n"},
        {0, "GET http://host/path?x HTTP/1.1\r\nHost: host\r\n\r\n"},
        {0, "OPTIONS * HTTP/1.1\r\nHost: host\r\n\r\n"},
        {0, POST "Content-Length: 2\r\n\r\nab"},
        {0, POST "content-length:2 \t\r\n\r\nab"},
        {0, POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
        {0, POST "Transfer-Encoding: Chunked\r\n\r\n003;a=\"b\"\r\nabc\r\n0 ;x\r\nT: v\r\n\r\n"},
        {0, GET "X: \x80\xff obs-text\tand tab\r\n\r\n"},
        {0, GET "Expect: 100-Continue\r\n\r\n"},
        {0, "GET / HTTP/1.9\r\nHost: a\r\n\r\n"},
        {0, GET "Empty:\r\n\r\n"},
        {-1, "\r\n"},
        {-1, GET},
        {-1, POST "Content-Length: 2\r\n\r\na"},
        {-1, POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"},
        /* line ends, folding, control characters */
        {400, "\n" GET "\r\n"},
        {400, "GET / HTTP/1.1\nHost: a\n\n"},
        {400, GET "A: b\n\r\n"},
        {400, GET "A: b\rc\r\n\r\n"},
        {400, GET "A: b\r\r\n\r\n"},
        {400, GET "A: b\r\n c\r\n\r\n"},
        {400, GET "A: b\x01\r\n\r\n"},
        {400, GET "A: b\x7f\r\n\r\n"},
        {400, "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"},
        {400, "\x16\x03\x01"},
        /* request lines */
        {400, "GET /\r\n"},
        {400, "GET\r\n"},
        {400, " / HTTP/1.1\r\n"},
        {400, "GET  / HTTP/1.1\r\n"},
        {400, "GET / HTTP/1.1 \r\n"},
        {400, "GET / a HTTP/1.1\r\n"},
        {400, "GET / http/1.1\r\n"},
        {400, "GET / HTTP/11\r\n"},
        {400, "GET path HTTP/1.1\r\n"},
        {400, "GET * HTTP/1.1\r\n"},
        {400, "GET /%zz HTTP/1.1\r\n"},
        {400, "GET /%4 HTTP/1.1\r\n"},
        {400, "GET /%00 HTTP/1.1\r\n"},
        {400, "GET /%ff HTTP/1.1\r\n"},
        {400, "GET /\xc3\xa9 HTTP/1.1\r\n"},
        {501, "BREW / HTTP/1.1\r\n"},
        {501, "get / HTTP/1.1\r\n"},
        {501, "CONNECT host:1 HTTP/1.1\r\n"},
        {505, "PRI * HTTP/2.0\r\n"},
        {505, "GET / HTTP/2.0\r\n"},
        {505, "GET / HTTP/0.9\r\n"},
        /* fields */
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, GET "Host: b\r\n\r\n"},
        {400, GET "A : b\r\n\r\n"},
        {400, GET ": b\r\n\r\n"},
        {400, GET "nonsense\r\n\r\n"},
        {417, GET "Expect: tea\r\n\r\n"},
        /* framing: nothing that two programs could read differently */
        {413, POST "Content-Length: 101\r\n\r\n"},
        {413, POST "Content-Length: 99999999999999999999999999\r\n\r\n"},
        {413, POST "Content-Length: 18446744073709551617\r\n\r\n"},
        {400, POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab"},
        {400, POST "Content-Length: 2\r\nContent-Length: 3\r\n\r\nab"},
        {400, POST "Content-Length: 2, 2\r\n\r\nab"},
        {400, POST "Content-Length: +2\r\n\r\nab"},
        {400, POST "Content-Length: -2\r\n\r\nab"},
        {400, POST "Content-Length: 0x2\r\n\r\nab"},
        {400, POST "Content-Length:\r\n\r\nab"},
        {400, POST "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {400, POST "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n"},
        {400, POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {400, POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"},
        {501, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
        {501, POST "Transfer-Encoding: identity\r\n\r\n"},
        {501, POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
        {400, CHUNKED "\r\n"},
        {400, CHUNKED "g\r\n"},
        {400, CHUNKED "0x3\r\nabc\r\n0\r\n\r\n"},
        {400, CHUNKED "-1\r\n"},
        {400, CHUNKED "3 3\r\nabc\r\n0\r\n\r\n"},
        {400, CHUNKED "3 \r\nabc\r\n0\r\n\r\n"},
        {400, CHUNKED "3\nabc\r\n0\r\n\r\n"},
        {400, CHUNKED "3\r\nabcd\r\n0\r\n\r\n"},
        {400, CHUNKED "3\r\nabc\n0\r\n\r\n"},
        {400, CHUNKED "3\r\nabc0\r\n\r\n"},
        {400, CHUNKED "10000000000000000\r\n"},
        {400, CHUNKED "0\r\n folded\r\n\r\n"},
        {413, CHUNKED "fffffffffffffff\r\n"},
        {413, CHUNKED "65\r\n"},
        {413, CHUNKED "3\r\nabc\r\n62\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_verdict(cases[i].text, strlen(cases[i].text), cases[i].status);
    static const char nul[] = GET "A: b\0c\r\n\r\n";
    expect_verdict(nul, sizeof nul - 1, 400);
}

static void every_part_of_a_head_has_its_limit(void **state)
{
    (void)state;
    struct str text = {0};
    str_printf(&text, "GET /%0300d HTTP/1.1\r\n", 1);
    expect_verdict(text.data, text.len, 414);
    str_clear(&text);
    str_printf(&text, "%s%0400d: %02000d\r\n\r\n", GET, 1, 1);
    expect_verdict(text.data, text.len, 431);
    str_clear(&text);
    str_append_z(&text, GET);
    for (int i = 1; i < HTTP_MAX_FIELDS; i++)
        str_append_z(&text, "A: b\r\n");
    size_t len = text.len;
    str_append_z(&text, "\r\n");
    expect_verdict(text.data, text.len, 0);
    text.len = len;
    str_append_z(&text, "A: b\r\n");
    expect_verdict(text.data, text.len, 431);
    str_clear(&text);
    str_printf(&text, "%s1;%0300d\r\n", CHUNKED, 1);
    expect_verdict(text.data, text.len, 400);
    str_clear(&text);
    str_printf(&text, "%s0\r\n", CHUNKED);
    for (int i = 0; i < 70; i++)
        str_append_z(&text, "Trailer: 0123456789012345678901234\r\n");
    expect_verdict(text.data, text.len, 431);
    str_done(&text);
}

static void a_request_is_taken_apart(void **state)
{
    (void)state;
    static const char text[] = "PUT /a%20b/%C3%A9?q=%20&r HTTP/1.1\r\nHost: h\r\n"
                               "X-Thing:  two words \t\r\nx-thing: second\r\nEmpty:\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n"
                               "2\r\nab\r\n3;ext\r\n\0cd\r\n0\r\nTrailer: x\r\n\r\nGET";
    struct http_limits limits = limits_small();
    for (size_t split = 1; split < sizeof text; split++) {
        struct http_parser parser;
        size_t left;
        http_parser_init(&parser, &limits);
        assert_int_equal(feed(&parser, text, sizeof text - 1, split, &left), HTTP_DONE);
        /* What the last feed was not given counts as left, so the next request is untouched. */
        assert_true(left == 3);
        assert_string_equal(parser.method, "PUT");
        assert_string_equal(parser.path.data, "/a b/\xc3\xa9");
        assert_string_equal(parser.head.data + parser.query, "q=%20&r");
        assert_string_equal(http_parser_field(&parser, "x-THING"), "two words");
        assert_string_equal(http_parser_field(&parser, "empty"), "");
        assert_null(http_parser_field(&parser, "trailer"));
        assert_null(http_parser_field(&parser, "x"));
        assert_int_equal(parser.body.len, 5);
        assert_memory_equal(parser.body.data, "ab\0cd", 6);
        assert_true(http_parser_keeps_alive(&parser));
        http_parser_done(&parser);
    }
}

static void paths_and_queries_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *target, *path, *query;
    } cases[] = {
        {"/", "/", ""},          {"/?", "/", ""},
        {"/a?b?c", "/a", "b?c"}, {"/%3F?x", "/?", "x"},
        {"http://h", "/", ""},   {"HTTPS://h:1?q=/", "/", "q=/"},
        {"//h/x", "//h/x", ""},  {"http://h/p/%2e?a", "/p/.", "a"},
    };
    struct http_limits limits = limits_small();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_parser parser;
        char text[200];
        http_parser_init(&parser, &limits);
        int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", cases[i].target);
        assert_int_equal(verdict(&parser, text, (size_t)n, 0), 0);
        assert_string_equal(parser.path.data, cases[i].path);
        assert_string_equal(parser.head.data + parser.query, cases[i].query);
        http_parser_done(&parser);
    }
}

static void the_client_decides_how_long_a_connection_lives(void **state)
{
    (void)state;
    static const struct {
        bool keeps_alive;
        const char *text;
    } cases[] = {
        {true, GET "\r\n"},
        {false, GET "Connection: close\r\n\r\n"},
        {false, GET "Connection: Upgrade , Close\r\n\r\n"},
        {false, GET "Connection: keep-alive\r\nConnection: close\r\n\r\n"},
        {true, GET "Connection: closed\r\n\r\n"},
        {false, "GET / HTTP/1.0\r\n\r\n"},
        {true, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"},
    };
    struct http_limits limits = limits_small();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct http_parser parser;
        http_parser_init(&parser, &limits);
        assert_int_equal(verdict(&parser, cases[i].text, strlen(cases[i].text), 0), 0);
        assert_int_equal(http_parser_keeps_alive(&parser), cases[i].keeps_alive);
        http_parser_reset(&parser);
        assert_false(http_parser_has_begun(&parser));
        http_parser_done(&parser);
    }
}

static void a_body_is_announced_once_before_it_is_read(void **state)
{
    (void)state;
    struct http_limits limits = limits_small();
    struct http_parser parser;
    enum http_event event;
    static const char head[] = POST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n";
    http_parser_init(&parser, &limits);
    assert_int_equal(http_parser_feed(&parser, "\r", 1, &event), 1);
    assert_false(http_parser_has_begun(&parser));
    http_parser_feed(&parser, "\n", 1, &event);
    assert_false(http_parser_has_begun(&parser));
    http_parser_feed(&parser, head, 1, &event);
    assert_true(http_parser_has_begun(&parser));
    assert_int_equal(http_parser_feed(&parser, head + 1, sizeof head - 2, &event), sizeof head - 2);
    assert_int_equal(event, HTTP_HEAD);
    assert_true(parser.expects_continue);
    http_parser_feed(&parser, "ab", 2, &event);
    assert_int_equal(event, HTTP_MORE);
    assert_int_equal(http_parser_feed(&parser, "cGET", 4, &event), 1);
    assert_int_equal(event, HTTP_DONE);
    http_parser_done(&parser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_get_the_status_they_deserve_however_they_are_split),
        cmocka_unit_test(every_part_of_a_head_has_its_limit),
        cmocka_unit_test(a_request_is_taken_apart),
        cmocka_unit_test(paths_and_queries_are_told_apart),
        cmocka_unit_test(the_client_decides_how_long_a_connection_lives),
        cmocka_unit_test(a_body_is_announced_once_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
