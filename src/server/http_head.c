/* What the lines of a request's head mean (RFC 9110, 9112), and which are refused: everything that
 * two programs on the way could read differently. */
#include "base/json.h"
#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};

/* RFC 9110's tchar. */
static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_token_char(text[i]))
            return false;
    }
    return n > 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_method(struct http_parser *parser, const char *text, size_t n)
{
    if (!is_token(text, n))
        return http_parser_refuse(parser, 400, "The request line has no method.");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strlen(methods[i]) == n && memcmp(methods[i], text, n) == 0)
            parser->method = methods[i];
    }
    return parser->method || http_parser_refuse(parser, 501, "The method is not implemented.");
}

static bool parse_version(struct http_parser *parser, const char *text)
{
    bool is_version = strlen(text) == 8 && memcmp(text, "HTTP/", 5) == 0 && text[6] == '.' &&
                      text[5] >= '0' && text[5] <= '9' && text[7] >= '0' && text[7] <= '9';
    if (!is_version)
        return http_parser_refuse(parser, 400, "The request line has no HTTP version.");
    if (text[5] != '1')
        return http_parser_refuse(parser, 505, "This server speaks HTTP/1.1.");
    parser->minor = text[7] - '0';
    return true;
}

static bool decode_path(struct http_parser *parser, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 2 < n ? hex_digit(text[i + 1]) : -1;
            int low = i + 2 < n ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0 || high + low == 0)
                return http_parser_refuse(parser, 400,
                                          "The path has a '%' that is not a percent-encoding.");
            c = (char)(high * 16 + low);
            i += 2;
        }
        str_append_char(&parser->path, c);
    }
    if (parser->path.failed)
        return http_parser_refuse(parser, 503, "There is no memory for this request now.");
    for (size_t i = 0, step; i < parser->path.len; i += step) {
        step = utf8_sequence(parser->path.data + i, parser->path.len - i);
        if (!step)
            return http_parser_refuse(parser, 400, "The path is not UTF-8.");
    }
    return true;
}

/* origin-form, absolute-form, or '*' for OPTIONS. `text` is NUL-terminated. */
static bool parse_target(struct http_parser *parser, char *text)
{
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f)
            return http_parser_refuse(parser, 400,
                                      "The path has a character that must be "
                                      "percent-encoded.");
    }
    if (strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0) {
        text = strstr(text, "//") + 2;
        text += strcspn(text, "/?");
    } else if (*text != '/' && (strcmp(text, "*") != 0 || strcmp(parser->method, "OPTIONS") != 0)) {
        return http_parser_refuse(parser, 400, "The path does not begin with '/'.");
    }
    size_t n = strcspn(text, "?");
    parser->query = (uint32_t)(text + n + (text[n] == '?') - parser->head.data);
    /* "http://host" without a path is the root. */
    return n ? decode_path(parser, text, n) : decode_path(parser, "/", 1);
}

bool http_head_request_line(struct http_parser *parser, char *line, size_t bytes)
{
    char *space = memchr(line, ' ', bytes);
    if (!space)
        return http_parser_refuse(parser, 400, "The request line is not METHOD PATH VERSION.");
    char *target = space + 1, *last = strchr(target, ' ');
    if (!last)
        return http_parser_refuse(parser, 400, "The request line has no HTTP version.");
    if (!parse_version(parser, last + 1) || !parse_method(parser, line, (size_t)(space - line)))
        return false;
    *last = '\0';
    return parse_target(parser, target);
}

bool http_head_field_syntax(struct http_parser *parser, char *line, size_t bytes, size_t *value)
{
    if (*line == ' ' || *line == '\t')
        return http_parser_refuse(parser, 400, "A header field is folded over several lines.");
    char *colon = memchr(line, ':', bytes);
    if (!colon || !is_token(line, (size_t)(colon - line)))
        return http_parser_refuse(parser, 400, "A header field is not \"name: value\".");
    char *end = line + bytes;
    while (end > colon + 1 && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *colon = *end = '\0';
    *value = (size_t)(colon + 1 + strspn(colon + 1, " \t") - line);
    return true;
}

/* True if the comma-separated list has the word, any case. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (*list) {
        list += strspn(list, ", \t");
        size_t len = strcspn(list, ", \t");
        if (len == n && strncasecmp(list, word, n) == 0)
            return true;
        list += len;
    }
    return false;
}

/* Digits alone; more than fit count as the largest number. */
static bool parse_length(struct http_parser *parser, const char *value)
{
    size_t length = 0;
    if (parser->has_length)
        return http_parser_refuse(parser, 400, "There is more than one Content-Length.");
    for (const char *c = value; *c; c++) {
        if (*c < '0' || *c > '9')
            return http_parser_refuse(parser, 400, "The Content-Length is not a number.");
        length = length < SIZE_MAX / 16 ? length * 10 + (size_t)(*c - '0') : SIZE_MAX;
    }
    if (!*value)
        return http_parser_refuse(parser, 400, "The Content-Length is empty.");
    parser->has_length = true;
    parser->body_left = length;
    return true;
}

static bool note_field(struct http_parser *parser, const char *name, const char *value)
{
    if (strcasecmp(name, "content-length") == 0)
        return parse_length(parser, value);
    if (strcasecmp(name, "transfer-encoding") == 0) {
        if (parser->has_encoding)
            return http_parser_refuse(parser, 400, "There is more than one Transfer-Encoding.");
        parser->has_encoding = true;
        parser->is_chunked = strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(name, "host") == 0) {
        if (parser->has_host)
            return http_parser_refuse(parser, 400, "There is more than one Host.");
        parser->has_host = true;
    } else if (strcasecmp(name, "connection") == 0) {
        parser->says_close |= list_has(value, "close");
        parser->says_keep_alive |= list_has(value, "keep-alive");
    } else if (strcasecmp(name, "expect") == 0) {
        if (strcasecmp(value, "100-continue") == 0)
            parser->expects_continue = true;
        else
            parser->expects_other = true;
    }
    return true;
}

bool http_head_field(struct http_parser *parser, char *line, size_t bytes)
{
    size_t value, name = (size_t)(line - parser->head.data);
    if (!http_head_field_syntax(parser, line, bytes, &value))
        return false;
    if (parser->n_fields == HTTP_MAX_FIELDS)
        return http_parser_refuse(parser, 431, "There are too many header fields.");
    parser->fields[parser->n_fields++] =
        (struct http_field){(uint32_t)name, (uint32_t)(name + value)};
    return note_field(parser, line, line + value);
}

bool http_head_complete(struct http_parser *parser)
{
    if (parser->minor >= 1 && !parser->has_host)
        return http_parser_refuse(parser, 400, "The header field Host is missing.");
    if (parser->has_encoding && (parser->has_length || parser->minor == 0))
        return http_parser_refuse(parser, 400,
                                  "Transfer-Encoding does not go with Content-Length "
                                  "or HTTP/1.0.");
    if (parser->has_encoding && !parser->is_chunked)
        return http_parser_refuse(parser, 501,
                                  "The only Transfer-Encoding understood is "
                                  "chunked.");
    if (parser->expects_other)
        return http_parser_refuse(parser, 417,
                                  "The only expectation understood is "
                                  "100-continue.");
    if (parser->has_length && parser->body_left > parser->limits->max_body_bytes)
        return http_parser_refuse(parser, 413,
                                  "The request body is larger than this server "
                                  "accepts.");
    parser->expects_continue = parser->expects_continue && parser->minor >= 1;
    if (parser->is_chunked)
        parser->state = PARSE_CHUNK_SIZE;
    else
        parser->state = parser->body_left ? PARSE_LENGTH : PARSE_DONE;
    return true;
}
