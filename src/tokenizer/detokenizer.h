/* Turns ids into text one by one. A character whose bytes are spread over tokens comes out when it
 * is complete, never in part; bytes that turn out not to be UTF-8 come out as U+FFFD. */
#ifndef CSGL_TOKENIZER_DETOKENIZER_H
#define CSGL_TOKENIZER_DETOKENIZER_H

#include "tokenizer/tokenizer.h"

/* detokenizer_init, push ..., finish, detokenizer_done. The tokenizer is kept. */
struct detokenizer {
    const struct tokenizer *tokenizer;
    struct str text; /* what the last call completed */
    char held[4];    /* the start of a character */
    size_t n_held;
};

/* What one token adds to the text. Borrowed until the next call. */
struct detokenizer_piece {
    const char *text; /* what ordinary tokens completed; UTF-8, may be empty */
    size_t len;
    const char *added; /* behind it: the text of an added token; empty for others */
    size_t added_len;
    unsigned flags; /* of this token: TOKEN_ADDED, TOKEN_SPECIAL */
    int32_t id;
};

void detokenizer_init(struct detokenizer *d, const struct tokenizer *tokenizer);

/* An added token travels by itself, in `added`; `text` then holds U+FFFD if a character before it
 * was not complete, else nothing. An id that does not exist gives an empty piece. Fails only for
 * want of memory. */
enum status detokenizer_push(struct detokenizer *d, int32_t id, struct detokenizer_piece *piece,
                             struct error *error);

/* The end of the ids: U+FFFD if a character was not complete. The detokenizer is as new afterwards.
 */
enum status detokenizer_finish(struct detokenizer *d, struct detokenizer_piece *piece,
                               struct error *error);

void detokenizer_done(struct detokenizer *d);

#endif
