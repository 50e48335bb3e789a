#include "parser/emitter.h"

#include <stdlib.h>
#include <string.h>

void emitter_clear(struct emitter *e)
{
    e->n = 0;
    str_clear(&e->text);
}

void emitter_done(struct emitter *e)
{
    free(e->events);
    str_done(&e->text);
    *e = (struct emitter){0};
}

static void emit(struct emitter *e, enum parser_event_type type, size_t call, const char *text,
                 size_t len, bool is_valid)
{
    if (e->is_muted || e->failed)
        return;
    struct parser_event *last = e->n ? &e->events[e->n - 1] : NULL;
    bool is_delta = type != PARSER_CALL_BEGIN && type != PARSER_CALL_END;
    if (is_delta && last && last->type == type && last->call == call) {
        last->len += len;
    } else {
        if (e->n == e->cap) {
            size_t cap = e->cap ? e->cap * 2 : 8;
            struct parser_event *events = realloc(e->events, cap * sizeof *events);
            if (!events) {
                e->failed = true;
                return;
            }
            e->events = events;
            e->cap = cap;
        }
        e->events[e->n++] = (struct parser_event){
            .type = type, .call = call, .len = len, .offset = e->text.len, .is_valid = is_valid};
    }
    str_append(&e->text, text, len);
    e->failed |= e->text.failed;
}

void emit_reasoning(struct emitter *e, const char *text, size_t len)
{
    if (len)
        emit(e, PARSER_REASONING, 0, text, len, false);
}

void emit_content(struct emitter *e, const char *text, size_t len)
{
    if (len)
        emit(e, PARSER_CONTENT, 0, text, len, false);
}

void emit_call_begin(struct emitter *e, const char *name, size_t len)
{
    emit(e, PARSER_CALL_BEGIN, e->n_calls, name, len, false);
    e->n_calls++;
}

void emit_arguments(struct emitter *e, const char *text, size_t len)
{
    if (len)
        emit(e, PARSER_CALL_ARGUMENTS, e->n_calls - 1, text, len, false);
}

void emit_call_end(struct emitter *e, bool is_valid)
{
    emit(e, PARSER_CALL_END, e->n_calls - 1, "", 0, is_valid);
    e->n_ended++;
}

bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

size_t blank_prefix(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && is_blank(text[n]))
        n++;
    return n;
}

static void prose_emit(const struct prose *p, struct emitter *e, const char *text, size_t len)
{
    if (p->is_reasoning)
        emit_reasoning(e, text, len);
    else
        emit_content(e, text, len);
}

void prose_push(struct prose *p, struct emitter *e, const char *text, size_t len)
{
    size_t first = blank_prefix(text, len);
    if (first == len) {
        str_append(&p->pending, text, len);
        e->failed |= p->pending.failed;
        return;
    }
    size_t end = len;
    while (is_blank(text[end - 1]))
        end--;
    if (p->pending.len || first) {
        str_append(&p->pending, text, first);
        const char *lead = str_z(&p->pending);
        size_t n = p->pending.len, skip = 0;
        if (!p->has_text && p->skip_lines)
            for (size_t i = 0; i < n; i++)
                if (lead[i] == '\n')
                    skip = i + 1;
        prose_emit(p, e, lead + skip, n - skip);
        str_clear(&p->pending);
    }
    prose_emit(p, e, text + first, end - first);
    p->has_text = true;
    p->is_behind_call = false;
    str_append(&p->pending, text + end, len - end);
    e->failed |= p->pending.failed;
}

void prose_at_call(struct prose *p)
{
    p->skip_lines = true;
    p->is_behind_call = true;
}

void prose_finish(struct prose *p, struct emitter *e)
{
    if (!p->is_behind_call && (p->has_text || !p->skip_lines))
        prose_emit(p, e, str_z(&p->pending), p->pending.len);
    str_clear(&p->pending);
}

enum marker_match marker_at(const char *text, size_t len, const char *marker, bool is_end)
{
    size_t n = strlen(marker);
    if (len >= n)
        return memcmp(text, marker, n) == 0 ? MARKER_YES : MARKER_NO;
    return !is_end && memcmp(text, marker, len) == 0 ? MARKER_MAYBE : MARKER_NO;
}

struct marker_hit marker_find(const char *text, size_t len, const char *const *markers, int n,
                              bool is_end)
{
    for (size_t at = 0; at < len; at++) {
        const char *found = memchr(text + at, '<', len - at);
        if (!found)
            break;
        at = (size_t)(found - text);
        bool is_possible = false;
        for (int i = 0; i < n; i++) {
            enum marker_match match = marker_at(found, len - at, markers[i], is_end);
            if (match == MARKER_YES)
                return (struct marker_hit){at, i};
            is_possible |= match == MARKER_MAYBE;
        }
        if (is_possible)
            return (struct marker_hit){at, -1};
    }
    return (struct marker_hit){len, -1};
}
