/* What a choice says: pieces of text through the parser, or plain. */
#ifndef CSGL_SERVER_ANSWER_H
#define CSGL_SERVER_ANSWER_H

#include "message/message.h"
#include "parser/parser.h"

/* Zero-initialise; answer_open for a parser; answer_done. */
struct answer {
    struct output_parser *parser;  /* NULL: all text is content */
    struct parser_message message; /* of a whole answer: what was said so far */
};

/* `tools` (NULL: none) is borrowed until answer_done. */
enum status answer_open(struct answer *answer, const struct parser_config *config,
                        struct bytes prompt_tail, const struct json *tools, struct error *error);
void answer_done(struct answer *answer);

/* Receives events in order, some at a time. */
typedef void (*answer_sink)(void *context, const struct parser_event *events, size_t n);

/* Hands on what the piece says, and at its end what was held back. */
enum status answer_push(struct answer *answer, const struct piece_message *m, answer_sink sink,
                        void *context, struct error *error);

/* The same, into answer->message. */
enum status answer_collect(struct answer *answer, const struct piece_message *m,
                           struct error *error);

#endif
