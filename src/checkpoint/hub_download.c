#include "checkpoint/hub_download.h"

#include "base/log.h"
#include "base/sha1.h"
#include "base/sha256.h"
#include "checkpoint/hub_cache.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MAX_BREAKS = 1000 /* of one file's transfer, each after some progress */ };

struct transfer {
    struct hub_download *download;
    const struct hub_file *file;
    struct hub_reply head, reply;
    uint64_t bytes;     /* of the whole file */
    const char *sha256; /* expected, or NULL; of small files `file` has git's name for them */
    struct str url_path, blob, incomplete;
    int fd;
    uint64_t at; /* bytes in the incomplete file */
    struct sha256 hash;
    struct sha1 git_hash; /* used if file->sha1 is known */
    bool has_begun;       /* the reply to the current request has been looked at */
};

static bool report(struct transfer *t)
{
    const struct hub_progress *progress = t->download->progress;
    return !progress || progress->on_bytes(progress->context, t->file->name,
                                           t->download->done + t->at, t->download->total);
}

static bool is_cancelled(void *context)
{
    return !report(context);
}

static void say_waiting(void *context)
{
    const struct transfer *t = context;
    log_info("waiting for another process that fetches %s of %s", t->file->name, t->download->repo);
}

static enum status file_error(struct transfer *t, const char *what, struct error *error)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return error_set(error, ERROR_IO,
                         "the disk of %s is full with %llu of the %llu bytes of %s; make room and "
                         "the same command goes on from there",
                         str_z(&t->download->settings->cache), (unsigned long long)t->at,
                         (unsigned long long)t->bytes, t->file->name);
    return error_set(error, ERROR_IO, "%s cannot be %s: %s", str_z(&t->incomplete), what,
                     strerror(errno));
}

/* --- what the hub says about the file ----------------------------------------------------------
 */

/* An ETag becomes a file name. */
static bool is_blob_name(const char *etag)
{
    if (!isalnum((unsigned char)*etag))
        return false;
    for (; *etag; etag++)
        if (!isalnum((unsigned char)*etag) && !strchr("-_.", *etag))
            return false;
    return true;
}

static enum status check_head(struct transfer *t, struct error *error)
{
    const struct hub_file *file = t->file;
    const struct hub_reply *head = &t->head;
    if (!is_blob_name(head->etag))
        return error_set(error, ERROR_INVALID, "the hub names no usable ETag or digest for %s",
                         file->name);
    if (head->commit[0] && strcmp(head->commit, t->download->commit) != 0)
        return error_set(error, ERROR_INVALID, "the hub answers with commit %s of %s instead of %s",
                         head->commit, file->name, t->download->commit);
    if (!file->has_size && head->bytes < 0)
        return error_set(error, ERROR_INVALID, "the hub does not say how long %s is", file->name);
    t->bytes = file->has_size ? file->bytes : (uint64_t)head->bytes;
    if (head->bytes >= 0 && (uint64_t)head->bytes != t->bytes)
        return error_set(
            error, ERROR_INVALID,
            "the hub's listing says that %s has %llu bytes and its file server that it has %lld",
            file->name, (unsigned long long)t->bytes, (long long)head->bytes);
    /* The ETag of a file in large file storage is its SHA-256. */
    t->sha256 = file->sha256 ? file->sha256 : hub_is_hex(head->etag, 64) ? head->etag : NULL;
    return OK;
}

static enum status ask_head(struct transfer *t, struct error *error)
{
    struct hub_request request = {
        .path = str_z(&t->url_path), .is_head = true, .is_cancelled = is_cancelled, .context = t};
    enum status status;
    if (t->download->settings->source == HUB_MODELSCOPE) { /* its listing says all there is */
        snprintf(t->head.etag, sizeof t->head.etag, "%s", t->file->sha256 ? t->file->sha256 : "");
        t->head.bytes = -1;
        return check_head(t, error);
    }
    for (int attempt = 1;; attempt++) {
        status = hub_http_send(t->download->http, &request, &t->head, error);
        if (status == OK || !hub_http_try_again(&request, &t->head, attempt, &status, error))
            break;
    }
    return status == OK ? check_head(t, error) : status;
}

/* --- the incomplete file -----------------------------------------------------------------------
 */

static void begin_digests(struct transfer *t)
{
    char head[32]; /* git hashes it, with its NUL, before the bytes */
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)t->bytes);
    sha256_init(&t->hash);
    sha1_init(&t->git_hash);
    sha1_update(&t->git_hash, head, (size_t)n + 1);
}

static void update_digests(struct transfer *t, const char *data, size_t bytes)
{
    sha256_update(&t->hash, data, bytes);
    if (t->file->sha1)
        sha1_update(&t->git_hash, data, bytes);
}

static enum status start_over(struct transfer *t, struct error *error)
{
    begin_digests(t);
    t->at = 0;
    if (ftruncate(t->fd, 0) != 0 || lseek(t->fd, 0, SEEK_SET) != 0)
        return file_error(t, "emptied", error);
    return OK;
}

/* Takes up what an earlier pull has left: its bytes enter the hash. */
static enum status open_incomplete(struct transfer *t, struct error *error)
{
    enum { CHUNK = 1 << 18 };
    struct str buffer = {0};
    enum status status = OK;
    t->fd = open(str_z(&t->incomplete), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->fd < 0)
        return file_error(t, "opened", error);
    begin_digests(t);
    if (!str_reserve(&buffer, CHUNK))
        return error_memory(error, CHUNK);
    while (status == OK) {
        ssize_t n = read(t->fd, buffer.data, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = file_error(t, "read", error);
        if (n <= 0)
            break;
        update_digests(t, buffer.data, (size_t)n);
        t->at += (uint64_t)n;
        if (!report(t))
            status = error_set(error, ERROR_CANCELLED, "interrupted");
    }
    str_done(&buffer);
    return status == OK && t->at > t->bytes ? start_over(t, error) : status;
}

static enum status check_space(struct transfer *t, struct error *error)
{
    struct statvfs disk;
    uint64_t missing = t->bytes - t->at;
    if (fstatvfs(t->fd, &disk) != 0)
        return OK; /* the write will say it */
    uint64_t unit = disk.f_frsize ? disk.f_frsize : disk.f_bsize;
    if (!unit || missing / unit <= disk.f_bavail)
        return OK;
    return error_set(error, ERROR_IO,
                     "%s needs %llu more bytes and the disk of %s has room for %llu; make room or "
                     "set %s to another folder",
                     t->file->name, (unsigned long long)missing,
                     str_z(&t->download->settings->cache),
                     (unsigned long long)(disk.f_bavail * unit),
                     hub_terms(t->download->settings->source)->cache_variable);
}

/* --- the bytes ---------------------------------------------------------------------------------
 */

/* Where the reply's bytes belong, and how many there must be. */
static enum status begin(struct transfer *t, struct error *error)
{
    const struct hub_reply *reply = &t->reply;
    enum status status = OK;
    t->has_begun = true;
    /* A server without ranges sends everything; some send a range with 200. */
    if (reply->http_status == 200 && t->at > 0 && reply->range_start == 0)
        status = start_over(t, error);
    else if ((uint64_t)reply->range_start != t->at)
        status = error_set(error, ERROR_INVALID,
                           "the hub sends %s from byte %lld where byte %llu was asked for",
                           t->file->name, (long long)reply->range_start, (unsigned long long)t->at);
    if (status == OK && reply->bytes >= 0 && (uint64_t)reply->bytes != t->bytes - t->at)
        status = error_set(
            error, ERROR_INVALID, "the hub sends %lld bytes of %s where %llu are missing",
            (long long)reply->bytes, t->file->name, (unsigned long long)(t->bytes - t->at));
    return status;
}

static enum status take_bytes(void *context, const char *data, size_t bytes, struct error *error)
{
    struct transfer *t = context;
    enum status status = t->has_begun ? OK : begin(t, error);
    if (status != OK)
        return status;
    if (bytes > t->bytes - t->at)
        return error_set(error, ERROR_INVALID, "the hub sends more than the %llu bytes of %s",
                         (unsigned long long)t->bytes, t->file->name);
    update_digests(t, data, bytes);
    while (bytes) {
        ssize_t n = write(t->fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return file_error(t, "written", error);
        data += n;
        bytes -= (size_t)n;
        t->at += (uint64_t)n;
    }
    return OK;
}

/* Asks for what is missing until it is there. */
static enum status fetch(struct transfer *t, struct error *error)
{
    struct hub_request request = {.path = str_z(&t->url_path),
                                  .on_body = take_bytes,
                                  .is_cancelled = is_cancelled,
                                  .context = t};
    uint64_t furthest = t->at;
    int attempt = 0;
    for (int n = 0; t->at < t->bytes; n++) {
        request.from = t->at;
        t->has_begun = false;
        enum status status = hub_http_send(t->download->http, &request, &t->reply, error);
        if (status == OK && t->at == t->bytes)
            break;
        if (status != OK && t->reply.http_status == 416 && t->at > 0) {
            status = start_over(t, error);
            t->reply.may_work_later = status == OK;
        } else if (status == OK) {
            status =
                error_set(error, ERROR_IO, "the connection ended after %llu of %llu bytes of %s",
                          (unsigned long long)t->at, (unsigned long long)t->bytes, t->file->name);
            t->reply.may_work_later = true;
        }
        /* Only bytes that were never reached before are progress. */
        attempt = t->at > furthest && n < MAX_BREAKS ? 1 : attempt + 1;
        furthest = t->at > furthest ? t->at : furthest;
        if (!hub_http_try_again(&request, &t->reply, attempt, &status, error))
            return status;
    }
    return OK;
}

static enum status check_digest(struct transfer *t, struct error *error)
{
    char found[SHA256_HEX];
    const char *kind = "SHA-256", *expected = t->sha256;
    if (expected) {
        sha256_hex(&t->hash, found);
    } else if (t->file->sha1) {
        kind = "git's SHA-1";
        expected = t->file->sha1;
        sha1_hex(&t->git_hash, found);
    }
    if (!expected || strcmp(found, expected) == 0)
        return OK;
    return error_set(error, ERROR_INVALID,
                     "%s arrived with %s %s instead of %s and was deleted; pull it again",
                     t->file->name, kind, found, expected);
}

/* The caller holds the blob's lock. */
static enum status fetch_blob(struct transfer *t, struct error *error)
{
    struct stat info;
    if (stat(str_z(&t->blob), &info) == 0 && (uint64_t)info.st_size == t->bytes) {
        t->at = t->bytes;
        return OK;
    }
    enum status status = open_incomplete(t, error);
    if (status == OK)
        status = check_space(t, error);
    uint64_t resumed_at = t->at;
    if (status == OK)
        status = fetch(t, error);
    if (status != OK)
        return status;
    status = check_digest(t, error);
    if (status != OK && resumed_at > 0) { /* the part that was there may be what is wrong */
        status = start_over(t, error);
        if (status == OK)
            status = fetch(t, error);
        if (status != OK)
            return status;
        status = check_digest(t, error);
    }
    if (status != OK) {
        unlink(str_z(&t->incomplete));
        return status;
    }
    if (fsync(t->fd) != 0)
        return file_error(t, "written", error);
    if (rename(str_z(&t->incomplete), str_z(&t->blob)) != 0)
        return file_error(t, "renamed", error);
    return OK;
}

static enum status make_names(struct transfer *t, struct str *lock, struct error *error)
{
    const struct hub_download *d = t->download;
    char tail[HUB_ETAG_MAX + 32];
    snprintf(tail, sizeof tail, "blobs/%s", t->head.etag);
    enum status status = hub_cache_path(d->settings, d->repo, tail, &t->blob, error);
    str_printf(&t->incomplete, "%s.incomplete", str_z(&t->blob));
    snprintf(tail, sizeof tail, "%s.lock", t->head.etag);
    if (status == OK)
        status = hub_cache_lock_path(d->settings, d->repo, tail, lock, error);
    if (status == OK)
        status = t->incomplete.failed ? error_memory(error, t->blob.len)
                                      : hub_cache_make_folders(str_z(&t->blob), error);
    return status;
}

void hub_download_path(struct str *out, enum hub_source source, const char *repo,
                       const char *revision, const char *file)
{
    str_printf(out, "%s/%s/resolve/", source == HUB_MODELSCOPE ? "/models" : "", repo);
    hub_http_escape(out, revision, false);
    str_append_char(out, '/');
    hub_http_escape(out, file, true);
}

enum status hub_download_file(struct hub_download *download, const struct hub_file *file,
                              struct error *error)
{
    struct transfer t = {.download = download, .file = file, .fd = -1};
    struct str lock = {0};
    int lock_fd = -1;
    uint64_t cached;
    if (file->has_size &&
        hub_cache_has(download->settings, download->repo, download->commit, file->name, &cached) &&
        cached == file->bytes) {
        download->done += file->bytes;
        return report(&t) ? OK : error_set(error, ERROR_CANCELLED, "interrupted");
    }
    hub_download_path(&t.url_path, download->settings->source, download->repo, download->revision,
                      file->name);
    enum status status = t.url_path.failed ? error_memory(error, 64) : ask_head(&t, error);
    if (status == OK)
        status = make_names(&t, &lock, error);
    if (status == OK)
        status = hub_cache_lock(str_z(&lock), is_cancelled, say_waiting, &t, &lock_fd, error);
    if (status == OK)
        status = fetch_blob(&t, error);
    if (status == OK)
        status = hub_cache_link(download->settings, download->repo, download->commit, file->name,
                                t.head.etag, error);
    if (t.fd >= 0)
        close(t.fd);
    hub_cache_unlock(lock_fd);
    str_done(&lock);
    str_done(&t.url_path);
    str_done(&t.blob);
    str_done(&t.incomplete);
    if (status == OK)
        download->done += t.bytes;
    return status;
}
