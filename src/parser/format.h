/* What parser.c asks of a format. `state` is the format's own struct. */
#ifndef CSGL_PARSER_FORMAT_H
#define CSGL_PARSER_FORMAT_H

#include "parser/emitter.h"

/* What a format is made from; all borrowed until it is freed. */
struct format_setup {
    const struct parser_config *config;
    const struct json *tools; /* NULL if the request has none */
    const char *tail;         /* valid UTF-8; borrowed for `make` only */
    size_t tail_len;
    size_t max_bytes; /* that may be held */
};

struct format {
    enum status (*make)(const struct format_setup *setup, struct emitter *e, void **state,
                        struct error *error);
    /* Valid UTF-8, cut at characters. */
    enum status (*text)(void *state, struct emitter *e, const char *text, size_t len,
                        struct error *error);
    /* One control token. */
    enum status (*control)(void *state, struct emitter *e, const char *text, size_t len,
                           struct error *error);
    enum status (*finish)(void *state, struct emitter *e, enum parser_reason reason,
                          struct error *error);
    void (*free)(void *state);
};

extern const struct format format_tagged;   /* <think> tags with calls of call.h */
extern const struct format format_harmony;  /* gpt-oss */
extern const struct format format_template; /* response_template */
extern const struct format format_schema;   /* response_schema */

/* ERROR_LIMIT if `held` exceeds `max`. */
enum status format_check_held(size_t held, size_t max, struct error *error);

#endif
