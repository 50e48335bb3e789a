/* Filters whose result is a string or a number. items[0] is what stands left of the bar. */
#include "template/strings.h"
#include "template/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Filters without arguments. */
static bool only_value(struct eval *e, const struct args *args, const char *what)
{
    static const char *const names[] = {"value"};
    const struct value *v[1];
    return args_take(e, args, what, names, 1, 1, v);
}

static bool change(struct eval *e, const struct args *args, const char *what, enum case_change c,
                   struct value *out)
{
    struct value text;
    return only_value(e, args, what) && to_text(e, &args->items[0], &text) &&
           string_change_case(e, &text, c, out);
}

static bool filter_upper(struct eval *e, const struct args *args, struct value *out)
{
    return change(e, args, "upper", CASE_UPPER, out);
}

static bool filter_lower(struct eval *e, const struct args *args, struct value *out)
{
    return change(e, args, "lower", CASE_LOWER, out);
}

static bool filter_capitalize(struct eval *e, const struct args *args, struct value *out)
{
    return change(e, args, "capitalize", CASE_CAPITALIZE, out);
}

/* Unlike str.title, words end at white space, '-' and opening brackets only. */
static bool filter_title(struct eval *e, const struct args *args, struct value *out)
{
    struct value text;
    struct str built = {0};
    if (!only_value(e, args, "title") || !to_text(e, &args->items[0], &text))
        return false;
    bool begins = true;
    for (size_t i = 0, bytes; i < text.len; i += bytes) {
        uint32_t c = text_decode(text.text + i, text.len - i, &bytes);
        if (begins)
            text_append_upper(&built, c);
        else
            str_append_utf8(&built, text_lower(c));
        begins = text_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
    }
    return take_text(e, &built, out);
}

static bool filter_trim(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "chars"};
    const struct value *v[2];
    struct value text, chars;
    if (!args_take(e, args, "trim", names, 1, 2, v) || !to_text(e, v[0], &text))
        return false;
    bool by_chars = v[1] && v[1]->kind != V_NONE;
    return arg_text(e, by_chars ? v[1] : NULL, "trim", "", &chars) &&
           string_strip(e, &text, by_chars ? &chars : NULL, true, true, out);
}

static bool filter_string(struct eval *e, const struct args *args, struct value *out)
{
    return only_value(e, args, "string") && to_text(e, &args->items[0], out);
}

static bool filter_safe(struct eval *e, const struct args *args, struct value *out)
{
    if (!filter_string(e, args, out))
        return false;
    out->flag = 1;
    return true;
}

static bool filter_forceescape(struct eval *e, const struct args *args, struct value *out)
{
    struct value text;
    return only_value(e, args, "escape") && to_text(e, &args->items[0], &text) &&
           escape_html(e, &text, out);
}

static bool filter_escape(struct eval *e, const struct args *args, struct value *out)
{
    if (args->items[0].kind == V_STRING && args->items[0].flag) {
        *out = args->items[0];
        return only_value(e, args, "escape");
    }
    return filter_forceescape(e, args, out);
}

static bool filter_replace(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"s", "old", "new", "count"};
    const struct value *v[4];
    struct value text[3];
    int64_t count;
    if (!args_take(e, args, "replace", names, 3, 4, v))
        return false;
    for (int i = 0; i < 3; i++) {
        if (!to_text(e, v[i], &text[i]))
            return false;
        text[i].flag = 0;
    }
    return arg_int(e, v[3] && v[3]->kind != V_NONE ? v[3] : NULL, "replace", -1, &count) &&
           string_replace(e, &text[0], &text[1], &text[2], count, out);
}

static bool filter_center(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "width"};
    const struct value *v[2];
    struct value text;
    int64_t width;
    return args_take(e, args, "center", names, 1, 2, v) && to_text(e, v[0], &text) &&
           arg_int(e, v[1], "center", 80, &width) &&
           string_justify(e, &text, width, NULL, '^', out);
}

static bool filter_default(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "default_value", "boolean"};
    const struct value *v[3];
    if (!args_take(e, args, "default", names, 1, 3, v))
        return false;
    bool replace = v[0]->kind == V_UNDEFINED || (v[2] && value_truth(v[2]) && !value_truth(v[0]));
    *out = !replace ? *v[0] : v[1] ? *v[1] : value_text("", 0);
    return true;
}

static bool filter_indent(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"s", "width", "first", "blank"};
    const struct value *v[4];
    struct value text, width;
    struct list *lines;
    int64_t spaces = 4;
    if (!args_take(e, args, "indent", names, 1, 4, v) || !arg_text(e, v[0], "indent", "", &text))
        return false;
    if (!v[1] || v[1]->kind != V_STRING) {
        struct value blank = value_text(" ", 1), n;
        if (!arg_int(e, v[1], "indent", 4, &spaces))
            return false;
        n = value_int(spaces);
        if (!operate(e, '*', &blank, &n, &width))
            return false;
    } else {
        width = *v[1];
    }
    bool first = v[2] && value_truth(v[2]), blank = v[3] && value_truth(v[3]);
    if (!string_lines(e, &text, false, &lines))
        return false;
    /* A newline at the end makes one more, empty, line; so does the empty string. */
    size_t last = text.len ? text_last(text.text, text.len) : 0, bytes;
    if (!last || text_is_line_end(text_decode(text.text + text.len - last, last, &bytes)))
        if (!push(e, lines, value_text("", 0)))
            return false;
    struct str built = {0};
    for (size_t i = 0; i < lines->n && built.len <= EVAL_MAX_TEXT; i++) {
        const struct value *line = &lines->items[i];
        if (i)
            str_append_char(&built, '\n');
        if (i ? blank || line->len : first)
            str_append(&built, width.text, width.len);
        str_append(&built, line->text, line->len);
    }
    return take_text(e, &built, out);
}

static bool filter_truncate(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"s", "length", "killwords", "end", "leeway"};
    const struct value *v[5];
    struct value text, end;
    int64_t length, leeway;
    if (!args_take(e, args, "truncate", names, 1, 5, v) ||
        !arg_text(e, v[0], "truncate", "", &text) || !arg_int(e, v[1], "truncate", 255, &length) ||
        !arg_text(e, v[3], "truncate", "...", &end) ||
        !arg_int(e, v[4] && v[4]->kind != V_NONE ? v[4] : NULL, "truncate", 5, &leeway))
        return false;
    int64_t end_count = (int64_t)text_count(end.text, end.len);
    if (length < end_count || leeway < 0)
        return eval_fail(e, ERROR_INVALID, "truncate: the length is shorter than the end mark");
    *out = text;
    if ((int64_t)text_count(text.text, text.len) - leeway <= length)
        return true;
    size_t cut = text_offset(text.text, text.len, (size_t)(length - end_count));
    if (!(v[2] && value_truth(v[2]))) {
        size_t space = cut;
        while (space > 0 && text.text[space - 1] != ' ')
            space--;
        cut = space ? space - 1 : cut;
    }
    struct value kept = value_text(text.text, cut);
    return concatenate(e, &kept, &end, out);
}

static bool filter_wordcount(struct eval *e, const struct args *args, struct value *out)
{
    struct value text;
    int64_t n = 0;
    bool in_word = false;
    if (!only_value(e, args, "wordcount") || !to_text(e, &args->items[0], &text))
        return false;
    for (size_t i = 0, bytes; i < text.len; i += bytes) {
        uint32_t c = text_decode(text.text + i, text.len - i, &bytes);
        bool word = c == '_' || text_is_alpha(c) || text_is_digit(c);
        n += word && !in_word;
        in_word = word;
    }
    *out = value_int(n);
    return eval_step(e, text.len / 64);
}

static bool filter_int(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "default", "base"};
    const struct value *v[3];
    int64_t base, i;
    double f;
    if (!args_take(e, args, "int", names, 1, 3, v) || !arg_int(e, v[2], "int", 10, &base))
        return false;
    if (v[0]->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v[0]);
    if (value_integer(v[0], &i)) {
        *out = value_int(i);
        return true;
    }
    if (v[0]->kind == V_BIG) {
        *out = *v[0];
        return true;
    }
    bool is_text = v[0]->kind == V_STRING;
    if (is_text && string_to_integer(e, v[0], base > 36 || base < 0 ? 1 : (int)base, out))
        return true;
    if (value_number(v[0], &f) || (is_text && string_to_float(e, v[0], &f))) {
        if (isinf(f))
            return eval_fail(e, ERROR_INVALID, "int: infinity is no integer");
        if (!isnan(f) && fabs(f) >= 9.2e18)
            return eval_fail(e, ERROR_UNSUPPORTED, "int: %g does not fit 64 bits", f);
        if (!isnan(f)) {
            *out = value_int((int64_t)f);
            return true;
        }
    }
    *out = v[1] ? *v[1] : value_int(0);
    return true;
}

static bool filter_float(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "default"};
    const struct value *v[2];
    double f;
    if (!args_take(e, args, "float", names, 1, 2, v))
        return false;
    if (v[0]->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v[0]);
    if (value_number(v[0], &f) ||
        ((v[0]->kind == V_STRING || v[0]->kind == V_BIG) && string_to_float(e, v[0], &f)))
        *out = value_float(f);
    else
        *out = v[1] ? *v[1] : value_float(0);
    return true;
}

static bool filter_abs(struct eval *e, const struct args *args, struct value *out)
{
    double f;
    int64_t i;
    if (!only_value(e, args, "abs"))
        return false;
    const struct value *v = &args->items[0];
    if (v->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v);
    if (!value_number(v, &f))
        return eval_fail(e, ERROR_INVALID, "abs does not work on a %s", value_type(v));
    if (value_integer(v, &i) && i >= 0) {
        *out = value_int(i);
        return true;
    }
    if (v->kind == V_INT)
        return operate_unary(e, '-', v, out);
    *out = value_float(fabs(f));
    return true;
}

/* Python's round(): half to even on the exact binary value. */
static double round_decimals(double f, int64_t precision)
{
    char text[400];
    if (!isfinite(f) || precision > 30)
        return f;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        return strtod(text, NULL);
    }
    double unit = pow(10.0, (double)-precision);
    return isinf(unit) ? copysign(0.0, f) : rint(f / unit) * unit;
}

static bool filter_round(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"value", "precision", "method"};
    const struct value *v[3];
    struct value method;
    int64_t precision, i;
    double f;
    if (!args_take(e, args, "round", names, 1, 3, v) || !arg_int(e, v[1], "round", 0, &precision) ||
        !arg_text(e, v[2], "round", "common", &method))
        return false;
    if (v[0]->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v[0]);
    if (!value_number(v[0], &f))
        return eval_fail(e, ERROR_INVALID, "round does not work on a %s", value_type(v[0]));
    double unit = pow(10.0, (double)precision);
    if (value_is_text(&method, "ceil")) {
        *out = value_float(ceil(f * unit) / unit);
    } else if (value_is_text(&method, "floor")) {
        *out = value_float(floor(f * unit) / unit);
    } else if (!value_is_text(&method, "common")) {
        return eval_fail(e, ERROR_INVALID, "round: the method must be common, ceil or floor");
    } else if (value_integer(v[0], &i)) {
        *out = precision >= 0 ? value_int(i) : value_int((int64_t)round_decimals(f, precision));
    } else {
        *out = value_float(round_decimals(f, precision));
    }
    return true;
}

static bool filter_format(struct eval *e, const struct args *args, struct value *out)
{
    struct value operand = {.kind = V_TUPLE}, text;
    if (!to_text(e, &args->items[0], &text))
        return false;
    if (args->n_named && args->n > 1)
        return eval_fail(e, ERROR_INVALID, "format takes positional or named arguments, not both");
    if (args->n_named) {
        operand = (struct value){.kind = V_DICT, .dict = dict_new(&e->arena)};
        if (!operand.dict)
            return eval_fail_memory(e);
        for (size_t i = 0; i < args->n_named; i++)
            if (!put(e, operand.dict, args->named[i].name, args->named[i].value))
                return false;
    } else {
        operand.list = list_new(&e->arena, args->n);
        if (!operand.list)
            return eval_fail_memory(e);
        for (size_t i = 1; i < args->n; i++)
            if (!push(e, operand.list, args->items[i]))
                return false;
    }
    return format_percent(e, &text, &operand, out);
}

static void url_quote(struct str *out, const struct value *text, bool in_query)
{
    for (size_t i = 0; i < text->len; i++) {
        unsigned char c = (unsigned char)text->text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !in_query);
        if (plain)
            str_append_char(out, (char)c);
        else if (c == ' ' && in_query)
            str_append_char(out, '+');
        else
            str_printf(out, "%%%02X", c);
    }
}

static bool url_pair(struct eval *e, struct str *out, const struct value *key,
                     const struct value *v)
{
    struct value text;
    if (!to_text(e, key, &text))
        return false;
    if (out->len)
        str_append_char(out, '&');
    url_quote(out, &text, true);
    if (!to_text(e, v, &text))
        return false;
    str_append_char(out, '=');
    url_quote(out, &text, true);
    return true;
}

static bool url_pairs(struct eval *e, struct str *out, const struct value *of)
{
    struct list *list;
    if (of->kind == V_DICT) {
        for (size_t i = 0; i < of->dict->n; i++)
            if (!url_pair(e, out, &of->dict->pairs[i].key, &of->dict->pairs[i].value))
                return false;
        return true;
    }
    if (!to_list(e, of, &list))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        const struct value *pair = &list->items[i];
        if ((pair->kind != V_TUPLE && pair->kind != V_LIST) || pair->list->n != 2)
            return eval_fail(e, ERROR_INVALID, "urlencode needs pairs");
        if (!url_pair(e, out, &pair->list->items[0], &pair->list->items[1]))
            return false;
    }
    return true;
}

static bool filter_urlencode(struct eval *e, const struct args *args, struct value *out)
{
    struct str built = {0};
    struct value text;
    if (!only_value(e, args, "urlencode"))
        return false;
    const struct value *v = &args->items[0];
    bool pairs = v->kind == V_DICT || v->kind == V_LIST || v->kind == V_TUPLE ||
                 v->kind == V_VIEW || v->kind == V_STREAM;
    if (pairs ? !url_pairs(e, &built, v) : !to_text(e, v, &text)) {
        str_done(&built);
        return false;
    }
    if (!pairs)
        url_quote(&built, &text, false);
    return take_text(e, &built, out);
}

/* json.dumps with Hugging Face's defaults: characters as they are, nothing escaped for HTML. */
static bool filter_tojson(struct eval *e, const struct args *args, struct value *out)
{
    static const char *const names[] = {"x", "ensure_ascii", "indent", "separators", "sort_keys"};
    const struct value *v[5];
    if (!args_take(e, args, "tojson", names, 1, 5, v))
        return false;
    struct json_style style = {.ascii = v[1] && value_truth(v[1]),
                               .sort_keys = v[4] && value_truth(v[4]),
                               .item_separator = value_z(", "),
                               .key_separator = value_z(": ")};
    struct value indent, blank = value_text(" ", 1);
    if (v[2] && v[2]->kind != V_NONE) {
        style.item_separator = value_z(",");
        if (v[2]->kind == V_STRING)
            indent = *v[2];
        else if (!operate(e, '*', &blank, v[2], &indent))
            return false;
        if (indent.len > 64)
            return eval_fail(e, ERROR_LIMIT, "tojson indents by at most 64 characters");
        style.indent = indent.text;
        style.indent_len = indent.len;
    }
    if (v[3] && v[3]->kind != V_NONE) {
        if ((v[3]->kind != V_TUPLE && v[3]->kind != V_LIST) || v[3]->list->n != 2 ||
            v[3]->list->items[0].kind != V_STRING || v[3]->list->items[1].kind != V_STRING)
            return eval_fail(e, ERROR_INVALID, "tojson: separators must be two strings");
        style.item_separator = v[3]->list->items[0];
        style.key_separator = v[3]->list->items[1];
    }
    struct str built = {0};
    if (!write_json(e, &built, v[0], &style)) {
        str_done(&built);
        return false;
    }
    return take_text(e, &built, out);
}

const struct builtin text_filters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
    {NULL, NULL},
};
