/* What sharing prefixes promises to the scheduler, one sentence a test. */
#include "kvcache/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 4, N_ROWS = 4, MAX_LENGTH = 160 };

static struct kv_cache new_cache(enum kv_cache_type type, int32_t window, int32_t n_pages,
                                 int32_t n_window_pages)
{
    struct kv_cache cache;
    struct kv_cache_spec spec = {.type = type,
                                 .page_size = PAGE,
                                 .n_rows = N_ROWS,
                                 .max_length = MAX_LENGTH,
                                 .n_groups = window > 0 ? 2 : 1,
                                 .windows = {0, window},
                                 .n_pages = {n_pages, n_window_pages}};
    assert_int_equal(kv_cache_init(&cache, &spec, NULL), OK);
    return cache;
}

static struct kv_prompt prompt_of(const int32_t *tokens, int32_t n)
{
    return (struct kv_prompt){.tokens = tokens, .n_tokens = n, .max_cached = n - 1};
}

static void count_up(int32_t *tokens, int32_t n, int32_t first)
{
    for (int32_t i = 0; i < n; i++)
        tokens[i] = first + i;
}

/* Opens a row and computes and commits its whole prompt. */
static int32_t run_prompt(struct kv_cache *cache, const int32_t *tokens, int32_t n)
{
    struct kv_prompt prompt = prompt_of(tokens, n);
    int32_t row = kv_cache_open_prompt(cache, &prompt);
    assert_true(row >= 0);
    assert_int_equal(kv_cache_extend(cache, row, n, NULL), OK);
    kv_cache_commit(cache, row, tokens, n);
    assert_true(kv_cache_check(cache));
    return row;
}

static int32_t match_length(struct kv_cache *cache, const int32_t *tokens, int32_t n)
{
    struct kv_prompt prompt = prompt_of(tokens, n);
    return kv_cache_match(cache, &prompt).length;
}

static void finds_a_chunk_once_it_is_committed_but_never_the_last_token(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 32, 0);
    int32_t tokens[20];
    count_up(tokens, 20, 100);
    struct kv_prompt prompt = prompt_of(tokens, 16);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    assert_int_equal(kv_cache_extend(&cache, row, 10, NULL), OK);
    assert_int_equal(match_length(&cache, tokens, 16), 0);
    kv_cache_commit(&cache, row, tokens, 10);
    assert_int_equal(match_length(&cache, tokens, 16), 8);
    assert_int_equal(kv_cache_extend(&cache, row, 16, NULL), OK);
    kv_cache_commit(&cache, row, tokens, 16);
    assert_int_equal(match_length(&cache, tokens, 16), 12);
    assert_int_equal(match_length(&cache, tokens, 17), 16);
    prompt.max_cached = 7;
    assert_int_equal(kv_cache_match(&cache, &prompt).length, 4);
    assert_int_equal(match_length(&cache, tokens, 1), 0);
    kv_cache_done(&cache);
}

static void shares_pages_between_rows_and_counts_them_once(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 10, 0);
    int32_t a[24], b[24];
    count_up(a, 24, 0);
    memcpy(b, a, sizeof b);
    b[18] = 999;
    int32_t first = run_prompt(&cache, a, 24), second = run_prompt(&cache, b, 24);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(kv_cache_pages(&cache, 0, first)[i], kv_cache_pages(&cache, 0, second)[i]);
    for (int32_t i = 4; i < 6; i++)
        assert_int_not_equal(kv_cache_pages(&cache, 0, first)[i],
                             kv_cache_pages(&cache, 0, second)[i]);
    struct kv_counts counts = kv_cache_counts(&cache, 0);
    assert_int_equal(counts.n_locked, 8);
    assert_int_equal(counts.n_free, 2);
    assert_int_equal(cache.statistics.hit_tokens, 16);
    assert_int_equal(cache.statistics.prompt_tokens, 48);
    kv_cache_done(&cache);
}

static void keeps_key_spaces_apart(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 32, 0);
    int32_t tokens[16];
    count_up(tokens, 16, 0);
    run_prompt(&cache, tokens, 16);
    struct kv_prompt prompt = prompt_of(tokens, 16);
    prompt.key = 1;
    assert_int_equal(kv_cache_match(&cache, &prompt).length, 0);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    assert_int_equal(kv_cache_extend(&cache, row, 16, NULL), OK);
    kv_cache_commit(&cache, row, tokens, 16);
    assert_int_equal(kv_cache_match(&cache, &prompt).length, 12);
    assert_int_equal(kv_cache_counts(&cache, 0).n_locked, 8);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

static void tells_which_row_is_computing_a_common_prefix(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 64, 0);
    int32_t a[40], b[40];
    count_up(a, 40, 0);
    memcpy(b, a, sizeof b);
    b[30] = 999;
    struct kv_prompt prompt = prompt_of(a, 40), other = prompt_of(b, 40);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    struct kv_match match = kv_cache_match(&cache, &other);
    assert_int_equal(match.length, 0);
    assert_int_equal(match.pending_length, 28);
    assert_int_equal(match.pending_row, row);
    assert_int_equal(kv_cache_extend(&cache, row, 16, NULL), OK);
    kv_cache_commit(&cache, row, a, 16);
    match = kv_cache_match(&cache, &other);
    assert_int_equal(match.length, 16);
    assert_int_equal(match.pending_length, 28);
    assert_int_equal(kv_cache_extend(&cache, row, 32, NULL), OK);
    kv_cache_commit(&cache, row, a, 32);
    /* All that both have in common is there, though the row is still in prefill. */
    match = kv_cache_match(&cache, &other);
    assert_int_equal(match.length, 28);
    assert_int_equal(match.pending_row, -1);
    /* A row that was cancelled computes nothing any more. */
    assert_int_equal(kv_cache_match(&cache, &prompt).pending_row, row);
    kv_cache_close_row(&cache, row);
    assert_int_equal(kv_cache_match(&cache, &prompt).pending_row, -1);
    assert_int_equal(kv_cache_match(&cache, &prompt).length, 32);
    kv_cache_done(&cache);
}

/* Two rows compute the same prompt at once; the later one's pages must not be freed while its
 * table still names them. */
static void takes_the_trees_pages_for_duplicates_before_freeing_them(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 16, 0);
    int32_t tokens[24];
    count_up(tokens, 24, 0);
    struct kv_prompt prompt = prompt_of(tokens, 24);
    int32_t first = kv_cache_open_prompt(&cache, &prompt);
    int32_t second = kv_cache_open_prompt(&cache, &prompt);
    assert_int_equal(kv_cache_extend(&cache, first, 22, NULL), OK);
    assert_int_equal(kv_cache_extend(&cache, second, 24, NULL), OK);
    kv_cache_commit(&cache, first, tokens, 14);
    kv_cache_commit(&cache, second, tokens, 24);
    kv_cache_commit(&cache, first, tokens, 22);
    assert_true(kv_cache_check(&cache));
    for (int32_t i = 0; i < 5; i++)
        assert_int_equal(kv_cache_pages(&cache, 0, first)[i], kv_cache_pages(&cache, 0, second)[i]);
    assert_int_equal(cache.groups[0].pool.n_free, 16 - 6 - 1);
    for (int32_t i = 0; i < 6; i++)
        assert_false(cache.groups[0].pool.is_free[kv_cache_pages(&cache, 0, first)[i]]);
    kv_cache_done(&cache);
}

static void keeps_what_a_closed_row_committed_and_frees_its_tail(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 16, 0);
    int32_t tokens[40];
    count_up(tokens, 40, 0);
    int32_t row = run_prompt(&cache, tokens, 14);
    for (int32_t n = 15; n <= 23; n++) { /* decode, page by page */
        assert_int_equal(kv_cache_extend(&cache, row, n, NULL), OK);
        kv_cache_commit(&cache, row, tokens, n);
        assert_true(kv_cache_check(&cache));
    }
    kv_cache_close_row(&cache, row);
    assert_true(kv_cache_check(&cache));
    struct kv_counts counts = kv_cache_counts(&cache, 0);
    assert_int_equal(counts.n_evictable, 5);
    assert_int_equal(counts.n_own, 0);
    assert_int_equal(match_length(&cache, tokens, 40), 20);
    kv_cache_done(&cache);
}

static void evicts_the_least_recently_used_first_and_from_its_end(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 12, 0);
    int32_t a[16], b[16], c[16];
    count_up(a, 16, 0);
    count_up(b, 16, 100);
    count_up(c, 16, 200);
    int32_t row_a = run_prompt(&cache, a, 16);
    kv_cache_close_row(&cache, run_prompt(&cache, b, 16));
    kv_cache_close_row(&cache, run_prompt(&cache, c, 16));
    kv_cache_close_row(&cache, row_a);               /* closing makes a the newest */
    assert_int_equal(match_length(&cache, b, 6), 4); /* and a match on its first page b */
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 3 * PAGE, NULL), OK);
    assert_int_equal(match_length(&cache, c, 16), 4); /* c went, but for its first page */
    assert_int_equal(kv_cache_extend(&cache, row, 6 * PAGE, NULL), OK);
    /* c was looked at last, b before: it was a's turn, all but its first page. */
    assert_int_equal(match_length(&cache, a, 16), 4);
    assert_int_equal(match_length(&cache, b, 16), 12);
    assert_int_equal(match_length(&cache, c, 16), 4);
    assert_int_equal(cache.statistics.evicted_pages, 6);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

static void never_evicts_what_a_row_holds(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 8, 0);
    struct error error = {0};
    int32_t a[32], b[32];
    count_up(a, 32, 0);
    count_up(b, 32, 100);
    kv_cache_close_row(&cache, run_prompt(&cache, a, 16));
    int32_t holder = run_prompt(&cache, a, 10); /* holds a's first two pages and one more */
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 5 * PAGE + 1, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "full"));
    assert_int_equal(cache.statistics.evicted_pages, 0);
    assert_int_equal(match_length(&cache, a, 32), 16);
    assert_int_equal(kv_cache_extend(&cache, row, 5 * PAGE, &error), OK);
    assert_int_equal(cache.length[holder], 10);
    assert_int_equal(match_length(&cache, a, 32), 8);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

static void cuts_a_row_inside_its_shared_part_only_at_a_page(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 0, 16, 0);
    int32_t tokens[24];
    count_up(tokens, 24, 0);
    int32_t row = run_prompt(&cache, tokens, 22);
    assert_true(kv_cache_can_truncate(&cache, row, 21)); /* its own page */
    assert_false(kv_cache_can_truncate(&cache, row, 10));
    assert_true(kv_cache_can_truncate(&cache, row, 8));
    kv_cache_truncate(&cache, row, 21);
    kv_cache_truncate(&cache, row, 8);
    assert_true(kv_cache_check(&cache));
    /* It goes on differently; what it had before is still there for others. */
    int32_t edited[24];
    memcpy(edited, tokens, sizeof edited);
    edited[9] = 999;
    assert_int_equal(kv_cache_extend(&cache, row, 16, NULL), OK);
    kv_cache_commit(&cache, row, edited, 16);
    assert_true(kv_cache_check(&cache));
    assert_int_equal(match_length(&cache, tokens, 24), 20);
    assert_int_equal(match_length(&cache, edited, 24), 16);
    kv_cache_done(&cache);
}

/* Window 8, pages of 4: to continue at token n, the tokens from n - 7 on must be there. */
static void matches_only_where_a_window_has_its_pages(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 8, 40, 12);
    int32_t a[48], other[40];
    count_up(a, 48, 0);
    count_up(other, 40, 1000);
    kv_cache_close_row(&cache, run_prompt(&cache, a, 40));
    assert_int_equal(match_length(&cache, a, 16), 12); /* everything is still there */
    assert_int_equal(match_length(&cache, a, 48), 40);
    /* Ten window pages of a row that comes and goes displace eight of a's ten. */
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 40, NULL), OK);
    kv_cache_close_row(&cache, row);
    assert_int_equal(cache.statistics.evicted_pages, 8);
    assert_int_equal(match_length(&cache, a, 48), 40); /* its end was used last */
    assert_int_equal(match_length(&cache, a, 36), 0);
    /* Computed again, the prompt finds its full pages there and brings the window's. */
    row = run_prompt(&cache, a, 36);
    assert_int_equal(kv_cache_counts(&cache, 0).n_locked, 9);
    assert_int_equal(match_length(&cache, a, 36), 32);
    kv_cache_close_row(&cache, row);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

/* Two prompts whose window pages nobody sees; the older one is looked at again. */
static void window_pages_that_were_looked_at_go_last(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 8, 40, 8);
    int32_t a[17], b[17];
    count_up(a, 17, 0);
    count_up(b, 17, 1000);
    kv_cache_close_row(&cache, run_prompt(&cache, a, 16));
    kv_cache_close_row(&cache, run_prompt(&cache, b, 16));
    assert_int_equal(match_length(&cache, a, 17), 16);
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 24, NULL), OK); /* takes six of the eight */
    assert_int_equal(match_length(&cache, a, 17), 16);
    assert_int_equal(match_length(&cache, b, 17), 0);
    kv_cache_done(&cache);
}

static void a_window_takes_no_more_pages_than_it_needs_when_there_are_no_more(void **state)
{
    (void)state;
    int32_t needed = kv_pages_needed(8, MAX_LENGTH, 8, PAGE);
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 8, 40, needed);
    int32_t tokens[MAX_LENGTH];
    count_up(tokens, MAX_LENGTH, 0);
    for (int i = 0; i < 3; i++) {
        struct kv_prompt prompt = prompt_of(tokens, MAX_LENGTH);
        int32_t row = kv_cache_open_prompt(&cache, &prompt);
        while (cache.length[row] < MAX_LENGTH) {
            int32_t n = cache.length[row] + 8 < MAX_LENGTH ? cache.length[row] + 8 : MAX_LENGTH;
            assert_int_equal(kv_cache_extend(&cache, row, n, NULL), OK);
            kv_cache_commit(&cache, row, tokens, n);
            assert_true(kv_cache_check(&cache));
        }
        kv_cache_close_row(&cache, row);
    }
    /* The second and third time only the last page was computed. */
    assert_int_equal(cache.statistics.hit_tokens, 2 * (MAX_LENGTH - PAGE));
    kv_cache_done(&cache);
}

/* Blocks are bounded where all groups have windows; a row that outgrows them keeps its own pages.
 */
static void a_row_longer_than_the_tree_goes_on_alone(void **state)
{
    (void)state;
    struct kv_cache cache;
    struct kv_cache_spec spec = {.page_size = PAGE,
                                 .n_rows = N_ROWS,
                                 .max_length = MAX_LENGTH,
                                 .n_groups = 1,
                                 .windows = {3},
                                 .n_pages = {3}};
    assert_int_equal(kv_cache_init(&cache, &spec, NULL), OK);
    int32_t tokens[MAX_LENGTH];
    count_up(tokens, MAX_LENGTH, 0);
    struct kv_prompt prompt = prompt_of(tokens, MAX_LENGTH);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    for (int32_t n = 1; n <= MAX_LENGTH; n++) {
        assert_int_equal(kv_cache_extend(&cache, row, n, NULL), OK);
        kv_cache_commit(&cache, row, tokens, n);
        assert_true(kv_cache_check(&cache));
    }
    assert_int_equal(cache.rows[row].n_shared, 8 * 3);
    assert_int_equal(kv_cache_match(&cache, &prompt).pending_row, -1);
    kv_cache_close_row(&cache, row);
    assert_true(kv_cache_check(&cache));
    kv_cache_flush(&cache);
    assert_int_equal(cache.groups[0].pool.n_free, 3);
    kv_cache_done(&cache);
}

static void flushes_all_but_what_rows_hold(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_RADIX, 8, 40, 40);
    int32_t a[32], b[32];
    count_up(a, 32, 0);
    memcpy(b, a, sizeof b);
    b[12] = 999;
    int32_t row = run_prompt(&cache, a, 30);
    assert_int_equal(kv_cache_extend(&cache, row, 31, NULL), OK);
    kv_cache_close_row(&cache, run_prompt(&cache, b, 30));
    kv_cache_flush(&cache);
    assert_true(kv_cache_check(&cache));
    assert_int_equal(kv_cache_counts(&cache, 0).n_locked, 7);
    assert_int_equal(kv_cache_counts(&cache, 0).n_own, 1);
    assert_int_equal(kv_cache_counts(&cache, 1).n_evictable, 0);
    assert_int_equal(match_length(&cache, a, 32), 28);
    kv_cache_close_row(&cache, row);
    kv_cache_flush(&cache);
    assert_int_equal(kv_cache_counts(&cache, 0).n_free, 40);
    assert_int_equal(kv_cache_counts(&cache, 1).n_free, 40);
    assert_int_equal(cache.statistics.evicted_pages, 0);
    kv_cache_done(&cache);
}

static void the_naive_cache_shares_and_keeps_nothing(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(KV_CACHE_NAIVE, 8, 40, 40);
    int32_t tokens[32];
    count_up(tokens, 32, 0);
    struct kv_prompt prompt = prompt_of(tokens, 32);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    assert_int_equal(kv_cache_match(&cache, &prompt).pending_row, -1);
    assert_int_equal(kv_cache_extend(&cache, row, 32, NULL), OK);
    kv_cache_commit(&cache, row, tokens, 32);
    assert_true(kv_cache_check(&cache));
    assert_int_equal(match_length(&cache, tokens, 32), 0);
    kv_cache_close_row(&cache, row);
    kv_cache_flush(&cache);
    assert_true(kv_cache_check(&cache));
    assert_int_equal(kv_cache_counts(&cache, 0).n_free, 40);
    kv_cache_done(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_a_chunk_once_it_is_committed_but_never_the_last_token),
        cmocka_unit_test(shares_pages_between_rows_and_counts_them_once),
        cmocka_unit_test(keeps_key_spaces_apart),
        cmocka_unit_test(tells_which_row_is_computing_a_common_prefix),
        cmocka_unit_test(takes_the_trees_pages_for_duplicates_before_freeing_them),
        cmocka_unit_test(keeps_what_a_closed_row_committed_and_frees_its_tail),
        cmocka_unit_test(evicts_the_least_recently_used_first_and_from_its_end),
        cmocka_unit_test(never_evicts_what_a_row_holds),
        cmocka_unit_test(cuts_a_row_inside_its_shared_part_only_at_a_page),
        cmocka_unit_test(matches_only_where_a_window_has_its_pages),
        cmocka_unit_test(window_pages_that_were_looked_at_go_last),
        cmocka_unit_test(a_window_takes_no_more_pages_than_it_needs_when_there_are_no_more),
        cmocka_unit_test(a_row_longer_than_the_tree_goes_on_alone),
        cmocka_unit_test(flushes_all_but_what_rows_hold),
        cmocka_unit_test(the_naive_cache_shares_and_keeps_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
