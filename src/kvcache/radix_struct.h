/* The prefix tree's own structures, shared by the radix_*.c files. */
#ifndef CSGL_KVCACHE_RADIX_STRUCT_H
#define CSGL_KVCACHE_RADIX_STRUCT_H

#include "kvcache/lru.h"
#include "kvcache/radix_tree.h"

#include <stddef.h>

struct radix_node {
    uint64_t key;
    uint64_t hash;  /* of its place: parent (or key) and first block's tokens */
    int32_t parent; /* -1: the root of its key space */
    int32_t next_in_bucket;
    int32_t n_children;
    int32_t refs; /* locks at its end or below */
    int32_t first_block, last_block;
    int32_t n_blocks; /* 0: the node is free */
};

struct radix_group {
    int32_t window;
    int32_t *pages; /* [n_blocks] -1 where the block has none */
    /* Window groups only: */
    int32_t *seers; /* [n_blocks] rows that see the block's page */
    struct lru unseen;
    int32_t n_pages, n_seen;
};

struct radix_tree {
    int32_t page_size, n_blocks, n_groups;
    bool has_windows;

    struct radix_node *nodes; /* [n_blocks] */
    int32_t *free_nodes;      /* a stack */
    int32_t n_free_nodes;
    int32_t *buckets; /* [bucket_mask + 1] the children of all nodes, hashed */
    uint64_t bucket_mask;
    struct lru unlocked;

    /* Blocks: the one before (in the node above for a node's first), the one after in its node
     * (free blocks are chained through it). */
    int32_t *previous, *next; /* [n_blocks] */
    int32_t *tokens;          /* [n_blocks][page_size] */
    int32_t free_block;
    int32_t n_used_blocks, n_locked_blocks;

    struct radix_group groups[RADIX_MAX_GROUPS];
};

static inline const int32_t *radix_block_tokens(const struct radix_tree *tree, int32_t block)
{
    return tree->tokens + (size_t)block * (size_t)tree->page_size;
}

static inline bool radix_same_page(const struct radix_tree *tree, int32_t block,
                                   const int32_t *tokens)
{
    const int32_t *mine = radix_block_tokens(tree, block);
    int32_t differences = 0;
    for (int32_t i = 0; i < tree->page_size; i++)
        differences |= mine[i] ^ tokens[i];
    return differences == 0;
}

/* The child of `parent` (-1: of the key space's root) that begins with this page; -1 if none. */
int32_t radix_find_child(const struct radix_tree *tree, uint64_t key, int32_t parent,
                         const int32_t *tokens);

#endif
