#include "server/answer.h"

enum status answer_open(struct answer *answer, const struct parser_config *config,
                        struct bytes prompt_tail, const struct json *tools, struct error *error)
{
    return output_parser_new(config, prompt_tail.data, prompt_tail.n, tools, &answer->parser,
                             error);
}

void answer_done(struct answer *answer)
{
    output_parser_free(answer->parser);
    parser_message_done(&answer->message);
    *answer = (struct answer){0};
}

static void hand_on(const struct answer *answer, answer_sink sink, void *context)
{
    size_t n;
    const struct parser_event *events = output_parser_events(answer->parser, &n);
    if (n)
        sink(context, events, n);
}

static void plain_text(struct bytes text, answer_sink sink, void *context)
{
    struct parser_event event = {.type = PARSER_CONTENT, .text = text.data, .len = text.n};
    if (text.n)
        sink(context, &event, 1);
}

static enum status push(struct answer *answer, struct bytes text, bool is_control, answer_sink sink,
                        void *context, struct error *error)
{
    if (!text.n)
        return OK;
    enum status status = output_parser_push(answer->parser, text.data, text.n, is_control, error);
    if (status == OK)
        hand_on(answer, sink, context);
    return status;
}

enum status answer_push(struct answer *answer, const struct piece_message *m, answer_sink sink,
                        void *context, struct error *error)
{
    if (!answer->parser) {
        plain_text(m->text, sink, context);
        if (!m->is_special)
            plain_text(m->added, sink, context);
        return OK;
    }
    enum status status = push(answer, m->text, false, sink, context, error);
    if (status == OK)
        status = push(answer, m->added, m->is_special, sink, context, error);
    if (status == OK && m->finish != FINISH_NONE) {
        status = output_parser_finish(
            answer->parser, m->finish == FINISH_LENGTH ? PARSER_LENGTH : PARSER_STOP, error);
        if (status == OK)
            hand_on(answer, sink, context);
    }
    return status;
}

struct collector {
    struct answer *answer;
    enum status status;
    struct error *error;
};

static void collect(void *context, const struct parser_event *events, size_t n)
{
    struct collector *c = context;
    if (c->status == OK)
        c->status = parser_message_add(&c->answer->message, events, n, c->error);
}

enum status answer_collect(struct answer *answer, const struct piece_message *m,
                           struct error *error)
{
    struct collector c = {.answer = answer, .error = error};
    enum status status = answer_push(answer, m, collect, &c, error);
    return status == OK ? c.status : status;
}
