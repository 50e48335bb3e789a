/* Values as text: str(), repr() and json.dumps(), as Python writes them; and small helpers that the
 * functions share. */
#include "template/eval.h"
#include "template/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool check_text(struct eval *e, const struct str *out)
{
    if (out->failed)
        return eval_fail_memory(e);
    return out->len <= EVAL_MAX_TEXT ||
           eval_fail(e, ERROR_LIMIT, "a string is longer than its limit of %d MiB",
                     EVAL_MAX_TEXT >> 20);
}

/* The shortest digits that read back as the same double, laid out by Python's rules: an exponent
 * below -4 or from 16 on, else plain with at least one decimal. */
void write_float(struct str *out, double f)
{
    char digits[40], *exponent;
    if (isnan(f) || isinf(f)) {
        str_append_z(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f)
            break;
    }
    exponent = strchr(digits, 'e');
    long power = strtol(exponent + 1, NULL, 10);
    *exponent = '\0';
    if (power < -4 || power >= 16) {
        str_printf(out, "%se%c%02ld", digits, power < 0 ? '-' : '+', labs(power));
        return;
    }
    long decimals = (long)strlen(strchr(digits, '.') ? strchr(digits, '.') + 1 : "") - power;
    str_printf(out, "%.*f", decimals > 1 ? (int)decimals : 1, f);
}

static void write_text_repr(struct str *out, const char *text, size_t n)
{
    char quote = memchr(text, '\'', n) && !memchr(text, '"', n) ? '"' : '\'';
    str_append_char(out, quote);
    for (size_t i = 0, bytes; i < n; i += bytes) {
        uint32_t c = text_decode(text + i, n - i, &bytes);
        if (c == (uint32_t)quote || c == '\\')
            str_printf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            str_printf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (text_is_printable(c))
            str_append(out, text + i, bytes);
        else if (c < 0x100)
            str_printf(out, "\\x%02x", (unsigned)c);
        else
            str_printf(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
    str_append_char(out, quote);
}

static bool repr_at(struct eval *e, struct str *out, const struct value *v, int depth);

static bool repr_items(struct eval *e, struct str *out, const struct value *v, const char *open,
                       const char *close, int depth)
{
    struct iterator it;
    struct value item;
    int got;
    bool any = false;
    str_append_z(out, open);
    iterator_init(&it, v);
    while ((got = iterator_next(&e->arena, &it, &item)) == 1) {
        if (any)
            str_append(out, ", ", 2);
        any = true;
        if (!repr_at(e, out, &item, depth + 1))
            return false;
    }
    if (got < 0)
        return eval_fail_memory(e);
    if (v->kind == V_TUPLE && v->list->n == 1)
        str_append_char(out, ',');
    str_append_z(out, close);
    return true;
}

static bool repr_dict(struct eval *e, struct str *out, const struct dict *dict, int depth)
{
    str_append_char(out, '{');
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            str_append(out, ", ", 2);
        if (!repr_at(e, out, &dict->pairs[i].key, depth + 1))
            return false;
        str_append(out, ": ", 2);
        if (!repr_at(e, out, &dict->pairs[i].value, depth + 1))
            return false;
    }
    str_append_char(out, '}');
    return true;
}

static bool repr_at(struct eval *e, struct str *out, const struct value *v, int depth)
{
    static const char *const views[] = {"dict_keys([", "dict_values([", "dict_items(["};
    if (depth > EVAL_MAX_NESTING)
        return eval_fail(e, ERROR_LIMIT, "values nested more than %d deep are printed",
                         EVAL_MAX_NESTING);
    if (!eval_step(e, 1) || !check_text(e, out))
        return false;
    switch ((enum value_kind)v->kind) {
    case V_UNDEFINED:
        str_append_z(out, "Undefined");
        return true;
    case V_STRING:
        if (v->flag)
            str_append_z(out, "Markup(");
        write_text_repr(out, v->text, v->len);
        if (v->flag)
            str_append_char(out, ')');
        return eval_step(e, v->len / 64);
    case V_LIST:
        return repr_items(e, out, v, "[", "]", depth);
    case V_TUPLE:
        return repr_items(e, out, v, "(", ")", depth);
    case V_VIEW:
        return repr_items(e, out, v, views[v->flag], "])", depth);
    case V_DICT:
        return repr_dict(e, out, v->dict, depth);
    case V_NAMESPACE:
        str_append_z(out, "<Namespace ");
        if (!repr_dict(e, out, v->dict, depth))
            return false;
        str_append_char(out, '>');
        return true;
    case V_RANGE:
        str_printf(out, "range(%lld, %lld", (long long)v->range->start, (long long)v->range->stop);
        if (v->range->step != 1)
            str_printf(out, ", %lld", (long long)v->range->step);
        str_append_char(out, ')');
        return true;
    default:
        return write_value(e, out, v);
    }
}

bool write_repr(struct eval *e, struct str *out, const struct value *v)
{
    return repr_at(e, out, v, 0) && check_text(e, out);
}

bool write_value(struct eval *e, struct str *out, const struct value *v)
{
    switch ((enum value_kind)v->kind) {
    case V_MISSING:
    case V_UNDEFINED:
        break;
    case V_NONE:
        str_append_z(out, "None");
        break;
    case V_BOOL:
        str_append_z(out, v->boolean ? "True" : "False");
        break;
    case V_INT:
        str_printf(out, "%lld", (long long)v->integer);
        break;
    case V_FLOAT:
        write_float(out, v->number);
        break;
    case V_STRING:
    case V_BIG:
        str_append(out, v->text, v->len);
        return check_text(e, out) && eval_step(e, v->len / 64);
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_NAMESPACE:
        return write_repr(e, out, v);
    case V_MACRO:
        str_append_z(out, "<Macro ");
        write_text_repr(out, v->macro->definition->value.text, v->macro->definition->value.len);
        str_append_char(out, '>');
        break;
    case V_LOOP:
    case V_STREAM:
    case V_BUILTIN:
    case V_METHOD:
    case V_JOINER:
        /* Python would print an address here. */
        str_printf(out, "<%s object>", value_type(v));
        break;
    }
    return check_text(e, out);
}

/* ---- JSON ---- */

static void write_json_ascii(struct str *out, const char *text, size_t n)
{
    str_append_char(out, '"');
    for (size_t i = 0, bytes; i < n; i += bytes) {
        uint32_t c = text_decode(text + i, n - i, &bytes);
        if (c >= 0x10000) {
            str_printf(out, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                       (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
        } else if (c >= 0x7F) {
            str_printf(out, "\\u%04x", (unsigned)c);
        } else {
            struct str one = {0};
            json_write_string(&one, text + i, 1);
            str_append(out, str_z(&one) + 1, one.len >= 2 ? one.len - 2 : 0);
            str_done(&one);
        }
    }
    str_append_char(out, '"');
}

static void write_json_text(struct str *out, const struct value *v, const struct json_style *style)
{
    if (style->ascii)
        write_json_ascii(out, v->text, v->len);
    else
        json_write_string(out, v->text, v->len);
}

static void json_line(struct str *out, const struct json_style *style, int depth)
{
    if (!style->indent)
        return;
    str_append_char(out, '\n');
    for (int i = 0; i < depth; i++)
        str_append(out, style->indent, style->indent_len);
}

static bool json_at(struct eval *e, struct str *out, const struct value *v,
                    const struct json_style *style, int depth);

static void json_float(struct str *out, double f)
{
    if (isnan(f) || isinf(f))
        str_append_z(out, isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
    else
        write_float(out, f);
}

static bool json_key(struct eval *e, struct str *out, const struct value *key,
                     const struct json_style *style)
{
    switch ((enum value_kind)key->kind) {
    case V_STRING:
        write_json_text(out, key, style);
        return true;
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        str_append_char(out, '"');
        if (!json_at(e, out, key, style, 0))
            return false;
        str_append_char(out, '"');
        return true;
    default:
        return eval_fail(e, ERROR_INVALID, "tojson: a %s cannot be a key in JSON", value_type(key));
    }
}

static int compare_pairs(const void *x, const void *y)
{
    const struct value *a = &((const struct pair *)x)->key, *b = &((const struct pair *)y)->key;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->text, b->text, n);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

static bool sorted_pairs(struct eval *e, const struct dict *dict, const struct pair **out)
{
    struct pair *pairs = arena_alloc_array(&e->arena, dict->n, sizeof *pairs);
    if (!pairs)
        return eval_fail_memory(e);
    for (size_t i = 0; i < dict->n; i++) {
        if (dict->pairs[i].key.kind != V_STRING)
            return eval_fail(e, ERROR_UNSUPPORTED, "tojson sorts keys only if all are strings");
        pairs[i] = dict->pairs[i];
    }
    if (dict->n)
        qsort(pairs, dict->n, sizeof *pairs, compare_pairs);
    *out = pairs;
    return true;
}

static bool json_dict(struct eval *e, struct str *out, const struct dict *dict,
                      const struct json_style *style, int depth)
{
    const struct pair *pairs = dict->pairs;
    if (style->sort_keys && !sorted_pairs(e, dict, &pairs))
        return false;
    str_append_char(out, '{');
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            str_append(out, style->item_separator.text, style->item_separator.len);
        json_line(out, style, depth + 1);
        if (!json_key(e, out, &pairs[i].key, style))
            return false;
        str_append(out, style->key_separator.text, style->key_separator.len);
        if (!json_at(e, out, &pairs[i].value, style, depth + 1))
            return false;
    }
    if (dict->n)
        json_line(out, style, depth);
    str_append_char(out, '}');
    return true;
}

static bool json_list(struct eval *e, struct str *out, const struct list *list,
                      const struct json_style *style, int depth)
{
    str_append_char(out, '[');
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            str_append(out, style->item_separator.text, style->item_separator.len);
        json_line(out, style, depth + 1);
        if (!json_at(e, out, &list->items[i], style, depth + 1))
            return false;
    }
    if (list->n)
        json_line(out, style, depth);
    str_append_char(out, ']');
    return true;
}

static bool json_at(struct eval *e, struct str *out, const struct value *v,
                    const struct json_style *style, int depth)
{
    if (depth > EVAL_MAX_NESTING)
        return eval_fail(e, ERROR_LIMIT, "tojson: values are nested more than %d deep",
                         EVAL_MAX_NESTING);
    if (!eval_step(e, 1) || !check_text(e, out))
        return false;
    switch ((enum value_kind)v->kind) {
    case V_NONE:
        str_append_z(out, "null");
        return true;
    case V_BOOL:
        str_append_z(out, v->boolean ? "true" : "false");
        return true;
    case V_FLOAT:
        json_float(out, v->number);
        return true;
    case V_INT:
    case V_BIG:
        return write_value(e, out, v);
    case V_STRING:
        write_json_text(out, v, style);
        return eval_step(e, v->len / 64);
    case V_LIST:
    case V_TUPLE:
        return json_list(e, out, v->list, style, depth);
    case V_DICT:
        return json_dict(e, out, v->dict, style, depth);
    case V_UNDEFINED:
        return eval_fail_undefined(e, v);
    default:
        return eval_fail(e, ERROR_INVALID, "tojson: a value of type %s has no form in JSON",
                         value_type(v));
    }
}

bool write_json(struct eval *e, struct str *out, const struct value *v,
                const struct json_style *style)
{
    return json_at(e, out, v, style, 0) && check_text(e, out);
}

/* ---- helpers ---- */

bool take_text(struct eval *e, struct str *built, struct value *out)
{
    bool ok = check_text(e, built) && eval_step(e, built->len / 64);
    if (ok) {
        char *copy = arena_copy(&e->arena, str_z(built), built->len);
        ok = copy || eval_fail_memory(e);
        *out = value_text(copy, built->len);
    }
    str_done(built);
    return ok;
}

bool to_text(struct eval *e, const struct value *v, struct value *out)
{
    if (v->kind == V_STRING) {
        *out = *v;
        return true;
    }
    struct str built = {0};
    if (!write_value(e, &built, v)) {
        str_done(&built);
        return false;
    }
    return take_text(e, &built, out);
}

bool to_list(struct eval *e, const struct value *v, struct list **out)
{
    struct iterator it;
    struct value item;
    int got;
    if (!iterator_init(&it, v))
        return eval_fail(e, ERROR_INVALID, "a value of type %s cannot be iterated", value_type(v));
    struct list *list = list_new(&e->arena, 8);
    if (!list)
        return eval_fail_memory(e);
    while ((got = iterator_next(&e->arena, &it, &item)) == 1)
        if (!eval_step(e, 1) || !push(e, list, item))
            return false;
    *out = list;
    return got == 0 || eval_fail_memory(e);
}

struct value list_value(struct list *list)
{
    return (struct value){.kind = V_LIST, .list = list};
}

bool stream_value(struct eval *e, struct list *list, struct value *out)
{
    struct stream *stream = arena_alloc(&e->arena, sizeof *stream);
    if (!stream)
        return eval_fail_memory(e);
    stream->list = list;
    *out = (struct value){.kind = V_STREAM, .stream = stream};
    return true;
}

bool push(struct eval *e, struct list *list, struct value v)
{
    return list_push(&e->arena, list, v) || eval_fail_memory(e);
}

bool put(struct eval *e, struct dict *dict, struct value key, struct value v)
{
    if (!value_hashable(&key))
        return eval_fail(e, ERROR_INVALID, "a %s cannot be the key of a dict", value_type(&key));
    return dict_put(&e->arena, dict, key, v) || eval_fail_memory(e);
}

bool escape_html(struct eval *e, const struct value *text, struct value *out)
{
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct str built = {0};
    for (size_t i = 0; i < text->len; i++) {
        const char *found = text->text[i] ? strchr(special, text->text[i]) : NULL;
        if (found)
            str_append_z(&built, entities[found - special]);
        else
            str_append_char(&built, text->text[i]);
    }
    if (!take_text(e, &built, out))
        return false;
    out->flag = 1;
    return true;
}

bool args_take(struct eval *e, const struct args *args, const char *what, const char *const *names,
               size_t required, size_t n, const struct value **out)
{
    if (args->n > n)
        return eval_fail(e, ERROR_INVALID, "%s takes at most %zu arguments, not %zu", what, n,
                         args->n);
    for (size_t i = 0; i < n; i++)
        out[i] = i < args->n ? &args->items[i] : NULL;
    for (size_t k = 0; k < args->n_named; k++) {
        const struct named *named = &args->named[k];
        size_t i = 0;
        while (i < n && !value_is_text(&named->name, names[i]))
            i++;
        if (i == n || out[i])
            return eval_fail(e, ERROR_INVALID, "%s %s the argument '%.*s'", what,
                             i == n ? "does not know" : "is given twice", (int)named->name.len,
                             named->name.text);
        out[i] = &named->value;
    }
    for (size_t i = 0; i < required; i++)
        if (!out[i])
            return eval_fail(e, ERROR_INVALID, "%s needs the argument '%s'", what, names[i]);
    return true;
}

bool arg_int(struct eval *e, const struct value *v, const char *what, int64_t otherwise,
             int64_t *out)
{
    *out = otherwise;
    if (!v || value_integer(v, out))
        return true;
    if (v->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v);
    return eval_fail(e, ERROR_INVALID, "%s needs an integer, not a %s", what, value_type(v));
}

bool arg_text(struct eval *e, const struct value *v, const char *what, const char *otherwise,
              struct value *out)
{
    if (!v) {
        *out = value_z(otherwise);
        return true;
    }
    *out = *v;
    if (v->kind == V_STRING)
        return true;
    if (v->kind == V_UNDEFINED)
        return eval_fail_undefined(e, v);
    return eval_fail(e, ERROR_INVALID, "%s needs a string, not a %s", what, value_type(v));
}
