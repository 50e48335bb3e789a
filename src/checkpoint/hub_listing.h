/* Which files a repository has and which of them csgl wants: from the hub's answer, or from a
 * snapshot in the cache. Every name is checked before it may become a path. */
#ifndef CSGL_CHECKPOINT_HUB_LISTING_H
#define CSGL_CHECKPOINT_HUB_LISTING_H

#include "base/arena.h"
#include "checkpoint/hub.h"

enum {
    HUB_MAX_FILES = 100000,
    HUB_COMMIT_MAX = 64,
    HUB_INDEX_BYTES_MAX = 64 << 20,
    HUB_LISTING_ARENA_MAX = 256 << 20,
    MODELSCOPE_MAX_FILES = 3000 /* of one answer; it ends there without a word */
};

struct hub_file {
    const char *name; /* "model.safetensors", "Q8_0/model.gguf" */
    bool has_size, is_wanted;
    uint64_t bytes;
    /* Lower-case, or NULL: not known. `sha1` is git's name for a blob with these bytes. */
    const char *sha256, *sha1;
};

/* Zero-initialise; hub_listing_done. */
struct hub_listing {
    struct arena arena; /* owns the files and their strings */
    char commit[HUB_COMMIT_MAX + 1];
    struct hub_file *files; /* [n, room for cap] */
    int n, cap;
};

/* The answer of /api/models/REPO/revision/REVISION?blobs=true, or of ModelScope's
 * /api/v1/models/REPO/repo/files?Revision=REVISION&Recursive=true. ModelScope names no commit: a
 * digest of all names and digests takes its place, so that another listing is another snapshot. */
enum status hub_listing_parse(struct hub_listing *listing, enum hub_source source, const char *text,
                              size_t bytes, struct error *error);

/* Adds a file; ERROR_INVALID for a name that would leave its folder. */
enum status hub_listing_add(struct hub_listing *listing, const char *name, struct hub_file **out,
                            struct error *error);

/* Marks the wanted files; `main_file` becomes the GGUF (its first part), or NULL for safetensors.
 * Refused with a sentence that lists the choice: no or several fitting GGUFs. */
enum status hub_listing_choose(struct hub_listing *listing, const struct hub_reference *reference,
                               const char **main_file, struct error *error);

void hub_listing_done(struct hub_listing *listing);

bool hub_is_hex(const char *text, size_t n); /* n lower-case hexadecimal digits */
bool hub_is_commit(const char *text);        /* 40 or 64 of them */

#endif
