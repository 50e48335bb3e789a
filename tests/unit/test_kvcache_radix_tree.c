/* The tree alone: splits leave handles in place, locks protect paths, and time does not grow with
 * its size. */
#include "kvcache/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct radix_tree *new_tree(int32_t page_size, int32_t n_blocks)
{
    struct radix_tree *tree;
    struct radix_spec spec = {.page_size = page_size, .n_blocks = n_blocks, .n_groups = 1};
    assert_int_equal(radix_tree_new(&tree, &spec, NULL), OK);
    return tree;
}

/* Appends n blocks of one token each below a locked node; pages are numbered from `page`. */
static int32_t append(struct radix_tree *tree, int32_t node, const int32_t *tokens, int32_t n,
                      int32_t page)
{
    int32_t block;
    for (int32_t i = 0; i < n; i++, page++) {
        node = radix_tree_append(tree, 0, node, tokens + i, &page, &block);
        assert_true(node >= 0);
    }
    return node;
}

static void a_split_leaves_handles_in_place(void **state)
{
    (void)state;
    struct radix_tree *tree = new_tree(1, 32);
    int32_t abcdef[] = {1, 2, 3, 4, 5, 6}, abcxy[] = {1, 2, 3, 8, 9};
    int32_t first = append(tree, -1, abcdef, 6, 0);
    struct radix_match match = radix_tree_match(tree, 0, abcxy, 5);
    assert_int_equal(match.n_blocks, 3);
    assert_int_equal(match.node, first);
    int32_t second = radix_tree_lock(tree, &match);
    assert_int_not_equal(second, first);
    assert_int_equal(radix_tree_last_block(tree, second), match.block);
    second = append(tree, second, abcxy + 3, 2, 10);
    assert_true(radix_tree_check(tree, (int32_t[]){first, second}, 2));
    /* The first handle still ends behind six blocks, and its leaf still grows. */
    assert_int_equal(append(tree, first, (int32_t[]){7}, 1, 20), first);
    match = radix_tree_match(tree, 0, (int32_t[]){1, 2, 3, 4, 5, 6, 7}, 7);
    assert_int_equal(match.n_blocks, 7);
    assert_int_equal(radix_tree_page(tree, 0, match.block), 20);
    assert_int_equal(radix_tree_retreat(tree, first, 7, -1), -1);
    assert_true(radix_tree_check(tree, &second, 1));
    assert_int_equal(radix_tree_locked_pages(tree, 0), 5);
    radix_tree_free(tree);
}

/* A lock that ends inside what others have locked does not move when they grow. */
static void a_shared_leaf_grows_by_a_child(void **state)
{
    (void)state;
    struct radix_tree *tree = new_tree(1, 32);
    int32_t tokens[] = {1, 2, 3, 4, 5};
    int32_t first = append(tree, -1, tokens, 3, 0);
    struct radix_match match = radix_tree_match(tree, 0, tokens, 3);
    int32_t second = radix_tree_lock(tree, &match);
    assert_int_equal(second, first);
    first = append(tree, first, tokens + 3, 2, 3);
    assert_int_not_equal(first, second);
    int32_t block, n_found;
    int32_t node = radix_tree_advance(tree, 0, second, tokens + 3, 1, &block, &n_found);
    assert_true(radix_tree_check(tree, (int32_t[]){first, node}, 2));
    assert_int_equal(n_found, 1);
    assert_int_equal(radix_tree_page(tree, 0, block), 3);
    radix_tree_free(tree);
}

static void locks_protect_their_path_and_nothing_else(void **state)
{
    (void)state;
    struct radix_tree *tree = new_tree(1, 8);
    int32_t tokens[] = {1, 2, 3, 4, 5, 6}, page, block;
    int32_t node = append(tree, -1, tokens, 6, 0);
    int32_t last = radix_tree_last_block(tree, node);
    int32_t kept = radix_tree_previous_block(tree, radix_tree_previous_block(tree, last));
    node = radix_tree_retreat(tree, node, 2, kept);
    assert_true(radix_tree_evict(tree, &page) >= 0);
    assert_int_equal(page, 5);
    assert_true(radix_tree_evict(tree, &page) >= 0);
    assert_int_equal(page, 4);
    assert_int_equal(radix_tree_evict(tree, &page), -1);
    node = append(tree, node, (int32_t[]){7, 8, 9, 10}, 4, 10);
    assert_int_equal(radix_tree_append(tree, 0, node, (int32_t[]){11}, &page, &block), -1);
    assert_true(radix_tree_check(tree, &node, 1));
    /* Unlocked, the run goes from its end to its beginning. */
    radix_tree_retreat(tree, node, 8, -1);
    static const int32_t order[] = {13, 12, 11, 10, 3, 2, 1, 0};
    for (size_t i = 0; i < 8; i++) {
        assert_true(radix_tree_evict(tree, &page) >= 0);
        assert_int_equal(page, order[i]);
        assert_true(radix_tree_check(tree, NULL, 0));
    }
    assert_int_equal(radix_tree_evict(tree, &page), -1);
    radix_tree_free(tree);
}

/* --- time ------------------------------------------------------------------------------------- */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Opens, computes and commits a prompt in steps of `chunk` tokens, as turns of a chat would. */
static double run_prompt(struct kv_cache *cache, const struct kv_prompt *prompt, int32_t chunk)
{
    int32_t row = kv_cache_open_prompt(cache, prompt), n = cache->length[row];
    double start = now_us();
    while (n < prompt->n_tokens) {
        n = n + chunk < prompt->n_tokens ? n + chunk : prompt->n_tokens;
        assert_int_equal(kv_cache_extend(cache, row, n, NULL), OK);
        kv_cache_commit(cache, row, prompt->tokens, n);
    }
    double us = now_us() - start;
    kv_cache_close_row(cache, row);
    return us;
}

static void finds_8192_tokens_within_50_microseconds(void **state)
{
    (void)state;
    enum { N = 8192, N_TURNS = 32 };
    struct kv_cache cache;
    struct kv_cache_spec spec = {
        .page_size = 16, .n_rows = 8, .max_length = 2 * N, .n_groups = 1, .n_pages = {16384}};
    assert_int_equal(kv_cache_init(&cache, &spec, NULL), OK);
    int32_t *tokens = malloc((N + 1) * sizeof *tokens);
    assert_non_null(tokens);
    for (int32_t i = 0; i <= N; i++)
        tokens[i] = i * 7 % 151936;
    struct kv_prompt prompt = {.tokens = tokens, .n_tokens = N + 1, .max_cached = N};
    double commit = run_prompt(&cache, &prompt, 512);
    /* Prompts that part from it every 256 tokens cut it into nodes. */
    for (int32_t n = N - 256; n > 0; n -= N / N_TURNS) {
        int32_t kept = tokens[n];
        tokens[n] = 151935;
        run_prompt(&cache, &prompt, N);
        tokens[n] = kept;
    }
    assert_true(kv_cache_check(&cache));
    double match = 1e9, open = 1e9;
    for (int i = 0; i < 200; i++) {
        double start = now_us();
        assert_int_equal(kv_cache_match(&cache, &prompt).length, N);
        double middle = now_us();
        int32_t row = kv_cache_open_prompt(&cache, &prompt);
        double end = now_us();
        kv_cache_close_row(&cache, row);
        match = middle - start < match ? middle - start : match;
        open = end - middle < open ? end - middle : open;
    }
    print_message("8192 tokens in pages of 16, %d nodes: match %.1f us, open %.1f us; "
                  "extend and commit anew %.1f us\n",
                  N_TURNS, match, open, commit);
#ifdef NDEBUG
    assert_true(match < 50.0);
#endif
    free(tokens);
    kv_cache_done(&cache);
}

/* Microseconds to evict one of n_leaves leaves of a tree. */
static double time_eviction(int32_t n_leaves)
{
    enum { N_EVICTED = 1000 };
    struct radix_tree *tree = new_tree(1, n_leaves);
    for (int32_t i = 0; i < n_leaves; i++)
        radix_tree_retreat(tree, append(tree, -1, &i, 1, i), 1, -1);
    double start = now_us();
    for (int32_t i = 0; i < N_EVICTED; i++) {
        int32_t page;
        assert_true(radix_tree_evict(tree, &page) >= 0);
        assert_int_equal(page, i);
    }
    double us = (now_us() - start) / N_EVICTED;
    radix_tree_free(tree);
    return us;
}

static void evicts_from_a_large_tree_as_fast_as_from_a_small_one(void **state)
{
    (void)state;
    double small = 1e9, large = 1e9;
    for (int i = 0; i < 10; i++) {
        double us = time_eviction(1000);
        small = us < small ? us : small;
        us = time_eviction(100000);
        large = us < large ? us : large;
    }
    print_message("one eviction: %.3f us among 1,000 leaves, %.3f us among 100,000\n", small,
                  large);
    /* Looking at every leaf would take 100 times as long; caches may cost a few times. */
    assert_true(large < 10.0 * small + 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_leaves_handles_in_place),
        cmocka_unit_test(a_shared_leaf_grows_by_a_child),
        cmocka_unit_test(locks_protect_their_path_and_nothing_else),
        cmocka_unit_test(finds_8192_tokens_within_50_microseconds),
        cmocka_unit_test(evicts_from_a_large_tree_as_fast_as_from_a_small_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
