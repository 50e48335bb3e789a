/* What the cache promises about recurrent states, one sentence a test. */
#include "kvcache/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 4, N_ROWS = 4, MAX_LENGTH = 80 };

static struct kv_cache new_cache(int32_t n_pages, int32_t n_states)
{
    struct kv_cache cache;
    struct kv_cache_spec spec = {.page_size = PAGE,
                                 .n_rows = N_ROWS,
                                 .max_length = MAX_LENGTH,
                                 .n_groups = 1,
                                 .n_pages = {n_pages},
                                 .n_states = n_states};
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

static void run_step(struct kv_cache *cache, int32_t row, const int32_t *tokens, int32_t length)
{
    assert_int_equal(kv_cache_extend(cache, row, length, NULL), OK);
    kv_cache_begin_step(cache, row);
    assert_true(kv_cache_check(cache));
    kv_cache_commit(cache, row, tokens, length);
    cache->n_copies = 0; /* the batch took them */
    assert_true(kv_cache_check(cache));
}

/* Opens a row, computes its whole prompt and ends it. */
static void run_prompt(struct kv_cache *cache, const int32_t *tokens, int32_t n,
                       const int32_t *marks, int32_t n_marks)
{
    struct kv_prompt prompt = prompt_of(tokens, n);
    prompt.marks = marks;
    prompt.n_marks = n_marks;
    int32_t row = kv_cache_open_prompt(cache, &prompt);
    assert_true(row >= 0);
    run_step(cache, row, tokens, n);
    kv_cache_leave_row(cache, row, tokens);
    assert_true(kv_cache_check(cache));
}

static int32_t match_length(struct kv_cache *cache, const int32_t *tokens, int32_t n)
{
    struct kv_prompt prompt = prompt_of(tokens, n);
    return kv_cache_match(cache, &prompt).length;
}

static void a_match_ends_at_the_deepest_snapshot_in_it(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(40, 8);
    int32_t tokens[40], other[40];
    const int32_t marks[] = {10, 21};
    count_up(tokens, 40, 0);
    run_prompt(&cache, tokens, 30, marks, 2);
    assert_int_equal(cache.states.n_snapshots, 3);
    assert_int_equal(match_length(&cache, tokens, 40), 30);
    assert_int_equal(match_length(&cache, tokens, 30), 21); /* the last token is computed */
    assert_int_equal(match_length(&cache, tokens, 22), 21);
    assert_int_equal(match_length(&cache, tokens, 21), 10);
    memcpy(other, tokens, sizeof other);
    other[29] = 99; /* in the part-filled page */
    assert_int_equal(match_length(&cache, other, 40), 21);
    other[20] = 99;
    assert_int_equal(match_length(&cache, other, 40), 10);
    other[9] = 99;
    assert_int_equal(match_length(&cache, other, 40), 0);
    kv_cache_done(&cache);
}

static void the_coldest_snapshot_goes_and_its_kv_stays(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(60, 3);
    int32_t a[24], b[24], c[24];
    count_up(a, 24, 0);
    count_up(b, 24, 100);
    count_up(c, 24, 200);
    run_prompt(&cache, a, 16, NULL, 0);
    run_prompt(&cache, b, 16, NULL, 0);
    assert_int_equal(match_length(&cache, a, 24), 16); /* now b's is the coldest */
    int32_t n_free = kv_cache_counts(&cache, 0).n_free;
    run_prompt(&cache, c, 16, NULL, 0);
    assert_int_equal(cache.statistics.evicted_snapshots, 1);
    assert_int_equal(cache.statistics.evicted_pages, 0);
    assert_int_equal(kv_cache_counts(&cache, 0).n_free, n_free - 4);
    assert_int_equal(match_length(&cache, a, 24), 16);
    assert_int_equal(match_length(&cache, b, 24), 0);
    assert_int_equal(match_length(&cache, c, 24), 16);
    kv_cache_done(&cache);
}

static void a_snapshot_that_a_row_will_read_stays(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(60, 3);
    int32_t a[24], b[24];
    count_up(a, 24, 0);
    count_up(b, 24, 100);
    run_prompt(&cache, a, 18, NULL, 0);
    struct kv_prompt prompt = prompt_of(a, 24);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    int32_t source = cache.rows[row].source;
    assert_int_equal(cache.length[row], 18);
    assert_int_equal(kv_cache_state_in(&cache, row), source);
    assert_int_not_equal(cache.rows[row].state, source);
    struct kv_prompt other = prompt_of(b, 24);
    int32_t second = kv_cache_open_prompt(&cache, &other);
    assert_true(second >= 0); /* the third slot */
    assert_int_equal(kv_cache_open_row(&cache), -1);
    assert_int_equal(kv_cache_extend(&cache, row, 24, NULL), OK);
    struct kv_state_step step = kv_cache_begin_step(&cache, row);
    assert_true(step.has_copy);
    assert_int_equal(step.copy.to[0], kv_cache_pages(&cache, 0, row)[4]);
    assert_int_not_equal(step.copy.from[0], step.copy.to[0]);
    kv_cache_commit(&cache, row, a, 24);
    assert_int_equal(kv_cache_state_in(&cache, row), cache.rows[row].state);
    assert_true(kv_cache_open_row(&cache) >= 0); /* its slot may go now */
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

static void of_marks_within_a_page_the_first_is_kept(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(40, 10);
    int32_t tokens[40];
    const int32_t marks[] = {2, 17, 19, 30, 39};
    count_up(tokens, 40, 0);
    struct kv_prompt prompt = prompt_of(tokens, 40);
    prompt.marks = marks;
    prompt.n_marks = 5;
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    const struct kv_row *r = &cache.rows[row];
    assert_int_equal(r->n_marks, 3); /* 2 has no whole page, 40 is next to 39 */
    assert_int_equal(r->marks[0], 17);
    assert_int_equal(r->marks[1], 30);
    assert_int_equal(r->marks[2], 39);
    kv_cache_close_row(&cache, row);
    assert_int_equal(cache.states.n_free, 10);
    kv_cache_done(&cache);
}

static void a_prompt_in_flight_is_told_where_the_next_parts_from_it(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(60, 10);
    int32_t a[40], b[40];
    count_up(a, 40, 0);
    memcpy(b, a, sizeof b);
    count_up(b + 23, 17, 500);
    struct kv_prompt first = prompt_of(a, 40), second = prompt_of(b, 40);
    int32_t row = kv_cache_open_prompt(&cache, &first);
    run_step(&cache, row, a, 8);
    struct kv_match match = kv_cache_match(&cache, &second);
    assert_int_equal(match.length, 0);
    assert_int_equal(match.pending_length, 23);
    assert_int_equal(match.pending_row, row);
    run_step(&cache, row, a, 40); /* past it in one chunk */
    match = kv_cache_match(&cache, &second);
    assert_int_equal(match.length, 23);
    assert_int_equal(match.pending_row, -1);
    kv_cache_done(&cache);
}

static void pages_of_snapshots_make_room_last(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(MAX_LENGTH / PAGE + 1, 8);
    int32_t tokens[MAX_LENGTH];
    const int32_t marks[] = {5, 10, 15, 21};
    count_up(tokens, MAX_LENGTH, 0);
    struct kv_prompt prompt = prompt_of(tokens, 30);
    prompt.marks = marks;
    prompt.n_marks = 4;
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    run_step(&cache, row, tokens, 30);
    assert_int_equal(cache.states.n_tails, 5);
    struct kv_counts counts = kv_cache_counts(&cache, 0);
    assert_int_equal(counts.n_evictable, 5);
    run_step(&cache, row, tokens, MAX_LENGTH); /* the longest row fits beside them */
    assert_int_equal(cache.length[row], MAX_LENGTH);
    assert_true(cache.states.n_tails <= 1);
    kv_cache_done(&cache);
}

static void only_what_has_not_run_can_be_cut_off(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(40, 4);
    int32_t tokens[40];
    count_up(tokens, 40, 0);
    struct kv_prompt prompt = prompt_of(tokens, 40);
    int32_t row = kv_cache_open_prompt(&cache, &prompt);
    run_step(&cache, row, tokens, 10);
    assert_int_equal(kv_cache_extend(&cache, row, 40, NULL), OK);
    kv_cache_begin_step(&cache, row); /* takes a slot for the prompt's end */
    assert_int_equal(cache.states.n_free, 2);
    assert_false(kv_cache_can_truncate(&cache, row, 12));
    assert_false(kv_cache_can_truncate(&cache, row, 8));
    assert_true(kv_cache_can_truncate(&cache, row, 10));
    kv_cache_truncate(&cache, row, 10);
    assert_int_equal(cache.states.n_free, 3);
    assert_true(kv_cache_check(&cache));
    run_step(&cache, row, tokens, 40);
    assert_int_equal(cache.states.n_snapshots, 1);
    kv_cache_truncate(&cache, row, 0);
    assert_int_equal(kv_cache_state_in(&cache, row), -1);
    kv_cache_flush(&cache);
    assert_int_equal(cache.states.n_snapshots, 0);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_match_ends_at_the_deepest_snapshot_in_it),
        cmocka_unit_test(the_coldest_snapshot_goes_and_its_kv_stays),
        cmocka_unit_test(a_snapshot_that_a_row_will_read_stays),
        cmocka_unit_test(of_marks_within_a_page_the_first_is_kept),
        cmocka_unit_test(a_prompt_in_flight_is_told_where_the_next_parts_from_it),
        cmocka_unit_test(pages_of_snapshots_make_room_last),
        cmocka_unit_test(only_what_has_not_run_can_be_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
