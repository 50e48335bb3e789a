/* The parser's frame: picks the format, feeds it whole characters, hands out its events. */
#include "parser/format.h"
#include "parser/response.h"

#include <stdlib.h>
#include <string.h>

struct output_parser {
    const struct format *format;
    void *state;
    struct emitter emitter;
    struct parser_config config;
    struct str partial; /* the start of a character whose rest has not come */
    struct str clean;   /* scratch: a piece as valid UTF-8 */
};

enum status format_check_held(size_t held, size_t max, struct error *error)
{
    if (held <= max)
        return OK;
    return error_set(error, ERROR_LIMIT,
                     "the output parser would have to hold %zu bytes of one reply, more than its "
                     "limit of %zu; the reply has a tag that never closes",
                     held, max);
}

static const struct format *pick(const struct parser_config *config)
{
    if (config->response)
        return config->response->is_schema ? &format_schema : &format_template;
    if (config->reasoning == PARSER_REASONING_GPT_OSS || config->tools == PARSER_TOOLS_GPT_OSS)
        return &format_harmony;
    return &format_tagged;
}

/* Appends to `clean` the whole characters of `text`; what is not UTF-8 becomes U+FFFD. Returns the
 * bytes read: all, or fewer if the text ends inside a character and `is_end` is false. */
static size_t clean_utf8(struct str *clean, const char *text, size_t len, bool is_end)
{
    size_t run = 0, at = 0;
    while (at < len) {
        size_t n = (unsigned char)text[at] < 0x80 ? 1 : utf8_sequence(text + at, len - at);
        if (n) {
            at += n;
            continue;
        }
        unsigned char c = (unsigned char)text[at];
        size_t want = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        if (!is_end && c >= 0xC2 && c <= 0xF4 && len - at < want)
            break;
        str_append(clean, text + run, at - run);
        str_append_utf8(clean, 0xFFFD);
        run = ++at;
    }
    str_append(clean, text + run, at - run);
    return at;
}

static enum status check_memory(const struct output_parser *p, struct error *error)
{
    if (p->emitter.failed || p->clean.failed || p->partial.failed)
        return error_memory(error, p->emitter.text.len + p->clean.len);
    return OK;
}

static enum status push_text(struct output_parser *p, const char *text, size_t len, bool is_end,
                             struct error *error)
{
    str_clear(&p->clean);
    if (p->partial.len) {
        str_append(&p->partial, text, len);
        text = str_z(&p->partial);
        len = p->partial.len;
    }
    size_t used = clean_utf8(&p->clean, text, len, is_end);
    /* The rest is at most three bytes, so it fits where it may already lie. */
    char rest[4];
    size_t n_rest = len - used;
    memcpy(rest, text + used, n_rest);
    str_clear(&p->partial);
    str_append(&p->partial, rest, n_rest);
    enum status status = check_memory(p, error);
    if (status == OK && p->clean.len)
        status = p->format->text(p->state, &p->emitter, str_z(&p->clean), p->clean.len, error);
    return status;
}

enum status output_parser_new(const struct parser_config *config, const char *prompt_tail,
                              size_t tail_len, const struct json *tools, struct output_parser **out,
                              struct error *error)
{
    *out = NULL;
    struct output_parser *p = calloc(1, sizeof *p);
    if (!p)
        return error_memory(error, sizeof *p);
    p->config = *config;
    p->format = pick(config);
    struct format_setup setup = {.config = &p->config,
                                 .max_bytes = config->max_held_bytes ? config->max_held_bytes
                                                                     : PARSER_MAX_HELD_BYTES};
    if (tools && tools->type == JT_ARRAY && tools->n)
        setup.tools = tools;
    clean_utf8(&p->clean, prompt_tail, tail_len, true);
    setup.tail = str_z(&p->clean);
    setup.tail_len = p->clean.len;
    enum status status = check_memory(p, error);
    if (status == OK)
        status = p->format->make(&setup, &p->emitter, &p->state, error);
    emitter_clear(&p->emitter);
    if (status != OK) {
        output_parser_free(p);
        return status;
    }
    *out = p;
    return OK;
}

void output_parser_free(struct output_parser *p)
{
    if (!p)
        return;
    if (p->state)
        p->format->free(p->state);
    emitter_done(&p->emitter);
    str_done(&p->partial);
    str_done(&p->clean);
    free(p);
}

/* Only now do the events' texts have their final addresses. */
static void settle(struct emitter *e)
{
    for (size_t i = 0; i < e->n; i++)
        e->events[i].text = str_z(&e->text) + e->events[i].offset;
}

enum status output_parser_push(struct output_parser *p, const char *text, size_t len,
                               bool is_control, struct error *error)
{
    emitter_clear(&p->emitter);
    enum status status;
    if (is_control) {
        status = push_text(p, "", 0, true, error);
        if (status == OK) {
            str_clear(&p->clean);
            clean_utf8(&p->clean, text, len, true);
            status = check_memory(p, error);
        }
        if (status == OK)
            status =
                p->format->control(p->state, &p->emitter, str_z(&p->clean), p->clean.len, error);
    } else {
        status = push_text(p, text, len, false, error);
    }
    if (status == OK)
        status = check_memory(p, error);
    settle(&p->emitter);
    return status;
}

enum status output_parser_finish(struct output_parser *p, enum parser_reason reason,
                                 struct error *error)
{
    emitter_clear(&p->emitter);
    enum status status = push_text(p, "", 0, true, error);
    if (status == OK)
        status = p->format->finish(p->state, &p->emitter, reason, error);
    if (status == OK)
        status = check_memory(p, error);
    settle(&p->emitter);
    return status;
}

const struct parser_event *output_parser_events(const struct output_parser *p, size_t *n)
{
    *n = p->emitter.n;
    return p->emitter.events;
}

size_t output_parser_n_ended_calls(const struct output_parser *p)
{
    return p->emitter.n_ended;
}
