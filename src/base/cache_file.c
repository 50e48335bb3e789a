#include "base/cache_file.h"

#include "base/file.h"
#include "base/options.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __APPLE__
#define CACHES "Library/Caches"
#else
#define CACHES ".cache"
#endif

static enum status make_folder(const char *path, struct error *error)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return OK;
    return error_set(error, ERROR_IO, "the folder %s cannot be made: %s", path, strerror(errno));
}

/* Into `out`, which is empty: where the user's caches are. */
static enum status find_caches(struct str *out, struct error *error)
{
    const char *xdg = options_environment("XDG_CACHE_HOME");
    const char *home = options_environment("HOME");
    if (xdg && xdg[0] == '/') {
        str_append_z(out, xdg);
        return OK;
    }
    if (!home)
        return error_set(error, ERROR_NOT_FOUND,
                         "there is no folder for caches: set XDG_CACHE_HOME or HOME");
    path_join(out, home, CACHES);
    return OK;
}

/* `what` is "folder" or "file". */
static enum status check_owner(const char *path, const struct stat *found, const char *what,
                               mode_t forbidden, struct error *error)
{
    if (found->st_uid != geteuid())
        return error_set(error, ERROR_INVALID, "the %s %s belongs to another user; remove it", what,
                         path);
    if (found->st_mode & forbidden)
        return error_set(error, ERROR_INVALID,
                         "the %s %s has mode %03o, which lets others in; remove it", what, path,
                         (unsigned)found->st_mode & 0777u);
    return OK;
}

static enum status check_folder(const char *path, struct error *error)
{
    struct stat found;
    if (lstat(path, &found) != 0 || !S_ISDIR(found.st_mode))
        return error_set(error, ERROR_INVALID, "%s is not a folder", path);
    return check_owner(path, &found, "folder", 0077, error);
}

enum status cache_file_path(struct str *out, const char *name, struct error *error)
{
    struct str folder = {0}, caches = {0};
    str_clear(out);
    enum status status = find_caches(&caches, error);
    if (status == OK)
        status = make_folder(str_z(&caches), error);
    if (status == OK) {
        path_join(&folder, str_z(&caches), "csgl");
        status = make_folder(str_z(&folder), error);
    }
    if (status == OK)
        status = check_folder(str_z(&folder), error);
    if (status == OK) {
        path_join(out, str_z(&folder), name);
        if (folder.failed || caches.failed || out->failed)
            status = error_memory(error, strlen(name));
    }
    str_done(&folder);
    str_done(&caches);
    return status;
}

enum status cache_file_check(const char *path, struct error *error)
{
    struct stat found;
    if (lstat(path, &found) != 0)
        return error_set(error, ERROR_NOT_FOUND, "there is no file %s", path);
    if (!S_ISREG(found.st_mode))
        return error_set(error, ERROR_INVALID, "%s is not a file", path);
    return check_owner(path, &found, "file", 0022, error);
}
