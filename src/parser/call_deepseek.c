/* DeepSeek's calls: a list between marks, each call between its own, and in it the name and the
 * arguments' object. Two generations write them differently:
 *
 *     V3, R1
 * <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{...}\n```<｜tool▁call▁end｜> V3.1
 * <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
 */
#include "parser/call.h"

#include <string.h>

enum state {
    BETWEEN,   /* behind the list's mark or a call */
    KIND,      /* behind a call's mark: "function", or the name */
    NAME,      /* behind the separator: the object, or the name */
    FENCE,     /* behind the name: the object, or a fence before it */
    ARGUMENTS, /* inside the object */
    BEHIND,    /* behind it */
    BROKEN     /* the arguments are no object: all text up to the call's end is theirs */
};

/* Bytes of a name. */
enum { MAX_NAME = 256 };

static const char call_begin[] = "<｜tool▁call▁begin｜>", call_end[] = "<｜tool▁call▁end｜>";
static const char calls_end[] = "<｜tool▁calls▁end｜>", separator[] = "<｜tool▁sep｜>";
static const char fence_open[] = "```json", fence_close[] = "```";

static void reset(struct call_deepseek *c)
{
    c->needs_raw = true;
    c->raw = 0;
    c->is_begun = c->is_whole = false;
    str_clear(&c->name);
}

void call_deepseek_start(struct call_deepseek *c, struct prose *content, bool is_single,
                         size_t tag_len)
{
    c->content = content;
    c->n_ended = 0;
    reset(c);
    c->raw = tag_len;
    c->state = is_single ? KIND : BETWEEN;
}

size_t call_deepseek_held(const struct call_deepseek *c)
{
    return c->name.len;
}

void call_deepseek_done(struct call_deepseek *c)
{
    str_done(&c->name);
}

static void begin(struct call_deepseek *c, struct emitter *e)
{
    emit_call_begin(e, str_z(&c->name), c->name.len);
    prose_at_call(c->content);
    c->scan = (struct json_scan){0};
    c->is_begun = true;
    c->needs_raw = false;
    c->state = ARGUMENTS;
}

static void end(struct call_deepseek *c, struct emitter *e, bool is_valid)
{
    emit_call_end(e, is_valid);
    c->n_ended++;
    reset(c);
    c->state = BETWEEN;
}

/* What follows is no call. */
static enum call_progress give_up(const struct call_deepseek *c)
{
    return c->n_ended ? CALL_REST : CALL_FAILED;
}

static enum call_progress between(struct call_deepseek *c, const struct call_input *in, size_t *at)
{
    size_t blanks = blank_prefix(in->text + *at, in->len - *at);
    if (blanks) { /* on their own, so that they never count as raw text of what follows */
        *at += blanks;
        return CALL_MORE;
    }
    const char *text = in->text + *at;
    size_t len = in->len - *at;
    enum marker_match next = marker_at(text, len, call_begin, in->is_end);
    enum marker_match last = marker_at(text, len, calls_end, in->is_end);
    if (next == MARKER_YES) {
        *at += strlen(call_begin);
        c->state = KIND;
        return CALL_MORE;
    }
    if (last == MARKER_YES && c->n_ended) {
        *at += strlen(calls_end);
        return CALL_DONE;
    }
    if (next == MARKER_MAYBE || last == MARKER_MAYBE)
        return CALL_MORE;
    return give_up(c);
}

/* Takes text up to `mark` as the name, both used; a name has no blanks and is short. */
static enum call_progress take_name(struct call_deepseek *c, const char *mark,
                                    const struct call_input *in, size_t *at)
{
    const char *text = in->text + *at;
    size_t len = in->len - *at, n = 0;
    for (; n < len && n <= MAX_NAME; n++) {
        enum marker_match match = marker_at(text + n, len - n, mark, in->is_end);
        if (match == MARKER_MAYBE)
            return CALL_MORE;
        if (match == MARKER_YES && n) {
            str_clear(&c->name);
            str_append(&c->name, text, n);
            *at += n + strlen(mark);
            return CALL_DONE;
        }
        if (match == MARKER_YES || is_blank(text[n]))
            return CALL_FAILED;
    }
    return n <= MAX_NAME ? CALL_MORE : CALL_FAILED;
}

static enum call_progress kind(struct call_deepseek *c, const struct call_input *in, size_t *at)
{
    enum call_progress progress = take_name(c, separator, in, at);
    if (progress == CALL_FAILED)
        return give_up(c);
    if (progress == CALL_DONE)
        c->state = NAME;
    return CALL_MORE;
}

/* In V3 the name is on the rest of the line. */
static enum call_progress name(struct call_deepseek *c, struct emitter *e,
                               const struct call_input *in, size_t *at)
{
    size_t blanks = blank_prefix(in->text + *at, in->len - *at);
    if (*at + blanks == in->len)
        return CALL_MORE;
    if (in->text[*at + blanks] == '{') {
        *at += blanks;
        begin(c, e);
        return CALL_MORE;
    }
    if (strcmp(str_z(&c->name), "function") != 0)
        return give_up(c);
    *at += blanks;
    enum call_progress progress = take_name(c, "\n", in, at);
    if (progress == CALL_FAILED)
        return give_up(c);
    if (progress == CALL_DONE)
        c->state = FENCE;
    return CALL_MORE;
}

static enum call_progress fence(struct call_deepseek *c, struct emitter *e,
                                const struct call_input *in, size_t *at)
{
    *at += blank_prefix(in->text + *at, in->len - *at);
    const char *text = in->text + *at;
    size_t len = in->len - *at;
    if (!len)
        return CALL_MORE;
    if (*text == '{') {
        begin(c, e);
        return CALL_MORE;
    }
    enum marker_match match = marker_at(text, len, fence_open, in->is_end);
    if (match == MARKER_NO)
        return give_up(c);
    if (match == MARKER_YES)
        *at += strlen(fence_open);
    return CALL_MORE;
}

static void arguments(struct call_deepseek *c, struct emitter *e, const struct call_input *in,
                      size_t *at)
{
    size_t n;
    enum scan_result result = json_scan_text(&c->scan, in->text + *at, in->len - *at, &n);
    emit_arguments(e, in->text + *at, n);
    *at += n;
    if (result == SCAN_DONE) {
        c->is_whole = true;
        c->state = BEHIND;
    } else if (result == SCAN_ERROR) {
        c->state = BROKEN;
    }
}

/* The fence and the call's end; a missing end is forgiven. */
static enum call_progress behind(struct call_deepseek *c, struct emitter *e,
                                 const struct call_input *in, size_t *at)
{
    *at += blank_prefix(in->text + *at, in->len - *at);
    const char *text = in->text + *at;
    size_t len = in->len - *at;
    enum marker_match close = marker_at(text, len, fence_close, in->is_end);
    enum marker_match last = marker_at(text, len, call_end, in->is_end);
    if (!len || close == MARKER_MAYBE || last == MARKER_MAYBE)
        return CALL_MORE;
    if (close == MARKER_YES) {
        *at += strlen(fence_close);
        return CALL_MORE;
    }
    if (last == MARKER_YES)
        *at += strlen(call_end);
    end(c, e, true);
    return CALL_MORE;
}

static void broken(struct call_deepseek *c, struct emitter *e, const struct call_input *in,
                   size_t *at)
{
    static const char *const marks[] = {call_end};
    struct marker_hit hit = marker_find(in->text + *at, in->len - *at, marks, 1, in->is_end);
    emit_arguments(e, in->text + *at, hit.at);
    *at += hit.at;
    if (hit.which < 0)
        return;
    *at += strlen(call_end);
    end(c, e, false);
}

/* The text ends before the calls do. */
static enum call_progress cut_off(struct call_deepseek *c, struct emitter *e,
                                  const struct call_input *in)
{
    if (c->is_whole || (c->is_begun && in->reason == PARSER_STOP))
        end(c, e, c->is_whole);
    else if (!c->is_begun && !(c->state == BETWEEN && c->n_ended))
        return give_up(c);
    return CALL_DONE;
}

enum call_progress call_deepseek_feed(struct call_deepseek *c, struct emitter *e,
                                      const struct call_input *in, size_t *used)
{
    size_t at = 0;
    enum call_progress progress = CALL_MORE;
    while (progress == CALL_MORE && at < in->len) {
        size_t before = at;
        enum state state = c->state;
        switch (state) {
        case BETWEEN:
            progress = between(c, in, &at);
            break;
        case KIND:
            progress = kind(c, in, &at);
            break;
        case NAME:
            progress = name(c, e, in, &at);
            break;
        case FENCE:
            progress = fence(c, e, in, &at);
            break;
        case ARGUMENTS:
            arguments(c, e, in, &at);
            break;
        case BEHIND:
            progress = behind(c, e, in, &at);
            break;
        case BROKEN:
            broken(c, e, in, &at);
            break;
        }
        bool is_behind_call = c->state == BETWEEN && c->n_ended;
        c->raw = c->needs_raw && !is_behind_call ? c->raw + (at - before) : 0;
        if (progress == CALL_MORE && at == before && c->state == (unsigned char)state)
            break; /* a mark that is not complete yet */
    }
    if (progress == CALL_MORE && in->is_end)
        progress = cut_off(c, e, in);
    *used = at;
    e->failed |= c->name.failed;
    return progress;
}
