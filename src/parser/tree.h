/* Building JSON trees in an arena, and Python's idea of text. */
#ifndef CSGL_PARSER_TREE_H
#define CSGL_PARSER_TREE_H

#include "base/arena.h"
#include "base/json.h"

/* Growing children; zero-initialise. The memory is the arena's. */
struct tree_object {
    struct json_member *members;
    size_t n, cap;
};
struct tree_array {
    struct json *items;
    size_t n, cap;
};

/* Sets a key as a Python dict does: one that exists keeps its place. Keys are borrowed, with a NUL
 * behind them. False if the arena is exhausted. */
bool tree_put(struct arena *arena, struct tree_object *object, const char *key, size_t len,
              struct json value);
struct json *tree_find(const struct tree_object *object, const char *key, size_t len);
bool tree_add(struct arena *arena, struct tree_array *array, struct json value);

struct json tree_object_value(const struct tree_object *object);
struct json tree_array_value(const struct tree_array *array);
/* A copy of the text; null if the arena is exhausted. */
struct json tree_string(struct arena *arena, const char *text, size_t len);
struct json tree_bool(bool value);

/* The member of an object by a key with a length; NULL if there is none. */
const struct json *tree_get(const struct json *object, const char *key, size_t len);

/* Bytes of the blank character (of str.strip) at `text`, or 0. */
size_t python_blank(const char *text, size_t len);
/* str.strip() */
void python_strip(const char **text, size_t *len);
/* `len` without the blanks at the end. */
size_t python_rstrip(const char *text, size_t len);
/* bool(value) */
bool python_truth(const struct json *value);

/* ERROR_LIMIT: the arena of a reply is exhausted. */
enum status tree_full(const struct arena *arena, struct error *error);

#endif
