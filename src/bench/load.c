#include "bench/load.h"

#include "base/json.h"
#include "base/system.h"
#include "bench/load_http.h"
#include "bench/progress.h"
#include "bench/rng.h"
#include "bench/sse.h"

#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 100, MAX_ERROR_BODY = 4096 };

/* One request on its way. */
struct flight {
    struct load *load;
    struct load_answer *answer;
    CURL *handle;
    struct str body;
    struct str reply; /* of a refusal */
    struct sse sse;
    double sent, last;
    bool is_ended; /* [DONE], or a usage, has come */
};

struct load {
    const struct load_options *options;
    const struct dataset *dataset;
    CURLM *multi;
    struct curl_slist *headers;
    struct str url, model;
    struct flight *flights; /* [dataset->n] */
    double *arrivals;       /* [dataset->n] seconds from the start */
    double start;
    int n_sent, n_done;
    struct progress progress;
    struct load_result *result;
};

/* --- one request ------------------------------------------------------------------------------ */

static void write_prompt(struct str *out, const struct bench_prompt *p)
{
    if (p->text) {
        json_write_string(out, p->text, p->text_len);
        return;
    }
    str_append_char(out, '[');
    for (int32_t i = 0; i < p->n_ids; i++)
        str_printf(out, "%s%d", i ? "," : "", (int)p->ids[i]);
    str_append_char(out, ']');
}

static void write_body(const struct load *l, const struct bench_prompt *p, struct str *out)
{
    const struct load_options *o = l->options;
    bool is_chat = o->api == LOAD_CHAT;
    str_append_z(out, "{\"model\":");
    json_write_string(out, str_z(&l->model), l->model.len);
    str_append_z(out, is_chat ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ",\"prompt\":");
    write_prompt(out, p);
    str_append_z(out, is_chat ? "}]" : "");
    str_printf(out,
               ",\"max_tokens\":%d,\"temperature\":%g,\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true}%s}",
               (int)p->output_len, o->temperature, o->ignore_eos ? ",\"ignore_eos\":true" : "");
}

static void on_event(void *context, const char *data, size_t len)
{
    struct flight *f = context;
    struct load_answer *a = f->answer;
    struct stream_event event;
    double now = system_seconds();
    if (!stream_event_read(&event, data, len)) {
        snprintf(a->error, sizeof a->error, "an event is not JSON: %.100s", data);
        return;
    }
    if (event.error[0])
        snprintf(a->error, sizeof a->error, "%s", event.error);
    if (event.n_prompt >= 0)
        a->n_prompt = event.n_prompt;
    if (event.n_output >= 0)
        a->n_output = event.n_output;
    f->is_ended |= event.is_end;
    if (!event.has_text)
        return;
    if (a->n_events++ == 0)
        a->first = now - f->sent;
    else
        samples_add(&a->gaps, now - f->last);
    f->last = now;
}

static size_t on_data(char *data, size_t size, size_t n, void *context)
{
    struct flight *f = context;
    long status = 0;
    curl_easy_getinfo(f->handle, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        sse_feed(&f->sse, data, size * n, on_event, f);
    else if (f->reply.len < MAX_ERROR_BODY)
        str_append(&f->reply, data, size * n);
    return f->sse.failed ? 0 : size * n;
}

static enum status send_request(struct load *l, int i, struct error *error)
{
    struct flight *f = &l->flights[i];
    f->load = l;
    f->answer = &l->result->answers[i];
    f->handle = curl_easy_init();
    write_body(l, &l->dataset->prompts[i], &f->body);
    if (!f->handle || f->body.failed)
        return error_memory(error, f->body.len);
    curl_easy_setopt(f->handle, CURLOPT_URL, str_z(&l->url));
    curl_easy_setopt(f->handle, CURLOPT_HTTPHEADER, l->headers);
    curl_easy_setopt(f->handle, CURLOPT_POSTFIELDS, str_z(&f->body));
    curl_easy_setopt(f->handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)f->body.len);
    curl_easy_setopt(f->handle, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(f->handle, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(f->handle, CURLOPT_PRIVATE, f);
    curl_easy_setopt(f->handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(f->handle, CURLOPT_NOPROXY, LOAD_NO_PROXY);
    f->sent = system_seconds();
    f->answer->sent = f->sent - l->start;
    if (curl_multi_add_handle(l->multi, f->handle) != CURLM_OK)
        return error_memory(error, sizeof *f);
    l->n_sent++;
    int running = l->n_sent - l->n_done;
    if (running > l->result->max_running)
        l->result->max_running = running;
    return OK;
}

static void end_request(struct load *l, struct flight *f, CURLcode code)
{
    struct load_answer *a = f->answer;
    long status = 0;
    curl_easy_getinfo(f->handle, CURLINFO_RESPONSE_CODE, &status);
    a->end = system_seconds() - f->sent;
    if (code != CURLE_OK)
        snprintf(a->error, sizeof a->error, "%s", curl_easy_strerror(code));
    else if (status != 200)
        snprintf(a->error, sizeof a->error, "status %ld: %.200s", status, str_z(&f->reply));
    else if (!a->error[0] && !f->is_ended)
        snprintf(a->error, sizeof a->error, "the stream ended without [DONE]");
    if (a->n_output == 0)
        a->n_output = a->n_events; /* a server that reports no usage */
    a->is_done = !a->error[0] && !a->gaps.failed;
    l->n_done++;
    curl_multi_remove_handle(l->multi, f->handle);
    curl_easy_cleanup(f->handle);
    f->handle = NULL;
    str_done(&f->body);
    str_done(&f->reply);
    sse_done(&f->sse);
}

/* --- all of them ------------------------------------------------------------------------------ */

/* Exponential gaps make a Poisson process of the rate. */
static void draw_arrivals(struct load *l)
{
    uint64_t state = l->options->seed;
    double at = 0.0;
    for (int i = 0; i < l->dataset->n; i++) {
        l->arrivals[i] = at;
        if (l->options->request_rate > 0.0)
            at += -log(1.0 - rng_uniform(&state)) / l->options->request_rate;
    }
}

static bool may_send(const struct load *l)
{
    int limit = l->options->max_concurrency;
    return l->n_sent < l->dataset->n && (!limit || l->n_sent - l->n_done < limit);
}

/* Milliseconds until the next request is due, at most POLL_MS. */
static int wait_ms(const struct load *l)
{
    if (!may_send(l))
        return POLL_MS;
    double left = (l->arrivals[l->n_sent] - (system_seconds() - l->start)) * 1e3;
    return left < 0.0 ? 0 : left > POLL_MS ? POLL_MS : (int)ceil(left);
}

static enum status drive(struct load *l, struct error *error)
{
    int running, n_left;
    l->start = system_seconds();
    while (l->n_done < l->dataset->n) {
        while (may_send(l) && l->arrivals[l->n_sent] <= system_seconds() - l->start) {
            enum status status = send_request(l, l->n_sent, error);
            if (status != OK)
                return status;
        }
        CURLMcode code = curl_multi_perform(l->multi, &running);
        CURLMsg *message;
        while ((message = curl_multi_info_read(l->multi, &n_left))) {
            struct flight *flight = NULL;
            if (message->msg != CURLMSG_DONE)
                continue;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &flight);
            end_request(l, flight, message->data.result);
        }
        if (l->options->shows_progress)
            progress_show(&l->progress, l->n_done);
        if (code == CURLM_OK && l->n_done < l->dataset->n)
            code = curl_multi_poll(l->multi, NULL, 0, wait_ms(l), NULL);
        if (code != CURLM_OK)
            return error_set(error, ERROR_IO, "the requests cannot be sent: %s",
                             curl_multi_strerror(code));
    }
    l->result->seconds = system_seconds() - l->start;
    return OK;
}

/* The first name of GET /v1/models; also finds out whether anybody answers. */
static enum status choose_model(struct load *l, struct error *error)
{
    const struct load_options *o = l->options;
    struct str text = {0};
    struct arena arena = {.limit = 64 << 20};
    struct json models;
    enum status status = load_get(o->base_url, "/v1/models", o->api_key, &text, error);
    const char *id = NULL;
    if (status == OK && json_parse(&arena, str_z(&text), text.len, &models, error) == OK) {
        const struct json *data = json_get(&models, "data");
        if (data && data->type == JT_ARRAY && data->n > 0)
            id = json_string(json_get(&data->items[0], "id"));
    }
    if (status == OK && !o->model && !id)
        status = error_set(error, ERROR_INVALID,
                           "%s/v1/models names no model; say which with --served-model-name",
                           o->base_url);
    if (status == OK)
        str_append_z(&l->model, o->model ? o->model : id);
    arena_done(&arena);
    str_done(&text);
    return status;
}

static enum status check(const struct load_options *o, const struct dataset *d, struct error *error)
{
    for (int i = 0; o->api == LOAD_CHAT && i < d->n; i++)
        if (!d->prompts[i].text)
            return error_set(error, ERROR_INVALID,
                             "a chat needs text and this dataset has token ids; use --api "
                             "completions or --dataset-name sharegpt");
    return OK;
}

static enum status prepare(struct load *l, struct error *error)
{
    const struct load_options *o = l->options;
    size_t n = (size_t)l->dataset->n;
    l->multi = curl_multi_init();
    l->flights = calloc(n, sizeof *l->flights);
    l->arrivals = calloc(n, sizeof *l->arrivals);
    l->result->answers = calloc(n, sizeof *l->result->answers);
    l->result->n = l->dataset->n;
    l->headers = load_headers(o->api_key);
    load_url(&l->url, o->base_url,
             o->api == LOAD_CHAT ? "/v1/chat/completions" : "/v1/completions");
    if (!l->multi || !l->flights || !l->arrivals || !l->result->answers || !l->headers)
        return error_memory(error, n * sizeof *l->flights);
    draw_arrivals(l);
    return choose_model(l, error);
}

enum status load_run(struct load_result *out, const struct load_options *options,
                     const struct dataset *dataset, struct error *error)
{
    struct load l = {.options = options, .dataset = dataset, .result = out};
    *out = (struct load_result){0};
    enum status status = check(options, dataset, error);
    if (status != OK)
        return status;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(error, ERROR_IO, "libcurl cannot be started");
    status = prepare(&l, error);
    if (options->shows_progress)
        progress_begin(&l.progress, dataset->n);
    if (status == OK)
        status = drive(&l, error);
    if (options->shows_progress)
        progress_end(&l.progress);
    for (int i = 0; l.flights && i < dataset->n; i++)
        if (l.flights[i].handle)
            end_request(&l, &l.flights[i], CURLE_ABORTED_BY_CALLBACK);
    curl_slist_free_all(l.headers);
    if (l.multi)
        curl_multi_cleanup(l.multi);
    free(l.flights);
    free(l.arrivals);
    str_done(&l.url);
    str_done(&l.model);
    curl_global_cleanup();
    if (status != OK)
        load_result_done(out);
    return status;
}

void load_result_done(struct load_result *result)
{
    for (int i = 0; result->answers && i < result->n; i++)
        samples_done(&result->answers[i].gaps);
    free(result->answers);
    *result = (struct load_result){0};
}
