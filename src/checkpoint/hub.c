#include "checkpoint/hub.h"

#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/size.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/hub_download.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LISTING_BYTES_MAX = 32 << 20 };

const struct hub_terms *hub_terms(enum hub_source source)
{
    static const struct hub_terms terms[N_HUB_SOURCES] = {
        [HUB_HUGGING_FACE] = {"the Hugging Face hub", "main", "https://huggingface.co",
                              "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE"},
        [HUB_MODELSCOPE] = {"ModelScope", "master", "https://www.modelscope.cn",
                            "MODELSCOPE_DOMAIN", "MODELSCOPE_API_TOKEN", "MODELSCOPE_CACHE"},
    };
    return &terms[source];
}

/* --- references --------------------------------------------------------------------------------
 */

static bool is_repo_part(const char *text, size_t n)
{
    if (n == 0 || n > HUB_NAME_MAX || text[0] == '.' || text[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i]))
            return false;
    /* "--" joins the parts of a cache folder's name; the hub refuses it, and "..", too. */
    for (size_t i = 0; i + 1 < n; i++)
        if ((text[i] == '-' || text[i] == '.') && text[i + 1] == text[i])
            return false;
    return true;
}

/* Parts of letters, digits, '.', '_' and '-' between slashes, none of them beginning with '.'. */
static bool is_relative_name(const char *text, size_t n)
{
    bool at_start = true;
    for (size_t i = 0; i < n; i++) {
        bool is_ordinary = isalnum((unsigned char)text[i]) || strchr("_-+", text[i]);
        if (!is_ordinary && (at_start || !strchr("./", text[i])))
            return false;
        at_start = text[i] == '/';
    }
    return n > 0 && !at_start;
}

enum status hub_reference_parse(struct hub_reference *out, enum hub_source source, const char *text,
                                struct error *error)
{
    size_t org = strcspn(text, "/"), name = text[org] ? strcspn(text + org + 1, "@:") : 0;
    size_t repo = org + 1 + name;
    *out = (struct hub_reference){0};
    snprintf(out->revision, sizeof out->revision, "%s", hub_terms(source)->revision);
    if (!text[org] || !is_repo_part(text, org) || !is_repo_part(text + org + 1, name) ||
        (name > 5 && strncasecmp(text + repo - 5, ".gguf", 5) == 0))
        return error_set(error, ERROR_INVALID, "\"%.200s\" is not ORG/NAME on the hub", text);
    memcpy(out->repo, text, repo);
    const char *rest = text + repo;
    if (*rest == '@') {
        size_t n = strcspn(++rest, ":");
        if (n > HUB_REVISION_MAX || !is_relative_name(rest, n))
            return error_set(error, ERROR_INVALID,
                             "\"%.200s\" names no revision behind @: a branch, tag or commit of "
                             "letters, digits and ._-/",
                             text);
        memcpy(out->revision, rest, n);
        out->revision[n] = '\0';
        rest += n;
    }
    if (*rest == ':') {
        size_t n = strlen(++rest);
        if (n > HUB_FILE_MAX || !is_relative_name(rest, n))
            return error_set(error, ERROR_INVALID,
                             "\"%.200s\" names no file behind the colon: FILE.gguf or a "
                             "quantization such as Q4_K_M",
                             text);
        memcpy(out->file, rest, n + 1);
    }
    return OK;
}

/* --- settings ----------------------------------------------------------------------------------
 */

/* huggingface_hub's words for true. */
static bool is_true(const char *value)
{
    return value && (strcasecmp(value, "1") == 0 || strcasecmp(value, "on") == 0 ||
                     strcasecmp(value, "yes") == 0 || strcasecmp(value, "true") == 0);
}

static void find_hugging_face_cache(struct str *out)
{
    const char *cache = options_environment("HF_HUB_CACHE");
    const char *home = options_environment("HF_HOME");
    const char *xdg = options_environment("XDG_CACHE_HOME");
    const char *user = options_environment("HOME");
    if (cache)
        str_append_z(out, cache);
    else if (home)
        str_printf(out, "%s/hub", home);
    else if (xdg)
        str_printf(out, "%s/huggingface/hub", xdg);
    else if (user)
        str_printf(out, "%s/.cache/huggingface/hub", user);
}

/* A folder of its own: what ModelScope's client keeps beside it has another layout. */
static void find_modelscope_cache(struct str *out)
{
    const char *cache = options_environment("MODELSCOPE_CACHE");
    const char *user = options_environment("HOME");
    if (cache)
        str_printf(out, "%s/csgl", cache);
    else if (user)
        str_printf(out, "%s/.cache/modelscope/csgl", user);
}

static void trim_slashes(struct str *s)
{
    while (s->len > 1 && s->data[s->len - 1] == '/')
        s->data[--s->len] = '\0';
}

/* A token is a header's value. */
static bool is_token(const char *token)
{
    for (; *token; token++)
        if (!isgraph((unsigned char)*token))
            return false;
    return true;
}

enum status hub_settings_init(struct hub_settings *settings, enum hub_source source,
                              struct error *error)
{
    const struct hub_terms *terms = hub_terms(source);
    const char *endpoint = options_environment(terms->endpoint_variable);
    *settings = (struct hub_settings){.source = source,
                                      .token = options_environment(terms->token_variable),
                                      .is_offline = is_true(options_environment("HF_HUB_OFFLINE"))};
    if (source == HUB_MODELSCOPE)
        find_modelscope_cache(&settings->cache);
    else
        find_hugging_face_cache(&settings->cache);
    trim_slashes(&settings->cache);
    if (endpoint && source == HUB_MODELSCOPE && !strstr(endpoint, "://"))
        str_append_z(&settings->endpoint, "https://"); /* it is a domain */
    str_append_z(&settings->endpoint, endpoint ? endpoint : terms->endpoint);
    trim_slashes(&settings->endpoint);
    const char *url = str_z(&settings->endpoint);
    enum status status = OK;
    if (settings->cache.failed || settings->endpoint.failed)
        status = error_memory(error, settings->cache.len + settings->endpoint.len);
    else if (!settings->cache.len)
        status = error_set(error, ERROR_NOT_FOUND, "there is no folder for models: set %s or HOME",
                           terms->cache_variable);
    else if (strncasecmp(url, "https://", 8) != 0 && strncasecmp(url, "http://", 7) != 0)
        status = error_set(error, ERROR_INVALID, "%s is \"%.100s\", not a http(s) URL",
                           terms->endpoint_variable, url);
    else if (settings->token && !is_token(settings->token))
        status =
            error_set(error, ERROR_INVALID, "%s has characters that no token has, such as spaces",
                      terms->token_variable);
    if (status != OK)
        hub_settings_done(settings);
    return status;
}

void hub_settings_done(struct hub_settings *settings)
{
    str_done(&settings->cache);
    str_done(&settings->endpoint);
}

/* --- in the cache ------------------------------------------------------------------------------
 */

static enum status missing_part(const struct hub_reference *reference, const char *name,
                                struct error *error)
{
    return error_set(error, ERROR_NOT_FOUND, "the cache lacks %s of %s", name, reference->repo);
}

/* Every file that the index of the snapshot's shards names is there. */
static enum status check_shards(const struct hub_settings *settings,
                                const struct hub_reference *reference, const char *commit,
                                const char *index, size_t bytes, struct error *error)
{
    struct json_reader reader;
    char name[HUB_FILE_MAX + 1];
    enum status status = OK;
    uint64_t file_bytes;
    json_reader_init(&reader, index, bytes);
    enum json_event event = json_next(&reader, error);
    while (status == OK && event != JSON_END && event != JSON_FAILED) {
        bool is_map = event == JSON_KEY && json_text_is(&reader, "weight_map");
        event = json_next(&reader, error);
        while (is_map && status == OK && event != JSON_OBJECT_END && event != JSON_FAILED) {
            size_t n = reader.len < HUB_FILE_MAX ? reader.len : HUB_FILE_MAX;
            if (event == JSON_STRING) {
                memcpy(name, reader.text, n); /* the reader's text has no NUL behind */
                name[n] = '\0';
                if (!hub_cache_has(settings, reference->repo, commit, name, &file_bytes))
                    status = missing_part(reference, name, error);
            }
            event = json_next(&reader, error);
        }
    }
    if (status == OK && event == JSON_FAILED)
        status = error_prefix(error, "%s: model.safetensors.index.json", reference->repo);
    json_reader_done(&reader);
    return status;
}

static enum status check_folder(const struct hub_settings *settings,
                                const struct hub_reference *reference, const char *commit,
                                struct error *error)
{
    static const char index[] = "model.safetensors.index.json";
    struct str path = {0}, tail = {0}, text = {0};
    const char *repo = reference->repo;
    uint64_t bytes;
    enum status status = OK;
    if (!hub_cache_has(settings, repo, commit, "config.json", &bytes))
        return missing_part(reference, "config.json", error);
    if (!hub_cache_has(settings, repo, commit, index, &bytes))
        return hub_cache_has(settings, repo, commit, "model.safetensors", &bytes)
                   ? OK
                   : missing_part(reference, "model.safetensors", error);
    str_printf(&tail, "snapshots/%s/%s", commit, index);
    status = tail.failed ? error_memory(error, tail.len)
                         : hub_cache_path(settings, repo, str_z(&tail), &path, error);
    if (status == OK)
        status = file_read(str_z(&path), HUB_INDEX_BYTES_MAX, &text, error);
    if (status == OK)
        status = check_shards(settings, reference, commit, str_z(&text), text.len, error);
    str_done(&path);
    str_done(&tail);
    str_done(&text);
    return status;
}

/* The snapshot's path, or that of the file in it. */
static enum status answer_path(const struct hub_settings *settings, const char *repo,
                               const char *commit, const char *file, struct str *path,
                               struct error *error)
{
    struct str tail = {0};
    str_printf(&tail, "snapshots/%s%s%s", commit, file ? "/" : "", file ? file : "");
    enum status status = tail.failed ? error_memory(error, tail.len)
                                     : hub_cache_path(settings, repo, str_z(&tail), path, error);
    str_done(&tail);
    return status;
}

enum status hub_find(const struct hub_settings *settings, const struct hub_reference *reference,
                     struct str *path, struct error *error)
{
    struct hub_listing listing = {0};
    char commit[HUB_COMMIT_MAX + 1];
    const char *main_file = NULL;
    enum status status =
        hub_cache_read_ref(settings, reference->repo, reference->revision, commit, error);
    if (status == OK)
        status = hub_cache_scan(settings, reference->repo, commit, &listing, error);
    if (status == ERROR_NOT_FOUND)
        error_set(error, status, "the cache %s has no %s of %s", str_z(&settings->cache),
                  reference->revision, reference->repo);
    if (status == OK)
        status = hub_listing_choose(&listing, reference, &main_file, error);
    if (status == OK && !main_file)
        status = check_folder(settings, reference, commit, error);
    if (status == OK)
        status = answer_path(settings, reference->repo, commit, main_file, path, error);
    hub_listing_done(&listing);
    return status;
}

/* --- from the hub ------------------------------------------------------------------------------
 */

static bool is_stopped(void *context)
{
    const struct hub_progress *progress = context;
    return progress && !progress->on_bytes(progress->context, "", 0, 0);
}

static enum status ask_listing(struct hub_http *http, enum hub_source source,
                               const struct hub_reference *reference,
                               const struct hub_progress *progress, struct hub_listing *listing,
                               struct error *error)
{
    struct str path = {0}, text = {0};
    struct hub_reply reply;
    bool is_modelscope = source == HUB_MODELSCOPE;
    str_printf(&path,
               is_modelscope ? "/api/v1/models/%s/repo/files?Revision="
                             : "/api/models/%s/revision/",
               reference->repo);
    hub_http_escape(&path, reference->revision, false);
    str_append_z(&path, is_modelscope ? "&Recursive=true" : "?blobs=true");
    enum status status = path.failed
                             ? error_memory(error, path.len)
                             : hub_http_text(http, str_z(&path), LISTING_BYTES_MAX, is_stopped,
                                             (void *)(uintptr_t)progress, &text, &reply, error);
    if (status == OK) {
        status = hub_listing_parse(listing, source, str_z(&text), text.len, error);
        if (status != OK)
            status = error_prefix(error, "the hub's answer about %s", reference->repo);
    }
    str_done(&path);
    str_done(&text);
    return status;
}

static bool is_large(const struct hub_file *file)
{
    size_t n = strlen(file->name);
    return n > 12 && strcmp(file->name + n - 12, ".safetensors") == 0;
}

/* Small files first: a snapshot with its weights then has everything. */
static enum status fetch_wanted(struct hub_download *download, const struct hub_listing *listing,
                                struct error *error)
{
    enum status status = OK;
    for (int i = 0; i < listing->n; i++)
        if (listing->files[i].is_wanted &&
            !u64_add(download->total, listing->files[i].bytes, &download->total))
            return error_set(error, ERROR_LIMIT, "the sizes of %s's files add up to too much",
                             download->repo);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < listing->n && status == OK; i++)
            if (listing->files[i].is_wanted && is_large(&listing->files[i]) == (pass == 1))
                status = hub_download_file(download, &listing->files[i], error);
    return status;
}

enum status hub_pull(const struct hub_settings *settings, const struct hub_reference *reference,
                     const struct hub_progress *progress, struct str *path, struct error *error)
{
    struct hub_http *http = NULL;
    struct hub_listing listing = {0};
    const char *main_file = NULL;
    if (settings->is_offline)
        return error_set(error, ERROR_INVALID,
                         "%s cannot be fetched because HF_HUB_OFFLINE is set; unset it",
                         reference->repo);
    enum status status = hub_http_open(&http, settings, error);
    if (status == OK)
        status = ask_listing(http, settings->source, reference, progress, &listing, error);
    if (status == OK)
        status = hub_listing_choose(&listing, reference, &main_file, error);
    if (status == OK) {
        struct hub_download download = {
            .settings = settings,
            .http = http,
            .repo = reference->repo,
            .commit = listing.commit,
            .revision = settings->source == HUB_MODELSCOPE ? reference->revision : listing.commit,
            .progress = progress};
        status = fetch_wanted(&download, &listing, error);
    }
    if (status == OK)
        status = hub_cache_write_ref(settings, reference->repo, reference->revision, listing.commit,
                                     error);
    if (status == OK)
        status = answer_path(settings, reference->repo, listing.commit, main_file, path, error);
    hub_listing_done(&listing);
    hub_http_free(http);
    return status;
}

enum status hub_config(const struct hub_settings *settings, const struct hub_reference *reference,
                       struct str *out, struct error *error)
{
    enum { CONFIG_LIMIT = 8 << 20 };
    struct hub_http *http = NULL;
    struct hub_reply reply;
    struct str path = {0};
    if (settings->is_offline)
        return error_set(error, ERROR_INVALID,
                         "%s cannot be looked at because HF_HUB_OFFLINE is set; unset it",
                         reference->repo);
    hub_download_path(&path, settings->source, reference->repo, reference->revision, "config.json");
    enum status status =
        path.failed ? error_memory(error, path.len) : hub_http_open(&http, settings, error);
    if (status == OK)
        status =
            hub_http_text(http, str_z(&path), CONFIG_LIMIT, is_stopped, NULL, out, &reply, error);
    hub_http_free(http);
    str_done(&path);
    return status;
}
