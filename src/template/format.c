/* The % operator on strings and str.format. */
#include "template/eval.h"
#include "template/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 10000, MAX_PRECISION = 100 };

/* [[fill]align][sign][0][width][,][.precision][type] of both kinds of formats. */
struct spec {
    const char *fill;
    size_t fill_len;
    char align; /* '<', '>', '^', '=' or 0: by the type */
    char sign;  /* '+', ' ' or 0 */
    bool alternate, comma;
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
};

static void fill(struct str *out, const struct spec *spec, size_t n)
{
    for (size_t i = 0; i < n; i++)
        str_append(out, spec->fill, spec->fill_len);
}

/* `sign_len` bytes of the text are a sign or prefix, before which '=' does not pad. */
static void pad(struct str *out, const struct spec *spec, const char *text, size_t n,
                size_t sign_len, char align)
{
    size_t count = text_count(text, n), width = (size_t)spec->width;
    size_t missing = width > count ? width - count : 0;
    size_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    if (align == '=') {
        str_append(out, text, sign_len);
        fill(out, spec, missing);
        str_append(out, text + sign_len, n - sign_len);
        return;
    }
    fill(out, spec, before);
    str_append(out, text, n);
    fill(out, spec, missing - before);
}

/* Puts a comma between groups of three digits of the integer part that begins at `start`. */
static void group_digits(struct str *s, size_t start)
{
    size_t end = start;
    while (end < s->len && s->data[end] >= '0' && s->data[end] <= '9')
        end++;
    struct str grouped = {0};
    str_append(&grouped, s->data, start);
    for (size_t i = start; i < end; i++) {
        if (i > start && (end - i) % 3 == 0)
            str_append_char(&grouped, ',');
        str_append_char(&grouped, s->data[i]);
    }
    str_append(&grouped, s->data + end, s->len - end);
    str_done(s);
    *s = grouped;
}

static void write_integer(struct str *s, int64_t i, const struct spec *spec)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    if (i < 0 || spec->sign)
        str_append_char(s, i < 0 ? '-' : spec->sign);
    switch (spec->type) {
    case 'x':
    case 'X':
        str_printf(s,
                   spec->alternate ? (spec->type == 'x' ? "0x%llx" : "0X%llX")
                                   : (spec->type == 'x' ? "%llx" : "%llX"),
                   (unsigned long long)u);
        break;
    case 'o':
        str_printf(s, spec->alternate ? "0o%llo" : "%llo", (unsigned long long)u);
        break;
    case 'b': {
        char bits[65];
        size_t n = sizeof bits;
        do {
            bits[--n] = (char)('0' + (u & 1));
            u >>= 1;
        } while (u);
        str_append_z(s, spec->alternate ? "0b" : "");
        str_append(s, bits + n, sizeof bits - n);
        break;
    }
    default:
        str_printf(s, "%llu", (unsigned long long)u);
        break;
    }
}

static void write_number(struct str *s, double f, const struct spec *spec)
{
    int precision = spec->precision < 0 ? 6 : spec->precision;
    if (!signbit(f) && spec->sign)
        str_append_char(s, spec->sign);
    switch (spec->type) {
    case 'e':
        str_printf(s, "%.*e", precision, f);
        break;
    case 'E':
        str_printf(s, "%.*E", precision, f);
        break;
    case 'g':
        str_printf(s, "%.*g", precision, f);
        break;
    case 'G':
        str_printf(s, "%.*G", precision, f);
        break;
    case '%':
        str_printf(s, "%.*f%%", precision, f * 100);
        break;
    default:
        str_printf(s, "%.*f", precision, f);
        break;
    }
}

static bool format_number(struct eval *e, struct str *out, const struct value *v,
                          const struct spec *spec)
{
    struct str s = {0};
    int64_t i;
    double f = 0;
    bool is_float_type = spec->type && strchr("eEfFgG%", spec->type);
    if (!is_float_type && value_integer(v, &i)) {
        write_integer(&s, i, spec);
    } else if (is_float_type && value_number(v, &f)) {
        write_number(&s, f, spec);
    } else {
        return eval_fail(e, ERROR_INVALID, "the format '%c' does not work on a %s",
                         spec->type ? spec->type : 'd', value_type(v));
    }
    size_t sign = s.len && strchr("+- ", s.data[0]) ? 1 : 0;
    if (spec->comma && !s.failed)
        group_digits(&s, sign);
    if (spec->alternate && s.len > sign + 1 && s.data[sign] == '0' && !is_float_type)
        sign += 2;
    pad(out, spec, str_z(&s), s.len, sign, spec->align ? spec->align : '>');
    str_done(&s);
    return !out->failed || eval_fail_memory(e);
}

static bool format_text(struct eval *e, struct str *out, const struct value *v,
                        const struct spec *spec, bool repr, char align)
{
    struct str s = {0};
    bool ok = repr ? write_repr(e, &s, v) : write_value(e, &s, v);
    size_t n = s.len;
    if (ok && spec->precision >= 0)
        n = text_offset(str_z(&s), s.len, (size_t)spec->precision);
    if (ok)
        pad(out, spec, str_z(&s), n, 0, spec->align ? spec->align : align);
    str_done(&s);
    return ok;
}

/* Digits at `*at`; at most `most`. */
static bool take_number(struct eval *e, const struct value *format, size_t *at, int most, int *out)
{
    *out = 0;
    while (*at < format->len && format->text[*at] >= '0' && format->text[*at] <= '9') {
        *out = *out * 10 + (format->text[(*at)++] - '0');
        if (*out > most)
            return eval_fail(e, ERROR_LIMIT, "a width or precision in a format is above %d", most);
    }
    return true;
}

static char char_at(const struct value *v, size_t at)
{
    return at < v->len ? v->text[at] : '\0';
}

static bool percent_spec(struct eval *e, const struct value *format, size_t *at, struct spec *spec)
{
    *spec = (struct spec){.fill = " ", .fill_len = 1, .precision = -1};
    for (;; (*at)++) {
        char c = char_at(format, *at);
        if (c == '-')
            spec->align = '<';
        else if (c == '0' && spec->align != '<') {
            spec->fill = "0";
            spec->align = '=';
        } else if (c == '+' || c == ' ')
            spec->sign = spec->sign == '+' ? '+' : c;
        else if (c == '#')
            spec->alternate = true;
        else if (c != '0')
            break;
    }
    if (!take_number(e, format, at, MAX_WIDTH, &spec->width))
        return false;
    if (char_at(format, *at) == '.') {
        (*at)++;
        if (!take_number(e, format, at, MAX_PRECISION, &spec->precision))
            return false;
    }
    while (char_at(format, *at) && strchr("hlL", char_at(format, *at)))
        (*at)++;
    spec->type = char_at(format, *at);
    if (!spec->type)
        return eval_fail(e, ERROR_INVALID, "the format ends after '%%'");
    (*at)++;
    return true;
}

static bool percent_one(struct eval *e, struct str *out, const struct value *v, struct spec *spec)
{
    double f;
    struct value whole = *v;
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
        if (spec->align == '=') {
            spec->align = '>';
            spec->fill = " ";
        }
        return format_text(e, out, v, spec, spec->type != 's', '>');
    case 'd':
    case 'i':
    case 'u':
        if (v->kind == V_FLOAT && value_number(v, &f) && fabs(f) < 9e18)
            whole = value_int((int64_t)f);
        spec->type = 'd';
        return format_number(e, out, &whole, spec);
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        return format_number(e, out, v, spec);
    case 'c':
        if (v->kind == V_STRING && text_count(v->text, v->len) == 1)
            return format_text(e, out, v, spec, false, '>');
        return eval_fail(e, ERROR_INVALID, "%%c needs a string of one character");
    default:
        return eval_fail(e, ERROR_INVALID, "the format character '%c' is not known", spec->type);
    }
}

/* The operand of the next "%": by name from a dict, else the next of a tuple, else the one value.
 */
static bool percent_operand(struct eval *e, const struct value *format, size_t *at,
                            const struct value *operand, size_t *next, struct value *out)
{
    if (char_at(format, *at) == '(') {
        const char *name = format->text + *at + 1;
        const char *end = memchr(name, ')', format->len - *at - 1);
        if (!end || operand->kind != V_DICT)
            return eval_fail(e, ERROR_INVALID, "%%(name) needs a dict and a closing bracket");
        struct value key = value_text(name, (size_t)(end - name));
        const struct value *found = dict_get(operand->dict, &key);
        if (!found)
            return eval_fail(e, ERROR_INVALID, "the format's '%.*s' is not among its values",
                             (int)key.len, key.text);
        *out = *found;
        *at = (size_t)(end - format->text) + 1;
        *next = SIZE_MAX;
        return true;
    }
    bool is_tuple = operand->kind == V_TUPLE;
    size_t n = is_tuple ? operand->list->n : 1;
    if (*next >= n)
        return eval_fail(e, ERROR_INVALID, "there are fewer values than '%%' in the format");
    *out = is_tuple ? operand->list->items[*next] : *operand;
    ++*next;
    return true;
}

static bool percent_all(struct eval *e, struct str *out, const struct value *format,
                        const struct value *operand)
{
    size_t next = 0;
    for (size_t i = 0; i < format->len;) {
        if (format->text[i] != '%') {
            str_append_char(out, format->text[i++]);
            continue;
        }
        if (char_at(format, ++i) == '%') {
            str_append_char(out, '%');
            i++;
            continue;
        }
        struct value v, escaped;
        struct spec spec;
        if (!eval_step(e, 1) || !percent_operand(e, format, &i, operand, &next, &v) ||
            !percent_spec(e, format, &i, &spec))
            return false;
        if (format->flag && !(v.kind == V_STRING && v.flag) && spec.type == 's') {
            if (!to_text(e, &v, &escaped) || !escape_html(e, &escaped, &v))
                return false;
        }
        if (!percent_one(e, out, &v, &spec))
            return false;
        if (out->len > EVAL_MAX_TEXT)
            break; /* take_text refuses it */
    }
    /* Python lets what has subscripts stay unused: it might have been a mapping. */
    bool may_stay = operand->kind == V_DICT || operand->kind == V_LIST ||
                    operand->kind == V_UNDEFINED || operand->kind == V_RANGE;
    size_t n = operand->kind == V_TUPLE ? operand->list->n : may_stay ? 0 : 1;
    if (next != SIZE_MAX && next < n)
        return eval_fail(e, ERROR_INVALID, "there are more values than '%%' in the format");
    return true;
}

bool format_percent(struct eval *e, const struct value *format, const struct value *operand,
                    struct value *out)
{
    struct str built = {0};
    uint8_t safe = format->flag;
    if (!percent_all(e, &built, format, operand)) {
        str_done(&built);
        return false;
    }
    if (!take_text(e, &built, out))
        return false;
    out->flag = safe;
    return true;
}

/* ---- str.format ---- */

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool brace_spec(struct eval *e, const struct value *text, struct spec *spec)
{
    size_t at = 0, bytes = 0;
    *spec = (struct spec){.fill = " ", .fill_len = 1, .precision = -1};
    if (text->len)
        text_decode(text->text, text->len, &bytes);
    if (bytes && is_align(char_at(text, bytes))) {
        spec->fill = text->text;
        spec->fill_len = bytes;
        spec->align = char_at(text, bytes);
        at = bytes + 1;
    } else if (is_align(char_at(text, 0))) {
        spec->align = char_at(text, at++);
    }
    if (char_at(text, at) == '+' || char_at(text, at) == ' ' || char_at(text, at) == '-') {
        spec->sign = char_at(text, at) == '-' ? '\0' : char_at(text, at);
        at++;
    }
    if (char_at(text, at) == '#') {
        spec->alternate = true;
        at++;
    }
    if (char_at(text, at) == '0') {
        at++;
        if (!spec->align) {
            spec->fill = "0";
            spec->align = '=';
        }
    }
    if (!take_number(e, text, &at, MAX_WIDTH, &spec->width))
        return false;
    if (char_at(text, at) == ',') {
        spec->comma = true;
        at++;
    }
    if (char_at(text, at) == '.') {
        at++;
        if (!take_number(e, text, &at, MAX_PRECISION, &spec->precision))
            return false;
    }
    spec->type = char_at(text, at);
    at += spec->type != '\0';
    return at == text->len || eval_fail(e, ERROR_UNSUPPORTED, "the format ':%.*s' is not known",
                                        (int)text->len, text->text);
}

static bool brace_one(struct eval *e, struct str *out, const struct value *v,
                      const struct value *spec_text, char conversion)
{
    struct spec spec;
    if (!brace_spec(e, spec_text, &spec))
        return false;
    bool is_number = !conversion && (v->kind == V_INT || v->kind == V_FLOAT || v->kind == V_BOOL);
    if (is_number && spec.type && spec.type != 's')
        return format_number(e, out, v, &spec);
    if (is_number && v->kind == V_INT)
        return format_number(e, out, v, &spec);
    if (v->kind == V_FLOAT && is_number && spec.precision >= 0) {
        spec.type = 'g';
        return format_number(e, out, v, &spec);
    }
    if (spec.type && spec.type != 's')
        return eval_fail(e, ERROR_INVALID, "the format '%c' does not work on a %s", spec.type,
                         value_type(v));
    return format_text(e, out, v, &spec, conversion == 'r' || conversion == 'a',
                       v->kind == V_FLOAT && is_number ? '>' : '<');
}

/* "{0.name[key]}" up to ':' or '!': the value that the field names. */
static bool brace_field(struct eval *e, const struct value *field, const struct args *args,
                        size_t *next, struct value *out)
{
    size_t end = 0;
    while (end < field->len && field->text[end] != '.' && field->text[end] != '[')
        end++;
    struct value name = value_text(field->text, end), rest = {0};
    int64_t index = -1;
    if (name.len == 0)
        index = (int64_t)(*next)++;
    else if (name.text[0] >= '0' && name.text[0] <= '9' && name.len < 10)
        index = value_from_digits(name.text, name.len).integer;
    if (index >= 0) {
        if ((uint64_t)index + 1 >= args->n)
            return eval_fail(e, ERROR_INVALID, "format has no argument %lld", (long long)index);
        *out = args->items[index + 1];
    } else {
        size_t k = 0;
        while (k < args->n_named && !(args->named[k].name.len == name.len &&
                                      memcmp(args->named[k].name.text, name.text, name.len) == 0))
            k++;
        if (k == args->n_named)
            return eval_fail(e, ERROR_INVALID, "format has no argument '%.*s'", (int)name.len,
                             name.text);
        *out = args->named[k].value;
    }
    if (end == field->len)
        return true;
    rest = value_text(field->text + end + 1, field->len - end - 1);
    if (field->text[end] == '[') {
        if (rest.len == 0 || rest.text[rest.len - 1] != ']')
            return eval_fail(e, ERROR_INVALID, "a '[' in a format is not closed");
        rest.len--;
    }
    struct value of = *out;
    return get_path(e, &of, &rest, NULL, out);
}

static bool braces_all(struct eval *e, struct str *out, const struct value *format,
                       const struct args *args)
{
    size_t next = 0;
    for (size_t i = 0; i < format->len;) {
        char c = format->text[i];
        if ((c == '{' || c == '}') && char_at(format, i + 1) == c) {
            str_append_char(out, c);
            i += 2;
            continue;
        }
        if (c != '{') {
            if (c == '}')
                return eval_fail(e, ERROR_INVALID, "a single '}' in a format");
            str_append_char(out, c);
            i++;
            continue;
        }
        const char *begin = format->text + i + 1;
        const char *end = memchr(begin, '}', format->len - i - 1);
        if (!end || memchr(begin, '{', (size_t)(end - begin)))
            return eval_fail(e, ERROR_UNSUPPORTED, "a '{' in a format is not closed or nested");
        struct value field = value_text(begin, (size_t)(end - begin)), spec = value_text("", 0), v;
        char conversion = '\0';
        const char *colon = memchr(field.text, ':', field.len);
        if (colon) {
            spec = value_text(colon + 1, (size_t)(end - colon - 1));
            field.len = (uint32_t)(colon - begin);
        }
        if (field.len >= 2 && field.text[field.len - 2] == '!') {
            conversion = field.text[field.len - 1];
            field.len -= 2;
        }
        if (!eval_step(e, 1) || !brace_field(e, &field, args, &next, &v) ||
            !brace_one(e, out, &v, &spec, conversion))
            return false;
        i = (size_t)(end - format->text) + 1;
        if (out->len > EVAL_MAX_TEXT)
            break; /* take_text refuses it */
    }
    return true;
}

bool format_braces(struct eval *e, const struct value *format, const struct args *args,
                   struct value *out)
{
    struct str built = {0};
    if (!braces_all(e, &built, format, args)) {
        str_done(&built);
        return false;
    }
    return take_text(e, &built, out);
}
