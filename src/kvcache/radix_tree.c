#include "kvcache/radix_struct.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- life ------------------------------------------------------------------------------------- */

static bool allocate_group(struct radix_group *group, int32_t window, int32_t n_blocks)
{
    size_t n = (size_t)n_blocks;
    group->window = window;
    group->pages = malloc(n * sizeof *group->pages);
    if (!group->pages || window == 0)
        return group->pages != NULL;
    group->seers = calloc(n, sizeof *group->seers);
    return lru_init(&group->unseen, n_blocks) && group->seers;
}

static size_t count_buckets(int32_t n_blocks)
{
    size_t n = 16;
    while (n < (size_t)n_blocks)
        n *= 2;
    return n;
}

static bool allocate(struct radix_tree *tree, const struct radix_spec *spec)
{
    size_t n = (size_t)spec->n_blocks, n_buckets = count_buckets(spec->n_blocks);
    tree->bucket_mask = n_buckets - 1;
    tree->nodes = calloc(n, sizeof *tree->nodes);
    tree->free_nodes = malloc(n * sizeof *tree->free_nodes);
    tree->buckets = malloc(n_buckets * sizeof *tree->buckets);
    tree->previous = malloc(n * sizeof *tree->previous);
    tree->next = malloc(n * sizeof *tree->next);
    tree->tokens = calloc(n * (size_t)spec->page_size, sizeof *tree->tokens);
    bool is_complete = lru_init(&tree->unlocked, spec->n_blocks) && tree->nodes &&
                       tree->free_nodes && tree->buckets && tree->previous && tree->next &&
                       tree->tokens;
    for (int32_t g = 0; g < spec->n_groups; g++)
        if (!allocate_group(&tree->groups[g], spec->windows[g], spec->n_blocks))
            is_complete = false;
    if (tree->buckets)
        memset(tree->buckets, -1, n_buckets * sizeof *tree->buckets);
    return is_complete;
}

enum status radix_tree_new(struct radix_tree **out, const struct radix_spec *spec,
                           struct error *error)
{
    *out = NULL;
    struct radix_tree *tree = calloc(1, sizeof *tree);
    if (!tree)
        return error_memory(error, sizeof *tree);
    tree->page_size = spec->page_size;
    tree->n_blocks = spec->n_blocks;
    tree->n_groups = spec->n_groups;
    if (!allocate(tree, spec)) {
        radix_tree_free(tree);
        return error_memory(error, (size_t)spec->n_blocks * (size_t)spec->page_size *
                                       sizeof *tree->tokens);
    }
    for (int32_t g = 0; g < spec->n_groups; g++)
        tree->has_windows |= spec->windows[g] > 0;
    /* Both are taken from the front, so that a long prompt's blocks lie side by side. */
    for (int32_t i = 0; i < spec->n_blocks; i++) {
        tree->free_nodes[i] = spec->n_blocks - 1 - i;
        tree->next[i] = i + 1 < spec->n_blocks ? i + 1 : -1;
    }
    tree->n_free_nodes = spec->n_blocks;
    tree->free_block = spec->n_blocks > 0 ? 0 : -1;
    *out = tree;
    return OK;
}

size_t radix_tree_bytes(const struct radix_spec *spec)
{
    struct radix_tree *tree = NULL;
    size_t n = (size_t)spec->n_blocks, link = sizeof(int32_t);
    size_t block_bytes = sizeof *tree->nodes + sizeof *tree->free_nodes + 2 * link +
                         (size_t)spec->page_size * sizeof *tree->tokens;
    size_t bytes = sizeof *tree + n * block_bytes + lru_bytes(spec->n_blocks) +
                   count_buckets(spec->n_blocks) * sizeof *tree->buckets;
    for (int32_t g = 0; g < spec->n_groups; g++)
        bytes += spec->windows[g] > 0 ? 2 * n * link + lru_bytes(spec->n_blocks) : n * link;
    return bytes;
}

void radix_tree_free(struct radix_tree *tree)
{
    if (!tree)
        return;
    for (int32_t g = 0; g < tree->n_groups; g++) {
        free(tree->groups[g].pages);
        free(tree->groups[g].seers);
        lru_done(&tree->groups[g].unseen);
    }
    lru_done(&tree->unlocked);
    free(tree->nodes);
    free(tree->free_nodes);
    free(tree->buckets);
    free(tree->previous);
    free(tree->next);
    free(tree->tokens);
    free(tree);
}

/* --- children --------------------------------------------------------------------------------- */

/* Where a node stands: below which parent (or root), beginning with which page. */
static uint64_t place_hash(const struct radix_tree *tree, uint64_t key, int32_t parent,
                           const int32_t *tokens)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: spreads low bits upwards */
    uint64_t hash = parent >= 0 ? (uint64_t)parent : ~key;
    for (int32_t i = 0; i < tree->page_size; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * odd;
        hash ^= hash >> 29;
    }
    return hash;
}

int32_t radix_find_child(const struct radix_tree *tree, uint64_t key, int32_t parent,
                         const int32_t *tokens)
{
    uint64_t hash = place_hash(tree, key, parent, tokens);
    int32_t id = tree->buckets[hash & tree->bucket_mask];
    while (id >= 0) {
        const struct radix_node *node = &tree->nodes[id];
        if (node->hash == hash && node->parent == parent && node->key == key &&
            radix_same_page(tree, node->first_block, tokens))
            return id;
        id = node->next_in_bucket;
    }
    return -1;
}

static void enter(struct radix_tree *tree, int32_t id)
{
    struct radix_node *node = &tree->nodes[id];
    node->hash =
        place_hash(tree, node->key, node->parent, radix_block_tokens(tree, node->first_block));
    int32_t *bucket = &tree->buckets[node->hash & tree->bucket_mask];
    node->next_in_bucket = *bucket;
    *bucket = id;
}

static void leave(struct radix_tree *tree, int32_t id)
{
    int32_t *link = &tree->buckets[tree->nodes[id].hash & tree->bucket_mask];
    while (*link != id)
        link = &tree->nodes[*link].next_in_bucket;
    *link = tree->nodes[id].next_in_bucket;
}

/* Nodes never run out: each holds a block, and there are as many of the one as of the other. */
static int32_t take_node(struct radix_tree *tree)
{
    assert(tree->n_free_nodes > 0);
    return tree->free_nodes[--tree->n_free_nodes];
}

/* --- locks ------------------------------------------------------------------------------------ */

static void lock_one(struct radix_tree *tree, int32_t id)
{
    struct radix_node *node = &tree->nodes[id];
    if (node->refs++ > 0)
        return;
    lru_remove(&tree->unlocked, id);
    tree->n_locked_blocks += node->n_blocks;
}

static void unlock_one(struct radix_tree *tree, int32_t id)
{
    struct radix_node *node = &tree->nodes[id];
    if (--node->refs > 0)
        return;
    lru_add_newest(&tree->unlocked, id);
    tree->n_locked_blocks -= node->n_blocks;
}

/* Cuts a node behind its block `last`, the n_head-th. The new node gets the head and everything
 * that passed through the old one, which keeps the tail, its number, its locks and its children. */
static int32_t split(struct radix_tree *tree, int32_t id, int32_t n_head, int32_t last)
{
    int32_t upper_id = take_node(tree);
    struct radix_node *lower = &tree->nodes[id], *upper = &tree->nodes[upper_id];
    assert(n_head > 0 && n_head < lower->n_blocks);
    leave(tree, id);
    *upper = (struct radix_node){.key = lower->key,
                                 .parent = lower->parent,
                                 .n_children = 1,
                                 .refs = lower->refs,
                                 .first_block = lower->first_block,
                                 .last_block = last,
                                 .n_blocks = n_head};
    lower->parent = upper_id;
    lower->first_block = tree->next[last];
    lower->n_blocks -= n_head;
    enter(tree, upper_id);
    enter(tree, id);
    if (upper->refs == 0)
        lru_add_after(&tree->unlocked, id, upper_id);
    return upper_id;
}

int32_t radix_tree_lock(struct radix_tree *tree, const struct radix_match *match)
{
    int32_t end = match->node;
    if (end >= 0 && match->n_in_node < tree->nodes[end].n_blocks)
        end = split(tree, end, match->n_in_node, match->block);
    for (int32_t id = end; id >= 0; id = tree->nodes[id].parent)
        lock_one(tree, id);
    return end;
}

int32_t radix_tree_retreat(struct radix_tree *tree, int32_t id, int32_t n_blocks, int32_t block)
{
    /* Deepest first, so that parents become the newer ones. */
    while (id >= 0 && n_blocks >= tree->nodes[id].n_blocks) {
        n_blocks -= tree->nodes[id].n_blocks;
        int32_t parent = tree->nodes[id].parent;
        unlock_one(tree, id);
        id = parent;
    }
    if (n_blocks > 0) {
        int32_t upper = split(tree, id, tree->nodes[id].n_blocks - n_blocks, block);
        unlock_one(tree, id);
        id = upper;
    }
    assert(id < 0 ? block < 0 : tree->nodes[id].last_block == block);
    return id;
}

/* --- matching and growing --------------------------------------------------------------------- */

/* How many of a node's blocks hold these tokens, at most n; `last` is the last that does. */
static int32_t count_equal(const struct radix_tree *tree, const struct radix_node *node,
                           const int32_t *tokens, int32_t n, int32_t *last)
{
    int32_t block = node->first_block, i = 0;
    if (n > node->n_blocks)
        n = node->n_blocks;
    for (; i < n && radix_same_page(tree, block, tokens); i++) {
        *last = block;
        block = tree->next[block];
        tokens += tree->page_size;
    }
    return i;
}

/* What the walk down knows of each window group: how many blocks up to here have their page. */
struct window_runs {
    int32_t n_present[RADIX_MAX_GROUPS];
};

/* Takes block number n_blocks-1 into account: can a row continue behind it? */
static bool is_usable_behind(const struct radix_tree *tree, struct window_runs *runs, int32_t block,
                             int32_t n_blocks)
{
    bool is_usable = true;
    for (int32_t g = 0; g < tree->n_groups; g++) {
        const struct radix_group *group = &tree->groups[g];
        if (group->window == 0)
            continue;
        int32_t *n_present = &runs->n_present[g];
        *n_present = group->pages[block] >= 0 ? *n_present + 1 : 0;
        int32_t first =
            radix_first_visible_page(group->window, n_blocks * tree->page_size, tree->page_size);
        is_usable &= *n_present >= n_blocks - first;
    }
    return is_usable;
}

static void refresh_pages(struct radix_tree *tree, const struct radix_match *match)
{
    for (int32_t g = 0; g < tree->n_groups; g++) {
        struct radix_group *group = &tree->groups[g];
        if (group->window == 0)
            continue;
        int32_t block = match->block;
        int32_t first = radix_first_visible_page(group->window, match->n_blocks * tree->page_size,
                                                 tree->page_size);
        for (int32_t i = match->n_blocks; i > first; i--) {
            if (lru_has(&group->unseen, block)) {
                lru_remove(&group->unseen, block);
                lru_add_newest(&group->unseen, block);
            }
            block = tree->previous[block];
        }
    }
}

static void refresh_nodes(struct radix_tree *tree, int32_t deepest)
{
    for (int32_t id = deepest; id >= 0 && tree->nodes[id].refs == 0; id = tree->nodes[id].parent) {
        lru_remove(&tree->unlocked, id);
        lru_add_newest(&tree->unlocked, id);
    }
}

struct radix_match radix_tree_match(struct radix_tree *tree, uint64_t key, const int32_t *tokens,
                                    int32_t n_blocks)
{
    struct radix_match best = {.node = -1, .block = -1};
    struct window_runs runs = {{0}};
    int32_t id = -1, n_done = 0;
    while (n_done < n_blocks) {
        const int32_t *rest = tokens + (size_t)n_done * (size_t)tree->page_size;
        int32_t child = radix_find_child(tree, key, id, rest), last = -1;
        if (child < 0)
            break;
        id = child;
        const struct radix_node *node = &tree->nodes[id];
        int32_t n_equal = count_equal(tree, node, rest, n_blocks - n_done, &last);
        if (!tree->has_windows)
            best = (struct radix_match){n_done + n_equal, id, n_equal, last};
        int32_t block = node->first_block;
        for (int32_t i = 1; i <= n_equal && tree->has_windows; i++, block = tree->next[block])
            if (is_usable_behind(tree, &runs, block, n_done + i))
                best = (struct radix_match){n_done + i, id, i, block};
        n_done += n_equal;
        if (n_equal < node->n_blocks)
            break;
    }
    refresh_nodes(tree, id);
    if (best.n_blocks > 0)
        refresh_pages(tree, &best);
    return best;
}

int32_t radix_tree_advance(struct radix_tree *tree, uint64_t key, int32_t node,
                           const int32_t *tokens, int32_t n_blocks, int32_t *first_block,
                           int32_t *n_found)
{
    assert(n_blocks > 0);
    int32_t child = radix_find_child(tree, key, node, tokens), last = -1;
    if (child < 0)
        return -1;
    *n_found = count_equal(tree, &tree->nodes[child], tokens, n_blocks, &last);
    if (*n_found < tree->nodes[child].n_blocks)
        child = split(tree, child, *n_found, last);
    *first_block = tree->nodes[child].first_block;
    lock_one(tree, child);
    return child;
}

static void fill_block(struct radix_tree *tree, int32_t block, int32_t previous,
                       const int32_t *tokens, const int32_t *pages)
{
    size_t page_size = (size_t)tree->page_size;
    memcpy(tree->tokens + (size_t)block * page_size, tokens, page_size * sizeof *tokens);
    tree->previous[block] = previous;
    tree->next[block] = -1;
    for (int32_t g = 0; g < tree->n_groups; g++) {
        tree->groups[g].pages[block] = -1;
        if (tree->groups[g].window > 0 && pages[g] >= 0)
            radix_tree_donate(tree, g, block, pages[g]);
        else
            tree->groups[g].pages[block] = pages[g];
    }
}

int32_t radix_tree_append(struct radix_tree *tree, uint64_t key, int32_t id, const int32_t *tokens,
                          const int32_t *pages, int32_t *out)
{
    int32_t block = tree->free_block;
    if (block < 0)
        return -1;
    tree->free_block = tree->next[block];
    struct radix_node *node = id >= 0 ? &tree->nodes[id] : NULL;
    fill_block(tree, block, node ? node->last_block : -1, tokens, pages);
    tree->n_used_blocks++;
    tree->n_locked_blocks++;
    *out = block;
    /* A leaf that only the caller holds grows; other locks end where the node ends now. */
    if (node && node->refs == 1 && node->n_children == 0) {
        tree->next[node->last_block] = block;
        node->last_block = block;
        node->n_blocks++;
        return id;
    }
    if (node)
        node->n_children++;
    int32_t child = take_node(tree);
    tree->nodes[child] = (struct radix_node){.key = key,
                                             .parent = id,
                                             .refs = 1,
                                             .first_block = block,
                                             .last_block = block,
                                             .n_blocks = 1};
    enter(tree, child);
    return child;
}

/* --- eviction --------------------------------------------------------------------------------- */

static void drop_node(struct radix_tree *tree, int32_t id)
{
    int32_t parent = tree->nodes[id].parent;
    leave(tree, id);
    lru_remove(&tree->unlocked, id);
    tree->nodes[id].n_blocks = 0;
    tree->free_nodes[tree->n_free_nodes++] = id;
    if (parent >= 0)
        tree->nodes[parent].n_children--;
}

int32_t radix_tree_evict(struct radix_tree *tree, int32_t *pages)
{
    int32_t id = lru_oldest(&tree->unlocked);
    if (id < 0)
        return -1;
    struct radix_node *node = &tree->nodes[id];
    assert(node->refs == 0 && node->n_children == 0);
    int32_t block = node->last_block;
    for (int32_t g = 0; g < tree->n_groups; g++) {
        struct radix_group *group = &tree->groups[g];
        pages[g] = group->pages[block];
        if (group->window > 0 && pages[g] >= 0) {
            lru_remove(&group->unseen, block);
            group->n_pages--;
        }
    }
    if (node->n_blocks > 1) {
        node->last_block = tree->previous[block];
        node->n_blocks--;
    } else {
        drop_node(tree, id);
    }
    tree->next[block] = tree->free_block;
    tree->free_block = block;
    tree->n_used_blocks--;
    return block;
}

int32_t radix_tree_next_block(const struct radix_tree *tree, int32_t block)
{
    return tree->next[block];
}

int32_t radix_tree_previous_block(const struct radix_tree *tree, int32_t block)
{
    return tree->previous[block];
}
