/* Shared by the kv_*.c files: where a row's entries lie, making room, recurrent states. */
#ifndef CSGL_KVCACHE_KV_STRUCT_H
#define CSGL_KVCACHE_KV_STRUCT_H

#include "kvcache/kv_cache.h"

#include <stddef.h>

static inline int32_t kv_pages_of(const struct kv_cache *cache, int32_t length)
{
    return (length + cache->page_size - 1) >> cache->page_shift;
}

static inline int32_t *kv_table_row(const struct kv_cache *cache, int32_t group, int32_t row)
{
    return cache->groups[group].page_table + (size_t)row * (size_t)cache->max_pages;
}

static inline int32_t *kv_first_page_of(const struct kv_cache *cache, int32_t group, int32_t row)
{
    return &cache->first_page[(size_t)group * (size_t)cache->n_rows + (size_t)row];
}

/* The tree's blocks of the row's shared pages. */
static inline int32_t *kv_row_blocks(const struct kv_cache *cache, int32_t row)
{
    return cache->blocks + (size_t)row * (size_t)cache->max_pages;
}

/* Frees the pages of the tree's least recently used block, and the snapshots there; false when all
 * are locked. */
bool kv_cache_evict_block(struct kv_cache *cache);

/* Takes a page of every group, making room; false, and nothing is taken, if one has none left. */
bool kv_cache_take_pages(struct kv_cache *cache, int32_t *pages);

/* Tokens that a prompt may take from the cache. */
static inline int32_t kv_prompt_limit(const struct kv_prompt *prompt)
{
    return prompt->max_cached < prompt->n_tokens - 1 ? prompt->max_cached : prompt->n_tokens - 1;
}

/* --- kv_state.c ------------------------------------------------------------------------------- */

enum status kv_states_init(struct kv_cache *cache, int32_t n_states, struct error *error);

/* A slot for a row: a free one, or that of the least recently used snapshot; -1 if all are in use.
 */
int32_t kv_state_take(struct kv_cache *cache);

/* Drops the snapshots at a block that leaves the tree. */
void kv_state_drop_block(struct kv_cache *cache, int32_t block);

/* Drops the least recently used snapshot that no row reads; false if there is none. */
bool kv_state_drop_oldest(struct kv_cache *cache, bool has_tail);

/* Shortens a match to the deepest snapshot in it and returns that, or -1 with an empty match. */
int32_t kv_state_match(struct kv_cache *cache, const struct kv_prompt *prompt,
                       struct radix_match *match);

/* Makes the row, which has the snapshot's whole pages, continue behind the snapshot's tail. False
 * if there is no page for that. */
bool kv_state_open(struct kv_cache *cache, int32_t row, int32_t snapshot);

/* Asks the row to keep its state after `length` tokens. Returns the length, at most a page less, at
 * which it will be kept, or 0 if it will not. */
int32_t kv_state_mark(struct kv_cache *cache, int32_t row, int32_t length);

/* The row was cut to its new length, or ends. */
void kv_state_truncate(struct kv_cache *cache, int32_t row);
void kv_state_close(struct kv_cache *cache, int32_t row);

/* The row's step has run and its whole pages are in the tree. */
void kv_state_commit(struct kv_cache *cache, int32_t row, const int32_t *tokens);

#endif
