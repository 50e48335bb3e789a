/* The pull reader: a small state machine over the text. Nothing here allocates but the scratch
 * string that holds a string with escapes. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum state { EXPECT_VALUE, EXPECT_FIRST, EXPECT_KEY, AFTER_VALUE, FINISHED };

size_t utf8_sequence(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    size_t want = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (n < want)
        return 0;
    for (size_t i = 1; i < want; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return want;
}

void json_reader_init(struct json_reader *reader, const char *data, size_t bytes)
{
    *reader = (struct json_reader){0};
    if (!bytes)
        data = ""; /* an empty document may have no address */
    reader->start = reader->at = data;
    reader->end = data + bytes;
    reader->state = EXPECT_VALUE;
    if (bytes >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0)
        reader->at += 3;
}

void json_reader_done(struct json_reader *reader)
{
    str_done(&reader->scratch);
}

static enum json_event fail(struct json_reader *r, struct error *error, const char *what)
{
    if (r->at >= r->end)
        error_set(error, ERROR_INVALID, "JSON ends too early at byte %zu: %s",
                  (size_t)(r->end - r->start), what);
    else
        error_set(error, ERROR_INVALID, "JSON is malformed at byte %zu: %s",
                  (size_t)(r->at - r->start), what);
    r->state = FINISHED;
    return JSON_FAILED;
}

static void skip_space(struct json_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

static bool read_hex4(struct json_reader *r, unsigned *out)
{
    if (r->end - r->at < 4)
        return false;
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        char c = r->at[i];
        unsigned digit;
        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            digit = (unsigned)((c | 32) - 'a' + 10);
        else
            return false;
        value = value * 16 + digit;
    }
    r->at += 4;
    *out = value;
    return true;
}

/* After "\u": one code point from one escape or a surrogate pair; lone surrogates become U+FFFD. */
static bool read_unicode_escape(struct json_reader *r)
{
    unsigned c;
    if (!read_hex4(r, &c))
        return false;
    if (c >= 0xD800 && c < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        const char *rest = r->at;
        unsigned low;
        r->at += 2;
        if (!read_hex4(r, &low))
            return false;
        if (low >= 0xDC00 && low < 0xE000)
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        else
            r->at = rest;
    }
    str_append_utf8(&r->scratch, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
    return true;
}

static bool read_escape(struct json_reader *r)
{
    if (r->at >= r->end)
        return false;
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = *r->at++;
    if (c == 'u')
        return read_unicode_escape(r);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found) {
        r->at--;
        return false;
    }
    str_append_char(&r->scratch, to[found - from]);
    return true;
}

/* At the character behind the opening quote. Without escapes the text is the source itself. */
static bool read_string(struct json_reader *r, struct error *error)
{
    const char *run = r->at;
    bool copied = false;
    str_clear(&r->scratch);
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at;
        if (c == '\\') {
            str_append(&r->scratch, run, (size_t)(r->at - run));
            copied = true;
            r->at++;
            if (!read_escape(r)) {
                fail(r, error, "this escape is not one of JSON's");
                return false;
            }
            run = r->at;
        } else if (c < 0x20) {
            fail(r, error, "a control character must be escaped inside a string");
            return false;
        } else if (c < 0x80) {
            r->at++;
        } else {
            size_t n = utf8_sequence(r->at, (size_t)(r->end - r->at));
            if (!n) {
                fail(r, error, "the string is not valid UTF-8");
                return false;
            }
            r->at += n;
        }
    }
    if (r->at >= r->end) {
        fail(r, error, "a string has no closing quote");
        return false;
    }
    r->text = run;
    r->len = (size_t)(r->at - run);
    if (copied) {
        str_append(&r->scratch, run, r->len);
        r->text = str_z(&r->scratch);
        r->len = r->scratch.len;
        if (r->scratch.failed) {
            error_memory(error, r->scratch.len);
            return false;
        }
    }
    r->at++;
    return true;
}

static size_t count_digits(struct json_reader *r)
{
    const char *from = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return (size_t)(r->at - from);
}

static bool read_number(struct json_reader *r)
{
    r->text = r->at;
    if (*r->at == '-')
        r->at++;
    const char *digits = r->at;
    size_t n = count_digits(r);
    if (n == 0 || (n > 1 && digits[0] == '0'))
        return false;
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!count_digits(r))
            return false;
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
            r->at++;
        if (!count_digits(r))
            return false;
    }
    r->len = (size_t)(r->at - r->text);
    return true;
}

static bool read_word(struct json_reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

static enum json_event open_container(struct json_reader *r, bool is_object, struct error *error)
{
    if (r->depth == JSON_MAX_DEPTH) {
        error_set(error, ERROR_LIMIT, "JSON is nested deeper than the limit of %d levels",
                  JSON_MAX_DEPTH);
        r->state = FINISHED;
        return JSON_FAILED;
    }
    r->in_object[r->depth++] = is_object;
    r->state = EXPECT_FIRST;
    r->at++;
    return is_object ? JSON_OBJECT : JSON_ARRAY;
}

static enum json_event close_container(struct json_reader *r)
{
    bool is_object = r->in_object[--r->depth];
    r->at++;
    r->state = AFTER_VALUE;
    return is_object ? JSON_OBJECT_END : JSON_ARRAY_END;
}

static enum json_event read_value(struct json_reader *r, struct error *error)
{
    if (r->at >= r->end)
        return fail(r, error, "a value is missing");
    char c = *r->at;
    if (c == '{' || c == '[')
        return open_container(r, c == '{', error);
    r->state = AFTER_VALUE;
    if (c == '"') {
        r->at++;
        return read_string(r, error) ? JSON_STRING : JSON_FAILED;
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r) ? JSON_NUMBER : fail(r, error, "this is not a JSON number");
    if (read_word(r, "true"))
        return JSON_TRUE;
    if (read_word(r, "false"))
        return JSON_FALSE;
    if (read_word(r, "null"))
        return JSON_NULL;
    return fail(r, error, "a value must start here");
}

static enum json_event read_key(struct json_reader *r, struct error *error)
{
    if (r->at >= r->end || *r->at != '"')
        return fail(r, error, "an object's key must start with a quote");
    r->at++;
    if (!read_string(r, error))
        return JSON_FAILED;
    skip_space(r);
    if (r->at >= r->end || *r->at != ':')
        return fail(r, error, "a colon must follow an object's key");
    r->at++;
    r->state = EXPECT_VALUE;
    return JSON_KEY;
}

enum json_event json_next(struct json_reader *r, struct error *error)
{
    skip_space(r);
    bool in_object = r->depth > 0 && r->in_object[r->depth - 1];
    char closer = in_object ? '}' : ']';
    switch (r->state) {
    case EXPECT_VALUE:
        return read_value(r, error);
    case EXPECT_FIRST:
        if (r->at < r->end && *r->at == closer)
            return close_container(r);
        return in_object ? read_key(r, error) : read_value(r, error);
    case EXPECT_KEY:
        return read_key(r, error);
    case AFTER_VALUE:
        if (r->depth == 0) {
            if (r->at < r->end)
                return fail(r, error, "something follows the end of the document");
            r->state = FINISHED;
            return JSON_END;
        }
        if (r->at < r->end && *r->at == closer)
            return close_container(r);
        if (r->at >= r->end || *r->at != ',')
            return fail(r, error, "a comma or the closing bracket is missing");
        r->at++;
        skip_space(r);
        return in_object ? read_key(r, error) : read_value(r, error);
    default:
        error_set(error, ERROR_INVALID, "JSON was read past its end");
        return JSON_FAILED;
    }
}

enum status json_skip(struct json_reader *r, enum json_event first, struct error *error)
{
    if (first == JSON_FAILED)
        return error ? error->status : ERROR_INVALID;
    if (first != JSON_OBJECT && first != JSON_ARRAY)
        return OK;
    int depth = r->depth - 1;
    while (r->depth > depth)
        if (json_next(r, error) == JSON_FAILED)
            return error ? error->status : ERROR_INVALID;
    return OK;
}

bool json_text_is(const struct json_reader *r, const char *text)
{
    return r->len == strlen(text) && memcmp(r->text, text, r->len) == 0;
}

/* A number's text as an integer: exact for integers, and for floats without a fraction (1e3, 2.0).
 */
static bool parse_int(const char *text, size_t len, int64_t min, int64_t max, int64_t *out)
{
    char copy[64];
    if (len >= sizeof copy)
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    int64_t value;
    if (strpbrk(copy, ".eE")) {
        double d = strtod(copy, NULL);
        if (!(d >= -0x1p63 && d < 0x1p63) || d != floor(d))
            return false;
        value = (int64_t)d;
    } else {
        errno = 0;
        value = strtoll(copy, NULL, 10);
        if (errno)
            return false;
    }
    if (value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool json_read_int(const struct json_reader *r, int64_t min, int64_t max, int64_t *out)
{
    return parse_int(r->text, r->len, min, max, out);
}

bool json_int(const struct json *value, int64_t min, int64_t max, int64_t *out)
{
    return value && value->type == JT_NUMBER && parse_int(value->text, value->n, min, max, out);
}
