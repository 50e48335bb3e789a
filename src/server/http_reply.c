/* Answers: heads, whole bodies, streams, errors; and what a request tells its handler. */
#include "base/json.h"
#include "server/http_conn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define REASONS(X)                                                                                 \
    X(200, "OK")                                                                                   \
    X(202, "Accepted")                                                                             \
    X(204, "No Content")                                                                           \
    X(304, "Not Modified")                                                                         \
    X(400, "Bad Request")                                                                          \
    X(401, "Unauthorized")                                                                         \
    X(403, "Forbidden")                                                                            \
    X(404, "Not Found")                                                                            \
    X(405, "Method Not Allowed")                                                                   \
    X(408, "Request Timeout")                                                                      \
    X(409, "Conflict")                                                                             \
    X(413, "Content Too Large")                                                                    \
    X(414, "URI Too Long")                                                                         \
    X(415, "Unsupported Media Type")                                                               \
    X(417, "Expectation Failed")                                                                   \
    X(422, "Unprocessable Content")                                                                \
    X(429, "Too Many Requests")                                                                    \
    X(431, "Request Header Fields Too Large")                                                      \
    X(500, "Internal Server Error")                                                                \
    X(501, "Not Implemented")                                                                      \
    X(502, "Bad Gateway")                                                                          \
    X(503, "Service Unavailable")                                                                  \
    X(504, "Gateway Timeout")                                                                      \
    X(505, "HTTP Version Not Supported")

static const char *reason_of(int status)
{
    switch (status) {
#define REASON_CASE(code, text)                                                                    \
    case code:                                                                                     \
        return text;
        REASONS(REASON_CASE)
#undef REASON_CASE
    default:
        return "Status";
    }
}

const char *http_method(const struct http_request *request)
{
    return request->parser.method;
}

const char *http_path(const struct http_request *request)
{
    return str_z(&request->parser.path);
}

const char *http_query(const struct http_request *request)
{
    return request->parser.head.data + request->parser.query;
}

const char *http_header(const struct http_request *request, const char *name)
{
    return http_parser_field(&request->parser, name);
}

const char *http_body(const struct http_request *request, size_t *bytes)
{
    *bytes = request->parser.body.len;
    return str_z(&request->parser.body);
}

void http_body_release(struct http_request *request)
{
    str_done(&request->parser.body);
    http_conn_count_body(http_conn_of(request));
}

void http_on_closed(struct http_request *request, http_closed on_closed, void *user)
{
    request->on_closed = on_closed;
    request->user = user;
}

void *http_user(const struct http_request *request)
{
    return request->user;
}

void http_header_add(struct http_request *request, const char *name, const char *value)
{
    str_append_z(&request->fields, name);
    str_append_z(&request->fields, ": ");
    for (const char *c = value; *c; c++) {
        if ((unsigned char)*c >= 0x20 && *c != 0x7f)
            str_append_char(&request->fields, *c);
    }
    str_append_z(&request->fields, "\r\n");
}

static bool is_head(const struct http_request *request)
{
    return request->parser.method && strcmp(request->parser.method, "HEAD") == 0;
}

static bool has_no_body(int status)
{
    return status == 204 || status == 304;
}

/* The head but for its framing and its final line. */
static void head_begin(struct http_request *request, int status, const char *content_type)
{
    struct http_conn *conn = http_conn_of(request);
    struct str *out = &conn->out;
    assert(conn->state == CONN_PENDING);
    str_printf(out, "HTTP/1.1 %d %s\r\n", status, reason_of(status));
    if (content_type && !has_no_body(status))
        str_printf(out, "content-type: %s\r\n", content_type);
    if (conn->server->cors_origin)
        str_printf(out,
                   "access-control-allow-origin: %s\r\n"
                   "access-control-expose-headers: x-request-id, retry-after\r\n",
                   conn->server->cors_origin);
    str_append(out, request->fields.data, request->fields.len);
    if (request->fields.failed)
        conn->is_broken = true;
    if (conn->is_discarding || conn->server->is_stopping)
        request->keeps_alive = false;
}

static void head_end(struct http_request *request)
{
    struct str *out = &http_conn_of(request)->out;
    if (!request->keeps_alive)
        str_append_z(out, "connection: close\r\n");
    else if (request->parser.minor == 0)
        str_append_z(out, "connection: keep-alive\r\n");
    str_append_z(out, "\r\n");
}

void http_reply(struct http_request *request, int status, const char *content_type,
                const char *body, size_t bytes)
{
    struct http_conn *conn = http_conn_of(request);
    head_begin(request, status, content_type);
    if (!has_no_body(status))
        str_printf(&conn->out, "content-length: %zu\r\n", bytes);
    head_end(request);
    if (!is_head(request) && !has_no_body(status))
        str_append(&conn->out, body, bytes);
    http_conn_answered(conn);
}

static void write_string_or_null(struct str *out, const char *text)
{
    if (text)
        json_write_string(out, text, strlen(text));
    else
        str_append_z(out, "null");
}

void http_error(struct http_request *request, int status, const char *type, const char *param,
                const char *code, const char *message, int retry_after)
{
    struct str body = {0};
    char seconds[16];
    str_append_z(&body, "{\"error\": {\"message\": ");
    write_string_or_null(&body, message);
    str_append_z(&body, ", \"type\": ");
    write_string_or_null(&body, type            ? type
                                : status >= 500 ? "server_error"
                                                : "invalid_request_error");
    str_append_z(&body, ", \"param\": ");
    write_string_or_null(&body, param);
    str_append_z(&body, ", \"code\": ");
    write_string_or_null(&body, code);
    str_append_z(&body, "}}\n");
    if (retry_after > 0) {
        snprintf(seconds, sizeof seconds, "%d", retry_after);
        http_header_add(request, "retry-after", seconds);
    }
    if (body.failed)
        http_conn_of(request)->is_broken = true;
    http_reply(request, status, "application/json", body.data, body.len);
    str_done(&body);
}

void http_method_refused(struct http_request *request, const char *allow)
{
    http_header_add(request, "allow", allow);
    if (strcmp(request->parser.method, "OPTIONS") == 0)
        http_reply(request, 204, NULL, NULL, 0);
    else
        http_error(request, 405, NULL, NULL, NULL, "The method is not allowed for this path.", 0);
}

bool http_reply_preflight(struct http_request *request)
{
    const char *fields = http_header(request, "access-control-request-headers");
    bool is_preflight = http_conn_of(request)->server->cors_origin &&
                        strcmp(request->parser.method, "OPTIONS") == 0 &&
                        http_header(request, "access-control-request-method");
    if (!is_preflight)
        return false;
    http_header_add(request, "access-control-allow-methods", "GET, HEAD, POST, DELETE, OPTIONS");
    if (fields)
        http_header_add(request, "access-control-allow-headers", fields);
    http_header_add(request, "access-control-max-age", "600");
    http_reply(request, 204, NULL, NULL, 0);
    return true;
}

void http_stream_begin(struct http_request *request, int status, const char *content_type)
{
    struct http_conn *conn = http_conn_of(request);
    request->has_no_body = is_head(request) || has_no_body(status);
    request->is_chunked = request->parser.minor >= 1;
    if (!request->is_chunked && !request->has_no_body)
        request->keeps_alive = false; /* the close is what ends it */
    head_begin(request, status, content_type);
    if (request->is_chunked && !has_no_body(status))
        str_append_z(&conn->out, "transfer-encoding: chunked\r\n");
    head_end(request);
    conn->state = CONN_STREAMING;
    http_conn_touch(conn);
}

/* "1f\r\n" into `out`, which has room for it; returns its bytes. */
static size_t write_chunk_size(char *out, size_t bytes)
{
    size_t n = 0;
    int shift = 0;
    while (shift < 60 && bytes >> shift >> 4)
        shift += 4;
    for (; shift >= 0; shift -= 4)
        out[n++] = "0123456789abcdef"[bytes >> shift & 15];
    out[n++] = '\r';
    out[n++] = '\n';
    return n;
}

enum { CHUNK_FRAME_BYTES = 20 }; /* 16 digits and two line ends */

void http_stream_write(struct http_request *request, const char *data, size_t bytes)
{
    struct http_conn *conn = http_conn_of(request);
    struct str *out = &conn->out;
    assert(conn->state == CONN_STREAMING);
    if (!bytes || conn->is_broken || request->has_no_body)
        return;
    if (http_conn_unsent(conn) + bytes > conn->server->limits.max_queue_bytes ||
        !str_reserve(out, bytes + CHUNK_FRAME_BYTES)) {
        conn->is_broken = true;
    } else if (request->is_chunked) {
        out->len += write_chunk_size(out->data + out->len, bytes);
        str_append(out, data, bytes);
        str_append(out, "\r\n", 2);
    } else {
        str_append(out, data, bytes);
    }
    http_conn_touch(conn);
}

void http_stream_end(struct http_request *request)
{
    struct http_conn *conn = http_conn_of(request);
    assert(conn->state == CONN_STREAMING);
    if (request->is_chunked && !request->has_no_body)
        str_append_z(&conn->out, "0\r\n\r\n");
    http_conn_answered(conn);
}

size_t http_stream_unsent(const struct http_request *request)
{
    return http_conn_unsent((const struct http_conn *)request);
}
