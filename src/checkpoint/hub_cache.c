#include "checkpoint/hub_cache.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FOLDER_DEPTH = 8 };

static enum status io_error(struct error *error, const char *path, const char *what)
{
    return error_set(error, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO, "%s cannot be %s: %s",
                     path, what, strerror(errno));
}

/* --- paths ------------------------------------------------------------------------------------ */

static enum status make_path(const struct hub_settings *settings, const char *middle,
                             const char *repo, const char *tail, struct str *out,
                             struct error *error)
{
    const char *slash = strchr(repo, '/');
    str_clear(out);
    str_printf(out, "%s/%smodels--%.*s--%s%s%s", str_z(&settings->cache), middle,
               (int)(slash - repo), repo, slash + 1, *tail ? "/" : "", tail);
    return out->failed ? error_memory(error, out->len) : OK;
}

enum status hub_cache_path(const struct hub_settings *settings, const char *repo, const char *tail,
                           struct str *out, struct error *error)
{
    return make_path(settings, "", repo, tail, out, error);
}

enum status hub_cache_lock_path(const struct hub_settings *settings, const char *repo,
                                const char *tail, struct str *out, struct error *error)
{
    return make_path(settings, ".locks/", repo, tail, out, error);
}

/* "snapshots/COMMIT/NAME" of a repository. */
static enum status snapshot_path(const struct hub_settings *settings, const char *repo,
                                 const char *commit, const char *name, struct str *out,
                                 struct error *error)
{
    struct str tail = {0};
    str_printf(&tail, "snapshots/%s/%s", commit, name);
    enum status status = tail.failed ? error_memory(error, tail.len)
                                     : hub_cache_path(settings, repo, str_z(&tail), out, error);
    str_done(&tail);
    return status;
}

enum status hub_cache_make_folders(const char *path, struct error *error)
{
    struct str folder = {0};
    enum status status = OK;
    str_append_z(&folder, path);
    if (folder.failed)
        status = error_memory(error, strlen(path));
    for (size_t i = 1; status == OK && i < folder.len; i++) {
        if (folder.data[i] != '/')
            continue;
        folder.data[i] = '\0';
        if (mkdir(folder.data, 0777) != 0 && errno != EEXIST)
            status = io_error(error, folder.data, "made");
        folder.data[i] = '/';
    }
    str_done(&folder);
    return status;
}

/* --- locks ------------------------------------------------------------------------------------ */

enum status hub_cache_lock(const char *path, bool (*is_cancelled)(void *context),
                           void (*on_wait)(void *context), void *context, int *fd,
                           struct error *error)
{
    const struct timespec tick = {.tv_nsec = 100 * 1000 * 1000};
    enum status status = hub_cache_make_folders(path, error);
    if (status != OK)
        return status;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0)
        return io_error(error, path, "opened");
    for (bool has_waited = false; flock(*fd, LOCK_EX | LOCK_NB) != 0; has_waited = true) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            status = io_error(error, path, "locked");
            break;
        }
        if (!has_waited)
            on_wait(context);
        if (is_cancelled(context)) {
            status = error_set(error, ERROR_CANCELLED, "interrupted");
            break;
        }
        nanosleep(&tick, NULL);
    }
    if (status != OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

void hub_cache_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* --- snapshots -------------------------------------------------------------------------------- */

enum status hub_cache_link(const struct hub_settings *settings, const char *repo,
                           const char *commit, const char *name, const char *etag,
                           struct error *error)
{
    struct str path = {0}, fresh = {0}, target = {0};
    enum status status = snapshot_path(settings, repo, commit, name, &path, error);
    if (status == OK)
        status = hub_cache_make_folders(str_z(&path), error);
    if (status != OK)
        goto out;
    str_printf(&fresh, "%s.%ld.link", str_z(&path), (long)getpid());
    str_append_z(&target, "../../");
    for (const char *c = name; *c; c++)
        if (*c == '/')
            str_append_z(&target, "../");
    str_printf(&target, "blobs/%s", etag);
    if (fresh.failed || target.failed)
        status = error_memory(error, path.len);
    else if ((unlink(str_z(&fresh)) != 0 && errno != ENOENT) ||
             symlink(str_z(&target), str_z(&fresh)) != 0 ||
             rename(str_z(&fresh), str_z(&path)) != 0)
        status = io_error(error, str_z(&path), "linked");
out:
    str_done(&path);
    str_done(&fresh);
    str_done(&target);
    return status;
}

bool hub_cache_has(const struct hub_settings *settings, const char *repo, const char *commit,
                   const char *name, uint64_t *bytes)
{
    struct str path = {0};
    struct stat info;
    bool has = snapshot_path(settings, repo, commit, name, &path, NULL) == OK &&
               stat(str_z(&path), &info) == 0 && S_ISREG(info.st_mode);
    if (has)
        *bytes = (uint64_t)info.st_size;
    str_done(&path);
    return has;
}

/* --- refs ------------------------------------------------------------------------------------- */

static enum status ref_path(const struct hub_settings *settings, const char *repo,
                            const char *revision, struct str *out, struct error *error)
{
    char tail[HUB_REVISION_MAX + 8];
    snprintf(tail, sizeof tail, "refs/%s", revision);
    return hub_cache_path(settings, repo, tail, out, error);
}

enum status hub_cache_read_ref(const struct hub_settings *settings, const char *repo,
                               const char *revision, char commit[HUB_COMMIT_MAX + 1],
                               struct error *error)
{
    struct str path = {0}, text = {0};
    enum status status = OK;
    if (hub_is_commit(revision)) {
        memcpy(commit, revision, strlen(revision) + 1);
        return OK;
    }
    status = ref_path(settings, repo, revision, &path, error);
    if (status == OK)
        status = file_read(str_z(&path), HUB_COMMIT_MAX + 2, &text, error);
    while (text.len && strchr("\r\n ", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (status == OK && !hub_is_commit(str_z(&text)))
        status = error_set(error, ERROR_INVALID, "%s holds no commit", str_z(&path));
    if (status == OK)
        memcpy(commit, str_z(&text), text.len + 1);
    str_done(&path);
    str_done(&text);
    return status;
}

enum status hub_cache_write_ref(const struct hub_settings *settings, const char *repo,
                                const char *revision, const char *commit, struct error *error)
{
    struct str path = {0}, fresh = {0};
    size_t n = strlen(commit);
    if (hub_is_commit(revision))
        return OK;
    enum status status = ref_path(settings, repo, revision, &path, error);
    if (status == OK)
        status = hub_cache_make_folders(str_z(&path), error);
    if (status != OK)
        goto out;
    str_printf(&fresh, "%s.%ld.new", str_z(&path), (long)getpid());
    if (fresh.failed) {
        status = error_memory(error, path.len);
        goto out;
    }
    int fd = open(str_z(&fresh), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool is_written = fd >= 0 && write(fd, commit, n) == (ssize_t)n;
    if (fd >= 0)
        is_written = close(fd) == 0 && is_written;
    if (!is_written || rename(str_z(&fresh), str_z(&path)) != 0) {
        status = io_error(error, str_z(&path), "written");
        unlink(str_z(&fresh));
    }
out:
    str_done(&path);
    str_done(&fresh);
    return status;
}

/* --- scanning --------------------------------------------------------------------------------- */

/* The files below snapshot/PREFIX, named from the snapshot. Links that lead nowhere and names that
 * no repository can have are not files of it. */
static enum status scan_folder(const char *snapshot, const char *prefix, int depth,
                               struct hub_listing *listing, struct error *error)
{
    struct str folder = {0}, name = {0}, path = {0};
    enum status status = OK;
    struct stat info;
    struct hub_file *file;
    path_join(&folder, snapshot, prefix);
    DIR *dir = opendir(str_z(&folder));
    if (!dir)
        status = io_error(error, str_z(&folder), "opened");
    for (struct dirent *entry; status == OK && (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        str_clear(&name);
        str_printf(&name, "%s%s%s", prefix, *prefix ? "/" : "", entry->d_name);
        path_join(&path, snapshot, str_z(&name));
        if (name.failed || path.failed)
            status = error_memory(error, name.len);
        else if (stat(str_z(&path), &info) != 0)
            continue;
        else if (S_ISDIR(info.st_mode) && depth < MAX_FOLDER_DEPTH)
            status = scan_folder(snapshot, str_z(&name), depth + 1, listing, error);
        else if (S_ISREG(info.st_mode)) {
            status = hub_listing_add(listing, str_z(&name), &file, error);
            if (status == OK) {
                file->has_size = true;
                file->bytes = (uint64_t)info.st_size;
            }
        }
    }
    if (dir)
        closedir(dir);
    str_done(&folder);
    str_done(&name);
    str_done(&path);
    return status;
}

enum status hub_cache_scan(const struct hub_settings *settings, const char *repo,
                           const char *commit, struct hub_listing *listing, struct error *error)
{
    struct str snapshot = {0};
    enum status status = snapshot_path(settings, repo, commit, "", &snapshot, error);
    if (status == OK)
        status = scan_folder(str_z(&snapshot), "", 0, listing, error);
    str_done(&snapshot);
    memcpy(listing->commit, commit, strlen(commit) + 1);
    return status;
}
