#include "kvcache/state_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status state_pool_init(struct state_pool *pool, int32_t n_slots, int32_t n_blocks,
                            int32_t page_size, struct error *error)
{
    size_t n = (size_t)n_slots, n_tail_tokens = n * (size_t)page_size;
    *pool = (struct state_pool){.n_slots = n_slots, .n_free = n_slots, .page_size = page_size};
    if (n_slots == 0)
        return OK;
    pool->slots = calloc(n, sizeof *pool->slots);
    pool->free_slots = malloc(n * sizeof *pool->free_slots);
    pool->tails = calloc(n_tail_tokens, sizeof *pool->tails);
    pool->first_at_block = malloc(((size_t)n_blocks + 1) * sizeof *pool->first_at_block);
    if (!lru_init(&pool->unread, n_slots) || !pool->slots || !pool->free_slots || !pool->tails ||
        !pool->first_at_block) {
        state_pool_done(pool);
        return error_memory(error, (n_tail_tokens + (size_t)n_blocks) * sizeof *pool->tails);
    }
    memset(pool->first_at_block, -1, ((size_t)n_blocks + 1) * sizeof *pool->first_at_block);
    for (int32_t slot = 0; slot < n_slots; slot++)
        pool->free_slots[slot] = n_slots - 1 - slot;
    return OK;
}

size_t state_pool_bytes(int32_t n_slots, int32_t n_blocks, int32_t page_size)
{
    struct state_pool *pool = NULL;
    size_t slot_bytes =
        sizeof *pool->slots + sizeof *pool->free_slots + (size_t)page_size * sizeof *pool->tails;
    return n_slots == 0 ? 0
                        : (size_t)n_slots * slot_bytes + lru_bytes(n_slots) +
                              ((size_t)n_blocks + 1) * sizeof *pool->first_at_block;
}

void state_pool_done(struct state_pool *pool)
{
    free(pool->slots);
    free(pool->free_slots);
    free(pool->tails);
    free(pool->first_at_block);
    lru_done(&pool->unread);
    *pool = (struct state_pool){0};
}

int32_t state_pool_take(struct state_pool *pool)
{
    if (pool->n_free == 0)
        return -1;
    int32_t slot = pool->free_slots[--pool->n_free];
    pool->slots[slot] = (struct state_slot){.owner = STATE_ROW};
    return slot;
}

void state_pool_give(struct state_pool *pool, int32_t slot)
{
    assert(pool->slots[slot].owner == STATE_ROW);
    pool->slots[slot].owner = STATE_FREE;
    pool->free_slots[pool->n_free++] = slot;
}

static int32_t *tail_of(const struct state_pool *pool, int32_t slot)
{
    return pool->tails + (size_t)slot * (size_t)pool->page_size;
}

void state_pool_keep(struct state_pool *pool, int32_t slot, int32_t block, const int32_t *tail,
                     int32_t n_tail, const int32_t *pages)
{
    struct state_slot *s = &pool->slots[slot];
    assert(s->owner == STATE_ROW && n_tail < pool->page_size);
    *s = (struct state_slot){.owner = STATE_SNAPSHOT,
                             .block = block,
                             .next_at_block = pool->first_at_block[block],
                             .n_tail = n_tail};
    pool->first_at_block[block] = slot;
    lru_add_newest(&pool->unread, slot);
    pool->n_snapshots++;
    if (n_tail == 0)
        return;
    memcpy(tail_of(pool, slot), tail, (size_t)n_tail * sizeof *tail);
    memcpy(s->pages, pages, sizeof s->pages);
    pool->n_tails++;
}

void state_pool_drop(struct state_pool *pool, int32_t slot)
{
    struct state_slot *s = &pool->slots[slot];
    assert(s->owner == STATE_SNAPSHOT && s->n_readers == 0);
    int32_t *link = &pool->first_at_block[s->block];
    while (*link != slot)
        link = &pool->slots[*link].next_at_block;
    *link = s->next_at_block;
    lru_remove(&pool->unread, slot);
    pool->n_snapshots--;
    pool->n_tails -= s->n_tail > 0;
    s->owner = STATE_FREE;
    pool->free_slots[pool->n_free++] = slot;
}

int32_t state_pool_at(const struct state_pool *pool, int32_t block)
{
    return pool->first_at_block[block];
}

int32_t state_pool_find(const struct state_pool *pool, int32_t block, const int32_t *tokens,
                        int32_t n)
{
    int32_t best = -1;
    for (int32_t slot = pool->first_at_block[block]; slot >= 0;
         slot = pool->slots[slot].next_at_block) {
        const struct state_slot *s = &pool->slots[slot];
        if (s->n_tail <= n && (best < 0 || s->n_tail > pool->slots[best].n_tail) &&
            memcmp(tail_of(pool, slot), tokens, (size_t)s->n_tail * sizeof *tokens) == 0)
            best = slot;
    }
    return best;
}

int32_t state_pool_oldest(const struct state_pool *pool, bool has_tail)
{
    int32_t slot = lru_oldest(&pool->unread);
    while (has_tail && slot >= 0 && pool->slots[slot].n_tail == 0)
        slot = lru_next(&pool->unread, slot);
    return slot;
}

void state_pool_read(struct state_pool *pool, int32_t slot)
{
    struct state_slot *s = &pool->slots[slot];
    assert(s->owner == STATE_SNAPSHOT);
    if (s->n_readers++ > 0)
        return;
    lru_remove(&pool->unread, slot);
    pool->n_read_tails += s->n_tail > 0;
}

void state_pool_unread(struct state_pool *pool, int32_t slot)
{
    struct state_slot *s = &pool->slots[slot];
    assert(s->owner == STATE_SNAPSHOT && s->n_readers > 0);
    if (--s->n_readers > 0)
        return;
    lru_add_newest(&pool->unread, slot);
    pool->n_read_tails -= s->n_tail > 0;
}

void state_pool_touch(struct state_pool *pool, int32_t slot)
{
    if (pool->slots[slot].n_readers > 0)
        return;
    lru_remove(&pool->unread, slot);
    lru_add_newest(&pool->unread, slot);
}

/* Each snapshot hangs on its block once. */
static bool check_blocks(const struct state_pool *pool, int32_t n_blocks)
{
    int32_t n = 0;
    for (int32_t block = 0; block < n_blocks; block++)
        for (int32_t slot = pool->first_at_block[block]; slot >= 0;
             slot = pool->slots[slot].next_at_block)
            if (slot >= pool->n_slots || pool->slots[slot].owner != STATE_SNAPSHOT ||
                pool->slots[slot].block != block || ++n > pool->n_snapshots)
                return false;
    return n == pool->n_snapshots;
}

bool state_pool_check(const struct state_pool *pool, int32_t n_blocks)
{
    int32_t n_free = 0, n_snapshots = 0, n_tails = 0, n_read_tails = 0;
    for (int32_t slot = 0; slot < pool->n_slots; slot++) {
        const struct state_slot *s = &pool->slots[slot];
        bool is_snapshot = s->owner == STATE_SNAPSHOT;
        if (lru_has(&pool->unread, slot) != (is_snapshot && s->n_readers == 0))
            return false;
        n_free += s->owner == STATE_FREE;
        n_snapshots += is_snapshot;
        n_tails += is_snapshot && s->n_tail > 0;
        n_read_tails += is_snapshot && s->n_tail > 0 && s->n_readers > 0;
    }
    for (int32_t i = 0; i < pool->n_free; i++)
        if (pool->slots[pool->free_slots[i]].owner != STATE_FREE)
            return false;
    return n_free == pool->n_free && n_snapshots == pool->n_snapshots && n_tails == pool->n_tails &&
           n_read_tails == pool->n_read_tails && check_blocks(pool, n_blocks);
}
