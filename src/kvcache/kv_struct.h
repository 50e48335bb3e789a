/* Shared by the kv_*.c files: where a row's entries lie, and making room. */
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

/* Frees the pages of the tree's least recently used block; false when all are locked. */
bool kv_cache_evict_block(struct kv_cache *cache);

#endif
