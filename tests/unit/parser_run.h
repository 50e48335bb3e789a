/* Runs the output parser over a text cut into pieces, and collects the message while checking that
 * the events follow their rules. */
#ifndef CSGL_TESTS_PARSER_RUN_H
#define CSGL_TESTS_PARSER_RUN_H

#include "parser/parser.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct parser_run {
    const struct parser_config *config;
    const struct json *tools;
    const char *tail, *text;
    size_t tail_len, text_len;
    enum parser_reason reason;
    bool has_control; /* <|name|> in the text is a control token, and one piece */
};

/* The control token at `text`: its length, or 0. */
static inline size_t control_token(const char *text, size_t len)
{
    if (len < 5 || memcmp(text, "<|", 2) != 0)
        return 0;
    size_t n = 2;
    while (n < len && n < 40 && ((text[n] >= 'a' && text[n] <= 'z') || text[n] == '_'))
        n++;
    return n > 2 && n + 1 < len && text[n] == '|' && text[n + 1] == '>' ? n + 2 : 0;
}

/* Adds the events to the message. NULL, or the rule that they break. */
static inline const char *collect(const struct output_parser *parser, struct parser_message *m)
{
    size_t n;
    const struct parser_event *events = output_parser_events(parser, &n);
    for (size_t i = 0; i < n; i++) {
        const struct parser_event *e = &events[i];
        bool is_delta = e->type != PARSER_CALL_BEGIN && e->type != PARSER_CALL_END;
        if (is_delta && !e->len)
            return "a delta is empty";
        for (size_t k = 0; k < e->len;) {
            size_t bytes = utf8_sequence(e->text + k, e->len - k);
            if (!bytes)
                return "a delta is not whole UTF-8 characters";
            k += bytes;
        }
        if (e->type == PARSER_CALL_BEGIN && (e->call != m->n_calls || !e->len))
            return "a call begins out of order or without a name";
        if ((e->type == PARSER_CALL_ARGUMENTS || e->type == PARSER_CALL_END) &&
            (e->call + 1 != m->n_calls || m->calls[e->call].is_ended))
            return "an event belongs to a call that is not open";
        if (parser_message_add(m, e, 1, NULL) != OK)
            return "out of memory";
        if (e->type == PARSER_CALL_END && e->is_valid) {
            struct arena arena = {0};
            struct json tree;
            const struct str *arguments = &m->calls[e->call].arguments;
            enum status status = json_parse(&arena, str_z(arguments), arguments->len, &tree, NULL);
            bool is_object = status == OK && tree.type == JT_OBJECT;
            arena_done(&arena);
            if (!is_object)
                return "arguments that are called valid are no JSON object";
        }
    }
    return NULL;
}

static inline uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Pieces of 1 to `max` bytes, random from `seed`; max 0: one piece. NULL, or what went wrong (in
 * `error` if the parser says so). */
static inline const char *run_parser(const struct parser_run *run, size_t max, uint32_t seed,
                                     struct parser_message *m, struct error *error)
{
    struct output_parser *parser;
    if (output_parser_new(run->config, run->tail, run->tail_len, run->tools, &parser, error) != OK)
        return "output_parser_new fails";
    const char *wrong = NULL;
    for (size_t at = 0; at < run->text_len && !wrong;) {
        size_t left = run->text_len - at;
        size_t control = run->has_control ? control_token(run->text + at, left) : 0;
        size_t n = max ? 1 + next_random(&seed) % max : left;
        n = control ? control : n < left ? n : left;
        for (size_t i = 1; i < n && run->has_control && !control; i++)
            if (control_token(run->text + at + i, left - i))
                n = i;
        /* Of its exact size, so that a read behind it shows. */
        char *piece = malloc(n);
        memcpy(piece, run->text + at, n);
        if (output_parser_push(parser, piece, n, control > 0, error) != OK)
            wrong = "output_parser_push fails";
        free(piece);
        if (!wrong)
            wrong = collect(parser, m);
        at += n;
    }
    if (!wrong && output_parser_finish(parser, run->reason, error) != OK)
        wrong = "output_parser_finish fails";
    if (!wrong)
        wrong = collect(parser, m);
    size_t n_ended = 0;
    for (size_t i = 0; i < m->n_calls; i++)
        n_ended += m->calls[i].is_ended;
    if (!wrong && n_ended != output_parser_n_ended_calls(parser))
        wrong = "the count of ended calls is wrong";
    output_parser_free(parser);
    return wrong;
}

static inline bool same_text(const struct str *a, const struct str *b)
{
    return a->len == b->len && memcmp(str_z(a), str_z(b), a->len) == 0;
}

static inline bool same_message(const struct parser_message *a, const struct parser_message *b)
{
    bool same = same_text(&a->reasoning, &b->reasoning) && same_text(&a->content, &b->content) &&
                a->n_calls == b->n_calls;
    for (size_t i = 0; i < a->n_calls && same; i++)
        same = same_text(&a->calls[i].name, &b->calls[i].name) &&
               same_text(&a->calls[i].arguments, &b->calls[i].arguments) &&
               a->calls[i].is_ended == b->calls[i].is_ended &&
               a->calls[i].is_valid == b->calls[i].is_valid;
    return same;
}

/* One line of JSON, for messages of the tests. */
static inline void describe(const struct parser_message *m, struct str *out)
{
    str_append_z(out, "{\"reasoning\": ");
    json_write_string(out, str_z(&m->reasoning), m->reasoning.len);
    str_append_z(out, ", \"content\": ");
    json_write_string(out, str_z(&m->content), m->content.len);
    str_append_z(out, ", \"calls\": [");
    for (size_t i = 0; i < m->n_calls; i++) {
        const struct parser_call *call = &m->calls[i];
        str_append_z(out, i ? ", {\"name\": " : "{\"name\": ");
        json_write_string(out, str_z(&call->name), call->name.len);
        str_append_z(out, ", \"arguments\": ");
        json_write_string(out, str_z(&call->arguments), call->arguments.len);
        str_append_z(out, call->is_ended ? call->is_valid ? "}" : ", \"valid\": false}"
                                         : ", \"ended\": false}");
    }
    str_append_z(out, "]}");
}

#endif
