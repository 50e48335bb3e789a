/* One connection: what it reads, when it has waited long enough, how it sends and how it ends.
 *
 * While an answer is pending, reading goes on: that alone shows at once, on every system, that the
 * client has left. A little of what comes is kept as the next request; if it is more, all further
 * input is read and forgotten, and the connection closes after its answer. The end of the client's
 * stream while an answer is pending counts as gone, though a client could have closed only its
 * sending side: none that we know of waits for an answer like that, and many just leave. */
#include "server/http_conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Where send cannot be told to keep quiet (macOS), the socket can. */
#ifdef MSG_NOSIGNAL
enum { SEND_FLAGS = MSG_NOSIGNAL };
#else
enum { SEND_FLAGS = 0 };
#endif

enum {
    KEPT_OUT_BYTES = 32 << 10, /* an empty output buffer above this is given back */
    NOTSENT_BYTES = 128 << 10  /* what the kernel may hold beyond what is on its way */
};

static const int64_t never = INT64_MAX;

int64_t http_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void set_deadline(struct http_conn *conn, int64_t deadline)
{
    conn->deadline = deadline;
    if (deadline >= conn->armed)
        return; /* the timer fires earlier, looks, and waits for the rest */
    int64_t left = deadline - http_now_ms();
    left = left > 0 ? left : 0;
    struct timeval after = {(time_t)(left / 1000), (suseconds_t)(left % 1000 * 1000)};
    conn->armed = deadline;
    evtimer_add(&conn->timer, &after);
}

static void set_waiting(struct http_conn *conn, bool is_waiting)
{
    if (http_link_is_in(&conn->waiting))
        http_link_remove(&conn->waiting);
    if (!is_waiting)
        return;
    conn->waiting_since = http_now_ms();
    http_link_append(&conn->server->waiting, &conn->waiting);
}

void http_conn_count_body(struct http_conn *conn)
{
    struct http_stats *stats = &conn->server->stats;
    size_t now = conn->request.parser.body.cap;
    stats->body_bytes = stats->body_bytes - conn->body_counted + now;
    conn->body_counted = now;
}

static bool has_active_request(const struct http_conn *conn)
{
    return conn->state == CONN_PENDING || conn->state == CONN_STREAMING ||
           conn->state == CONN_FLUSHING;
}

void http_conn_close(struct http_conn *conn, bool reset)
{
    struct http_server *server = conn->server;
    struct http_request *request = &conn->request;
    bool is_wanted = conn->state == CONN_PENDING || conn->state == CONN_STREAMING;
    if (has_active_request(conn)) {
        server->stats.active--;
        server->stats.gone++;
    }
    conn->state = CONN_CLOSED;
    if (is_wanted && request->on_closed)
        request->on_closed(request->user, request);
    event_del(&conn->read);
    event_del(&conn->write);
    event_del(&conn->timer);
    if (reset) {
        struct linger none = {1, 0};
        setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    close(conn->fd);
    set_waiting(conn, false);
    if (http_link_is_in(&conn->dirty))
        http_link_remove(&conn->dirty);
    http_link_remove(&conn->all);
    http_parser_reset(&request->parser);
    http_conn_count_body(conn);
    str_done(&request->fields);
    str_done(&conn->out);
    str_done(&conn->in);
    free(conn);
    server->stats.connections--;
    http_server_has_room(server);
}

void http_conn_touch(struct http_conn *conn)
{
    struct http_server *server = conn->server;
    if (http_link_is_in(&conn->dirty))
        return;
    http_link_append(&server->dirty, &conn->dirty);
    if (!server->is_flush_active) {
        /* Runs after the callbacks of this iteration that are already waiting. */
        server->is_flush_active = true;
        event_active(&server->flush, EV_TIMEOUT, 1);
    }
}

/* How long `bytes` may take at the least rate that is tolerated. */
static int64_t ms_for(const struct http_limits *limits, size_t bytes)
{
    int rate = limits->min_bytes_per_s > 0 ? limits->min_bytes_per_s : 1;
    return (int64_t)bytes * 1000 / rate;
}

/* A whole answer must make progress, and not too little of it. */
static void flush_deadline(struct http_conn *conn)
{
    int64_t stalled = http_now_ms() + conn->server->limits.slow_reader_ms;
    set_deadline(conn, stalled < conn->flush_until ? stalled : conn->flush_until);
}

void http_conn_answered(struct http_conn *conn)
{
    const struct http_limits *limits = &conn->server->limits;
    conn->state = CONN_FLUSHING;
    conn->request.on_closed = NULL;
    conn->slow_since = 0;
    conn->flush_until =
        http_now_ms() + limits->slow_reader_ms + ms_for(limits, http_conn_unsent(conn));
    flush_deadline(conn);
    http_conn_touch(conn);
}

static void become_idle(struct http_conn *conn)
{
    conn->state = CONN_IDLE;
    set_waiting(conn, true);
    set_deadline(conn, http_now_ms() + conn->server->limits.idle_ms);
}

/* Answers what the parser or a deadline refused; the connection closes after it. */
static void refuse(struct http_conn *conn, int status, const char *message, int retry_after)
{
    conn->server->stats.refused++;
    conn->server->stats.active++;
    conn->state = CONN_PENDING;
    conn->request.keeps_alive = false;
    conn->is_discarding = true;
    set_waiting(conn, false);
    http_error(&conn->request, status, NULL, NULL, NULL, message, retry_after);
}

static void body_deadline(struct http_conn *conn)
{
    const struct http_limits *limits = &conn->server->limits;
    int64_t most =
        conn->body_began + limits->body_grace_ms + ms_for(limits, conn->request.parser.body.len);
    int64_t idle = http_now_ms() + limits->body_idle_ms;
    set_deadline(conn, idle < most ? idle : most);
}

static void head_complete(struct http_conn *conn, bool has_more)
{
    conn->state = CONN_BODY;
    conn->body_began = http_now_ms();
    set_waiting(conn, false);
    /* A client that sends its body anyway does not wait for leave. */
    if (conn->request.parser.expects_continue && !has_more) {
        str_append_z(&conn->out, "HTTP/1.1 100 Continue\r\n\r\n");
        http_conn_touch(conn);
    }
}

static void request_complete(struct http_conn *conn)
{
    struct http_server *server = conn->server;
    conn->state = CONN_PENDING;
    conn->request.keeps_alive =
        http_parser_keeps_alive(&conn->request.parser) && !server->is_stopping;
    conn->deadline = never;
    server->stats.active++;
    set_waiting(conn, false);
    if (http_reply_preflight(&conn->request))
        return;
    server->stats.requests++;
    server->handler(server->context, &conn->request);
}

static bool is_receiving(const struct http_conn *conn)
{
    return conn->state == CONN_IDLE || conn->state == CONN_HEAD || conn->state == CONN_BODY;
}

/* Parses up to the end of one request, and hands it on; returns the bytes used. */
static size_t receive(struct http_conn *conn, const char *data, size_t bytes)
{
    struct http_parser *parser = &conn->request.parser;
    const struct http_limits *limits = &conn->server->limits;
    size_t used = 0;
    while (used < bytes && is_receiving(conn)) {
        enum http_event event;
        used += http_parser_feed(parser, data + used, bytes - used, &event);
        http_conn_count_body(conn);
        if (event == HTTP_BAD)
            refuse(conn, parser->status, parser->message, parser->status == 503);
        else if (conn->server->stats.body_bytes > limits->max_body_total_bytes && parser->body.len)
            refuse(conn, 503, "The server holds as many request bodies as it may; try again.", 1);
        else if (event == HTTP_HEAD)
            head_complete(conn, used < bytes);
        else if (event == HTTP_DONE)
            request_complete(conn);
        if (conn->state == CONN_IDLE && http_parser_has_begun(parser)) {
            conn->state = CONN_HEAD;
            set_waiting(conn, true);
            set_deadline(conn, http_now_ms() + limits->head_ms);
        } else if (conn->state == CONN_BODY) {
            body_deadline(conn);
        }
    }
    return used;
}

/* Input that came while an answer is pending. */
static void keep_for_later(struct http_conn *conn, const char *data, size_t bytes)
{
    if (!bytes || conn->is_discarding)
        return;
    if (conn->in_at) {
        conn->in.len -= conn->in_at;
        memmove(conn->in.data, conn->in.data + conn->in_at, conn->in.len);
        conn->in_at = 0;
    }
    if (conn->in.len + bytes <= conn->server->limits.max_pipelined_bytes)
        str_append(&conn->in, data, bytes);
    else
        conn->in.failed = true;
    if (conn->in.failed) {
        conn->is_discarding = true;
        str_done(&conn->in);
    }
}

static void start_lingering(struct http_conn *conn)
{
    conn->state = CONN_LINGERING;
    conn->is_discarding = true;
    str_done(&conn->in);
    conn->in_at = 0;
    conn->linger_until = http_now_ms() + conn->server->limits.linger_ms;
    set_deadline(conn, http_now_ms() + conn->server->limits.linger_idle_ms);
    set_waiting(conn, true);
    shutdown(conn->fd, SHUT_WR);
}

/* The answer is wholly in the kernel's hands. */
static void answer_sent(struct http_conn *conn)
{
    struct http_request *request = &conn->request;
    bool keeps_alive = request->keeps_alive && !conn->is_discarding && !conn->server->is_stopping;
    conn->server->stats.active--;
    http_parser_reset(&request->parser);
    http_conn_count_body(conn);
    str_done(&request->fields);
    request->user = NULL;
    if (conn->has_eof) {
        conn->state = CONN_LINGERING;
        http_conn_close(conn, false);
        return;
    }
    if (!keeps_alive) {
        start_lingering(conn);
        return;
    }
    become_idle(conn);
    if (!conn->in.len)
        return;
    conn->in_at += receive(conn, conn->in.data + conn->in_at, conn->in.len - conn->in_at);
    if (conn->in_at == conn->in.len || conn->is_discarding) {
        str_done(&conn->in);
        conn->in_at = 0;
    }
}

/* False when the connection is gone. */
static bool send_some(struct http_conn *conn)
{
    ssize_t n;
    do {
        n = send(conn->fd, conn->out.data + conn->out_at, http_conn_unsent(conn), SEND_FLAGS);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)
        return false;
    conn->out_at += n > 0 ? (size_t)n : 0;
    if (n > 0 && conn->state == CONN_FLUSHING)
        flush_deadline(conn);
    size_t unsent = http_conn_unsent(conn);
    if (unsent) {
        conn->is_blocked = true;
        event_add(&conn->write, NULL);
        if (conn->out_at >= unsent) { /* each byte is moved once at most, on average */
            memmove(conn->out.data, conn->out.data + conn->out_at, unsent);
            conn->out.len = unsent;
            conn->out_at = 0;
        }
    } else {
        conn->out_at = 0;
        str_clear(&conn->out);
        if (conn->out.cap > KEPT_OUT_BYTES || conn->state == CONN_FLUSHING)
            str_done(&conn->out);
    }
    return true;
}

/* Starts or stops the clock of a stream whose reader lags. */
static void watch_reader(struct http_conn *conn)
{
    const struct http_limits *limits = &conn->server->limits;
    bool is_slow = http_conn_unsent(conn) > limits->max_unsent_bytes;
    if (is_slow && !conn->slow_since) {
        conn->slow_since = http_now_ms();
        set_deadline(conn, conn->slow_since + limits->slow_reader_ms);
    } else if (!is_slow && conn->slow_since) {
        conn->slow_since = 0;
        conn->deadline = never;
    }
}

void http_conn_flush(struct http_conn *conn)
{
    if (conn->is_broken || conn->out.failed) {
        conn->server->stats.cut_off++;
        http_conn_close(conn, true);
        return;
    }
    if (http_conn_unsent(conn) && !conn->is_blocked && !send_some(conn)) {
        http_conn_close(conn, false);
        return;
    }
    if (conn->state == CONN_STREAMING)
        watch_reader(conn);
    else if (conn->state == CONN_FLUSHING && !http_conn_unsent(conn))
        answer_sent(conn);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct http_conn *conn = arg;
    conn->is_blocked = false;
    http_conn_flush(conn);
}

/* The client sends no more. What was answered is still sent to it; else it counts as gone. */
static void on_eof(struct http_conn *conn)
{
    if (conn->state == CONN_FLUSHING) {
        conn->has_eof = true;
        event_del(&conn->read);
    } else {
        http_conn_close(conn, false);
    }
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct http_conn *conn = arg;
    const char *scratch = conn->server->scratch;
    ssize_t n = recv(fd, conn->server->scratch, HTTP_SCRATCH_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n < 0) {
        http_conn_close(conn, false);
    } else if (n == 0) {
        on_eof(conn);
    } else if (conn->state == CONN_LINGERING) {
        int64_t idle = http_now_ms() + conn->server->limits.linger_idle_ms;
        set_deadline(conn, idle < conn->linger_until ? idle : conn->linger_until);
    } else {
        /* In these states `in` is empty, so nothing overtakes what was kept. */
        size_t used = is_receiving(conn) ? receive(conn, scratch, (size_t)n) : 0;
        keep_for_later(conn, scratch + used, (size_t)n - used);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct http_conn *conn = arg;
    conn->armed = never;
    if (http_now_ms() < conn->deadline) {
        if (conn->deadline != never)
            set_deadline(conn, conn->deadline);
        return;
    }
    conn->deadline = never;
    if (conn->state == CONN_HEAD) {
        refuse(conn, 408, "The request's head did not arrive in time.", 0);
    } else if (conn->state == CONN_BODY) {
        refuse(conn, 408, "The request's body did not arrive in time.", 0);
    } else {
        bool is_slow = conn->state == CONN_STREAMING || conn->state == CONN_FLUSHING;
        conn->server->stats.cut_off += is_slow;
        http_conn_close(conn, is_slow);
    }
}

/* Fails without harm on sockets that are not TCP. */
static void tune_socket(int fd)
{
    int on = 1, notsent = NOTSENT_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef TCP_NOTSENT_LOWAT
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &notsent, sizeof notsent);
#endif
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    (void)notsent;
}

enum status http_conn_new(struct http_server *server, int fd, struct error *error)
{
    struct http_conn *conn = calloc(1, sizeof *conn);
    if (!conn || evutil_make_socket_nonblocking(fd) || evutil_make_socket_closeonexec(fd)) {
        free(conn);
        close(fd);
        return error_set(error, ERROR_IO, "cannot serve a connection: %s", strerror(errno));
    }
    tune_socket(fd);
    conn->server = server;
    conn->fd = fd;
    conn->deadline = conn->armed = never;
    http_parser_init(&conn->request.parser, &server->limits);
    http_link_init(&conn->waiting);
    http_link_init(&conn->dirty);
    http_link_append(&server->all, &conn->all);
    event_assign(&conn->read, server->base, fd, EV_READ | EV_PERSIST, on_readable, conn);
    event_assign(&conn->write, server->base, fd, EV_WRITE, on_writable, conn);
    evtimer_assign(&conn->timer, server->base, on_timer, conn);
    server->stats.connections++;
    server->stats.accepted++;
    become_idle(conn);
    if (event_add(&conn->read, NULL)) {
        http_conn_close(conn, false);
        return error_set(error, ERROR_IO, "cannot watch a connection for input");
    }
    return OK;
}
