/* A whole message from events: what a reply that is not streamed shows. */
#include "parser/parser.h"

#include <stdlib.h>

static struct parser_call *add_call(struct parser_message *m)
{
    if (m->n_calls == m->calls_cap) {
        size_t cap = m->calls_cap ? m->calls_cap * 2 : 4;
        struct parser_call *calls = realloc(m->calls, cap * sizeof *calls);
        if (!calls)
            return NULL;
        m->calls = calls;
        m->calls_cap = cap;
    }
    struct parser_call *call = &m->calls[m->n_calls++];
    *call = (struct parser_call){0};
    return call;
}

enum status parser_message_add(struct parser_message *m, const struct parser_event *events,
                               size_t n, struct error *error)
{
    bool failed = false;
    for (size_t i = 0; i < n && !failed; i++) {
        const struct parser_event *event = &events[i];
        struct parser_call *call = event->call < m->n_calls ? &m->calls[event->call] : NULL;
        struct str *to = NULL;
        switch (event->type) {
        case PARSER_REASONING:
            to = &m->reasoning;
            break;
        case PARSER_CONTENT:
            to = &m->content;
            break;
        case PARSER_CALL_BEGIN:
            call = add_call(m);
            to = call ? &call->name : NULL;
            break;
        case PARSER_CALL_ARGUMENTS:
            to = call ? &call->arguments : NULL;
            break;
        case PARSER_CALL_END:
            if (call) {
                call->is_ended = true;
                call->is_valid = event->is_valid;
            }
            continue;
        }
        if (to)
            str_append(to, event->text, event->len);
        failed = !to || to->failed;
    }
    return failed ? error_memory(error, m->content.len + m->reasoning.len) : OK;
}

void parser_message_done(struct parser_message *m)
{
    for (size_t i = 0; i < m->n_calls; i++) {
        str_done(&m->calls[i].name);
        str_done(&m->calls[i].arguments);
    }
    free(m->calls);
    str_done(&m->reasoning);
    str_done(&m->content);
    *m = (struct parser_message){0};
}
