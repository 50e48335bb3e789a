/* For the tests of the HTTP server: a server with a handler of simple routes on a thread of its
 * own, and a blocking client. */
#ifndef CSGL_TESTS_UNIT_SERVER_HTTP_CASE_H
#define CSGL_TESTS_UNIT_SERVER_HTTP_CASE_H

#include "base/str.h"
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A sanitizer's slowness must not look like a failure. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif
#else
enum { IS_SANITIZED = 0 };
#endif

enum { CLIENT_PATIENCE_MS = 20000, CASE_MAX_EVENT_BYTES = 64 << 10 };

struct http_case {
    struct event_base *base;
    struct http_server *server;
    struct event *command;
    pthread_t thread;
    int listen_fd, port;
    int commands[2];            /* a pipe: 'q' quits, 's' stops accepting */
    atomic_int handled, closed; /* calls of the handler, of on_closed */
    atomic_llong closed_at_us;
    atomic_llong cpu_ns; /* of the thread, so far */
};

static inline int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* A timer that answers or feeds one request. */
struct case_job {
    struct http_case *the_case;
    struct http_request *request;
    struct event *timer;
    int left, bytes, interval_us;
    bool is_stream;
};

static inline void case_job_free(struct case_job *job)
{
    event_free(job->timer);
    free(job);
}

static inline void case_on_closed(void *user, struct http_request *request)
{
    struct case_job *job = user;
    struct http_case *the_case = job->the_case;
    assert_ptr_equal(job->request, request);
    atomic_store(&the_case->closed_at_us, now_us());
    atomic_fetch_add(&the_case->closed, 1);
    case_job_free(job);
}

static inline void case_job_wait(struct case_job *job)
{
    struct timeval wait = {job->interval_us / 1000000, job->interval_us % 1000000};
    evtimer_add(job->timer, &wait);
}

static inline void case_job_step(evutil_socket_t fd, short what, void *arg)
{
    static const char fill[CASE_MAX_EVENT_BYTES] = {'e'};
    struct case_job *job = arg;
    (void)fd;
    (void)what;
    if (!job->is_stream) {
        http_reply(job->request, 200, "text/plain", "later", 5);
        case_job_free(job);
        return;
    }
    do {
        if (job->left == 0) {
            http_stream_end(job->request);
            case_job_free(job);
            return;
        }
        job->left--;
        http_stream_write(job->request, fill, (size_t)job->bytes);
    } while (job->interval_us == 0);
    case_job_wait(job);
}

static inline void case_job_start(struct http_case *the_case, struct http_request *request,
                                  bool is_stream)
{
    struct case_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    *job = (struct case_job){.the_case = the_case, .request = request, .is_stream = is_stream};
    sscanf(http_query(request), "%d,%d,%d", &job->interval_us, &job->left, &job->bytes);
    assert_in_range(job->bytes, 0, CASE_MAX_EVENT_BYTES);
    job->timer = evtimer_new(the_case->base, case_job_step, job);
    http_on_closed(request, case_on_closed, job);
    assert_ptr_equal(http_user(request), job);
    if (is_stream)
        http_stream_begin(request, 200, "text/event-stream");
    if (job->interval_us >= 0)
        case_job_wait(job);
}

static inline void case_inspect(struct http_request *request)
{
    struct str text = {0};
    const char *x = http_header(request, "X-Test");
    str_printf(&text, "%s|%s|%s|%s", http_method(request), http_path(request), http_query(request),
               x ? x : "-");
    http_header_add(request, "x-request-id", x ? x : "none");
    http_reply(request, 200, "text/plain", text.data, text.len);
    str_done(&text);
}

static inline void case_stats(struct http_case *the_case, struct http_request *request)
{
    struct http_stats s = http_server_stats(the_case->server);
    struct str text = {0};
    str_printf(&text, "%zu %zu %zu %llu %llu %llu", s.connections, s.active, s.body_bytes,
               (unsigned long long)s.cut_off, (unsigned long long)s.idle_closed,
               (unsigned long long)s.gone);
    http_reply(request, 200, "text/plain", text.data, text.len);
    str_done(&text);
}

static inline void case_big(struct http_request *request)
{
    size_t n = (size_t)atoi(http_query(request));
    char *body = malloc(n + 1);
    assert_non_null(body);
    memset(body, 'b', n);
    http_reply(request, 200, "text/plain", body, n);
    free(body);
}

/* /hello, /inspect, /echo, /big?BYTES, /stats, /later?MICROSECONDS (negative: never),
 * /stream?MICROSECONDS,EVENTS,BYTES (0 microseconds: all at once) */
static inline void case_handle(void *context, struct http_request *request)
{
    struct http_case *the_case = context;
    const char *path = http_path(request);
    size_t bytes;
    const char *body = http_body(request, &bytes);
    atomic_fetch_add(&the_case->handled, 1);
    if (strcmp(path, "/hello") == 0 && strcmp(http_method(request), "GET") != 0 &&
        strcmp(http_method(request), "HEAD") != 0)
        http_method_refused(request, "GET, HEAD");
    else if (strcmp(path, "/hello") == 0)
        http_reply(request, 200, "text/plain", "hello", 5);
    else if (strcmp(path, "/inspect") == 0)
        case_inspect(request);
    else if (strcmp(path, "/echo") == 0)
        http_reply(request, 200, "text/plain", body, bytes);
    else if (strcmp(path, "/big") == 0)
        case_big(request);
    else if (strcmp(path, "/stats") == 0)
        case_stats(the_case, request);
    else if (strcmp(path, "/busy") == 0)
        http_error(request, 503, NULL, "model", "overloaded", "Too \"busy\".", 7);
    else if (strcmp(path, "/later") == 0)
        case_job_start(the_case, request, false);
    else if (strcmp(path, "/stream") == 0)
        case_job_start(the_case, request, true);
    else
        http_error(request, 404, NULL, NULL, NULL, "There is no such path.", 0);
}

static inline void case_command(evutil_socket_t fd, short what, void *arg)
{
    struct http_case *the_case = arg;
    char command = 0;
    (void)what;
    if (read(fd, &command, 1) != 1 || command == 'q')
        event_base_loopbreak(the_case->base);
    else if (command == 's')
        http_server_stop_accepting(the_case->server);
}

static inline void *case_loop(void *arg)
{
    struct http_case *the_case = arg;
    struct timespec cpu;
    event_base_dispatch(the_case->base);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    atomic_store(&the_case->cpu_ns, (long long)cpu.tv_sec * 1000000000 + cpu.tv_nsec);
    return NULL;
}

static inline void case_command_send(struct http_case *the_case, char command)
{
    assert_int_equal(write(the_case->commands[1], &command, 1), 1);
}

static inline void case_start_options(struct http_case *the_case, struct http_options *options)
{
    struct error error = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    memset(the_case, 0, sizeof *the_case);
    options->handler = case_handle;
    options->context = the_case;
    the_case->base = event_base_new();
    assert_non_null(the_case->base);
    assert_int_equal(http_server_new(the_case->base, options, &the_case->server, &error), OK);
    the_case->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(the_case->listen_fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(the_case->listen_fd, (struct sockaddr *)&address, &len), 0);
    the_case->port = ntohs(address.sin_port);
    assert_int_equal(http_server_listen(the_case->server, the_case->listen_fd, &error), OK);
    assert_int_equal(pipe(the_case->commands), 0);
    the_case->command = event_new(the_case->base, the_case->commands[0], EV_READ | EV_PERSIST,
                                  case_command, the_case);
    event_add(the_case->command, NULL);
    assert_int_equal(pthread_create(&the_case->thread, NULL, case_loop, the_case), 0);
}

static inline void case_start(struct http_case *the_case, const struct http_limits *limits)
{
    struct http_options options = {.limits = *limits};
    case_start_options(the_case, &options);
}

static inline void case_stop(struct http_case *the_case)
{
    case_command_send(the_case, 'q');
    pthread_join(the_case->thread, NULL);
    http_server_free(the_case->server);
    event_free(the_case->command);
    event_base_free(the_case->base);
    close(the_case->listen_fd);
    close(the_case->commands[0]);
    close(the_case->commands[1]);
}

/* A test's set-up and teardown: a case of these limits in `*state`. */
static inline int case_setup(void **state, const struct http_limits *limits)
{
    *state = malloc(sizeof(struct http_case));
    assert_non_null(*state);
    case_start(*state, limits);
    return 0;
}

static inline int case_teardown(void **state)
{
    case_stop(*state);
    free(*state);
    return 0;
}

struct client {
    int fd;
    struct str in; /* not yet read from `at` */
    size_t at;
};

struct reply {
    int status;
    struct str head, body;
    int n_chunks;
};

static inline void client_open_with(struct client *client, const struct http_case *the_case,
                                    int receive_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)the_case->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *client = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    assert_true(client->fd >= 0);
    if (receive_bytes)
        setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    assert_int_equal(connect(client->fd, (struct sockaddr *)&address, sizeof address), 0);
}

static inline void client_open(struct client *client, const struct http_case *the_case)
{
    client_open_with(client, the_case, 0);
}

static inline void client_close(struct client *client)
{
    close(client->fd);
    str_done(&client->in);
}

/* False when the server has closed. */
static inline bool client_send_bytes(struct client *client, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(client->fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

static inline void client_send(struct client *client, const char *text)
{
    assert_true(client_send_bytes(client, text, strlen(text)));
}

/* "METHOD PATH" as an HTTP/1.1 request without a body. */
static inline void client_ask(struct client *client, const char *what)
{
    struct str text = {0};
    str_printf(&text, "%s HTTP/1.1\r\nHost: test\r\n\r\n", what);
    client_send(client, text.data);
    str_done(&text);
}

/* Reads more: its bytes, 0 at the end, -1 for a reset; fails after CLIENT_PATIENCE_MS. */
static inline ssize_t client_fill(struct client *client)
{
    char data[65536];
    struct pollfd wait = {.fd = client->fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, CLIENT_PATIENCE_MS), 1);
    ssize_t n = recv(client->fd, data, sizeof data, 0);
    if (n > 0)
        str_append(&client->in, data, (size_t)n);
    return n;
}

/* The connection ends, with nothing more before its end. */
static inline bool client_is_closed(struct client *client)
{
    return client->at == client->in.len && client_fill(client) <= 0;
}

static inline size_t client_find(struct client *client, const char *text)
{
    for (;;) {
        const char *found =
            client->in.len > client->at ? strstr(client->in.data + client->at, text) : NULL;
        if (found)
            return (size_t)(found - client->in.data) + strlen(text) - client->at;
        if (client_fill(client) <= 0)
            fail_msg("the connection ended before \"%s\"; it said: %s", text,
                     client->in.len > client->at ? client->in.data + client->at : "");
    }
}

static inline void client_take(struct client *client, size_t bytes, struct str *out)
{
    while (client->in.len - client->at < bytes) {
        if (client_fill(client) <= 0)
            fail_msg("the connection ended within a body");
    }
    str_append(out, client->in.data + client->at, bytes);
    client->at += bytes;
    if (client->at > 1 << 16) {
        client->in.len -= client->at;
        memmove(client->in.data, client->in.data + client->at, client->in.len + 1);
        client->at = 0;
    }
}

static inline const char *reply_field(const struct reply *reply, const char *name)
{
    static _Thread_local char value[512];
    size_t n = strlen(name);
    for (const char *line = reply->head.data; line; line = strstr(line, "\r\n")) {
        line += *line == '\r' ? 2 : 0;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
            return value;
        }
    }
    return NULL;
}

static inline void reply_done(struct reply *reply)
{
    str_done(&reply->head);
    str_done(&reply->body);
    memset(reply, 0, sizeof *reply);
}

static inline void client_read_chunks(struct client *client, struct reply *reply)
{
    for (;;) {
        struct str line = {0};
        client_take(client, client_find(client, "\r\n"), &line);
        size_t bytes = strtoul(line.data, NULL, 16);
        str_done(&line);
        client_take(client, bytes, &reply->body);
        client_take(client, 2, &line);
        assert_string_equal(line.data, "\r\n");
        str_done(&line);
        if (bytes == 0)
            return;
        reply->n_chunks++;
    }
}

/* Reads a reply and returns its status; `has_body` false after HEAD. */
static inline int client_read_reply(struct client *client, struct reply *reply, bool has_body)
{
    reply_done(reply);
    client_take(client, client_find(client, "\r\n\r\n"), &reply->head);
    assert_int_equal(sscanf(reply->head.data, "HTTP/1.1 %d ", &reply->status), 1);
    const char *length = reply_field(reply, "content-length");
    if (!has_body || reply->status == 204 || reply->status < 200)
        return reply->status;
    if (length)
        client_take(client, (size_t)atol(length), &reply->body);
    else if (reply_field(reply, "transfer-encoding"))
        client_read_chunks(client, reply);
    else {
        while (client_fill(client) > 0) {
        }
        client_take(client, client->in.len - client->at, &reply->body);
    }
    return reply->status;
}

/* One request on a connection of its own; returns the status. */
static inline int case_get(struct http_case *the_case, const char *path, struct reply *reply)
{
    struct client client;
    struct str what = {0};
    str_printf(&what, "GET %s", path);
    client_open(&client, the_case);
    client_ask(&client, what.data);
    int status = client_read_reply(&client, reply, true);
    str_done(&what);
    client_close(&client);
    return status;
}

struct case_figures {
    size_t connections, active, body_bytes;
    unsigned long long cut_off, idle_closed, gone;
};

static inline struct case_figures case_read_stats(struct http_case *the_case)
{
    struct case_figures f;
    struct reply reply = {0};
    assert_int_equal(case_get(the_case, "/stats", &reply), 200);
    assert_int_equal(sscanf(reply.body.data, "%zu %zu %zu %llu %llu %llu", &f.connections,
                            &f.active, &f.body_bytes, &f.cut_off, &f.idle_closed, &f.gone),
                     6);
    reply_done(&reply);
    return f;
}

static inline void sleep_ms(int ms)
{
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&wait, NULL);
}

/* Waits until on_closed was called `n` times in all; the time that took, or a failure. */
static inline void case_wait_closed(struct http_case *the_case, int n)
{
    for (int64_t end = now_us() + CLIENT_PATIENCE_MS * 1000; atomic_load(&the_case->closed) < n;) {
        if (now_us() > end)
            fail_msg("on_closed was called %d times, not %d", atomic_load(&the_case->closed), n);
        sleep_ms(1);
    }
}

static inline void case_wait_handled(struct http_case *the_case, int n)
{
    for (int64_t end = now_us() + CLIENT_PATIENCE_MS * 1000; atomic_load(&the_case->handled) < n;) {
        if (now_us() > end)
            fail_msg("the handler was called %d times, not %d", atomic_load(&the_case->handled), n);
        sleep_ms(1);
    }
}

#endif
