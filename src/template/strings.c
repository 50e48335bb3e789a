#include "template/strings.h"

#include "template/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool string_change_case(struct eval *e, const struct value *v, enum case_change change,
                        struct value *out)
{
    struct str built = {0};
    uint8_t safe = v->flag;
    bool in_word = false;
    str_reserve(&built, v->len);
    for (size_t i = 0, bytes; i < v->len; i += bytes) {
        uint32_t c = text_decode(v->text + i, v->len - i, &bytes);
        bool cased = text_is_upper(c) || text_is_lower(c);
        bool up = change == CASE_UPPER || (change == CASE_CAPITALIZE && i == 0) ||
                  (change == CASE_TITLE && !in_word) || (change == CASE_SWAP && text_is_lower(c));
        if (up && change != CASE_UPPER && change != CASE_SWAP && c == 0xDF)
            str_append(&built, "Ss", 2); /* the title form of ß */
        else if (up)
            text_append_upper(&built, c);
        else
            str_append_utf8(&built, text_lower(c));
        in_word = cased;
    }
    if (!take_text(e, &built, out))
        return false;
    out->flag = safe;
    return true;
}

static bool is_stripped(const struct value *chars, const char *at, size_t n)
{
    size_t bytes;
    if (!chars)
        return text_is_space(text_decode(at, n, &bytes));
    return memmem(chars->text, chars->len, at, n) != NULL;
}

bool string_strip(struct eval *e, const struct value *v, const struct value *chars, bool left,
                  bool right, struct value *out)
{
    size_t begin = 0, end = v->len;
    while (left && begin < end) {
        size_t bytes;
        text_decode(v->text + begin, end - begin, &bytes);
        if (!is_stripped(chars, v->text + begin, bytes))
            break;
        begin += bytes;
    }
    while (right && end > begin) {
        size_t bytes = text_last(v->text + begin, end - begin);
        if (!is_stripped(chars, v->text + end - bytes, bytes))
            break;
        end -= bytes;
    }
    size_t stripped = v->len - (end - begin);
    uint8_t safe = v->flag;
    *out = value_text(v->text + begin, end - begin);
    out->flag = safe;
    return eval_step(e, stripped / 8 * (1 + (chars ? chars->len / 64 : 0)));
}

bool string_replace(struct eval *e, const struct value *v, const struct value *old,
                    const struct value *new_text, int64_t count, struct value *out)
{
    struct str built = {0};
    uint8_t safe = v->flag;
    size_t at = 0;
    if (!eval_step(e, v->len / 64))
        return false;
    for (; count != 0 && at <= v->len && built.len <= EVAL_MAX_TEXT; count--) {
        if (old->len == 0) { /* before each character and at the end */
            size_t bytes = 0;
            str_append(&built, new_text->text, new_text->len);
            if (at == v->len) {
                at++;
                break;
            }
            text_decode(v->text + at, v->len - at, &bytes);
            str_append(&built, v->text + at, bytes);
            at += bytes;
            continue;
        }
        const char *found = memmem(v->text + at, v->len - at, old->text, old->len);
        if (!found)
            break;
        size_t where = (size_t)(found - v->text);
        str_append(&built, v->text + at, where - at);
        str_append(&built, new_text->text, new_text->len);
        at = where + old->len;
    }
    if (at < v->len)
        str_append(&built, v->text + at, v->len - at);
    if (!take_text(e, &built, out))
        return false;
    out->flag = safe;
    return true;
}

bool string_justify(struct eval *e, const struct value *v, int64_t width, const struct value *fill,
                    char align, struct value *out)
{
    size_t n = text_count(v->text, v->len);
    if (width > EVAL_MAX_TEXT)
        return eval_fail(e, ERROR_LIMIT, "a string padded to %lld characters is too long",
                         (long long)width);
    if (fill && text_count(fill->text, fill->len) != 1)
        return eval_fail(e, ERROR_INVALID, "the fill must be one character");
    if (width <= (int64_t)n) {
        *out = *v;
        return true;
    }
    size_t missing = (size_t)width - n;
    /* Python puts the odd blank of center on the left if the width is odd. */
    size_t before = align == '>'   ? missing
                    : align == '^' ? missing / 2 + (missing & (size_t)width & 1)
                                   : 0;
    struct str built = {0};
    uint8_t safe = v->flag;
    for (size_t i = 0; i < before; i++)
        str_append(&built, fill ? fill->text : " ", fill ? fill->len : 1);
    str_append(&built, v->text, v->len);
    for (size_t i = before; i < missing; i++)
        str_append(&built, fill ? fill->text : " ", fill ? fill->len : 1);
    if (!take_text(e, &built, out))
        return false;
    out->flag = safe;
    return true;
}

bool string_lines(struct eval *e, const struct value *v, bool keep_ends, struct list **out)
{
    struct list *list = list_new(&e->arena, 8);
    if (!list)
        return eval_fail_memory(e);
    size_t begin = 0;
    for (size_t i = 0, bytes; i < v->len;) {
        uint32_t c = text_decode(v->text + i, v->len - i, &bytes);
        size_t end = i;
        i += bytes;
        if (!text_is_line_end(c) && i < v->len)
            continue;
        if (!text_is_line_end(c))
            end = i;
        if (c == '\r' && i < v->len && v->text[i] == '\n')
            i++;
        struct value line = value_text(v->text + begin, (keep_ends ? i : end) - begin);
        if (!eval_step(e, 1) || !push(e, list, line))
            return false;
        begin = i;
    }
    *out = list;
    return true;
}

/* The text without white space around it and without underscores between digits, NUL behind; NULL
 * if an underscore stands elsewhere or the text is longer than any number. */
static const char *plain_number(const struct value *v, char buffer[512])
{
    size_t begin = text_leading_space(v->text, v->len), n = 0;
    size_t end = v->len - text_trailing_space(v->text + begin, v->len - begin);
    for (size_t i = begin; i < end; i++) {
        char c = v->text[i];
        if (c == '_' && i > begin && i + 1 < end && isalnum((unsigned char)v->text[i - 1]) &&
            isalnum((unsigned char)v->text[i + 1]))
            continue;
        if (c == '_' || c == '\0' || n == 511)
            return NULL;
        buffer[n++] = c;
    }
    buffer[n] = '\0';
    return n ? buffer : NULL;
}

bool string_to_integer(struct eval *e, const struct value *v, int base, struct value *out)
{
    char buffer[512];
    const char *s = plain_number(v, buffer);
    if (!s || (base != 0 && (base < 2 || base > 36)))
        return false;
    bool negative = *s == '-';
    if (*s == '-' || *s == '+')
        s++;
    if (s[0] == '0' && s[1]) {
        char p = (char)tolower((unsigned char)s[1]);
        int prefix = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
        if (prefix && (base == 0 || base == prefix)) {
            base = prefix;
            s += 2;
        }
    }
    if (base == 0)
        base = 10;
    uint64_t total = 0;
    bool big = false;
    const char *begin = s;
    for (; *s; s++) {
        char c = (char)tolower((unsigned char)*s);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (digit >= base)
            return false;
        big |= total > (INT64_MAX - (uint64_t)digit) / (uint64_t)base;
        total = big ? 0 : total * (uint64_t)base + (uint64_t)digit;
    }
    if (s == begin)
        return false;
    *out = value_int(negative ? -(int64_t)total : (int64_t)total);
    if (!big)
        return true;
    while (*begin == '0')
        begin++;
    if (base != 10)
        return false;
    struct str digits = {0};
    str_printf(&digits, "%s%s", negative ? "-" : "", begin);
    if (!take_text(e, &digits, out))
        return false;
    *out = value_from_digits(out->text, out->len);
    return true;
}

bool string_to_float(struct eval *e, const struct value *v, double *out)
{
    char buffer[512], *end;
    const char *s = plain_number(v, buffer);
    (void)e;
    if (!s || strpbrk(s, "xXpP(")) /* strtod reads hexadecimal and nan(...), Python does not */
        return false;
    *out = strtod(s, &end);
    return end != s && *end == '\0' && !isspace((unsigned char)*s);
}
