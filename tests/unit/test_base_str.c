/* The growable string, the error sentence and paths. */
#include "base/error.h"
#include "base/file.h"
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void an_empty_string_is_a_c_string(void **state)
{
    (void)state;
    struct str s = {0};
    assert_string_equal(str_z(&s), "");
    str_append(&s, "", 0);
    str_clear(&s);
    assert_int_equal(s.len, 0);
    str_done(&s);
}

static void appends_grow_and_keep_a_nul_behind(void **state)
{
    (void)state;
    struct str s = {0};
    for (int i = 0; i < 5000; i++) {
        str_append(&s, "a\0b", 3);
        str_append_char(&s, 'c');
        assert_int_equal(s.len, (size_t)(i + 1) * 4);
        assert_int_equal(s.data[s.len], 0);
    }
    for (int i = 0; i < 5000; i++)
        assert_memory_equal(s.data + i * 4, "a\0bc", 4);
    assert_false(s.failed);
    str_clear(&s);
    str_append_z(&s, "new");
    assert_string_equal(str_z(&s), "new");
    str_done(&s);
    assert_null(s.data);
}

static void printf_appends_any_length(void **state)
{
    (void)state;
    struct str s = {0};
    str_printf(&s, "%d-%s", 7, "x");
    str_printf(&s, "%2000d", 1);
    assert_int_equal(s.len, 2003);
    assert_memory_equal(s.data, "7-x ", 4);
    assert_int_equal(s.data[2002], '1');
    str_done(&s);
}

static void code_points_take_one_to_four_bytes(void **state)
{
    (void)state;
    struct str s = {0};
    static const unsigned points[] = {0x41, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF};
    for (int i = 0; i < 8; i++)
        str_append_utf8(&s, points[i]);
    assert_string_equal(str_z(&s), "A\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80"
                                   "\xF4\x8F\xBF\xBF");
    str_done(&s);
}

static void exhausted_memory_sets_failed_and_keeps_the_content(void **state)
{
    (void)state;
    struct str s = {0};
    str_append_z(&s, "kept");
    assert_false(str_reserve(&s, SIZE_MAX - 2));
    assert_true(s.failed);
    str_append_z(&s, "ignored");
    assert_string_equal(str_z(&s), "kept");
    str_done(&s);
}

static void errors_are_cut_between_characters(void **state)
{
    (void)state;
    struct error error;
    char text[600];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xE4\xB8\xAD", 3);
    text[sizeof text - 1] = '\0';
    for (int skip = 0; skip < 3; skip++) {
        assert_int_equal(error_set(&error, ERROR_LIMIT, "%.*s%s", skip, "ab", text), ERROR_LIMIT);
        size_t n = strlen(error.message);
        assert_true(n >= sizeof error.message - 4 && n < sizeof error.message);
        assert_memory_equal(error.message + n - 3, "\xE4\xB8\xAD", 3);
    }
    error_set(&error, ERROR_IO, "tensor w is %s", "short");
    assert_int_equal(error_prefix(&error, "file %d", 3), ERROR_IO);
    assert_string_equal(error.message, "file 3: tensor w is short");
    assert_int_equal(error_set(NULL, ERROR_IO, "nobody listens"), ERROR_IO);
    assert_string_equal(status_name(ERROR_LIMIT), "limit exceeded");
    assert_string_equal(status_name((enum status)99), "unknown status");
}

static void paths_are_joined_with_one_slash(void **state)
{
    (void)state;
    struct str s = {0};
    path_join(&s, "folder", "name");
    assert_string_equal(str_z(&s), "folder/name");
    path_join(&s, "folder/", "name");
    assert_string_equal(str_z(&s), "folder/name");
    path_join(&s, "", "name");
    assert_string_equal(str_z(&s), "name");
    str_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_string_is_a_c_string),
        cmocka_unit_test(appends_grow_and_keep_a_nul_behind),
        cmocka_unit_test(printf_appends_any_length),
        cmocka_unit_test(code_points_take_one_to_four_bytes),
        cmocka_unit_test(exhausted_memory_sets_failed_and_keeps_the_content),
        cmocka_unit_test(errors_are_cut_between_characters),
        cmocka_unit_test(paths_are_joined_with_one_slash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
