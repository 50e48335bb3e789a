/* Recurrent states: which slot a row's step reads and writes, where snapshots are kept, and how a
 * row continues from one. */
#include "kvcache/kv_struct.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status kv_states_init(struct kv_cache *cache, int32_t n_states, struct error *error)
{
    if (n_states == 0)
        return OK;
    assert(n_states >= 2);
    cache->max_copies = kv_max_copies(cache->n_rows, n_states);
    cache->copies = malloc((size_t)cache->max_copies * sizeof *cache->copies);
    if (!cache->copies)
        return error_memory(error, (size_t)cache->max_copies * sizeof *cache->copies);
    return state_pool_init(&cache->states, n_states, cache->n_blocks, cache->page_size, error);
}

/* --- dropping snapshots ----------------------------------------------------------------------- */

static void drop_snapshot(struct kv_cache *cache, int32_t slot)
{
    const struct state_slot *s = &cache->states.slots[slot];
    for (int32_t g = 0; g < cache->n_groups && s->n_tail > 0; g++)
        page_pool_give(&cache->groups[g].pool, s->pages[g]);
    state_pool_drop(&cache->states, slot);
    cache->statistics.evicted_snapshots++;
}

bool kv_state_drop_oldest(struct kv_cache *cache, bool has_tail)
{
    if (!kv_cache_has_states(cache))
        return false;
    int32_t slot = state_pool_oldest(&cache->states, has_tail);
    if (slot >= 0)
        drop_snapshot(cache, slot);
    return slot >= 0;
}

void kv_state_drop_block(struct kv_cache *cache, int32_t block)
{
    if (!kv_cache_has_states(cache))
        return;
    for (int32_t slot; (slot = state_pool_at(&cache->states, block)) >= 0;)
        drop_snapshot(cache, slot);
}

int32_t kv_state_take(struct kv_cache *cache)
{
    if (cache->states.n_free == 0)
        kv_state_drop_oldest(cache, false);
    return state_pool_take(&cache->states);
}

/* --- continuing from a snapshot --------------------------------------------------------------- */

int32_t kv_state_match(struct kv_cache *cache, const struct kv_prompt *prompt,
                       struct radix_match *match)
{
    int32_t limit = kv_prompt_limit(prompt), block = match->block;
    if (!kv_cache_has_states(cache))
        return -1;
    for (int32_t n = match->n_blocks; n > 0; n--) {
        int32_t length = n << cache->page_shift;
        int32_t slot =
            state_pool_find(&cache->states, block, prompt->tokens + length, limit - length);
        if (slot >= 0 && n < match->n_blocks) {
            /* Window groups may lack pages that are needed here and not further down. */
            *match = radix_tree_match(cache->tree, prompt->key, prompt->tokens, n);
            if (match->n_blocks < n)
                return kv_state_match(cache, prompt, match);
        }
        if (slot >= 0)
            return slot;
        block = radix_tree_previous_block(cache->tree, block);
    }
    *match = (struct radix_match){.node = -1, .block = -1};
    return -1;
}

bool kv_state_open(struct kv_cache *cache, int32_t row, int32_t snapshot)
{
    struct kv_row *r = &cache->rows[row];
    const struct state_slot *s = &cache->states.slots[snapshot];
    int32_t pages[KV_CACHE_MAX_GROUPS];
    r->source = snapshot;
    if (s->n_tail > 0 && !kv_cache_take_pages(cache, pages))
        return false;
    for (int32_t g = 0; g < cache->n_groups && s->n_tail > 0; g++)
        kv_table_row(cache, g, row)[r->n_shared] = pages[g];
    cache->length[row] += s->n_tail;
    r->n_state = cache->length[row];
    return true;
}

/* --- marks ------------------------------------------------------------------------------------ */

int32_t kv_state_mark(struct kv_cache *cache, int32_t row, int32_t length)
{
    struct kv_row *r = &cache->rows[row];
    int32_t size = cache->page_size, i = r->n_marks;
    /* A snapshot needs a block, and the one that the row continues from will do for a page. */
    if (length < size || length <= r->n_state || (r->source >= 0 && length < r->n_state + size))
        return 0;
    while (i > 0 && r->marks[i - 1] > length)
        i--;
    if (i > 0 && r->marks[i - 1] > length - size)
        return r->marks[i - 1];
    /* A mark within a page behind is not worth a slot any more. */
    int32_t end = i;
    while (end < r->n_marks && r->marks[end] < length + size)
        end++;
    if (end == i && r->n_marks == KV_MAX_MARKS)
        return i > 0 ? r->marks[i - 1] : 0;
    memmove(&r->marks[i + 1], &r->marks[end], (size_t)(r->n_marks - end) * sizeof *r->marks);
    r->marks[i] = length;
    r->n_marks += 1 - (end - i);
    memset(r->mark_slots, -1, sizeof r->mark_slots);
    return length;
}

/* Forgets the first n marks; slots that they have are free again. */
static void forget_marks(struct kv_cache *cache, struct kv_row *r, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (r->mark_slots[i] >= 0)
            state_pool_give(&cache->states, r->mark_slots[i]);
    r->n_marks -= n;
    memmove(r->marks, r->marks + n, (size_t)r->n_marks * sizeof *r->marks);
    memset(r->mark_slots, -1, sizeof r->mark_slots);
}

static void leave_source(struct kv_cache *cache, struct kv_row *r)
{
    if (r->source >= 0)
        state_pool_unread(&cache->states, r->source);
    r->source = -1;
}

void kv_state_truncate(struct kv_cache *cache, int32_t row)
{
    struct kv_row *r = &cache->rows[row];
    for (int32_t i = 0; i < r->n_marks; i++) {
        if (r->mark_slots[i] >= 0)
            state_pool_give(&cache->states, r->mark_slots[i]);
        r->mark_slots[i] = -1;
    }
    if (cache->length[row] > 0)
        return;
    forget_marks(cache, r, r->n_marks);
    leave_source(cache, r);
    r->n_state = 0;
}

void kv_state_close(struct kv_cache *cache, int32_t row)
{
    struct kv_row *r = &cache->rows[row];
    if (r->state >= 0)
        state_pool_give(&cache->states, r->state);
    r->state = -1;
}

/* --- a step ----------------------------------------------------------------------------------- */

int32_t kv_cache_state_in(const struct kv_cache *cache, int32_t row)
{
    const struct kv_row *r = &cache->rows[row];
    if (cache->length[row] == 0)
        return -1;
    return r->source >= 0 ? r->source : r->state;
}

struct kv_state_step kv_cache_begin_step(struct kv_cache *cache, int32_t row)
{
    struct kv_row *r = &cache->rows[row];
    struct kv_state_step step = {0};
    if (r->source >= 0 && cache->states.slots[r->source].n_tail > 0) {
        step.has_copy = true;
        for (int32_t g = 0; g < cache->n_groups; g++) {
            step.copy.from[g] = cache->states.slots[r->source].pages[g];
            step.copy.to[g] = kv_table_row(cache, g, row)[r->n_state >> cache->page_shift];
        }
        cache->statistics.copied_pages++;
    }
    for (int32_t i = 0; i < r->n_marks && r->marks[i] <= cache->length[row]; i++) {
        if (r->mark_slots[i] < 0)
            r->mark_slots[i] = kv_state_take(cache);
        if (r->mark_slots[i] < 0)
            continue;
        step.marks[step.n_snapshots] = r->marks[i];
        step.slots[step.n_snapshots++] = r->mark_slots[i];
    }
    return step;
}

/* --- keeping snapshots ------------------------------------------------------------------------ */

/* The block that a snapshot of the row's first `length` tokens hangs on, if it is in the tree and
 * has no such snapshot yet; else -1. */
static int32_t place_of(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length)
{
    int32_t n_blocks = length >> cache->page_shift, whole = n_blocks << cache->page_shift;
    if (n_blocks == 0 || cache->rows[row].n_shared < n_blocks)
        return -1;
    int32_t block = kv_row_blocks(cache, row)[n_blocks - 1];
    int32_t slot = state_pool_find(&cache->states, block, tokens + whole, length - whole);
    if (slot < 0 || cache->states.slots[slot].n_tail < length - whole)
        return block;
    state_pool_touch(&cache->states, slot);
    return -1;
}

/* The state after `length` tokens is in `slot`, which the tree takes over, with a copy of the
 * part-filled page as it will be when the step ends. */
static void keep_marked(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length,
                        int32_t slot)
{
    struct kv_page_copy copy = {{0}, {0}};
    int32_t page = length >> cache->page_shift, whole = page << cache->page_shift;
    int32_t block = place_of(cache, row, tokens, length);
    bool has_tail = length > whole;
    if (block < 0 || (has_tail && (cache->n_copies == cache->max_copies ||
                                   !kv_cache_take_pages(cache, copy.to)))) {
        state_pool_give(&cache->states, slot);
        return;
    }
    state_pool_keep(&cache->states, slot, block, tokens + whole, length - whole, copy.to);
    cache->statistics.snapshots++;
    if (!has_tail)
        return;
    for (int32_t g = 0; g < cache->n_groups; g++)
        copy.from[g] = kv_table_row(cache, g, row)[page];
    cache->copies[cache->n_copies++] = copy;
    cache->statistics.copied_pages++;
}

void kv_state_commit(struct kv_cache *cache, int32_t row, const int32_t *tokens)
{
    struct kv_row *r = &cache->rows[row];
    int32_t n_passed = 0;
    if (!kv_cache_has_states(cache))
        return;
    leave_source(cache, r);
    while (n_passed < r->n_marks && r->marks[n_passed] <= cache->length[row]) {
        int32_t slot = r->mark_slots[n_passed];
        if (slot >= 0)
            keep_marked(cache, row, tokens, r->marks[n_passed], slot);
        r->mark_slots[n_passed++] = -1;
    }
    forget_marks(cache, r, n_passed);
    r->n_state = cache->length[row];
}

/* The row's own slot and part-filled page become a snapshot of all its tokens. */
static void keep_end(struct kv_cache *cache, int32_t row, const int32_t *tokens)
{
    struct kv_row *r = &cache->rows[row];
    int32_t pages[KV_CACHE_MAX_GROUPS] = {0};
    int32_t length = cache->length[row], page = length >> cache->page_shift;
    int32_t whole = page << cache->page_shift, block = place_of(cache, row, tokens, length);
    if (block < 0)
        return;
    for (int32_t g = 0; g < cache->n_groups && length > whole; g++) {
        int32_t *entry = &kv_table_row(cache, g, row)[page];
        pages[g] = *entry;
        *entry = -1;
    }
    cache->length[row] = whole;
    state_pool_keep(&cache->states, r->state, block, tokens + whole, length - whole, pages);
    cache->statistics.snapshots++;
    r->state = -1;
}

void kv_cache_leave_row(struct kv_cache *cache, int32_t row, const int32_t *tokens)
{
    const struct kv_row *r = &cache->rows[row];
    bool has_state = cache->tree && kv_cache_has_states(cache) && r->source < 0;
    if (has_state && r->n_state == cache->length[row])
        keep_end(cache, row, tokens);
    kv_cache_close_row(cache, row);
}
