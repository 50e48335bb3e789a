/* The tree's pages, group by group: which a block has, and those of window groups that come and go
 * while the block stays. */
#include "kvcache/radix_struct.h"

#include <assert.h>

int32_t radix_first_visible_page(int32_t window, int32_t position, int32_t page_size)
{
    if (window == 0 || position < window)
        return 0;
    return (position - window + 1) / page_size;
}

int32_t radix_tree_page(const struct radix_tree *tree, int32_t group, int32_t block)
{
    return tree->groups[group].pages[block];
}

void radix_tree_see(struct radix_tree *tree, int32_t g, int32_t block)
{
    struct radix_group *group = &tree->groups[g];
    assert(group->window > 0 && group->pages[block] >= 0);
    if (group->seers[block]++ > 0)
        return;
    lru_remove(&group->unseen, block);
    group->n_seen++;
}

void radix_tree_unsee(struct radix_tree *tree, int32_t g, int32_t block)
{
    struct radix_group *group = &tree->groups[g];
    assert(group->window > 0 && group->seers[block] > 0);
    if (--group->seers[block] > 0)
        return;
    lru_add_newest(&group->unseen, block);
    group->n_seen--;
}

void radix_tree_donate(struct radix_tree *tree, int32_t g, int32_t block, int32_t page)
{
    struct radix_group *group = &tree->groups[g];
    assert(group->window > 0 && group->pages[block] < 0 && page >= 0);
    group->pages[block] = page;
    group->n_pages++;
    lru_add_newest(&group->unseen, block);
}

int32_t radix_tree_strip(struct radix_tree *tree, int32_t g)
{
    struct radix_group *group = &tree->groups[g];
    int32_t block = group->window > 0 ? lru_oldest(&group->unseen) : -1;
    if (block < 0)
        return -1;
    int32_t page = group->pages[block];
    lru_remove(&group->unseen, block);
    group->pages[block] = -1;
    group->n_pages--;
    return page;
}

int32_t radix_tree_pages(const struct radix_tree *tree, int32_t g)
{
    const struct radix_group *group = &tree->groups[g];
    return group->window > 0 ? group->n_pages : tree->n_used_blocks;
}

int32_t radix_tree_locked_pages(const struct radix_tree *tree, int32_t g)
{
    const struct radix_group *group = &tree->groups[g];
    return group->window > 0 ? group->n_seen : tree->n_locked_blocks;
}
