/* The paged KV cache: for each group of layers a pool of pages and a page table, for each running
 * sequence a table row, and the tree of prefixes that sequences share. Owns which page belongs to
 * whom; the bytes belong to the device.
 *
 * Every page has one owner: the free list, the tree, or one row. The first n_shared pages of a row
 * are the tree's, locked for the row; the rest are the row's own. Pages go from a row to the tree
 * when they are committed and to the free list when the row is cut or closed; from the tree they go
 * to the free list when room is needed and nobody holds them. A row never writes into pages of the
 * tree: only whole pages are shared, and new tokens start behind them. */
#ifndef CSGL_KVCACHE_KV_CACHE_H
#define CSGL_KVCACHE_KV_CACHE_H

#include "base/error.h"
#include "device/ops.h"
#include "kvcache/page_pool.h"
#include "kvcache/radix_tree.h"

enum { KV_CACHE_MAX_GROUPS = RADIX_MAX_GROUPS };

enum kv_cache_type {
    KV_CACHE_RADIX, /* committed pages are shared and kept until room is needed */
    KV_CACHE_NAIVE  /* nothing is shared or kept */
};

struct kv_cache_group {
    int32_t window; /* 0: every token is kept */
    struct page_pool pool;
    int32_t *page_table; /* [n_rows][max_pages]; -1 where a row has no page */
};

struct kv_row {
    uint64_t key;     /* key space */
    int32_t node;     /* of the tree, locked; -1 while nothing is shared */
    int32_t n_shared; /* pages of the tree at the row's start */
    /* A prompt in prefill, for those who wait for it: borrowed, NULL once it is committed. */
    const int32_t *prompt;
    int32_t n_prompt_pages, n_committed_pages;
};

struct kv_statistics {
    uint64_t prompt_tokens; /* of all rows opened with a prompt */
    uint64_t hit_tokens;    /* of these, taken from the tree */
    uint64_t evicted_pages; /* over all groups */
};

struct kv_cache {
    int32_t page_size, page_shift;
    int32_t n_rows, max_pages; /* table rows; pages of the longest sequence */
    int32_t n_groups;
    struct kv_cache_group groups[KV_CACHE_MAX_GROUPS];
    struct radix_tree *tree; /* NULL: KV_CACHE_NAIVE */
    struct kv_row *rows;     /* [n_rows] */
    int32_t *blocks;         /* [n_rows][max_pages] the tree's block of each shared page */
    /* Per row: tokens with a slot, and the first page that has not left each group's window. */
    int32_t *length;     /* [n_rows]; -1: the row is not open */
    int32_t *first_page; /* [n_groups][n_rows] */
    struct kv_statistics statistics;
};

struct kv_cache_spec {
    enum kv_cache_type type;
    int32_t page_size; /* a power of two */
    int32_t n_rows, max_length;
    int32_t n_groups;
    int32_t windows[KV_CACHE_MAX_GROUPS];
    int32_t n_pages[KV_CACHE_MAX_GROUPS];
};

enum status kv_cache_init(struct kv_cache *cache, const struct kv_cache_spec *spec,
                          struct error *error);
void kv_cache_done(struct kv_cache *cache);

/* --- rows ------------------------------------------------------------------------------------- */

/* An empty row of key space 0, or -1 when all are taken. */
int32_t kv_cache_open_row(struct kv_cache *cache);

/* Gives the row's own pages back and lets go of the shared ones, which the tree keeps. */
void kv_cache_close_row(struct kv_cache *cache, int32_t row);

/* Makes slots for tokens length .. new_length-1 of the row in every group, after giving up the
 * pages that token `length` and later ones cannot see. Takes pages from the tree that nobody holds,
 * least recently used first, when the free ones do not suffice. All or nothing: ERROR_LIMIT when
 * there are not enough of both. */
enum status kv_cache_extend(struct kv_cache *cache, int32_t row, int32_t new_length,
                            struct error *error);

/* Forgets tokens from new_length on (a rejected draft, an edited chat). Allowed (see
 * kv_cache_can_truncate) is 0, and any length that keeps every window (tokens that have left one do
 * not come back) and does not end inside a shared page, into which the row must not write. */
void kv_cache_truncate(struct kv_cache *cache, int32_t row, int32_t new_length);
bool kv_cache_can_truncate(const struct kv_cache *cache, int32_t row, int32_t new_length);

/* Slot of a token that has one: page * page_size + place. */
int32_t kv_cache_slot(const struct kv_cache *cache, int32_t group, int32_t row, int32_t position);

/* The row's pages in a group: [max_pages], borrowed. */
const int32_t *kv_cache_pages(const struct kv_cache *cache, int32_t group, int32_t row);

/* --- shared prefixes -------------------------------------------------------------------------- */

struct kv_prompt {
    uint64_t key; /* only prompts with the same key share: adapter and version, cache salt */
    const int32_t *tokens;
    int32_t n_tokens;
    /* At most so many tokens may come from the cache: n_tokens - 1, as the last one's logits are
     * wanted, or fewer where outputs of earlier rows are. */
    int32_t max_cached;
};

struct kv_match {
    int32_t length; /* tokens, whole pages, that are there */
    /* Tokens, whole pages, that will be there once `pending_row` has committed them; 0 and -1 if
     * no open row is computing a longer common prefix than `length`. */
    int32_t pending_length, pending_row;
};

/* What the cache has of a prompt. Marks it as used, changes nothing else. */
struct kv_match kv_cache_match(struct kv_cache *cache, const struct kv_prompt *prompt);

/* Opens a row that starts with the longest prefix that the cache has: length[row] of its tokens
 * need not be computed. Returns -1 when all rows are taken. `prompt->tokens` is kept until a commit
 * reaches its last whole page or the row is closed, whichever is first. */
int32_t kv_cache_open_prompt(struct kv_cache *cache, const struct kv_prompt *prompt);

/* Shares the row's whole pages up to `length`, whose KV has been written; `tokens` are the row's
 * tokens from its start. Call it after each prefill chunk and each decode step. Pages that the tree
 * turns out to have already take the place of the row's, in its table first, and the row's are
 * freed. */
void kv_cache_commit(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length);

/* Forgets every page that no row holds. */
void kv_cache_flush(struct kv_cache *cache);

/* --- figures and checks ----------------------------------------------------------------------- */

/* n_pages is the sum of the others. */
struct kv_counts {
    int32_t n_pages, n_free;
    int32_t n_evictable; /* the tree's that no row holds: as good as free */
    int32_t n_locked;    /* the tree's that rows hold */
    int32_t n_own;       /* the rows' own */
};

struct kv_counts kv_cache_counts(const struct kv_cache *cache, int32_t group);

/* True if no page has two owners or is lost, every visible token has one, each row's shared part
 * equals the tree's, and the tree is sound. */
bool kv_cache_check(const struct kv_cache *cache);

/* Most pages that one sequence of max_length tokens fed in chunks of max_rows holds at once. */
int32_t kv_pages_needed(int32_t window, int32_t max_length, int32_t max_rows, int32_t page_size);

#endif
