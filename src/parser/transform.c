/* What becomes of a parsed region: its transform template, and the types of a tool's schema. */
#include "parser/content.h"
#include "parser/tools.h"

#include <ctype.h>
#include <string.h>

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* Bytes of the placeholder {name} or {name.key.key} at `text`, or 0. */
static size_t placeholder(const char *text)
{
    size_t i = 1;
    if (*text != '{')
        return 0;
    for (;;) {
        size_t from = i;
        while (is_word(text[i]))
            i++;
        if (i == from)
            return 0;
        if (text[i] == '}')
            return i + 1;
        if (text[i++] != '.')
            return 0;
    }
}

static bool is_placeholder(const struct json *text)
{
    return text->type == JT_STRING && text->n && placeholder(text->text) == text->n;
}

enum status content_check_transform(const struct json *t, const char *field, struct error *error)
{
    enum status status = OK;
    if (t->type == JT_OBJECT)
        for (size_t i = 0; i < t->n && status == OK; i++)
            status = content_check_transform(&t->members[i].value, field, error);
    if (t->type == JT_ARRAY)
        for (size_t i = 0; i < t->n && status == OK; i++)
            status = content_check_transform(&t->items[i], field, error);
    if (t->type != JT_STRING || is_placeholder(t))
        return status;
    for (const char *at = t->text; *at; at++)
        if (placeholder(at))
            return error_set(error, ERROR_INVALID,
                             "response_template: field \"%.64s\": the transform string \"%.80s\" "
                             "mixes a placeholder with other text",
                             field, t->text);
    return OK;
}

/* Names visible to a transform: later objects hide earlier ones. */
struct scope {
    const struct json *objects[2];
    const struct json *content; /* the name "content", or NULL */
};

static const struct json *look_up(const struct scope *scope, const char *name, size_t len)
{
    if (scope->content && len == 7 && memcmp(name, "content", 7) == 0)
        return scope->content;
    for (int i = 2; i-- > 0;) {
        const struct json *found = tree_get(scope->objects[i], name, len);
        if (found)
            return found;
    }
    return NULL;
}

static enum status fill(const struct scope *scope, const char *text, struct json *out,
                        struct error *error)
{
    const struct json *value = NULL;
    const char *at = text + 1;
    for (bool is_first = true; *at && at[-1] != '}'; is_first = false) {
        size_t n = strcspn(at, ".}");
        value = is_first ? look_up(scope, at, n) : tree_get(value, at, n);
        if (!value)
            return error_set(error, ERROR_INVALID, "the transform's %.80s has no value", text);
        at += n + 1;
    }
    *out = *value;
    return OK;
}

static enum status apply(struct arena *arena, const struct json *t, const struct scope *scope,
                         struct json *out, struct error *error)
{
    enum status status = OK;
    *out = *t;
    if (is_placeholder(t))
        return fill(scope, t->text, out, error);
    if (t->type == JT_OBJECT) {
        struct json_member *members = arena_alloc_array(arena, t->n, sizeof *members);
        if (!members)
            return tree_full(arena, error);
        for (size_t i = 0; i < t->n && status == OK; i++) {
            members[i] = t->members[i];
            status = apply(arena, &t->members[i].value, scope, &members[i].value, error);
        }
        out->members = members;
    } else if (t->type == JT_ARRAY) {
        struct json *items = arena_alloc_array(arena, t->n, sizeof *items);
        if (!items)
            return tree_full(arena, error);
        for (size_t i = 0; i < t->n && status == OK; i++)
            status = apply(arena, &t->items[i], scope, &items[i], error);
        out->items = items;
    }
    return status;
}

static enum status apply_each(struct arena *arena, const struct response_field *field,
                              const struct json *captures, const struct json *list,
                              struct json *out, struct error *error)
{
    if (list->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID, "field \"%.64s\": transform_each needs a list",
                         field->name);
    struct tree_array result = {0};
    for (size_t i = 0; i < list->n; i++) {
        struct scope scope = {.objects = {captures, &list->items[i]}};
        struct json item;
        if (list->items[i].type != JT_OBJECT)
            return error_set(error, ERROR_INVALID,
                             "field \"%.64s\": transform_each needs a list of objects",
                             field->name);
        enum status status = apply(arena, field->transform, &scope, &item, error);
        if (status != OK)
            return status;
        if (!tree_add(arena, &result, item))
            return tree_full(arena, error);
    }
    *out = tree_array_value(&result);
    return OK;
}

enum status content_field(struct arena *arena, const struct response_field *field,
                          const struct json *captures, const char *text, size_t len,
                          struct json *out, struct error *error)
{
    struct json value;
    enum status status =
        content_parse(arena, field->content, field->args, text, len, &value, error);
    if (status != OK || !field->transform) {
        *out = value;
        return status;
    }
    if (field->transform_each)
        return apply_each(arena, field, captures, &value, out, error);
    struct scope scope = {.objects = {captures}, .content = &value};
    return apply(arena, field->transform, &scope, out, error);
}

/* A string argument as its schema wants it; anything else, and what does not fit, stays. */
static enum status coerce_argument(struct arena *arena, const enum param_type *types, int n,
                                   struct json *value, struct error *error)
{
    if (value->type != JT_STRING)
        return OK;
    struct str text = {0};
    enum status status = OK;
    if (tool_coerce(types, n, value->text, value->n, &text))
        status = json_parse(arena, str_z(&text), text.len, value, error);
    str_done(&text);
    return status;
}

static enum status coerce_member(struct arena *arena, const struct json *function,
                                 struct json_member *m, struct error *error)
{
    enum param_type types[TOOL_MAX_TYPES];
    bool is_declared;
    const struct json *schema = tool_param(function, m->key, m->key_len, &is_declared);
    int n = schema ? tool_types(schema, types) : 0;
    if (!n)
        return OK;
    if (m->value.type != JT_ARRAY)
        return coerce_argument(arena, types, n, &m->value, error);
    /* Values of a key that occurred more than once. */
    struct tree_array list = {0};
    for (size_t i = 0; i < m->value.n; i++) {
        struct json item = m->value.items[i];
        enum status status = coerce_argument(arena, types, n, &item, error);
        if (status != OK)
            return status;
        if (!tree_add(arena, &list, item))
            return tree_full(arena, error);
    }
    m->value = tree_array_value(&list);
    return OK;
}

static enum status coerce_call(struct arena *arena, const struct json *tools, struct json *call,
                               struct error *error)
{
    const struct json *its = json_get(call, "function");
    const struct json *name = json_get(its, "name"), *arguments = json_get(its, "arguments");
    if (!json_string(name) || !arguments || arguments->type != JT_OBJECT)
        return OK;
    const struct json *function = tool_find(tools, name->text, name->n);
    struct json_member *members = arena_alloc_array(arena, arguments->n, sizeof *members);
    if (!members)
        return tree_full(arena, error);
    for (size_t i = 0; i < arguments->n; i++) {
        members[i] = arguments->members[i];
        enum status status = function ? coerce_member(arena, function, &members[i], error) : OK;
        if (status != OK)
            return status;
    }
    struct json cast = *arguments;
    cast.members = members;
    struct tree_object new_its = {0}, new_call = {0};
    bool ok = true;
    for (size_t i = 0; i < its->n; i++)
        ok &= tree_put(arena, &new_its, its->members[i].key, its->members[i].key_len,
                       &its->members[i].value == arguments ? cast : its->members[i].value);
    for (size_t i = 0; i < call->n; i++)
        ok &= tree_put(arena, &new_call, call->members[i].key, call->members[i].key_len,
                       &call->members[i].value == its ? tree_object_value(&new_its)
                                                      : call->members[i].value);
    if (!ok)
        return tree_full(arena, error);
    *call = tree_object_value(&new_call);
    return OK;
}

enum status content_coerce(struct arena *arena, const struct json *tools, struct json *value,
                           struct error *error)
{
    if (value->type != JT_ARRAY)
        return coerce_call(arena, tools, value, error);
    struct tree_array list = {0};
    for (size_t i = 0; i < value->n; i++) {
        struct json item = value->items[i];
        enum status status = content_coerce(arena, tools, &item, error);
        if (status != OK)
            return status;
        if (!tree_add(arena, &list, item))
            return tree_full(arena, error);
    }
    *value = tree_array_value(&list);
    return OK;
}
