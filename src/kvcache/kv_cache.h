/* The paged KV cache: for each group of layers a pool of pages and a page table, for each running
 * sequence a table row, and the tree of prefixes that sequences share. Owns which page and which
 * slot of recurrent states belong to whom; the bytes belong to the device.
 *
 * Every page has one owner: the free list, the tree, or one row. The first n_shared pages of a row
 * are the tree's, locked for the row; the rest are the row's own. Pages go from a row to the tree
 * when they are committed and to the free list when the row is cut or closed; from the tree they go
 * to the free list when room is needed and nobody holds them. A row never writes into pages of the
 * tree: only whole pages are shared, and new tokens start behind them.
 *
 * Recurrent states. A model with them can continue a prefix only where its state is known, so the
 * tree keeps snapshots: states at chosen tokens, each in a slot, with the part-filled page behind
 * the last whole one. A row continues from the deepest snapshot at or above the pages that it
 * matches: its first step reads the snapshot's slot, writes the row's own, and gets a copy of the
 * part-filled page. Snapshots are written from inside a step, where the row passes one of its
 * marks, and one is left by a row that ends (kv_cache_leave_row). When slots run short the least
 * recently used snapshot goes and its KV stays; when pages run short snapshots go with theirs. */
#ifndef CSGL_KVCACHE_KV_CACHE_H
#define CSGL_KVCACHE_KV_CACHE_H

#include "base/error.h"
#include "device/ops.h"
#include "kvcache/page_pool.h"
#include "kvcache/radix_tree.h"
#include "kvcache/state_pool.h"

enum { KV_CACHE_MAX_GROUPS = RADIX_MAX_GROUPS, KV_MAX_MARKS = 8 };

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
    int32_t n_kv_hit; /* tokens whose K and V the tree had when the row was opened */
    /* Recurrent state: */
    int32_t state;   /* the row's own slot; -1 in a cache without states */
    int32_t n_state; /* tokens whose state is known: in `source` if that is >= 0, else in `state` */
    int32_t source;  /* the snapshot that the row's first step continues from; -1 */
    int32_t n_marks; /* lengths, ascending, all > n_state, at which the state is to be kept */
    int32_t marks[KV_MAX_MARKS];
    int32_t mark_slots[KV_MAX_MARKS]; /* that the step being made writes them to; -1: none yet */
};

/* A part-filled page to copy before the next step writes anything, one pair a group. */
struct kv_page_copy {
    int32_t from[KV_CACHE_MAX_GROUPS], to[KV_CACHE_MAX_GROUPS];
};

struct kv_statistics {
    uint64_t prompt_tokens;                /* of all rows opened with a prompt */
    uint64_t hit_tokens;                   /* of these, not to be computed again */
    uint64_t evicted_pages;                /* over all groups */
    uint64_t snapshots, evicted_snapshots; /* made; dropped to make room */
    uint64_t copied_pages; /* part-filled pages, for snapshots and for rows that continue there */
};

struct kv_cache {
    int32_t page_size, page_shift;
    int32_t n_rows, max_pages; /* table rows; pages of the longest sequence */
    int32_t n_groups;
    struct kv_cache_group groups[KV_CACHE_MAX_GROUPS];
    struct radix_tree *tree; /* NULL: KV_CACHE_NAIVE */
    int32_t n_blocks;        /* that the tree has room for */
    struct kv_row *rows;     /* [n_rows] */
    struct state_pool states;
    struct kv_page_copy *copies; /* [max_copies] for the next step, in this order, before those of
                                  * kv_cache_begin_step; the batch takes them */
    int32_t n_copies, max_copies;
    int32_t *blocks; /* [n_rows][max_pages] the tree's block of each shared page */
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
    int32_t n_states; /* slots of recurrent states, at least 2; 0: the model has none */
};

enum status kv_cache_init(struct kv_cache *cache, const struct kv_cache_spec *spec,
                          struct error *error);

/* What its tables and tree take; pages and states are the device's. */
size_t kv_cache_bytes(const struct kv_cache_spec *spec);

/* Part-filled pages that may wait for the next step to copy them. */
static inline int32_t kv_max_copies(int32_t n_rows, int32_t n_states)
{
    return n_states > 0 ? n_rows * KV_MAX_MARKS : 0;
}
void kv_cache_done(struct kv_cache *cache);

/* --- rows ------------------------------------------------------------------------------------- */

/* An empty row of key space 0, or -1 when all rows or all state slots are taken. */
int32_t kv_cache_open_row(struct kv_cache *cache);

/* Gives the row's own pages and its state back and lets go of the shared pages, which the tree
 * keeps. */
void kv_cache_close_row(struct kv_cache *cache, int32_t row);

/* Closes the row and leaves its state in the tree as a snapshot, if the last step of the row was
 * committed. `tokens` are the row's from its start, all of them. */
void kv_cache_leave_row(struct kv_cache *cache, int32_t row, const int32_t *tokens);

/* Makes slots for tokens length .. new_length-1 of the row in every group, after giving up the
 * pages that token `length` and later ones cannot see. Takes pages from the tree that nobody holds,
 * least recently used first, when the free ones do not suffice. All or nothing: ERROR_LIMIT when
 * there are not enough of both. */
enum status kv_cache_extend(struct kv_cache *cache, int32_t row, int32_t new_length,
                            struct error *error);

/* Forgets tokens from new_length on (a rejected draft, an edited chat). Allowed (see
 * kv_cache_can_truncate) is 0, and any length that keeps every window (tokens that have left one do
 * not come back) and does not end inside a shared page, into which the row must not write; with
 * recurrent states, which do not run backwards, only what was added since the last commit and has
 * not been run. */
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
    /* Lengths, ascending, at which other prompts may part from this one: the state is kept there,
     * at the prompt's end and where the tree's prompts part from it. */
    const int32_t *marks;
    int32_t n_marks;
};

struct kv_match {
    int32_t length; /* tokens that are there; whole pages, or up to a snapshot */
    /* Tokens that will be there once `pending_row` has committed them; 0 and -1 if no open row is
     * computing a longer common prefix than `length`. */
    int32_t pending_length, pending_row;
};

/* What the cache has of a prompt. Marks it as used; where a row that is computing the same prefix
 * will part from it, that row is told to keep its state. Changes nothing else. */
struct kv_match kv_cache_match(struct kv_cache *cache, const struct kv_prompt *prompt);

/* Opens a row that starts with the longest prefix that the cache has: length[row] of its tokens
 * need not be computed. Returns -1 when all rows, all state slots, or all pages for a part-filled
 * page are taken. `prompt->tokens` is kept until a commit reaches its last whole page or the row is
 * closed, whichever is first. */
int32_t kv_cache_open_prompt(struct kv_cache *cache, const struct kv_prompt *prompt);

/* Shares the row's whole pages up to `length`, which may be less than the row's where its last
 * tokens are not known yet; `tokens` are those from its start. Call it after each prefill chunk and
 * each decode step, when the step has run or is queued on a device that works in the order of its
 * queue: whoever takes the pages reads them in a later step. Pages that the tree turns out to have
 * already take the place of the row's, in its table first, and the row's are freed. */
void kv_cache_commit(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length);

/* Forgets every page and snapshot that no row holds. */
void kv_cache_flush(struct kv_cache *cache);

/* --- recurrent states ------------------------------------------------------------------------- */

/* The slot that a step reads which adds tokens to the row as it is, -1 for a zero state. The step
 * writes rows[row].state. */
int32_t kv_cache_state_in(const struct kv_cache *cache, int32_t row);

/* What a row's next step does besides. */
struct kv_state_step {
    /* The state after the first marks[i] tokens goes to slots[i] too. */
    int32_t n_snapshots, marks[KV_MAX_MARKS], slots[KV_MAX_MARKS];
    bool has_copy; /* of the part-filled page that the row continues */
    struct kv_page_copy copy;
};

static inline bool kv_cache_has_states(const struct kv_cache *cache)
{
    return cache->states.n_slots > 0;
}

/* Call it when the step's tokens have their slots (kv_cache_extend), then run the step, then commit
 * it. Takes slots for the marks that the step passes, as far as there are any. */
struct kv_state_step kv_cache_begin_step(struct kv_cache *cache, int32_t row);

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
