/* Output taken apart as a response_template says: regions between delimiters, each a field. Text
 * fields are reported as they come, others when their region closes. */
#include "parser/content.h"
#include "parser/format.h"
#include "parser/response.h"

#include <stdlib.h>
#include <string.h>

/* Held text beyond this is searched again only when it has grown by an eighth. */
enum { SEARCH_AT_ONCE = 4096 };

/* A delimiter being watched: field `field`'s opener or closer. */
struct hit {
    int field; /* -1: none */
    bool is_open;
    size_t start, end;
};

struct template_state {
    const struct parser_response *r;
    const struct json *tools;
    size_t max_bytes;
    struct str buffer; /* the whole output, since patterns may look behind */
    size_t pos;        /* what lies before is dealt with */
    size_t search_at;  /* buffer length at which searching is worth while again */
    int current;       /* the open field; -1: text that belongs to no field */
    bool is_opened;
    bool is_raw;      /* parsing has been given up: everything is content */
    size_t n_stalled; /* delimiters in a row that took no text */
    size_t region_start, body_start;
    struct arena arena; /* of the region */
    struct json captures;
    struct str pending; /* prose: blanks that may be at the end */
    bool has_text;
    bool has_closed[RESPONSE_MAX_FIELDS]; /* fields of which the reply has a closed region */
    struct pattern_scratch *open[RESPONSE_MAX_FIELDS], *close[RESPONSE_MAX_FIELDS];
};

static const struct response_field *current_field(const struct template_state *t)
{
    return t->current < 0 ? NULL : &t->r->fields[t->current];
}

static void emit_as(struct emitter *e, enum response_role role, const char *text, size_t len)
{
    if (role == ROLE_REASONING)
        emit_reasoning(e, text, len);
    else if (role == ROLE_CONTENT)
        emit_content(e, text, len);
}

/* Prose without the blanks at both ends of its region. */
static void push_prose(struct template_state *t, struct emitter *e, const struct response_field *f,
                       const char *text, size_t len)
{
    if (!f->strip) {
        emit_as(e, f->role, text, len);
        return;
    }
    str_append(&t->pending, text, len);
    const char *all = str_z(&t->pending);
    size_t n = python_rstrip(all, t->pending.len), skip = 0, blank;
    if (!n)
        return;
    while (!t->has_text && (blank = python_blank(all + skip, n - skip)))
        skip += blank;
    emit_as(e, f->role, all + skip, n - skip);
    t->has_text = true;
    memmove(t->pending.data, t->pending.data + n, t->pending.len - n);
    t->pending.len -= n;
    t->pending.data[t->pending.len] = '\0';
}

static void open_region(struct template_state *t, struct emitter *e, size_t start, size_t body)
{
    const struct response_field *f = current_field(t);
    t->is_opened = true;
    t->region_start = start;
    t->body_start = body;
    if (f->join && t->has_closed[t->current])
        emit_as(e, f->role, f->join->text, f->join->n);
}

/* Text up to `end` belongs to the open field. */
static void take_text(struct template_state *t, struct emitter *e, size_t end)
{
    size_t start = t->pos;
    t->pos = end;
    if (start == end || t->current < 0)
        return;
    t->n_stalled = 0;
    if (!t->is_opened)
        open_region(t, e, start, start);
    const struct response_field *f = current_field(t);
    if (f->is_prose)
        push_prose(t, e, f, str_z(&t->buffer) + start, end - start);
}

static void reset_region(struct template_state *t)
{
    t->current = t->r->implicit;
    t->is_opened = t->has_text = false;
    str_clear(&t->pending);
    arena_done(&t->arena);
    t->arena = (struct arena){.limit = 4 * t->max_bytes};
    t->captures = (struct json){0};
}

/* The value of a structured region; one that cannot be had is shown as it was written. */
static enum status close_structured(struct template_state *t, struct emitter *e, size_t body_end,
                                    bool is_cut, struct error *error)
{
    const struct response_field *f = current_field(t);
    struct json value;
    enum status status = OK;
    bool is_fit = f->role != ROLE_NONE;
    if (f->role == ROLE_CALLS) {
        /* A region cut off by the limit holds a whole call only if it is whole JSON. */
        is_fit = t->tools && !(is_cut && strcmp(f->content, "json") != 0);
    }
    if (is_fit) {
        struct error local;
        status = content_field(&t->arena, f, &t->captures, str_z(&t->buffer) + t->body_start,
                               body_end - t->body_start, &value, &local);
        if (status == OK && t->tools)
            status = content_coerce(&t->arena, t->tools, &value, &local);
        if (status != OK && status != ERROR_INVALID)
            return error_set(error, status, "%s", local.message);
        is_fit = status == OK && response_emit(e, f->role, &value);
    }
    if (!is_fit && f->role != ROLE_NONE)
        emit_content(e, str_z(&t->buffer) + t->region_start, t->pos - t->region_start);
    return OK;
}

/* Ends the open region, if any; `pos` is behind its closer. */
static enum status close_region(struct template_state *t, struct emitter *e, size_t body_end,
                                bool is_cut, struct error *error)
{
    const struct response_field *f = current_field(t);
    enum status status = OK;
    if (f && t->is_opened) {
        if (!f->is_prose)
            status = close_structured(t, e, body_end, is_cut, error);
        t->has_closed[t->current] |= !e->is_muted;
    }
    reset_region(t);
    return status;
}

/* A better place to cut: earlier, then longer, then openers, then by name. */
static bool is_better(const struct template_state *t, const struct hit *a, const struct hit *b)
{
    if (b->field < 0 || a->start != b->start)
        return b->field < 0 || a->start < b->start;
    if (a->end != b->end)
        return a->end > b->end;
    if (a->is_open != b->is_open)
        return a->is_open;
    return strcmp(t->r->fields[a->field].name, t->r->fields[b->field].name) < 0;
}

/* Looks for one delimiter. The closer of the implicit field does nothing where it takes no text and
 * nothing is open. */
static enum status look(struct template_state *t, int field, bool is_open, bool is_end,
                        struct hit *best, size_t *hold, struct error *error)
{
    const struct response_field *f = &t->r->fields[field];
    const struct pattern *pattern = is_open ? f->open : f->close;
    struct pattern_scratch *s = is_open ? t->open[field] : t->close[field];
    size_t from = t->pos;
    while (pattern && from <= t->buffer.len) {
        struct hit hit = {.field = field, .is_open = is_open};
        enum pattern_found found;
        enum status status = pattern_find(pattern, s, str_z(&t->buffer), t->buffer.len, from,
                                          !is_end, &found, &hit.start, &hit.end, error);
        if (status != OK || found == PATTERN_NONE)
            return status;
        if (found == PATTERN_PARTIAL) {
            if (hit.start < *hold)
                *hold = hit.start;
            return OK;
        }
        if (!is_open && field == t->r->implicit && hit.end == t->pos && !t->is_opened) {
            from = t->pos < t->buffer.len
                       ? t->pos + utf8_sequence(t->buffer.data + t->pos, t->buffer.len - t->pos)
                       : t->buffer.len + 1;
            continue;
        }
        if (is_better(t, &hit, best))
            *best = hit;
        return OK;
    }
    return OK;
}

/* The next delimiter that is certain, or where text must be held for one that is not. */
static enum status search(struct template_state *t, bool is_end, struct hit *best, size_t *hold,
                          struct error *error)
{
    *best = (struct hit){.field = -1};
    *hold = t->buffer.len;
    enum status status = OK;
    if (t->current >= 0 && t->current != t->r->implicit)
        status = look(t, t->current, false, is_end, best, hold, error);
    else
        for (int i = 0; i < (int)t->r->n_fields && status == OK; i++)
            status = look(t, i, i != t->r->implicit, is_end, best, hold, error);
    if (best->field >= 0 && best->start >= *hold)
        best->field = -1;
    return status;
}

static enum status read_captures(struct template_state *t, const struct hit *hit,
                                 struct error *error)
{
    const struct pattern *pattern = t->r->fields[hit->field].open;
    struct tree_object captures = {0};
    for (unsigned i = 1; i <= pattern_n_groups(pattern); i++) {
        const char *name = pattern_group_name(pattern, i);
        size_t start, end;
        if (!name || !pattern_group(t->open[hit->field], i, &start, &end))
            continue;
        struct json text = tree_string(&t->arena, str_z(&t->buffer) + start, end - start);
        if (text.type != JT_STRING || !tree_put(&t->arena, &captures, name, strlen(name), text))
            return tree_full(&t->arena, error);
    }
    t->captures = tree_object_value(&captures);
    return OK;
}

static enum status commit(struct template_state *t, struct emitter *e, const struct hit *hit,
                          struct error *error)
{
    take_text(t, e, hit->start);
    t->n_stalled = hit->start == hit->end ? t->n_stalled + 1 : 0;
    if (t->n_stalled > 2 * t->r->n_fields + 2)
        return error_set(error, ERROR_INVALID,
                         "response_template: delimiters that match nothing follow each other");
    enum status status;
    if (!hit->is_open) {
        t->pos = hit->end;
        return close_region(t, e, hit->start, false, error);
    }
    status = close_region(t, e, hit->start, false, error);
    t->pos = hit->end;
    t->current = hit->field;
    if (status == OK)
        status = read_captures(t, hit, error);
    open_region(t, e, hit->start, hit->end);
    return status;
}

static enum status process(struct template_state *t, struct emitter *e, bool is_end, bool is_cut,
                           struct error *error)
{
    if (!is_end && t->buffer.len < t->search_at)
        return OK;
    t->search_at = 0;
    for (;;) {
        struct hit best;
        size_t hold;
        enum status status = search(t, is_end, &best, &hold, error);
        if (status == OK && best.field >= 0)
            status = commit(t, e, &best, error);
        if (status != OK)
            return status;
        if (best.field >= 0)
            continue;
        take_text(t, e, is_end ? t->buffer.len : hold > t->pos ? hold : t->pos);
        if (is_end)
            return close_region(t, e, t->buffer.len, is_cut, error);
        size_t held = t->buffer.len - t->pos;
        if (held > SEARCH_AT_ONCE)
            t->search_at = t->buffer.len + held / 8;
        return OK;
    }
}

/* A template that fails on a text must not lose it. Memory is another matter. */
static enum status give_up(struct template_state *t, struct emitter *e, enum status status)
{
    if (status == ERROR_MEMORY)
        return status;
    const struct response_field *f = current_field(t);
    size_t from = f && t->is_opened && !f->is_prose ? t->region_start : t->pos;
    if (t->is_opened && f && f->is_prose)
        emit_as(e, f->role, str_z(&t->pending), t->pending.len);
    reset_region(t);
    emit_content(e, str_z(&t->buffer) + from, t->buffer.len - from);
    t->pos = t->buffer.len;
    t->is_raw = true;
    return OK;
}

static enum status template_text(void *state, struct emitter *e, const char *text, size_t len,
                                 struct error *error)
{
    struct template_state *t = state;
    if (t->is_raw) {
        emit_content(e, text, len);
        return OK;
    }
    str_append(&t->buffer, text, len);
    if (t->buffer.failed)
        return error_memory(error, t->buffer.len + len);
    enum status status = process(t, e, false, false, error);
    if (status != OK)
        status = give_up(t, e, status);
    e->failed |= t->pending.failed;
    if (status == OK)
        status = format_check_held(t->buffer.len, t->max_bytes, error);
    return status;
}

static enum status template_finish(void *state, struct emitter *e, enum parser_reason reason,
                                   struct error *error)
{
    struct template_state *t = state;
    if (t->is_raw)
        return OK;
    enum status status = process(t, e, true, reason == PARSER_LENGTH, error);
    return status == OK ? OK : give_up(t, e, status);
}

static void template_free(void *state)
{
    struct template_state *t = state;
    for (size_t i = 0; i < t->r->n_fields; i++) {
        pattern_scratch_free(t->open[i]);
        pattern_scratch_free(t->close[i]);
    }
    str_done(&t->buffer);
    str_done(&t->pending);
    arena_done(&t->arena);
    free(t);
}

/* Offset behind the last start anchor of the prompt; 0 if it has none. */
static enum status behind_anchor(const struct parser_response *r, const char *text, size_t len,
                                 size_t *out, struct error *error)
{
    *out = 0;
    struct pattern_scratch *s = pattern_scratch_new(r->anchor);
    if (!s)
        return error_memory(error, sizeof *out);
    struct pattern_walk walk = {0};
    bool found = true;
    enum status status = OK;
    while (status == OK && found) {
        size_t start, end;
        status = pattern_next(r->anchor, s, &walk, text, len, &found, &start, &end, error);
        if (found)
            *out = end;
    }
    pattern_scratch_free(s);
    return status;
}

static enum status template_make(const struct format_setup *setup, struct emitter *e, void **state,
                                 struct error *error)
{
    struct template_state *t = calloc(1, sizeof *t);
    if (!t)
        return error_memory(error, sizeof *t);
    *state = t;
    t->r = setup->config->response;
    t->tools = setup->tools;
    t->max_bytes = setup->max_bytes;
    reset_region(t);
    for (size_t i = 0; i < t->r->n_fields; i++) {
        const struct response_field *f = &t->r->fields[i];
        if (f->open && !(t->open[i] = pattern_scratch_new(f->open)))
            return error_memory(error, sizeof *t);
        if (f->close && !(t->close[i] = pattern_scratch_new(f->close)))
            return error_memory(error, sizeof *t);
    }
    size_t skip;
    enum status status = behind_anchor(t->r, setup->tail, setup->tail_len, &skip, error);
    if (status != OK || skip == setup->tail_len)
        return status;
    e->is_muted = true;
    status = template_text(t, e, setup->tail + skip, setup->tail_len - skip, error);
    e->is_muted = false;
    e->n_calls = e->n_ended = 0;
    return status;
}

const struct format format_template = {template_make, template_text, template_text, template_finish,
                                       template_free};
