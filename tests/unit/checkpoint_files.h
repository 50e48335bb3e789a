/* Writes small checkpoint files for the tests of the checkpoint room, well-formed or not. */
#ifndef CSGL_TESTS_CHECKPOINT_FILES_H
#define CSGL_TESTS_CHECKPOINT_FILES_H

#include "base/file.h"
#include "base/str.h"
#include "checkpoint/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A folder of the test in the current one, with the files that were written to it. */
struct test_folder {
    char path[64];
    char names[16][64];
    int n_names;
};

static inline void folder_make(struct test_folder *folder)
{
    *folder = (struct test_folder){.path = "checkpoint-test-XXXXXX"};
    assert_non_null(mkdtemp(folder->path));
}

static inline const char *folder_file(const struct test_folder *folder, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    return path;
}

static inline void folder_write(struct test_folder *folder, const char *name, const void *data,
                                size_t bytes)
{
    FILE *file = fopen(folder_file(folder, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < folder->n_names; i++)
        if (strcmp(folder->names[i], name) == 0)
            return;
    assert_true(folder->n_names < 16);
    snprintf(folder->names[folder->n_names++], sizeof folder->names[0], "%s", name);
}

static inline void folder_write_text(struct test_folder *folder, const char *name, const char *text)
{
    folder_write(folder, name, text, strlen(text));
}

static inline void folder_unlink(struct test_folder *folder, const char *name)
{
    unlink(folder_file(folder, name));
}

static inline void folder_remove(struct test_folder *folder)
{
    for (int i = 0; i < folder->n_names; i++)
        unlink(folder_file(folder, folder->names[i]));
    assert_int_equal(rmdir(folder->path), 0);
}

/* Each test's own folder, as its *state. */
static inline int folder_setup(void **state)
{
    struct test_folder *folder = malloc(sizeof *folder);
    if (!folder)
        return -1;
    folder_make(folder);
    *state = folder;
    return 0;
}

static inline int folder_teardown(void **state)
{
    folder_remove(*state);
    free(*state);
    return 0;
}

static inline void put_bytes(struct str *out, const void *data, size_t n)
{
    str_append(out, data, n);
}

static inline void put_u32(struct str *out, uint32_t value)
{
    put_bytes(out, &value, sizeof value);
}

static inline void put_u64(struct str *out, uint64_t value)
{
    put_bytes(out, &value, sizeof value);
}

static inline void put_f32(struct str *out, float value)
{
    put_bytes(out, &value, sizeof value);
}

static inline void put_string(struct str *out, const char *text)
{
    put_u64(out, strlen(text));
    str_append_z(out, text);
}

/* A safetensors file: the header's length, the header, the bytes. */
static inline void put_safetensors(struct str *out, const char *header, const void *data,
                                   size_t bytes)
{
    put_u64(out, strlen(header));
    str_append_z(out, header);
    put_bytes(out, data, bytes);
}

/* Opening must fail with this status and a sentence that contains `words` (NULL: any). */
static inline void expect_refused(const char *path, enum status status, const char *words)
{
    struct checkpoint *checkpoint;
    struct error error = {0};
    enum status got = checkpoint_open(&checkpoint, path, &error);
    if (got != status)
        fail_msg("%s: status %s, expected %s: %s", path, status_name(got), status_name(status),
                 error.message);
    assert_null(checkpoint);
    assert_int_equal(error.status, status);
    if (!strstr(error.message, path))
        fail_msg("the sentence does not name %s: %s", path, error.message);
    if (words && !strstr(error.message, words))
        fail_msg("\"%s\" is not in: %s", words, error.message);
}

static inline struct checkpoint *expect_open(const char *path)
{
    struct checkpoint *checkpoint;
    struct error error = {0};
    if (checkpoint_open(&checkpoint, path, &error) != OK)
        fail_msg("%s", error.message);
    return checkpoint;
}

static inline void expect_config(const struct json *config, const char *expected)
{
    struct str text = {0};
    json_write(&text, config);
    assert_string_equal(str_z(&text), expected);
    str_done(&text);
}

#endif
