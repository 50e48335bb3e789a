/* The server: it accepts, makes room when descriptors run out, and flushes what an iteration of the
 * loop wrote. */
#include "base/log.h"
#include "server/http_conn.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ACCEPT_BATCH = 32, /* between two looks at the connections there are */
    BACKLOG = 1024,
    RESERVED_DESCRIPTORS = 64 /* for the process's other needs */
};

void http_link_init(struct http_link *link)
{
    link->next = link->previous = link;
}

bool http_link_is_in(const struct http_link *link)
{
    return link->next != link;
}

void http_link_append(struct http_link *head, struct http_link *link)
{
    link->next = head;
    link->previous = head->previous;
    head->previous->next = link;
    head->previous = link;
}

void http_link_remove(struct http_link *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    http_link_init(link);
}

#define CONN_OF(link, member)                                                                      \
    ((struct http_conn *)((char *)(link)-offsetof(struct http_conn, member)))

void http_limits_default(struct http_limits *limits)
{
    *limits = (struct http_limits){
        .max_head_bytes = 64 << 10,
        .max_target_bytes = 16 << 10,
        .max_body_bytes = 32 << 20,
        .max_body_total_bytes = 512 << 20,
        .max_pipelined_bytes = 64 << 10,
        .max_unsent_bytes = 1 << 20,
        .max_queue_bytes = 16 << 20,
        .head_ms = 10000,
        .body_idle_ms = 30000,
        .body_grace_ms = 60000,
        .min_bytes_per_s = 4096,
        .idle_ms = 75000,
        .slow_reader_ms = 30000,
        .linger_idle_ms = 2000,
        .linger_ms = 30000,
        .idle_grace_ms = 100,
        .accept_pause_ms = 50,
    };
}

/* Makes room by closing the connection that has waited longest for its next request; false if there
 * is none. One that has just begun to wait may have a request on its way, and is spared. */
static bool close_one_idle(struct http_server *server)
{
    if (!http_link_is_in(&server->waiting))
        return false;
    struct http_conn *conn = CONN_OF(server->waiting.next, waiting);
    if (http_now_ms() - conn->waiting_since < server->limits.idle_grace_ms)
        return false;
    server->stats.idle_closed++;
    http_conn_close(conn, false);
    return true;
}

static void pause_accepting(struct http_server *server, const char *why)
{
    int ms = server->limits.accept_pause_ms;
    struct timeval pause = {ms / 1000, ms % 1000 * 1000};
    log_debug("accepting no connections for %d ms: %s", ms, why);
    event_del(&server->listen);
    server->is_paused = true;
    evtimer_add(&server->resume, &pause);
}

static void resume_accepting(struct http_server *server)
{
    evtimer_del(&server->resume);
    server->is_paused = false;
    if (!server->is_stopping)
        event_add(&server->listen, NULL);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    resume_accepting(arg);
}

void http_server_has_room(struct http_server *server)
{
    if (server->is_paused)
        resume_accepting(server);
}

static bool is_exhausted(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

/* Accepts one; false to look again in the next iteration, or after a pause. */
static bool accept_one(struct http_server *server, bool is_first)
{
    bool is_full = server->stats.connections >= (size_t)server->limits.max_connections;
    /* A full batch or an exhausted one makes room for its first alone: only for that one it is
     * known that somebody waits. The kernel reports exhaustion even when nobody does. */
    if (is_full && (!is_first || !close_one_idle(server))) {
        if (is_first)
            pause_accepting(server, "there are as many connections as allowed");
        return false;
    }
    int fd = accept(server->listen_fd, NULL, NULL), code = errno;
    if (fd < 0 && is_exhausted(code) && is_first && close_one_idle(server))
        fd = accept(server->listen_fd, NULL, NULL), code = errno;
    if (fd >= 0) {
        struct error error;
        if (http_conn_new(server, fd, &error) != OK)
            log_warn("%s", error.message);
        return true;
    }
    if (code == ECONNABORTED || code == EINTR)
        return true;
    if (code != EAGAIN && code != EWOULDBLOCK && is_first)
        pause_accepting(server, strerror(code));
    return false;
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        if (!accept_one(arg, i == 0))
            break;
    }
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct http_server *server = arg;
    server->is_flush_active = false;
    while (http_link_is_in(&server->dirty)) {
        struct http_conn *conn = CONN_OF(server->dirty.next, dirty);
        http_link_remove(&conn->dirty);
        http_conn_flush(conn);
    }
}

/* What the descriptor limit leaves for connections. */
static int most_connections(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > 1 << 20)
        return 1 << 20;
    int n = (int)limit.rlim_cur;
    return n / 4 < RESERVED_DESCRIPTORS ? n - n / 4 : n - RESERVED_DESCRIPTORS;
}

enum status http_server_new(struct event_base *base, const struct http_options *options,
                            struct http_server **out, struct error *error)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return error_memory(error, sizeof *server);
    server->scratch = malloc(HTTP_SCRATCH_BYTES);
    server->cors_origin = options->cors_origin ? strdup(options->cors_origin) : NULL;
    if (!server->scratch || (options->cors_origin && !server->cors_origin)) {
        free(server->scratch);
        free(server->cors_origin);
        free(server);
        return error_memory(error, HTTP_SCRATCH_BYTES);
    }
    server->base = base;
    server->limits = options->limits;
    if (server->limits.max_connections <= 0)
        server->limits.max_connections = most_connections();
    server->handler = options->handler;
    server->context = options->context;
    server->listen_fd = -1;
    http_link_init(&server->waiting);
    http_link_init(&server->dirty);
    http_link_init(&server->all);
    evtimer_assign(&server->flush, base, on_flush, server);
    evtimer_assign(&server->resume, base, on_resume, server);
    *out = server;
    return OK;
}

enum status http_server_listen(struct http_server *server, int fd, struct error *error)
{
    assert(server->listen_fd < 0);
    if (evutil_make_socket_nonblocking(fd) || listen(fd, BACKLOG))
        return error_set(error, ERROR_IO, "cannot listen on descriptor %d: %s", fd,
                         strerror(errno));
    event_assign(&server->listen, server->base, fd, EV_READ | EV_PERSIST, on_accept, server);
    if (event_add(&server->listen, NULL))
        return error_set(error, ERROR_IO, "cannot watch descriptor %d for connections", fd);
    server->listen_fd = fd;
    return OK;
}

enum status http_server_adopt(struct http_server *server, int fd, struct error *error)
{
    return http_conn_new(server, fd, error);
}

void http_server_stop_accepting(struct http_server *server)
{
    server->is_stopping = true;
    if (server->listen_fd >= 0) {
        event_del(&server->listen);
        evtimer_del(&server->resume);
        server->is_paused = false;
    }
    for (struct http_link *link = server->waiting.next, *next; link != &server->waiting;
         link = next) {
        struct http_conn *conn = CONN_OF(link, waiting);
        next = link->next;
        if (conn->state == CONN_IDLE)
            http_conn_close(conn, false);
    }
}

struct http_stats http_server_stats(const struct http_server *server)
{
    return server->stats;
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    http_server_stop_accepting(server);
    while (http_link_is_in(&server->all))
        http_conn_close(CONN_OF(server->all.next, all), false);
    event_del(&server->flush);
    event_del(&server->resume);
    free(server->scratch);
    free(server->cors_origin);
    free(server);
}
