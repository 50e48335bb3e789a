#include "parser/json_scan.h"

#include <string.h>

enum scan_state {
    VALUE,        /* a value must start */
    VALUE_OR_END, /* behind '[' */
    KEY_OR_END,   /* behind '{' */
    KEY,          /* behind a comma in an object */
    COLON,
    AFTER, /* behind a value inside a container */
    STRING,
    KEY_STRING,
    ESCAPE,
    KEY_ESCAPE,
    HEX,
    KEY_HEX,
    LITERAL,
    NUMBER_MINUS,
    NUMBER_ZERO,
    NUMBER_INT,
    NUMBER_POINT,
    NUMBER_FRACTION,
    NUMBER_E,
    NUMBER_E_SIGN,
    NUMBER_EXPONENT
};

static const char *const literals[] = {"true", "false", "null"};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static enum scan_result to(struct json_scan *s, enum scan_state state)
{
    s->state = (unsigned char)state;
    return SCAN_MORE;
}

static enum scan_result value_done(struct json_scan *s)
{
    s->state = AFTER;
    return s->depth ? SCAN_MORE : SCAN_DONE;
}

static enum scan_result open_container(struct json_scan *s, bool is_object)
{
    if (s->depth == JSON_MAX_DEPTH)
        return SCAN_ERROR;
    s->in_object[s->depth++] = is_object;
    return to(s, is_object ? KEY_OR_END : VALUE_OR_END);
}

static enum scan_result close_container(struct json_scan *s)
{
    s->depth--;
    return value_done(s);
}

static enum scan_result start_value(struct json_scan *s, char c)
{
    if (c == '{' || c == '[')
        return open_container(s, c == '{');
    if (c == '"')
        return to(s, STRING);
    if (c == '-')
        return to(s, NUMBER_MINUS);
    if (is_digit(c))
        return to(s, c == '0' ? NUMBER_ZERO : NUMBER_INT);
    for (unsigned char i = 0; i < 3; i++)
        if (literals[i][0] == c) {
            s->literal = i;
            s->progress = 1;
            return to(s, LITERAL);
        }
    return SCAN_ERROR;
}

static enum scan_result in_structure(struct json_scan *s, char c)
{
    if (is_space(c))
        return SCAN_MORE;
    bool in_object = s->depth && s->in_object[s->depth - 1];
    switch (s->state) {
    case VALUE:
        return start_value(s, c);
    case VALUE_OR_END:
        return c == ']' ? close_container(s) : start_value(s, c);
    case KEY_OR_END:
        if (c == '}')
            return close_container(s);
        return c == '"' ? to(s, KEY_STRING) : SCAN_ERROR;
    case KEY:
        return c == '"' ? to(s, KEY_STRING) : SCAN_ERROR;
    case COLON:
        return c == ':' ? to(s, VALUE) : SCAN_ERROR;
    default: /* AFTER */
        if (c == ',')
            return to(s, in_object ? KEY : VALUE);
        return c == (in_object ? '}' : ']') ? close_container(s) : SCAN_ERROR;
    }
}

static enum scan_result in_string(struct json_scan *s, char c)
{
    bool is_key = s->state == KEY_STRING || s->state == KEY_ESCAPE || s->state == KEY_HEX;
    switch (s->state) {
    case STRING:
    case KEY_STRING:
        if (c == '"')
            return is_key ? to(s, COLON) : value_done(s);
        if (c == '\\')
            return to(s, is_key ? KEY_ESCAPE : ESCAPE);
        return (unsigned char)c < 0x20 ? SCAN_ERROR : SCAN_MORE;
    case ESCAPE:
    case KEY_ESCAPE:
        if (c == 'u') {
            s->progress = 0;
            return to(s, is_key ? KEY_HEX : HEX);
        }
        return c && strchr("\"\\/bfnrt", c) ? to(s, is_key ? KEY_STRING : STRING) : SCAN_ERROR;
    default: /* HEX, KEY_HEX */
        if (!is_digit(c) && !((c | 32) >= 'a' && (c | 32) <= 'f'))
            return SCAN_ERROR;
        return ++s->progress == 4 ? to(s, is_key ? KEY_STRING : STRING) : SCAN_MORE;
    }
}

/* A number ends with the first byte that cannot continue it, which is then read as what follows. */
static enum scan_result number_end(struct json_scan *s, char c)
{
    if (value_done(s) == SCAN_DONE)
        return SCAN_BEHIND;
    return in_structure(s, c);
}

static enum scan_result in_number(struct json_scan *s, char c)
{
    bool is_e = c == 'e' || c == 'E';
    switch (s->state) {
    case NUMBER_MINUS:
        return is_digit(c) ? to(s, c == '0' ? NUMBER_ZERO : NUMBER_INT) : SCAN_ERROR;
    case NUMBER_INT:
        if (is_digit(c))
            return SCAN_MORE;
        /* fall through */
    case NUMBER_ZERO:
        if (c == '.')
            return to(s, NUMBER_POINT);
        if (is_digit(c))
            return SCAN_ERROR;
        return is_e ? to(s, NUMBER_E) : number_end(s, c);
    case NUMBER_POINT:
        return is_digit(c) ? to(s, NUMBER_FRACTION) : SCAN_ERROR;
    case NUMBER_FRACTION:
        if (is_digit(c))
            return SCAN_MORE;
        return is_e ? to(s, NUMBER_E) : number_end(s, c);
    case NUMBER_E:
        if (c == '+' || c == '-')
            return to(s, NUMBER_E_SIGN);
        /* fall through */
    case NUMBER_E_SIGN:
        return is_digit(c) ? to(s, NUMBER_EXPONENT) : SCAN_ERROR;
    default: /* NUMBER_EXPONENT */
        return is_digit(c) ? SCAN_MORE : number_end(s, c);
    }
}

enum scan_result json_scan_byte(struct json_scan *s, char c)
{
    if (s->state <= AFTER)
        return in_structure(s, c);
    if (s->state <= KEY_HEX)
        return in_string(s, c);
    if (s->state != LITERAL)
        return in_number(s, c);
    const char *word = literals[s->literal];
    if (word[s->progress] != c)
        return SCAN_ERROR;
    return word[++s->progress] ? SCAN_MORE : value_done(s);
}

enum scan_result json_scan_text(struct json_scan *s, const char *text, size_t len, size_t *used)
{
    for (size_t i = 0; i < len; i++) {
        enum scan_result result = json_scan_byte(s, text[i]);
        if (result != SCAN_MORE) {
            *used = i + (result == SCAN_DONE);
            return result;
        }
    }
    *used = len;
    return SCAN_MORE;
}

static size_t space_prefix(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && is_space(text[n]))
        n++;
    return n;
}

bool json_is_valid(const char *text, size_t len)
{
    struct json_scan s = {0};
    size_t used, skip = space_prefix(text, len);
    text += skip;
    len -= skip;
    while (len && is_space(text[len - 1]))
        len--;
    enum scan_result result = json_scan_text(&s, text, len, &used);
    if (result == SCAN_MORE) /* a number that the end of the text ends */
        return !s.depth && (s.state == NUMBER_ZERO || s.state == NUMBER_INT ||
                            s.state == NUMBER_FRACTION || s.state == NUMBER_EXPONENT);
    return result == SCAN_DONE && used == len;
}

bool json_is_valid_object(const char *text, size_t len)
{
    size_t skip = space_prefix(text, len);
    return skip < len && text[skip] == '{' && json_is_valid(text, len);
}
