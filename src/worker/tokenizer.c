/* Prompts become ids. The frontend hears of a prompt (or why it is none) before the scheduler does.
 */
#include "worker/worker_state.h"

#include "base/log.h"
#include "base/map.h"

#include <math.h>
#include <string.h>

/* Of the rendered prompt's end, for the parser: more than any generation prompt. */
enum { TAIL_BYTES = 8192 };

/* What a failed prompt is to the client. */
struct refusal {
    int http_status;
    const char *code;
};

static struct refusal refusal_of(enum status status)
{
    switch (status) {
    case ERROR_INVALID:
        return (struct refusal){400, "invalid_prompt"};
    case ERROR_LIMIT:
        return (struct refusal){400, "prompt_too_large"};
    case ERROR_UNSUPPORTED:
        return (struct refusal){400, "unsupported"};
    default:
        return (struct refusal){500, "internal_error"};
    }
}

static struct bytes bytes_of_text(const char *text)
{
    return (struct bytes){text, (uint32_t)strlen(text)};
}

static void refuse(struct worker *w, uint64_t uid, struct refusal refusal, const char *text)
{
    struct message m = {.type = MESSAGE_prompt_ready};
    m.prompt_ready = (struct prompt_ready_message){.uid = uid,
                                                   .http_status = refusal.http_status,
                                                   .code = bytes_of_text(refusal.code),
                                                   .error = bytes_of_text(text)};
    outbox_add(&w->to_frontend, uid_epoch(uid), &m);
}

/* What render finds in a chat's text. */
struct places {
    size_t tail; /* begin of the text behind the last message */
    size_t marks[CHAT_MAX_MARKS], n_marks;
};

/* Renders the chat into w->text. */
static enum status render(struct worker *w, const struct prompt_message *m, struct places *places,
                          struct error *error)
{
    struct chat_output output = {0};
    const struct chat_template *t =
        m->tools.n && w->model->tool_template ? w->model->tool_template : w->model->chat_template;
    bool continues = m->flags & PROMPT_CONTINUE_FINAL;
    struct chat_texts texts = {.messages = {m->text.data, m->text.n},
                               .tools = {m->tools.data, m->tools.n},
                               .kwargs = {m->kwargs.data, m->kwargs.n}};
    struct chat_input input = {.tokens = w->model->tokens,
                               .n_tokens = w->model->n_tokens,
                               .add_generation_prompt =
                                   !continues && !(m->flags & PROMPT_NO_GENERATION_PROMPT),
                               .continue_final_message = continues};
    if (!t)
        return error_set(error, ERROR_UNSUPPORTED,
                         "this model has no chat template; start the server with --chat-template, "
                         "or use /v1/completions");
    enum status status = chat_template_render_json(t, &texts, &input, &output, error);
    if (status == OK) {
        str_append(&w->text, str_z(&output.text), output.text.len);
        places->tail = chat_template_tail(t, &texts, &input, &output);
        places->n_marks = chat_output_marks(&output, places->tail, places->marks);
    }
    chat_output_done(&output);
    return status;
}

/* Renders and encodes a chat. */
static enum status encode_chat(struct worker *w, const struct prompt_message *m, size_t *tail,
                               struct error *error)
{
    struct places places;
    size_t marks[CHAT_MAX_MARKS];
    enum status status = render(w, m, &places, error);
    if (status == OK)
        status = encoder_encode_marked(w->encoder, str_z(&w->text), w->text.len, 0, places.marks,
                                       places.n_marks, marks, &w->ids, error);
    if (status != OK)
        return status;
    *tail = places.tail;
    for (size_t i = 0; i < places.n_marks; i++)
        w->marks[w->n_marks++] = (int32_t)marks[i];
    return OK;
}

/* Fills w->ids, and w->text and w->marks for a chat. */
static enum status encode(struct worker *w, const struct prompt_message *m, size_t *tail,
                          struct error *error)
{
    *tail = 0;
    w->ids.n = 0;
    w->n_marks = 0;
    str_clear(&w->text);
    switch (m->kind) {
    case PROMPT_TEXT:
        return encoder_encode(w->encoder, m->text.data, m->text.n,
                              m->flags & PROMPT_ADD_SPECIAL ? ENCODE_ADD_SPECIAL : 0, &w->ids,
                              error);
    case PROMPT_CHAT:
        return encode_chat(w, m, tail, error);
    default:
        return OK; /* PROMPT_IDS: they are in the message */
    }
}

/* The text from `start`, at most TAIL_BYTES of it, not beginning inside a character. */
static struct bytes tail_of(const struct str *text, size_t start)
{
    if (text->len - start > TAIL_BYTES)
        start = text->len - TAIL_BYTES;
    while (start < text->len && ((unsigned char)text->data[start] & 0xC0) == 0x80)
        start++;
    return (struct bytes){str_z(text) + start, (uint32_t)(text->len - start)};
}

static double or_default(double value, double otherwise)
{
    return isnan(value) ? otherwise : value;
}

static struct submit_message make_submit(const struct worker *w, const struct prompt_message *m)
{
    const struct worker_model *d = w->model;
    struct i32s ids = {w->ids.ids, (uint32_t)w->ids.n};
    return (struct submit_message){
        .uid = m->uid,
        .ids = m->kind == PROMPT_IDS ? m->ids : ids,
        .cache_key = m->cache_salt.n ? hash_bytes(m->cache_salt.data, m->cache_salt.n) : 0,
        .marks = {w->marks, (uint32_t)w->n_marks},
        .temperature = or_default(m->temperature, d->temperature),
        .top_p = or_default(m->top_p, d->top_p),
        .min_p = or_default(m->min_p, d->min_p),
        .repetition_penalty = or_default(m->repetition_penalty, d->repetition_penalty),
        .presence_penalty = or_default(m->presence_penalty, d->presence_penalty),
        .frequency_penalty = or_default(m->frequency_penalty, d->frequency_penalty),
        .top_k = m->top_k < 0 ? d->top_k : m->top_k,
        .max_tokens = m->max_tokens,
        .min_tokens = m->min_tokens,
        .seed = m->seed,
        .choice = m->choice,
        .n_logprobs = m->n_logprobs,
        .ignore_eos = m->ignore_eos,
        .scores_prompt = m->scores_prompt,
        .bias_tokens = m->bias_tokens,
        .bias_values = m->bias_values,
        .stop = m->stop,
        .stop_tokens = m->stop_tokens};
}

void worker_prompt(struct worker *w, const struct prompt_message *m)
{
    struct error error;
    struct refusal too_long = {400, "context_length_exceeded"};
    size_t tail;
    enum status status = encode(w, m, &tail, &error);
    if (status != OK) {
        refuse(w, m->uid, refusal_of(status), error.message);
        return;
    }
    struct message out = {.type = MESSAGE_submit};
    out.submit = make_submit(w, m);
    uint64_t context_length = atomic_load(&w->board->context_length);
    if (out.submit.ids.n == 0) {
        refuse(w, m->uid, refusal_of(ERROR_INVALID), "the prompt is empty");
        return;
    }
    if (context_length && out.submit.ids.n >= context_length) {
        error_set(
            &error, ERROR_LIMIT,
            "the prompt has %u tokens and the context of this server holds %llu; shorten it or "
            "start the server with a larger --context-length",
            out.submit.ids.n, (unsigned long long)context_length);
        refuse(w, m->uid, too_long, error.message);
        return;
    }
    struct message ready = {.type = MESSAGE_prompt_ready};
    ready.prompt_ready = (struct prompt_ready_message){.uid = m->uid,
                                                       .http_status = 200,
                                                       .n_tokens = (int32_t)out.submit.ids.n,
                                                       .tail = tail_of(&w->text, tail)};
    outbox_add(&w->to_frontend, uid_epoch(m->uid), &ready);
    outbox_flush(&w->to_frontend);
    if (!outbox_add(&w->to_scheduler, uid_epoch(m->uid), &out)) {
        struct message end = {.type = MESSAGE_piece};
        end.piece = (struct piece_message){.uid = m->uid,
                                           .id = -1,
                                           .finish = FINISH_ERROR,
                                           .http_status = 503,
                                           .error = bytes_of_text("the request is too large to be "
                                                                  "handed to the scheduler")};
        outbox_add(&w->to_frontend, uid_epoch(m->uid), &end);
    }
}

void worker_cancel(struct worker *w, const struct cancel_message *m)
{
    struct message out = {.type = MESSAGE_cancel, .cancel = *m};
    outbox_add(&w->to_scheduler, uid_epoch(m->uid), &out);
}

static void send_result(struct worker *w, uint64_t uid, enum status status, const char *error,
                        const struct byte_strings *tokens)
{
    struct message m = {.type = MESSAGE_text_result};
    m.text_result = (struct text_result_message){
        .uid = uid,
        .http_status = status == OK ? 200 : refusal_of(status).http_status,
        .error = bytes_of_text(status == OK ? "" : error),
        .ids = {w->ids.ids, (uint32_t)w->ids.n},
        .text = bytes_of(&w->text),
        .tokens = *tokens};
    if (!outbox_add(&w->to_frontend, uid_epoch(uid), &m))
        log_error("a result of /tokenize or /detokenize is too large to be sent");
}

void worker_tokenize(struct worker *w, const struct tokenize_message *m)
{
    struct error error;
    struct byte_strings tokens = {0};
    w->ids.n = 0;
    str_clear(&w->text);
    enum status status = encoder_encode(w->encoder, m->text.data, m->text.n,
                                        m->add_special ? ENCODE_ADD_SPECIAL : 0, &w->ids, &error);
    struct bytes *items = arena_alloc_array(&w->arena, w->ids.n, sizeof *items);
    if (status == OK && !items)
        status = error_memory(&error, w->ids.n * sizeof *items);
    for (size_t i = 0; status == OK && i < w->ids.n; i++) {
        size_t n = 0;
        items[i].data = tokenizer_token_bytes(w->model->tokenizer, w->ids.ids[i], &n);
        items[i].n = (uint32_t)n;
    }
    if (status == OK)
        tokens = (struct byte_strings){items, (uint32_t)w->ids.n};
    else
        w->ids.n = 0;
    send_result(w, m->uid, status, error.message, &tokens);
}

void worker_detokenize(struct worker *w, const struct detokenize_message *m)
{
    struct error error;
    struct byte_strings none = {0};
    w->ids.n = 0;
    str_clear(&w->text);
    enum status status = tokenizer_decode(w->model->tokenizer, m->ids.items, m->ids.n,
                                          m->skip_special, &w->text, &error);
    send_result(w, m->uid, status, error.message, &none);
}
