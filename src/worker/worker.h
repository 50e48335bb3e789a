/* The tokenizer and detokenizer processes. A tokenizer renders and encodes prompts, answers the
 * frontend and passes requests on; a detokenizer turns drawn tokens into text. One process may be
 * both. Knows no model and no HTTP. */
#ifndef CSGL_WORKER_WORKER_H
#define CSGL_WORKER_WORKER_H

#include "message/board.h"
#include "message/socket.h"
#include "template/chat_template.h"
#include "tokenizer/encoder.h"
#include "tokenizer/tokenizer.h"

/* What the workers need of a model; all borrowed. */
struct worker_model {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: none */
    const struct chat_template *tool_template; /* NULL: chat_template */
    const struct chat_token *tokens;
    size_t n_tokens;
    /* For what a request leaves open: generation_config.json. */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k;
};

struct worker_options {
    const char *folder; /* run directory */
    enum board_role role;
    int tokenizer_index; /* -1: no tokenizer */
    bool is_detokenizer;
    int life_fd; /* its end of file means that the supervisor is gone */
};

/* Runs until the supervisor is gone (OK) or something fails. */
enum status worker_run(const struct worker_options *options, const struct worker_model *model,
                       struct error *error);

#endif
