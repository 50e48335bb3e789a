/* Byte-pair encoding: splits a piece into bytes and merges neighbours, the lowest rank first and
 * the leftmost of equals, until no pair has a rank. It knows no text, only bytes, ids and ranks. */
#ifndef CSGL_TOKENIZER_BPE_H
#define CSGL_TOKENIZER_BPE_H

#include "base/error.h"
#include "tokenizer/vocabulary.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BPE_MAX_MERGES = 16 << 20 };

/* What the merge of a pair is worth: rank << 32 | the token it makes. Less is earlier. */
typedef uint64_t bpe_value;

/* A slot of the table of merges; free if `left` is -1. */
struct bpe_merge {
    int32_t left, right;
    bpe_value value;
};

/* Read-only once its merges are added; shared by all encoders. */
struct bpe {
    const struct vocabulary *vocabulary;
    int32_t byte_id[256]; /* the token of one byte, or -1 */
    bool has_all_bytes;
    bool ignore_merges; /* a piece that is a token is that token */
    bool fuse_unknown;
    int32_t unknown_id; /* -1: bytes without a token are dropped */

    struct bpe_merge *slots; /* [n_slots] open addressing by the pair, at most 3/4 full */
    size_t n_slots, n_used;
    size_t n_merges;     /* the next rank */
    int32_t last_result; /* what the last merge made, or -1 */
    /* Bits by the pair's hash, FILTER_BITS_PER_SLOT a slot: most pairs are no merge, and this is
     * small enough to stay in a core's cache. */
    uint64_t *filter;
    bpe_value *byte_pairs; /* [256 * 256] the values of pairs of bytes, a copy for speed */
};

/* Working memory of one encoder, grown to the longest piece. Zero-initialise, bpe_scratch_done. */
struct bpe_scratch {
    struct bpe_node *nodes;
    uint64_t *heap;
    int32_t *ids;
    size_t cap;
};

/* `vocabulary` is complete and is kept. */
enum status bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, struct error *error);
void bpe_done(struct bpe *bpe);
size_t bpe_memory(const struct bpe *bpe);

/* Adds the merge of the next rank, of tokens as the vocabulary writes them. ERROR_INVALID if the
 * vocabulary lacks one of the three. A pair that came before takes the later rank. */
enum status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_len, const char *right,
                          size_t right_len, struct str *scratch, struct error *error);

/* The ids of a piece (len > 0) are returned in *ids, valid until the next call: at most `len`. */
enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece,
                       size_t len, const int32_t **ids, size_t *n_ids, struct error *error);

void bpe_scratch_done(struct bpe_scratch *scratch);

#endif
