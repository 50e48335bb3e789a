/* The folders of huggingface_hub's cache:
 *
 *   models--ORG--NAME/blobs/ETAG                  a file's bytes, ETAG.incomplete while they arrive
 *   models--ORG--NAME/refs/REVISION               the commit that a branch or tag points at
 *   models--ORG--NAME/snapshots/COMMIT/NAME       symbolic links into blobs/
 *   .locks/models--ORG--NAME/ETAG.lock            held (flock) while a blob arrives
 */
#ifndef CSGL_CHECKPOINT_HUB_CACHE_H
#define CSGL_CHECKPOINT_HUB_CACHE_H

#include "checkpoint/hub.h"
#include "checkpoint/hub_listing.h"

/* "CACHE/models--ORG--NAME/TAIL", or "CACHE/.locks/models--ORG--NAME/TAIL", into `out`. */
enum status hub_cache_path(const struct hub_settings *settings, const char *repo, const char *tail,
                           struct str *out, struct error *error);
enum status hub_cache_lock_path(const struct hub_settings *settings, const char *repo,
                                const char *tail, struct str *out, struct error *error);

/* Makes the folders above `path`. */
enum status hub_cache_make_folders(const char *path, struct error *error);

/* Opens and locks the file, waiting as long as `is_cancelled` is false; `on_wait` is called once
 * if there is something to wait for. `fd` to hub_cache_unlock. */
enum status hub_cache_lock(const char *path, bool (*is_cancelled)(void *context),
                           void (*on_wait)(void *context), void *context, int *fd,
                           struct error *error);
void hub_cache_unlock(int fd);

/* Links snapshots/COMMIT/NAME to the blob, replacing what is there. */
enum status hub_cache_link(const struct hub_settings *settings, const char *repo,
                           const char *commit, const char *name, const char *etag,
                           struct error *error);

/* True if the snapshot has this file whole; `bytes` is its size. */
bool hub_cache_has(const struct hub_settings *settings, const char *repo, const char *commit,
                   const char *name, uint64_t *bytes);

/* The commit that a revision (branch, tag, commit) points at: ERROR_NOT_FOUND if unknown. */
enum status hub_cache_read_ref(const struct hub_settings *settings, const char *repo,
                               const char *revision, char commit[HUB_COMMIT_MAX + 1],
                               struct error *error);
enum status hub_cache_write_ref(const struct hub_settings *settings, const char *repo,
                                const char *revision, const char *commit, struct error *error);

/* Adds the snapshot's whole files, with their sizes; ERROR_NOT_FOUND without a snapshot. */
enum status hub_cache_scan(const struct hub_settings *settings, const char *repo,
                           const char *commit, struct hub_listing *listing, struct error *error);

#endif
