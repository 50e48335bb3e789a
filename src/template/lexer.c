#include "template/lexer.h"

#include "base/str.h"
#include "template/text.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BRACKETS = 256 };

struct lexer {
    struct arena *arena;
    const char *s; /* newlines normalised to \n */
    size_t n, at;
    int line;
    struct token *tokens;
    size_t n_tokens, cap;
    char brackets[MAX_BRACKETS]; /* what closes each open bracket of the current tag */
    size_t n_brackets;
    struct error *error;
};

static enum status fail(struct lexer *lx, const char *what)
{
    return error_set(lx->error, ERROR_INVALID, "chat template line %d: %s", lx->line, what);
}

static enum status fail_memory(struct lexer *lx)
{
    return error_set(lx->error, ERROR_LIMIT,
                     "chat template needs more memory than its limit of %zu bytes",
                     lx->arena->limit);
}

static bool starts(const struct lexer *lx, size_t at, const char *text)
{
    size_t n = strlen(text);
    return lx->n - at >= n && memcmp(lx->s + at, text, n) == 0;
}

static enum status push(struct lexer *lx, enum token_kind kind, int op, struct value value)
{
    if (lx->n_tokens == lx->cap) {
        size_t cap = lx->cap ? lx->cap * 2 : 256;
        struct token *tokens = arena_alloc_array(lx->arena, cap, sizeof *tokens);
        if (!tokens)
            return fail_memory(lx);
        if (lx->n_tokens)
            memcpy(tokens, lx->tokens, lx->n_tokens * sizeof *tokens);
        lx->tokens = tokens;
        lx->cap = cap;
    }
    lx->tokens[lx->n_tokens++] =
        (struct token){.kind = kind, .line = lx->line, .op = op, .value = value};
    return OK;
}

static void advance(struct lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++)
        lx->line += lx->s[lx->at] == '\n';
}

static void skip_space(struct lexer *lx)
{
    advance(lx, lx->at + text_leading_space(lx->s + lx->at, lx->n - lx->at));
}

/* Text of [lx->at, end) before a tag that carries `sign`: '-' drops the white space at its end;
 * without a sign the blanks between a line start and a block or comment go (lstrip_blocks). */
static enum status push_data(struct lexer *lx, size_t end, char sign, bool is_variable)
{
    const char *text = lx->s + lx->at;
    size_t n = end - lx->at;
    if (sign == '-') {
        n -= text_trailing_space(text, n);
    } else if (sign != '+' && !is_variable) {
        size_t line = n;
        while (line > 0 && text[line - 1] != '\n')
            line--;
        bool starts_line = line > 0 || lx->at == 0 || lx->s[lx->at - 1] == '\n';
        if (starts_line && text_leading_space(text + line, n - line) == n - line)
            n = line;
    }
    enum status status = n ? push(lx, TOKEN_DATA, 0, value_text(text, n)) : OK;
    advance(lx, end);
    return status;
}

static char sign_at(const struct lexer *lx, size_t at)
{
    return at < lx->n && (lx->s[at] == '-' || lx->s[at] == '+') ? lx->s[at] : '\0';
}

/* If a tag's end ("%}" or "#}") with its sign stands at lx->at, steps over it and over the white
 * space that it eats. */
static bool take_end(struct lexer *lx, const char *end)
{
    char sign = sign_at(lx, lx->at);
    size_t at = lx->at + (sign != '\0');
    if (!starts(lx, at, end))
        return false;
    advance(lx, at + 2);
    if (sign == '-')
        skip_space(lx);
    else if (!sign && lx->at < lx->n && lx->s[lx->at] == '\n')
        advance(lx, lx->at + 1);
    return true;
}

static enum status lex_comment(struct lexer *lx)
{
    advance(lx, lx->at + 2);
    if (sign_at(lx, lx->at))
        advance(lx, lx->at + 1);
    for (size_t i = lx->at; i + 1 < lx->n; i++) {
        if (lx->s[i] != '#' || lx->s[i + 1] != '}')
            continue;
        bool has_sign = i > lx->at && sign_at(lx, i - 1);
        advance(lx, i - has_sign);
        take_end(lx, "#}");
        return OK;
    }
    if (lx->at == lx->n) /* as with raw: nothing behind the opening is no error in jinja2 */
        return OK;
    return fail(lx, "the comment is never closed with '#}'");
}

/* The end of "{%- raw -%}" if the tag at `at` is one, else 0. A raw tag eats white space only by
 * '-'. */
static size_t raw_tag(const struct lexer *lx, size_t at, const char *name, bool *strips)
{
    size_t i = at + 2;
    i += sign_at(lx, i) != '\0';
    i += text_leading_space(lx->s + i, lx->n - i);
    if (!starts(lx, i, name))
        return 0;
    i += strlen(name);
    i += text_leading_space(lx->s + i, lx->n - i);
    *strips = i < lx->n && lx->s[i] == '-';
    if (starts(lx, i + *strips, "%}"))
        return i + *strips + 2;
    return 0;
}

/* After the raw tag: everything up to {% endraw %} is data. */
static enum status lex_raw(struct lexer *lx)
{
    if (lx->at == lx->n) /* jinja2 does not mind a raw tag that is the very last thing */
        return OK;
    for (size_t i = lx->at; i + 1 < lx->n; i++) {
        if (!starts(lx, i, "{%"))
            continue;
        size_t j = i + 2;
        char sign = sign_at(lx, j);
        j += sign != '\0';
        j += text_leading_space(lx->s + j, lx->n - j);
        if (!starts(lx, j, "endraw"))
            continue;
        j += strlen("endraw");
        j += text_leading_space(lx->s + j, lx->n - j);
        if (!starts(lx, j + (sign_at(lx, j) != '\0'), "%}"))
            continue;
        enum status status = push_data(lx, i, sign, false);
        if (status != OK)
            return status;
        advance(lx, j);
        take_end(lx, "%}");
        return OK;
    }
    return fail(lx, "the raw block is never closed with '{% endraw %}'");
}

static bool is_name_byte(char c)
{
    unsigned char u = (unsigned char)c;
    return u >= 0x80 || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies a run of digits, dropping single underscores between them. */
static size_t copy_digits(const struct lexer *lx, size_t i, struct str *out)
{
    while (i < lx->n && (is_digit(lx->s[i]) || (lx->s[i] == '_' && i + 1 < lx->n &&
                                                is_digit(lx->s[i + 1]) && out->len))) {
        if (lx->s[i] != '_')
            str_append_char(out, lx->s[i]);
        i++;
    }
    return i;
}

/* 0x, 0o and 0b literals. */
static enum status lex_prefixed(struct lexer *lx, int base)
{
    size_t i = lx->at + 2;
    uint64_t v = 0;
    bool any = false;
    for (; i < lx->n; i++) {
        char c = lx->s[i];
        int digit = is_digit(c)                          ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : 99;
        if (c == '_')
            continue;
        if (digit >= base)
            break;
        if (v > (INT64_MAX - 16) / 16)
            return fail(lx, "an integer literal does not fit 64 bits");
        v = v * (uint64_t)base + (uint64_t)digit;
        any = true;
    }
    if (!any)
        return fail(lx, "a number prefix without digits");
    enum status status = push(lx, TOKEN_INTEGER, 0, value_int((int64_t)v));
    advance(lx, i);
    return status;
}

static enum status lex_number(struct lexer *lx)
{
    static const char prefixes[] = "xXoObB";
    char second = lx->at + 1 < lx->n ? lx->s[lx->at + 1] : '\0';
    const char *prefix = lx->s[lx->at] == '0' && second ? strchr(prefixes, second) : NULL;
    if (prefix)
        return lex_prefixed(lx, prefix < prefixes + 2 ? 16 : prefix < prefixes + 4 ? 8 : 2);
    struct str digits = {0};
    enum status status = OK;
    size_t i = copy_digits(lx, lx->at, &digits);
    /* "x.0.1" is two subscripts: no float directly behind a dot. */
    bool is_float = false, after_dot = lx->at > 0 && lx->s[lx->at - 1] == '.';
    if (!after_dot && i + 1 < lx->n && lx->s[i] == '.' && is_digit(lx->s[i + 1])) {
        is_float = true;
        str_append_char(&digits, '.');
        i = copy_digits(lx, i + 1, &digits);
    }
    if (!after_dot && i < lx->n && (lx->s[i] | 32) == 'e') {
        size_t j = i + 1;
        j += sign_at(lx, j) != '\0';
        if (j < lx->n && is_digit(lx->s[j])) {
            is_float = true;
            str_append(&digits, lx->s + i, j - i);
            i = copy_digits(lx, j, &digits);
        }
    }
    char *kept = digits.failed ? NULL : arena_copy(lx->arena, str_z(&digits), digits.len);
    if (!kept)
        status = fail_memory(lx);
    else if (is_float)
        status = push(lx, TOKEN_FLOAT, 0, value_float(strtod(kept, NULL)));
    else if (digits.len > 1 && kept[0] == '0' && strspn(kept, "0") != digits.len)
        status = fail(lx, "an integer literal begins with 0");
    else
        status = push(lx, TOKEN_INTEGER, 0, value_from_digits(kept, digits.len));
    str_done(&digits);
    advance(lx, i);
    return status;
}

/* Hexadecimal digits of \x, \u, \U; false if they are not all there. */
static bool take_hex(const char *s, size_t n, size_t digits, unsigned *out)
{
    *out = 0;
    if (n < digits)
        return false;
    for (size_t i = 0; i < digits; i++) {
        char c = s[i], l = (char)(c | 32);
        if (!is_digit(c) && (l < 'a' || l > 'f'))
            return false;
        *out = *out << 4 | (unsigned)(is_digit(c) ? c - '0' : l - 'a' + 10);
    }
    return true;
}

/* One escape behind the backslash at s[0]; returns the bytes read, 0 if it is broken. Unknown
 * escapes keep their backslash, as in Python. */
static size_t unescape(const char *s, size_t n, struct str *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s[1];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        str_append_char(out, to[simple - from]);
        return 2;
    }
    if (c == '\n')
        return 2;
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        unsigned code;
        if (!take_hex(s + 2, n - 2, digits, &code) || code > 0x10FFFF)
            return 0;
        str_append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
        return 2 + digits;
    }
    if (c >= '0' && c <= '7') {
        size_t i = 1;
        unsigned code = 0;
        for (; i < 4 && i < n && s[i] >= '0' && s[i] <= '7'; i++)
            code = code * 8 + (unsigned)(s[i] - '0');
        str_append_utf8(out, code);
        return i;
    }
    str_append_char(out, '\\');
    return 1;
}

static enum status lex_string(struct lexer *lx)
{
    const char *s = lx->s;
    char quote = s[lx->at];
    size_t i = lx->at + 1, run = i;
    struct str out = {0};
    enum status status = OK;
    while (i < lx->n && s[i] != quote) {
        if (s[i] != '\\' || i + 1 >= lx->n) {
            i++;
            continue;
        }
        str_append(&out, s + run, i - run);
        size_t used = unescape(s + i, lx->n - i, &out);
        if (!used) {
            status = fail(lx, "a string holds a broken \\x, \\u or \\U escape");
            goto done;
        }
        i += used;
        run = i;
    }
    if (i >= lx->n) {
        status = fail(lx, "a string is never closed");
        goto done;
    }
    str_append(&out, s + run, i - run);
    char *kept = out.failed ? NULL : arena_copy(lx->arena, str_z(&out), out.len);
    status = kept ? push(lx, TOKEN_STRING, 0, value_text(kept, out.len)) : fail_memory(lx);
    advance(lx, i + 1);
done:
    str_done(&out);
    return status;
}

static enum status lex_operator(struct lexer *lx)
{
    static const char *const twos[] = {"//", "**", "==", "!=", "<=", ">="};
    for (size_t k = 0; k < sizeof twos / sizeof twos[0]; k++) {
        if (!starts(lx, lx->at, twos[k]))
            continue;
        enum status status =
            push(lx, TOKEN_OPERATOR, OPERATOR2(twos[k][0], twos[k][1]), value_none());
        advance(lx, lx->at + 2);
        return status;
    }
    char c = lx->s[lx->at];
    if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c))
        return error_set(lx->error, ERROR_INVALID,
                         "chat template line %d: unexpected character '%c'", lx->line,
                         c >= 0x20 && c < 0x7F ? c : '?');
    const char *open = strchr("({[", c), *close = strchr(")}]", c);
    if (open) {
        if (lx->n_brackets == MAX_BRACKETS)
            return error_set(lx->error, ERROR_LIMIT,
                             "chat template line %d: more than %d brackets are open", lx->line,
                             MAX_BRACKETS);
        lx->brackets[lx->n_brackets++] = c == '(' ? ')' : c == '{' ? '}' : ']';
    } else if (close && (lx->n_brackets == 0 || lx->brackets[--lx->n_brackets] != c)) {
        return error_set(lx->error, ERROR_INVALID, "chat template line %d: unexpected '%c'",
                         lx->line, c);
    }
    enum status status = push(lx, TOKEN_OPERATOR, c, value_none());
    advance(lx, lx->at + 1);
    return status;
}

/* The tokens of one tag, up to and with its end. */
static enum status lex_tag(struct lexer *lx, bool is_variable)
{
    lx->n_brackets = 0;
    for (;;) {
        skip_space(lx);
        if (lx->at >= lx->n)
            return fail(lx, is_variable ? "'{{' is never closed with '}}'"
                                        : "'{%' is never closed with '%}'");
        if (lx->n_brackets == 0 && is_variable) {
            bool strips = starts(lx, lx->at, "-}}");
            if (strips || starts(lx, lx->at, "}}")) {
                enum status status = push(lx, TOKEN_VARIABLE_END, 0, value_none());
                advance(lx, lx->at + 2 + strips);
                if (strips)
                    skip_space(lx);
                return status;
            }
        } else if (lx->n_brackets == 0 && take_end(lx, "%}")) {
            return push(lx, TOKEN_BLOCK_END, 0, value_none());
        }
        char c = lx->s[lx->at];
        enum status status;
        if (is_digit(c)) {
            status = lex_number(lx);
        } else if (is_name_byte(c)) {
            size_t i = lx->at;
            while (i < lx->n && is_name_byte(lx->s[i]))
                i++;
            status = push(lx, TOKEN_NAME, 0, value_text(lx->s + lx->at, i - lx->at));
            advance(lx, i);
        } else if (c == '"' || c == '\'') {
            status = lex_string(lx);
        } else {
            status = lex_operator(lx);
        }
        if (status != OK)
            return status;
    }
}

/* The next place where a tag or comment begins, or the end. */
static size_t find_tag(const struct lexer *lx)
{
    for (size_t i = lx->at; i + 1 < lx->n; i++)
        if (lx->s[i] == '{' && (lx->s[i + 1] == '{' || lx->s[i + 1] == '%' || lx->s[i + 1] == '#'))
            return i;
    return lx->n;
}

static enum status lex_all(struct lexer *lx)
{
    while (lx->at < lx->n) {
        size_t tag = find_tag(lx);
        if (tag == lx->n)
            return push_data(lx, tag, '+', false);
        char kind = lx->s[tag + 1], sign = sign_at(lx, tag + 2);
        bool strips = false;
        size_t raw = kind == '%' ? raw_tag(lx, tag, "raw", &strips) : 0;
        enum status status = push_data(lx, tag, sign, kind == '{');
        if (status != OK)
            return status;
        if (raw) {
            advance(lx, raw);
            if (strips)
                skip_space(lx);
            status = lex_raw(lx);
        } else if (kind == '#') {
            status = lex_comment(lx);
        } else {
            status =
                push(lx, kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, 0, value_none());
            advance(lx, tag + 2 + (sign != '\0'));
            if (status == OK)
                status = lex_tag(lx, kind == '{');
        }
        if (status != OK)
            return status;
    }
    return OK;
}

/* A copy with \r\n and \r as \n, without one newline at the end. */
static char *normalise(struct arena *arena, const char *source, size_t len, size_t *n)
{
    char *s = arena_copy(arena, source, len);
    *n = 0;
    for (size_t i = 0; s && i < len; i++) {
        bool is_return = source[i] == '\r';
        s[(*n)++] = is_return ? '\n' : source[i];
        if (is_return && i + 1 < len && source[i + 1] == '\n')
            i++;
    }
    if (*n > 0 && s[*n - 1] == '\n')
        (*n)--;
    return s;
}

enum status template_lex(struct arena *arena, const char *source, size_t len, struct tokens *out,
                         struct error *error)
{
    if (len > TEMPLATE_MAX_BYTES)
        return error_set(error, ERROR_LIMIT,
                         "chat template is %zu bytes long; at most %d are accepted", len,
                         TEMPLATE_MAX_BYTES);
    for (size_t i = 0, k; i < len; i += k) {
        k = utf8_sequence(source + i, len - i);
        if (!k)
            return error_set(error, ERROR_INVALID, "chat template byte %zu is not UTF-8", i);
    }
    struct lexer lx = {.arena = arena, .line = 1, .error = error};
    lx.s = normalise(arena, source, len, &lx.n);
    if (!lx.s)
        return fail_memory(&lx);
    enum status status = lex_all(&lx);
    if (status == OK)
        status = push(&lx, TOKEN_END, 0, value_none());
    *out = (struct tokens){lx.tokens, lx.n_tokens};
    return status;
}
