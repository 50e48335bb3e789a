/* What a tokenizer is made of; for the files of this folder only. */
#ifndef CSGL_TOKENIZER_TOKENIZER_PARTS_H
#define CSGL_TOKENIZER_TOKENIZER_PARTS_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

enum { TOKENIZER_MAX_FRAME = 64 };

/* The ids that a template puts before and behind the text. */
struct token_frame {
    int32_t before[TOKENIZER_MAX_FRAME], after[TOKENIZER_MAX_FRAME];
    size_t n_before, n_after;
};

struct tokenizer {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct added_tokens added;
    struct pretokenizer pretokenizer;
    struct token_frame frame;
    bool is_nfc;
    int32_t size;
};

/* NULL if memory is exhausted. */
struct tokenizer *tokenizer_new(void);

/* Adds an added token. A token of the vocabulary with the same text gives its id, as `tokenizers`
 * has it; an empty one is passed over. Call when vocabulary and normalizer are complete. */
enum status tokenizer_add_token(struct tokenizer *t, const struct added_token *token,
                                const char *content, size_t len, struct error *error);

/* The last step of loading: sorts the added tokens and counts the ids. */
enum status tokenizer_finish(struct tokenizer *t, struct error *error);

#endif
