/* Text to ids: what one thread needs for it. Memory and a cache of pieces belong to the encoder, so
 * that any number of them can use one tokenizer at the same time. */
#ifndef CSGL_TOKENIZER_ENCODER_H
#define CSGL_TOKENIZER_ENCODER_H

#include "tokenizer/tokenizer.h"

enum { ENCODER_DEFAULT_CACHE_BYTES = 8 << 20 };

/* More text than this in one call is refused. */
enum { ENCODER_MAX_TEXT_BYTES = 256 << 20 };

struct encoder;

/* Ids that grow. Zero-initialise, token_ids_done. */
struct token_ids {
    int32_t *ids;
    size_t n, cap;
};

void token_ids_done(struct token_ids *list);

/* What to do with special tokens; bits of encode's `flags`. */
enum {
    ENCODE_ADD_SPECIAL =
        1, /* put BOS and the like around the text, as the tokenizer's template says */
    ENCODE_PLAIN_SPECIAL = 2, /* special tokens written in the text are ordinary text */
};

/* The tokenizer is kept. The cache takes at most `cache_bytes`; 0 is no cache. */
enum status encoder_new(const struct tokenizer *tokenizer, size_t cache_bytes, struct encoder **out,
                        struct error *error);
void encoder_free(struct encoder *encoder);

/* Appends the ids of `text` to `out`. Bytes that are not UTF-8 count as U+FFFD, one for each
 * maximal part of a character: the ids are those of the text that Python's decode("utf-8",
 * "replace") gives. On failure (memory, limits) `out` is as long as before. */
enum status encoder_encode(struct encoder *encoder, const char *text, size_t len, unsigned flags,
                           struct token_ids *out, struct error *error);

/* The same, and tells where in the ids places of the text are: mark_tokens[i] becomes the number of
 * appended ids that lie wholly before the byte offset marks[i] (ids put before the text included).
 * Inside a stretch that normalization rewrote, places count as its start. `marks` ascend and are at
 * most `len`; ERROR_INVALID if not. */
enum status encoder_encode_marked(struct encoder *encoder, const char *text, size_t len,
                                  unsigned flags, const size_t *marks, size_t n_marks,
                                  size_t *mark_tokens, struct token_ids *out, struct error *error);

#endif
