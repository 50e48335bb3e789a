/* Every #include of src/ is one that the table in docs/architecture.md allows. */
#include "base/file.h"
#include "base/str.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROOMS = 64, MAX_LIST = 512, MAX_FILE = 4 << 20 };

struct room {
    char name[64];
    char may_include[MAX_LIST]; /* ",base,device," */
};

static struct room rooms[MAX_ROOMS];
static int n_rooms;
static int n_files;

/* Copies text without spaces and with commas around it. */
static void normalise_list(const char *text, size_t len, char *out)
{
    size_t n = 0;
    out[n++] = ',';
    for (size_t i = 0; i < len && n + 2 < MAX_LIST; i++)
        if (text[i] != ' ')
            out[n++] = text[i];
    out[n++] = ',';
    out[n] = '\0';
}

/* One row "| a, b | base, c |": rooms a and b may include base, c and themselves. */
static void add_row(const char *left, size_t left_len, const char *right, size_t right_len)
{
    char names[MAX_LIST], list[MAX_LIST];
    normalise_list(left, left_len, names);
    normalise_list(right, right_len, list);
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        assert_true(n_rooms < MAX_ROOMS);
        snprintf(rooms[n_rooms].name, sizeof rooms[0].name, "%s", name);
        snprintf(rooms[n_rooms++].may_include, MAX_LIST, "%s", list);
    }
}

static void read_table(void)
{
    struct str text = {0};
    assert_int_equal(file_read(SOURCE_DIR "/docs/architecture.md", MAX_FILE, &text, NULL), OK);
    char *line = strstr(text.data, "| room | may include |");
    assert_non_null(line);
    for (line = strchr(line, '\n') + 1; *line == '|'; line = strchr(line, '\n') + 1) {
        char *middle = strchr(line + 1, '|');
        char *end = strchr(middle + 1, '|');
        if (line[1] != '-')
            add_row(line + 1, (size_t)(middle - line - 1), middle + 1, (size_t)(end - middle - 1));
    }
    str_done(&text);
    assert_true(n_rooms > 5);
}

static const struct room *find_room(const char *name, size_t len)
{
    for (int i = 0; i < n_rooms; i++)
        if (strlen(rooms[i].name) == len && memcmp(rooms[i].name, name, len) == 0)
            return &rooms[i];
    return NULL;
}

static bool is_allowed(const struct room *from, const char *target, size_t len)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, ",%.*s,", (int)len, target);
    return strstr(from->may_include, ",all,") || strstr(from->may_include, wanted) ||
           (strlen(from->name) == len && memcmp(from->name, target, len) == 0);
}

/* src/kernels/cuda/native.h, not src/kernels/kd.h */
static bool is_in_subfolder(const struct room *room, const char *path)
{
    char folder[80];
    snprintf(folder, sizeof folder, "/src/%s/", room->name);
    const char *inside = strstr(path, folder);
    return inside && strchr(inside + strlen(folder), '/');
}

static void check_file(const struct room *room, const char *path)
{
    struct str text = {0};
    assert_int_equal(file_read(path, MAX_FILE, &text, NULL), OK);
    n_files++;
    for (const char *p = str_z(&text); (p = strstr(p, "#include \""));) {
        p += strlen("#include \"");
        if (strncmp(p, "../", 3) == 0 && p[3] != '.' && is_in_subfolder(room, path))
            continue; /* a folder of the room includes what lies above it */
        size_t len = strcspn(p, "/\"");
        if (p[len] != '/')
            continue; /* a generated part beside the file itself */
        if (!is_allowed(room, p, len))
            fail_msg("%s includes \"%.*s\", which its room %s may not", path, (int)strcspn(p, "\""),
                     p, room->name);
    }
    str_done(&text);
}

static void check_folder(const char *path, const struct room *room)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char child[1024];
        const char *name = entry->d_name;
        size_t len = strlen(name);
        if (name[0] == '.')
            continue;
        snprintf(child, sizeof child, "%s/%s", path, name);
        if (file_is_directory(child)) {
            const struct room *inner = room ? room : find_room(name, len);
            if (!inner)
                fail_msg("docs/architecture.md has no row for src/%s", name);
            check_folder(child, inner);
        } else if (room && len > 2 &&
                   (strcmp(name + len - 2, ".c") == 0 || strcmp(name + len - 2, ".h") == 0)) {
            check_file(room, child);
        }
    }
    closedir(dir);
}

static void every_include_is_allowed(void **state)
{
    (void)state;
    read_table();
    check_folder(SOURCE_DIR "/src", NULL);
    assert_true(n_files > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_include_is_allowed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
