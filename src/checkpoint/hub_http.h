/* HTTP to the hub: one request at a time over libcurl, with redirects that never carry the token to
 * another host. Knows nothing of repositories. */
#ifndef CSGL_CHECKPOINT_HUB_HTTP_H
#define CSGL_CHECKPOINT_HUB_HTTP_H

#include "base/error.h"
#include "base/str.h"
#include "checkpoint/hub.h"

enum { HUB_ETAG_MAX = 128 };

struct hub_http;

/* `settings` is kept. */
enum status hub_http_open(struct hub_http **out, const struct hub_settings *settings,
                          struct error *error);
void hub_http_free(struct hub_http *http);

struct hub_request {
    const char *path; /* "/api/models/ORG/NAME/revision/main", escaped */
    bool is_head;
    uint64_t from; /* ask for the bytes from here on */
    /* The body's bytes, with the reply's head; not called for errors and redirects. */
    enum status (*on_body)(void *context, const char *data, size_t bytes, struct error *error);
    bool (*is_cancelled)(void *context); /* also called while nothing arrives */
    void *context;
};

/* What the answer said. */
struct hub_reply {
    long http_status;              /* 0: none came */
    char etag[HUB_ETAG_MAX + 1];   /* X-Linked-Etag, else ETag, without quotes; "": none */
    char commit[HUB_ETAG_MAX + 1]; /* X-Repo-Commit, or "" */
    int64_t bytes;                 /* X-Linked-Size, else Content-Length; -1: unknown */
    int64_t range_start;           /* of Content-Range; 0 without one */
    bool may_work_later;           /* broken connection, 408, 429, 5xx */
    int retry_after;               /* seconds that the server asked for, or 0 */
};

/* OK when a 2xx has arrived whole. A HEAD stops at a redirect to another host, which is success.
 * `reply` is filled either way; `reply` is also complete before the first on_body. */
enum status hub_http_send(struct hub_http *http, const struct hub_request *request,
                          struct hub_reply *reply, struct error *error);

/* Sleeps before the next attempt (attempt 1 has failed: half a second, then twice as long each
 * time, or as long as the server asked for, at most 30 s); false when attempts are used up or the
 * error will stay. Sets `status` to ERROR_CANCELLED when `request` is cancelled meanwhile. */
bool hub_http_try_again(const struct hub_request *request, const struct hub_reply *reply,
                        int attempt, enum status *status, struct error *error);

/* The whole body of a GET as text, at most `limit` bytes, with attempts. */
enum status hub_http_text(struct hub_http *http, const char *path, size_t limit,
                          bool (*is_cancelled)(void *context), void *context, struct str *out,
                          struct hub_reply *reply, struct error *error);

/* Appends `text` with all but letters, digits and "-._~" (and '/', if `keep_slash`) escaped. */
void hub_http_escape(struct str *out, const char *text, bool keep_slash);

#endif
