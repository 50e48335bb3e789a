/* The slots of recurrent states: which is free, which belongs to a row, which is a snapshot that
 * the prefix tree keeps. A slot is a number; the state in it (all layers' of one sequence after
 * some token) is the device's affair.
 *
 * A snapshot hangs on the block of the tree that its last whole page is, and brings the tokens
 * behind it, fewer than a page, with a page of its own in every KV group for their K and V. Blocks
 * neither move nor change while they are in the tree, so splitting a node changes no snapshot. */
#ifndef CSGL_KVCACHE_STATE_POOL_H
#define CSGL_KVCACHE_STATE_POOL_H

#include "base/error.h"
#include "kvcache/lru.h"
#include "kvcache/radix_tree.h"

enum state_owner { STATE_FREE, STATE_ROW, STATE_SNAPSHOT };

struct state_slot {
    enum state_owner owner;
    /* Of a snapshot: */
    int32_t block, next_at_block;
    int32_t n_tail;                  /* tokens behind the block */
    int32_t pages[RADIX_MAX_GROUPS]; /* of the tail, the snapshot's own */
    int32_t n_readers;               /* rows that will continue from it in their next step */
};

struct state_pool {
    int32_t n_slots, n_free, n_snapshots, page_size;
    int32_t n_tails, n_read_tails; /* snapshots with a tail; those of them that are being read */
    struct state_slot *slots;      /* [n_slots] */
    int32_t *free_slots;           /* a stack */
    int32_t *tails;                /* [n_slots][page_size] tokens */
    int32_t *first_at_block;       /* [n_blocks] -1: none */
    struct lru unread;             /* snapshots that no row reads */
};

enum status state_pool_init(struct state_pool *pool, int32_t n_slots, int32_t n_blocks,
                            int32_t page_size, struct error *error);
void state_pool_done(struct state_pool *pool);

/* What it takes. */
size_t state_pool_bytes(int32_t n_slots, int32_t n_blocks, int32_t page_size);

/* A slot for a row, or -1 when none is free. */
int32_t state_pool_take(struct state_pool *pool);
void state_pool_give(struct state_pool *pool, int32_t slot);

/* A row's slot becomes the snapshot of the tokens up to the end of `block` and `n_tail` more. The
 * pages, one a group, are now the snapshot's; ignored without a tail. */
void state_pool_keep(struct state_pool *pool, int32_t slot, int32_t block, const int32_t *tail,
                     int32_t n_tail, const int32_t *pages);

/* A snapshot's slot becomes free; the caller takes its pages back. Nobody may be reading it. */
void state_pool_drop(struct state_pool *pool, int32_t slot);

/* The deepest snapshot at a block whose tail begins `tokens` [n], or -1. */
int32_t state_pool_find(const struct state_pool *pool, int32_t block, const int32_t *tokens,
                        int32_t n);

/* Any snapshot at the block, or -1. */
int32_t state_pool_at(const struct state_pool *pool, int32_t block);

/* The least recently used snapshot that nobody reads, or -1; with a tail if `has_tail`. */
int32_t state_pool_oldest(const struct state_pool *pool, bool has_tail);

/* A row will continue from the snapshot, or has done so. Both mark it as used. */
void state_pool_read(struct state_pool *pool, int32_t slot);
void state_pool_unread(struct state_pool *pool, int32_t slot);
void state_pool_touch(struct state_pool *pool, int32_t slot);

/* True if lists, counts and owners agree. */
bool state_pool_check(const struct state_pool *pool, int32_t n_blocks);

#endif
