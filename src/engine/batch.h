/* One step's work: the ragged batch, plain arrays on the host. Sequence i brings tokens
 * q_start[i] .. q_start[i+1] on top of what the cache holds, be it a prefill chunk, one decode
 * token or a draft to verify. */
#ifndef CSGL_ENGINE_BATCH_H
#define CSGL_ENGINE_BATCH_H

#include "base/error.h"
#include "kvcache/kv_cache.h"

struct batch {
    int32_t max_tokens, max_sequences, max_want, max_pages; /* capacities */
    int32_t max_snapshots, max_copies;                      /* 0: the model has no states */
    int32_t n_tokens, n_sequences, n_want, n_groups, n_snapshots, n_copies;
    int32_t *tokens;    /* [T] */
    int32_t *drawn_by;  /* [T] the wanted row of the step before that draws the token, which
                         * is not known yet; -1: it is in `tokens` */
    int32_t *positions; /* [T] */
    int32_t *q_start;   /* [n_sequences + 1] */
    int32_t *kv_len;    /* [n_sequences], the step's own tokens counted */
    int32_t *want;      /* [n_want] rows whose logits are asked for, ascending */
    int32_t *rows;      /* [n_sequences] of the cache */
    int32_t *state_in, *state_out; /* [n_sequences] slots, or -1: a zero state; not written */
    int32_t *snapshots; /* [n_snapshots][2]: (row of the step, slot), rows ascending: the state
                         * after that row goes there too */
    int32_t *copies[KV_CACHE_MAX_GROUPS];     /* [n_copies][2]: pages (from, to) to copy before the
                                               * step,     in this order */
    int32_t *slots[KV_CACHE_MAX_GROUPS];      /* [T] */
    int32_t *page_table[KV_CACHE_MAX_GROUPS]; /* [n_sequences][max_pages] */
    int32_t *memory;                          /* all of the arrays */
    size_t memory_bytes;
};

enum status batch_init(struct batch *batch, const struct kv_cache *cache, int32_t max_tokens,
                       int32_t max_sequences, int32_t max_want, struct error *error);
void batch_done(struct batch *batch);

/* What the arrays of one take over a cache like this. */
size_t batch_bytes(const struct kv_cache_spec *cache, int32_t max_tokens, int32_t max_sequences,
                   int32_t max_want);
void batch_clear(struct batch *batch);

/* Which of a sequence's new rows need logits. */
enum batch_want { WANT_NONE, WANT_LAST, WANT_ALL };

/* Adds `n` new tokens of an open row of the cache and makes room for them there. ERROR_LIMIT when
 * the cache or the batch is full; nothing is changed then. */
enum status batch_add(struct batch *batch, struct kv_cache *cache, int32_t row,
                      const int32_t *tokens, int32_t n, enum batch_want want, struct error *error);

/* Adds the one token that wanted row `drawn_by` of the step before draws, and wants its logits. */
enum status batch_add_drawn(struct batch *batch, struct kv_cache *cache, int32_t row,
                            int32_t drawn_by, struct error *error);

/* Completes the step once all its tokens are added: which states are kept, which pages are copied.
 * Rows opened with a prompt, in a cache with recurrent states, need it before each step. */
void batch_finish(struct batch *batch, struct kv_cache *cache);

#endif
