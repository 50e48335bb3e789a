/* For the tests of the frontend: the frontend on a thread of its own in a run directory, another
 * thread that plays the tokenizer and the scheduler, and a blocking HTTP client. */
#ifndef CSGL_TESTS_UNIT_SERVER_PEER_H
#define CSGL_TESTS_UNIT_SERVER_PEER_H

#include "base/json.h"
#include "message/board.h"
#include "message/socket.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PEER_PATIENCE_MS = 20000, PEER_MAX_PIECES = 32 };

/* What a token of the script is. */
struct peer_piece {
    const char *text, *added;
    bool is_special;
};

/* How the peer answers prompts until the script changes. Zero: an answer of no text. */
struct peer_script {
    int status; /* of prompt_ready; 0: 200 */
    const char *error, *code, *tail;
    struct peer_piece pieces[PEER_MAX_PIECES];
    int n_pieces;
    int n_repeats;   /* the pieces so many times; 0: once */
    int finish;      /* 0: FINISH_STOP with a silent last token */
    int http_status; /* of FINISH_ERROR */
    bool is_early;   /* the pieces overtake prompt_ready */
    bool is_silent;  /* nothing after prompt_ready */
    bool is_deaf;    /* not even prompt_ready */
};

struct peer {
    char folder[64];
    int listen_fd, port, life[2];
    struct server_options options;
    struct board *board;
    void *zmq;
    struct inbox inboxes[2]; /* tokenizer.0, scheduler */
    struct outbox to_frontend;
    pthread_t server, thread;
    pthread_mutex_t lock; /* guards to_frontend and what follows */
    struct peer_script script;
    struct str text, tools, kwargs; /* of the last prompt */
    struct prompt_message settings; /* ... its numbers; no pointer in it is valid */
    float first_bias;
    char first_stop[64];
    int n_prompts, n_cancels, n_flushes;
    uint64_t last_uid;
    bool is_done;
    enum status server_status;
    struct error server_error;
};

static inline double peer_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline struct bytes peer_bytes(const char *text)
{
    return (struct bytes){text, (uint32_t)(text ? strlen(text) : 0)};
}

/* --- the peer --------------------------------------------------------------------------------- */

static inline void peer_send(struct peer *p, uint64_t uid, const struct message *m)
{
    if (!outbox_add(&p->to_frontend, uid_epoch(uid), m))
        fprintf(stderr, "the peer cannot send\n");
}

/* One token; alternatives are the token itself and "?". */
static inline void peer_send_piece(struct peer *p, uint64_t uid, const struct peer_piece *piece,
                                   int32_t id, enum finish_reason finish, int n_output, int n_top)
{
    static const char other[] = "?";
    struct bytes token =
        piece->text && *piece->text ? peer_bytes(piece->text) : peer_bytes(piece->added);
    struct bytes tops[2] = {token, peer_bytes(other)};
    int32_t ids[2] = {id, 1};
    float logprobs[2] = {-0.25f, -1.5f};
    uint32_t n = (uint32_t)(n_top > 2 ? 2 : n_top < 0 ? 0 : n_top);
    struct message m = {.type = MESSAGE_piece};
    m.piece =
        (struct piece_message){.uid = uid,
                               .text = peer_bytes(piece->text),
                               .added = peer_bytes(piece->added),
                               .is_special = piece->is_special,
                               .id = id,
                               .token = token,
                               .logprob = -0.25,
                               .top_ids = {ids, n},
                               .top_logprobs = {logprobs, n},
                               .top_tokens = {tops, n},
                               .finish = (uint8_t)finish,
                               .error = peer_bytes(finish == FINISH_ERROR ? "it broke" : ""),
                               .http_status = finish == FINISH_ERROR ? p->script.http_status : 0,
                               .n_prompt = 7,
                               .n_cached = 3,
                               .n_output = n_output,
                               .queue_seconds = 0.001,
                               .prefill_seconds = 0.5,
                               .decode_seconds = 0.25};
    peer_send(p, uid, &m);
}

static inline void peer_ready(struct peer *p, uint64_t uid)
{
    const struct peer_script *s = &p->script;
    struct message m = {.type = MESSAGE_prompt_ready};
    m.prompt_ready = (struct prompt_ready_message){.uid = uid,
                                                   .http_status = s->status ? s->status : 200,
                                                   .code = peer_bytes(s->code),
                                                   .error = peer_bytes(s->error),
                                                   .n_tokens = 7,
                                                   .tail = peer_bytes(s->tail)};
    peer_send(p, uid, &m);
}

static inline void peer_pieces(struct peer *p, uint64_t uid, int n_top)
{
    const struct peer_script *s = &p->script;
    static const struct peer_piece nothing = {"", "", false};
    int n = s->n_pieces * (s->n_repeats ? s->n_repeats : 1);
    for (int i = 0; i < n; i++) {
        bool is_last = i == n - 1 && s->finish == FINISH_LENGTH;
        peer_send_piece(p, uid, &s->pieces[i % s->n_pieces], 100 + i,
                        is_last ? FINISH_LENGTH : FINISH_NONE, i + 1, n_top);
    }
    if (s->finish != FINISH_LENGTH)
        peer_send_piece(p, uid, &nothing, s->finish == FINISH_ERROR ? -1 : 2,
                        s->finish ? (enum finish_reason)s->finish : FINISH_STOP, n + 1, n_top);
}

static inline void peer_on_prompt(struct peer *p, const struct prompt_message *m)
{
    const struct peer_script *s = &p->script;
    p->n_prompts++;
    p->last_uid = m->uid;
    p->settings = *m;
    str_clear(&p->text);
    str_clear(&p->tools);
    str_clear(&p->kwargs);
    str_append(&p->text, m->text.data, m->text.n);
    str_append(&p->tools, m->tools.data, m->tools.n);
    str_append(&p->kwargs, m->kwargs.data, m->kwargs.n);
    p->first_bias = m->bias_values.n ? m->bias_values.items[0] : 0;
    snprintf(p->first_stop, sizeof p->first_stop, "%.*s", m->stop.n ? (int)m->stop.items[0].n : 0,
             m->stop.n ? m->stop.items[0].data : "");
    if (s->is_deaf)
        return;
    if (s->is_early)
        peer_pieces(p, m->uid, m->n_logprobs);
    peer_ready(p, m->uid);
    if (!s->is_early && !s->is_silent && (s->status == 0 || s->status == 200))
        peer_pieces(p, m->uid, m->n_logprobs);
}

static inline void peer_on_text(struct peer *p, uint64_t uid, const char *text)
{
    static const int32_t ids[] = {11, 12};
    struct bytes tokens[] = {peer_bytes("he"), peer_bytes("llo")};
    struct message m = {.type = MESSAGE_text_result};
    m.text_result = (struct text_result_message){.uid = uid,
                                                 .http_status = 200,
                                                 .ids = {ids, 2},
                                                 .text = peer_bytes(text),
                                                 .tokens = {tokens, 2}};
    peer_send(p, uid, &m);
}

static inline void peer_on_message(struct peer *p, const struct message *m)
{
    struct message flushed = {.type = MESSAGE_flushed};
    switch (m->type) {
    case MESSAGE_prompt:
        peer_on_prompt(p, &m->prompt);
        break;
    case MESSAGE_cancel:
        p->n_cancels++;
        break;
    case MESSAGE_tokenize:
        peer_on_text(p, m->tokenize.uid, "");
        break;
    case MESSAGE_detokenize:
        peer_on_text(p, m->detokenize.uid, "hello");
        break;
    case MESSAGE_flush:
        p->n_flushes++;
        flushed.flushed.uid = m->flush.uid;
        peer_send(p, m->flush.uid, &flushed);
        break;
    default:
        break;
    }
}

static inline void peer_read(struct peer *p, struct inbox_frame *frame)
{
    struct arena arena = {0};
    struct frame_reader reader;
    struct message m;
    struct error error;
    enum status status = frame_open(&reader, frame->data, frame->bytes, &arena, &error);
    pthread_mutex_lock(&p->lock);
    while (status == OK && frame_next(&reader, &m, &status, &error))
        peer_on_message(p, &m);
    pthread_mutex_unlock(&p->lock);
    arena_done(&arena);
}

static inline void *peer_main(void *context)
{
    struct peer *p = context;
    struct inbox_frame frame = {0};
    for (;;) {
        pthread_mutex_lock(&p->lock);
        bool is_done = p->is_done;
        pthread_mutex_unlock(&p->lock);
        if (is_done)
            break;
        atomic_store(&p->board->scheduler_heartbeat, (uint64_t)(peer_seconds() * 1e9));
        for (int i = 0; i < 2; i++)
            while (inbox_receive(&p->inboxes[i], &frame))
                peer_read(p, &frame);
        pthread_mutex_lock(&p->lock);
        outbox_flush(&p->to_frontend);
        bool is_behind = p->to_frontend.n_waiting > 0;
        pthread_mutex_unlock(&p->lock);
        socket_wait(p->inboxes, 2, -1, is_behind ? 1 : 5);
    }
    inbox_frame_done(&frame);
    return NULL;
}

static inline void *peer_serve(void *context)
{
    struct peer *p = context;
    p->server_status = server_run(&p->options, &p->server_error);
    return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

static inline void peer_set_ready(struct peer *p)
{
    static const int roles[] = {ROLE_SCHEDULER, ROLE_DETOKENIZER, ROLE_TOKENIZER};
    atomic_store(&p->board->state[ROLE_FRONTEND], PROCESS_STARTING);
    atomic_store(&p->board->generation, 1);
    for (int i = 0; i < 3; i++) {
        atomic_store(&p->board->state[roles[i]], PROCESS_READY);
        atomic_store(&p->board->started_at[roles[i]], 1);
    }
    atomic_store(&p->board->context_length, 4096);
    atomic_store(&p->board->vocab_size, 1000);
    atomic_store(&p->board->scheduler_heartbeat, (uint64_t)(peer_seconds() * 1e9));
}

static inline void peer_listen(struct peer *p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    p->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(0, bind(p->listen_fd, (struct sockaddr *)&address, sizeof address));
    assert_int_equal(0, getsockname(p->listen_fd, (struct sockaddr *)&address, &n));
    p->port = ntohs(address.sin_port);
}

/* `options` may set what the peer does not: NULL is all defaults. Ends with peer_stop. */
static inline struct peer *peer_start(const struct server_options *options)
{
    static const char *const names[] = {"org/tiny-model", "alias"};
    struct error error;
    struct peer *p = calloc(1, sizeof *p);
    assert_non_null(p);
    snprintf(p->folder, sizeof p->folder, "/tmp/csgl-test-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    pthread_mutex_init(&p->lock, NULL);
    peer_listen(p);
    assert_int_equal(0, pipe(p->life));
    assert_int_equal(OK, board_create(&p->board, p->folder, &error));
    peer_set_ready(p);
    assert_int_equal(OK, socket_context_new(&p->zmq, &error));
    assert_int_equal(OK, inbox_open(&p->inboxes[0], p->zmq, p->folder, "tokenizer.0", &error));
    assert_int_equal(OK, inbox_open(&p->inboxes[1], p->zmq, p->folder, "scheduler", &error));
    assert_int_equal(
        OK, outbox_open(&p->to_frontend, p->zmq, p->folder, "frontend", 1024, 256 << 20, &error));
    if (options)
        p->options = *options;
    p->options.listen_fd = p->listen_fd;
    p->options.life_fd = p->life[0];
    p->options.folder = p->folder;
    p->options.model_names = names;
    p->options.n_model_names = 2;
    p->options.model_path = "/models/tiny";
    p->options.n_tokenizers = 1;
    assert_int_equal(0, pthread_create(&p->thread, NULL, peer_main, p));
    assert_int_equal(0, pthread_create(&p->server, NULL, peer_serve, p));
    for (double end = peer_seconds() + 10;
         atomic_load(&p->board->state[ROLE_FRONTEND]) != PROCESS_READY && peer_seconds() < end;)
        usleep(1000);
    return p;
}

static inline void peer_stop(struct peer *p)
{
    static const char *const files[] = {"board", "frontend", "tokenizer.0", "scheduler"};
    char path[128];
    close(p->life[1]);
    pthread_join(p->server, NULL);
    pthread_mutex_lock(&p->lock);
    p->is_done = true;
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    if (p->server_status != OK)
        fprintf(stderr, "server_run: %s\n", p->server_error.message);
    enum status status = p->server_status;
    close(p->life[0]);
    close(p->listen_fd);
    inbox_close(&p->inboxes[0]);
    inbox_close(&p->inboxes[1]);
    outbox_close(&p->to_frontend);
    socket_context_free(p->zmq);
    board_close(p->board);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", p->folder, files[i]);
        unlink(path);
    }
    rmdir(p->folder);
    str_done(&p->text);
    str_done(&p->tools);
    str_done(&p->kwargs);
    pthread_mutex_destroy(&p->lock);
    free(p);
    assert_int_equal(OK, status);
}

static inline void peer_play(struct peer *p, const struct peer_script *script)
{
    pthread_mutex_lock(&p->lock);
    p->script = *script;
    pthread_mutex_unlock(&p->lock);
}

/* Waits until the counter has this value; false if it never does. */
static inline bool peer_wait_count(struct peer *p, const int *counter, int value)
{
    for (double end = peer_seconds() + 10; peer_seconds() < end;) {
        pthread_mutex_lock(&p->lock);
        bool is_there = *counter >= value;
        pthread_mutex_unlock(&p->lock);
        if (is_there)
            return true;
        usleep(1000);
    }
    return false;
}

/* --- the client ------------------------------------------------------------------------------- */

struct answer_text {
    int status;
    struct str head, body; /* the body without its chunks' frames */
    struct arena arena;
    struct json json; /* of the body if it is JSON */
};

static inline int client_connect(const struct peer *p)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)p->port)};
    struct timeval patience = {PEER_PATIENCE_MS / 1000, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(0, connect(fd, (struct sockaddr *)&address, sizeof address));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static inline void client_send(int fd, const char *method, const char *path, const char *headers,
                               const char *body)
{
    struct str out = {0};
    str_printf(&out, "%s %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%s", method, path,
               headers ? headers : "");
    if (body)
        str_printf(&out, "content-length: %zu\r\n\r\n%s", strlen(body), body);
    else
        str_append_z(&out, "\r\n");
    for (size_t at = 0; at < out.len;) {
        ssize_t n = send(fd, out.data + at, out.len - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    str_done(&out);
}

static inline void client_unchunk(struct str *body)
{
    struct str plain = {0};
    for (const char *at = str_z(body); *at;) {
        char *end;
        size_t n = strtoul(at, &end, 16);
        if (n == 0 || end[0] != '\r')
            break;
        str_append(&plain, end + 2, n);
        at = end + 2 + n + 2;
    }
    str_done(body);
    *body = plain;
}

static inline struct answer_text client_receive(int fd)
{
    struct answer_text answer = {0};
    struct str all = {0};
    char buffer[65536];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
        str_append(&all, buffer, (size_t)n);
    close(fd);
    const char *end = all.len ? strstr(all.data, "\r\n\r\n") : NULL;
    assert_non_null(end);
    str_append(&answer.head, all.data, (size_t)(end - all.data));
    str_append(&answer.body, end + 4, all.len - (size_t)(end + 4 - all.data));
    sscanf(answer.head.data, "HTTP/1.1 %d", &answer.status);
    if (strstr(answer.head.data, "transfer-encoding: chunked"))
        client_unchunk(&answer.body);
    else if (strstr(answer.head.data, "application/json"))
        assert_int_equal(OK, json_parse(&answer.arena, str_z(&answer.body), answer.body.len,
                                        &answer.json, NULL));
    str_done(&all);
    return answer;
}

/* What either side noted before is seen by the other after. */
static inline void peer_settle(struct peer *p)
{
    pthread_mutex_lock(&p->lock);
    pthread_mutex_unlock(&p->lock);
}

static inline struct answer_text client_ask(struct peer *p, const char *method, const char *path,
                                            const char *body)
{
    peer_settle(p);
    int fd = client_connect(p);
    client_send(fd, method, path, NULL, body);
    struct answer_text answer = client_receive(fd);
    peer_settle(p);
    return answer;
}

static inline void answer_text_done(struct answer_text *answer)
{
    str_done(&answer->head);
    str_done(&answer->body);
    arena_done(&answer->arena);
}

/* A value by a path of keys and indices: "choices.0.message". */
static inline const struct json *json_at(const struct json *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        if (value->type == JT_ARRAY) {
            size_t i = strtoul(key, NULL, 10);
            value = i < value->n ? &value->items[i] : NULL;
        } else {
            value = json_get(value, key);
        }
        path += n + (path[n] == '.');
    }
    return value;
}

/* The events of a stream, one after the other: false at [DONE]; `out` lies in the arena. */
static inline bool stream_next(const char **at, struct arena *arena, struct json *out)
{
    while (strncmp(*at, ": ", 2) == 0) /* comments */
        *at = strstr(*at, "\n\n") + 2;
    assert_int_equal(0, strncmp(*at, "data: ", 6));
    const char *end = strstr(*at, "\n\n");
    assert_non_null(end);
    const char *start = *at + 6;
    *at = end + 2;
    if (strncmp(start, "[DONE]", 6) == 0)
        return false;
    assert_int_equal(OK, json_parse(arena, start, (size_t)(end - start), out, NULL));
    return true;
}

#endif
