#include "template/value.h"

#include "base/map.h"
#include "template/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct value value_z(const char *text)
{
    return value_text(text, strlen(text));
}

const char *value_type(const struct value *v)
{
    static const char *const names[] = {
        [V_MISSING] = "missing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "None",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_BIG] = "int",
        [V_FLOAT] = "float",
        [V_STRING] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_VIEW] = "dict view",
        [V_RANGE] = "range",
        [V_STREAM] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",
        [V_BUILTIN] = "function",
        [V_METHOD] = "method",
        [V_LOOP] = "LoopContext",
        [V_JOINER] = "Joiner",
    };
    return names[v->kind];
}

bool value_is_text(const struct value *v, const char *text)
{
    return v->kind == V_STRING && v->len == strlen(text) && memcmp(v->text, text, v->len) == 0;
}

bool value_truth(const struct value *v)
{
    size_t n;
    switch ((enum value_kind)v->kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v->boolean;
    case V_INT:
        return v->integer != 0;
    case V_FLOAT:
        return v->number != 0;
    case V_STRING:
        return v->len > 0;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_LOOP:
        return !value_len(v, &n) || n > 0;
    default:
        return true;
    }
}

bool value_integer(const struct value *v, int64_t *out)
{
    if (v->kind != V_INT && v->kind != V_BOOL)
        return false;
    *out = v->kind == V_INT ? v->integer : v->boolean;
    return true;
}

bool value_number(const struct value *v, double *out)
{
    int64_t i = 0;
    if (v->kind == V_FLOAT) {
        *out = v->number;
        return true;
    }
    if (!value_integer(v, &i))
        return false;
    *out = (double)i;
    return true;
}

bool value_hashable(const struct value *v)
{
    if (v->kind == V_LIST || v->kind == V_DICT || v->kind == V_VIEW)
        return false;
    if (v->kind != V_TUPLE)
        return true;
    /* A tuple is made after its items, so this ends; deep ones are refused rather than walked. */
    for (size_t i = 0; i < v->list->n; i++) {
        const struct value *item = &v->list->items[i];
        if (item->kind == V_TUPLE || !value_hashable(item))
            return false;
    }
    return true;
}

struct list *list_new(struct arena *arena, size_t cap)
{
    struct list *list = arena_alloc(arena, sizeof *list);
    if (!list)
        return NULL;
    list->items = arena_alloc_array(arena, cap ? cap : 1, sizeof *list->items);
    list->cap = cap ? cap : 1;
    return list->items ? list : NULL;
}

bool list_push(struct arena *arena, struct list *list, struct value v)
{
    if (list->n == list->cap) {
        size_t cap = list->cap < 4 ? 8 : list->cap * 2;
        struct value *items = arena_alloc_array(arena, cap, sizeof *items);
        if (!items)
            return false;
        memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = v;
    return true;
}

enum { DICT_LINEAR = 8 };

struct dict *dict_new(struct arena *arena)
{
    return arena_alloc(arena, sizeof(struct dict));
}

/* Equal keys hash alike: 1, 1.0 and True are one key in Python. */
static uint64_t key_hash(const struct value *key)
{
    double f;
    uint64_t h = key->kind;
    if (key->kind == V_STRING)
        return hash_bytes(key->text, key->len);
    if (value_number(key, &f)) {
        f += 0.0; /* -0.0 becomes 0.0 */
        return hash_bytes(&f, sizeof f);
    }
    if (key->kind != V_TUPLE)
        return h * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < key->list->n; i++)
        h = (h ^ key_hash(&key->list->items[i])) * 0x9E3779B97F4A7C15u;
    return h;
}

static bool key_equal(const struct value *a, const struct value *b)
{
    double x, y;
    int64_t i, j;
    if (a->kind == V_STRING || b->kind == V_STRING || a->kind == V_BIG)
        return a->kind == b->kind && a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
    if (value_integer(a, &i) && value_integer(b, &j))
        return i == j;
    if (value_number(a, &x))
        return value_number(b, &y) && x == y;
    if (a->kind != b->kind)
        return false;
    if (a->kind == V_NONE || a->kind == V_UNDEFINED)
        return true;
    if (a->kind != V_TUPLE)
        return a->text == b->text;
    if (a->list->n != b->list->n)
        return false;
    for (size_t k = 0; k < a->list->n; k++)
        if (!key_equal(&a->list->items[k], &b->list->items[k]))
            return false;
    return true;
}

/* The slot of `key`: its own, or the empty one where it belongs. */
static size_t find_slot(const struct dict *dict, const struct value *key)
{
    size_t i = key_hash(key) & (dict->n_slots - 1);
    while (dict->slots[i] && !key_equal(&dict->pairs[dict->slots[i] - 1].key, key))
        i = (i + 1) & (dict->n_slots - 1);
    return i;
}

static bool index_pairs(struct arena *arena, struct dict *dict, size_t n_slots)
{
    dict->slots = arena_alloc_array(arena, n_slots, sizeof *dict->slots);
    dict->n_slots = n_slots;
    if (!dict->slots)
        return false;
    for (size_t i = 0; i < dict->n; i++)
        dict->slots[find_slot(dict, &dict->pairs[i].key)] = (uint32_t)(i + 1);
    return true;
}

struct value *dict_get(const struct dict *dict, const struct value *key)
{
    if (dict->slots) {
        uint32_t found = dict->slots[find_slot(dict, key)];
        return found ? &dict->pairs[found - 1].value : NULL;
    }
    for (size_t i = 0; i < dict->n; i++)
        if (key_equal(&dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

struct value *dict_get_z(const struct dict *dict, const char *key)
{
    struct value v = value_z(key);
    return dict_get(dict, &v);
}

bool dict_put(struct arena *arena, struct dict *dict, struct value key, struct value v)
{
    struct value *found = dict_get(dict, &key);
    if (found) {
        *found = v;
        return true;
    }
    if (dict->n == dict->cap) {
        size_t cap = dict->cap ? dict->cap * 2 : 4;
        struct pair *pairs = cap < UINT32_MAX ? arena_alloc_array(arena, cap, sizeof *pairs) : NULL;
        if (!pairs)
            return false;
        if (dict->n)
            memcpy(pairs, dict->pairs, dict->n * sizeof *pairs);
        dict->pairs = pairs;
        dict->cap = cap;
    }
    dict->pairs[dict->n++] = (struct pair){key, v};
    if (dict->slots && dict->n <= dict->n_slots / 2) {
        dict->slots[find_slot(dict, &key)] = (uint32_t)dict->n;
        return true;
    }
    return dict->n <= DICT_LINEAR || index_pairs(arena, dict, dict->slots ? dict->n_slots * 2 : 32);
}

bool dict_remove(struct arena *arena, struct dict *dict, const struct value *found)
{
    for (size_t i = 0; i < dict->n; i++) {
        if (&dict->pairs[i].value != found)
            continue;
        memmove(&dict->pairs[i], &dict->pairs[i + 1], (dict->n - i - 1) * sizeof *dict->pairs);
        dict->n--;
        break;
    }
    return !dict->slots || index_pairs(arena, dict, dict->n_slots);
}

struct value value_from_digits(const char *text, size_t n)
{
    bool negative = n > 0 && text[0] == '-';
    int64_t v = 0;
    for (size_t i = negative; i < n; i++) {
        int digit = text[i] - '0';
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, negative ? -digit : digit, &v))
            return (struct value){.kind = V_BIG, .len = (uint32_t)n, .text = text};
    }
    return value_int(v);
}

static struct value json_number_value(const struct json *json)
{
    for (size_t i = 0; i < json->n; i++)
        if (json->text[i] == '.' || json->text[i] == 'e' || json->text[i] == 'E')
            return value_float(strtod(json->text, NULL));
    return value_from_digits(json->text, json->n);
}

bool value_from_json(struct arena *arena, const struct json *json, struct value *out)
{
    switch (json->type) {
    case JT_NULL:
        *out = value_none();
        return true;
    case JT_BOOL:
        *out = value_bool(json->boolean);
        return true;
    case JT_NUMBER:
        *out = json_number_value(json);
        return true;
    case JT_STRING:
        *out = value_text(json->text, json->n);
        return json->n <= UINT32_MAX;
    case JT_ARRAY: {
        struct list *list = list_new(arena, json->n);
        *out = (struct value){.kind = V_LIST, .list = list};
        for (size_t i = 0; list && i < json->n; i++) {
            if (!value_from_json(arena, &json->items[i], &list->items[i]))
                return false;
            list->n++;
        }
        return list != NULL;
    }
    case JT_OBJECT: {
        struct dict *dict = dict_new(arena);
        *out = (struct value){.kind = V_DICT, .dict = dict};
        for (size_t i = 0; dict && i < json->n; i++) {
            const struct json_member *m = &json->members[i];
            struct value v;
            if (!value_from_json(arena, &m->value, &v) ||
                !dict_put(arena, dict, value_text(m->key, m->key_len), v))
                return false;
        }
        return dict != NULL;
    }
    }
    return false;
}

bool value_len(const struct value *v, size_t *out)
{
    switch ((enum value_kind)v->kind) {
    case V_UNDEFINED:
        *out = 0;
        return true;
    case V_STRING:
        *out = text_count(v->text, v->len);
        return true;
    case V_LIST:
    case V_TUPLE:
        *out = v->list->n;
        return true;
    case V_DICT:
    case V_VIEW:
        *out = v->dict->n;
        return true;
    case V_RANGE:
        *out = v->range->n;
        return true;
    default:
        return false;
    }
}

struct value value_at(const struct value *v, size_t i)
{
    if (v->kind == V_RANGE)
        return value_int(v->range->start + (int64_t)i * v->range->step);
    return v->list->items[i];
}

bool iterator_init(struct iterator *it, const struct value *v)
{
    *it = (struct iterator){.of = *v};
    size_t n;
    return v->kind == V_STREAM || value_len(v, &n);
}

static int next_pair(struct arena *arena, const struct iterator *it, struct value *out)
{
    const struct pair *pair = &it->of.dict->pairs[it->at];
    if (it->of.kind == V_DICT || it->of.flag == VIEW_KEYS) {
        *out = pair->key;
    } else if (it->of.flag == VIEW_VALUES) {
        *out = pair->value;
    } else {
        struct list *tuple = list_new(arena, 2);
        if (!tuple)
            return -1;
        tuple->items[0] = pair->key;
        tuple->items[1] = pair->value;
        tuple->n = 2;
        *out = (struct value){.kind = V_TUPLE, .list = tuple};
    }
    return 1;
}

int iterator_next(struct arena *arena, struct iterator *it, struct value *out)
{
    size_t n = 0;
    switch ((enum value_kind)it->of.kind) {
    case V_STREAM: {
        struct stream *s = it->of.stream;
        if (s->at >= s->list->n)
            return 0;
        *out = s->list->items[s->at++];
        return 1;
    }
    case V_STRING: {
        if (it->at >= it->of.len)
            return 0;
        text_decode(it->of.text + it->at, it->of.len - it->at, &n);
        *out = value_text(it->of.text + it->at, n);
        out->flag = it->of.flag;
        it->at += n;
        return 1;
    }
    case V_DICT:
    case V_VIEW: {
        if (it->at >= it->of.dict->n)
            return 0;
        int got = next_pair(arena, it, out);
        it->at++;
        return got;
    }
    default:
        if (!value_len(&it->of, &n) || it->at >= n)
            return 0;
        *out = value_at(&it->of, it->at++);
        return 1;
    }
}
