/* The folder of files that csgl can make again, and who may have written them. */
#include "base/cache_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct caches {
    char folder[64]; /* $XDG_CACHE_HOME */
    char ours[80];   /* the folder in it */
};

static int make_caches(void **state)
{
    static struct caches c;
    snprintf(c.folder, sizeof c.folder, "/tmp/csgl-cache-XXXXXX");
    assert_non_null(mkdtemp(c.folder));
    snprintf(c.ours, sizeof c.ours, "%s/csgl", c.folder);
    assert_int_equal(setenv("XDG_CACHE_HOME", c.folder, 1), 0);
    *state = &c;
    return 0;
}

static int remove_caches(void **state)
{
    struct caches *c = *state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", c->folder);
    return system(command);
}

static void write_file(const char *path, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("kernels", file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static void the_folder_is_made_for_its_owner_alone(void **state)
{
    struct caches *c = *state;
    struct str path = {0};
    struct error error;
    char expected[96];
    struct stat made;
    assert_int_equal(cache_file_path(&path, "kernels", &error), OK);
    snprintf(expected, sizeof expected, "%s/kernels", c->ours);
    assert_string_equal(str_z(&path), expected);
    assert_int_equal(stat(c->ours, &made), 0);
    assert_int_equal(made.st_mode & 0777, 0700);
    assert_int_equal(cache_file_check(str_z(&path), &error), ERROR_NOT_FOUND);
    str_done(&path);
}

static void a_folder_that_others_may_enter_is_refused(void **state)
{
    struct caches *c = *state;
    struct str path = {0};
    struct error error;
    assert_int_equal(mkdir(c->ours, 0700), 0);
    assert_int_equal(chmod(c->ours, 0770), 0);
    assert_int_equal(cache_file_path(&path, "kernels", &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "has mode 770"));
    str_done(&path);
}

static void a_link_in_the_folders_place_is_refused(void **state)
{
    struct caches *c = *state;
    struct str path = {0};
    struct error error;
    assert_int_equal(symlink("/tmp", c->ours), 0);
    assert_int_equal(cache_file_path(&path, "kernels", &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "is not a folder"));
    str_done(&path);
}

static void a_file_that_others_may_write_is_refused(void **state)
{
    (void)state;
    struct str path = {0};
    struct error error;
    assert_int_equal(cache_file_path(&path, "kernels", &error), OK);
    write_file(str_z(&path), 0644);
    assert_int_equal(cache_file_check(str_z(&path), &error), OK);
    write_file(str_z(&path), 0666);
    assert_int_equal(cache_file_check(str_z(&path), &error), ERROR_INVALID);
    assert_int_equal(unlink(str_z(&path)), 0);
    assert_int_equal(symlink("/etc/passwd", str_z(&path)), 0);
    assert_int_equal(cache_file_check(str_z(&path), &error), ERROR_INVALID);
    str_done(&path);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_caches, remove_caches)
    const struct CMUnitTest tests[] = {
        TEST(the_folder_is_made_for_its_owner_alone),
        TEST(a_folder_that_others_may_enter_is_refused),
        TEST(a_link_in_the_folders_place_is_refused),
        TEST(a_file_that_others_may_write_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
