/* Stop strings are found across pieces, nothing of them is handed out, and nothing else is lost. */
#include "scheduler/stop_strings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Feeds `text` in pieces of `step` bytes; returns whether a stop was found. */
static bool feed(const char *const *strings, int n, const char *text, size_t step, struct str *out)
{
    struct stop_strings stop;
    assert_int_equal(stop_strings_init(&stop, strings, n, NULL), OK);
    size_t len = strlen(text);
    bool is_found = false;
    for (size_t i = 0; i < len && !is_found; i += step)
        is_found = stop_strings_push(&stop, text + i, len - i < step ? len - i : step, out);
    if (!is_found)
        stop_strings_finish(&stop, out);
    stop_strings_done(&stop);
    return is_found;
}

static void finds_the_earliest_stop_whatever_the_pieces(void **state)
{
    (void)state;
    const char *const strings[] = {"</end>", "STOP", "ababc"};
    struct {
        const char *text, *out;
        bool is_found;
    } cases[] = {
        {"hello STOP world", "hello ", true},
        {"a</end", "a</end", false},
        {"x</en</end>STOP", "x</en", true},
        {"abababc", "ab", true},
        {"STO", "STO", false},
        {"", "", false},
        {"one </end> two STOP", "one ", true},
        {"SSTOP", "S", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step < 20; step++) {
            struct str out = {0};
            assert_int_equal(feed(strings, 3, cases[i].text, step, &out), cases[i].is_found);
            assert_string_equal(str_z(&out), cases[i].out);
            str_done(&out);
        }
}

static void holds_back_only_what_could_become_a_stop(void **state)
{
    (void)state;
    const char *const strings[] = {"STOP"};
    struct stop_strings stop;
    struct str out = {0};
    assert_int_equal(stop_strings_init(&stop, strings, 1, NULL), OK);
    assert_false(stop_strings_push(&stop, "abcST", 5, &out));
    assert_string_equal(str_z(&out), "abc");
    assert_false(stop_strings_push(&stop, "X", 1, &out));
    assert_string_equal(str_z(&out), "abcSTX");
    stop_strings_done(&stop);
    str_done(&out);
}

static void refuses_empty_and_too_many_strings(void **state)
{
    (void)state;
    const char *const empty[] = {""};
    const char *many[STOP_MAX_STRINGS + 1];
    for (int i = 0; i <= STOP_MAX_STRINGS; i++)
        many[i] = "x";
    struct stop_strings stop;
    struct error error;
    assert_int_equal(stop_strings_init(&stop, empty, 1, &error), ERROR_INVALID);
    assert_int_equal(stop_strings_init(&stop, many, STOP_MAX_STRINGS + 1, &error), ERROR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_earliest_stop_whatever_the_pieces),
        cmocka_unit_test(holds_back_only_what_could_become_a_stop),
        cmocka_unit_test(refuses_empty_and_too_many_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
