/* The prefix tree: which pages hold the KV of which tokens, whoever computed it. Owns nodes, their
 * token runs and the numbers of the pages handed to it; knows neither table rows nor free lists.
 *
 * A block is one whole page of a sequence: its page_size tokens and its page in every KV group. A
 * node is a run of blocks that nothing has split yet; its children differ in their first block.
 * Each key space (adapter, cache salt) has a root of its own, which is not stored: -1 names it.
 *
 * Locks. A row locks the node at whose end its shared part stops, and with it every node above, by
 * reference count. Unlocked nodes lie in one list from least to most recently used. Whoever uses a
 * node has used its parents, so parents are always newer than their children: the oldest node is a
 * leaf, and eviction takes that leaf's last block in constant time.
 *
 * Windows. A group of layers that sees only the last W tokens needs only the pages of the last
 * W - 1 tokens before the point where a row continues. The tree keeps every page it is given; when
 * such a group runs short, the pages that no row sees go, least recently used first, whichever
 * node they belong to (radix_tree_strip), and the block stays without them. A prefix can be
 * matched up to a point only if each group still has the pages that are needed there. */
#ifndef CSGL_KVCACHE_RADIX_TREE_H
#define CSGL_KVCACHE_RADIX_TREE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RADIX_MAX_GROUPS = 4 };

struct radix_tree;

struct radix_spec {
    int32_t page_size;                 /* tokens a block */
    int32_t n_blocks;                  /* capacity; nodes need no more than that */
    int32_t n_groups;                  /* at most RADIX_MAX_GROUPS */
    int32_t windows[RADIX_MAX_GROUPS]; /* 0: the group sees everything */
};

/* Everything is allocated here; no later call allocates. */
enum status radix_tree_new(struct radix_tree **tree, const struct radix_spec *spec,
                           struct error *error);
void radix_tree_free(struct radix_tree *tree);

/* What it takes. */
size_t radix_tree_bytes(const struct radix_spec *spec);

/* The oldest page, counted from a sequence's start, that the token at `position` sees in a group
 * with that window (0: everything). */
int32_t radix_first_visible_page(int32_t window, int32_t position, int32_t page_size);

/* A prefix that is there. Valid until the tree changes. */
struct radix_match {
    int32_t n_blocks; /* 0: nothing usable, and node is -1 */
    int32_t node;     /* where it ends: after the first n_in_node blocks of this node */
    int32_t n_in_node;
    int32_t block; /* its last block */
};

/* The longest usable prefix of `n_blocks` whole pages of tokens. Refreshes what it walked over. */
struct radix_match radix_tree_match(struct radix_tree *tree, uint64_t key, const int32_t *tokens,
                                    int32_t n_blocks);

/* Locks a match and returns the node that ends there, splitting one if need be (-1 if the match is
 * empty). Nodes that others hold stay what they are for them. */
int32_t radix_tree_lock(struct radix_tree *tree, const struct radix_match *match);

/* Moves a lock from the end of `node` `n_blocks` blocks towards the root; `block` is the block it
 * then ends with, -1 at the root. Returns the node that ends there. */
int32_t radix_tree_retreat(struct radix_tree *tree, int32_t node, int32_t n_blocks, int32_t block);

/* Moves a lock from the end of `node` down over what the tree already has of the next `n_blocks`
 * pages of tokens: over one node at most. Returns that node with its first block and length, or -1
 * when the very next page is new. */
int32_t radix_tree_advance(struct radix_tree *tree, uint64_t key, int32_t node,
                           const int32_t *tokens, int32_t n_blocks, int32_t *first_block,
                           int32_t *n_found);

/* Adds one new block below the end of `node`, which the caller has locked, and moves the lock onto
 * it. `pages`, one a group, now belong to the tree; -1 for a page that has left its window.
 * Returns the node it went to, or -1 when the tree has no block left. radix_tree_advance has just
 * returned -1 for these tokens. */
int32_t radix_tree_append(struct radix_tree *tree, uint64_t key, int32_t node,
                          const int32_t *tokens, const int32_t *pages, int32_t *block);

int32_t radix_tree_page(const struct radix_tree *tree, int32_t group, int32_t block);
int32_t radix_tree_next_block(const struct radix_tree *tree, int32_t block);
int32_t radix_tree_previous_block(const struct radix_tree *tree, int32_t block);

/* A row sees, or no longer sees, the block's page of a window group. */
void radix_tree_see(struct radix_tree *tree, int32_t group, int32_t block);
void radix_tree_unsee(struct radix_tree *tree, int32_t group, int32_t block);

/* Gives a block of a window group the page that it lacks. */
void radix_tree_donate(struct radix_tree *tree, int32_t group, int32_t block, int32_t page);

/* Drops the last block of the least recently used leaf; returns it, and its pages, one a group, -1
 * where it had none. -1 when all nodes are locked. */
int32_t radix_tree_evict(struct radix_tree *tree, int32_t *pages);

/* Takes the least recently used page of a window group that no row sees; -1 if there is none. */
int32_t radix_tree_strip(struct radix_tree *tree, int32_t group);

/* Pages that the tree has in a group, and how many of them are locked. */
int32_t radix_tree_pages(const struct radix_tree *tree, int32_t group);
int32_t radix_tree_locked_pages(const struct radix_tree *tree, int32_t group);

/* True if the structure is sound and its reference counts are those of exactly these locks: one
 * locked node a row, -1 for none. */
bool radix_tree_check(const struct radix_tree *tree, const int32_t *locked_nodes, int32_t n);

/* For checks: how many rows see the block's page of a window group; a node's last block; marks the
 * tree's pages of a group in `marks` [n_pages] and counts them, false if one is marked already. */
int32_t radix_tree_n_seers(const struct radix_tree *tree, int32_t group, int32_t block);
int32_t radix_tree_last_block(const struct radix_tree *tree, int32_t node);
bool radix_tree_mark_pages(const struct radix_tree *tree, int32_t group, bool *marks,
                           int32_t n_pages, int32_t *n_marked);

#endif
