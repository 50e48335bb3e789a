#include "server/reply.h"

#include <math.h>
#include <string.h>

void reply_string(struct str *out, const char *data, size_t len)
{
    size_t at = 0;
    if (!len)
        data = "";
    while (at < len) {
        size_t n = (unsigned char)data[at] < 0x80 ? 1 : utf8_sequence(data + at, len - at);
        if (!n)
            break;
        at += n;
    }
    if (at == len) { /* nearly always */
        json_write_string(out, data, len);
        return;
    }
    struct str clean = {0};
    for (at = 0; at < len;) {
        size_t n = utf8_sequence(data + at, len - at);
        if (n)
            str_append(&clean, data + at, n);
        else
            str_append_utf8(&clean, 0xFFFD);
        at += n ? n : 1;
    }
    json_write_string(out, clean.data, clean.len);
    out->failed |= clean.failed;
    str_done(&clean);
}

void reply_error(struct str *out, int http_status, const char *code, const char *message)
{
    str_append_z(out, "{\"error\": {\"message\": ");
    reply_string(out, message, strlen(message));
    str_append_z(out, http_status >= 500 ? ", \"type\": \"server_error\""
                                         : ", \"type\": \"invalid_request_error\"");
    str_append_z(out, ", \"param\": null, \"code\": ");
    if (code)
        json_write_string(out, code, strlen(code));
    else
        str_printf(out, "%d", http_status);
    str_append_z(out, "}}");
}

void reply_usage(struct str *out, const struct call *call)
{
    long long n_prompt = 0, n_cached = 0, n_output = 0;
    size_t n = call->n_choices / call->n_prompts;
    for (size_t i = 0; i < call->n_choices; i++) {
        n_output += call->choices[i].n_output;
        if (i % n == 0) {
            n_prompt += call->choices[i].n_prompt;
            n_cached += call->choices[i].n_cached;
        }
    }
    str_printf(out,
               "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
               n_prompt, n_output, n_prompt + n_output, n_cached);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

void reply_timings(struct str *out, const struct call *call, const struct choice *choices, size_t n)
{
    double queue = 0, prefill = 0, decode = 0, ttft = 0, n_computed = 0, n_output = 0,
           n_decoded = 0;
    for (size_t i = 0; i < n; i++) {
        const struct choice *c = &choices[i];
        queue = larger(queue, c->queue_seconds);
        prefill = larger(prefill, c->prefill_seconds);
        decode = larger(decode, c->decode_seconds);
        if (c->first_at > 0)
            ttft = larger(ttft, c->first_at - call->began);
        n_computed += c->n_prompt - c->n_cached;
        n_output += c->n_output;
        n_decoded += c->n_output > 1 ? c->n_output - 1 : 0; /* the first comes with the prefill */
    }
    str_printf(out,
               "{\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"ttft_ms\":%.3f,"
               "\"prompt_n\":%.0f,\"predicted_n\":%.0f,\"prompt_per_second\":%.2f,"
               "\"predicted_per_second\":%.2f}",
               queue * 1e3, prefill * 1e3, decode * 1e3, ttft * 1e3, n_computed, n_output,
               rate(n_computed, prefill), rate(n_decoded, decode));
}

void reply_logprob(struct str *out, double logprob)
{
    str_printf(out, "%.7g", isfinite(logprob) ? logprob : -9999.0);
}

static void append_usage(struct call *call, struct str *out)
{
    str_append_z(out, "],\"usage\":");
    reply_usage(out, call);
    str_append_z(out, ",\"timings\":");
    reply_timings(out, call, call->choices, call->n_choices);
    str_append_char(out, '}');
}

void reply_whole(struct call *call, const char *object,
                 void (*write_choice)(struct call *call, struct choice *choice, struct str *out),
                 struct str *out)
{
    const char *model = call->frontend->options->model_names[0];
    str_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", call->id,
               object, call->created);
    json_write_string(out, model, strlen(model));
    str_append_z(out, ",\"choices\":[");
    for (size_t i = 0; i < call->n_choices; i++) {
        str_append_z(out, i ? "," : "");
        write_choice(call, &call->choices[i], out);
    }
    append_usage(call, out);
    str_append_char(out, '\n');
}

void reply_stream_end(struct call *call, struct str *out)
{
    if (call->include_usage) {
        str_append(out, call->head.data, call->head_common);
        append_usage(call, out);
        str_append_z(out, "\n\n");
    }
    str_append_z(out, "data: [DONE]\n\n");
}

void reply_stream_error(struct call *call, int http_status, const char *code, const char *message,
                        struct str *out)
{
    (void)call;
    str_append_z(out, "data: ");
    reply_error(out, http_status, code, message);
    str_append_z(out, "\n\ndata: [DONE]\n\n");
}
