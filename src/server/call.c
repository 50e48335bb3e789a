#include "server/call.h"

#include "base/log.h"
#include "base/map.h"
#include "base/system.h"
#include "server/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double begin_patience_seconds = 1.0; /* until a stream's head goes before its tokens */

/* --- life ------------------------------------------------------------------------------------- */

static void choice_done(struct frontend *f, struct choice *choice)
{
    if (!choice->call)
        return;
    uid_table_remove(&f->waiters, choice->waiter.uid);
    if (!choice->is_ready)
        f->n_unready--;
    answer_done(&choice->answer);
    str_done(&choice->early);
    for (size_t i = 0; i < sizeof choice->logprobs / sizeof *choice->logprobs; i++)
        str_done(&choice->logprobs[i]);
}

/* Takes it off every list and frees it; its HTTP request has been answered or is gone. */
static void call_free(struct call *call)
{
    struct frontend *f = call->frontend;
    for (size_t i = 0; call->choices && i < call->n_choices; i++)
        choice_done(f, &call->choices[i]);
    if (call->next)
        call->next->previous = call->previous;
    if (call->previous)
        call->previous->next = call->next;
    else if (f->calls == call)
        f->calls = call->next;
    for (size_t i = 0; call->echoes && i < call->n_prompts; i++)
        str_done(&call->echoes[i]);
    free(call->echoes);
    free(call->choices);
    str_done(&call->head);
    str_done(&call->pending);
    str_done(&call->scratch);
    str_done(&call->text);
    arena_done(&call->tools_arena);
    free(call);
}

static void cancel(struct call *call)
{
    struct frontend *f = call->frontend;
    for (size_t i = 0; i < call->n_choices; i++) {
        struct choice *c = &call->choices[i];
        struct message m = {.type = MESSAGE_cancel, .cancel = {.uid = c->waiter.uid}};
        if (c->call && !c->is_done)
            frontend_send(f, &f->to_tokenizer[call->tokenizer], uid_epoch(c->waiter.uid), &m);
    }
}

static void count(struct call *call, enum outcome outcome)
{
    struct frontend *f = call->frontend;
    f->metrics.requests[call->form->endpoint][outcome]++;
    if (f->trace.trace)
        trace_record(
            f->trace.trace,
            &(struct trace_event){.kind = TRACE_REQUEST,
                                  .phase = TRACE_NO_PHASE,
                                  .name = "http request",
                                  .begin = call->began,
                                  .end = system_seconds(),
                                  .id = call->choices ? call->choices[0].waiter.uid : 0,
                                  .values = {call->choices ? call->choices[0].n_output : 0}});
}

static void on_closed(void *user, struct http_request *http)
{
    struct call *call = user;
    (void)http;
    count(call, OUTCOME_cancelled);
    cancel(call);
    call_free(call);
}

void call_attach(struct call *call)
{
    struct frontend *f = call->frontend;
    call->next = f->calls;
    if (f->calls)
        f->calls->previous = call;
    f->calls = call;
    http_on_closed(call->http, on_closed, call);
}

void call_discard(struct call *call)
{
    cancel(call);
    call_free(call);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void begin_stream(struct call *call)
{
    struct str first = {0};
    http_stream_begin(call->http, 200, "text/event-stream; charset=utf-8");
    call->has_begun = true;
    call->form->begin(call, &first);
    http_stream_write(call->http, str_z(&first), first.len);
    http_stream_write(call->http, str_z(&call->pending), call->pending.len);
    str_done(&first);
    str_done(&call->pending);
}

/* Sends what is in scratch, or keeps it while a prompt may still turn out to be refused. */
static void write_scratch(struct call *call, double now)
{
    if (!call->has_begun && call->n_ready == call->n_choices)
        begin_stream(call);
    if (call->has_begun)
        http_stream_write(call->http, str_z(&call->scratch), call->scratch.len);
    else
        str_append(&call->pending, str_z(&call->scratch), call->scratch.len);
    if (call->scratch.len)
        call->last_write = now;
    str_clear(&call->scratch);
}

static void call_fail(struct call *call, enum outcome outcome, bool cancels,
                      const struct refusal *refusal)
{
    count(call, outcome);
    if (cancels)
        cancel(call);
    http_on_closed(call->http, NULL, NULL);
    if (call->has_begun) {
        str_clear(&call->scratch);
        call->form->error(call, refusal->http_status, refusal->code, refusal->message,
                          &call->scratch);
        http_stream_write(call->http, str_z(&call->scratch), call->scratch.len);
        http_stream_end(call->http);
    } else {
        refusal_send(refusal, call->http);
    }
    call_free(call);
}

void call_break(struct call *call, const struct error *error)
{
    if (!call->has_failed)
        call->error = *error;
    call->has_failed = true;
}

/* True, and the call is gone, if a form broke or memory ran out. */
static bool is_broken(struct call *call)
{
    struct refusal refusal;
    if (call->scratch.failed || call->pending.failed || call->text.failed)
        refuse_memory(&refusal);
    else if (call->has_failed)
        refuse(&refusal, 500, "internal_error", NULL, "%s.", call->error.message);
    else
        return false;
    call_fail(call, OUTCOME_failed, true, &refusal);
    return true;
}

static void measure(struct call *call)
{
    struct metrics *m = &call->frontend->metrics;
    double now = system_seconds();
    size_t n = call->n_choices / call->n_prompts;
    for (size_t i = 0; i < call->n_choices; i++) {
        const struct choice *c = &call->choices[i];
        m->generated_tokens += (uint64_t)(c->n_output > 0 ? c->n_output : 0);
        if (i % n == 0) {
            m->prompt_tokens += (uint64_t)(c->n_prompt > 0 ? c->n_prompt : 0);
            m->cached_tokens += (uint64_t)(c->n_cached > 0 ? c->n_cached : 0);
        }
        histogram_add(&m->queue, c->queue_seconds);
        if (c->first_at > 0)
            histogram_add(&m->ttft, c->first_at - call->began);
        if (c->n_output > 1)
            histogram_add(&m->tpot, (c->last_at - c->first_at) / (c->n_output - 1));
    }
    histogram_add(&m->total, now - call->began);
}

/* All choices ended well. */
static void complete(struct call *call)
{
    const char *reason = call_finish_reason(&call->choices[0]);
    http_on_closed(call->http, NULL, NULL);
    if (call->is_stream) {
        call->form->end(call, &call->scratch);
        write_scratch(call, call->last_write);
        http_stream_end(call->http);
    } else {
        call->form->reply(call, &call->scratch);
        if (call->scratch.failed) {
            struct refusal refusal;
            refuse_memory(&refusal);
            call_fail(call, OUTCOME_failed, false, &refusal);
            return;
        }
        http_reply(call->http, 200, "application/json", call->scratch.data, call->scratch.len);
    }
    measure(call);
    count(call, strcmp(reason, "length") == 0       ? OUTCOME_length
                : strcmp(reason, "tool_calls") == 0 ? OUTCOME_tool_calls
                                                    : OUTCOME_stop);
    call_free(call);
}

/* --- mail ------------------------------------------------------------------------------------- */

static void keep_early(struct choice *choice, const struct piece_message *m)
{
    struct message message = {.type = MESSAGE_piece, .piece = *m};
    if (choice->early.len == 0)
        frame_begin(&choice->early, uid_epoch(choice->waiter.uid));
    if (!frame_add(&choice->early, &message))
        log_error("a piece of text that came before its prompt was ready is lost");
}

/* Pieces that overtook prompt_ready on their own way; any of them may end the call. */
static void replay_early(struct choice *choice)
{
    struct frontend *f = choice->call->frontend;
    struct str early = choice->early;
    struct arena arena = {.limit = FRAME_MAX_BYTES};
    struct frame_reader reader;
    struct message message;
    struct error error;
    uint64_t uid = choice->waiter.uid;
    choice->early = (struct str){0};
    enum status status = frame_open(&reader, early.data, early.len, &arena, &error);
    while (status == OK && uid_table_get(&f->waiters, uid) == &choice->waiter &&
           frame_next(&reader, &message, &status, &error))
        call_on_piece(choice, &message.piece);
    arena_done(&arena);
    str_done(&early);
}

void call_on_prompt_ready(struct choice *choice, const struct prompt_ready_message *m)
{
    struct call *call = choice->call;
    struct frontend *f = call->frontend;
    struct refusal refusal;
    struct error error;
    if (choice->is_ready)
        return;
    choice->is_ready = true;
    f->n_unready--;
    if (m->http_status != 200) {
        bool is_too_long = m->code.n == strlen("context_length_exceeded") &&
                           memcmp(m->code.data, "context_length_exceeded", m->code.n) == 0;
        refuse(&refusal, m->http_status, is_too_long ? "context_length_exceeded" : "invalid_prompt",
               call->form->api == API_CHAT ? "messages" : "prompt", "%.*s", (int)m->error.n,
               m->error.data);
        if (m->http_status >= 500) {
            refusal.code = "internal_error";
            refusal.param[0] = 0;
        }
        call_fail(call, outcome_of_status(m->http_status), true, &refusal);
        return;
    }
    call->n_ready++;
    choice->n_prompt = m->n_tokens;
    if (call->form->has_parser &&
        answer_open(&choice->answer, &f->parser, m->tail, call->has_tools ? &call->tools : NULL,
                    &error) != OK) {
        call_break(call, &error);
        is_broken(call);
        return;
    }
    if (choice->early.len)
        replay_early(choice);
}

static void note_piece(struct choice *choice, const struct piece_message *m, double now)
{
    if (choice->first_at == 0 && m->id >= 0 && !m->is_prompt)
        choice->first_at = now;
    choice->last_at = now;
    if (m->finish == FINISH_NONE)
        return;
    choice->is_done = true;
    choice->finish = (enum finish_reason)m->finish;
    choice->n_prompt = m->n_prompt;
    choice->n_cached = m->n_cached;
    choice->n_output = m->n_output;
    choice->queue_seconds = m->queue_seconds;
    choice->prefill_seconds = m->prefill_seconds;
    choice->decode_seconds = m->decode_seconds;
    choice->call->n_done++;
}

/* The scheduler gave the choice up. */
static void on_error(struct choice *choice, const struct piece_message *m)
{
    struct refusal refusal;
    if (m->finish == FINISH_CANCELLED) {
        refuse(&refusal, 400, "request_aborted", NULL, "The request was aborted.");
        choice->is_done = true;
        call_fail(choice->call, OUTCOME_cancelled, true, &refusal);
        return;
    }
    int http_status = m->http_status >= 400 ? m->http_status : 500;
    refuse(&refusal, http_status,
           http_status == 503  ? "overloaded"
           : http_status < 500 ? "invalid_request"
                               : "internal_error",
           NULL, "%.*s", (int)m->error.n, m->error.n ? m->error.data : "");
    if (http_status == 503 || http_status == 429)
        refusal.retry_after = RETRY_AFTER_SECONDS;
    choice->is_done = true;
    call_fail(choice->call, outcome_of_status(http_status), true, &refusal);
}

void call_on_piece(struct choice *choice, const struct piece_message *m)
{
    struct call *call = choice->call;
    if (choice->is_done)
        return;
    if (m->finish == FINISH_ERROR || m->finish == FINISH_CANCELLED) {
        on_error(choice, m);
        return;
    }
    if (!choice->is_ready) {
        keep_early(choice, m);
        return;
    }
    double now = system_seconds();
    note_piece(choice, m, now);
    if (call->is_stream)
        call->form->piece(call, choice, m, &call->scratch);
    else
        call->form->collect(call, choice, m);
    if (is_broken(call))
        return;
    if (call->is_stream)
        write_scratch(call, now);
    if (call->n_done == call->n_choices)
        complete(call);
}

void calls_fail(struct frontend *f, int http_status, const char *code, const char *message,
                bool cancels)
{
    struct refusal refusal;
    refuse(&refusal, http_status, code, NULL, "%s", message);
    refusal.retry_after = http_status == 503 ? RETRY_AFTER_SECONDS : 0;
    while (f->calls)
        call_fail(f->calls, OUTCOME_failed, cancels, &refusal);
}

size_t calls_abort(struct frontend *f, const char *id)
{
    struct refusal refusal;
    size_t n = 0;
    refuse(&refusal, 400, "request_aborted", NULL, "The request was aborted.");
    for (struct call *call = f->calls, *next; call; call = next) {
        next = call->next;
        if (id && strcmp(id, call->id) != 0 && strcmp(id, call->request_id) != 0)
            continue;
        call_fail(call, OUTCOME_cancelled, true, &refusal);
        n++;
    }
    return n;
}

void calls_keep_alive(struct frontend *f, double now)
{
    int seconds = f->options->keep_alive_seconds;
    for (struct call *call = f->calls; call; call = call->next) {
        if (!call->is_stream || call->n_ready < call->n_choices)
            continue;
        if (!call->has_begun && now - call->began > begin_patience_seconds) {
            begin_stream(call);
            call->last_write = now;
        } else if (call->has_begun && now - call->last_write >= (seconds > 0 ? seconds : 15)) {
            http_stream_write(call->http, ": keep-alive\n\n", 14);
            call->last_write = now;
        }
    }
}

/* --- for the forms ---------------------------------------------------------------------------- */

void call_tool_id(const struct call *call, const struct choice *choice, size_t index,
                  char out[ID_BYTES + 6])
{
    uint64_t numbers[3] = {call->tool_seed, (uint64_t)choice->index, index};
    snprintf(out, ID_BYTES + 6, "call_%016llx",
             (unsigned long long)hash_bytes(numbers, sizeof numbers));
}

const char *call_finish_reason(const struct choice *choice)
{
    if (choice->finish == FINISH_LENGTH)
        return "length";
    const struct output_parser *parser = choice->answer.parser;
    return parser && output_parser_n_ended_calls(parser) ? "tool_calls" : "stop";
}
