/* The tree: built from the pull reader into an arena, looked up by key, written back. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* Children are collected in a list while their number is unknown, then laid out as an array. */
struct node {
    struct node *next;
    struct json_member member;
};

static enum status build(struct arena *arena, struct json_reader *r, enum json_event event,
                         struct json *out, struct error *error);

static enum status build_children(struct arena *arena, struct json_reader *r, bool is_object,
                                  struct json *out, struct error *error)
{
    struct node *first = NULL, **tail = &first;
    struct arena scratch = {.limit = arena->limit};
    enum status status = OK;
    size_t n = 0;
    for (;;) {
        enum json_event event = json_next(r, error);
        if (event == JSON_FAILED) {
            status = error ? error->status : ERROR_INVALID;
            goto out;
        }
        if (event == JSON_OBJECT_END || event == JSON_ARRAY_END)
            break;
        struct node *node = arena_alloc(&scratch, sizeof *node);
        if (!node)
            goto out_of_memory;
        if (is_object) {
            node->member.key = arena_copy(arena, r->text, r->len);
            node->member.key_len = r->len;
            if (!node->member.key)
                goto out_of_memory;
            event = json_next(r, error);
        }
        status = build(arena, r, event, &node->member.value, error);
        if (status != OK)
            goto out;
        *tail = node;
        tail = &node->next;
        n++;
    }
    out->n = n;
    if (is_object) {
        struct json_member *members = arena_alloc_array(arena, n, sizeof *members);
        if (!members)
            goto out_of_memory;
        out->members = members;
        for (struct node *node = first; node; node = node->next)
            *members++ = node->member;
    } else {
        struct json *items = arena_alloc_array(arena, n, sizeof *items);
        if (!items)
            goto out_of_memory;
        out->items = items;
        for (struct node *node = first; node; node = node->next)
            *items++ = node->member.value;
    }
    goto out;
out_of_memory:
    status = error_set(error, ERROR_LIMIT, "JSON needs more memory than its limit of %zu bytes",
                       arena->limit);
out:
    arena_done(&scratch);
    return status;
}

static enum status build(struct arena *arena, struct json_reader *r, enum json_event event,
                         struct json *out, struct error *error)
{
    *out = (struct json){0};
    switch (event) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        out->type = event == JSON_OBJECT ? JT_OBJECT : JT_ARRAY;
        return build_children(arena, r, event == JSON_OBJECT, out, error);
    case JSON_STRING:
    case JSON_NUMBER:
        out->type = event == JSON_STRING ? JT_STRING : JT_NUMBER;
        out->n = r->len;
        out->text = arena_copy(arena, r->text, r->len);
        if (!out->text)
            return error_set(error, ERROR_LIMIT,
                             "JSON needs more memory than its limit of %zu bytes", arena->limit);
        return OK;
    case JSON_TRUE:
    case JSON_FALSE:
        out->type = JT_BOOL;
        out->boolean = event == JSON_TRUE;
        return OK;
    case JSON_NULL:
        return OK;
    default:
        return error ? error->status : ERROR_INVALID;
    }
}

enum status json_parse(struct arena *arena, const char *data, size_t bytes, struct json *out,
                       struct error *error)
{
    struct error local = {0};
    struct error *e = error ? error : &local;
    struct json_reader r;
    json_reader_init(&r, data, bytes);
    enum status status = build(arena, &r, json_next(&r, e), out, e);
    if (status == OK && json_next(&r, e) != JSON_END)
        status = e->status;
    json_reader_done(&r);
    return status;
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->type != JT_OBJECT)
        return NULL;
    size_t len = strlen(key);
    for (size_t i = object->n; i-- > 0;) {
        const struct json_member *m = &object->members[i];
        if (m->key_len == len && memcmp(m->key, key, len) == 0)
            return &m->value;
    }
    return NULL;
}

bool json_is_null(const struct json *value)
{
    return !value || value->type == JT_NULL;
}

const char *json_string(const struct json *value)
{
    return value && value->type == JT_STRING ? value->text : NULL;
}

bool json_string_is(const struct json *value, const char *text)
{
    return value && value->type == JT_STRING && value->n == strlen(text) &&
           memcmp(value->text, text, value->n) == 0;
}

double json_number(const struct json *value, double otherwise)
{
    return value && value->type == JT_NUMBER ? strtod(value->text, NULL) : otherwise;
}

bool json_bool(const struct json *value, bool otherwise)
{
    return value && value->type == JT_BOOL ? value->boolean : otherwise;
}

void json_write_string(struct str *out, const char *text, size_t len)
{
    str_append_char(out, '"');
    size_t run = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        str_append(out, text + run, i - run);
        run = i + 1;
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *found = c ? strchr(from, c) : NULL;
        if (found) {
            str_append_char(out, '\\');
            str_append_char(out, to[found - from]);
        } else {
            str_printf(out, "\\u%04x", c);
        }
    }
    str_append(out, text + run, len - run);
    str_append_char(out, '"');
}

void json_write(struct str *out, const struct json *value)
{
    switch (value->type) {
    case JT_NULL:
        str_append_z(out, "null");
        break;
    case JT_BOOL:
        str_append_z(out, value->boolean ? "true" : "false");
        break;
    case JT_NUMBER:
        str_append(out, value->text, value->n);
        break;
    case JT_STRING:
        json_write_string(out, value->text, value->n);
        break;
    case JT_ARRAY:
        str_append_char(out, '[');
        for (size_t i = 0; i < value->n; i++) {
            if (i)
                str_append(out, ", ", 2);
            json_write(out, &value->items[i]);
        }
        str_append_char(out, ']');
        break;
    case JT_OBJECT:
        str_append_char(out, '{');
        for (size_t i = 0; i < value->n; i++) {
            if (i)
                str_append(out, ", ", 2);
            json_write_string(out, value->members[i].key, value->members[i].key_len);
            str_append(out, ": ", 2);
            json_write(out, &value->members[i].value);
        }
        str_append_char(out, '}');
        break;
    }
}
