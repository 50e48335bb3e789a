/* One HTTP request to generate, from its fields to its last byte: the choices it asked for, what
 * came back of each, and the rules for its end. The endpoints give it its form. */
#ifndef CSGL_SERVER_CALL_H
#define CSGL_SERVER_CALL_H

#include "server/answer.h"
#include "server/frontend.h"

struct call;

/* One answer in the making. */
struct choice {
    struct waiter waiter; /* first: its uid */
    struct call *call;
    int32_t index;
    size_t prompt; /* which of the request's prompts */
    bool is_ready; /* its prompt is known to be good */
    bool is_done;
    enum finish_reason finish;
    int32_t n_prompt, n_cached, n_output;
    double queue_seconds, prefill_seconds, decode_seconds;
    double first_at, last_at; /* when tokens came; 0: not yet */
    struct str early;         /* a frame: pieces that overtook prompt_ready */
    struct answer answer;
    struct str logprobs[4]; /* whole answers: what the endpoint collects */
    int64_t n_chars;        /* of the text so far, for text_offset */
    size_t n_logprobs;
};

/* How an endpoint writes. All append to `out`; what they append is sent, or kept until the head may
 * be sent. */
struct call_form {
    enum api api;
    enum endpoint endpoint; /* in metrics */
    const char *id_prefix;  /* "chatcmpl-" */
    const char *object;     /* of a stream's events; NULL: they have no head */
    bool has_parser;
    /* A stream: its beginning, one piece (text, and the end if it is the last), its end. */
    void (*begin)(struct call *call, struct str *out);
    void (*piece)(struct call *call, struct choice *choice, const struct piece_message *m,
                  struct str *out);
    void (*end)(struct call *call, struct str *out);
    /* A whole answer: collects a piece; writes it all. */
    void (*collect)(struct call *call, struct choice *choice, const struct piece_message *m);
    void (*reply)(struct call *call, struct str *out);
    /* An error within a stream, as an event. */
    void (*error)(struct call *call, int http_status, const char *code, const char *message,
                  struct str *out);
};

struct call {
    struct frontend *frontend;
    struct http_request *http;
    const struct call_form *form;
    struct call *next, *previous;
    struct choice *choices; /* [n_choices], by prompt, then by n */
    size_t n_choices, n_prompts, n_ready, n_done;
    int tokenizer;
    bool is_stream, include_usage, has_logprobs, is_sglang, has_begun;
    bool has_failed; /* a form met an error it could not pass on: call->error says which */
    struct error error;
    char id[ID_BYTES + 48];
    char request_id[REQUEST_ID_BYTES + 1];
    uint64_t tool_seed;
    long long created; /* unix time */
    double began, last_write;
    struct str head;          /* of each event, up to the choice's index */
    size_t head_common;       /* bytes of it before the choice begins */
    struct str pending;       /* events before the stream has begun */
    struct str scratch;       /* what one piece writes */
    struct str text;          /* for the forms */
    struct str *echoes;       /* [n_prompts] or NULL */
    struct arena tools_arena; /* the request's tools, for the parsers */
    struct json tools;
    bool has_tools;
};

/* The handler of an endpoint: reads the request, sends its prompts, and answers when they do. */
void call_handle(struct frontend *f, struct http_request *request, const struct call_form *form);

/* Puts a call whose prompts were sent on the frontend's list; from now on it lives by itself. */
void call_attach(struct call *call);
/* Takes a call back that was not attached; what was sent of it is cancelled. */
void call_discard(struct call *call);

/* --- from server.c ---------------------------------------------------------------------------- */

void call_on_prompt_ready(struct choice *choice, const struct prompt_ready_message *m);
void call_on_piece(struct choice *choice, const struct piece_message *m);
/* All calls end with this error; the tokenizers are told if `cancels`. */
void calls_fail(struct frontend *f, int http_status, const char *code, const char *message,
                bool cancels);
/* Comments into streams that were silent for long, heads to those whose first token takes long. */
void calls_keep_alive(struct frontend *f, double now);
/* Ends the calls with this request id or answer id (NULL: all); how many. */
size_t calls_abort(struct frontend *f, const char *id);

/* --- for the forms ---------------------------------------------------------------------------- */

/* "call_..." of a tool call; stable. */
void call_tool_id(const struct call *call, const struct choice *choice, size_t index,
                  char out[ID_BYTES + 6]);

/* "stop", "length" or "tool_calls". */
const char *call_finish_reason(const struct choice *choice);

/* A form's way to say that it cannot go on; the call ends when it returns. */
void call_break(struct call *call, const struct error *error);

#endif
