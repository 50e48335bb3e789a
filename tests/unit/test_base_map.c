/* The hash map against what was put into it. */
#include "base/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void an_empty_map_finds_nothing(void **state)
{
    (void)state;
    struct map map = {0};
    uint64_t value = 7;
    assert_false(map_get(&map, "a", 1, &value));
    assert_int_equal(value, 7);
    map_done(&map);
}

static void every_key_that_was_put_is_found(void **state)
{
    (void)state;
    enum { N = 20000 };
    char(*keys)[16] = calloc(N, sizeof *keys);
    assert_non_null(keys);
    struct map map = {0};
    for (int i = 0; i < N; i++) {
        int len = snprintf(keys[i], sizeof keys[i], "%d", i * 7919);
        assert_true(map_put(&map, keys[i], (size_t)len, (uint64_t)i));
    }
    assert_int_equal(map.n, N);
    for (int i = 0; i < N; i++) {
        uint64_t value;
        assert_true(map_get(&map, keys[i], strlen(keys[i]), &value));
        assert_int_equal(value, i);
        assert_false(map_get(&map, keys[i], strlen(keys[i]) + 1, &value)); /* with its NUL */
    }
    map_done(&map);
    free(keys);
}

static void a_second_put_replaces(void **state)
{
    (void)state;
    struct map map = {0};
    uint64_t value;
    assert_true(map_put(&map, "key", 3, 1));
    assert_true(map_put(&map, "kez", 3, 2));
    assert_true(map_put(&map, "key", 3, UINT64_MAX));
    assert_int_equal(map.n, 2);
    assert_true(map_get(&map, "key", 3, &value) && value == UINT64_MAX);
    map_done(&map);
}

static void keys_may_be_empty_or_contain_nuls(void **state)
{
    (void)state;
    struct map map = {0};
    uint64_t value;
    assert_true(map_put(&map, "", 0, 1));
    assert_true(map_put(&map, "\0", 1, 2));
    assert_true(map_put(&map, "\0\0", 2, 3));
    assert_true(map_get(&map, "", 0, &value) && value == 1);
    assert_true(map_get(&map, "\0", 1, &value) && value == 2);
    assert_true(map_get(&map, "\0\0", 2, &value) && value == 3);
    map_done(&map);
}

/* Short keys that differ in one bit must not share their hash's low bits more often than chance. */
static void the_hash_spreads_similar_keys(void **state)
{
    (void)state;
    static int filled[4096];
    memset(filled, 0, sizeof filled);
    for (uint32_t i = 0; i < 4096 * 8; i++)
        filled[hash_bytes(&i, sizeof i) & 4095]++;
    int most = 0;
    for (int i = 0; i < 4096; i++)
        most = filled[i] > most ? filled[i] : most;
    assert_true(most < 32); /* 8 on average */
    assert_true(hash_bytes("a", 1) != hash_bytes("a\0", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_map_finds_nothing),
        cmocka_unit_test(every_key_that_was_put_is_found),
        cmocka_unit_test(a_second_put_replaces),
        cmocka_unit_test(keys_may_be_empty_or_contain_nuls),
        cmocka_unit_test(the_hash_spreads_similar_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
