#include "kvcache/kv_cache.h"

#include "base/size.h"
#include "kvcache/kv_struct.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- life ------------------------------------------------------------------------------------- */

/* A block has a page in each group without a window, so the smallest of these bounds them. Where
 * all groups have windows, blocks outlive their pages and could be as many as the rows' pages; a
 * multiple of the pages is enough to keep the ends of prefixes apart. */
static int32_t count_blocks(const struct kv_cache_spec *spec, int32_t max_pages)
{
    int64_t smallest_full = INT64_MAX, largest = 0;
    for (int32_t g = 0; g < spec->n_groups; g++) {
        int64_t n = spec->n_pages[g];
        if (spec->windows[g] == 0 && n < smallest_full)
            smallest_full = n;
        if (n > largest)
            largest = n;
    }
    if (smallest_full < INT64_MAX)
        return (int32_t)smallest_full;
    int64_t blocks = (int64_t)spec->n_rows * max_pages;
    if (blocks > 8 * largest)
        blocks = 8 * largest;
    if (blocks < largest)
        blocks = largest;
    return blocks > INT32_MAX / spec->page_size ? INT32_MAX / spec->page_size : (int32_t)blocks;
}

static struct radix_spec tree_of(const struct kv_cache_spec *spec)
{
    int32_t max_pages = (int32_t)ceil_div(spec->max_length, spec->page_size);
    struct radix_spec tree = {.page_size = spec->page_size,
                              .n_blocks = count_blocks(spec, max_pages),
                              .n_groups = spec->n_groups};
    memcpy(tree.windows, spec->windows, sizeof tree.windows);
    return tree;
}

static enum status init_tree(struct kv_cache *cache, const struct kv_cache_spec *spec,
                             struct error *error)
{
    struct radix_spec tree = tree_of(spec);
    cache->n_blocks = spec->type == KV_CACHE_NAIVE ? 0 : tree.n_blocks;
    enum status status =
        spec->type == KV_CACHE_NAIVE ? OK : radix_tree_new(&cache->tree, &tree, error);
    return status == OK ? kv_states_init(cache, spec->n_states, error) : status;
}

enum status kv_cache_init(struct kv_cache *cache, const struct kv_cache_spec *spec,
                          struct error *error)
{
    *cache = (struct kv_cache){.page_size = spec->page_size,
                               .page_shift = __builtin_ctz((unsigned)spec->page_size),
                               .n_rows = spec->n_rows,
                               .n_groups = spec->n_groups};
    cache->max_pages = kv_pages_of(cache, spec->max_length);
    size_t n_rows = (size_t)spec->n_rows, n_entries = n_rows * (size_t)cache->max_pages;
    cache->length = malloc(n_rows * sizeof *cache->length);
    cache->first_page = calloc(n_rows * (size_t)spec->n_groups, sizeof *cache->first_page);
    cache->rows = calloc(n_rows, sizeof *cache->rows);
    cache->blocks = malloc(n_entries * sizeof *cache->blocks);
    bool is_complete = cache->length && cache->first_page && cache->rows && cache->blocks;
    for (int32_t g = 0; g < spec->n_groups && is_complete; g++) {
        struct kv_cache_group *group = &cache->groups[g];
        group->window = spec->windows[g];
        group->page_table = malloc(n_entries * sizeof *group->page_table);
        is_complete =
            group->page_table && page_pool_init(&group->pool, spec->n_pages[g], error) == OK;
        if (group->page_table)
            memset(group->page_table, -1, n_entries * sizeof *group->page_table);
    }
    if (!is_complete || init_tree(cache, spec, error) != OK) {
        kv_cache_done(cache);
        return error_memory(error, n_entries * sizeof(int32_t));
    }
    memset(cache->length, -1, n_rows * sizeof *cache->length);
    for (int32_t row = 0; row < spec->n_rows; row++)
        cache->rows[row] = (struct kv_row){.node = -1, .state = -1, .source = -1};
    return OK;
}

size_t kv_cache_bytes(const struct kv_cache_spec *spec)
{
    struct kv_cache *cache = NULL;
    struct radix_spec tree = tree_of(spec);
    bool has_tree = spec->type != KV_CACHE_NAIVE;
    size_t entry = sizeof(int32_t), max_pages = (size_t)ceil_div(spec->max_length, spec->page_size);
    size_t row_bytes = sizeof *cache->length + sizeof *cache->rows + max_pages * entry;
    row_bytes += (size_t)spec->n_groups * (sizeof *cache->first_page + max_pages * entry);
    size_t bytes = (size_t)spec->n_rows * row_bytes + (has_tree ? radix_tree_bytes(&tree) : 0);
    for (int32_t g = 0; g < spec->n_groups; g++)
        bytes += page_pool_bytes(spec->n_pages[g]);
    bytes += (size_t)kv_max_copies(spec->n_rows, spec->n_states) * sizeof *cache->copies;
    return bytes + state_pool_bytes(spec->n_states, has_tree ? tree.n_blocks : 0, spec->page_size);
}

void kv_cache_done(struct kv_cache *cache)
{
    for (int32_t g = 0; g < cache->n_groups; g++) {
        page_pool_done(&cache->groups[g].pool);
        free(cache->groups[g].page_table);
    }
    radix_tree_free(cache->tree);
    state_pool_done(&cache->states);
    free(cache->copies);
    free(cache->length);
    free(cache->first_page);
    free(cache->rows);
    free(cache->blocks);
    *cache = (struct kv_cache){0};
}

int32_t kv_cache_open_row(struct kv_cache *cache)
{
    for (int32_t row = 0; row < cache->n_rows; row++) {
        if (cache->length[row] >= 0)
            continue;
        int32_t state = kv_cache_has_states(cache) ? kv_state_take(cache) : -1;
        if (kv_cache_has_states(cache) && state < 0)
            return -1;
        cache->length[row] = 0;
        cache->rows[row] = (struct kv_row){.node = -1, .state = state, .source = -1};
        for (int32_t g = 0; g < cache->n_groups; g++)
            *kv_first_page_of(cache, g, row) = 0;
        return row;
    }
    return -1;
}

void kv_cache_close_row(struct kv_cache *cache, int32_t row)
{
    kv_cache_truncate(cache, row, 0);
    kv_state_close(cache, row);
    cache->rows[row].prompt = NULL;
    cache->length[row] = -1;
}

/* --- giving pages up -------------------------------------------------------------------------- */

/* Empties table entries [from, to): shared pages stay with the tree, own ones become free. */
static void drop_pages(struct kv_cache *cache, int32_t g, int32_t row, int32_t from, int32_t to)
{
    struct kv_cache_group *group = &cache->groups[g];
    int32_t *pages = kv_table_row(cache, g, row), n_shared = cache->rows[row].n_shared;
    const int32_t *blocks = kv_row_blocks(cache, row);
    for (int32_t i = from; i < to; i++) {
        int32_t page = pages[i];
        pages[i] = -1;
        if (i >= n_shared)
            page_pool_give(&group->pool, page);
        else if (group->window > 0)
            radix_tree_unsee(cache->tree, g, blocks[i]);
    }
}

static int32_t first_visible_page(const struct kv_cache *cache, int32_t g, int32_t position)
{
    return radix_first_visible_page(cache->groups[g].window, position, cache->page_size);
}

static void leave_window(struct kv_cache *cache, int32_t g, int32_t row, int32_t position)
{
    int32_t *first = kv_first_page_of(cache, g, row);
    int32_t visible = first_visible_page(cache, g, position);
    int32_t end = kv_pages_of(cache, cache->length[row]);
    if (visible > end)
        visible = end;
    if (visible > *first) {
        drop_pages(cache, g, row, *first, visible);
        *first = visible;
    }
}

bool kv_cache_can_truncate(const struct kv_cache *cache, int32_t row, int32_t new_length)
{
    if (new_length == 0)
        return true;
    if (kv_cache_has_states(cache) && new_length != cache->rows[row].n_state)
        return false;
    int32_t page = new_length >> cache->page_shift;
    bool is_inside_page = (new_length & (cache->page_size - 1)) != 0;
    if (is_inside_page && page < cache->rows[row].n_shared)
        return false;
    for (int32_t g = 0; g < cache->n_groups; g++)
        if (first_visible_page(cache, g, new_length) < *kv_first_page_of(cache, g, row))
            return false;
    return true;
}

void kv_cache_truncate(struct kv_cache *cache, int32_t row, int32_t new_length)
{
    struct kv_row *r = &cache->rows[row];
    int32_t length = cache->length[row];
    assert(new_length <= length && kv_cache_can_truncate(cache, row, new_length));
    int32_t from = kv_pages_of(cache, new_length), to = kv_pages_of(cache, length);
    for (int32_t g = 0; g < cache->n_groups; g++) {
        int32_t *first = kv_first_page_of(cache, g, row);
        drop_pages(cache, g, row, from > *first ? from : *first, to);
        if (new_length == 0)
            *first = 0;
    }
    if (from < r->n_shared) {
        int32_t last = from > 0 ? kv_row_blocks(cache, row)[from - 1] : -1;
        r->node = radix_tree_retreat(cache->tree, r->node, r->n_shared - from, last);
        r->n_shared = from;
    }
    if (from < r->n_committed_pages)
        r->n_committed_pages = from;
    cache->length[row] = new_length;
    kv_state_truncate(cache, row);
}

/* --- taking pages ----------------------------------------------------------------------------- */

bool kv_cache_evict_block(struct kv_cache *cache)
{
    int32_t pages[KV_CACHE_MAX_GROUPS];
    int32_t block = cache->tree ? radix_tree_evict(cache->tree, pages) : -1;
    if (block < 0)
        return false;
    kv_state_drop_block(cache, block);
    for (int32_t g = 0; g < cache->n_groups; g++) {
        if (pages[g] < 0)
            continue;
        page_pool_give(&cache->groups[g].pool, pages[g]);
        cache->statistics.evicted_pages++;
    }
    return true;
}

/* Evicts until every group has `n` free pages; the caller knows that so many can be had. Whole
 * blocks go first, for the groups that see everything: that frees pages in window groups too. Last
 * go the part-filled pages of snapshots whose blocks are locked. */
static void make_room(struct kv_cache *cache, int32_t n)
{
    for (int32_t g = 0; g < cache->n_groups; g++)
        while (cache->groups[g].window == 0 && cache->groups[g].pool.n_free < n &&
               kv_cache_evict_block(cache))
            ;
    for (int32_t g = 0; g < cache->n_groups; g++) {
        struct kv_cache_group *group = &cache->groups[g];
        while (group->pool.n_free < n) {
            int32_t page = radix_tree_strip(cache->tree, g);
            if (page < 0) {
                kv_state_drop_oldest(cache, true);
                continue;
            }
            page_pool_give(&group->pool, page);
            cache->statistics.evicted_pages++;
        }
    }
}

static enum status check_room(const struct kv_cache *cache, int32_t n, struct error *error)
{
    for (int32_t g = 0; g < cache->n_groups; g++) {
        struct kv_counts counts = kv_cache_counts(cache, g);
        if (counts.n_free + counts.n_evictable < n)
            return error_set(error, ERROR_LIMIT,
                             "the KV cache is full: %d pages are needed and %d of %d are free; "
                             "raise --kv-cache-gb or shorten the text",
                             n, counts.n_free + counts.n_evictable, counts.n_pages);
    }
    return OK;
}

bool kv_cache_take_pages(struct kv_cache *cache, int32_t *pages)
{
    if (check_room(cache, 1, NULL) != OK)
        return false;
    make_room(cache, 1);
    for (int32_t g = 0; g < cache->n_groups; g++)
        pages[g] = page_pool_take(&cache->groups[g].pool);
    return true;
}

enum status kv_cache_extend(struct kv_cache *cache, int32_t row, int32_t new_length,
                            struct error *error)
{
    int32_t length = cache->length[row];
    assert(length >= 0 && new_length >= length);
    int32_t from = kv_pages_of(cache, length), to = kv_pages_of(cache, new_length);
    if (to > cache->max_pages)
        return error_set(error, ERROR_LIMIT,
                         "a sequence of %d tokens does not fit the limit of %d tokens", new_length,
                         cache->max_pages * cache->page_size);
    for (int32_t g = 0; g < cache->n_groups; g++)
        leave_window(cache, g, row, length);
    enum status status = check_room(cache, to - from, error);
    if (status != OK)
        return status;
    make_room(cache, to - from);
    for (int32_t g = 0; g < cache->n_groups; g++)
        for (int32_t i = from; i < to; i++)
            kv_table_row(cache, g, row)[i] = page_pool_take(&cache->groups[g].pool);
    cache->length[row] = new_length;
    return OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

int32_t kv_cache_slot(const struct kv_cache *cache, int32_t group, int32_t row, int32_t position)
{
    int32_t page = kv_table_row(cache, group, row)[position >> cache->page_shift];
    assert(page >= 0 && position < cache->length[row]);
    return (page << cache->page_shift) + (position & (cache->page_size - 1));
}

const int32_t *kv_cache_pages(const struct kv_cache *cache, int32_t group, int32_t row)
{
    return kv_table_row(cache, group, row);
}

int32_t kv_pages_needed(int32_t window, int32_t max_length, int32_t max_rows, int32_t page_size)
{
    int64_t tokens = max_length;
    /* A chunk's first token sees window - 1 tokens before it; both ends may lie inside a page. */
    if (window > 0 && (int64_t)window + max_rows + page_size < tokens)
        tokens = (int64_t)window + max_rows + page_size;
    return (int32_t)ceil_div(tokens, page_size);
}
