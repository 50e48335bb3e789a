/* Tokens that are cut out of the text before it is split: control tokens and words that were added
 * to a vocabulary. The longest one at the leftmost place wins. */
#ifndef CSGL_TOKENIZER_ADDED_TOKENS_H
#define CSGL_TOKENIZER_ADDED_TOKENS_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADDED_TOKENS_MAX = 1 << 20, ADDED_TOKEN_MAX_BYTES = 4096 };

struct added_token {
    size_t at, len;             /* the content, in added_tokens.text */
    size_t match_at, match_len; /* what is looked for: the content, normalized if `normalized` */
    int32_t id;
    bool single_word; /* only where no word character touches it */
    bool lstrip;      /* takes the white space before it */
    bool rstrip;      /* takes the white space behind it */
    bool normalized;  /* looked for in the normalized text, not in the raw one */
    bool special;
};

/* One of the two sets: tokens of the raw text, and of the normalized text. */
struct added_set {
    const struct added_token **sorted; /* [n] by bytes of the match */
    size_t n;
    uint16_t min_len[256]; /* the shortest match that starts with this byte; 0: none does */
};

/* Zero-initialise, fill by added_tokens_append, added_tokens_finish, added_tokens_done. */
struct added_tokens {
    struct str text;
    struct added_token *items; /* [n], in order of ids once finished */
    size_t n, cap;
    struct added_set raw, normal;
};

/* Copies `content`; `token`'s offsets are ignored. `match` is what to look for (see above). */
enum status added_tokens_append(struct added_tokens *tokens, const struct added_token *token,
                                const char *content, size_t len, const char *match,
                                size_t match_len, struct error *error);

/* Sorts. ERROR_INVALID if two different tokens have the same id. */
enum status added_tokens_finish(struct added_tokens *tokens, struct error *error);
void added_tokens_done(struct added_tokens *tokens);
size_t added_tokens_memory(const struct added_tokens *tokens);

/* NULL if `id` is not an added token. */
const struct added_token *added_tokens_of_id(const struct added_tokens *tokens, int32_t id);

/* NULL if no added token has this content. */
const struct added_token *added_tokens_find(const struct added_tokens *tokens, const char *content,
                                            size_t len);

/* Finds the next token whose match starts at or behind *search, and moves *search behind the match;
 * NULL if there is none. It covers [*start, *end), white space that it strips included, but none
 * before `from`, the end of the last token. With `plain_special`, special tokens count as text. */
const struct added_token *added_tokens_next(const struct added_tokens *tokens,
                                            const struct added_set *set, const char *text, size_t n,
                                            size_t from, size_t *search, bool plain_special,
                                            size_t *start, size_t *end);

#endif
