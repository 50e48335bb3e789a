/* The model's vocabulary: token ids and their bytes. Every string lives in one buffer; a hash table
 * finds an id by its bytes.
 *
 * Byte-level vocabularies write a token's bytes with GPT-2's alphabet of 256 printable characters.
 * A token written with that alphabet is stored as its bytes; one that has any other character can
 * never come out of a merge, is stored as it is written, and does not meet the others in lookups.
 */
#ifndef CSGL_TOKENIZER_VOCABULARY_H
#define CSGL_TOKENIZER_VOCABULARY_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VOCABULARY_MAX_IDS = 4 << 20,
    VOCABULARY_MAX_TOKEN_BYTES = 64 << 10,
};

enum {
    VOCABULARY_PRESENT = 1,
    VOCABULARY_VERBATIM = 2, /* stored as written */
};

struct vocabulary_token {
    uint32_t at, bytes;
};

struct vocabulary {
    struct str text;
    struct vocabulary_token *tokens; /* [cap], by id */
    uint8_t *flags;                  /* [cap] */
    size_t n_ids, cap;               /* ids are below n_ids; some may be absent */
    uint64_t *slots;                 /* hash << 32 | id + 1, or 0; open addressing */
    size_t n_slots, n_used;
};

void vocabulary_done(struct vocabulary *v);
size_t vocabulary_memory(const struct vocabulary *v);

/* Adds a token as a byte-level vocabulary writes it. ERROR_INVALID if the id or the token is taken.
 */
enum status vocabulary_add_written(struct vocabulary *v, const char *written, size_t len,
                                   int64_t id, struct error *error);

/* The id of a token by its bytes, or by its verbatim text; -1 if there is none. */
int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t len,
                        bool is_verbatim);

/* The id of a token as the vocabulary writes it; -1 if there is none. */
int32_t vocabulary_find_written(const struct vocabulary *v, const char *written, size_t len,
                                struct str *scratch);

/* Appends the bytes that `written` (valid UTF-8) stands for; false, leaving `out` as it was, if a
 * character is outside the alphabet. */
bool vocabulary_decode_written(struct str *out, const char *written, size_t len);

/* Borrowed; NULL if the id is absent. */
const char *vocabulary_bytes(const struct vocabulary *v, int32_t id, size_t *len);

/* Whether a present token is stored as written. */
static inline bool vocabulary_is_verbatim(const struct vocabulary *v, int32_t id)
{
    return (v->flags[id] & VOCABULARY_VERBATIM) != 0;
}

#endif
