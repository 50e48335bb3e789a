/* POST /v1/chat/completions: chat.completion and chat.completion.chunk. */
#include "server/reply.h"

#include <string.h>

/* Chunks of one piece. The first takes the piece's logprobs with it. */
struct chat_writer {
    struct call *call;
    struct choice *choice;
    const struct piece_message *m;
    struct str *out;
    bool has_logprob; /* still to be written */
};

/* A drawn token, not the silent one that only ends the answer. */
static bool has_token(const struct piece_message *m)
{
    return m->id >= 0 && !(m->finish == FINISH_STOP && !m->text.n && !m->added.n);
}

static void write_token(struct str *out, struct bytes token, double logprob)
{
    str_append_z(out, "{\"token\":");
    reply_string(out, token.data, token.n);
    str_append_z(out, ",\"logprob\":");
    reply_logprob(out, logprob);
    str_append_z(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < token.n; i++)
        str_printf(out, "%s%d", i ? "," : "", (unsigned char)token.data[i]);
    str_append_z(out, "]");
}

/* One entry of logprobs.content. */
static void write_logprob(struct str *out, const struct piece_message *m)
{
    write_token(out, m->token, m->logprob);
    str_append_z(out, ",\"top_logprobs\":[");
    uint32_t n = m->top_tokens.n < m->top_logprobs.n ? m->top_tokens.n : m->top_logprobs.n;
    for (uint32_t i = 0; i < n; i++) {
        str_append_z(out, i ? "," : "");
        write_token(out, m->top_tokens.items[i], (double)m->top_logprobs.items[i]);
        str_append_char(out, '}');
    }
    str_append_z(out, "]}");
}

static void chunk_begin(const struct call *call, const struct choice *choice, struct str *out)
{
    str_append(out, call->head.data, call->head.len);
    if (choice->index < 10)
        str_append_char(out, (char)('0' + choice->index));
    else
        str_printf(out, "%d", choice->index);
    str_append(out, ",\"delta\":{", 10);
}

static void chunk_end(struct chat_writer *w, const char *reason)
{
    struct str *out = w->out;
    if (w->has_logprob) {
        str_append_z(out, "},\"logprobs\":{\"content\":[");
        write_logprob(out, w->m);
        str_append_z(out, "],\"refusal\":null}");
        w->has_logprob = false;
    } else {
        str_append_z(out, "},\"logprobs\":null");
    }
    if (reason)
        str_printf(out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        str_append_z(out, ",\"finish_reason\":null}]");
    if (w->call->include_usage)
        str_append_z(out, ",\"usage\":null");
    if (reason) {
        str_append_z(out, ",\"timings\":");
        reply_timings(out, w->call, w->choice, 1);
    }
    str_append(out, "}\n\n", 3);
}

static void write_text(struct chat_writer *w, const char *name, const struct parser_event *e)
{
    str_append_char(w->out, '"');
    str_append_z(w->out, name);
    str_append(w->out, "\":", 2);
    reply_string(w->out, e->text, e->len);
}

static void write_call(struct chat_writer *w, const struct parser_event *e)
{
    char id[ID_BYTES + 6];
    str_printf(w->out, "\"tool_calls\":[{\"index\":%zu,", e->call);
    if (e->type == PARSER_CALL_BEGIN) {
        call_tool_id(w->call, w->choice, e->call, id);
        str_printf(w->out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
        reply_string(w->out, e->text, e->len);
        str_append_z(w->out, ",\"arguments\":\"\"}}]");
    } else {
        str_append_z(w->out, "\"function\":{\"arguments\":");
        reply_string(w->out, e->text, e->len);
        str_append_z(w->out, "}}]");
    }
}

static void write_events(void *context, const struct parser_event *events, size_t n)
{
    struct chat_writer *w = context;
    for (size_t i = 0; i < n; i++) {
        const struct parser_event *e = &events[i];
        if (e->type == PARSER_CALL_END)
            continue;
        chunk_begin(w->call, w->choice, w->out);
        if (e->type == PARSER_REASONING)
            write_text(w, "reasoning_content", e);
        else if (e->type == PARSER_CONTENT)
            write_text(w, "content", e);
        else
            write_call(w, e);
        chunk_end(w, NULL);
    }
}

static void chat_begin(struct call *call, struct str *out)
{
    for (size_t i = 0; i < call->n_choices; i++) {
        struct chat_writer w = {.call = call, .choice = &call->choices[i], .out = out};
        chunk_begin(call, w.choice, out);
        str_append_z(out, "\"role\":\"assistant\",\"content\":\"\"");
        chunk_end(&w, NULL);
    }
}

static void chat_piece(struct call *call, struct choice *choice, const struct piece_message *m,
                       struct str *out)
{
    struct error error;
    struct chat_writer w = {.call = call,
                            .choice = choice,
                            .m = m,
                            .out = out,
                            .has_logprob = call->has_logprobs && has_token(m)};
    if (answer_push(&choice->answer, m, write_events, &w, &error) != OK) {
        call_break(call, &error);
        return;
    }
    if (w.has_logprob) { /* no text came of this token yet */
        chunk_begin(call, choice, out);
        str_append_z(out, "\"content\":\"\"");
        chunk_end(&w, NULL);
    }
    if (m->finish != FINISH_NONE) {
        chunk_begin(call, choice, out);
        chunk_end(&w, call_finish_reason(choice));
    }
}

static void chat_collect(struct call *call, struct choice *choice, const struct piece_message *m)
{
    struct error error;
    struct str *entries = &choice->logprobs[0];
    if (answer_collect(&choice->answer, m, &error) != OK)
        call_break(call, &error);
    if (call->has_logprobs && has_token(m)) {
        str_append_z(entries, choice->n_logprobs++ ? "," : "");
        write_logprob(entries, m);
    }
}

static void write_calls(struct call *call, struct choice *choice, struct str *out)
{
    const struct parser_message *message = &choice->answer.message;
    char id[ID_BYTES + 6];
    str_append_z(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < message->n_calls; i++) {
        const struct parser_call *c = &message->calls[i];
        call_tool_id(call, choice, i, id);
        str_printf(out,
                   "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : "",
                   id);
        reply_string(out, c->name.data, c->name.len);
        str_append_z(out, ",\"arguments\":");
        reply_string(out, c->arguments.data, c->arguments.len);
        str_append_z(out, "}}");
    }
    str_append_char(out, ']');
}

static void write_choice(struct call *call, struct choice *choice, struct str *out)
{
    const struct parser_message *message = &choice->answer.message;
    str_printf(out,
               "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", choice->index);
    if (message->n_calls && !message->content.len)
        str_append_z(out, "null");
    else
        reply_string(out, message->content.data, message->content.len);
    str_append_z(out, ",\"refusal\":null");
    if (message->reasoning.len) {
        str_append_z(out, ",\"reasoning_content\":");
        reply_string(out, message->reasoning.data, message->reasoning.len);
    }
    if (message->n_calls)
        write_calls(call, choice, out);
    str_append_z(out, "},\"logprobs\":");
    if (call->has_logprobs) {
        str_append_z(out, "{\"content\":[");
        str_append(out, choice->logprobs[0].data, choice->logprobs[0].len);
        str_append_z(out, "],\"refusal\":null}");
        out->failed |= choice->logprobs[0].failed;
    } else {
        str_append_z(out, "null");
    }
    str_printf(out, ",\"finish_reason\":\"%s\"}", call_finish_reason(choice));
}

static void chat_reply(struct call *call, struct str *out)
{
    reply_whole(call, "chat.completion", write_choice, out);
}

void chat_handle(struct frontend *f, struct http_request *request)
{
    static const struct call_form form = {.api = API_CHAT,
                                          .endpoint = ENDPOINT_CHAT,
                                          .id_prefix = "chatcmpl-",
                                          .object = "chat.completion.chunk",
                                          .has_parser = true,
                                          .begin = chat_begin,
                                          .piece = chat_piece,
                                          .end = reply_stream_end,
                                          .collect = chat_collect,
                                          .reply = chat_reply,
                                          .error = reply_stream_error};
    call_handle(f, request, &form);
}
