/* The arena: alignment, zeroed memory, limits, and that nothing overlaps. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct arena arena = {0};
    enum { N = 2000 };
    static unsigned char *pieces[N];
    static size_t sizes[N];
    uint32_t random = 1;
    for (int i = 0; i < N; i++) {
        random = random * 1664525 + 1013904223;
        /* Mostly small, sometimes larger than a block. */
        sizes[i] = random >> 24 < 8 ? 100000 + (random >> 16 & 0xFFFF) : random >> 20 & 0x3FF;
        pieces[i] = arena_alloc(&arena, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(pieces[i][j], 0);
        memset(pieces[i], i & 0xFF, sizes[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(pieces[i][j], i & 0xFF);
    arena_done(&arena);
}

static void the_limit_bounds_what_is_handed_out(void **state)
{
    (void)state;
    struct arena arena = {.limit = 1024};
    assert_null(arena_alloc(&arena, 1025));
    assert_non_null(arena_alloc(&arena, 1000)); /* rounded up to 1008 */
    assert_non_null(arena_alloc(&arena, 16));
    assert_null(arena_alloc(&arena, 1));
    assert_int_equal(arena.used, 1024);
    arena_done(&arena);
    assert_int_equal(arena.used, 0);
    assert_non_null(arena_alloc(&arena, 1024)); /* usable again */
    arena_done(&arena);
}

static void hostile_sizes_fail(void **state)
{
    (void)state;
    struct arena arena = {0};
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, SIZE_MAX - 16));
    assert_null(arena_alloc_array(&arena, SIZE_MAX / 8 + 1, 8));
    assert_null(arena_copy(&arena, "x", SIZE_MAX));
    assert_non_null(arena_alloc(&arena, 0));
    assert_non_null(arena_alloc_array(&arena, 0, 8));
    arena_done(&arena);
}

static void copies_end_in_a_nul(void **state)
{
    (void)state;
    struct arena arena = {0};
    assert_string_equal(arena_copy(&arena, "abcdef", 3), "abc");
    assert_string_equal(arena_copy(&arena, NULL, 0), "");
    arena_done(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(the_limit_bounds_what_is_handed_out),
        cmocka_unit_test(hostile_sizes_fail),
        cmocka_unit_test(copies_end_in_a_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
