/* Random calls on the prefix cache, checked after each one against a model that keeps every cached
 * page as its own list of tokens: what is found, who owns what, and that the pages of a row hold
 * exactly the row's tokens. */
#include "kvcache/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    N_ROWS = 5,
    N_KEYS = 3,
    MAX_PAGES = 12,
    PAGE_MAX = 16,
    MAX_TOKENS = MAX_PAGES * PAGE_MAX,
    POOL_MAX = 48,
    MAX_ENTRIES = 2 * POOL_MAX + MAX_PAGES,
    STEPS = 20000
};

/* A page that the tree has: the tokens from the sequence's start to the page's end. */
struct entry {
    uint64_t key;
    int32_t n_pages;
    int32_t tokens[MAX_TOKENS];
    int32_t pages[KV_CACHE_MAX_GROUPS]; /* -1: lost, or never had */
};

struct model_row {
    bool is_open;
    uint64_t key;
    int32_t tokens[MAX_TOKENS];
    int32_t n_prompt, n_committed; /* tokens; whole pages for which commit was called */
};

struct world {
    struct kv_cache cache;
    const char *name;
    uint64_t random;
    bool has_full_group;
    struct model_row rows[N_ROWS];
    struct entry entries[MAX_ENTRIES];
    int32_t n_entries;
    /* What was last written to each slot: a hash of key and tokens up to that position, as K and V
     * depend on all of them. */
    uint64_t content[KV_CACHE_MAX_GROUPS][POOL_MAX * PAGE_MAX];
    uint64_t n_hits, n_pending, n_refused, n_mended, n_duplicates;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % n;
}

static uint64_t content_hash(uint64_t key, const int32_t *tokens, int32_t n)
{
    uint64_t hash = key + 1;
    for (int32_t i = 0; i < n; i++)
        hash = (hash ^ (uint64_t)(tokens[i] + 1)) * 0x100000001b3u + (hash >> 40);
    return hash;
}

/* --- the model -------------------------------------------------------------------------------- */

static struct entry *find_entry(struct world *w, uint64_t key, const int32_t *tokens,
                                int32_t n_pages)
{
    size_t bytes = (size_t)(n_pages * w->cache.page_size) * sizeof *tokens;
    for (int32_t i = 0; i < w->n_entries; i++) {
        struct entry *e = &w->entries[i];
        if (e->key == key && e->n_pages == n_pages && memcmp(e->tokens, tokens, bytes) == 0)
            return e;
    }
    return NULL;
}

/* Pages that were free or a row's own after a call have left the tree. */
static void forget_lost_pages(struct world *w)
{
    const struct kv_cache *c = &w->cache;
    for (int32_t g = 0; g < c->n_groups; g++) {
        bool is_own[POOL_MAX] = {false};
        for (int32_t row = 0; row < N_ROWS; row++)
            for (int32_t i = c->rows[row].n_shared; i < c->max_pages; i++) {
                int32_t page = kv_cache_pages(c, g, row)[i];
                if (page >= 0)
                    is_own[page] = true;
            }
        for (int32_t i = 0; i < w->n_entries; i++) {
            int32_t *page = &w->entries[i].pages[g];
            if (*page >= 0 && (is_own[*page] || c->groups[g].pool.is_free[*page]))
                *page = -1;
        }
    }
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_entries; i++) {
        bool has_page = false;
        for (int32_t g = 0; g < c->n_groups; g++)
            has_page |= w->entries[i].pages[g] >= 0;
        if (has_page && n != i)
            w->entries[n] = w->entries[i];
        n += has_page;
    }
    w->n_entries = n;
}

/* A prefix is usable if every group still has the pages that the next token would see. */
static bool is_usable(struct world *w, uint64_t key, const int32_t *tokens, int32_t n_pages)
{
    int32_t page_size = w->cache.page_size;
    for (int32_t g = 0; g < w->cache.n_groups; g++) {
        int32_t window = w->cache.groups[g].window;
        for (int32_t i = n_pages; i > 0; i--) {
            int32_t newest = i * page_size - 1;
            if (window > 0 && newest <= n_pages * page_size - window)
                break;
            const struct entry *e = find_entry(w, key, tokens, i);
            if (!e || e->pages[g] < 0)
                return false;
        }
    }
    return true;
}

static int32_t longest_usable(struct world *w, const struct kv_prompt *p)
{
    int32_t n = p->max_cached / w->cache.page_size;
    while (n > 0 && !is_usable(w, p->key, p->tokens, n))
        n--;
    return n;
}

static int32_t longest_pending(struct world *w, const struct kv_prompt *p, int32_t n_matched)
{
    int32_t page_size = w->cache.page_size, longest = 0;
    for (int32_t row = 0; row < N_ROWS; row++) {
        const struct model_row *r = &w->rows[row];
        int32_t n = 0;
        if (!r->is_open || r->key != p->key || r->n_committed >= r->n_prompt / page_size)
            continue;
        while (n < r->n_prompt && n < p->max_cached && r->tokens[n] == p->tokens[n])
            n++;
        n /= page_size;
        if (n > n_matched && n > r->n_committed && n > longest)
            longest = n;
    }
    return longest;
}

/* --- after every call ------------------------------------------------------------------------- */

static void check_row(struct world *w, int32_t row)
{
    const struct kv_cache *c = &w->cache;
    const struct model_row *r = &w->rows[row];
    assert_int_equal(r->is_open, c->length[row] >= 0);
    for (int32_t g = 0; g < c->n_groups && r->is_open; g++) {
        int32_t window = c->groups[g].window, length = c->length[row];
        uint64_t hash = r->key + 1;
        for (int32_t p = 0; p < length; p++) {
            hash = (hash ^ (uint64_t)(r->tokens[p] + 1)) * 0x100000001b3u + (hash >> 40);
            bool is_visible = window == 0 || p > length - window;
            if (is_visible && w->content[g][kv_cache_slot(c, g, row, p)] != hash)
                fail_msg("%s: row %d, group %d: position %d of %d holds something else", w->name,
                         row, g, p, length);
        }
        for (int32_t i = 0; i < c->rows[row].n_shared; i++) {
            int32_t page = kv_cache_pages(c, g, row)[i];
            const struct entry *e = find_entry(w, r->key, r->tokens, i + 1);
            if (page >= 0 && (!e || e->pages[g] != page))
                fail_msg("%s: row %d, group %d: shared page %d is not the tree's", w->name, row, g,
                         i);
        }
    }
}

static void check_counts(struct world *w)
{
    for (int32_t g = 0; g < w->cache.n_groups; g++) {
        int32_t n_tree = 0, n_locked = 0;
        bool is_held[POOL_MAX] = {false};
        for (int32_t row = 0; row < N_ROWS; row++)
            for (int32_t i = 0; i < w->cache.rows[row].n_shared; i++) {
                int32_t page = kv_cache_pages(&w->cache, g, row)[i];
                if (page >= 0)
                    is_held[page] = true;
            }
        for (int32_t page = 0; page < POOL_MAX; page++)
            n_locked += is_held[page];
        for (int32_t i = 0; i < w->n_entries; i++)
            n_tree += w->entries[i].pages[g] >= 0;
        struct kv_counts counts = kv_cache_counts(&w->cache, g);
        assert_int_equal(counts.n_locked, n_locked);
        assert_int_equal(counts.n_locked + counts.n_evictable, n_tree);
        assert_int_equal(counts.n_free + counts.n_evictable + counts.n_locked + counts.n_own,
                         counts.n_pages);
    }
}

static void check_world(struct world *w)
{
    forget_lost_pages(w);
    if (!kv_cache_check(&w->cache))
        fail_msg("%s: kv_cache_check fails", w->name);
    for (int32_t row = 0; row < N_ROWS; row++)
        check_row(w, row);
    check_counts(w);
}

/* --- the calls -------------------------------------------------------------------------------- */

/* Prompts made of few different pages, so that they share and part at page borders and inside. */
static void draw_prompt(struct world *w, struct kv_prompt *p, int32_t *tokens)
{
    int32_t page_size = w->cache.page_size;
    p->key = draw(w, N_KEYS);
    p->tokens = tokens;
    p->n_tokens = 1 + (int32_t)draw(w, (uint32_t)((MAX_PAGES - 2) * page_size));
    for (int32_t i = 0; i < p->n_tokens; i++) {
        if (i % page_size == 0)
            tokens[i] = draw(w, 4) == 0 ? 1000 : 0;
        else
            tokens[i] = tokens[i - 1] + (draw(w, 60) == 0 ? 2 : 1);
    }
    p->max_cached = draw(w, 4) == 0 ? (int32_t)draw(w, (uint32_t)p->n_tokens) : p->n_tokens - 1;
}

static int32_t match_prompt(struct world *w, const struct kv_prompt *p)
{
    int32_t n = longest_usable(w, p), n_pending = longest_pending(w, p, n);
    struct kv_match match = kv_cache_match(&w->cache, p);
    assert_int_equal(match.length, n * w->cache.page_size);
    assert_int_equal(match.pending_length, n_pending * w->cache.page_size);
    if (n_pending > 0)
        assert_true(w->rows[match.pending_row].is_open);
    else
        assert_int_equal(match.pending_row, -1);
    w->n_hits += n > 0;
    w->n_pending += n_pending > 0;
    return match.length;
}

/* Once all whole pages of its prompt are committed, nobody waits for a row, even if it is cut. */
static void leave_prefill(const struct world *w, struct model_row *r)
{
    if (r->n_committed >= r->n_prompt / w->cache.page_size)
        r->n_prompt = 0;
}

static void open_prompt(struct world *w)
{
    struct kv_prompt p;
    int32_t tokens[MAX_TOKENS];
    draw_prompt(w, &p, tokens);
    int32_t length = match_prompt(w, &p);
    int32_t free_row = 0;
    while (free_row < N_ROWS && w->rows[free_row].is_open)
        free_row++;
    if (free_row == N_ROWS) {
        assert_int_equal(kv_cache_open_prompt(&w->cache, &p), -1);
        return;
    }
    struct model_row *r = &w->rows[free_row];
    memcpy(r->tokens, tokens, (size_t)p.n_tokens * sizeof *tokens);
    p.tokens = r->tokens;
    assert_int_equal(kv_cache_open_prompt(&w->cache, &p), free_row);
    assert_int_equal(w->cache.length[free_row], length);
    r->is_open = true;
    r->key = p.key;
    r->n_prompt = p.n_tokens;
    r->n_committed = length / w->cache.page_size;
    leave_prefill(w, r);
}

static void extend(struct world *w, int32_t row)
{
    struct kv_cache *c = &w->cache;
    struct model_row *r = &w->rows[row];
    int32_t length = c->length[row], limit = MAX_PAGES * c->page_size;
    bool is_prefill = length < r->n_prompt;
    int32_t n = is_prefill ? 1 + (int32_t)draw(w, (uint32_t)(3 * c->page_size)) : 1;
    int32_t new_length = length + n;
    if (is_prefill && new_length > r->n_prompt)
        new_length = r->n_prompt;
    if (new_length > limit)
        return;
    uint64_t evicted = c->statistics.evicted_pages;
    int32_t need =
        (new_length + c->page_size - 1) / c->page_size - (length + c->page_size - 1) / c->page_size;
    if (kv_cache_extend(c, row, new_length, NULL) != OK) {
        bool is_short = false;
        for (int32_t g = 0; g < c->n_groups; g++) {
            struct kv_counts counts = kv_cache_counts(c, g);
            is_short |= counts.n_free + counts.n_evictable < need;
        }
        assert_true(is_short);
        assert_int_equal(c->length[row], length);
        assert_int_equal(c->statistics.evicted_pages, evicted);
        w->n_refused++;
        return;
    }
    for (int32_t p = length; p < new_length; p++) {
        if (p >= r->n_prompt)
            r->tokens[p] =
                p % c->page_size == 0 ? (draw(w, 4) == 0 ? 1000 : 0) : r->tokens[p - 1] + 1;
        uint64_t hash = content_hash(r->key, r->tokens, p + 1);
        for (int32_t g = 0; g < c->n_groups; g++)
            w->content[g][kv_cache_slot(c, g, row, p)] = hash;
    }
}

/* The model's side of handing page i of a row to the tree; `before` are the row's tables. */
static void commit_page(struct world *w, int32_t row, int32_t i,
                        int32_t before[KV_CACHE_MAX_GROUPS][MAX_PAGES])
{
    struct model_row *r = &w->rows[row];
    struct entry *e = find_entry(w, r->key, r->tokens, i + 1);
    bool is_new = !e;
    if (is_new) {
        assert_true(w->n_entries < MAX_ENTRIES);
        e = &w->entries[w->n_entries++];
        *e = (struct entry){.key = r->key, .n_pages = i + 1, .pages = {-1, -1, -1, -1}};
        memcpy(e->tokens, r->tokens, sizeof e->tokens);
    }
    for (int32_t g = 0; g < w->cache.n_groups; g++) {
        int32_t own = before[g][i], now = kv_cache_pages(&w->cache, g, row)[i];
        if (own < 0) {
            assert_int_equal(now, -1);
        } else if (e->pages[g] < 0) {
            assert_int_equal(now, own);
            e->pages[g] = own;
            w->n_mended += !is_new;
        } else {
            assert_int_equal(now, e->pages[g]);
            assert_true(w->cache.groups[g].pool.is_free[own]);
            w->n_duplicates++;
        }
    }
}

static void commit(struct world *w, int32_t row)
{
    struct kv_cache *c = &w->cache;
    struct model_row *r = &w->rows[row];
    int32_t before[KV_CACHE_MAX_GROUPS][MAX_PAGES], length = c->length[row];
    int32_t from = c->rows[row].n_shared;
    if (draw(w, 4) == 0)
        length = (int32_t)draw(w, (uint32_t)length + 1);
    for (int32_t g = 0; g < c->n_groups; g++)
        memcpy(before[g], kv_cache_pages(c, g, row), sizeof before[g]);
    kv_cache_commit(c, row, r->tokens, length);
    forget_lost_pages(w);
    int32_t n_pages = length / c->page_size, n_shared = c->rows[row].n_shared;
    if (w->has_full_group)
        assert_int_equal(n_shared, n_pages > from ? n_pages : from);
    for (int32_t i = from; i < n_shared; i++)
        commit_page(w, row, i, before);
    if (n_pages > r->n_committed)
        r->n_committed = n_pages;
    leave_prefill(w, r);
}

static void truncate_row(struct world *w, int32_t row)
{
    struct kv_cache *c = &w->cache;
    struct model_row *r = &w->rows[row];
    int32_t length = (int32_t)draw(w, (uint32_t)c->length[row] + 1);
    if (draw(w, 2) == 0)
        length -= length % c->page_size;
    if (!kv_cache_can_truncate(c, row, length))
        return;
    kv_cache_truncate(c, row, length);
    if (r->n_committed > (length + c->page_size - 1) / c->page_size)
        r->n_committed = (length + c->page_size - 1) / c->page_size;
}

static void step(struct world *w)
{
    int32_t row = (int32_t)draw(w, N_ROWS);
    uint32_t dice = draw(w, 1000);
    if (dice < 3) {
        kv_cache_flush(&w->cache);
        for (int32_t g = 0; g < w->cache.n_groups; g++)
            assert_int_equal(kv_cache_counts(&w->cache, g).n_evictable, 0);
    } else if (dice < 60) {
        struct kv_prompt p;
        int32_t tokens[MAX_TOKENS];
        draw_prompt(w, &p, tokens);
        match_prompt(w, &p);
    } else if (!w->rows[row].is_open) {
        open_prompt(w);
    } else if (dice < 150) {
        kv_cache_close_row(&w->cache, row);
        w->rows[row].is_open = false;
    } else if (dice < 190) {
        truncate_row(w, row);
    } else if (dice < 600) {
        extend(w, row);
    } else {
        commit(w, row);
    }
}

static void run_world(const char *name, const struct kv_cache_spec *spec)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->name = name;
    w->random =
        (uint64_t)spec->page_size * 7919 + (uint64_t)spec->windows[0] + (uint64_t)spec->n_groups;
    for (int32_t g = 0; g < spec->n_groups; g++)
        w->has_full_group |= spec->windows[g] == 0;
    assert_int_equal(kv_cache_init(&w->cache, spec, NULL), OK);
    for (int32_t i = 0; i < STEPS; i++) {
        step(w);
        check_world(w);
    }
    print_message(
        "%s, pages of %d: %llu hits, %llu pending, %llu mended, %llu duplicates, "
        "%llu evicted, %llu refused\n",
        name, spec->page_size, (unsigned long long)w->n_hits, (unsigned long long)w->n_pending,
        (unsigned long long)w->n_mended, (unsigned long long)w->n_duplicates,
        (unsigned long long)w->cache.statistics.evicted_pages, (unsigned long long)w->n_refused);
    /* A run that met none of these would have tested nothing. */
    assert_true(w->n_hits > 0 && w->n_pending > 0 && w->n_duplicates > 0 && w->n_refused > 0);
    if (w->has_full_group && w->cache.groups[1].window > 0)
        assert_true(w->n_mended > 0);
    assert_true(w->cache.statistics.evicted_pages > 0 && w->cache.statistics.hit_tokens > 0);
    kv_cache_done(&w->cache);
    free(w);
}

static void run_page_sizes(const char *name, int32_t n_groups, int32_t window0, int32_t window1,
                           int32_t n_pages0, int32_t n_pages1)
{
    static const int32_t page_sizes[] = {1, 4, 16};
    for (size_t i = 0; i < sizeof page_sizes / sizeof *page_sizes; i++) {
        struct kv_cache_spec spec = {.page_size = page_sizes[i],
                                     .n_rows = N_ROWS,
                                     .max_length = MAX_PAGES * page_sizes[i],
                                     .n_groups = n_groups,
                                     .windows = {window0 * page_sizes[i], window1 * page_sizes[i]},
                                     .n_pages = {n_pages0, n_pages1}};
        /* Windows that are no multiple of the page. */
        for (int32_t g = 0; g < 2; g++)
            if (spec.windows[g] > 1)
                spec.windows[g]--;
        run_world(name, &spec);
    }
}

static void one_group_that_sees_everything(void **state)
{
    (void)state;
    run_page_sizes("full", 1, 0, 0, 24, 0);
}

static void two_groups_that_see_everything(void **state)
{
    (void)state;
    run_page_sizes("full and full", 2, 0, 0, 30, 24);
}

static void a_window_beside_a_full_group(void **state)
{
    (void)state;
    run_page_sizes("full and window", 2, 0, 3, 26, 14);
}

static void windows_alone(void **state)
{
    (void)state;
    run_page_sizes("window", 1, 3, 0, 13, 0);
    run_page_sizes("two windows", 2, 2, 5, 13, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_that_sees_everything),
        cmocka_unit_test(two_groups_that_see_everything),
        cmocka_unit_test(a_window_beside_a_full_group),
        cmocka_unit_test(windows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
