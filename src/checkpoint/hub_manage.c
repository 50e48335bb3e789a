/* What the cache holds, and deleting from it. */
#include "base/file.h"
#include "base/size.h"
#include "checkpoint/hub_cache.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_REF_DEPTH = 4, MAX_OPEN_FOLDERS = 16 };

static const char folder_prefix[] = "models--";

/* "models--ORG--NAME" to "ORG/NAME"; false for anything else. */
static bool repo_of_folder(const char *folder, char *out, size_t room)
{
    size_t n = sizeof folder_prefix - 1;
    struct hub_reference reference;
    if (strncmp(folder, folder_prefix, n) != 0)
        return false;
    const char *middle = strstr(folder + n, "--");
    if (!middle || (size_t)snprintf(out, room, "%.*s/%s", (int)(middle - folder - (ptrdiff_t)n),
                                    folder + n, middle + 2) >= room)
        return false;
    return hub_reference_parse(&reference, HUB_HUGGING_FACE, out, NULL) == OK &&
           strcmp(reference.repo, out) == 0;
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* The sizes of unfinished blobs. */
static uint64_t partial_bytes(const char *blobs)
{
    static const char suffix[] = ".incomplete";
    uint64_t bytes = 0;
    struct str path = {0};
    struct stat info;
    DIR *dir = opendir(blobs);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        size_t n = strlen(entry->d_name), m = sizeof suffix - 1;
        path_join(&path, blobs, entry->d_name);
        if (n > m && strcmp(entry->d_name + n - m, suffix) == 0 && !path.failed &&
            stat(str_z(&path), &info) == 0)
            bytes += (uint64_t)info.st_size;
    }
    if (dir)
        closedir(dir);
    str_done(&path);
    return bytes;
}

/* The first ref below refs/PREFIX that holds `commit`, into `out`. */
static bool find_ref(const struct hub_settings *settings, const char *repo, const char *refs,
                     const char *prefix, int depth, const char *commit,
                     char out[HUB_REVISION_MAX + 1])
{
    struct str folder = {0}, path = {0};
    char found[HUB_COMMIT_MAX + 1], name[HUB_REVISION_MAX + 1];
    bool is_found = false;
    path_join(&folder, refs, prefix);
    DIR *dir = opendir(str_z(&folder));
    for (struct dirent *entry; dir && !is_found && (entry = readdir(dir)) != NULL;) {
        if (is_dot(entry->d_name) ||
            (size_t)snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "/" : "",
                             entry->d_name) >= sizeof name)
            continue;
        path_join(&path, refs, name);
        if (file_is_directory(str_z(&path)))
            is_found = depth < MAX_REF_DEPTH &&
                       find_ref(settings, repo, refs, name, depth + 1, commit, out);
        else if (hub_cache_read_ref(settings, repo, name, found, NULL) == OK &&
                 strcmp(found, commit) == 0) {
            memcpy(out, name, sizeof name);
            is_found = true;
        }
    }
    if (dir)
        closedir(dir);
    str_done(&folder);
    str_done(&path);
    return is_found;
}

struct visitor {
    const struct hub_settings *settings;
    void (*visit)(void *context, const struct hub_entry *entry);
    void *context;
};

static enum status visit_snapshot(const struct visitor *v, const char *refs, const char *commit,
                                  struct hub_entry *entry, struct error *error)
{
    struct hub_listing listing = {0};
    char revision[HUB_REVISION_MAX + 1] = "";
    enum status status = hub_cache_scan(v->settings, entry->repo, commit, &listing, error);
    if (status == OK) {
        find_ref(v->settings, entry->repo, refs, "", 0, commit, revision);
        entry->revision = revision;
        entry->commit = commit;
        entry->n_files = listing.n;
        entry->bytes = 0;
        for (int i = 0; i < listing.n; i++)
            entry->bytes += listing.files[i].bytes;
        v->visit(v->context, entry);
    }
    hub_listing_done(&listing);
    return status;
}

static enum status visit_repo(const struct visitor *v, const char *repo, struct error *error)
{
    struct str blobs = {0}, refs = {0}, snapshots = {0};
    struct hub_entry entry = {.repo = repo, .revision = "", .commit = ""};
    int n_visited = 0;
    enum status status = hub_cache_path(v->settings, repo, "blobs", &blobs, error);
    if (status == OK)
        status = hub_cache_path(v->settings, repo, "refs", &refs, error);
    if (status == OK)
        status = hub_cache_path(v->settings, repo, "snapshots", &snapshots, error);
    if (status != OK)
        goto out;
    entry.partial_bytes = partial_bytes(str_z(&blobs));
    DIR *dir = opendir(str_z(&snapshots));
    for (struct dirent *item; dir && status == OK && (item = readdir(dir)) != NULL;)
        if (hub_is_commit(item->d_name)) {
            status = visit_snapshot(v, str_z(&refs), item->d_name, &entry, error);
            n_visited++;
        }
    if (dir)
        closedir(dir);
    if (status == OK && n_visited == 0)
        v->visit(v->context, &entry);
out:
    str_done(&blobs);
    str_done(&refs);
    str_done(&snapshots);
    return status;
}

enum status hub_list(const struct hub_settings *settings,
                     void (*visit)(void *context, const struct hub_entry *entry), void *context,
                     struct error *error)
{
    const struct visitor visitor = {settings, visit, context};
    struct dirent **entries = NULL;
    char repo[2 * HUB_NAME_MAX + 2];
    enum status status = OK;
    int n = scandir(str_z(&settings->cache), &entries, NULL, alphasort);
    if (n < 0)
        return errno == ENOENT ? OK
                               : error_set(error, ERROR_IO, "%s cannot be read: %s",
                                           str_z(&settings->cache), strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == OK && repo_of_folder(entries[i]->d_name, repo, sizeof repo))
            status = visit_repo(&visitor, repo, error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static enum status remove_folder(const char *path, struct error *error)
{
    if (nftw(path, remove_one, MAX_OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return error_set(error, ERROR_IO, "%s cannot be deleted whole: %s", path, strerror(errno));
    return OK;
}

enum status hub_remove(const struct hub_settings *settings, const char *repo, struct error *error)
{
    struct str path = {0};
    enum status status = hub_cache_path(settings, repo, "", &path, error);
    if (status == OK && !file_is_directory(str_z(&path)))
        status = error_set(error, ERROR_NOT_FOUND, "%s has no %s; csgl list names what is there",
                           str_z(&settings->cache), repo);
    if (status == OK)
        status = remove_folder(str_z(&path), error);
    if (status == OK)
        status = hub_cache_lock_path(settings, repo, "", &path, error);
    if (status == OK)
        status = remove_folder(str_z(&path), error);
    str_done(&path);
    return status;
}
