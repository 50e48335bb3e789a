/* The incremental parser of HTTP/1.x requests: bytes in, in any pieces, one request out. Does no
 * I/O and keeps no time. What it accepts does not depend on how the bytes are split. */
#ifndef CSGL_SERVER_HTTP_PARSE_H
#define CSGL_SERVER_HTTP_PARSE_H

#include "base/str.h"
#include "server/http.h"

enum { HTTP_MAX_FIELDS = 100, HTTP_MAX_CHUNK_LINE = 256, HTTP_MAX_BLANK_LINES = 8 };

enum http_event {
    HTTP_MORE, /* all bytes were used and more are needed */
    HTTP_HEAD, /* the head is complete and a body follows; reported once */
    HTTP_DONE, /* the request is complete; further bytes are not touched */
    HTTP_BAD   /* refused: `status` and `message` say why; the connection cannot go on */
};

enum http_parse_state {
    PARSE_START, /* blank lines before the request line, and that line */
    PARSE_FIELDS,
    PARSE_LENGTH, /* a body of known length */
    PARSE_CHUNK_SIZE,
    PARSE_CHUNK_DATA,
    PARSE_CHUNK_END, /* the line end behind a chunk's data */
    PARSE_TRAILER,
    PARSE_DONE,
    PARSE_BAD
};

/* Offsets into `head` of two C strings. */
struct http_field {
    uint32_t name, value;
};

struct http_parser {
    const struct http_limits *limits;
    enum http_parse_state state;
    struct str head; /* lines so far; separators overwritten by NULs. Chunk lines pass through */
    size_t line;     /* where the current line begins in `head` */
    size_t n_blank;
    size_t trailer_bytes;
    const char *method; /* a constant; NULL before the request line */
    struct str path;
    uint32_t query; /* offset into `head` */
    struct http_field fields[HTTP_MAX_FIELDS];
    size_t n_fields;
    struct str body;
    size_t body_left; /* of the body, or of the current chunk */
    int minor;        /* HTTP/1.minor */
    bool has_host, has_length, has_encoding, is_chunked;
    bool says_close, says_keep_alive;
    bool expects_continue, expects_other;
    int status; /* of HTTP_BAD */
    const char *message;
};

/* `limits` is borrowed for the parser's life. */
void http_parser_init(struct http_parser *parser, const struct http_limits *limits);
/* Ready for the next request, its memory given back. */
void http_parser_reset(struct http_parser *parser);
void http_parser_done(struct http_parser *parser);

/* Returns how many of the `bytes` were used: all of them for HTTP_MORE. */
size_t http_parser_feed(struct http_parser *parser, const char *data, size_t bytes,
                        enum http_event *event);

/* True once something of a request came that is not a blank line before it. */
bool http_parser_has_begun(const struct http_parser *parser);

/* Whether the client lets the connection live on after this request. */
bool http_parser_keeps_alive(const struct http_parser *parser);

/* The first field of that name, any case, or NULL. */
const char *http_parser_field(const struct http_parser *parser, const char *name);

/* Of http_head.c, for http_parse.c: one complete line without its CRLF, NUL-terminated in place.
 * False when refused. */
bool http_head_request_line(struct http_parser *parser, char *line, size_t bytes);
bool http_head_field(struct http_parser *parser, char *line, size_t bytes);
/* The syntax of a field alone; `value` gets the offset of its trimmed value in the line. */
bool http_head_field_syntax(struct http_parser *parser, char *line, size_t bytes, size_t *value);
/* The fields together: framing, Host, Expect, size. */
bool http_head_complete(struct http_parser *parser);

/* Fills status and message (a constant), and returns false. */
bool http_parser_refuse(struct http_parser *parser, int status, const char *message);

#endif
