/* One question, one answer: /tokenize, /detokenize, /flush_cache; and /abort_request, which needs
 * no answer. */
#include "server/call.h"
#include "server/reply.h"

#include <stdlib.h>
#include <string.h>

enum ask_kind { ASK_TOKENIZE, ASK_DETOKENIZE, ASK_FLUSH };

struct ask {
    struct waiter waiter; /* first */
    struct frontend *frontend;
    struct http_request *http;
    struct ask *next, *previous;
    enum ask_kind kind;
    bool has_strings; /* /tokenize: the text of each token is wanted */
};

static void ask_free(struct ask *ask)
{
    struct frontend *f = ask->frontend;
    uid_table_remove(&f->waiters, ask->waiter.uid);
    if (ask->next)
        ask->next->previous = ask->previous;
    if (ask->previous)
        ask->previous->next = ask->next;
    else if (f->asks == ask)
        f->asks = ask->next;
    free(ask);
}

static void on_closed(void *user, struct http_request *http)
{
    (void)http;
    ask_free(user);
}

static void ask_fail(struct ask *ask, int http_status, const char *message)
{
    struct http_request *http = ask->http;
    http_on_closed(http, NULL, NULL);
    ask_free(ask);
    http_error(http, http_status, NULL, NULL, http_status == 503 ? "not_ready" : "invalid_value",
               message, http_status == 503 ? RETRY_AFTER_SECONDS : 0);
}

void asks_fail(struct frontend *f, const char *message)
{
    while (f->asks)
        ask_fail(f->asks, 503, message);
}

/* Sends the question, whose uid is filled in here, and waits. Answers if that cannot be. */
static void ask_begin(struct frontend *f, struct http_request *http, enum ask_kind kind,
                      bool has_strings, struct outbox *outbox, struct message *m)
{
    struct refusal refusal;
    struct ask *ask = calloc(1, sizeof *ask);
    if (!ask) {
        refuse_memory(&refusal);
        refusal_send(&refusal, http);
        return;
    }
    *ask = (struct ask){.waiter = {frontend_new_uid(f), WAITER_ASK},
                        .frontend = f,
                        .http = http,
                        .next = f->asks,
                        .kind = kind,
                        .has_strings = has_strings};
    if (kind == ASK_TOKENIZE)
        m->tokenize.uid = ask->waiter.uid;
    else if (kind == ASK_DETOKENIZE)
        m->detokenize.uid = ask->waiter.uid;
    else
        m->flush.uid = ask->waiter.uid;
    if (f->asks)
        f->asks->previous = ask;
    f->asks = ask;
    http_on_closed(http, on_closed, ask);
    if (!uid_table_put(&f->waiters, &ask->waiter))
        ask_fail(ask, 500, "The server has no memory for this request.");
    else if (!frontend_send(f, outbox, uid_epoch(ask->waiter.uid), m))
        ask_fail(ask, 413, "The request is too large to be handed to the tokenizer.");
}

/* The body as an object; answers and returns false if it is none or no request can begin. */
static bool read_body(struct frontend *f, struct http_request *http, struct arena *arena,
                      struct json *out)
{
    struct refusal refusal;
    struct error error;
    size_t bytes;
    const char *body = http_body(http, &bytes);
    arena->limit = 256 << 20;
    enum status status = frontend_check_ready(f, &refusal);
    if (status == OK && json_parse(arena, body, bytes, out, &error) != OK)
        status = refuse(&refusal, 400, "invalid_json", NULL, "The body is not valid JSON: %s.",
                        error.message);
    if (status == OK && out->type != JT_OBJECT)
        status = refuse(&refusal, 400, "invalid_json", NULL, "The body must be a JSON object.");
    if (status != OK)
        refusal_send(&refusal, http);
    return status == OK;
}

static void refuse_field(struct http_request *http, const char *param, const struct json *value,
                         const char *what)
{
    struct refusal refusal;
    if (json_is_null(value))
        refuse(&refusal, 400, "missing_required_parameter", param,
               "'%s' is missing; it must be %s.", param, what);
    else
        refuse_value(&refusal, param, value, what);
    refusal_send(&refusal, http);
}

void tokenize_handle(struct frontend *f, struct http_request *http)
{
    struct arena arena = {0};
    struct json body;
    struct message m = {.type = MESSAGE_tokenize};
    if (read_body(f, http, &arena, &body)) {
        const struct json *text = json_get(&body, "prompt");
        text = text ? text : json_get(&body, "text");
        text = text ? text : json_get(&body, "content");
        if (json_string(text)) {
            m.tokenize.text = (struct bytes){text->text, (uint32_t)text->n};
            m.tokenize.add_special = json_bool(json_get(&body, "add_special_tokens"), true);
            ask_begin(f, http, ASK_TOKENIZE, json_bool(json_get(&body, "return_token_strs"), false),
                      &f->to_tokenizer[frontend_pick_tokenizer(f)], &m);
        } else {
            refuse_field(http, "prompt", text, "a string");
        }
    }
    arena_done(&arena);
}

void detokenize_handle(struct frontend *f, struct http_request *http)
{
    struct arena arena = {0};
    struct json body;
    struct message m = {.type = MESSAGE_detokenize};
    uint64_t vocab_size = atomic_load(&f->board->vocab_size);
    int64_t last = vocab_size ? (int64_t)vocab_size - 1 : INT32_MAX, id = 0;
    if (read_body(f, http, &arena, &body)) {
        const struct json *tokens = json_get(&body, "tokens"), *bad = tokens;
        bool is_good = tokens && tokens->type == JT_ARRAY;
        int32_t *ids = is_good ? arena_alloc_array(&arena, tokens->n, sizeof *ids) : NULL;
        is_good = is_good && ids;
        for (size_t i = 0; is_good && i < tokens->n; i++) {
            bad = &tokens->items[i];
            is_good = json_int(bad, 0, last, &id);
            ids[i] = (int32_t)id;
        }
        if (is_good) {
            m.detokenize.ids = (struct i32s){ids, (uint32_t)tokens->n};
            m.detokenize.skip_special = json_bool(json_get(&body, "skip_special_tokens"), false);
            ask_begin(f, http, ASK_DETOKENIZE, false, &f->to_tokenizer[frontend_pick_tokenizer(f)],
                      &m);
        } else {
            refuse_field(http, "tokens", bad, "an array of token ids below the vocabulary's size");
        }
    }
    arena_done(&arena);
}

void flush_handle(struct frontend *f, struct http_request *http)
{
    struct refusal refusal;
    struct message m = {.type = MESSAGE_flush};
    if (frontend_check_ready(f, &refusal) == OK)
        ask_begin(f, http, ASK_FLUSH, false, &f->to_scheduler, &m);
    else
        refusal_send(&refusal, http);
}

static void write_tokenized(struct ask *ask, const struct text_result_message *m, struct str *out)
{
    unsigned long long context = atomic_load(&ask->frontend->board->context_length);
    str_printf(out, "{\"count\":%u,\"max_model_len\":%llu,\"tokens\":[", m->ids.n, context);
    for (uint32_t i = 0; i < m->ids.n; i++)
        str_printf(out, "%s%d", i ? "," : "", m->ids.items[i]);
    str_append_char(out, ']');
    if (ask->has_strings) {
        str_append_z(out, ",\"token_strs\":[");
        for (uint32_t i = 0; i < m->tokens.n; i++) {
            str_append_z(out, i ? "," : "");
            reply_string(out, m->tokens.items[i].data, m->tokens.items[i].n);
        }
        str_append_char(out, ']');
    }
    str_append_z(out, "}\n");
}

void ask_on_text_result(struct ask *ask, const struct text_result_message *m)
{
    struct str out = {0};
    if (m->http_status != 200) {
        str_append(&out, m->error.data, m->error.n);
        ask_fail(ask, m->http_status >= 400 ? m->http_status : 500, str_z(&out));
        str_done(&out);
        return;
    }
    if (ask->kind == ASK_TOKENIZE) {
        write_tokenized(ask, m, &out);
    } else {
        str_append_z(&out, "{\"prompt\":");
        reply_string(&out, m->text.data, m->text.n);
        str_append_z(&out, ",\"text\":");
        reply_string(&out, m->text.data, m->text.n);
        str_append_z(&out, "}\n");
    }
    if (out.failed) {
        ask_fail(ask, 500, "The server has no memory for this answer.");
    } else {
        http_on_closed(ask->http, NULL, NULL);
        http_reply(ask->http, 200, "application/json", out.data, out.len);
        ask_free(ask);
    }
    str_done(&out);
}

void ask_on_flushed(struct ask *ask)
{
    static const char body[] = "{\"success\":true,\"message\":\"The prefix cache is empty.\"}\n";
    http_on_closed(ask->http, NULL, NULL);
    http_reply(ask->http, 200, "application/json", body, sizeof body - 1);
    ask_free(ask);
}

void abort_handle(struct frontend *f, struct http_request *http)
{
    struct arena arena = {.limit = 1 << 20};
    struct json body = {0};
    struct error error;
    struct refusal refusal;
    struct str out = {0};
    size_t bytes;
    const char *text = http_body(http, &bytes);
    enum status status = OK;
    if (bytes && json_parse(&arena, text, bytes, &body, &error) != OK)
        status = refuse(&refusal, 400, "invalid_json", NULL, "The body is not valid JSON: %s.",
                        error.message);
    const struct json *rid = json_get(&body, "rid");
    bool is_all = json_bool(json_get(&body, "abort_all"), false);
    if (status == OK && !json_is_null(rid) && rid->type != JT_STRING)
        status = refuse_value(&refusal, "rid", rid, "a string");
    if (status == OK) {
        const char *id = json_string(rid);
        size_t n = calls_abort(f, is_all || !id || !*id ? NULL : id);
        str_printf(&out, "{\"aborted\":%zu}\n", n);
        http_reply(http, 200, "application/json", out.data, out.len);
    } else {
        refusal_send(&refusal, http);
    }
    str_done(&out);
    arena_done(&arena);
}
