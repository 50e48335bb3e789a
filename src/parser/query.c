#include "parser/query.h"

#include "parser/tree.h"

#include <ctype.h>
#include <string.h>

enum { MAX_NESTING = 64 };

/* An expression is evaluated while it is read; on null input that is a check of its syntax. */
struct query {
    struct arena *arena;
    const char *start, *at;
    int nesting;
    enum status status;
    struct error *error;
};

static struct json expression(struct query *q, struct json input);

static const struct json nothing = {0};

static struct json fail(struct query *q, const char *what)
{
    if (q->status == OK)
        q->status = error_set(q->error, ERROR_UNSUPPORTED,
                              "response_schema: the transform \"%.100s\" is not understood at "
                              "byte %zu: %s",
                              q->start, (size_t)(q->at - q->start), what);
    return nothing;
}

static struct json full(struct query *q)
{
    if (q->status == OK)
        q->status = tree_full(q->arena, q->error);
    return nothing;
}

static bool accept(struct query *q, const char *token)
{
    while (isspace((unsigned char)*q->at))
        q->at++;
    if (strncmp(q->at, token, strlen(token)) != 0)
        return false;
    q->at += strlen(token);
    return true;
}

static bool is_name_start(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

/* An identifier, bare or in double quotes, as a string of the arena. */
static struct json identifier(struct query *q)
{
    accept(q, "");
    const char *from = q->at;
    if (*from == '"') {
        for (q->at++; *q->at && *q->at != '"'; q->at++)
            if (*q->at == '\\' && q->at[1])
                q->at++;
        struct json name;
        if (!accept(q, "\"") ||
            json_parse(q->arena, from, (size_t)(q->at - from), &name, NULL) != OK)
            return fail(q, "a quoted name is malformed");
        return name;
    }
    while (is_name_start(*q->at) || isdigit((unsigned char)*q->at))
        q->at++;
    if (q->at == from)
        return fail(q, "a name is missing");
    struct json name = tree_string(q->arena, from, (size_t)(q->at - from));
    return name.type == JT_STRING ? name : full(q);
}

static struct json member(const struct json *input, const struct json *name)
{
    const struct json *found =
        name->type == JT_STRING ? tree_get(input, name->text, name->n) : NULL;
    return found ? *found : nothing;
}

/* {key: expression, ...} behind the brace; null for null. */
static struct json multi_hash(struct query *q, struct json input)
{
    struct tree_object object = {0};
    do {
        struct json key = identifier(q);
        if (q->status != OK || !accept(q, ":"))
            return fail(q, "a key and a colon are expected");
        struct json value = expression(q, input);
        if (q->status != OK)
            return nothing;
        if (!tree_put(q->arena, &object, key.text, key.n, value))
            return full(q);
    } while (accept(q, ","));
    if (!accept(q, "}"))
        return fail(q, "a closing brace is missing");
    return input.type == JT_NULL ? nothing : tree_object_value(&object);
}

static struct json multi_list(struct query *q, struct json input)
{
    struct tree_array array = {0};
    do {
        struct json value = expression(q, input);
        if (q->status != OK)
            return nothing;
        if (!tree_add(q->arena, &array, value))
            return full(q);
    } while (accept(q, ","));
    if (!accept(q, "]"))
        return fail(q, "a closing bracket is missing");
    return input.type == JT_NULL ? nothing : tree_array_value(&array);
}

static struct json element(const struct json *input, long index)
{
    if (input->type != JT_ARRAY)
        return nothing;
    long n = (long)input->n;
    long i = index < 0 ? n + index : index;
    return i >= 0 && i < n ? input->items[i] : nothing;
}

static bool read_index(struct query *q, long *index)
{
    const char *at = q->at;
    bool is_negative = *at == '-';
    at += is_negative;
    if (!isdigit((unsigned char)*at))
        return false;
    long value = 0;
    while (isdigit((unsigned char)*at) && value < 1000000000)
        value = value * 10 + (*at++ - '0');
    *index = is_negative ? -value : value;
    q->at = at;
    return true;
}

static struct json chain(struct query *q, struct json input);

/* [] merges lists in a list. */
static struct json flatten(struct query *q, const struct json *input)
{
    struct tree_array array = {0};
    for (size_t i = 0; input->type == JT_ARRAY && i < input->n; i++) {
        const struct json *item = &input->items[i];
        size_t n = item->type == JT_ARRAY ? item->n : 1;
        for (size_t k = 0; k < n; k++)
            if (!tree_add(q->arena, &array, item->type == JT_ARRAY ? item->items[k] : *item))
                return full(q);
    }
    return input->type == JT_ARRAY ? tree_array_value(&array) : nothing;
}

/* What follows [*] is applied to every element; nulls are left out. */
static struct json project(struct query *q, struct json list)
{
    const char *right = q->at;
    struct tree_array array = {0};
    size_t n = list.type == JT_ARRAY ? list.n : 0;
    for (size_t i = 0; i < n && q->status == OK; i++) {
        q->at = right;
        struct json value = chain(q, list.items[i]);
        if (value.type != JT_NULL && !tree_add(q->arena, &array, value))
            return full(q);
    }
    if (!n)
        chain(q, nothing);
    return list.type == JT_ARRAY ? tree_array_value(&array) : nothing;
}

/* .name, .{...}, .[...], [n], [*], [] behind a value. */
static struct json chain(struct query *q, struct json input)
{
    while (q->status == OK) {
        if (accept(q, ".")) {
            if (accept(q, "{")) {
                input = multi_hash(q, input);
            } else if (accept(q, "[")) {
                input = multi_list(q, input);
            } else {
                struct json name = identifier(q);
                input = member(&input, &name);
            }
        } else if (accept(q, "[*]")) {
            return project(q, input);
        } else if (accept(q, "[]")) {
            return project(q, flatten(q, &input));
        } else if (accept(q, "[")) {
            long index;
            if (!read_index(q, &index) || !accept(q, "]"))
                return fail(q, "only [n], [*] and [] are supported");
            input = element(&input, index);
        } else {
            break;
        }
    }
    return input;
}

/* 'raw text' or `JSON`. */
static struct json literal(struct query *q, char quote)
{
    const char *from = q->at, *end = strchr(from, quote);
    if (!end)
        return fail(q, "a literal has no end");
    q->at = end + 1;
    struct json value = nothing;
    if (quote == '\'') {
        value = tree_string(q->arena, from, (size_t)(end - from));
        return value.type == JT_STRING ? value : full(q);
    }
    if (json_parse(q->arena, from, (size_t)(end - from), &value, NULL) != OK)
        return fail(q, "a literal is not JSON");
    return value;
}

static struct json primary(struct query *q, struct json input)
{
    if (accept(q, "@"))
        return input;
    if (accept(q, "'"))
        return literal(q, '\'');
    if (accept(q, "`"))
        return literal(q, '`');
    if (accept(q, "{"))
        return multi_hash(q, input);
    if (accept(q, "(")) {
        struct json value = expression(q, input);
        return accept(q, ")") ? value : fail(q, "a closing parenthesis is missing");
    }
    if (*q->at == '[') {
        const char *inside = q->at + 1;
        while (isspace((unsigned char)*inside))
            inside++;
        if (*inside == '*' || *inside == ']' || *inside == '-' || isdigit((unsigned char)*inside))
            return input; /* the chain reads it */
        q->at++;
        return multi_list(q, input);
    }
    if (*q->at == '"' || is_name_start(*q->at)) {
        struct json name = identifier(q);
        if (*q->at == '(')
            return fail(q, "functions are not supported");
        return member(&input, &name);
    }
    return fail(q, "an expression must start here");
}

static bool is_false(const struct json *value)
{
    return value->type != JT_NUMBER && !python_truth(value);
}

static struct json either(struct query *q, struct json input)
{
    struct json value = chain(q, primary(q, input));
    while (q->status == OK && accept(q, "||")) {
        struct json other = chain(q, primary(q, input));
        if (is_false(&value))
            value = other;
    }
    return value;
}

static struct json expression(struct query *q, struct json input)
{
    if (++q->nesting > MAX_NESTING)
        return fail(q, "it is nested too deeply");
    struct json value = either(q, input);
    while (q->status == OK && accept(q, "|"))
        value = either(q, value);
    q->nesting--;
    return q->status == OK ? value : nothing;
}

enum status query_run(struct arena *arena, const char *text, const struct json *input,
                      struct json *out, struct error *error)
{
    struct query q = {.arena = arena, .start = text, .at = text, .error = error};
    *out = expression(&q, *input);
    accept(&q, "");
    if (q.status == OK && *q.at)
        fail(&q, "something follows the expression");
    return q.status;
}
