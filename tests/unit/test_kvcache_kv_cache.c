/* The paged KV cache hands every token its own slot, frees what left a window, and loses no page.
 */
#include "kvcache/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kv_cache new_cache(int32_t window, int32_t n_pages)
{
    struct kv_cache cache;
    struct kv_cache_spec spec = {.page_size = 4,
                                 .n_rows = 3,
                                 .max_length = 64,
                                 .n_groups = 2,
                                 .windows = {0, window},
                                 .n_pages = {n_pages, n_pages}};
    assert_int_equal(kv_cache_init(&cache, &spec, NULL), OK);
    return cache;
}

static void gives_every_token_its_own_slot(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(8, 32);
    bool is_used[32 * 4] = {0};
    for (int i = 0; i < 3; i++) {
        int32_t row = kv_cache_open_row(&cache);
        assert_true(row >= 0);
        for (int32_t n = 0; n < 30; n += 3)
            assert_int_equal(kv_cache_extend(&cache, row, n + 3, NULL), OK);
        for (int32_t position = 0; position < 30; position++) {
            int32_t slot = kv_cache_slot(&cache, 0, row, position);
            assert_in_range(slot, 0, 32 * 4 - 1);
            assert_false(is_used[slot]);
            is_used[slot] = true;
        }
        assert_true(kv_cache_check(&cache));
    }
    assert_int_equal(kv_cache_open_row(&cache), -1);
    kv_cache_done(&cache);
}

static void frees_pages_that_left_the_window(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(8, 16);
    int32_t row = kv_cache_open_row(&cache);
    for (int32_t n = 1; n <= 64; n++) {
        assert_int_equal(kv_cache_extend(&cache, row, n, NULL), OK);
        assert_true(kv_cache_check(&cache));
        /* Every token that the newest one sees still has its page. */
        for (int32_t p = n > 8 ? n - 8 : 0; p < n; p++)
            kv_cache_slot(&cache, 1, row, p);
        int32_t n_held = 16 - cache.groups[1].pool.n_free;
        assert_true(n_held <= kv_pages_needed(8, 64, 1, 4));
    }
    assert_int_equal(cache.groups[0].pool.n_free, 0);
    kv_cache_close_row(&cache, row);
    assert_true(kv_cache_check(&cache));
    assert_int_equal(cache.groups[0].pool.n_free, 16);
    assert_int_equal(cache.groups[1].pool.n_free, 16);
    kv_cache_done(&cache);
}

static void refuses_what_does_not_fit_and_changes_nothing(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(8, 4);
    struct error error = {0};
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 10, &error), OK);
    assert_int_equal(kv_cache_extend(&cache, row, 17, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "full"));
    assert_int_equal(cache.length[row], 10);
    assert_int_equal(kv_cache_extend(&cache, row, 65, &error), ERROR_LIMIT);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

static void truncates_only_to_what_is_still_there(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(8, 16);
    int32_t row = kv_cache_open_row(&cache);
    assert_int_equal(kv_cache_extend(&cache, row, 40, NULL), OK);
    assert_int_equal(kv_cache_extend(&cache, row, 41, NULL), OK);
    assert_false(kv_cache_can_truncate(&cache, row, 20));
    assert_true(kv_cache_can_truncate(&cache, row, 0));
    assert_true(kv_cache_can_truncate(&cache, row, 40));
    kv_cache_truncate(&cache, row, 40);
    assert_int_equal(kv_cache_extend(&cache, row, 44, NULL), OK);
    assert_true(kv_cache_check(&cache));
    kv_cache_truncate(&cache, row, 0);
    assert_true(kv_cache_check(&cache));
    kv_cache_done(&cache);
}

/* Any order of opening, growing, cutting and closing rows keeps every page accounted for. */
static void survives_any_order_of_calls(void **state)
{
    (void)state;
    struct kv_cache cache = new_cache(8, 20);
    srand(7);
    for (int i = 0; i < 20000; i++) {
        int32_t row = rand() % 3;
        int32_t length = cache.length[row];
        if (length < 0) {
            kv_cache_open_row(&cache);
        } else if (rand() % 8 == 0) {
            kv_cache_close_row(&cache, row);
        } else if (rand() % 4 == 0) {
            int32_t shorter = rand() % (length + 1);
            if (kv_cache_can_truncate(&cache, row, shorter))
                kv_cache_truncate(&cache, row, shorter);
        } else {
            kv_cache_extend(&cache, row, length + 1 + rand() % 12, NULL);
        }
        assert_true(kv_cache_check(&cache));
    }
    kv_cache_done(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_every_token_its_own_slot),
        cmocka_unit_test(frees_pages_that_left_the_window),
        cmocka_unit_test(refuses_what_does_not_fit_and_changes_nothing),
        cmocka_unit_test(truncates_only_to_what_is_still_there),
        cmocka_unit_test(survives_any_order_of_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
