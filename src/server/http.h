/* HTTP/1.1 for one event loop: it listens, parses, keeps every deadline and limit, and hands
 * complete requests to one handler, which answers now or later. Knows nothing of what is served.
 *
 * Everything here belongs to the thread that runs the event base; nothing blocks. All callbacks
 * come from the event loop, never from inside a call of the handler's own, except the handler's
 * first. */
#ifndef CSGL_SERVER_HTTP_H
#define CSGL_SERVER_HTTP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;
struct http_server;
struct http_request;

/* What one connection, and all together, may cost. Times are milliseconds. */
struct http_limits {
    size_t max_head_bytes;       /* request line and header fields together: 431 */
    size_t max_target_bytes;     /* request line: 414 */
    size_t max_body_bytes;       /* one body, counted before it is buffered: 413 */
    size_t max_body_total_bytes; /* the buffers of all bodies together: 503 */
    size_t max_pipelined_bytes;  /* kept unparsed while an answer is pending; what exceeds it is
                                    discarded, and the connection closes after its answer */
    size_t max_unsent_bytes;     /* a stream above this for slow_reader_ms is cut off */
    size_t max_queue_bytes;      /* a stream above this is cut off at once */
    int max_connections;         /* 0: what the descriptor limit leaves */
    int head_ms;                 /* from a head's first byte to its end: 408 */
    int body_idle_ms;            /* without a byte of the body: 408 */
    int body_grace_ms;           /* a body may last this long, and as long as it takes at */
    int min_bytes_per_s;         /* ... this rate: 408. So may the reading of a whole answer */
    int idle_ms;                 /* between requests, and before the first */
    int slow_reader_ms;          /* above max_unsent_bytes; or a whole answer without progress */
    int linger_idle_ms;          /* after a closing answer, how long a silent client is awaited */
    int linger_ms;               /* ... and one that still sends, so that it reads the answer */
    int idle_grace_ms;           /* an idle connection is not closed to make room before this */
    int accept_pause_ms;         /* when descriptors are exhausted and no connection is idle */
};

void http_limits_default(struct http_limits *limits);

/* The request is complete, body included. It must be answered once, with http_reply, http_error or
 * http_stream_begin ... http_stream_end, now or later; the pointer is dead after that, or after its
 * on_closed returned. */
typedef void (*http_handler)(void *context, struct http_request *request);

/* The client is gone (it closed, reset, or was cut off for not reading) and no answer is wanted
 * any more. Called once at most, and only before the answer was complete. */
typedef void (*http_closed)(void *user, struct http_request *request);

struct http_options {
    struct http_limits limits;
    http_handler handler;
    void *context;
    /* NULL: no CORS. "*" or one origin ("https://app.example"): every answer allows it, and
     * preflights are answered here. Copied. */
    const char *cors_origin;
};

struct http_stats {
    size_t connections;   /* open now */
    size_t active;        /* requests handed to the handler whose answers are not wholly sent */
    size_t body_bytes;    /* held for bodies now */
    uint64_t accepted;    /* connections ever */
    uint64_t requests;    /* requests that reached the handler */
    uint64_t refused;     /* answered here: 4xx and 5xx of the protocol */
    uint64_t gone;        /* clients that left before their answer was complete */
    uint64_t cut_off;     /* of those, readers that did not read */
    uint64_t idle_closed; /* idle connections closed to make room */
};

/* `base` is borrowed until http_server_free. Serves nothing until told to listen or adopt. */
enum status http_server_new(struct event_base *base, const struct http_options *options,
                            struct http_server **out, struct error *error);

/* Accepts from a bound stream socket, which it listens on and makes non-blocking; the caller closes
 * it after http_server_free. Once per server. */
enum status http_server_listen(struct http_server *server, int fd, struct error *error);

/* Serves a connected socket and owns it from now on, also when it fails. */
enum status http_server_adopt(struct http_server *server, int fd, struct error *error);

/* No new connections, idle ones close, the others close after their answer. Served to the end when
 * stats.active is 0. */
void http_server_stop_accepting(struct http_server *server);

struct http_stats http_server_stats(const struct http_server *server);

/* Closes every connection (on_closed is called for pending requests). Not from a callback. NULL is
 * allowed. */
void http_server_free(struct http_server *server);

/* Of the request; borrowed until its answer is complete. */
const char *http_method(const struct http_request *request); /* "GET", upper case */
const char *http_path(const struct http_request *request);   /* percent-decoded, valid UTF-8 */
const char *http_query(const struct http_request *request);  /* behind '?', raw; "" without */
/* The first field of that name (any case), or NULL. No control characters but tabs. */
const char *http_header(const struct http_request *request, const char *name);
/* `bytes` of it, with a NUL behind them; "" when there is none. */
const char *http_body(const struct http_request *request, size_t *bytes);
/* Gives the body's memory back early: for answers that last. */
void http_body_release(struct http_request *request);

/* What on_closed gets; NULL removes it. */
void http_on_closed(struct http_request *request, http_closed on_closed, void *user);
void *http_user(const struct http_request *request);

/* Adds a field to the answer's head, before that is begun. Control characters in `value` are left
 * out, so a value from a client cannot split the answer. */
void http_header_add(struct http_request *request, const char *name, const char *value);

/* A whole answer; `body` is copied. A HEAD request gets the head alone. */
void http_reply(struct http_request *request, int status, const char *content_type,
                const char *body, size_t bytes);

/* {"error": {"message", "type", "param", "code"}}. `type` NULL: invalid_request_error below 500,
 * server_error above. `param` and `code` may be NULL (null). `retry_after` seconds; 0 is none. */
void http_error(struct http_request *request, int status, const char *type, const char *param,
                const char *code, const char *message, int retry_after);

/* 405 with `allow` ("GET, HEAD"), or 204 with it when the method is OPTIONS. */
void http_method_refused(struct http_request *request, const char *allow);

/* A streamed answer: chunks, or until the close for HTTP/1.0. What is written within one iteration
 * of the loop leaves in one send at its end, each write its own chunk. Never fails: of a reader
 * that is cut off, on_closed tells in the next iteration, and writes until then are dropped. */
void http_stream_begin(struct http_request *request, int status, const char *content_type);
void http_stream_write(struct http_request *request, const char *data, size_t bytes);
void http_stream_end(struct http_request *request);

/* Bytes written that the kernel has not taken yet. */
size_t http_stream_unsent(const struct http_request *request);

#endif
