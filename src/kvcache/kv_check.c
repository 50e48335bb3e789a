/* The cache checks itself: one owner a page, rows equal to the tree, counts that add up. */
#include "kvcache/kv_struct.h"

#include <stdlib.h>

/* What a check has seen of one group so far. */
struct seen {
    bool *pages;    /* [n_pages] of a row or the tree */
    int32_t *seers; /* [n_pages] rows that use a page of the tree */
    int32_t n_own;
};

/* Entry i of a row's table is the tree's page of its block, or the row's own, or none. */
static bool check_entry(const struct kv_cache *cache, int32_t g, int32_t row, int32_t i,
                        struct seen *seen)
{
    int32_t page = kv_table_row(cache, g, row)[i];
    int32_t length = cache->length[row] < 0 ? 0 : cache->length[row];
    bool has_page = page >= 0 && page < cache->groups[g].pool.n_pages;
    bool wants_page = i >= *kv_first_page_of(cache, g, row) && i < kv_pages_of(cache, length);
    if (has_page != wants_page || (!has_page && page != -1))
        return false;
    if (!has_page)
        return true;
    if (i < cache->rows[row].n_shared) {
        seen->seers[page]++;
        return page == radix_tree_page(cache->tree, g, kv_row_blocks(cache, row)[i]);
    }
    bool is_first_owner = !seen->pages[page];
    seen->pages[page] = true;
    seen->n_own++;
    return is_first_owner;
}

/* The tree's pages, reached from the rows: none is a row's own, and as many rows see a window
 * group's as the tree believes. */
static bool check_shared(const struct kv_cache *cache, int32_t g, int32_t row, struct seen *seen)
{
    for (int32_t i = *kv_first_page_of(cache, g, row); i < cache->rows[row].n_shared; i++) {
        int32_t block = kv_row_blocks(cache, row)[i], page = kv_table_row(cache, g, row)[i];
        if (seen->pages[page] || cache->groups[g].pool.is_free[page])
            return false;
        if (cache->groups[g].window > 0 &&
            radix_tree_n_seers(cache->tree, g, block) != seen->seers[page])
            return false;
    }
    return true;
}

/* The part-filled pages of snapshots have no other owner. */
static bool check_tails(const struct kv_cache *cache, int32_t g, struct seen *seen)
{
    for (int32_t slot = 0; slot < cache->states.n_slots; slot++) {
        const struct state_slot *s = &cache->states.slots[slot];
        if (s->owner != STATE_SNAPSHOT || s->n_tail == 0)
            continue;
        if (s->pages[g] < 0 || s->pages[g] >= cache->groups[g].pool.n_pages ||
            seen->pages[s->pages[g]])
            return false;
        seen->pages[s->pages[g]] = true;
    }
    return true;
}

static bool check_pages(const struct kv_cache *cache, int32_t g, struct seen *seen)
{
    for (int32_t row = 0; row < cache->n_rows; row++)
        for (int32_t i = 0; i < cache->max_pages; i++)
            if (!check_entry(cache, g, row, i, seen))
                return false;
    for (int32_t row = 0; row < cache->n_rows; row++)
        if (!check_shared(cache, g, row, seen))
            return false;
    int32_t n_tree = 0;
    if (!check_tails(cache, g, seen))
        return false;
    if (cache->tree &&
        !radix_tree_mark_pages(cache->tree, g, seen->pages, cache->groups[g].pool.n_pages, &n_tree))
        return false;
    for (int32_t page = 0; page < cache->groups[g].pool.n_pages; page++)
        if (seen->pages[page] == cache->groups[g].pool.is_free[page])
            return false;
    n_tree += cache->states.n_tails;
    struct kv_counts counts = kv_cache_counts(cache, g);
    return counts.n_own == seen->n_own && counts.n_locked + counts.n_evictable == n_tree &&
           page_pool_check(&cache->groups[g].pool, n_tree + seen->n_own);
}

static bool check_group(const struct kv_cache *cache, int32_t g)
{
    size_t n = (size_t)cache->groups[g].pool.n_pages;
    struct seen seen = {calloc(n, sizeof *seen.pages), calloc(n, sizeof *seen.seers), 0};
    bool is_right = seen.pages && seen.seers && check_pages(cache, g, &seen);
    free(seen.pages);
    free(seen.seers);
    return is_right;
}

/* A row's blocks are the tree's chain of blocks that ends where the row's node ends. */
static bool check_row(const struct kv_cache *cache, int32_t row)
{
    const struct kv_row *r = &cache->rows[row];
    const int32_t *blocks = kv_row_blocks(cache, row);
    int32_t length = cache->length[row];
    if (length < 0 || !cache->tree)
        return r->node == -1 && r->n_shared == 0 && !r->prompt;
    if (r->n_shared << cache->page_shift > length || (r->node < 0) != (r->n_shared == 0))
        return false;
    int32_t last = -1;
    for (int32_t i = 0; i < r->n_shared; i++) {
        if (radix_tree_previous_block(cache->tree, blocks[i]) != last)
            return false;
        last = blocks[i];
    }
    return r->node < 0 || radix_tree_last_block(cache->tree, r->node) == last;
}

/* The slots that an open row uses are its own, and what it continues from is a snapshot; counts
 * both. */
static bool check_row_states(const struct kv_cache *cache, int32_t row, int32_t *n_own,
                             int32_t *n_readers)
{
    const struct kv_row *r = &cache->rows[row];
    const struct state_pool *states = &cache->states;
    if (cache->length[row] < 0 || !kv_cache_has_states(cache))
        return r->state == -1 && r->source == -1 && r->n_marks == 0;
    if (r->state < 0 || states->slots[r->state].owner != STATE_ROW ||
        r->n_state > cache->length[row])
        return false;
    ++*n_own;
    for (int32_t i = 0; i < r->n_marks; i++) {
        if (r->marks[i] <= (i > 0 ? r->marks[i - 1] : r->n_state))
            return false;
        if (r->mark_slots[i] >= 0 && states->slots[r->mark_slots[i]].owner != STATE_ROW)
            return false;
        *n_own += r->mark_slots[i] >= 0;
    }
    if (r->source < 0)
        return true;
    const struct state_slot *s = &states->slots[r->source];
    int32_t last = r->n_shared > 0 ? kv_row_blocks(cache, row)[r->n_shared - 1] : -1;
    ++*n_readers;
    return s->owner == STATE_SNAPSHOT && s->n_readers > 0 && s->block == last &&
           r->n_state == (r->n_shared << cache->page_shift) + s->n_tail;
}

static bool check_states(const struct kv_cache *cache)
{
    int32_t n_own = 0, n_readers = 0, n_slots = cache->states.n_slots;
    for (int32_t row = 0; row < cache->n_rows; row++)
        if (!check_row_states(cache, row, &n_own, &n_readers))
            return false;
    for (int32_t slot = 0; slot < n_slots; slot++)
        if (cache->states.slots[slot].owner == STATE_SNAPSHOT)
            n_readers -= cache->states.slots[slot].n_readers;
    return n_readers == 0 && n_own == n_slots - cache->states.n_free - cache->states.n_snapshots &&
           state_pool_check(&cache->states, n_slots > 0 ? cache->n_blocks : 0);
}

bool kv_cache_check(const struct kv_cache *cache)
{
    int32_t *nodes = malloc((size_t)cache->n_rows * sizeof *nodes);
    bool is_right = nodes != NULL && check_states(cache);
    for (int32_t row = 0; row < cache->n_rows && is_right; row++) {
        nodes[row] = cache->rows[row].node;
        is_right = check_row(cache, row);
    }
    if (is_right && cache->tree)
        is_right = radix_tree_check(cache->tree, nodes, cache->n_rows);
    for (int32_t g = 0; g < cache->n_groups && is_right; g++)
        is_right = check_group(cache, g);
    free(nodes);
    return is_right;
}
