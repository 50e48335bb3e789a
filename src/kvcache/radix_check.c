/* The tree checks itself: every promise of radix_tree.h that can be seen from inside. */
#include "kvcache/radix_struct.h"

#include <stdlib.h>

struct scratch {
    int32_t *refs, *n_children, *age; /* [nodes] */
    bool *is_used;                    /* [blocks] */
};

static bool is_node(const struct radix_tree *tree, int32_t id)
{
    return id >= 0 && id < tree->n_blocks && tree->nodes[id].n_blocks > 0;
}

/* Counts locks and children anew, and numbers the unlocked nodes from the oldest. */
static bool gather(const struct radix_tree *tree, const int32_t *locked, int32_t n,
                   struct scratch *s)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t steps = 0;
        for (int32_t id = locked[i]; id >= 0; id = tree->nodes[id].parent) {
            if (!is_node(tree, id) || steps++ > tree->n_blocks)
                return false;
            s->refs[id]++;
        }
    }
    for (int32_t id = 0; id < tree->n_blocks; id++)
        if (is_node(tree, id) && tree->nodes[id].parent >= 0)
            s->n_children[tree->nodes[id].parent]++;
    int32_t age = 0;
    for (int32_t id = lru_oldest(&tree->unlocked); id >= 0; id = lru_next(&tree->unlocked, id)) {
        if (!is_node(tree, id) || s->age[id] > 0)
            return false;
        s->age[id] = ++age;
    }
    return true;
}

/* The node's blocks form one chain behind its parent's last and belong to no other node. */
static bool check_run(const struct radix_tree *tree, const struct radix_node *node,
                      struct scratch *s)
{
    int32_t previous = node->parent >= 0 ? tree->nodes[node->parent].last_block : -1;
    int32_t block = node->first_block;
    for (int32_t i = 0; i < node->n_blocks; i++) {
        if (block < 0 || block >= tree->n_blocks || s->is_used[block] ||
            tree->previous[block] != previous)
            return false;
        s->is_used[block] = true;
        previous = block;
        block = tree->next[block];
    }
    return previous == node->last_block;
}

static bool check_node(const struct radix_tree *tree, int32_t id, struct scratch *s)
{
    const struct radix_node *node = &tree->nodes[id];
    if (node->parent >= 0) {
        const struct radix_node *parent = &tree->nodes[node->parent];
        bool is_order_right =
            s->age[id] == 0 || s->age[node->parent] == 0 || s->age[id] < s->age[node->parent];
        if (!is_node(tree, node->parent) || parent->key != node->key || !is_order_right)
            return false;
    }
    return node->refs == s->refs[id] && node->n_children == s->n_children[id] &&
           (node->refs == 0) == (s->age[id] > 0) && check_run(tree, node, s) &&
           radix_find_child(tree, node->key, node->parent,
                            radix_block_tokens(tree, node->first_block)) == id;
}

static bool check_nodes(const struct radix_tree *tree, struct scratch *s)
{
    int32_t n_nodes = 0, n_blocks = 0, n_locked = 0, n_free = 0;
    for (int32_t id = 0; id < tree->n_blocks; id++) {
        if (!is_node(tree, id)) {
            if (s->age[id] > 0)
                return false;
            continue;
        }
        if (!check_node(tree, id, s))
            return false;
        n_nodes++;
        n_blocks += tree->nodes[id].n_blocks;
        n_locked += tree->nodes[id].refs > 0 ? tree->nodes[id].n_blocks : 0;
    }
    for (int32_t block = tree->free_block; block >= 0; block = tree->next[block])
        if (s->is_used[block] || ++n_free > tree->n_blocks)
            return false;
    return n_blocks == tree->n_used_blocks && n_locked == tree->n_locked_blocks &&
           n_free == tree->n_blocks - n_blocks && tree->n_free_nodes == tree->n_blocks - n_nodes;
}

static bool check_group(const struct radix_tree *tree, const struct radix_group *group,
                        const struct scratch *s)
{
    int32_t n_pages = 0, n_seen = 0;
    for (int32_t block = 0; block < tree->n_blocks; block++) {
        bool has_page = s->is_used[block] && group->pages[block] >= 0;
        if (group->window == 0) {
            if (s->is_used[block] && !has_page)
                return false;
            continue;
        }
        bool is_seen = group->seers[block] > 0;
        if ((is_seen && !has_page) || lru_has(&group->unseen, block) != (has_page && !is_seen))
            return false;
        n_pages += has_page;
        n_seen += is_seen;
    }
    return group->window == 0 || (n_pages == group->n_pages && n_seen == group->n_seen);
}

bool radix_tree_check(const struct radix_tree *tree, const int32_t *locked, int32_t n)
{
    size_t size = (size_t)tree->n_blocks;
    struct scratch s = {calloc(size, sizeof *s.refs), calloc(size, sizeof *s.n_children),
                        calloc(size, sizeof *s.age), calloc(size, sizeof *s.is_used)};
    bool is_right = s.refs && s.n_children && s.age && s.is_used && gather(tree, locked, n, &s) &&
                    check_nodes(tree, &s);
    for (int32_t g = 0; g < tree->n_groups && is_right; g++)
        is_right = check_group(tree, &tree->groups[g], &s);
    free(s.refs);
    free(s.n_children);
    free(s.age);
    free(s.is_used);
    return is_right;
}

int32_t radix_tree_n_seers(const struct radix_tree *tree, int32_t g, int32_t block)
{
    return tree->groups[g].seers[block];
}

int32_t radix_tree_last_block(const struct radix_tree *tree, int32_t node)
{
    return tree->nodes[node].last_block;
}

bool radix_tree_mark_pages(const struct radix_tree *tree, int32_t g, bool *marks, int32_t n_pages,
                           int32_t *n_marked)
{
    *n_marked = 0;
    for (int32_t id = 0; id < tree->n_blocks; id++) {
        int32_t block = tree->nodes[id].first_block;
        for (int32_t i = 0; i < tree->nodes[id].n_blocks; i++, block = tree->next[block]) {
            int32_t page = tree->groups[g].pages[block];
            if (page < 0)
                continue;
            if (page >= n_pages || marks[page])
                return false;
            marks[page] = true;
            ++*n_marked;
        }
    }
    return true;
}
