/* Files that csgl can make again, such as compiled kernels. They lie in a folder "csgl" of the
 * user's caches, which nobody else may enter: what is read from it is run. */
#ifndef CSGL_BASE_CACHE_FILE_H
#define CSGL_BASE_CACHE_FILE_H

#include "base/error.h"
#include "base/str.h"

/* The path of the cached file `name` into `out` (cleared first); makes the folder, with mode 0700,
 * where there is none. The caches are $XDG_CACHE_HOME, or ~/Library/Caches on a Mac, or ~/.cache.
 * ERROR_NOT_FOUND without a home, ERROR_INVALID for a folder that others may enter. */
enum status cache_file_path(struct str *out, const char *name, struct error *error);

/* ERROR_NOT_FOUND where there is no such file, ERROR_INVALID unless it is a regular file of this
 * user that nobody else may write. */
enum status cache_file_check(const char *path, struct error *error);

#endif
