#include "checkpoint/hub_http.h"

#include "checkpoint/hub_certificates.h"

#include <ctype.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    MAX_REDIRECTS = 8,
    MAX_ATTEMPTS = 5,
    MAX_WAIT_SECONDS = 30,
    CONNECT_SECONDS = 30,
    STALL_SECONDS = 60,           /* without a byte: the connection counts as broken */
    DISCARDED_BYTES_MAX = 1 << 20 /* of an error's or redirect's body */
};

struct hub_http {
    const struct hub_settings *settings;
    CURL *curl;
    const char *certificates; /* a file, or NULL: libcurl's own choice */
    struct curl_slist *headers, *headers_with_token;
};

/* One request under way. */
struct exchange {
    struct hub_http *http;
    const struct hub_request *request;
    struct hub_reply *reply;
    char plain_etag[HUB_ETAG_MAX + 1];
    int64_t linked_bytes;
    size_t discarded;
    enum status status; /* of on_body */
    struct error error;
    bool is_cancelled;
};

static enum status add_header(struct curl_slist **list, const char *text, struct error *error)
{
    struct curl_slist *longer = curl_slist_append(*list, text);
    if (!longer)
        return error_memory(error, strlen(text));
    *list = longer;
    return OK;
}

enum status hub_http_open(struct hub_http **out, const struct hub_settings *settings,
                          struct error *error)
{
    struct hub_http *http = calloc(1, sizeof *http);
    struct str token = {0};
    if (!http)
        return error_memory(error, sizeof *http);
    http->settings = settings;
    http->certificates = hub_certificates();
    enum status status = OK;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(http->curl = curl_easy_init()))
        status = error_set(error, ERROR_IO, "libcurl cannot be started");
    /* Sizes in headers are those of the file, not of a compressed form. */
    static const char identity[] = "Accept-Encoding: identity";
    if (status == OK)
        status = add_header(&http->headers, identity, error);
    if (status == OK && settings->token) {
        str_printf(&token, "Authorization: Bearer %s", settings->token);
        status = add_header(&http->headers_with_token, identity, error);
        if (status == OK)
            status = token.failed ? error_memory(error, token.len)
                                  : add_header(&http->headers_with_token, str_z(&token), error);
        /* Older parts of ModelScope look for the token in this cookie. */
        str_clear(&token);
        str_printf(&token, "Cookie: m_session_id=%s", settings->token);
        if (status == OK && settings->source == HUB_MODELSCOPE)
            status = token.failed ? error_memory(error, token.len)
                                  : add_header(&http->headers_with_token, str_z(&token), error);
    }
    str_done(&token);
    if (status != OK) {
        hub_http_free(http);
        return status;
    }
    *out = http;
    return OK;
}

void hub_http_free(struct hub_http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->curl);
    curl_slist_free_all(http->headers);
    curl_slist_free_all(http->headers_with_token);
    free(http);
}

/* --- headers ---------------------------------------------------------------------------------- */

/* Copies an ETag without W/ and quotes; one that is too long counts as none. */
static void copy_etag(char out[HUB_ETAG_MAX + 1], const char *text, size_t n)
{
    if (n >= 2 && text[0] == 'W' && text[1] == '/') {
        text += 2;
        n -= 2;
    }
    if (n >= 2 && text[0] == '"' && text[n - 1] == '"') {
        text++;
        n -= 2;
    }
    out[0] = '\0';
    if (n <= HUB_ETAG_MAX && !memchr(text, 0, n)) {
        memcpy(out, text, n);
        out[n] = '\0';
    }
}

/* The whole number that `text` begins with, -1 without one. */
static int64_t leading_number(const char *text, size_t n)
{
    int64_t value = 0;
    size_t i = 0;
    for (; i < n && isdigit((unsigned char)text[i]) && value < INT64_MAX / 10 - 1; i++)
        value = 10 * value + (text[i] - '0');
    return i == 0 || (i < n && isdigit((unsigned char)text[i])) ? -1 : value;
}

static bool is_header(const char *line, size_t n, const char *name, const char **value,
                      size_t *value_len)
{
    size_t m = strlen(name);
    if (n <= m || line[m] != ':' || strncasecmp(line, name, m) != 0)
        return false;
    line += m + 1;
    n -= m + 1;
    while (n && isspace((unsigned char)*line)) {
        line++;
        n--;
    }
    while (n && isspace((unsigned char)line[n - 1]))
        n--;
    *value = line;
    *value_len = n;
    return true;
}

static size_t on_header(char *line, size_t size, size_t n, void *context)
{
    struct exchange *x = context;
    struct hub_reply *reply = x->reply;
    const char *value;
    size_t len;
    if (is_header(line, n, "etag", &value, &len))
        copy_etag(x->plain_etag, value, len);
    else if (is_header(line, n, "x-linked-etag", &value, &len))
        copy_etag(reply->etag, value, len);
    else if (is_header(line, n, "x-repo-commit", &value, &len))
        copy_etag(reply->commit, value, len);
    else if (is_header(line, n, "x-linked-size", &value, &len))
        x->linked_bytes = leading_number(value, len);
    else if (is_header(line, n, "content-length", &value, &len))
        reply->bytes = leading_number(value, len);
    else if (is_header(line, n, "content-range", &value, &len) && len > 6)
        reply->range_start = leading_number(value + 6, len - 6); /* "bytes 100-199/200" */
    else if (is_header(line, n, "retry-after", &value, &len)) {
        int64_t seconds = leading_number(value, len);
        reply->retry_after = seconds < 0 ? 0 : (int)(seconds < 3600 ? seconds : 3600);
    }
    return size * n;
}

/* --- one transfer ----------------------------------------------------------------------------- */

static size_t on_data(char *data, size_t size, size_t n, void *context)
{
    struct exchange *x = context;
    size_t bytes = size * n;
    if (!x->reply->http_status)
        curl_easy_getinfo(x->http->curl, CURLINFO_RESPONSE_CODE, &x->reply->http_status);
    if (x->reply->http_status != 200 && x->reply->http_status != 206) {
        x->discarded += bytes;
        return x->discarded > DISCARDED_BYTES_MAX ? 0 : bytes;
    }
    x->status = x->request->on_body(x->request->context, data, bytes, &x->error);
    return x->status == OK ? bytes : 0;
}

static int on_tick(void *context, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                   curl_off_t up)
{
    struct exchange *x = context;
    (void)down_total, (void)down, (void)up_total, (void)up;
    x->is_cancelled = x->request->is_cancelled && x->request->is_cancelled(x->request->context);
    return x->is_cancelled;
}

static bool same_part(CURLU *a, CURLU *b, CURLUPart part)
{
    char *x = NULL, *y = NULL;
    bool is_same = curl_url_get(a, part, &x, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                   curl_url_get(b, part, &y, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                   strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return is_same;
}

/* Same scheme, host and port. */
static bool is_same_origin(const char *a, const char *b)
{
    CURLU *x = curl_url(), *y = curl_url();
    bool is_same = x && y && curl_url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                   curl_url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK &&
                   same_part(x, y, CURLUPART_SCHEME) && same_part(x, y, CURLUPART_HOST) &&
                   same_part(x, y, CURLUPART_PORT);
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return is_same;
}

static bool is_https(const char *url)
{
    return strncasecmp(url, "https://", 8) == 0;
}

/* Nothing but HTTP, and never from encrypted to plain. */
static enum status check_redirect(const struct hub_http *http, const char *url, struct error *error)
{
    if (is_https(url) ||
        (strncasecmp(url, "http://", 7) == 0 && !is_https(str_z(&http->settings->endpoint))))
        return OK;
    return error_set(error, ERROR_UNSUPPORTED, "it redirects to %.100s, which csgl does not follow",
                     url);
}

static void prepare(struct exchange *x, const char *url, char *reason)
{
    CURL *curl = x->http->curl;
    const struct hub_request *request = x->request;
    bool has_token =
        x->http->headers_with_token && is_same_origin(url, str_z(&x->http->settings->endpoint));
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER,
                     has_token ? x->http->headers_with_token : x->http->headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "csgl/" CSGL_VERSION);
    if (x->http->certificates)
        curl_easy_setopt(curl, CURLOPT_CAINFO, x->http->certificates);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOBODY, request->is_head ? 1L : 0L);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_tick);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, x);
    if (request->from) {
        char range[32];
        snprintf(range, sizeof range, "%llu-", (unsigned long long)request->from);
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
}

static enum status explain_failure(const struct exchange *x, const char *url, CURLcode code,
                                   const char *reason, struct error *error)
{
    if (x->is_cancelled)
        return error_set(error, ERROR_CANCELLED, "interrupted");
    if (x->status != OK)
        return error_set(error, x->status, "%s", x->error.message);
    size_t n = strcspn(url, "?");
    const char *certificates = "";
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        certificates = "; are ca-certificates installed? SSL_CERT_FILE may name a file of them";
    return error_set(error, ERROR_IO, "%.*s cannot be fetched: %s%s", (int)(n < 200 ? n : 200), url,
                     *reason ? reason : curl_easy_strerror(code), certificates);
}

/* One hop: fills the reply, without judging its status. */
static enum status perform(struct exchange *x, const char *url, struct error *error)
{
    char reason[CURL_ERROR_SIZE] = "";
    struct hub_reply *reply = x->reply;
    *reply = (struct hub_reply){.bytes = -1};
    x->plain_etag[0] = '\0';
    x->linked_bytes = -1;
    x->discarded = 0;
    prepare(x, url, reason);
    CURLcode code = curl_easy_perform(x->http->curl);
    /* libcurl keeps the pointer beyond this call. */
    curl_easy_setopt(x->http->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_getinfo(x->http->curl, CURLINFO_RESPONSE_CODE, &reply->http_status);
    if (!reply->etag[0])
        memcpy(reply->etag, x->plain_etag, sizeof reply->etag);
    if (x->linked_bytes >= 0 || reply->http_status / 100 == 3)
        reply->bytes = x->linked_bytes; /* a redirect's own length is not the file's */
    if (code == CURLE_OK)
        return OK;
    reply->may_work_later =
        !x->is_cancelled && x->status == OK && code != CURLE_URL_MALFORMAT &&
        code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_COULDNT_RESOLVE_HOST &&
        code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE;
    return explain_failure(x, url, code, reason, error);
}

/* --- requests --------------------------------------------------------------------------------- */

enum { REMEDY_BYTES = 200 };

static void write_remedy(long code, const char *token_variable, char out[REMEDY_BYTES])
{
    out[0] = '\0';
    if (code == 401 || code == 403)
        snprintf(out, REMEDY_BYTES,
                 ": it is private, needs a licence to be accepted, or does not exist; check the "
                 "name and set %s to a token that may read it",
                 token_variable);
    else if (code == 404)
        snprintf(out, REMEDY_BYTES, ": the hub has no such repository, revision or file");
    else if (code == 429)
        snprintf(out, REMEDY_BYTES, ": too many requests; wait, or set %s", token_variable);
}

static enum status judge(const struct exchange *x, const char *url, struct error *error)
{
    struct hub_reply *reply = x->reply;
    long code = reply->http_status;
    if (code >= 200 && code < 300)
        return OK;
    reply->may_work_later = code == 408 || code == 429 || code >= 500;
    size_t n = strcspn(url, "?");
    char remedy[REMEDY_BYTES];
    write_remedy(code, hub_terms(x->http->settings->source)->token_variable, remedy);
    return error_set(error, code == 404 ? ERROR_NOT_FOUND : ERROR_IO,
                     "%.*s answers with status %ld%s", (int)(n < 300 ? n : 300), url, code, remedy);
}

enum status hub_http_send(struct hub_http *http, const struct hub_request *request,
                          struct hub_reply *reply, struct error *error)
{
    struct exchange x = {.http = http, .request = request, .reply = reply};
    struct str url = {0}, next = {0};
    enum status status = OK;
    str_printf(&url, "%s%s", str_z(&http->settings->endpoint), request->path);
    for (int n = 0;; n++) {
        char *location = NULL;
        status = url.failed ? error_memory(error, url.len) : perform(&x, str_z(&url), error);
        if (status != OK)
            break;
        if (reply->http_status / 100 == 3)
            curl_easy_getinfo(http->curl, CURLINFO_REDIRECT_URL, &location);
        if (!location) {
            status = judge(&x, str_z(&url), error);
            break;
        }
        if (request->is_head && !is_same_origin(location, str_z(&url)))
            break;
        status = n == MAX_REDIRECTS
                     ? error_set(error, ERROR_LIMIT, "more than %d redirects from %s",
                                 MAX_REDIRECTS, request->path)
                     : check_redirect(http, location, error);
        if (status != OK)
            break;
        str_clear(&next);
        str_append_z(&next, location); /* libcurl's own memory until the next request */
        str_clear(&url);
        str_append_z(&url, str_z(&next));
        url.failed = url.failed || next.failed;
    }
    str_done(&url);
    str_done(&next);
    return status;
}

static bool sleep_unless_cancelled(const struct hub_request *request, double seconds)
{
    const struct timespec tick = {.tv_nsec = 100 * 1000 * 1000};
    for (int n = (int)(seconds * 10); n > 0; n--) {
        if (request->is_cancelled && request->is_cancelled(request->context))
            return false;
        nanosleep(&tick, NULL);
    }
    return true;
}

bool hub_http_try_again(const struct hub_request *request, const struct hub_reply *reply,
                        int attempt, enum status *status, struct error *error)
{
    if (!reply->may_work_later)
        return false;
    if (attempt >= MAX_ATTEMPTS) {
        char said[sizeof error->message];
        snprintf(said, sizeof said, "%s", error ? error->message : "");
        *status = error_set(error, *status, "%s (%d attempts)", said, attempt);
        return false;
    }
    double seconds = 0.5 * (1 << (attempt - 1));
    if (reply->retry_after > seconds)
        seconds = reply->retry_after < MAX_WAIT_SECONDS ? reply->retry_after : MAX_WAIT_SECONDS;
    if (sleep_unless_cancelled(request, seconds))
        return true;
    *status = error_set(error, ERROR_CANCELLED, "interrupted");
    return false;
}

/* --- text ------------------------------------------------------------------------------------- */

struct text_sink {
    struct str *out;
    size_t limit;
    bool (*is_cancelled)(void *context);
    void *context;
};

static enum status append_text(void *context, const char *data, size_t bytes, struct error *error)
{
    struct text_sink *sink = context;
    if (bytes > sink->limit || sink->out->len > sink->limit - bytes)
        return error_set(error, ERROR_LIMIT,
                         "the hub's answer is longer than the limit of %zu bytes", sink->limit);
    str_append(sink->out, data, bytes);
    return sink->out->failed ? error_memory(error, bytes) : OK;
}

static bool ask_sink(void *context)
{
    struct text_sink *sink = context;
    return sink->is_cancelled && sink->is_cancelled(sink->context);
}

enum status hub_http_text(struct hub_http *http, const char *path, size_t limit,
                          bool (*is_cancelled)(void *context), void *context, struct str *out,
                          struct hub_reply *reply, struct error *error)
{
    struct text_sink sink = {
        .out = out, .limit = limit, .is_cancelled = is_cancelled, .context = context};
    struct hub_request request = {
        .path = path, .on_body = append_text, .is_cancelled = ask_sink, .context = &sink};
    for (int attempt = 1;; attempt++) {
        str_clear(out);
        enum status status = hub_http_send(http, &request, reply, error);
        if (status == OK || !hub_http_try_again(&request, reply, attempt, &status, error))
            return status;
    }
}

void hub_http_escape(struct str *out, const char *text, bool keep_slash)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("-._~", c) || (c == '/' && keep_slash))
            str_append_char(out, (char)c);
        else
            str_printf(out, "%%%02X", c);
    }
}
