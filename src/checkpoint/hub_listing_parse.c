/* The listings that the hubs answer with. Everything in them is checked: they come from the wire.
 */
#include "base/json.h"
#include "base/sha256.h"
#include "checkpoint/hub_listing.h"

#include <ctype.h>
#include <string.h>

static enum status bad_digest(const char *name, struct error *error)
{
    return error_set(error, ERROR_INVALID, "the listing's digest of %s is malformed", name);
}

/* Copies a digest of `n` hexadecimal digits, in lower case; none leaves `out` NULL. */
static enum status take_digest(struct hub_listing *listing, const struct hub_file *file,
                               const struct json *value, size_t n, const char **out,
                               struct error *error)
{
    char digest[SHA256_HEX];
    const char *text = json_string(value);
    if (!text || !*text)
        return OK;
    if (strlen(text) != n)
        return bad_digest(file->name, error);
    for (size_t i = 0; i < n; i++)
        digest[i] = (char)tolower((unsigned char)text[i]);
    digest[n] = '\0';
    if (!hub_is_hex(digest, n))
        return bad_digest(file->name, error);
    *out = arena_copy(&listing->arena, digest, n);
    return *out ? OK : error_memory(error, n);
}

static enum status take_size(struct hub_file *file, const struct json *size, struct error *error)
{
    int64_t bytes;
    file->has_size = json_int(size, 0, INT64_MAX, &bytes);
    if (!file->has_size && !json_is_null(size))
        return error_set(error, ERROR_INVALID, "the listing's size of %s is no number of bytes",
                         file->name);
    file->bytes = file->has_size ? (uint64_t)bytes : 0;
    return OK;
}

/* --- the Hugging Face hub --------------------------------------------------------------------- */

static enum status add_sibling(struct hub_listing *listing, const struct json *sibling,
                               struct error *error)
{
    const char *name = json_string(json_get(sibling, "rfilename"));
    const struct json *lfs = json_get(sibling, "lfs"), *size = json_get(lfs, "size");
    struct hub_file *file;
    if (!name)
        return error_set(error, ERROR_INVALID, "a file of the listing has no name");
    enum status status = hub_listing_add(listing, name, &file, error);
    if (status == OK)
        status = take_size(file, size ? size : json_get(sibling, "size"), error);
    if (status == OK)
        status = take_digest(listing, file, json_get(lfs, "sha256"), 64, &file->sha256, error);
    /* The blob of a large file is its pointer. */
    if (status == OK && json_is_null(lfs))
        status = take_digest(listing, file, json_get(sibling, "blobId"), 40, &file->sha1, error);
    return status;
}

static enum status parse_hugging_face(struct hub_listing *listing, const struct json *root,
                                      struct error *error)
{
    const char *commit = json_string(json_get(root, "sha"));
    const struct json *siblings = json_get(root, "siblings");
    enum status status = OK;
    if (!commit || !hub_is_commit(commit) || !siblings || siblings->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID, "it names no commit or no list of files");
    memcpy(listing->commit, commit, strlen(commit) + 1);
    for (size_t i = 0; status == OK && i < siblings->n; i++)
        status = add_sibling(listing, &siblings->items[i], error);
    return status;
}

/* --- ModelScope ------------------------------------------------------------------------------- */

static enum status add_entry(struct hub_listing *listing, const struct json *entry,
                             struct sha256 *hash, struct error *error)
{
    const char *name = json_string(json_get(entry, "Path"));
    const char *type = json_string(json_get(entry, "Type"));
    struct hub_file *file;
    if (type && strcmp(type, "tree") == 0)
        return OK;
    if (!name)
        return error_set(error, ERROR_INVALID, "a file of the listing has no name");
    enum status status = hub_listing_add(listing, name, &file, error);
    if (status == OK)
        status = take_size(file, json_get(entry, "Size"), error);
    if (status == OK)
        status = take_digest(listing, file, json_get(entry, "Sha256"), 64, &file->sha256, error);
    if (status == OK) {
        sha256_update(hash, file->name, strlen(file->name) + 1);
        sha256_update(hash, file->sha256 ? file->sha256 : "", file->sha256 ? 64 : 0);
    }
    return status;
}

static enum status parse_modelscope(struct hub_listing *listing, const struct json *root,
                                    struct error *error)
{
    const struct json *files = json_get(json_get(root, "Data"), "Files");
    struct sha256 hash;
    enum status status = OK;
    if (!files || files->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID, "it has no list of files");
    if (files->n >= MODELSCOPE_MAX_FILES)
        return error_set(error, ERROR_LIMIT,
                         "ModelScope lists no more than %d files; fetch the model with its own "
                         "client and give its folder",
                         MODELSCOPE_MAX_FILES);
    sha256_init(&hash);
    for (size_t i = 0; status == OK && i < files->n; i++)
        status = add_entry(listing, &files->items[i], &hash, error);
    if (status == OK)
        sha256_hex(&hash, listing->commit);
    return status;
}

enum status hub_listing_parse(struct hub_listing *listing, enum hub_source source, const char *text,
                              size_t bytes, struct error *error)
{
    struct arena arena = {.limit = HUB_LISTING_ARENA_MAX};
    struct json root;
    enum status status = json_parse(&arena, text, bytes, &root, error);
    if (status == OK)
        status = source == HUB_MODELSCOPE ? parse_modelscope(listing, &root, error)
                                          : parse_hugging_face(listing, &root, error);
    arena_done(&arena);
    return status;
}
