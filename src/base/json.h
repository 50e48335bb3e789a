/* JSON (RFC 8259): a pull reader for big files, an arena tree for small ones, and the writer's
 * string escaping. Judged by Python's json; depth at most 128. */
#ifndef CSGL_BASE_JSON_H
#define CSGL_BASE_JSON_H

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_MAX_DEPTH = 128 };

enum json_event {
    JSON_FAILED = -1, /* `error` is filled */
    JSON_END,         /* the document is complete and nothing but white space follows */
    JSON_OBJECT,
    JSON_OBJECT_END,
    JSON_ARRAY,
    JSON_ARRAY_END,
    JSON_KEY, /* its value follows */
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
};

/* Reads one document event by event without building anything. `text`/`len` are the decoded key or
 * string, or a number as written; they are borrowed until the next call. Lone surrogates decode to
 * U+FFFD; bytes that are not UTF-8 are refused. */
struct json_reader {
    const char *text;
    size_t len;
    /* private */
    const char *start, *at, *end;
    struct str scratch;
    int depth;
    int state;
    bool in_object[JSON_MAX_DEPTH];
};

/* `data` is borrowed until json_reader_done. */
void json_reader_init(struct json_reader *reader, const char *data, size_t bytes);
void json_reader_done(struct json_reader *reader);
enum json_event json_next(struct json_reader *reader, struct error *error);

/* How far the text has been read: behind the last event. For taking a value's own text. */
static inline const char *json_position(const struct json_reader *reader)
{
    return reader->at;
}

/* Skips the value whose first event was `first` (as returned by json_next). */
enum status json_skip(struct json_reader *reader, enum json_event first, struct error *error);

/* True if `text` is the reader's current key or string. */
bool json_text_is(const struct json_reader *reader, const char *text);

/* The current number as an integer; false if it is not a whole number in [min, max]. */
bool json_read_int(const struct json_reader *reader, int64_t min, int64_t max, int64_t *out);

enum json_type { JT_NULL, JT_BOOL, JT_NUMBER, JT_STRING, JT_ARRAY, JT_OBJECT };

struct json_member;

/* A tree node; everything belongs to the arena. Objects keep the order of their keys. */
struct json {
    enum json_type type;
    bool boolean;
    size_t n; /* bytes of text, items, or members */
    union {
        const char *text; /* strings and numbers, NUL behind; numbers as written */
        const struct json *items;
        const struct json_member *members;
    };
};

struct json_member {
    const char *key;
    size_t key_len;
    struct json value;
};

/* The tree of one document. Memory is bounded by the arena's limit. Duplicate keys: the last wins
 * in json_get, as in Python. */
enum status json_parse(struct arena *arena, const char *data, size_t bytes, struct json *out,
                       struct error *error);

/* The member's value, or NULL if `object` is NULL, not an object, or lacks it. */
const struct json *json_get(const struct json *object, const char *key);

bool json_is_null(const struct json *value); /* also true for NULL */
/* NULL unless it is a string. */
const char *json_string(const struct json *value);
bool json_string_is(const struct json *value, const char *text);
double json_number(const struct json *value, double otherwise);
/* False unless it is a number without fraction in [min, max]. */
bool json_int(const struct json *value, int64_t min, int64_t max, int64_t *out);
bool json_bool(const struct json *value, bool otherwise);

/* Appends `text` quoted and escaped, non-ASCII characters as they are (ensure_ascii=false). */
void json_write_string(struct str *out, const char *text, size_t len);

/* Appends the tree in one line with ", " and ": " as Python's json.dumps(ensure_ascii=False). */
void json_write(struct str *out, const struct json *value);

/* Bytes of the valid UTF-8 sequence at `s` (n > 0 bytes left): 1 to 4, or 0 if it is invalid. */
size_t utf8_sequence(const char *s, size_t n);

#endif
