/* Streams of servers, whole and in pieces. */
#include "bench/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void collect(void *context, const char *data, size_t len)
{
    str_append(context, data, len);
    str_append_char(context, '|');
}

static void events_come_whole_however_they_are_cut(void **state)
{
    (void)state;
    static const char stream[] = ": comment\r\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:second\n\n"
                                 "data: [DONE]\n\n";
    for (size_t piece = 1; piece < sizeof stream; piece++) {
        struct sse s = {0};
        struct str out = {0};
        for (size_t at = 0; at < sizeof stream - 1; at += piece) {
            size_t left = sizeof stream - 1 - at;
            sse_feed(&s, stream + at, left < piece ? left : piece, collect, &out);
        }
        assert_string_equal(str_z(&out), "{\"a\": 1}|second|[DONE]|");
        sse_done(&s);
        str_done(&out);
    }
}

static void a_line_without_end_is_given_up(void **state)
{
    (void)state;
    struct sse s = {0};
    struct str out = {0};
    size_t n = 1 << 20;
    char *piece = malloc(n);
    memset(piece, 'x', n);
    for (int i = 0; i < 20; i++)
        sse_feed(&s, piece, n, collect, &out);
    assert_true(s.failed);
    assert_int_equal(out.len, 0);
    free(piece);
    sse_done(&s);
    str_done(&out);
}

static struct stream_event read_event(const char *text)
{
    struct stream_event e;
    assert_true(stream_event_read(&e, text, strlen(text)));
    return e;
}

static void events_of_both_endpoints_are_understood(void **state)
{
    (void)state;
    assert_true(read_event("{\"choices\": [{\"text\": \" a\"}]}").has_text);
    assert_false(read_event("{\"choices\": [{\"text\": \"\"}]}").has_text);
    assert_true(read_event("{\"choices\": [{\"delta\": {\"content\": \"b\"}}]}").has_text);
    assert_true(
        read_event("{\"choices\": [{\"delta\": {\"reasoning_content\": \"c\"}}]}").has_text);
    assert_false(read_event("{\"choices\": [{\"delta\": {\"role\": \"assistant\"}}]}").has_text);
    struct stream_event usage = read_event(
        "{\"choices\": [], \"usage\": {\"prompt_tokens\": 12, \"completion_tokens\": 3}}");
    assert_int_equal(usage.n_prompt, 12);
    assert_int_equal(usage.n_output, 3);
    assert_int_equal(read_event("{\"choices\": null, \"usage\": null}").n_output, -1);
    assert_true(read_event("[DONE]").is_end);
    assert_string_equal(read_event("{\"error\": {\"message\": \"too long\"}}").error, "too long");
    assert_string_equal(read_event("{\"error\": \"no\"}").error, "no");
    struct stream_event e;
    assert_false(stream_event_read(&e, "nonsense", 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_whole_however_they_are_cut),
        cmocka_unit_test(a_line_without_end_is_given_up),
        cmocka_unit_test(events_of_both_endpoints_are_understood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
