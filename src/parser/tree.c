#include "parser/tree.h"

#include "parser/emitter.h"

#include <stdlib.h>
#include <string.h>

enum status tree_full(const struct arena *arena, struct error *error)
{
    return error_set(error, ERROR_LIMIT,
                     "taking the reply apart needs more than the limit of %zu bytes", arena->limit);
}

struct json *tree_find(const struct tree_object *o, const char *key, size_t len)
{
    for (size_t i = 0; i < o->n; i++)
        if (o->members[i].key_len == len && memcmp(o->members[i].key, key, len) == 0)
            return &o->members[i].value;
    return NULL;
}

bool tree_put(struct arena *arena, struct tree_object *o, const char *key, size_t len,
              struct json value)
{
    struct json *old = tree_find(o, key, len);
    if (old) {
        *old = value;
        return true;
    }
    if (o->n == o->cap) {
        size_t cap = o->cap ? o->cap * 2 : 4;
        struct json_member *members = arena_alloc_array(arena, cap, sizeof *members);
        if (!members)
            return false;
        if (o->n)
            memcpy(members, o->members, o->n * sizeof *members);
        o->members = members;
        o->cap = cap;
    }
    o->members[o->n++] = (struct json_member){.key = key, .key_len = len, .value = value};
    return true;
}

bool tree_add(struct arena *arena, struct tree_array *a, struct json value)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 4;
        struct json *items = arena_alloc_array(arena, cap, sizeof *items);
        if (!items)
            return false;
        if (a->n)
            memcpy(items, a->items, a->n * sizeof *items);
        a->items = items;
        a->cap = cap;
    }
    a->items[a->n++] = value;
    return true;
}

struct json tree_object_value(const struct tree_object *o)
{
    return (struct json){.type = JT_OBJECT, .n = o->n, .members = o->members};
}

struct json tree_array_value(const struct tree_array *a)
{
    return (struct json){.type = JT_ARRAY, .n = a->n, .items = a->items};
}

struct json tree_string(struct arena *arena, const char *text, size_t len)
{
    const char *copy = arena_copy(arena, text, len);
    if (!copy)
        return (struct json){0};
    return (struct json){.type = JT_STRING, .n = len, .text = copy};
}

struct json tree_bool(bool value)
{
    return (struct json){.type = JT_BOOL, .boolean = value};
}

const struct json *tree_get(const struct json *object, const char *key, size_t len)
{
    if (!object || object->type != JT_OBJECT)
        return NULL;
    for (size_t i = object->n; i-- > 0;)
        if (object->members[i].key_len == len && memcmp(object->members[i].key, key, len) == 0)
            return &object->members[i].value;
    return NULL;
}

size_t python_blank(const char *text, size_t len)
{
    if (!len)
        return 0;
    unsigned char c = (unsigned char)*text;
    if (c < 0x80)
        return is_blank(*text) || (c >= 0x1C && c <= 0x1F) ? 1 : 0;
    if (len >= 2 && c == 0xC2)
        return (unsigned char)text[1] == 0x85 || (unsigned char)text[1] == 0xA0 ? 2 : 0;
    if (len < 3)
        return 0;
    unsigned code =
        (c & 15u) << 12 | ((unsigned char)text[1] & 63u) << 6 | ((unsigned char)text[2] & 63u);
    bool is_three = c >> 4 == 14;
    return is_three && (code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
                        code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000)
               ? 3
               : 0;
}

size_t python_rstrip(const char *text, size_t len)
{
    for (;;) {
        size_t n = 0;
        for (size_t back = 1; back <= 3 && back <= len && !n; back++)
            if (python_blank(text + len - back, back) == back)
                n = back;
        if (!n)
            return len;
        len -= n;
    }
}

void python_strip(const char **text, size_t *len)
{
    size_t n;
    while ((n = python_blank(*text, *len))) {
        *text += n;
        *len -= n;
    }
    *len = python_rstrip(*text, *len);
}

bool python_truth(const struct json *value)
{
    if (!value || value->type == JT_NULL)
        return false;
    if (value->type == JT_BOOL)
        return value->boolean;
    if (value->type == JT_NUMBER)
        return strtod(value->text, NULL) != 0;
    return value->n > 0;
}
