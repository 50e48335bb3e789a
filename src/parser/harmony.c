/* gpt-oss: messages with a header (channel, recipient) and a body, parted by control tokens. Only
 * control tokens part them: the same characters written as ordinary text are text. */
#include "parser/format.h"
#include "parser/json_scan.h"
#include "parser/tools.h"

#include <stdlib.h>
#include <string.h>

/* A header longer than this is not one. */
enum { MAX_HEADER = 4096 };

enum place { IN_HEADER, IN_BODY, BETWEEN };
enum kind { KIND_REASONING, KIND_CONTENT, KIND_CALL };
enum part { PART_ROLE, PART_CHANNEL, PART_TYPE, N_PARTS }; /* of a header */

struct harmony {
    const struct json *tools;
    bool keep_control;
    size_t max_bytes;
    enum place place;
    enum kind kind;
    enum part part;
    bool is_first;    /* the header's role is the prompt's */
    bool had[2];      /* reasoning, content: a message of the kind went before */
    bool needs_break; /* the next text of this kind follows another message */
    bool is_begun, is_valid, is_broken;
    struct str parts[N_PARTS];
    struct str name, held; /* a call's name; blanks before and behind its object */
    struct json_scan scan;
};

static const char functions_prefix[] = "functions.";

static void start_header(struct harmony *h)
{
    h->place = IN_HEADER;
    h->part = PART_ROLE;
    h->is_first = false;
    for (int i = 0; i < N_PARTS; i++)
        str_clear(&h->parts[i]);
}

/* The recipient "to=NAME" in a part of the header; NULL if there is none. */
static const char *find_recipient(const struct str *part, size_t *len)
{
    const char *text = str_z(part);
    for (const char *at = strstr(text, "to="); at; at = strstr(at + 1, "to=")) {
        if (at != text && !is_blank(at[-1]))
            continue;
        at += 3;
        size_t n = 0;
        while (at[n] && !is_blank(at[n]))
            n++;
        *len = n;
        return n ? at : NULL;
    }
    return NULL;
}

static bool is_channel(const struct harmony *h, const char *name)
{
    const char *text = str_z(&h->parts[PART_CHANNEL]);
    text += blank_prefix(text, strlen(text));
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (!text[n] || is_blank(text[n]));
}

/* The header is complete. A message to a function is a call if the request has tools. */
static void start_body(struct harmony *h)
{
    size_t len = 0;
    const char *to = NULL;
    for (int i = 0; i < N_PARTS && !to; i++)
        to = find_recipient(&h->parts[i], &len);
    size_t n = strlen(functions_prefix);
    h->kind = is_channel(h, "analysis") ? KIND_REASONING : KIND_CONTENT;
    str_clear(&h->name);
    if (to && h->tools) {
        bool has_prefix = len > n && memcmp(to, functions_prefix, n) == 0;
        if (has_prefix || tool_find(h->tools, to, len)) {
            h->kind = KIND_CALL;
            str_append(&h->name, to + (has_prefix ? n : 0), len - (has_prefix ? n : 0));
        }
    }
    h->needs_break = h->kind != KIND_CALL && h->had[h->kind];
    h->place = IN_BODY;
    h->is_begun = h->is_valid = h->is_broken = false;
    h->scan = (struct json_scan){0};
    str_clear(&h->held);
}

/* Two messages of a kind are parted by a line break. */
static void emit_text(struct harmony *h, struct emitter *e, enum kind kind, const char *text,
                      size_t len)
{
    if (!len)
        return;
    void (*emit)(struct emitter *, const char *, size_t) =
        kind == KIND_REASONING ? emit_reasoning : emit_content;
    if (h->needs_break)
        emit(e, "\n", 1);
    h->needs_break = false;
    h->had[kind] |= !e->is_muted;
    emit(e, text, len);
}

static void begin_call(struct harmony *h, struct emitter *e)
{
    emit_call_begin(e, str_z(&h->name), h->name.len);
    h->is_begun = true;
    str_clear(&h->held);
}

/* The body of a call is its arguments; one that is no object is content. */
static void call_text(struct harmony *h, struct emitter *e, const char *text, size_t len)
{
    if (!h->is_begun) {
        size_t blanks = blank_prefix(text, len);
        if (blanks == len || text[blanks] != '{') {
            str_append(&h->held, text, len);
            if (blanks == len)
                return;
            h->kind = KIND_CONTENT;
            h->needs_break = h->had[KIND_CONTENT];
            emit_text(h, e, KIND_CONTENT, str_z(&h->held), h->held.len);
            return;
        }
        begin_call(h, e);
        text += blanks;
        len -= blanks;
    }
    if (!h->is_valid && !h->is_broken) {
        size_t used;
        enum scan_result result = json_scan_text(&h->scan, text, len, &used);
        h->is_valid = result == SCAN_DONE;
        h->is_broken = result == SCAN_ERROR;
        emit_arguments(e, text, used);
        text += used;
        len -= used;
    }
    /* Blanks behind the object are dropped, other text shows that it was none. */
    if (h->is_valid && blank_prefix(text, len) == len) {
        str_append(&h->held, text, len);
        return;
    }
    h->is_broken = h->is_broken || h->is_valid;
    h->is_valid = false;
    emit_arguments(e, str_z(&h->held), h->held.len);
    str_clear(&h->held);
    emit_arguments(e, text, len);
}

/* `is_closed`: by the model; otherwise the output was cut off. */
static void end_body(struct harmony *h, struct emitter *e, bool is_closed)
{
    if (h->kind == KIND_CALL) {
        if (!h->is_begun && is_closed) {
            begin_call(h, e);
            emit_arguments(e, "{}", 2);
            h->is_valid = true;
        }
        if (h->is_begun && (is_closed || h->is_valid))
            emit_call_end(e, h->is_valid);
    }
    h->place = BETWEEN;
}

/* What stands in a header that never gets a body is shown as content, but for the role. */
static void flush_header(struct harmony *h, struct emitter *e)
{
    static const char role[] = "assistant";
    struct str all = {0};
    const struct str *first = &h->parts[PART_ROLE];
    bool has_role = !h->is_first && strncmp(str_z(first), role, strlen(role)) == 0;
    size_t skipped = has_role ? strlen(role) : 0;
    str_append(&all, str_z(first) + skipped, first->len - skipped);
    for (int i = PART_CHANNEL; i < N_PARTS; i++)
        str_append(&all, str_z(&h->parts[i]), h->parts[i].len);
    h->kind = KIND_CONTENT;
    h->needs_break = h->had[KIND_CONTENT];
    if (blank_prefix(str_z(&all), all.len) < all.len)
        emit_text(h, e, KIND_CONTENT, str_z(&all), all.len);
    e->failed |= all.failed;
    str_done(&all);
    h->place = IN_BODY;
}

static enum status harmony_text(void *state, struct emitter *e, const char *text, size_t len,
                                struct error *error)
{
    struct harmony *h = state;
    if (h->place == BETWEEN) {
        size_t blanks = blank_prefix(text, len);
        if (blanks == len)
            return OK;
        text += blanks;
        len -= blanks;
        start_header(h);
        start_body(h);
    }
    if (h->place == IN_HEADER) {
        struct str *part = &h->parts[h->part];
        size_t room = MAX_HEADER - (part->len < MAX_HEADER ? part->len : MAX_HEADER);
        size_t n = len < room ? len : room;
        while (n > 0 && n < len && ((unsigned char)text[n] & 0xC0) == 0x80)
            n--; /* whole characters */
        str_append(part, text, n);
        e->failed |= part->failed;
        if (n < len) {
            flush_header(h, e);
            emit_text(h, e, KIND_CONTENT, text + n, len - n);
        }
    } else if (h->place == IN_BODY) {
        if (h->kind == KIND_CALL)
            call_text(h, e, text, len);
        else
            emit_text(h, e, h->kind, text, len);
    }
    e->failed |= h->held.failed || h->name.failed;
    return format_check_held(h->held.len, h->max_bytes, error);
}

/* The control tokens of the format; false for others. */
static bool known_control(struct harmony *h, struct emitter *e, const char *token)
{
    if (strcmp(token, "<|start|>") == 0) {
        if (h->place == IN_BODY)
            end_body(h, e, true);
        start_header(h);
    } else if (strcmp(token, "<|channel|>") == 0) {
        if (h->place == IN_BODY)
            end_body(h, e, true);
        if (h->place != IN_HEADER)
            start_header(h);
        h->part = PART_CHANNEL;
    } else if (strcmp(token, "<|constrain|>") == 0) {
        if (h->place == IN_HEADER)
            h->part = PART_TYPE;
    } else if (strcmp(token, "<|message|>") == 0) {
        if (h->place == IN_HEADER)
            start_body(h);
    } else if (strcmp(token, "<|end|>") == 0 || strcmp(token, "<|call|>") == 0 ||
               strcmp(token, "<|return|>") == 0) {
        if (h->place == IN_HEADER)
            flush_header(h, e);
        if (h->place == IN_BODY)
            end_body(h, e, true);
    } else {
        return false;
    }
    return true;
}

static enum status harmony_control(void *state, struct emitter *e, const char *text, size_t len,
                                   struct error *error)
{
    struct harmony *h = state;
    if (known_control(h, e, text) || !h->keep_control)
        return OK;
    return harmony_text(h, e, text, len, error);
}

static enum status harmony_finish(void *state, struct emitter *e, enum parser_reason reason,
                                  struct error *error)
{
    (void)error;
    struct harmony *h = state;
    if (h->place == IN_HEADER)
        flush_header(h, e);
    if (h->place == IN_BODY)
        end_body(h, e, reason == PARSER_STOP);
    return OK;
}

static void harmony_free(void *state)
{
    struct harmony *h = state;
    for (int i = 0; i < N_PARTS; i++)
        str_done(&h->parts[i]);
    str_done(&h->name);
    str_done(&h->held);
    free(h);
}

/* The prompt's tail, in which control tokens are written out: a header or message that the model
 * continues. */
static void seed(struct harmony *h, struct emitter *e, const char *text, size_t len)
{
    static const char *const tokens[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                         "<|end|>",   "<|call|>",    "<|return|>"};
    size_t n_calls = e->n_calls, n_ended = e->n_ended;
    e->is_muted = true;
    while (len) {
        struct marker_hit hit =
            marker_find(text, len, tokens, sizeof tokens / sizeof *tokens, true);
        if (hit.at)
            harmony_text(h, e, text, hit.at, NULL);
        size_t n = hit.at;
        if (hit.which >= 0) {
            known_control(h, e, tokens[hit.which]);
            n += strlen(tokens[hit.which]);
        }
        text += n;
        len -= n;
    }
    e->is_muted = false;
    /* A call of the prompt is not one of the reply: what the model adds to it is content. */
    if (h->place == IN_BODY && h->kind == KIND_CALL && h->is_begun)
        h->kind = KIND_CONTENT;
    e->n_calls = n_calls;
    e->n_ended = n_ended;
}

static enum status harmony_make(const struct format_setup *setup, struct emitter *e, void **state,
                                struct error *error)
{
    struct harmony *h = calloc(1, sizeof *h);
    if (!h)
        return error_memory(error, sizeof *h);
    *state = h;
    h->tools = setup->tools;
    h->keep_control = setup->config->keep_control_tokens;
    h->max_bytes = setup->max_bytes;
    start_header(h);
    h->is_first = true;
    seed(h, e, setup->tail, setup->tail_len);
    return OK;
}

const struct format format_harmony = {harmony_make, harmony_text, harmony_control, harmony_finish,
                                      harmony_free};
