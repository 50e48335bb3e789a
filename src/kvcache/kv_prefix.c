/* Sharing: finding a prompt's prefix in the tree or in a row that is computing it, and handing a
 * row's finished pages to the tree. */
#include "kvcache/kv_struct.h"

#include <assert.h>
#include <string.h>

static bool is_same(const struct kv_cache *cache, const int32_t *a, const int32_t *b, int32_t from,
                    int32_t to)
{
    size_t page_size = (size_t)cache->page_size;
    return memcmp(a + (size_t)from * page_size, b + (size_t)from * page_size,
                  (size_t)(to - from) * page_size * sizeof *a) == 0;
}

/* --- match ------------------------------------------------------------------------------------ */

/* Pages, of at most n_max, that a row in prefill will commit and that the prompt begins with; 0
 * unless that is more than n_matched and more than the row has committed. */
static int32_t count_pending(const struct kv_cache *cache, const struct kv_row *row,
                             const struct kv_prompt *prompt, int32_t n_matched, int32_t n_max)
{
    if (!row->prompt || row->key != prompt->key)
        return 0;
    int32_t n = row->n_prompt_pages < n_max ? row->n_prompt_pages : n_max;
    if (n <= n_matched || n <= row->n_committed_pages)
        return 0;
    /* The page that tells most rows apart first. */
    if (!is_same(cache, row->prompt, prompt->tokens, n_matched, n_matched + 1) ||
        !is_same(cache, row->prompt, prompt->tokens, 0, n_matched))
        return 0;
    int32_t n_common = n_matched + 1;
    while (n_common < n && is_same(cache, row->prompt, prompt->tokens, n_common, n_common + 1))
        n_common++;
    return n_common > row->n_committed_pages ? n_common : 0;
}

/* Whole pages of a prompt that may come from the cache. */
static int32_t cacheable_pages(const struct kv_cache *cache, const struct kv_prompt *prompt)
{
    int32_t limit = kv_prompt_limit(prompt);
    return limit <= 0 || !cache->tree ? 0 : limit >> cache->page_shift;
}

/* Tokens, at least a page more than n_matched, whose state a row in prefill will keep and that the
 * prompt begins with; 0 if there are none. Tells the row to keep it where the two part. */
static int32_t count_pending_state(struct kv_cache *cache, int32_t id,
                                   const struct kv_prompt *prompt, int32_t n_matched)
{
    const struct kv_row *row = &cache->rows[id];
    if (!row->prompt || row->key != prompt->key)
        return 0;
    int32_t n = row->n_prompt_pages << cache->page_shift, n_common = 0;
    if (n > kv_prompt_limit(prompt))
        n = kv_prompt_limit(prompt);
    if (n < n_matched + cache->page_size ||
        memcmp(row->prompt, prompt->tokens, (size_t)n_matched * sizeof *prompt->tokens) != 0)
        return 0;
    n_common = n_matched;
    while (n_common < n && row->prompt[n_common] == prompt->tokens[n_common])
        n_common++;
    int32_t kept = n_common < n_matched + cache->page_size ? 0 : kv_state_mark(cache, id, n_common);
    return kept > n_matched ? kept : 0;
}

/* Tokens of a match, with those behind its last page whose state is in `snapshot` if there is one.
 */
static int32_t match_length(const struct kv_cache *cache, const struct radix_match *match,
                            int32_t snapshot)
{
    int32_t n_tail = snapshot >= 0 ? cache->states.slots[snapshot].n_tail : 0;
    return (match->n_blocks << cache->page_shift) + n_tail;
}

struct kv_match kv_cache_match(struct kv_cache *cache, const struct kv_prompt *prompt)
{
    struct kv_match match = {.pending_row = -1};
    int32_t n_max = cacheable_pages(cache, prompt);
    if (n_max == 0)
        return match;
    struct radix_match found = radix_tree_match(cache->tree, prompt->key, prompt->tokens, n_max);
    int32_t snapshot = kv_state_match(cache, prompt, &found);
    match.length = match_length(cache, &found, snapshot);
    if (snapshot >= 0)
        state_pool_touch(&cache->states, snapshot);
    for (int32_t row = 0; row < cache->n_rows; row++) {
        int32_t n = kv_cache_has_states(cache)
                        ? count_pending_state(cache, row, prompt, match.length)
                        : count_pending(cache, &cache->rows[row], prompt, found.n_blocks, n_max)
                              << cache->page_shift;
        if (n <= match.pending_length)
            continue;
        match.pending_row = row;
        match.pending_length = n;
    }
    return match;
}

/* Writes a match into an empty row's tables: all blocks, and the pages that later tokens see. */
static void install(struct kv_cache *cache, int32_t row, const struct radix_match *match)
{
    int32_t *blocks = kv_row_blocks(cache, row), block = match->block;
    for (int32_t i = match->n_blocks; i-- > 0;) {
        blocks[i] = block;
        block = radix_tree_previous_block(cache->tree, block);
    }
    cache->length[row] = match->n_blocks << cache->page_shift;
    cache->rows[row].n_shared = match->n_blocks;
    for (int32_t g = 0; g < cache->n_groups; g++) {
        int32_t window = cache->groups[g].window, *pages = kv_table_row(cache, g, row);
        int32_t first = radix_first_visible_page(window, cache->length[row], cache->page_size);
        *kv_first_page_of(cache, g, row) = first;
        for (int32_t i = first; i < match->n_blocks; i++) {
            pages[i] = radix_tree_page(cache->tree, g, blocks[i]);
            if (window > 0)
                radix_tree_see(cache->tree, g, blocks[i]);
        }
    }
}

/* Asks for the states that later prompts may continue from: at the prompt's own marks, at its end,
 * and where the tree's pages, `n_kv` tokens of them, part from it. */
static void mark_prompt(struct kv_cache *cache, int32_t row, const struct kv_prompt *prompt,
                        int32_t n_kv)
{
    for (int32_t i = 0; i < prompt->n_marks; i++)
        if (prompt->marks[i] <= prompt->n_tokens)
            kv_state_mark(cache, row, prompt->marks[i]);
    kv_state_mark(cache, row, n_kv);
    kv_state_mark(cache, row, prompt->n_tokens);
}

int32_t kv_cache_open_prompt(struct kv_cache *cache, const struct kv_prompt *prompt)
{
    int32_t n_max = cacheable_pages(cache, prompt), n_kv = 0, snapshot = -1;
    struct radix_match match = {.node = -1, .block = -1};
    if (n_max > 0) {
        match = radix_tree_match(cache->tree, prompt->key, prompt->tokens, n_max);
        n_kv = match.n_blocks << cache->page_shift;
        snapshot = kv_state_match(cache, prompt, &match);
    }
    /* Before anything is evicted to make room. */
    int32_t node = radix_tree_lock(cache->tree, &match);
    if (snapshot >= 0)
        state_pool_read(&cache->states, snapshot);
    int32_t row = kv_cache_open_row(cache);
    if (row < 0) {
        if (snapshot >= 0)
            state_pool_unread(&cache->states, snapshot);
        radix_tree_retreat(cache->tree, node, match.n_blocks, -1);
        return -1;
    }
    struct kv_row *r = &cache->rows[row];
    r->key = prompt->key;
    r->n_kv_hit = n_kv;
    r->node = node;
    install(cache, row, &match);
    if (snapshot >= 0 && !kv_state_open(cache, row, snapshot)) {
        kv_cache_close_row(cache, row);
        return -1;
    }
    r->n_committed_pages = r->n_shared;
    r->n_prompt_pages = prompt->n_tokens >> cache->page_shift;
    if (cache->tree && r->n_prompt_pages > r->n_shared)
        r->prompt = prompt->tokens;
    if (cache->tree && kv_cache_has_states(cache))
        mark_prompt(cache, row, prompt, n_kv);
    cache->statistics.prompt_tokens += (uint64_t)prompt->n_tokens;
    cache->statistics.hit_tokens += (uint64_t)cache->length[row];
    return row;
}

/* --- commit ----------------------------------------------------------------------------------- */

/* The row's page i is in the tree already, as `block`: the row takes the tree's pages. Where a
 * window group of the block lacks its page, the row's becomes it. */
static void adopt(struct kv_cache *cache, int32_t row, int32_t i, int32_t block)
{
    kv_row_blocks(cache, row)[i] = block;
    for (int32_t g = 0; g < cache->n_groups; g++) {
        struct kv_cache_group *group = &cache->groups[g];
        int32_t *entry = &kv_table_row(cache, g, row)[i], own = *entry;
        if (own < 0)
            continue; /* left the window */
        int32_t shared = radix_tree_page(cache->tree, g, block);
        if (shared < 0) {
            radix_tree_donate(cache->tree, g, block, own);
        } else {
            *entry = shared;
            page_pool_give(&group->pool, own);
        }
        if (group->window > 0)
            radix_tree_see(cache->tree, g, block);
    }
}

/* The row's page i is new to the tree. False if the tree can take no more blocks. */
static bool hand_over(struct kv_cache *cache, int32_t row, int32_t i, const int32_t *tokens)
{
    struct kv_row *r = &cache->rows[row];
    int32_t pages[KV_CACHE_MAX_GROUPS], block;
    for (int32_t g = 0; g < cache->n_groups; g++)
        pages[g] = kv_table_row(cache, g, row)[i];
    int32_t node = radix_tree_append(cache->tree, r->key, r->node, tokens, pages, &block);
    /* Only where all groups have windows can blocks be used up while a row has pages. */
    while (node < 0 && kv_cache_evict_block(cache))
        node = radix_tree_append(cache->tree, r->key, r->node, tokens, pages, &block);
    if (node < 0)
        return false;
    r->node = node;
    kv_row_blocks(cache, row)[i] = block;
    for (int32_t g = 0; g < cache->n_groups; g++)
        if (cache->groups[g].window > 0 && pages[g] >= 0)
            radix_tree_see(cache->tree, g, block);
    return true;
}

void kv_cache_commit(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length)
{
    struct kv_row *r = &cache->rows[row];
    int32_t n_pages = length >> cache->page_shift;
    assert(length <= cache->length[row]);
    while (cache->tree && r->n_shared < n_pages) {
        const int32_t *rest = tokens + ((size_t)r->n_shared << cache->page_shift);
        int32_t block, n_found;
        int32_t node = radix_tree_advance(cache->tree, r->key, r->node, rest, n_pages - r->n_shared,
                                          &block, &n_found);
        if (node < 0) {
            if (!hand_over(cache, row, r->n_shared, rest))
                break;
            r->n_shared++;
            continue;
        }
        for (int32_t i = 0; i < n_found; i++) {
            adopt(cache, row, r->n_shared + i, block);
            block = radix_tree_next_block(cache->tree, block);
        }
        r->node = node;
        r->n_shared += n_found;
    }
    if (n_pages > r->n_committed_pages)
        r->n_committed_pages = n_pages;
    if (n_pages >= r->n_prompt_pages)
        r->prompt = NULL;
    kv_state_commit(cache, row, tokens);
}

void kv_cache_flush(struct kv_cache *cache)
{
    struct kv_statistics before = cache->statistics;
    if (!cache->tree)
        return;
    while (kv_state_drop_oldest(cache, false))
        ;
    while (kv_cache_evict_block(cache))
        ;
    for (int32_t g = 0; g < cache->n_groups; g++)
        for (int32_t page = radix_tree_strip(cache->tree, g); page >= 0;
             page = radix_tree_strip(cache->tree, g))
            page_pool_give(&cache->groups[g].pool, page);
    cache->statistics = before; /* nothing had to make room */
}

struct kv_counts kv_cache_counts(const struct kv_cache *cache, int32_t g)
{
    const struct page_pool *pool = &cache->groups[g].pool;
    int32_t n_shared = cache->tree ? radix_tree_pages(cache->tree, g) : 0;
    int32_t n_locked = cache->tree ? radix_tree_locked_pages(cache->tree, g) : 0;
    /* A snapshot has a part-filled page in each group. */
    n_shared += cache->states.n_tails;
    n_locked += cache->states.n_read_tails;
    return (struct kv_counts){.n_pages = pool->n_pages,
                              .n_free = pool->n_free,
                              .n_evictable = n_shared - n_locked,
                              .n_locked = n_locked,
                              .n_own = pool->n_pages - pool->n_free - n_shared};
}
