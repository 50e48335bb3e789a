/* Which path is what, who may ask, and the id of each request. */
#include "server/frontend.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct route {
    const char *method, *path;
    bool is_prefix; /* the rest of the path is the handler's */
    bool is_open;   /* no key is asked for */
    route_handler handler;
};

static const struct route routes[] = {
    {"POST", "/v1/chat/completions", false, false, chat_handle},
    {"POST", "/v1/completions", false, false, completions_handle},
    {"POST", "/generate", false, false, generate_handle},
    {"GET", "/v1/models", false, false, models_handle},
    {"GET", "/v1/models/", true, false, model_handle},
    {"GET", "/v1", false, true, root_handle},
    {"GET", "/", false, true, page_handle},
    {"GET", "/health", false, true, health_handle},
    {"GET", "/version", false, true, version_handle},
    {"GET", "/metrics", false, false, metrics_handle},
    {"GET", "/get_model_info", false, false, model_info_handle},
    {"GET", "/get_server_info", false, false, server_info_handle},
    {"POST", "/tokenize", false, false, tokenize_handle},
    {"POST", "/detokenize", false, false, detokenize_handle},
    {"POST", "/flush_cache", false, false, flush_handle},
    {"POST", "/abort_request", false, false, abort_handle},
    {"POST", "/start_profile", false, false, start_profile_handle},
    {"POST", "/stop_profile", false, false, stop_profile_handle},
};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        size_t n = strlen(r->path);
        if (r->is_prefix ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0)
            return r;
    }
    return NULL;
}

/* Equal, in a time that depends on the length of `given` alone. */
static bool keys_equal(const char *given, const char *key)
{
    size_t n = strlen(given), n_key = strlen(key);
    unsigned difference = n != n_key;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)(n_key ? key[i % n_key] : 0);
    return difference == 0;
}

static bool may_ask(const struct frontend *f, const struct http_request *request)
{
    const struct server_options *o = f->options;
    const char *given = http_header(request, "authorization");
    bool is_known = false;
    if (o->n_api_keys == 0)
        return true;
    if (!given || strncasecmp(given, "bearer ", 7) != 0)
        return false;
    given += 7 + strspn(given + 7, " ");
    for (int i = 0; i < o->n_api_keys; i++) /* all of them, so that time does not tell which */
        is_known |= keys_equal(given, o->api_keys[i]);
    return is_known;
}

/* The client's own id if it is harmless, else one of ours. */
static void choose_request_id(struct frontend *f, const struct http_request *request)
{
    const char *given = http_header(request, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool is_sane = n > 0 && n <= REQUEST_ID_BYTES;
    for (size_t i = 0; is_sane && i < n; i++)
        is_sane = given[i] > ' ' && given[i] < 0x7f && given[i] != '"' && given[i] != '\\';
    if (is_sane) {
        memcpy(f->request_id, given, n + 1);
        return;
    }
    char id[ID_BYTES + 1];
    frontend_random_id(f, id);
    snprintf(f->request_id, sizeof f->request_id, "req-%s", id);
}

void routes_handle(void *context, struct http_request *request)
{
    struct frontend *f = context;
    const char *method = http_method(request);
    const struct route *route = find_route(http_path(request));
    choose_request_id(f, request);
    http_header_add(request, "x-request-id", f->request_id);
    if (!route) {
        char message[256];
        snprintf(message, sizeof message,
                 "There is no %.120s here; docs/api.md lists the endpoints.", http_path(request));
        http_error(request, 404, NULL, NULL, "not_found", message, 0);
        return;
    }
    bool is_get = strcmp(route->method, "GET") == 0;
    bool is_allowed = strcmp(method, route->method) == 0 || (is_get && strcmp(method, "HEAD") == 0);
    if (!is_allowed)
        http_method_refused(request, is_get ? "GET, HEAD" : "POST");
    else if (!route->is_open && !may_ask(f, request))
        http_error(request, 401, NULL, NULL, "invalid_api_key",
                   "This server asks for an API key: send it as 'Authorization: Bearer KEY'.", 0);
    else
        route->handler(f, request);
}
