/* POST /v1/completions: text_completion, whole or in chunks of the same shape. */
#include "server/reply.h"

#include <math.h>
#include <string.h>

/* The four columns of logprobs. */
enum column { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSETS, N_COLUMNS };

static const char *const column_names[N_COLUMNS] = {"tokens", "token_logprobs", "top_logprobs",
                                                    "text_offset"};

static bool has_token(const struct piece_message *m)
{
    return m->id >= 0 && !(m->finish == FINISH_STOP && !m->text.n && !m->added.n);
}

/* A token as OpenAI names it here: its text, or bytes:\xNN... when that is no text. */
static void write_token(struct str *out, struct bytes token)
{
    size_t at = 0, n = 1;
    while (at < token.n && (n = utf8_sequence(token.data + at, token.n - at)) > 0)
        at += n;
    if (n > 0) {
        reply_string(out, token.data, token.n);
        return;
    }
    str_append_z(out, "\"bytes:");
    for (uint32_t i = 0; i < token.n; i++)
        str_printf(out, "\\\\x%02x", (unsigned char)token.data[i]);
    str_append_char(out, '"');
}

static void add_logprob(struct choice *choice, const struct piece_message *m)
{
    struct str *columns = choice->logprobs;
    for (int i = 0; i < N_COLUMNS && choice->n_logprobs; i++)
        str_append_char(&columns[i], ',');
    choice->n_logprobs++;
    write_token(&columns[TOKENS], m->token);
    str_printf(&columns[TEXT_OFFSETS], "%lld", (long long)choice->n_chars);
    if (m->is_prompt && isnan(m->logprob)) { /* nothing comes before it */
        str_append_z(&columns[TOKEN_LOGPROBS], "null");
        str_append_z(&columns[TOP_LOGPROBS], "null");
        return;
    }
    reply_logprob(&columns[TOKEN_LOGPROBS], m->logprob);
    uint32_t n = m->top_tokens.n < m->top_logprobs.n ? m->top_tokens.n : m->top_logprobs.n;
    str_append_char(&columns[TOP_LOGPROBS], '{');
    for (uint32_t i = 0; i < n; i++) {
        str_append_z(&columns[TOP_LOGPROBS], i ? "," : "");
        write_token(&columns[TOP_LOGPROBS], m->top_tokens.items[i]);
        str_append_char(&columns[TOP_LOGPROBS], ':');
        reply_logprob(&columns[TOP_LOGPROBS], (double)m->top_logprobs.items[i]);
    }
    str_append_char(&columns[TOP_LOGPROBS], '}');
}

static void write_logprobs(struct str *out, struct choice *choice)
{
    str_append_char(out, '{');
    for (int i = 0; i < N_COLUMNS; i++) {
        str_printf(out, "%s\"%s\":[", i ? "," : "", column_names[i]);
        str_append(out, choice->logprobs[i].data, choice->logprobs[i].len);
        str_append_char(out, ']');
        out->failed |= choice->logprobs[i].failed;
        str_clear(&choice->logprobs[i]);
    }
    str_append_char(out, '}');
    choice->n_logprobs = 0;
}

static void count_chars(struct choice *choice, struct bytes text)
{
    for (uint32_t i = 0; i < text.n; i++)
        choice->n_chars += (text.data[i] & 0xC0) != 0x80;
}

/* Behind the logprobs, whose place is the text so far. */
static void note_text(struct call *call, struct choice *choice, const struct piece_message *m)
{
    if (call->has_logprobs && has_token(m))
        add_logprob(choice, m);
    count_chars(choice, m->text);
    if (!m->is_special)
        count_chars(choice, m->added);
}

static void chunk(struct call *call, struct choice *choice, const struct str *text,
                  const char *reason, struct str *out)
{
    str_append(out, call->head.data, call->head.len);
    str_printf(out, "%d,\"text\":", choice->index);
    reply_string(out, text->data, text->len);
    str_append_z(out, ",\"logprobs\":");
    if (choice->n_logprobs)
        write_logprobs(out, choice);
    else
        str_append_z(out, "null");
    if (reason)
        str_printf(out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        str_append_z(out, ",\"finish_reason\":null}]");
    if (call->include_usage)
        str_append_z(out, ",\"usage\":null");
    if (reason) {
        str_append_z(out, ",\"timings\":");
        reply_timings(out, call, choice, 1);
    }
    str_append(out, "}\n\n", 3);
}

static void completions_begin(struct call *call, struct str *out)
{
    for (size_t i = 0; call->echoes && i < call->n_choices; i++)
        chunk(call, &call->choices[i], &call->echoes[call->choices[i].prompt], NULL, out);
}

static void append_events(void *context, const struct parser_event *events, size_t n)
{
    struct str *text = context;
    for (size_t i = 0; i < n; i++)
        str_append(text, events[i].text, events[i].len);
}

static void completions_piece(struct call *call, struct choice *choice,
                              const struct piece_message *m, struct str *out)
{
    struct error error;
    str_clear(&call->text);
    note_text(call, choice, m);
    if (answer_push(&choice->answer, m, append_events, &call->text, &error) != OK)
        call_break(call, &error);
    if (call->text.len || choice->n_logprobs || m->finish != FINISH_NONE)
        chunk(call, choice, &call->text,
              m->finish != FINISH_NONE ? call_finish_reason(choice) : NULL, out);
}

static void completions_collect(struct call *call, struct choice *choice,
                                const struct piece_message *m)
{
    struct error error;
    note_text(call, choice, m);
    if (answer_collect(&choice->answer, m, &error) != OK)
        call_break(call, &error);
}

static void write_choice(struct call *call, struct choice *choice, struct str *out)
{
    const struct str *content = &choice->answer.message.content;
    str_printf(out, "{\"index\":%d,\"text\":", choice->index);
    str_clear(&call->text);
    if (call->echoes)
        str_append(&call->text, str_z(&call->echoes[choice->prompt]),
                   call->echoes[choice->prompt].len);
    str_append(&call->text, content->data, content->len);
    reply_string(out, call->text.data, call->text.len);
    out->failed |= call->text.failed;
    str_append_z(out, ",\"logprobs\":");
    if (call->has_logprobs)
        write_logprobs(out, choice);
    else
        str_append_z(out, "null");
    str_printf(out, ",\"finish_reason\":\"%s\"}", call_finish_reason(choice));
}

static void completions_reply(struct call *call, struct str *out)
{
    reply_whole(call, "text_completion", write_choice, out);
}

void completions_handle(struct frontend *f, struct http_request *request)
{
    static const struct call_form form = {.api = API_COMPLETIONS,
                                          .endpoint = ENDPOINT_COMPLETIONS,
                                          .id_prefix = "cmpl-",
                                          .object = "text_completion",
                                          .begin = completions_begin,
                                          .piece = completions_piece,
                                          .end = reply_stream_end,
                                          .collect = completions_collect,
                                          .reply = completions_reply,
                                          .error = reply_stream_error};
    call_handle(f, request, &form);
}
