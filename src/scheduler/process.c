#include "scheduler/process.h"

#include "base/log.h"
#include "base/system.h"
#include "message/board.h"
#include "message/process_trace.h"
#include "message/socket.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIGH_WATER = 1024, /* frames */
    MAX_WAITING_BYTES = 64 << 20,
    FRAME_ARENA_LIMIT = 256 << 20,
    IDLE_MS = 100 /* between two signs of life */
};

/* A reader that has drained nothing for so long is dead. */
static const double dead_seconds = 10.0;

struct process {
    const struct scheduler_process *setup;
    struct board *board;
    struct scheduler *scheduler;
    struct inbox inbox;
    struct outbox to_detokenizer, to_frontend;
    struct arena arena; /* of the frame being read */
    uint32_t youngest;  /* start of a process; older requests are over */
    double stuck_since; /* 0: the outbox drains */
    struct process_trace trace;
    uint64_t first_step; /* of the scheduler's count, when the profile began */
    bool is_recording;
};

static struct bytes bytes_of_text(const char *text)
{
    return (struct bytes){text, (uint32_t)(text ? strlen(text) : 0)};
}

/* --- out -------------------------------------------------------------------------------------- */

static void send_token(struct process *p, uint64_t uid, const struct token_message *token)
{
    struct message m = {.type = MESSAGE_token, .token = *token};
    if (!outbox_add(&p->to_detokenizer, uid_epoch(uid), &m))
        log_error("a token could not be handed on: out of memory");
}

static void on_event(void *context, const struct token_event *e)
{
    struct process *p = context;
    int32_t top_ids[SAMPLER_MAX_LOGPROBS];
    float top_logprobs[SAMPLER_MAX_LOGPROBS];
    struct token_message t = {.uid = e->uid,
                              .id = -1,
                              .is_prompt = e->is_prompt,
                              .has_text = e->has_text,
                              .text = e->text,
                              .finish = (uint8_t)e->finish,
                              .error = bytes_of_text(e->error),
                              .http_status = e->finish == FINISH_ERROR ? 500 : 0,
                              .n_prompt = e->n_prompt,
                              .n_cached = e->n_cached,
                              .n_output = e->n_output,
                              .queue_seconds = e->queue_seconds,
                              .prefill_seconds = e->prefill_seconds,
                              .decode_seconds = e->decode_seconds};
    if (e->sample) {
        t.id = e->sample->token;
        t.logprob = e->sample->logprob;
        for (int32_t i = 0; i < e->sample->n_top; i++) {
            top_ids[i] = e->sample->top[i].token;
            top_logprobs[i] = e->sample->top[i].logprob;
        }
        t.top_ids = (struct i32s){top_ids, (uint32_t)e->sample->n_top};
        t.top_logprobs = (struct f32s){top_logprobs, (uint32_t)e->sample->n_top};
    }
    send_token(p, e->uid, &t);
}

/* --- in --------------------------------------------------------------------------------------- */

/* NUL-terminated copies in the frame's arena; NULL if there is no memory. */
static const char **copy_strings(struct arena *arena, struct byte_strings strings)
{
    const char **copies = arena_alloc_array(arena, strings.n, sizeof *copies);
    for (uint32_t i = 0; copies && i < strings.n; i++)
        if (!(copies[i] = arena_copy(arena, strings.items[i].data, strings.items[i].n)))
            return NULL;
    return copies;
}

static enum status submit(struct process *p, const struct submit_message *m, struct error *error)
{
    const char **stop = copy_strings(&p->arena, m->stop);
    struct logit_bias *biases = arena_alloc_array(&p->arena, m->bias_tokens.n, sizeof *biases);
    if (!stop || !biases)
        return error_memory(error, m->stop.n + m->bias_tokens.n);
    if (m->bias_values.n != m->bias_tokens.n)
        return error_set(error, ERROR_INVALID, "logit_bias has %u ids and %u values",
                         m->bias_tokens.n, m->bias_values.n);
    for (uint32_t i = 0; i < m->bias_tokens.n; i++)
        biases[i] = (struct logit_bias){m->bias_tokens.items[i], m->bias_values.items[i]};
    struct request_options o = {.uid = m->uid,
                                .ids = m->ids.items,
                                .n_ids = (int32_t)m->ids.n,
                                .cache_key = m->cache_key,
                                .marks = m->marks.items,
                                .n_marks = (int32_t)m->marks.n,
                                .params = {.temperature = (float)m->temperature,
                                           .top_k = m->top_k,
                                           .top_p = (float)m->top_p,
                                           .min_p = (float)m->min_p,
                                           .repetition_penalty = (float)m->repetition_penalty,
                                           .presence_penalty = (float)m->presence_penalty,
                                           .frequency_penalty = (float)m->frequency_penalty,
                                           .biases = biases,
                                           .n_biases = (int32_t)m->bias_tokens.n,
                                           .seed = m->seed,
                                           .choice = m->choice,
                                           .n_logprobs = m->n_logprobs},
                                .max_tokens = m->max_tokens,
                                .min_tokens = m->min_tokens,
                                .ignore_eos = m->ignore_eos != 0,
                                .scores_prompt = m->scores_prompt != 0,
                                .stop_tokens = m->stop_tokens.items,
                                .n_stop_tokens = (int32_t)m->stop_tokens.n,
                                .stop = stop,
                                .n_stop = (int32_t)m->stop.n,
                                .submitted = system_seconds()};
    return scheduler_submit(p->scheduler, &o, error);
}

static void on_submit(struct process *p, const struct submit_message *m)
{
    struct error error = {0};
    enum status status = submit(p, m, &error);
    if (status == OK)
        return;
    /* The prompt's length was checked by the tokenizer, so a limit is the queue's. */
    int http_status = status == ERROR_LIMIT ? 503 : status == ERROR_INVALID ? 400 : 500;
    send_token(p, m->uid,
               &(struct token_message){.uid = m->uid,
                                       .id = -1,
                                       .has_text = 1,
                                       .finish = FINISH_ERROR,
                                       .http_status = http_status,
                                       .error = bytes_of_text(error.message)});
}

static void on_flush(struct process *p, const struct flush_message *m)
{
    kv_cache_flush(p->setup->cache);
    struct message done = {.type = MESSAGE_flushed, .flushed = {.uid = m->uid}};
    outbox_add(&p->to_frontend, uid_epoch(m->uid), &done);
}

static void read_frame(struct process *p, const struct inbox_frame *frame)
{
    struct frame_reader reader;
    struct message m;
    struct error error;
    enum status status = frame_open(&reader, frame->data, frame->bytes, &p->arena, &error);
    if (status == OK && reader.epoch >= p->youngest)
        while (frame_next(&reader, &m, &status, &error)) {
            if (m.type == MESSAGE_submit)
                on_submit(p, &m.submit);
            else if (m.type == MESSAGE_cancel)
                scheduler_cancel(p->scheduler, m.cancel.uid);
            else if (m.type == MESSAGE_flush)
                on_flush(p, &m.flush);
        }
    if (status != OK)
        log_error("%s", error.message);
    arena_done(&p->arena);
}

/* --- the board -------------------------------------------------------------------------------- */

/* A process died and came back: every request of before is over, and so is mail about it. */
static void look_at_board(struct process *p)
{
    uint32_t youngest = board_youngest_start(p->board);
    if (youngest == p->youngest)
        return;
    p->youngest = youngest;
    scheduler_cancel_all(p->scheduler);
    outbox_reset(&p->to_detokenizer);
    outbox_reset(&p->to_frontend);
}

static void write_board(struct process *p)
{
    struct board *b = p->board;
    struct scheduler_figures f = scheduler_figures(p->scheduler);
    const struct kv_cache *cache = p->setup->cache;
    const struct state_pool *states = &cache->states;
    uint64_t n_pages = 0, n_used = 0, n_cached = 0;
    for (int32_t g = 0; g < cache->n_groups; g++) {
        struct kv_counts counts = kv_cache_counts(cache, g);
        n_pages += (uint64_t)counts.n_pages;
        n_used += (uint64_t)(counts.n_own + counts.n_locked);
        n_cached += (uint64_t)counts.n_evictable;
    }
    struct {
        _Atomic uint64_t *figure;
        uint64_t value;
    } figures[] = {
        {&b->running, (uint64_t)f.n_running},
        {&b->waiting, (uint64_t)f.n_waiting},
        {&b->kv_pages, n_pages},
        {&b->kv_pages_used, n_used},
        {&b->kv_pages_cached, n_cached},
        {&b->steps, f.steps},
        {&b->prefill_tokens, f.prefill_tokens},
        {&b->decode_tokens, f.decode_tokens},
        {&b->cached_tokens, f.cached_tokens},
        {&b->kv_hit_tokens, f.kv_hit_tokens},
        {&b->snapshot_hit_tokens, f.snapshot_hit_tokens},
        {&b->copied_pages, cache->statistics.copied_pages},
        {&b->state_slots, (uint64_t)states->n_slots},
        {&b->state_slots_used, (uint64_t)(states->n_slots - states->n_free - states->n_snapshots)},
        {&b->state_snapshots, (uint64_t)states->n_snapshots},
        {&b->made_snapshots, cache->statistics.snapshots},
        {&b->evicted_snapshots, cache->statistics.evicted_snapshots},
        {&b->evicted_pages, cache->statistics.evicted_pages},
        {&b->preemptions, f.preemptions},
        {&b->last_batch_size, (uint64_t)f.last_batch_size},
        {&b->scheduler_heartbeat, (uint64_t)(system_seconds() * 1e9)}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        atomic_store_explicit(figures[i].figure, figures[i].value, memory_order_relaxed);
}

/* --- profiles --------------------------------------------------------------------------------- */

/* Follows the board, and records the steps that it asks for: the scheduler itself ends a profile of
 * so many steps. */
static void follow_profile(struct process *p)
{
    struct board *b = p->board;
    uint64_t steps = scheduler_figures(p->scheduler).steps;
    if (process_trace_follow(&p->trace)) {
        scheduler_trace(p->scheduler, NULL);
        p->is_recording = false;
        p->first_step = steps + atomic_load(&b->profile_start_step);
    }
    if (!p->trace.trace)
        return;
    uint32_t n_steps = atomic_load(&b->profile_steps);
    if (!p->is_recording && steps >= p->first_step) {
        scheduler_trace(p->scheduler, p->trace.trace);
        p->is_recording = true;
    }
    if (n_steps && steps >= p->first_step + n_steps) {
        scheduler_trace(p->scheduler, NULL);
        profile_stop(b);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

static bool is_orphaned(int life_fd)
{
    struct pollfd fd = {.fd = life_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

/* Sends what the step made. While the reader does not drain, no step is made; one that never does
 * is dead, and its requests are ended. */
static bool flush(struct process *p)
{
    bool is_sent = outbox_flush(&p->to_detokenizer);
    outbox_flush(&p->to_frontend);
    if (is_sent) {
        p->stuck_since = 0.0;
        return true;
    }
    double now = system_seconds();
    if (p->stuck_since == 0.0)
        p->stuck_since = now;
    if (now - p->stuck_since > dead_seconds) {
        log_error("the detokenizer has taken nothing for %.0f s; all requests are ended",
                  dead_seconds);
        outbox_reset(&p->to_detokenizer);
        scheduler_cancel_all(p->scheduler);
        p->stuck_since = 0.0;
    }
    return false;
}

static enum status loop(struct process *p, struct error *error)
{
    struct inbox_frame frame = {0};
    enum status status = OK;
    int life_fd = p->setup->life_fd;
    while (status == OK && !is_orphaned(life_fd)) {
        look_at_board(p);
        while (inbox_receive(&p->inbox, &frame))
            read_frame(p, &frame);
        follow_profile(p);
        bool can_step = flush(p) && scheduler_has_work(p->scheduler);
        if (can_step)
            status = scheduler_step(p->scheduler, error);
        write_board(p);
        if (status == OK && can_step)
            flush(p);
        else if (status == OK &&
                 socket_wait(&p->inbox, 1, life_fd, p->stuck_since > 0.0 ? 1 : IDLE_MS))
            break;
    }
    flush(p); /* a failed device's last words */
    inbox_frame_done(&frame);
    return status;
}

enum status scheduler_process_run(const struct scheduler_process *setup, struct error *error)
{
    struct process p = {.setup = setup, .arena.limit = FRAME_ARENA_LIMIT, .inbox.fd = -1};
    void *context = NULL;
    enum status status = board_open(&p.board, setup->folder, error);
    if (status == OK)
        status = scheduler_new(&p.scheduler, setup->executor, setup->cache, &setup->options,
                               on_event, &p, error);
    if (status == OK)
        status = socket_context_new(&context, error);
    if (status == OK)
        status = inbox_open(&p.inbox, context, setup->folder, "scheduler", error);
    if (status == OK)
        status = outbox_open(&p.to_detokenizer, context, setup->folder, "detokenizer", HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    if (status == OK)
        status = outbox_open(&p.to_frontend, context, setup->folder, "frontend", HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    if (status == OK) {
        p.youngest = board_youngest_start(p.board);
        process_trace_init(&p.trace, p.board, setup->folder, "scheduler");
        atomic_store(&p.board->context_length, (uint64_t)setup->options.context_length);
        atomic_store(&p.board->vocab_size, (uint64_t)setup->options.vocab_size);
        write_board(&p);
        atomic_store(&p.board->state[ROLE_SCHEDULER], PROCESS_READY);
        status = loop(&p, error);
    }
    if (p.scheduler)
        scheduler_trace(p.scheduler, NULL);
    process_trace_done(&p.trace);
    scheduler_free(p.scheduler);
    outbox_close(&p.to_detokenizer);
    outbox_close(&p.to_frontend);
    inbox_close(&p.inbox);
    socket_context_free(context);
    arena_done(&p.arena);
    board_close(p.board);
    return status;
}
