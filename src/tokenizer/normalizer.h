/* Changes to a text before it is split: NFC, and U+FFFD for bytes that are not UTF-8. Both can say
 * which part of their result came from which part of their source. */
#ifndef CSGL_TOKENIZER_NORMALIZER_H
#define CSGL_TOKENIZER_NORMALIZER_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stretch of the source that became a stretch of the result; between edits both are the same. */
struct text_edit {
    size_t source, source_end, result, result_end;
};

/* Zero-initialise, text_edits_done. In order of offsets. */
struct text_edits {
    struct text_edit *items;
    size_t n, cap;
    bool failed;
};

void text_edits_clear(struct text_edits *edits);
void text_edits_done(struct text_edits *edits);

/* How many bytes of the result come wholly from the first `offset` bytes of the source. */
size_t text_edits_map(const struct text_edits *edits, size_t offset);

/* Working memory. Zero-initialise, nfc_scratch_done. */
struct nfc_scratch {
    struct nfc_character *characters, *sorted;
    size_t cap;
};

void nfc_scratch_done(struct nfc_scratch *scratch);

/* If `text`, valid UTF-8, is not in normal form C, its normal form replaces `out`, `*changed` is
 * true and `edits` (which may be NULL) says what was replaced. */
enum status normalize_nfc(const char *text, size_t n, struct nfc_scratch *scratch, struct str *out,
                          struct text_edits *edits, bool *changed, struct error *error);

/* Replaces `out` by `text` with U+FFFD for every maximal part of a character that is not UTF-8, as
 * Python's decode(errors="replace") does. `edits` may be NULL. */
enum status replace_invalid_utf8(const char *text, size_t n, struct str *out,
                                 struct text_edits *edits, struct error *error);

#endif
