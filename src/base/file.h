/* Files: mapped whole for checkpoints, read whole with a limit for everything else. */
#ifndef CSGL_BASE_FILE_H
#define CSGL_BASE_FILE_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A read-only mapping of a whole file. `data` is page-aligned and NULL when the file is empty. */
struct file_map {
    const uint8_t *data;
    uint64_t bytes;
};

enum status file_map_open(struct file_map *map, const char *path, struct error *error);
void file_map_done(struct file_map *map);

/* Tells the kernel that [offset, offset + bytes) will not be read again: its pages may go. */
void file_map_release(const struct file_map *map, uint64_t offset, uint64_t bytes);

/* Appends the file's content to `out`; ERROR_LIMIT if it is longer than `limit` bytes. "-" is
 * stdin. */
enum status file_read(const char *path, size_t limit, struct str *out, struct error *error);

bool file_exists(const char *path);
bool file_is_directory(const char *path);

/* "folder/name" into `out` (cleared first). */
void path_join(struct str *out, const char *folder, const char *name);

#endif
