/* POST /generate, in two forms. mini-sglang's {"prompt", "max_tokens", "ignore_eos"} streams lines
 * "data: TEXT". SGLang's {"text" or "input_ids", "sampling_params", "stream"} is answered by
 * {"text", "meta_info"}, or by events in which text is all that was said so far. */
#include "base/system.h"
#include "server/reply.h"

#include <string.h>

static void write_reason(struct str *out, const struct choice *choice)
{
    if (!choice->is_done)
        str_append_z(out, "null");
    else if (choice->finish == FINISH_LENGTH)
        str_printf(out, "{\"type\":\"length\",\"length\":%d}", choice->n_output);
    else
        str_append_z(out, "{\"type\":\"stop\"}");
}

static void write_object(struct call *call, struct choice *choice, struct str *out)
{
    const struct str *text = &choice->answer.message.content;
    str_append_z(out, "{\"text\":");
    reply_string(out, text->data, text->len);
    if (call->n_choices > 1)
        str_printf(out, ",\"index\":%d", choice->index);
    str_printf(out, ",\"meta_info\":{\"id\":\"%s\",\"finish_reason\":", call->id);
    write_reason(out, choice);
    str_printf(out, ",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d",
               choice->n_prompt, choice->n_output, choice->n_cached);
    if (choice->is_done) {
        str_printf(out, ",\"e2e_latency\":%.6f,\"timings\":", system_seconds() - call->began);
        reply_timings(out, call, choice, 1);
    }
    str_append_z(out, "}}");
}

static void generate_begin(struct call *call, struct str *out)
{
    (void)call;
    (void)out;
}

/* Each line of the text is a line of the stream. */
static void write_lines(void *context, const struct parser_event *events, size_t n)
{
    struct str *out = context;
    for (size_t i = 0; i < n; i++) {
        const char *at = events[i].text, *end = at + events[i].len;
        for (;;) {
            const char *line_end = memchr(at, '\n', (size_t)(end - at));
            str_append_z(out, "data: ");
            str_append(out, at, (size_t)((line_end ? line_end : end) - at));
            str_append_char(out, '\n');
            if (!line_end)
                break;
            at = line_end + 1;
        }
    }
}

static void generate_collect(struct call *call, struct choice *choice,
                             const struct piece_message *m)
{
    struct error error;
    if (answer_collect(&choice->answer, m, &error) != OK)
        call_break(call, &error);
}

static void generate_piece(struct call *call, struct choice *choice, const struct piece_message *m,
                           struct str *out)
{
    struct error error;
    if (!call->is_sglang) {
        if (answer_push(&choice->answer, m, write_lines, out, &error) != OK)
            call_break(call, &error);
        return;
    }
    if (!choice->is_done && m->id >= 0)
        choice->n_output++; /* the final piece brings the scheduler's own count */
    generate_collect(call, choice, m);
    str_append_z(out, "data: ");
    write_object(call, choice, out);
    str_append_z(out, "\n\n");
}

static void generate_end(struct call *call, struct str *out)
{
    str_append_z(out, call->is_sglang ? "data: [DONE]\n\n" : "data: [DONE]\n");
}

static void generate_reply(struct call *call, struct str *out)
{
    bool is_list = call->n_choices > 1;
    str_append_z(out, is_list ? "[" : "");
    for (size_t i = 0; i < call->n_choices; i++) {
        str_append_z(out, i ? "," : "");
        write_object(call, &call->choices[i], out);
    }
    str_append_z(out, is_list ? "]\n" : "\n");
}

void generate_handle(struct frontend *f, struct http_request *request)
{
    static const struct call_form form = {.api = API_GENERATE,
                                          .endpoint = ENDPOINT_GENERATE,
                                          .id_prefix = "gen-",
                                          .begin = generate_begin,
                                          .piece = generate_piece,
                                          .end = generate_end,
                                          .collect = generate_collect,
                                          .reply = generate_reply,
                                          .error = reply_stream_error};
    call_handle(f, request, &form);
}
