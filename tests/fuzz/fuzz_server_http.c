/* Any bytes as requests: to the parser, whole and in pieces, with the same result; and to a server
 * over a socket pair, whose client may leave, which must end with no connection and nothing held.
 * The first byte chooses how the rest is cut. */
#include "server/http_parse.h"

#include <event2/event.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth)
{
    if (!truth)
        __builtin_trap();
}

static struct http_limits small_limits(void)
{
    struct http_limits limits;
    http_limits_default(&limits);
    limits.max_head_bytes = 600;
    limits.max_target_bytes = 200;
    limits.max_body_bytes = 300;
    limits.max_pipelined_bytes = 700;
    limits.linger_idle_ms = limits.linger_ms = 0;
    return limits;
}

/* Parses requests until the input ends or is refused; appends what was understood to `log`. */
static void parse(const char *text, size_t bytes, size_t piece, struct str *log)
{
    struct http_limits limits = small_limits();
    struct http_parser parser;
    enum http_event event = HTTP_MORE;
    size_t at = 0;
    http_parser_init(&parser, &limits);
    while (at < bytes && event != HTTP_BAD) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        size_t used = http_parser_feed(&parser, text + at, n, &event);
        require(used <= n && (used == n || event != HTTP_MORE));
        /* A line of a chunk, or of the trailer, which has the head's limit anew, follows the head. */
        require(parser.head.len <= 2 * limits.max_head_bytes);
        require(parser.body.len <= limits.max_body_bytes);
        at += used;
        if (event == HTTP_BAD)
            str_printf(log, "%d %s\n", parser.status, parser.message);
        if (event != HTTP_DONE)
            continue;
        str_printf(log, "%s %s %s %d %zu\n", parser.method, parser.path.data,
                   parser.head.data + parser.query, http_parser_keeps_alive(&parser),
                   parser.n_fields);
        for (size_t i = 0; i < parser.n_fields; i++)
            str_printf(log, "%s=%s\n", parser.head.data + parser.fields[i].name,
                       parser.head.data + parser.fields[i].value);
        str_append(log, parser.body.data, parser.body.len);
        http_parser_reset(&parser);
    }
    str_printf(log, "\n%d %d", (int)event, http_parser_has_begun(&parser));
    http_parser_done(&parser);
}

static struct http_request *held;

static void forget(void *user, struct http_request *request)
{
    (void)user;
    require(held == request);
    held = NULL;
}

/* Answers at once, in a stream, or holds the request until the next turn. */
static void handle(void *context, struct http_request *request)
{
    (void)context;
    size_t bytes;
    const char *body = http_body(request, &bytes);
    require(held == NULL && strlen(body) <= bytes);
    http_header_add(request, "x-path", http_path(request));
    if (http_method(request)[0] == 'G') {
        http_reply(request, 200, "text/plain", http_query(request), strlen(http_query(request)));
    } else if (http_method(request)[0] == 'O') {
        http_method_refused(request, "GET");
    } else {
        held = request;
        http_on_closed(request, forget, NULL);
        http_stream_begin(request, 200, "text/plain");
        http_stream_write(request, body, bytes);
        http_body_release(request);
    }
}

static void turn(struct event_base *base, int fd)
{
    char answer[4096];
    event_base_loop(base, EVLOOP_NONBLOCK);
    while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0) {
    }
}

static void serve(const char *text, size_t bytes, size_t piece, int leaves_early)
{
    struct http_options options = {
        .limits = small_limits(), .handler = handle, .cors_origin = leaves_early ? "*" : NULL};
    struct event_base *base = event_base_new();
    struct http_server *server = NULL;
    struct error error;
    int ends[2];
    require(base && http_server_new(base, &options, &server, &error) == OK);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    require(http_server_adopt(server, ends[0], &error) == OK);
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        if (send(ends[1], text + at, n, MSG_NOSIGNAL) < 0)
            break;
        turn(base, ends[1]);
        if (held && (at / piece) % 3 == 2) {
            http_stream_end(held);
            held = NULL;
        }
    }
    if (held && !leaves_early) {
        http_stream_end(held);
        held = NULL;
    }
    turn(base, ends[1]);
    close(ends[1]);
    for (int i = 0; i < 4 && http_server_stats(server).connections; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    struct http_stats stats = http_server_stats(server);
    require(!held && !stats.connections && !stats.active && !stats.body_bytes);
    http_server_free(server);
    event_base_free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct str whole = {0}, pieces = {0};
    if (bytes < 2)
        return 0;
    const char *text = (const char *)data + 1;
    size_t piece = (size_t)(*data & 63) * (*data & 63) / 4 + 1;
    bytes--;
    parse(text, bytes, bytes, &whole);
    parse(text, bytes, piece, &pieces);
    require(whole.len == pieces.len && memcmp(whole.data, pieces.data, whole.len) == 0);
    str_done(&whole);
    str_done(&pieces);
    if (*data & 64)
        serve(text, bytes, piece < 16 ? 16 : piece, *data >> 7);
    return 0;
}
