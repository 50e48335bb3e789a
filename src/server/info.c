/* Endpoints that only tell something: models, health, metrics, versions, the page. */
#include "base/system.h"
#include "server/frontend.h"
#include "server/page.h"
#include "server/reply.h"

#include <string.h>

static void send_json(struct http_request *request, int status, struct str *body)
{
    struct refusal refusal;
    if (body->failed) {
        refuse_memory(&refusal);
        refusal_send(&refusal, request);
    } else {
        http_reply(request, status, "application/json", body->data, body->len);
    }
    str_done(body);
}

static void write_model(const struct frontend *f, const char *name, struct str *out)
{
    const char *root = f->options->model_path ? f->options->model_path : name;
    uint64_t context_length = atomic_load(&f->board->context_length);
    str_append_z(out, "{\"id\":");
    reply_string(out, name, strlen(name));
    str_printf(
        out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"csgl\",\"root\":", f->created);
    reply_string(out, root, strlen(root));
    str_append_z(out, ",\"parent\":null,\"max_model_len\":");
    if (context_length)
        str_printf(out, "%llu}", (unsigned long long)context_length);
    else
        str_append_z(out, "null}");
}

void models_handle(struct frontend *f, struct http_request *request)
{
    struct str out = {0};
    str_append_z(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < f->options->n_model_names; i++) {
        str_append_z(&out, i ? "," : "");
        write_model(f, f->options->model_names[i], &out);
    }
    str_append_z(&out, "]}\n");
    send_json(request, 200, &out);
}

void model_handle(struct frontend *f, struct http_request *request)
{
    struct str out = {0};
    const char *name = http_path(request) + strlen("/v1/models/");
    if (!model_is_served(f->options, name)) {
        struct refusal refusal;
        refuse(&refusal, 404, "model_not_found", "model",
               "The model '%.100s' is not served here; '%.200s' is.", name,
               f->options->model_names[0]);
        refusal_send(&refusal, request);
        return;
    }
    write_model(f, name, &out);
    str_append_char(&out, '\n');
    send_json(request, 200, &out);
}

void health_handle(struct frontend *f, struct http_request *request)
{
    const char *trouble = frontend_trouble(f);
    struct str out = {0};
    if (!trouble) {
        str_printf(&out, "{\"status\":\"ok\",\"running\":%llu,\"waiting\":%llu}\n",
                   (unsigned long long)atomic_load(&f->board->running),
                   (unsigned long long)atomic_load(&f->board->waiting));
        send_json(request, 200, &out);
        return;
    }
    str_append_z(&out, "The service is not ready: ");
    str_append_z(&out, trouble);
    str_append_char(&out, '.');
    http_error(request, 503, NULL, NULL, "not_ready", str_z(&out), RETRY_AFTER_SECONDS);
    str_done(&out);
}

void metrics_handle(struct frontend *f, struct http_request *request)
{
    struct str out = {0};
    struct http_stats stats = http_server_stats(f->http);
    metrics_write(&out, &f->metrics, f->board, &stats, !frontend_trouble(f));
    if (out.failed)
        http_error(request, 500, NULL, NULL, "out_of_memory", "The server has no memory.", 0);
    else
        http_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    str_done(&out);
}

void version_handle(struct frontend *f, struct http_request *request)
{
    static const char body[] = "{\"version\":\"" CSGL_VERSION "\"}\n";
    (void)f;
    http_reply(request, 200, "application/json", body, sizeof body - 1);
}

void root_handle(struct frontend *f, struct http_request *request)
{
    static const char body[] = "{\"status\":\"ok\"}\n";
    (void)f;
    http_reply(request, 200, "application/json", body, sizeof body - 1);
}

void page_handle(struct frontend *f, struct http_request *request)
{
    (void)f;
    http_header_add(request, "cache-control", "no-cache");
    http_header_add(request, "x-content-type-options", "nosniff");
    http_header_add(request, "referrer-policy", "no-referrer");
    http_header_add(request, "content-security-policy",
                    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                    "frame-ancestors 'none'");
    http_reply(request, 200, "text/html; charset=utf-8", (const char *)page_html, page_html_bytes);
}

static void write_name(struct str *out, const char *key, const char *text)
{
    str_printf(out, "\"%s\":", key);
    if (text)
        reply_string(out, text, strlen(text));
    else
        str_append_z(out, "null");
}

void model_info_handle(struct frontend *f, struct http_request *request)
{
    struct str out = {0};
    str_append_char(&out, '{');
    write_name(&out, "model_path", f->options->model_path);
    str_append_char(&out, ',');
    write_name(&out, "tokenizer_path", f->options->model_path);
    str_append_char(&out, ',');
    write_name(&out, "served_model_name", f->options->model_names[0]);
    str_printf(&out,
               ",\"is_generation\":true,\"context_length\":%llu,\"vocab_size\":%llu,"
               "\"has_chat_template\":%s}\n",
               (unsigned long long)atomic_load(&f->board->context_length),
               (unsigned long long)atomic_load(&f->board->vocab_size),
               f->options->chat_template_source ? "true" : "false");
    send_json(request, 200, &out);
}

void server_info_handle(struct frontend *f, struct http_request *request)
{
    struct str out = {0};
    const struct server_options *o = f->options;
    str_append_z(&out, "{\"version\":\"" CSGL_VERSION "\",");
    write_name(&out, "model_path", o->model_path);
    str_append_char(&out, ',');
    write_name(&out, "served_model_name", o->model_names[0]);
    str_append_char(&out, ',');
    write_name(&out, "reasoning_parser", o->reasoning_parser ? o->reasoning_parser : "auto");
    str_append_char(&out, ',');
    write_name(&out, "tool_call_parser", o->tool_call_parser ? o->tool_call_parser : "auto");
    str_printf(&out, ",\"num_tokenizer\":%d,\"max_queue\":%d,\"uptime_seconds\":%.3f",
               o->n_tokenizers, o->max_queue, system_seconds() - f->started);
    str_printf(&out, ",\"is_draining\":%s,\"is_healthy\":%s,\"internal_states\":[{",
               atomic_load(&f->board->is_draining) ? "true" : "false",
               frontend_trouble(f) ? "false" : "true");
    bool is_first = true;
#define WRITE_FIGURE(name)                                                                         \
    str_printf(&out, "%s\"" #name "\":%llu", is_first ? "" : ",",                                  \
               (unsigned long long)atomic_load(&f->board->name));                                  \
    is_first = false;
    BOARD_FIGURES(WRITE_FIGURE)
#undef WRITE_FIGURE
    str_append_z(&out, "}]}\n");
    send_json(request, 200, &out);
}
