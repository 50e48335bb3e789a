/* The frontend process: OpenAI's endpoints and the other ones over HTTP, one event loop. It turns
 * requests into messages for the tokenizers, and the pieces that come back into answers. Knows no
 * model: what it says about one it reads from its options and from the board. */
#ifndef CSGL_SERVER_SERVER_H
#define CSGL_SERVER_SERVER_H

#include "base/error.h"

#include <stddef.h>

/* All pointers are borrowed until server_run returns. */
struct server_options {
    int listen_fd;                  /* a bound stream socket */
    int life_fd;                    /* its end of file means that the supervisor is gone */
    const char *folder;             /* run directory, with the board in it */
    const char *const *model_names; /* the served name, then its aliases */
    int n_model_names;              /* at least 1 */
    const char *model_path;
    const char *const *api_keys; /* none: everybody may ask */
    int n_api_keys;
    size_t max_body_bytes;        /* of one request; 0: the default of http_limits */
    const char *cors_origin;      /* NULL: off; "*" or one origin */
    const char *reasoning_parser; /* a name of parser.h; NULL is "auto" */
    const char *tool_call_parser;
    const char *chat_template_source; /* for "auto" and for reasoning_effort; NULL: none */
    /* A JSON object that may have response_template or response_schema, as tokenizer_config.json
     * does (that file's text will do); NULL: none. */
    const char *response_config;
    const char *default_template_kwargs; /* JSON object text, or NULL */
    int n_tokenizers;                    /* >= 1: inboxes "tokenizer.0" ... */
    int max_queue;                       /* requests that may wait; 0: no limit */
    const char *profile_path;            /* of the traces that /start_profile makes */
    int keep_alive_seconds;              /* between comments in an idle stream; 0: 15 */
};

/* Serves until life_fd is at its end or SIGTERM comes (OK), or something fails. */
enum status server_run(const struct server_options *options, struct error *error);

#endif
