#include "worker/worker_state.h"

#include "base/log.h"
#include "base/system.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    HIGH_WATER = 1024,             /* frames */
    MAX_WAITING_BYTES = 256 << 20, /* towards a reader that does not drain */
    FRAME_ARENA_LIMIT = 256 << 20,
    IDLE_MS = 200 /* between two looks at the board */
};

static void dispatch(struct worker *w, const struct message *m)
{
    switch (m->type) {
    case MESSAGE_prompt:
        worker_prompt(w, &m->prompt);
        break;
    case MESSAGE_cancel:
        worker_cancel(w, &m->cancel);
        break;
    case MESSAGE_tokenize:
        worker_tokenize(w, &m->tokenize);
        break;
    case MESSAGE_detokenize:
        worker_detokenize(w, &m->detokenize);
        break;
    case MESSAGE_token:
        worker_token(w, &m->token);
        break;
    default:
        log_error("a worker got a message of type %d, which is not for it", (int)m->type);
    }
}

static void handle(struct worker *w, const struct message *m)
{
    static const char *const names[] = {[MESSAGE_prompt] = "tokenize",
                                        [MESSAGE_tokenize] = "tokenize",
                                        [MESSAGE_detokenize] = "detokenize",
                                        [MESSAGE_token] = "detokenize"};
    const char *name = (size_t)m->type < sizeof names / sizeof names[0] ? names[m->type] : NULL;
    if (!w->trace.trace || !name) {
        dispatch(w, m);
        return;
    }
    double begin = system_seconds();
    dispatch(w, m);
    trace_record(
        w->trace.trace,
        &(struct trace_event){.kind = TRACE_TASK,
                              .phase = TRACE_NO_PHASE,
                              .name = name,
                              .begin = begin,
                              .end = system_seconds(),
                              .values = {m->type == MESSAGE_prompt ? (int64_t)w->ids.n : 1}});
}

/* Mail from before the last restart of any process is dropped: its request has been ended. */
static void read_frame(struct worker *w, const struct inbox_frame *frame)
{
    struct frame_reader reader;
    struct message message;
    struct error error;
    enum status status = frame_open(&reader, frame->data, frame->bytes, &w->arena, &error);
    if (status == OK && reader.epoch >= board_youngest_start(w->board))
        while (frame_next(&reader, &message, &status, &error))
            handle(w, &message);
    if (status != OK)
        log_error("%s", error.message);
    arena_done(&w->arena);
}

static bool read_inbox(struct worker *w, struct inbox *inbox, struct inbox_frame *frame)
{
    bool has_any = false;
    while (inbox_receive(inbox, frame)) {
        read_frame(w, frame);
        has_any = true;
    }
    return has_any;
}

/* Both boxes; the frontend first, so that it knows of a prompt before the scheduler answers. */
static bool flush(struct worker *w)
{
    bool is_sent = outbox_flush(&w->to_frontend);
    return outbox_flush(&w->to_scheduler) && is_sent;
}

static void loop(struct worker *w, struct inbox *inboxes, int n)
{
    struct inbox_frame frame = {0};
    uint32_t youngest = 0;
    for (;;) {
        bool has_any = false;
        uint32_t now = board_youngest_start(w->board);
        process_trace_follow(&w->trace);
        if (now != youngest) { /* somebody died: what was begun before is over */
            worker_drop_streams(w);
            outbox_reset(&w->to_frontend);
            outbox_reset(&w->to_scheduler);
            youngest = now;
        }
        for (int i = 0; i < n; i++)
            has_any |= read_inbox(w, &inboxes[i], &frame);
        bool is_behind = !flush(w) || w->to_frontend.n_waiting || w->to_scheduler.n_waiting;
        if (has_any)
            continue;
        if (socket_wait(inboxes, n, w->options->life_fd, is_behind ? 1 : IDLE_MS))
            break;
    }
    inbox_frame_done(&frame);
}

static enum status open_boxes(struct worker *w, void *context, struct inbox *inboxes, int *n,
                              struct error *error)
{
    const struct worker_options *o = w->options;
    char name[32];
    enum status status = OK;
    *n = 0;
    snprintf(name, sizeof name, "tokenizer.%d", o->tokenizer_index);
    if (o->tokenizer_index >= 0)
        status = inbox_open(&inboxes[(*n)++], context, o->folder, name, error);
    if (status == OK && o->is_detokenizer)
        status = inbox_open(&inboxes[(*n)++], context, o->folder, "detokenizer", error);
    if (status == OK)
        status = outbox_open(&w->to_frontend, context, o->folder, "frontend", HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    if (status == OK)
        status = outbox_open(&w->to_scheduler, context, o->folder, "scheduler", HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    return status;
}

enum status worker_run(const struct worker_options *options, const struct worker_model *model,
                       struct error *error)
{
    struct worker w = {.options = options, .model = model, .arena.limit = FRAME_ARENA_LIMIT};
    snprintf(w.name, sizeof w.name, options->is_detokenizer ? "detokenizer" : "tokenizer.%d",
             options->tokenizer_index);
    struct inbox inboxes[2] = {0};
    void *context = NULL;
    int n = 0;
    enum status status = board_open(&w.board, options->folder, error);
    if (status == OK)
        status = encoder_new(model->tokenizer, ENCODER_DEFAULT_CACHE_BYTES, &w.encoder, error);
    if (status == OK)
        status = socket_context_new(&context, error);
    if (status == OK)
        status = open_boxes(&w, context, inboxes, &n, error);
    if (status == OK) {
        process_trace_init(&w.trace, w.board, options->folder, w.name);
        atomic_store(&w.board->state[options->role], PROCESS_READY);
        loop(&w, inboxes, n);
    }
    for (int i = 0; i < n; i++)
        inbox_close(&inboxes[i]);
    outbox_close(&w.to_frontend);
    outbox_close(&w.to_scheduler);
    socket_context_free(context);
    worker_drop_streams(&w);
    free(w.streams);
    process_trace_done(&w.trace);
    encoder_free(w.encoder);
    token_ids_done(&w.ids);
    str_done(&w.text);
    arena_done(&w.arena);
    board_close(w.board);
    return status;
}
