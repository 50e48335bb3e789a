/* The free pages of one KV group. Pages are numbers; what lies in them is the device's affair. */
#ifndef CSGL_KVCACHE_PAGE_POOL_H
#define CSGL_KVCACHE_PAGE_POOL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct page_pool {
    int32_t n_pages, n_free;
    int32_t *free_pages; /* a stack: the page freed last is taken first, warm in the caches */
    bool *is_free;       /* [n_pages], for page_pool_check and against double frees */
};

enum status page_pool_init(struct page_pool *pool, int32_t n_pages, struct error *error);
void page_pool_done(struct page_pool *pool);

/* What it takes. */
size_t page_pool_bytes(int32_t n_pages);

/* A page, or -1 when none is free. */
int32_t page_pool_take(struct page_pool *pool);
void page_pool_give(struct page_pool *pool, int32_t page);

/* True if the free list and the marks agree; n_used pages are expected to be in use. */
bool page_pool_check(const struct page_pool *pool, int32_t n_used);

#endif
