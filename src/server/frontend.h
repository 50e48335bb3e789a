/* Inside of the frontend process: what its files share. One thread owns all of it. */
#ifndef CSGL_SERVER_FRONTEND_H
#define CSGL_SERVER_FRONTEND_H

#include "message/board.h"
#include "message/process_trace.h"
#include "message/socket.h"
#include "parser/parser.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/request.h"
#include "server/uid_table.h"

struct call;
struct ask;

enum {
    RETRY_AFTER_SECONDS = 1,
    HEALTH_LIMIT_MS = 5000, /* of the scheduler's last sign of life */
    ID_BYTES = 16,          /* hexadecimal digits of random ids */
    REQUEST_ID_BYTES = 128  /* the longest x-request-id that is kept */
};

struct frontend {
    const struct server_options *options;
    struct event_base *base;
    struct http_server *http;
    struct board *board;
    struct process_trace trace;
    void *zmq;
    struct inbox inbox;
    struct outbox *to_tokenizer; /* [options->n_tokenizers] */
    struct outbox to_scheduler;
    bool *is_stuck; /* [n_tokenizers]: it does not drain its inbox */
    struct uid_table waiters;
    struct call *calls; /* all that have not ended, newest first */
    struct ask *asks;
    size_t n_unready;  /* choices whose prompt is not known to be ready */
    uint32_t youngest; /* start of a process; older requests are over */
    uint32_t n_uids;
    int next_tokenizer;
    uint64_t id_seed;
    char request_id[REQUEST_ID_BYTES + 1]; /* of the request whose handler runs */
    struct metrics metrics;
    struct parser_config parser; /* without AUTO */
    struct parser_response *response;
    struct request_setup setup;
    struct arena arena; /* of the options' JSON */
    struct json default_kwargs, response_config;
    struct event *flush; /* sends what was put into outboxes, at the end of an iteration */
    struct event *mail, *tick, *life, *term;
    double last_keep_alive;
    double started;    /* system_seconds */
    long long created; /* of the served model, as far as clients are told: the start, unix time */
    double stop_until; /* 0: not stopping */
};

/* --- server.c --------------------------------------------------------------------------------- */

/* A uid of the present epoch. */
uint64_t frontend_new_uid(struct frontend *f);

/* The process states allow a new request; otherwise 503 with a sentence. */
enum status frontend_check_ready(struct frontend *f, struct refusal *refusal);

/* Takes the next tokenizer's turn; its index. */
int frontend_pick_tokenizer(struct frontend *f);

/* False if the message is too large or there is no memory. It leaves at the iteration's end. */
bool frontend_send(struct frontend *f, struct outbox *outbox, uint32_t epoch,
                   const struct message *message);

/* Hexadecimal digits that no client guesses and that do not repeat. */
void frontend_random_id(struct frontend *f, char out[ID_BYTES + 1]);

/* Why the service is not healthy, in a few words, or NULL if it is. */
const char *frontend_trouble(const struct frontend *f);

/* --- routes.c --------------------------------------------------------------------------------- */

/* http_handler; `context` is the frontend. */
void routes_handle(void *context, struct http_request *request);

/* --- handlers: each answers, or begins to ----------------------------------------------------- */

typedef void (*route_handler)(struct frontend *f, struct http_request *request);

void chat_handle(struct frontend *f, struct http_request *request);
void completions_handle(struct frontend *f, struct http_request *request);
void generate_handle(struct frontend *f, struct http_request *request);
void models_handle(struct frontend *f, struct http_request *request);
void model_handle(struct frontend *f, struct http_request *request);
void health_handle(struct frontend *f, struct http_request *request);
void metrics_handle(struct frontend *f, struct http_request *request);
void version_handle(struct frontend *f, struct http_request *request);
void root_handle(struct frontend *f, struct http_request *request);
void page_handle(struct frontend *f, struct http_request *request);
void model_info_handle(struct frontend *f, struct http_request *request);
void server_info_handle(struct frontend *f, struct http_request *request);
void tokenize_handle(struct frontend *f, struct http_request *request);
void detokenize_handle(struct frontend *f, struct http_request *request);
void flush_handle(struct frontend *f, struct http_request *request);
void abort_handle(struct frontend *f, struct http_request *request);
void start_profile_handle(struct frontend *f, struct http_request *request);
void stop_profile_handle(struct frontend *f, struct http_request *request);

/* --- profile.c -------------------------------------------------------------------------------- */

/* Begins or ends recording as the board says; writes a profile that has ended. */
void frontend_follow_profile(struct frontend *f);
/* The server stops: a profile that is being made is written. */
void frontend_end_profile(struct frontend *f);

/* --- ask.c: one question to a worker, one answer ---------------------------------------------- */

void ask_on_text_result(struct ask *ask, const struct text_result_message *m);
void ask_on_flushed(struct ask *ask);
/* Ends all with 503: a process was lost. */
void asks_fail(struct frontend *f, const char *message);

#endif
