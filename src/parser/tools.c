#include "parser/tools.h"

#include "parser/emitter.h"
#include "parser/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Digits of a number that are looked at; longer ones are text. */
enum { MAX_DIGITS = 400 };

const struct json *tool_find(const struct json *tools, const char *name, size_t len)
{
    for (size_t i = 0; tools && i < tools->n; i++) {
        const struct json *function = json_get(&tools->items[i], "function");
        if (!function)
            function = &tools->items[i];
        const struct json *its_name = json_get(function, "name");
        if (json_string(its_name) && its_name->n == len && memcmp(its_name->text, name, len) == 0)
            return function;
    }
    return NULL;
}

const struct json *tool_param(const struct json *function, const char *key, size_t len,
                              bool *is_declared)
{
    const struct json *properties = json_get(json_get(function, "parameters"), "properties");
    *is_declared = properties && properties->type == JT_OBJECT;
    for (size_t i = 0; *is_declared && i < properties->n; i++) {
        const struct json_member *m = &properties->members[i];
        if (m->key_len == len && memcmp(m->key, key, len) == 0)
            return &m->value;
    }
    return NULL;
}

static void add_type(enum param_type *types, int *n, enum param_type type)
{
    if (*n < TOOL_MAX_TYPES)
        types[(*n)++] = type;
}

static void add_named(enum param_type *types, int *n, const char *name)
{
    static const struct {
        const char *prefix;
        enum param_type type;
    } table[] = {{"str", PARAM_STRING},   {"text", PARAM_STRING},  {"varchar", PARAM_STRING},
                 {"char", PARAM_STRING},  {"enum", PARAM_STRING},  {"int", PARAM_INTEGER},
                 {"num", PARAM_NUMBER},   {"float", PARAM_NUMBER}, {"double", PARAM_NUMBER},
                 {"bool", PARAM_BOOLEAN}, {"null", PARAM_NULL},    {"obj", PARAM_OBJECT},
                 {"dict", PARAM_OBJECT},  {"arr", PARAM_ARRAY},    {"list", PARAM_ARRAY}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncasecmp(name, table[i].prefix, strlen(table[i].prefix)) == 0) {
            add_type(types, n, table[i].type);
            return;
        }
}

/* The schema's nesting is bounded by that of JSON. */
static void collect(const struct json *schema, enum param_type *types, int *n)
{
    const struct json *type = json_get(schema, "type");
    if (json_string(type))
        add_named(types, n, type->text);
    if (type && type->type == JT_ARRAY)
        for (size_t i = 0; i < type->n; i++)
            if (json_string(&type->items[i]))
                add_named(types, n, type->items[i].text);
    static const char *const unions[] = {"anyOf", "oneOf"};
    for (int u = 0; u < 2; u++) {
        const struct json *choices = json_get(schema, unions[u]);
        if (choices && choices->type == JT_ARRAY)
            for (size_t i = 0; i < choices->n && *n < TOOL_MAX_TYPES; i++)
                collect(&choices->items[i], types, n);
    }
    if (json_bool(json_get(schema, "nullable"), false))
        add_type(types, n, PARAM_NULL);
}

int tool_types(const struct json *schema, enum param_type types[TOOL_MAX_TYPES])
{
    int n = 0;
    collect(schema, types, &n);
    const struct json *values = json_get(schema, "enum");
    if (n == 0 && values && values->type == JT_ARRAY && values->n) {
        bool all = true;
        for (size_t i = 0; i < values->n; i++)
            all &= values->items[i].type == JT_STRING;
        if (all)
            add_type(types, &n, PARAM_STRING);
    }
    return n;
}

static void trim(const char **text, size_t *len)
{
    size_t skip = blank_prefix(*text, *len);
    *text += skip;
    *len -= skip;
    while (*len && is_blank((*text)[*len - 1]))
        (*len)--;
}

/* Copies digits and single underscores between them, without the underscores; returns the bytes
 * read. */
static size_t copy_digits(const char *text, size_t len, char *out, size_t *n)
{
    size_t i = 0;
    while (i < len) {
        bool is_digit = text[i] >= '0' && text[i] <= '9';
        if (is_digit)
            out[(*n)++] = text[i];
        else if (text[i] != '_' || !i || text[i - 1] == '_' || i + 1 >= len || text[i + 1] < '0' ||
                 text[i + 1] > '9')
            break;
        i++;
    }
    return i;
}

bool python_int(const char *raw, size_t len, struct str *out)
{
    char digits[MAX_DIGITS + 1];
    size_t n = 0;
    trim(&raw, &len);
    if (!len || len > MAX_DIGITS)
        return false;
    bool is_negative = *raw == '-';
    size_t at = *raw == '-' || *raw == '+';
    if (copy_digits(raw + at, len - at, digits, &n) != len - at || !n)
        return false;
    size_t zeros = 0;
    while (zeros + 1 < n && digits[zeros] == '0')
        zeros++;
    if (is_negative && digits[zeros] != '0')
        str_append_char(out, '-');
    str_append(out, digits + zeros, n - zeros);
    return true;
}

/* A double as the shortest of its decimal forms that reads back the same; it keeps a point. */
static void write_double(double value, struct str *out)
{
    char text[64];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    str_append_z(out, text);
    if (!strpbrk(text, ".e"))
        str_append(out, ".0", 2);
}

/* The characters of a decimal float, without Python's underscores, for strtod. */
static bool read_float(const char *raw, size_t len, double *value)
{
    char text[MAX_DIGITS + 1];
    size_t n = 0, n_digits = 0;
    trim(&raw, &len);
    if (!len || len > MAX_DIGITS)
        return false;
    size_t at = 0;
    if (raw[at] == '-' || raw[at] == '+')
        text[n++] = raw[at++];
    size_t before = n;
    at += copy_digits(raw + at, len - at, text, &n);
    n_digits += n - before;
    if (at < len && raw[at] == '.') {
        text[n++] = raw[at++];
        before = n;
        at += copy_digits(raw + at, len - at, text, &n);
        n_digits += n - before;
    }
    if (!n_digits)
        return false;
    if (at < len && (raw[at] | 32) == 'e') {
        text[n++] = raw[at++];
        if (at < len && (raw[at] == '-' || raw[at] == '+'))
            text[n++] = raw[at++];
        before = n;
        at += copy_digits(raw + at, len - at, text, &n);
        if (n == before)
            return false;
    }
    text[n] = '\0';
    *value = strtod(text, NULL);
    return at == len && isfinite(*value);
}

bool python_float(const char *raw, size_t len, struct str *out)
{
    double value;
    if (!read_float(raw, len, &value))
        return false;
    write_double(value, out);
    return true;
}

static bool is_word(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(text, word, len) == 0;
}

/* A number keeps its own digits where they are JSON; Python's other spellings are rewritten. */
static bool coerce_number(const char *raw, size_t len, struct str *out)
{
    double value;
    if (!read_float(raw, len, &value))
        return false;
    trim(&raw, &len);
    if (json_is_valid(raw, len))
        str_append(out, raw, len);
    else if (value == floor(value) && !memchr(raw, '.', len))
        str_printf(out, "%.0f", value);
    else
        write_double(value, out);
    return true;
}

static bool coerce_to(enum param_type type, const char *raw, size_t len, struct str *out)
{
    const char *text = raw;
    size_t n = len;
    trim(&text, &n);
    switch (type) {
    case PARAM_INTEGER:
        return python_int(raw, len, out);
    case PARAM_NUMBER:
        return coerce_number(raw, len, out);
    case PARAM_BOOLEAN:
        if (is_word(text, n, "true") || is_word(text, n, "1"))
            str_append_z(out, "true");
        else if (is_word(text, n, "false") || is_word(text, n, "0"))
            str_append_z(out, "false");
        else
            return false;
        return true;
    case PARAM_NULL:
        if (!(n == 4 && (memcmp(text, "null", 4) == 0 || memcmp(text, "None", 4) == 0)))
            return false;
        str_append_z(out, "null");
        return true;
    case PARAM_OBJECT:
    case PARAM_ARRAY:
        if (!n || *text != (type == PARAM_OBJECT ? '{' : '[') || !json_is_valid(text, n))
            return false;
        str_append(out, text, n);
        return true;
    case PARAM_STRING:
        break;
    }
    return false;
}

bool tool_coerce(const enum param_type *types, int n, const char *raw, size_t len, struct str *out)
{
    for (int i = 0; i < n; i++) {
        if (coerce_to(types[i], raw, len, out))
            return true;
    }
    return false;
}
