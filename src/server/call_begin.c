/* How a call begins: the request is read and admitted, its choices go to a tokenizer. */
#include "base/map.h"
#include "base/system.h"
#include "server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The queue's limit, of which the scheduler knows those that reached it. */
static enum status check_queue(struct frontend *f, const struct request *r, struct refusal *refusal)
{
    int limit = f->options->max_queue;
    size_t n = r->n_prompts * (size_t)r->n;
    uint64_t waiting = atomic_load(&f->board->waiting) + f->n_unready;
    if (limit <= 0 || waiting + n <= (uint64_t)limit)
        return OK;
    refuse(
        refusal, 503, "queue_full", NULL,
        "%llu requests wait and at most %d may (--max-queue), so there is no place for %zu more; "
        "try again later.",
        (unsigned long long)waiting, limit, n);
    refusal->retry_after = RETRY_AFTER_SECONDS;
    return ERROR_LIMIT;
}

static void make_head(struct call *call)
{
    const char *model = call->frontend->options->model_names[0];
    if (!call->form->object)
        return;
    str_printf(&call->head,
               "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", call->id,
               call->form->object, call->created);
    json_write_string(&call->head, model, strlen(model));
    str_append_z(&call->head, ",\"choices\":[");
    call->head_common = call->head.len;
    str_append_z(&call->head, "{\"index\":");
}

/* The parsers look at the tools for as long as the call lives. */
static enum status keep_tools(struct call *call, const struct request *r, struct refusal *refusal)
{
    struct error error;
    if (!r->tools_text.len || !call->form->has_parser)
        return OK;
    if (json_parse(&call->tools_arena, r->tools_text.data, r->tools_text.len, &call->tools,
                   &error) != OK)
        return refuse_memory(refusal);
    call->has_tools = true;
    return OK;
}

static enum status keep_echoes(struct call *call, const struct request *r, struct refusal *refusal)
{
    if (!r->echo || r->settings.scores_prompt) /* the prompt comes back token by token */
        return OK;
    call->echoes = calloc(r->n_prompts, sizeof *call->echoes);
    if (!call->echoes)
        return refuse_memory(refusal);
    for (size_t i = 0; i < r->n_prompts; i++) {
        str_append(&call->echoes[i], r->prompts[i].text.data, r->prompts[i].text.n);
        if (call->echoes[i].failed)
            return refuse_memory(refusal);
    }
    return OK;
}

static bool is_sane_id(const char *id)
{
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:");
    return n > 0 && !id[n] && n < sizeof((struct call *)0)->id;
}

static enum status fill(struct call *call, const struct request *r, struct refusal *refusal)
{
    struct frontend *f = call->frontend;
    char id[ID_BYTES + 1];
    frontend_random_id(f, id);
    call->n_prompts = r->n_prompts;
    call->n_choices = r->n_prompts * (size_t)r->n;
    call->is_stream = r->is_stream;
    call->include_usage = r->include_usage;
    call->has_logprobs = r->has_logprobs;
    call->is_sglang = r->is_sglang;
    call->began = call->last_write = system_seconds();
    call->created = (long long)time(NULL);
    call->tool_seed = r->settings.seed ^ hash_bytes(id, ID_BYTES);
    if (r->rid && !is_sane_id(r->rid))
        return refuse(refusal, 400, "invalid_value", "rid",
                      "'rid' must have 1 to %zu letters, digits or - _ . :", sizeof call->id - 1);
    if (r->rid)
        snprintf(call->id, sizeof call->id, "%s", r->rid);
    else
        snprintf(call->id, sizeof call->id, "%s%s", call->form->id_prefix, id);
    memcpy(call->request_id, f->request_id, sizeof call->request_id);
    make_head(call);
    call->choices = calloc(call->n_choices, sizeof *call->choices);
    if (!call->choices || call->head.failed)
        return refuse_memory(refusal);
    enum status status = keep_tools(call, r, refusal);
    return status == OK ? keep_echoes(call, r, refusal) : status;
}

/* Sends the prompt of choice i; it waits for mail from then on. */
static enum status submit(struct call *call, const struct request *r, size_t i,
                          struct refusal *refusal)
{
    struct frontend *f = call->frontend;
    struct choice *c = &call->choices[i];
    struct message m = {.type = MESSAGE_prompt, .prompt = r->settings};
    const struct prompt *prompt = &r->prompts[i / (size_t)r->n];
    *c = (struct choice){.waiter = {frontend_new_uid(f), WAITER_CHOICE},
                         .index = (int32_t)i,
                         .prompt = i / (size_t)r->n};
    m.prompt.uid = c->waiter.uid;
    m.prompt.kind = (uint8_t)prompt->kind;
    m.prompt.text = prompt->text;
    m.prompt.ids = prompt->ids;
    m.prompt.choice = (uint32_t)(i % (size_t)r->n);
    if (call->echoes) {
        const struct str *echo = &call->echoes[c->prompt];
        for (size_t at = 0; at < echo->len; at++)
            c->n_chars += (echo->data[at] & 0xC0) != 0x80;
    }
    if (!frontend_send(f, &f->to_tokenizer[call->tokenizer], uid_epoch(c->waiter.uid), &m))
        return refuse(refusal, 413, "request_too_large", NULL,
                      "The request is too large to be handed to the tokenizer; at most %d MiB are "
                      "possible.",
                      FRAME_MAX_BYTES >> 20);
    if (!uid_table_put(&f->waiters, &c->waiter))
        return refuse_memory(refusal);
    c->call = call;
    f->n_unready++;
    return OK;
}

static enum status make_call(struct frontend *f, struct http_request *http,
                             const struct call_form *form, const struct request *r,
                             struct call **out, struct refusal *refusal)
{
    struct call *call = calloc(1, sizeof *call);
    *out = call;
    if (!call)
        return refuse_memory(refusal);
    call->frontend = f;
    call->http = http;
    call->form = form;
    call->tokenizer = frontend_pick_tokenizer(f);
    if (f->is_stuck[call->tokenizer]) {
        refuse(refusal, 503, "overloaded", NULL,
               "The tokenizer does not keep up with the requests; try again later.");
        refusal->retry_after = RETRY_AFTER_SECONDS;
        return ERROR_LIMIT;
    }
    enum status status = fill(call, r, refusal);
    for (size_t i = 0; status == OK && i < call->n_choices; i++)
        status = submit(call, r, i, refusal);
    return status;
}

void call_handle(struct frontend *f, struct http_request *http, const struct call_form *form)
{
    struct refusal refusal;
    struct request r = {0};
    struct call *call = NULL;
    size_t bytes;
    const char *body = http_body(http, &bytes);
    enum status status = frontend_check_ready(f, &refusal);
    f->setup.vocab_size = atomic_load(&f->board->vocab_size);
    if (status == OK)
        status = request_read(&r, &f->setup, form->api, body, bytes, &refusal);
    if (status == OK)
        status = check_queue(f, &r, &refusal);
    if (status == OK)
        status = make_call(f, http, form, &r, &call, &refusal);
    request_done(&r);
    if (status == OK) {
        http_body_release(http);
        call_attach(call);
        return;
    }
    f->metrics.requests[form->endpoint][outcome_of_status(refusal.http_status)]++;
    if (call)
        call_discard(call);
    refusal_send(&refusal, http);
}
