/* The frontend's process: its loop, its mail, and the watch over the other processes. */
#include "server/server.h"

#include "base/log.h"
#include "base/system.h"
#include "server/call.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HIGH_WATER = 1024, /* frames */
    MAX_WAITING_BYTES = 256 << 20,
    FRAME_ARENA_LIMIT = 256 << 20,
    MAX_FRAMES_A_TURN = 64, /* read before the other events have their turn */
    TICK_MS = 50
};

static const double stop_seconds = 2.0;       /* for answers to leave at the end */
static const double keep_alive_period = 0.25; /* between two looks at silent streams */

/* --- what the other files ask ----------------------------------------------------------------- */

uint64_t frontend_new_uid(struct frontend *f)
{
    uint64_t epoch = atomic_load(&f->board->generation);
    return epoch << 32 | ++f->n_uids;
}

int frontend_pick_tokenizer(struct frontend *f)
{
    int picked = f->next_tokenizer;
    f->next_tokenizer = (picked + 1) % f->options->n_tokenizers;
    return picked;
}

bool frontend_send(struct frontend *f, struct outbox *outbox, uint32_t epoch,
                   const struct message *message)
{
    bool is_kept = outbox_add(outbox, epoch, message);
    event_active(f->flush, 0, 0);
    return is_kept;
}

/* The finalizer of splitmix64 over a counter with a random start. */
void frontend_random_id(struct frontend *f, char out[ID_BYTES + 1])
{
    uint64_t x = f->id_seed += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    snprintf(out, ID_BYTES + 1, "%016llx", (unsigned long long)(x ^ x >> 31));
}

static bool has_state(const struct board *board, uint32_t state)
{
    for (int role = 0; role < N_ROLES; role++)
        if (atomic_load(&board->state[role]) == state)
            return true;
    return false;
}

const char *frontend_trouble(const struct frontend *f)
{
    if (atomic_load(&f->board->is_draining) || f->stop_until > 0)
        return "the server is stopping";
    if (has_state(f->board, PROCESS_DOWN))
        return "a process was lost and is started again";
    if (!board_is_ready(f->board))
        return "the model is being loaded";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint64_t beat = atomic_load(&f->board->scheduler_heartbeat);
    if (now_ns > beat && now_ns - beat > (uint64_t)HEALTH_LIMIT_MS * 1000000u)
        return "the scheduler does not answer";
    return NULL;
}

/* --- life and death of the others ------------------------------------------------------------- */

static void lose_requests(struct frontend *f)
{
    static const char why[] = "A process of the server was lost while it worked on this request; "
                              "send it again.";
    for (int i = 0; i < f->options->n_tokenizers; i++) {
        outbox_reset(&f->to_tokenizer[i]);
        f->is_stuck[i] = false;
    }
    outbox_reset(&f->to_scheduler);
    calls_fail(f, 503, "process_lost", why, false);
    asks_fail(f, why);
}

/* A process that is down, or was started since the last look, has lost what others had sent it. */
static void watch_board(struct frontend *f)
{
    uint32_t youngest = board_youngest_start(f->board);
    if (youngest != f->youngest || ((f->calls || f->asks) && has_state(f->board, PROCESS_DOWN)))
        lose_requests(f);
    f->youngest = youngest;
}

enum status frontend_check_ready(struct frontend *f, struct refusal *refusal)
{
    watch_board(f);
    bool is_stopping = atomic_load(&f->board->is_draining) || f->stop_until > 0;
    if (!is_stopping && board_is_ready(f->board))
        return OK;
    refuse(refusal, 503, "not_ready", NULL, "The server cannot take this request: %s.",
           is_stopping                         ? "it is stopping"
           : has_state(f->board, PROCESS_DOWN) ? "a process was lost and is started again"
                                               : "the model is being loaded");
    refusal->retry_after = RETRY_AFTER_SECONDS;
    return ERROR_NOT_FOUND;
}

/* --- mail ------------------------------------------------------------------------------------- */

static void read_choice(struct choice *choice, const struct message *m)
{
    if (m->type == MESSAGE_piece)
        call_on_piece(choice, &m->piece);
    else if (m->type == MESSAGE_prompt_ready)
        call_on_prompt_ready(choice, &m->prompt_ready);
}

static void read_ask(struct ask *ask, const struct message *m)
{
    if (m->type == MESSAGE_text_result)
        ask_on_text_result(ask, &m->text_result);
    else if (m->type == MESSAGE_flushed)
        ask_on_flushed(ask);
}

/* Mail for a uid that nobody waits for is of a request that has ended. */
static void read_message(struct frontend *f, const struct message *m)
{
    uint64_t uid = m->type == MESSAGE_piece          ? m->piece.uid
                   : m->type == MESSAGE_prompt_ready ? m->prompt_ready.uid
                   : m->type == MESSAGE_text_result  ? m->text_result.uid
                   : m->type == MESSAGE_flushed      ? m->flushed.uid
                                                     : 0;
    struct waiter *waiter = uid_table_get(&f->waiters, uid);
    if (!waiter)
        return;
    if (waiter->kind == WAITER_CHOICE)
        read_choice((struct choice *)waiter, m);
    else
        read_ask((struct ask *)waiter, m);
}

static void read_frame(struct frontend *f, const struct inbox_frame *frame)
{
    struct arena arena = {.limit = FRAME_ARENA_LIMIT};
    struct frame_reader reader;
    struct message message;
    struct error error;
    enum status status = frame_open(&reader, frame->data, frame->bytes, &arena, &error);
    if (status == OK && reader.epoch >= f->youngest)
        while (frame_next(&reader, &message, &status, &error))
            read_message(f, &message);
    if (status != OK)
        log_error("%s", error.message);
    arena_done(&arena);
}

static void read_mail(struct frontend *f)
{
    struct inbox_frame frame = {0};
    int n = 0;
    while (n < MAX_FRAMES_A_TURN && inbox_receive(&f->inbox, &frame)) {
        read_frame(f, &frame);
        n++;
    }
    inbox_frame_done(&frame);
    if (n == MAX_FRAMES_A_TURN) /* the descriptor tells only of what is new */
        event_active(f->mail, EV_READ, 0);
}

static void on_mail(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    read_mail(context);
}

static void flush(struct frontend *f)
{
    for (int i = 0; i < f->options->n_tokenizers; i++)
        f->is_stuck[i] = !outbox_flush(&f->to_tokenizer[i]);
    outbox_flush(&f->to_scheduler);
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    flush(context);
    read_mail(context); /* sending may have used up the descriptor's edge */
}

/* --- the end ---------------------------------------------------------------------------------- */

static void stop(struct frontend *f)
{
    if (f->stop_until > 0)
        return;
    f->stop_until = system_seconds() + stop_seconds;
    http_server_stop_accepting(f->http);
    calls_fail(f, 503, "stopping", "The server is stopping.", true);
    asks_fail(f, "The server is stopping.");
    flush(f);
}

static void on_term(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    stop(context);
}

static void on_life(evutil_socket_t fd, short what, void *context)
{
    char byte[16];
    (void)what;
    if (read(fd, byte, sizeof byte) == 0)
        stop(context);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct frontend *f = context;
    double now = system_seconds();
    (void)fd;
    (void)what;
    watch_board(f);
    frontend_follow_profile(f);
    flush(f);
    read_mail(f);
    if (now - f->last_keep_alive >= keep_alive_period) {
        calls_keep_alive(f, now);
        f->last_keep_alive = now;
    }
    if (f->stop_until > 0 && (now > f->stop_until || http_server_stats(f->http).active == 0))
        event_base_loopbreak(f->base);
}

/* --- beginning -------------------------------------------------------------------------------- */

static enum status open_boxes(struct frontend *f, struct error *error)
{
    const struct server_options *o = f->options;
    char name[32];
    f->to_tokenizer = calloc((size_t)o->n_tokenizers, sizeof *f->to_tokenizer);
    f->is_stuck = calloc((size_t)o->n_tokenizers, sizeof *f->is_stuck);
    if (!f->to_tokenizer || !f->is_stuck)
        return error_memory(error, (size_t)o->n_tokenizers * sizeof *f->to_tokenizer);
    enum status status = board_open(&f->board, o->folder, error);
    if (status == OK)
        status = socket_context_new(&f->zmq, error);
    if (status == OK)
        status = inbox_open(&f->inbox, f->zmq, o->folder, "frontend", error);
    for (int i = 0; status == OK && i < o->n_tokenizers; i++) {
        snprintf(name, sizeof name, "tokenizer.%d", i);
        status = outbox_open(&f->to_tokenizer[i], f->zmq, o->folder, name, HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    }
    if (status == OK)
        status = outbox_open(&f->to_scheduler, f->zmq, o->folder, "scheduler", HIGH_WATER,
                             MAX_WAITING_BYTES, error);
    return status;
}

static enum status read_object(struct frontend *f, const char *text, const char *name,
                               struct json *out, struct error *error)
{
    enum status status = json_parse(&f->arena, text, strlen(text), out, error);
    if (status == OK && out->type != JT_OBJECT)
        status = error_set(error, ERROR_INVALID, "it must be a JSON object");
    return status == OK ? OK : error_prefix(error, "%s", name);
}

static enum status read_options(struct frontend *f, struct error *error)
{
    const struct server_options *o = f->options;
    const char *source = o->chat_template_source;
    enum status status = OK;
    if (o->n_model_names < 1 || o->n_tokenizers < 1 || o->n_tokenizers > BOARD_MAX_TOKENIZERS)
        return error_set(error, ERROR_INVALID, "the frontend was started with wrong options");
    f->setup =
        (struct request_setup){.options = o, .knows_xhigh = source && strstr(source, "xhigh")};
    if (o->default_template_kwargs) {
        status = read_object(f, o->default_template_kwargs, "--default-chat-template-kwargs",
                             &f->default_kwargs, error);
        f->setup.default_kwargs = &f->default_kwargs;
    }
    if (status == OK)
        status = parser_reasoning_named(o->reasoning_parser ? o->reasoning_parser : "auto",
                                        &f->parser.reasoning, error);
    if (status == OK)
        status = parser_tools_named(o->tool_call_parser ? o->tool_call_parser : "auto",
                                    &f->parser.tools, error);
    if (status == OK && o->response_config) {
        status =
            read_object(f, o->response_config, "response template", &f->response_config, error);
        if (status == OK)
            status = parser_response_new(&f->response_config, &f->response, error);
        f->parser.response = f->response;
    }
    if (status == OK)
        parser_choose(&f->parser, source);
    return status;
}

static enum status open_http(struct frontend *f, struct error *error)
{
    struct http_options options = {
        .handler = routes_handle, .context = f, .cors_origin = f->options->cors_origin};
    http_limits_default(&options.limits);
    if (f->options->max_body_bytes) {
        options.limits.max_body_bytes = f->options->max_body_bytes;
        if (options.limits.max_body_total_bytes < 2 * f->options->max_body_bytes)
            options.limits.max_body_total_bytes = 2 * f->options->max_body_bytes;
    }
    enum status status = http_server_new(f->base, &options, &f->http, error);
    if (status == OK)
        status = http_server_listen(f->http, f->options->listen_fd, error);
    return status;
}

static enum status add_events(struct frontend *f, struct error *error)
{
    struct timeval period = {0, TICK_MS * 1000};
    f->mail = event_new(f->base, f->inbox.fd, EV_READ | EV_PERSIST, on_mail, f);
    f->life = event_new(f->base, f->options->life_fd, EV_READ | EV_PERSIST, on_life, f);
    f->tick = event_new(f->base, -1, EV_PERSIST, on_tick, f);
    f->term = evsignal_new(f->base, SIGTERM, on_term, f);
    f->flush = event_new(f->base, -1, 0, on_flush, f);
    if (!f->mail || !f->life || !f->tick || !f->term || !f->flush ||
        event_add(f->mail, NULL) != 0 || event_add(f->life, NULL) != 0 ||
        event_add(f->tick, &period) != 0 || event_add(f->term, NULL) != 0)
        return error_set(error, ERROR_IO, "the event loop cannot be set up");
    return OK;
}

static void free_event(struct event *event)
{
    if (event)
        event_free(event);
}

static void close_all(struct frontend *f)
{
    if (f->http)
        http_server_free(f->http); /* ends the calls that are left */
    free_event(f->mail);
    free_event(f->life);
    free_event(f->tick);
    free_event(f->term);
    free_event(f->flush);
    if (f->base)
        event_base_free(f->base);
    for (int i = 0; f->to_tokenizer && i < f->options->n_tokenizers; i++)
        outbox_close(&f->to_tokenizer[i]);
    outbox_close(&f->to_scheduler);
    inbox_close(&f->inbox);
    socket_context_free(f->zmq);
    free(f->to_tokenizer);
    free(f->is_stuck);
    uid_table_done(&f->waiters);
    parser_response_free(f->response);
    arena_done(&f->arena);
    board_close(f->board);
}

enum status server_run(const struct server_options *options, struct error *error)
{
    struct frontend f = {.options = options,
                         .started = system_seconds(),
                         .created = (long long)time(NULL),
                         .id_seed = system_random()};
    enum status status = read_options(&f, error);
    if (status == OK)
        status = open_boxes(&f, error);
    if (status == OK && !(f.base = event_base_new()))
        status = error_set(error, ERROR_IO, "the event loop cannot be made");
    if (status == OK)
        status = add_events(&f, error);
    if (status == OK)
        status = open_http(&f, error);
    if (status == OK) {
        f.youngest = board_youngest_start(f.board);
        process_trace_init(&f.trace, f.board, options->folder, "frontend");
        atomic_store(&f.board->state[ROLE_FRONTEND], PROCESS_READY);
        if (event_base_dispatch(f.base) < 0)
            status = error_set(error, ERROR_IO, "the event loop failed");
        frontend_end_profile(&f);
    }
    close_all(&f);
    return status;
}
