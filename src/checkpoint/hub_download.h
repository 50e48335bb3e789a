/* One file of a repository into the cache: resumed, checked and linked. */
#ifndef CSGL_CHECKPOINT_HUB_DOWNLOAD_H
#define CSGL_CHECKPOINT_HUB_DOWNLOAD_H

#include "checkpoint/hub_http.h"
#include "checkpoint/hub_listing.h"

struct hub_download {
    const struct hub_settings *settings;
    struct hub_http *http;
    const char *repo, *commit;
    const char *revision; /* by which the hub is asked for the files: ModelScope has no commits */
    const struct hub_progress *progress; /* may be NULL */
    uint64_t done, total;                /* bytes of the whole pull; `done` is moved on */
};

/* Appends where the hub has the file of a revision, without the endpoint. */
void hub_download_path(struct str *out, enum hub_source source, const char *repo,
                       const char *revision, const char *file);

/* Fetches the file unless the snapshot has it. What has arrived of an interrupted file is kept and
 * continued; a digest that does not fit deletes it. */
enum status hub_download_file(struct hub_download *download, const struct hub_file *file,
                              struct error *error);

#endif
