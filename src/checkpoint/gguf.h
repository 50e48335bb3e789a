/* The GGUF container, versions 2 and 3: metadata keys, then tensors. Knows no model and no key. */
#ifndef CSGL_CHECKPOINT_GGUF_H
#define CSGL_CHECKPOINT_GGUF_H

#include "checkpoint/tensors.h"

#include <stdbool.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_TYPES
};

/* One metadata value, checked to lie in the file. `data` is its first byte there, at any alignment:
 * a scalar, the bytes of a string, or the first item of an array. */
struct gguf_value {
    enum gguf_type type;
    enum gguf_type item; /* of an array */
    uint64_t n;          /* bytes of a string, items of an array, else 1 */
    const uint8_t *data;
};

/* Zero-initialise, gguf_parse, gguf_done. */
struct gguf {
    struct gguf_value *values; /* [n_values], in the arena */
    size_t n_values;
    struct map keys; /* -> index in values */
};

/* Reads and checks all keys and tensors of the file `data` (borrowed while `gguf` and the list are
 * used), number `file` of the checkpoint; the list, which may hold other files' tensors, and its
 * arena take what is kept. Sentences do not name the file. */
enum status gguf_parse(struct gguf *gguf, struct tensor_list *list, const uint8_t *data,
                       uint64_t bytes, int32_t file, struct error *error);
void gguf_done(struct gguf *gguf);

/* The value of this key, or NULL. */
const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key);

/* The value (of an array: item `i`, for numbers only) as a number; false if it is none, or not an
 * integer within int64. */
bool gguf_int(const struct gguf_value *value, uint64_t i, int64_t *out);
/* Integers count as well. */
bool gguf_float(const struct gguf_value *value, uint64_t i, double *out);
bool gguf_bool(const struct gguf_value *value, bool otherwise);
/* True if it is a string equal to `text`. */
bool gguf_string_is(const struct gguf_value *value, const char *text);

/* Takes the string at *at, within an array of strings that gguf_parse has checked, and moves on. */
const char *gguf_next_string(const uint8_t **at, size_t *len);

#endif
