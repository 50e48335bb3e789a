/* The values of a running template: what Python's jinja2 would hold, in 16 bytes. Everything a
 * value points to lives in the arena of one render, in the template, or in the caller's JSON, and
 * is never freed on its own. */
#ifndef CSGL_TEMPLATE_VALUE_H
#define CSGL_TEMPLATE_VALUE_H

#include "base/arena.h"
#include "base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eval;
struct args;
struct node;

enum value_kind {
    V_MISSING, /* no value at all: an unset variable, an argument that was not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer beyond 64 bits from JSON or a literal: its digits, printable but no operand
            */
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW, /* dict.keys(), .values(), .items() */
    V_RANGE,
    V_STREAM, /* what Python makes a generator: can be walked once */
    V_NAMESPACE,
    V_MACRO,
    V_BUILTIN,
    V_METHOD, /* a method bound to its object */
    V_LOOP,
    V_JOINER
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

/* `flag` is: for a string, that it is marked safe (Markup); for a tuple, that it is a groupby
 * group; for a view, its view_kind. */
struct value {
    uint8_t kind;
    uint8_t flag;
    uint32_t len; /* bytes of a string or of a big integer's digits */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *text; /* not NUL-terminated */
        struct list *list;
        struct dict *dict;
        const struct range *range;
        struct stream *stream;
        struct loop *loop;
        const struct undefined *undefined;
        const struct macro *macro;
        const struct builtin *builtin;
        const struct method_object *method;
        struct joiner *joiner;
    };
};

struct list {
    struct value *items;
    size_t n, cap;
};

struct pair {
    struct value key, value;
};

/* Keeps insertion order. `slots` is an open-addressing index into pairs (position + 1), absent
 * while there are few pairs. */
struct dict {
    struct pair *pairs;
    size_t n, cap;
    uint32_t *slots;
    size_t n_slots;
    size_t message; /* 1 + the index of the chat message that this dict is, or 0 */
};

struct range {
    int64_t start, stop, step;
    size_t n;
};

struct stream {
    struct list *list;
    size_t at;
};

/* Why a value is undefined; the sentence is made only when somebody stumbles over it. */
struct undefined {
    const char *hint;        /* the whole sentence, or NULL */
    const char *object_type; /* the type that lacks the attribute, or NULL for a variable */
    struct value name;
    int line; /* appended to the hint when > 0 */
};

struct method_object {
    struct value self;
    const struct builtin *method;
};

/* Nothing at the first call, the separator at every later one. */
struct joiner {
    struct value separator;
    bool used;
};

/* A function of C: a filter, a test, a method (items[0] is the object) or a global. False after
 * eval_fail. */
typedef bool (*builtin_function)(struct eval *e, const struct args *args, struct value *out);

struct builtin {
    const char *name;
    builtin_function call;
};

static inline struct value value_none(void)
{
    return (struct value){.kind = V_NONE};
}

static inline struct value value_bool(bool b)
{
    return (struct value){.kind = V_BOOL, .boolean = b};
}

static inline struct value value_int(int64_t i)
{
    return (struct value){.kind = V_INT, .integer = i};
}

static inline struct value value_float(double f)
{
    return (struct value){.kind = V_FLOAT, .number = f};
}

/* Borrows `text`; n fits 32 bits, which every limit of this room ensures. */
static inline struct value value_text(const char *text, size_t n)
{
    return (struct value){.kind = V_STRING, .len = (uint32_t)n, .text = text};
}

struct value value_z(const char *text);

/* Python's name of the value's type, for messages. */
const char *value_type(const struct value *v);

bool value_is_text(const struct value *v, const char *text);

/* Python's truth value. */
bool value_truth(const struct value *v);

/* True for bool, int and float; `*out` is the value as a double. */
bool value_number(const struct value *v, double *out);
/* True for bool and int. */
bool value_integer(const struct value *v, int64_t *out);

/* Python's dict can hold it as a key (a tuple only if its items can). */
bool value_hashable(const struct value *v);

struct list *list_new(struct arena *arena, size_t cap);
/* False if memory is exhausted, here and below. */
bool list_push(struct arena *arena, struct list *list, struct value v);

struct dict *dict_new(struct arena *arena);
/* `key` is hashable. */
bool dict_put(struct arena *arena, struct dict *dict, struct value key, struct value v);
/* NULL if there is none. */
struct value *dict_get(const struct dict *dict, const struct value *key);
struct value *dict_get_z(const struct dict *dict, const char *key);
/* Removes the pair that holds `found` (from dict_get). O(n). */
bool dict_remove(struct arena *arena, struct dict *dict, const struct value *found);

/* The value of a JSON tree; strings are borrowed from it. False if memory is exhausted. */
bool value_from_json(struct arena *arena, const struct json *json, struct value *out);

/* An integer literal's or JSON number's value: V_INT, or V_BIG if it needs more than 64 bits.
 * `text` is decimal digits with an optional minus sign and stays borrowed for V_BIG. */
struct value value_from_digits(const char *text, size_t n);

/* Walks what Python can iterate. Init is false if it cannot. A list that grows meanwhile is walked
 * to its new end. */
struct iterator {
    struct value of;
    size_t at;
};

bool iterator_init(struct iterator *it, const struct value *v);
/* 1 and the next item, 0 at the end, -1 if memory is exhausted. */
int iterator_next(struct arena *arena, struct iterator *it, struct value *out);
/* The number of items, or false for a stream and what has no len(). */
bool value_len(const struct value *v, size_t *out);
/* Item `i` (below value_len) of a list, tuple or range. */
struct value value_at(const struct value *v, size_t i);

#endif
