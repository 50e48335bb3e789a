#include "kvcache/page_pool.h"

#include <assert.h>
#include <stdlib.h>

enum status page_pool_init(struct page_pool *pool, int32_t n_pages, struct error *error)
{
    *pool = (struct page_pool){.n_pages = n_pages};
    pool->free_pages = malloc((size_t)n_pages * sizeof *pool->free_pages);
    pool->is_free = malloc((size_t)n_pages * sizeof *pool->is_free);
    if (!pool->free_pages || !pool->is_free) {
        page_pool_done(pool);
        return error_memory(error, (size_t)n_pages * sizeof *pool->free_pages);
    }
    for (int32_t page = n_pages; page-- > 0;) {
        pool->is_free[page] = false;
        page_pool_give(pool, page);
    }
    return OK;
}

size_t page_pool_bytes(int32_t n_pages)
{
    struct page_pool *pool = NULL;
    return (size_t)n_pages * (sizeof *pool->free_pages + sizeof *pool->is_free);
}

void page_pool_done(struct page_pool *pool)
{
    free(pool->free_pages);
    free(pool->is_free);
    *pool = (struct page_pool){0};
}

int32_t page_pool_take(struct page_pool *pool)
{
    if (pool->n_free == 0)
        return -1;
    int32_t page = pool->free_pages[--pool->n_free];
    pool->is_free[page] = false;
    return page;
}

void page_pool_give(struct page_pool *pool, int32_t page)
{
    assert(page >= 0 && page < pool->n_pages && !pool->is_free[page]);
    pool->is_free[page] = true;
    pool->free_pages[pool->n_free++] = page;
}

bool page_pool_check(const struct page_pool *pool, int32_t n_used)
{
    if (pool->n_free + n_used != pool->n_pages)
        return false;
    int32_t n_marked = 0;
    for (int32_t page = 0; page < pool->n_pages; page++)
        n_marked += pool->is_free[page];
    for (int32_t i = 0; i < pool->n_free; i++)
        if (!pool->is_free[pool->free_pages[i]])
            return false;
    return n_marked == pool->n_free;
}
