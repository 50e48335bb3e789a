/* Single requests to a server: what it serves, starting and stopping a profile. */
#include "bench/load_http.h"

#include "bench/load.h"

#include <string.h>

enum { MAX_REPLY = 64 << 20 };
static const long timeout_seconds = 120;

void load_url(struct str *out, const char *base_url, const char *path)
{
    size_t n = strlen(base_url);
    while (n > 0 && base_url[n - 1] == '/')
        n--;
    if (n >= 3 && memcmp(base_url + n - 3, "/v1", 3) == 0)
        n -= 3;
    str_append(out, base_url, n);
    str_append_z(out, path);
}

struct curl_slist *load_headers(const char *api_key)
{
    struct str line = {0};
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json"), *longer;
    if (!list || !api_key)
        return list;
    str_printf(&line, "Authorization: Bearer %s", api_key);
    longer = curl_slist_append(list, str_z(&line));
    str_done(&line);
    if (!longer)
        curl_slist_free_all(list);
    return longer;
}

static size_t on_reply(char *data, size_t size, size_t n, void *context)
{
    struct str *out = context;
    if (out->len + size * n > MAX_REPLY)
        return 0;
    str_append(out, data, size * n);
    return out->failed ? 0 : size * n;
}

static enum status ask(const char *base_url, const char *path, const char *api_key,
                       const char *body, struct str *out, struct error *error)
{
    struct str url = {0};
    CURL *handle = curl_easy_init();
    struct curl_slist *headers = load_headers(api_key);
    load_url(&url, base_url, path);
    enum status status = OK;
    if (!handle || !headers || url.failed) {
        status = error_memory(error, url.len);
        goto out;
    }
    curl_easy_setopt(handle, CURLOPT_URL, str_z(&url));
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    if (body)
        curl_easy_setopt(handle, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_reply);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(handle, CURLOPT_TIMEOUT, timeout_seconds);
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_NOPROXY, LOAD_NO_PROXY);
    CURLcode code = curl_easy_perform(handle);
    long http_status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &http_status);
    if (code != CURLE_OK)
        status = error_set(error, ERROR_NOT_FOUND, "%s does not answer: %s; is the server running?",
                           str_z(&url), curl_easy_strerror(code));
    else if (http_status != 200)
        status = error_set(error, ERROR_NOT_FOUND, "%s answers with %ld: %.200s", str_z(&url),
                           http_status, str_z(out));
out:
    curl_easy_cleanup(handle);
    curl_slist_free_all(headers);
    str_done(&url);
    return status;
}

enum status load_get(const char *base_url, const char *path, const char *api_key, struct str *out,
                     struct error *error)
{
    return ask(base_url, path, api_key, NULL, out, error);
}

enum status load_post(const char *base_url, const char *path, const char *api_key, const char *body,
                      struct str *out, struct error *error)
{
    return ask(base_url, path, api_key, body, out, error);
}
