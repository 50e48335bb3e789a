/* Lines, bodies and chunks of a request. What the lines of a head mean is http_head.c's. */
#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

void http_parser_init(struct http_parser *parser, const struct http_limits *limits)
{
    memset(parser, 0, sizeof *parser);
    parser->limits = limits;
}

void http_parser_done(struct http_parser *parser)
{
    str_done(&parser->head);
    str_done(&parser->path);
    str_done(&parser->body);
}

void http_parser_reset(struct http_parser *parser)
{
    const struct http_limits *limits = parser->limits;
    http_parser_done(parser);
    http_parser_init(parser, limits);
}

bool http_parser_refuse(struct http_parser *parser, int status, const char *message)
{
    parser->state = PARSE_BAD;
    parser->status = status;
    parser->message = message;
    return false;
}

bool http_parser_has_begun(const struct http_parser *parser)
{
    return parser->state != PARSE_START || (parser->head.len && parser->head.data[0] != '\r');
}

bool http_parser_keeps_alive(const struct http_parser *parser)
{
    if (parser->state != PARSE_DONE || parser->says_close)
        return false;
    return parser->minor >= 1 || parser->says_keep_alive;
}

const char *http_parser_field(const struct http_parser *parser, const char *name)
{
    for (size_t i = 0; i < parser->n_fields; i++) {
        if (strcasecmp(parser->head.data + parser->fields[i].name, name) == 0)
            return parser->head.data + parser->fields[i].value;
    }
    return NULL;
}

/* How many more bytes the current line may have. */
static size_t line_room(const struct http_parser *parser)
{
    size_t len = parser->head.len - parser->line;
    size_t most = HTTP_MAX_CHUNK_LINE;
    if (parser->state == PARSE_START) {
        most = parser->limits->max_target_bytes;
    } else if (parser->state == PARSE_FIELDS) {
        len = parser->head.len;
        most = parser->limits->max_head_bytes;
    } else if (parser->state == PARSE_TRAILER) {
        len += parser->trailer_bytes;
        most = parser->limits->max_head_bytes;
    } else if (parser->state == PARSE_CHUNK_END) {
        most = 2;
    }
    return most > len ? most - len : 0;
}

static bool refuse_long_line(struct http_parser *parser)
{
    if (parser->state == PARSE_START)
        return http_parser_refuse(parser, 414, "The request line is too long.");
    if (parser->state == PARSE_CHUNK_SIZE)
        return http_parser_refuse(parser, 400, "The line of a chunk size is too long.");
    if (parser->state == PARSE_CHUNK_END)
        return http_parser_refuse(parser, 400, "A chunk is longer than its size says.");
    return http_parser_refuse(parser, 431, "The header fields are too large.");
}

static bool has_control(const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)data[i];
        if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7f)
            return true;
    }
    return false;
}

/* "1f", "1F;extension": at most 15 digits, so that it cannot overflow. */
static bool chunk_size(struct http_parser *parser, const char *line)
{
    uint64_t size = 0;
    size_t n = 0;
    for (; n < 16; n++) {
        char c = line[n];
        if (c >= '0' && c <= '9')
            size = size * 16 + (uint64_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            size = size * 16 + (uint64_t)((c | 0x20) - 'a' + 10);
        else
            break;
    }
    const char *rest = line + n;
    rest += strspn(rest, " \t");
    if (n == 0 || n > 15 || (*rest && *rest != ';') || (!*rest && rest != line + n))
        return http_parser_refuse(parser, 400, "A chunk size is not a hexadecimal number.");
    if (size > parser->limits->max_body_bytes - parser->body.len)
        return http_parser_refuse(parser, 413,
                                  "The request body is larger than this server "
                                  "accepts.");
    parser->body_left = (size_t)size;
    parser->state = size ? PARSE_CHUNK_DATA : PARSE_TRAILER;
    return true;
}

static bool trailer_line(struct http_parser *parser, char *line, size_t bytes, size_t raw_bytes)
{
    size_t value;
    parser->trailer_bytes += raw_bytes;
    if (bytes == 0)
        parser->state = PARSE_DONE;
    return bytes == 0 || http_head_field_syntax(parser, line, bytes, &value);
}

static void head_line(struct http_parser *parser, char *line, size_t bytes, enum http_event *event)
{
    if (parser->state == PARSE_START && bytes == 0) {
        parser->head.len = 0;
        if (++parser->n_blank > HTTP_MAX_BLANK_LINES)
            http_parser_refuse(parser, 400, "There are too many blank lines before the request.");
    } else if (parser->state == PARSE_START) {
        if (http_head_request_line(parser, line, bytes))
            parser->state = PARSE_FIELDS;
    } else if (bytes) {
        http_head_field(parser, line, bytes);
    } else if (http_head_complete(parser) && parser->state != PARSE_DONE) {
        *event = HTTP_HEAD;
    }
    parser->line = parser->head.len;
}

/* The current line is complete, with its LF. */
static void line_end(struct http_parser *parser, enum http_event *event)
{
    char *line = parser->head.data + parser->line;
    size_t raw_bytes = parser->head.len - parser->line, bytes = raw_bytes - 2;
    if (raw_bytes < 2 || line[bytes] != '\r' || memchr(line, '\r', bytes)) {
        http_parser_refuse(parser, 400, "A line does not end in CRLF.");
        return;
    }
    line[bytes] = '\0';
    if (parser->state == PARSE_START || parser->state == PARSE_FIELDS) {
        head_line(parser, line, bytes, event);
        return;
    }
    if (parser->state == PARSE_CHUNK_SIZE)
        chunk_size(parser, line);
    else if (parser->state == PARSE_TRAILER)
        trailer_line(parser, line, bytes, raw_bytes);
    else if (bytes == 0)
        parser->state = PARSE_CHUNK_SIZE;
    else
        http_parser_refuse(parser, 400, "A chunk is longer than its size says.");
    parser->head.len = parser->line;
}

static size_t feed_line(struct http_parser *parser, const char *data, size_t bytes,
                        enum http_event *event)
{
    const char *lf = memchr(data, '\n', bytes);
    size_t take = lf ? (size_t)(lf - data) + 1 : bytes, room = line_room(parser);
    size_t used = take < room ? take : room;
    if (has_control(data, used)) {
        http_parser_refuse(parser, 400, "There is a control character in the request's head.");
        return used;
    }
    str_append(&parser->head, data, used);
    if (parser->head.failed)
        http_parser_refuse(parser, 503, "There is no memory for this request now.");
    else if (used < take)
        refuse_long_line(parser);
    else if (lf)
        line_end(parser, event);
    return used;
}

static size_t feed_body(struct http_parser *parser, const char *data, size_t bytes)
{
    size_t used = bytes < parser->body_left ? bytes : parser->body_left;
    str_append(&parser->body, data, used);
    if (parser->body.failed) {
        http_parser_refuse(parser, 503, "There is no memory for this request's body now.");
        return used;
    }
    parser->body_left -= used;
    if (!parser->body_left)
        parser->state = parser->is_chunked ? PARSE_CHUNK_END : PARSE_DONE;
    return used;
}

size_t http_parser_feed(struct http_parser *parser, const char *data, size_t bytes,
                        enum http_event *event)
{
    size_t used = 0;
    *event = HTTP_MORE;
    while (*event == HTTP_MORE) {
        if (parser->state == PARSE_DONE)
            *event = HTTP_DONE;
        else if (parser->state == PARSE_BAD)
            *event = HTTP_BAD;
        else if (used == bytes)
            break;
        else if (parser->state == PARSE_LENGTH || parser->state == PARSE_CHUNK_DATA)
            used += feed_body(parser, data + used, bytes - used);
        else
            used += feed_line(parser, data + used, bytes - used, event);
    }
    return used;
}
