/* The list of named tensors that the containers fill and the checkpoint looks up. Knows no format.
 */
#ifndef CSGL_CHECKPOINT_TENSORS_H
#define CSGL_CHECKPOINT_TENSORS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/weight.h"

#include <stddef.h>
#include <stdint.h>

enum {
    TENSORS_MAX = 1 << 19,
    TENSOR_NAME_MAX = 1024,
    TENSOR_DIMS_MAX = 8,
    ENCODING_UNSUPPORTED = -1 /* listed, but refused when it is asked for */
};

/* One tensor whose bytes were checked to lie in its file. Shapes are folded to two dimensions: the
 * fastest one is `cols`, all others are `rows`. */
struct tensor {
    const char *name; /* as in the file, NUL behind */
    size_t name_len;
    int64_t rows, cols;
    int n_dims; /* safetensors: the shape before it was folded */
    int64_t dims[TENSOR_DIMS_MAX];
    int encoding;      /* enum weight_encoding or ENCODING_UNSUPPORTED */
    const char *dtype; /* the file's word for it */
    const uint8_t *data;
    uint64_t bytes;
    int32_t file;          /* which of the checkpoint's files */
    int32_t rope_head_dim; /* as in struct weight */
};

/* Zero-initialise with an arena for the names, add, tensors_done. */
struct tensor_list {
    struct arena *arena;
    struct tensor *items;
    size_t n, cap;
    struct map by_name; /* the files' names -> index */
};

/* A new zeroed tensor of this name (copied), borrowed until the next one is added. Refuses names
 * that are empty, too long, not UTF-8, contain control characters or were added before. */
enum status tensors_add(struct tensor_list *list, const char *name, size_t len, struct tensor **out,
                        struct error *error);

/* The tensor of this name as in the file, or NULL. */
const struct tensor *tensors_find(const struct tensor_list *list, const char *name, size_t len);

void tensors_done(struct tensor_list *list);

/* OK if `len` bytes are valid UTF-8 without control characters, at most `limit` and not none;
 * otherwise a sentence that begins with `what`. */
enum status name_check(const char *what, const char *name, size_t len, size_t limit,
                       struct error *error);

/* A sentence if the file is only Git LFS's note of where its content is, which clones without LFS
 * leave. */
enum status pointer_check(const uint8_t *data, uint64_t bytes, struct error *error);

#endif
