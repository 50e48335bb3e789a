/* A byte-level BPE tokenizer, as the Hugging Face `tokenizers` package runs it: text to token ids
 * and back. Ids equal those of that package (see encoder.h for text that is not UTF-8).
 *
 * Supported: BPE with merges as strings or pairs, ignore_merges, unknown tokens; NFC; the
 * pre-tokenizers Split, ByteLevel and Digits and sequences of them; added tokens with all their
 * flags; the post-processors TemplateProcessing and ByteLevel. Anything else is refused at load by
 * name. */
#ifndef CSGL_TOKENIZER_TOKENIZER_H
#define CSGL_TOKENIZER_TOKENIZER_H

#include "base/error.h"
#include "base/str.h"
#include "base/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Immutable once loaded; may be shared by threads. */
struct tokenizer;

/* Reads a tokenizer.json. `*out` is the caller's, to be freed by tokenizer_free. */
enum status tokenizer_load(const char *path, struct tokenizer **out, struct error *error);

/* The same from memory, which is borrowed for the call. */
enum status tokenizer_load_json_memory(const char *data, size_t bytes, struct tokenizer **out,
                                       struct error *error);

/* The same from the keys of a GGUF file, borrowed for the call. */
enum status tokenizer_load_vocab(const struct vocab *vocab, struct tokenizer **out,
                                 struct error *error);

void tokenizer_free(struct tokenizer *tokenizer);

/* Bytes that it holds: its tables and texts. */
size_t tokenizer_memory(const struct tokenizer *tokenizer);

/* All ids are below this number; some below it may be absent. */
int32_t tokenizer_size(const struct tokenizer *tokenizer);

/* Bits of tokenizer_token_flags. */
enum {
    TOKEN_ADDED = 1,   /* cut out of the text before it is split */
    TOKEN_SPECIAL = 2, /* an added token that decoding can leave out */
};

unsigned tokenizer_token_flags(const struct tokenizer *tokenizer, int32_t id);

/* The bytes a token stands for, which need not be whole characters; for an added token the text it
 * replaces. Borrowed from the tokenizer, not NUL-terminated. NULL if there is no such id. */
const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len);

/* The id of an added token with this content, else of the token that stands for these bytes; -1 if
 * there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len);

/* Appends the text of `n` ids, U+FFFD for what is not UTF-8; ids that do not exist are passed over.
 */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                             bool skip_special, struct str *out, struct error *error);

#endif
