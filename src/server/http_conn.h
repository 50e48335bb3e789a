/* Inside of the HTTP server: its connections, and the lists that join them. Only http_*.c include
 * this. One thread owns all of it. */
#ifndef CSGL_SERVER_HTTP_CONN_H
#define CSGL_SERVER_HTTP_CONN_H

#include "server/http_parse.h"

#include <event2/event.h>
#include <event2/event_struct.h>

enum http_conn_state {
    CONN_IDLE,      /* nothing of a request came yet */
    CONN_HEAD,      /* its head began */
    CONN_BODY,      /* its head is complete, its body is not */
    CONN_PENDING,   /* the handler has it and has not answered */
    CONN_STREAMING, /* ... and is answering */
    CONN_FLUSHING,  /* the answer is complete, but not wholly sent */
    CONN_LINGERING, /* answered for the last time; waits for the client to read that and close */
    CONN_CLOSED
};

struct http_link {
    struct http_link *next, *previous;
};

/* The request that a connection has now; begins the connection, so that one pointer is both. */
struct http_request {
    struct http_parser parser;
    struct str fields; /* lines the handler added to the answer's head */
    http_closed on_closed;
    void *user;
    bool keeps_alive; /* the connection lives on after this answer */
    bool is_chunked;  /* of a stream */
    bool has_no_body; /* of a stream: HEAD, 204, 304 */
};

struct http_conn {
    struct http_request request;
    struct http_server *server;
    int fd;
    enum http_conn_state state;
    struct event read, write, timer;
    struct http_link waiting; /* in server->waiting while IDLE, HEAD or LINGERING, oldest first */
    struct http_link dirty;   /* in server->dirty while output waits for the iteration's end */
    struct http_link all;     /* in server->all, always */
    struct str out;           /* unsent from out_at */
    size_t out_at;
    struct str in; /* pipelined behind the request at hand, unparsed from in_at */
    size_t in_at;
    size_t body_counted;     /* this connection's part of stats.body_bytes */
    int64_t deadline, armed; /* ms; INT64_MAX: none. `armed` is when the timer fires next */
    int64_t waiting_since;   /* ms */
    int64_t body_began;      /* ms */
    int64_t slow_since;      /* ms; 0: the reader keeps up */
    int64_t linger_until;    /* ms */
    int64_t flush_until;     /* ms; when a whole answer must be sent */
    bool is_blocked;         /* the kernel takes no more; `write` is pending */
    bool is_broken;          /* closes at the next flush: queue too long, or no memory */
    bool is_discarding;      /* input is read and forgotten; closes after the answer */
    bool has_eof;            /* the client sends no more */
};

struct http_server {
    struct event_base *base;
    struct http_limits limits;
    http_handler handler;
    void *context;
    char *cors_origin; /* or NULL */
    int listen_fd;     /* -1: does not listen */
    struct event listen, resume, flush;
    bool is_stopping, is_paused, is_flush_active;
    struct http_link waiting, dirty, all; /* rings with the server as their head */
    struct http_stats stats;
    char *scratch; /* [HTTP_SCRATCH_BYTES], what one recv fills */
};

enum { HTTP_SCRATCH_BYTES = 64 << 10 };

int64_t http_now_ms(void);

void http_link_init(struct http_link *link);
bool http_link_is_in(const struct http_link *link);
void http_link_append(struct http_link *head, struct http_link *link);
void http_link_remove(struct http_link *link);

/* A new connection on `fd`, which it owns, also on failure. */
enum status http_conn_new(struct http_server *server, int fd, struct error *error);

/* Closes and frees; tells the owner of a pending request. `reset` drops what the kernel still
 * holds. */
void http_conn_close(struct http_conn *conn, bool reset);

/* Sends what can be sent and goes on from there; may close and free `conn`. */
void http_conn_flush(struct http_conn *conn);

/* Output was appended, or the state changed: flush at the end of this iteration. */
void http_conn_touch(struct http_conn *conn);

/* The answer is complete in `out`. */
void http_conn_answered(struct http_conn *conn);

/* Brings stats.body_bytes up to date. */
void http_conn_count_body(struct http_conn *conn);

/* Of http_server.c: a connection was closed, so accepting may go on. */
void http_server_has_room(struct http_server *server);

/* Of http_reply.c: answers a CORS preflight if it is one. */
bool http_reply_preflight(struct http_request *request);

static inline struct http_conn *http_conn_of(struct http_request *request)
{
    return (struct http_conn *)request;
}

static inline size_t http_conn_unsent(const struct http_conn *conn)
{
    return conn->out.len - conn->out_at;
}

#endif
