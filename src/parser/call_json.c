/* Calls as JSON objects. The arguments' own text is passed on as it comes; the object around them
 * is followed only to find the name and the end. */
#include "parser/call.h"

#include <string.h>

enum state {
    START,      /* before '{' */
    KEY_OR_END, /* behind '{' */
    KEY_START,  /* behind ',' */
    KEY,
    COLON,
    VALUE_START,
    STRING_VALUE, /* the name, or arguments written as a string */
    ARGUMENTS,
    SKIPPED, /* the value of another key */
    AFTER,   /* behind a value */
    CLOSED,  /* behind '}' */
    BROKEN   /* the arguments are not JSON: all text up to the closing tag is theirs */
};

enum member { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS };

static void reset(struct call_json *c)
{
    c->has_name = c->has_arguments = c->has_unknown = c->is_begun = c->is_valid = false;
    c->needs_raw = true;
    c->raw = 0;
    str_clear(&c->name);
    str_clear(&c->token);
    str_clear(&c->early);
    c->state = START;
}

void call_json_start(struct call_json *c, const struct json *tools, struct prose *content,
                     const char *close_tag, bool is_list, size_t tag_len)
{
    c->tools = tools;
    c->content = content;
    c->close_tag = close_tag;
    c->is_list = is_list;
    reset(c);
    c->raw = tag_len;
}

size_t call_json_held(const struct call_json *c)
{
    return c->name.len + c->token.len + c->early.len;
}

void call_json_done(struct call_json *c)
{
    str_done(&c->name);
    str_done(&c->token);
    str_done(&c->early);
}

static void begin(struct call_json *c, struct emitter *e)
{
    emit_call_begin(e, str_z(&c->name), c->name.len);
    prose_at_call(c->content);
    c->is_begun = true;
    c->needs_raw = false;
    emit_arguments(e, str_z(&c->early), c->early.len);
    str_clear(&c->early);
}

static void end(struct call_json *c, struct emitter *e)
{
    emit_call_end(e, c->is_valid);
    c->has_name = c->has_arguments = c->is_begun = false;
}

static void start_token(struct call_json *c, enum state state)
{
    c->scan = (struct json_scan){0};
    json_scan_byte(&c->scan, '"');
    str_clear(&c->token);
    str_append_char(&c->token, '"');
    c->state = (unsigned char)state;
}

/* Decodes the string token, quotes included; the scanner has found it valid. */
static bool decode_token(struct call_json *c, struct str *out)
{
    struct json_reader r;
    json_reader_init(&r, str_z(&c->token), c->token.len);
    bool ok = json_next(&r, NULL) == JSON_STRING;
    if (ok)
        str_append(out, r.text, r.len);
    json_reader_done(&r);
    str_clear(&c->token);
    return ok;
}

static bool key_done(struct call_json *c)
{
    struct str key = {0};
    bool ok = decode_token(c, &key);
    const char *name = str_z(&key);
    c->member = MEMBER_OTHER;
    if (strcmp(name, "name") == 0)
        c->member = MEMBER_NAME;
    else if (strcmp(name, "arguments") == 0 || strcmp(name, "parameters") == 0)
        c->member = MEMBER_ARGUMENTS;
    else if (strcmp(name, "type") != 0 && strcmp(name, "id") != 0)
        c->has_unknown = true;
    str_done(&key);
    c->state = COLON;
    return ok && !(c->member == MEMBER_NAME && c->has_name) &&
           !(c->member == MEMBER_ARGUMENTS && c->has_arguments);
}

static bool name_done(struct call_json *c, struct emitter *e)
{
    if (!decode_token(c, &c->name) || !c->name.len)
        return false;
    if (!c->close_tag && !tool_find(c->tools, str_z(&c->name), c->name.len))
        return false;
    c->has_name = true;
    if (c->has_arguments)
        begin(c, e);
    return true;
}

/* Arguments written as a string hold the object's text. */
static bool quoted_arguments_done(struct call_json *c, struct emitter *e)
{
    if (!decode_token(c, &c->early))
        return false;
    c->has_arguments = true;
    if (!c->early.len)
        str_append(&c->early, "{}", 2);
    c->is_valid = json_is_valid_object(str_z(&c->early), c->early.len);
    if (c->has_name)
        begin(c, e);
    return true;
}

static bool string_done(struct call_json *c, struct emitter *e)
{
    c->state = AFTER;
    return c->member == MEMBER_NAME ? name_done(c, e) : quoted_arguments_done(c, e);
}

static bool start_value(struct call_json *c, struct emitter *e, char byte)
{
    if (c->member == MEMBER_NAME) {
        start_token(c, STRING_VALUE);
        return byte == '"';
    }
    if (c->member == MEMBER_ARGUMENTS && byte == '"') {
        start_token(c, STRING_VALUE);
        return true;
    }
    if (c->member == MEMBER_ARGUMENTS && byte != '{' && byte != 'n')
        return false;
    c->scan = (struct json_scan){0};
    c->state = c->member == MEMBER_ARGUMENTS && byte == '{' ? ARGUMENTS : SKIPPED;
    if (c->state == ARGUMENTS && c->has_name)
        begin(c, e);
    return true; /* the byte is read again by the new state */
}

static bool object_done(struct call_json *c, struct emitter *e)
{
    /* Without arguments, a key that is not known may be meant to be them. */
    if (!c->has_name || (!c->has_arguments && c->has_unknown))
        return false;
    if (!c->has_arguments) {
        str_append(&c->early, "{}", 2);
        c->has_arguments = c->is_valid = true;
    }
    if (!c->is_begun)
        begin(c, e);
    end(c, e);
    c->needs_raw = false;
    c->state = CLOSED;
    return true;
}

/* One byte of the object's frame; false if it does not belong there. `again`: read it once more. */
static bool frame_byte(struct call_json *c, struct emitter *e, char byte, bool *again)
{
    if (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t')
        return true;
    switch (c->state) {
    case START:
        if (c->is_list && byte == '[')
            return true;
        c->state = KEY_OR_END;
        return byte == '{';
    case KEY_OR_END:
        if (byte == '}')
            return object_done(c, e);
        /* fall through */
    case KEY_START:
        start_token(c, KEY);
        return byte == '"';
    case COLON:
        c->state = VALUE_START;
        return byte == ':';
    case VALUE_START:
        *again = c->member != MEMBER_NAME && byte != '"';
        *again |= c->member == MEMBER_OTHER;
        return start_value(c, e, byte);
    default: /* AFTER */
        if (byte == '}')
            return object_done(c, e);
        if (byte != ',')
            return false;
        c->state = KEY_START;
        c->needs_raw = true; /* what follows the arguments is dropped only if it is JSON */
        return true;
    }
}

/* Bytes of a string, of the arguments or of a value that is passed over. On SCAN_ERROR those used
 * are the arguments' valid beginning. */
static enum scan_result scanned(struct call_json *c, struct emitter *e, const char *text,
                                size_t len, size_t *used)
{
    enum scan_result result = json_scan_text(&c->scan, text, len, used);
    if (result == SCAN_ERROR && !(c->state == ARGUMENTS && c->is_begun)) {
        *used = 0;
        return result;
    }
    if (c->state == ARGUMENTS) {
        if (c->is_begun)
            emit_arguments(e, text, *used);
        else
            str_append(&c->early, text, *used);
        if (result == SCAN_DONE) {
            c->has_arguments = c->is_valid = true;
            c->state = AFTER;
        }
    } else if (c->state == SKIPPED) {
        if (result == SCAN_DONE || result == SCAN_BEHIND)
            c->state = AFTER;
    } else {
        str_append(&c->token, text, *used);
        if (result == SCAN_DONE && !(c->state == KEY ? key_done(c) : string_done(c, e))) {
            *used = 0;
            return SCAN_ERROR;
        }
    }
    return result;
}

/* Behind a complete object: more objects, surplus braces, what parts and ends a list, or the end.
 */
static enum call_progress closed(struct call_json *c, const struct call_input *in, size_t *at)
{
    size_t blanks = blank_prefix(in->text + *at, in->len - *at);
    *at += blanks;
    if (blanks)
        return CALL_MORE; /* on their own, so that they never count as raw text of what follows */
    char byte = in->text[*at];
    if (byte == '{') {
        reset(c);
        return CALL_MORE;
    }
    if (byte == (c->close_tag ? '}' : ';') || (c->is_list && (byte == ',' || byte == ']'))) {
        ++*at;
        return CALL_MORE;
    }
    if (c->close_tag) {
        enum marker_match match =
            marker_at(in->text + *at, in->len - *at, c->close_tag, in->is_end);
        if (match == MARKER_MAYBE)
            return CALL_MORE;
        if (match == MARKER_YES)
            *at += strlen(c->close_tag);
    }
    return CALL_DONE;
}

static enum call_progress broken(struct call_json *c, struct emitter *e,
                                 const struct call_input *in, size_t *at)
{
    struct marker_hit hit =
        marker_find(in->text + *at, in->len - *at, &c->close_tag, c->close_tag ? 1 : 0, in->is_end);
    emit_arguments(e, in->text + *at, hit.at);
    *at += hit.at;
    if (hit.which < 0)
        return CALL_MORE;
    *at += strlen(c->close_tag);
    c->is_valid = false;
    end(c, e);
    return CALL_DONE;
}

/* A byte that does not fit. Arguments already reported are followed by raw text; a missing brace
 * before the closing tag is forgiven. */
static enum call_progress misfit(struct call_json *c, struct emitter *e,
                                 const struct call_input *in, size_t *at)
{
    if (c->is_begun && c->has_arguments) {
        enum marker_match match =
            c->state != AFTER && c->state != KEY_START ? MARKER_NO
            : !c->close_tag                            ? MARKER_NO
                            : marker_at(in->text + *at, in->len - *at, c->close_tag, in->is_end);
        if (match == MARKER_MAYBE)
            return CALL_MORE;
        end(c, e);
        if (match == MARKER_YES) {
            *at += strlen(c->close_tag);
            return CALL_DONE;
        }
        return CALL_REST;
    }
    if (!c->is_begun)
        return CALL_FAILED;
    c->state = BROKEN;
    return CALL_MORE;
}

/* The text ends before the call does. */
static enum call_progress cut_off(struct call_json *c, struct emitter *e,
                                  const struct call_input *in)
{
    if (c->state == CLOSED)
        return CALL_DONE;
    if (!c->is_begun)
        return CALL_FAILED;
    if (c->has_arguments && c->state != BROKEN) {
        end(c, e);
        return CALL_REST;
    }
    c->is_valid = false;
    if (in->reason == PARSER_STOP)
        end(c, e);
    return CALL_DONE;
}

enum call_progress call_json_feed(struct call_json *c, struct emitter *e,
                                  const struct call_input *in, size_t *used)
{
    size_t at = 0;
    enum call_progress progress = CALL_MORE;
    while (progress == CALL_MORE && at < in->len) {
        size_t before = at;
        enum state state = c->state;
        if (state == CLOSED) {
            progress = closed(c, in, &at);
        } else if (state == BROKEN) {
            progress = broken(c, e, in, &at);
        } else if (state == KEY || state == STRING_VALUE || state == ARGUMENTS ||
                   state == SKIPPED) {
            size_t n;
            enum scan_result result = scanned(c, e, in->text + at, in->len - at, &n);
            at += n;
            if (result == SCAN_ERROR)
                progress = misfit(c, e, in, &at);
        } else {
            bool again = false;
            if (!frame_byte(c, e, in->text[at], &again)) {
                c->state = (unsigned char)state;
                progress = misfit(c, e, in, &at);
            } else {
                at += !again;
            }
        }
        c->raw = c->needs_raw ? c->raw + (at - before) : 0;
        if (progress == CALL_MORE && at == before && c->state == (unsigned char)state)
            break; /* a tag that is not complete yet */
    }
    if (progress == CALL_MORE && in->is_end)
        progress = cut_off(c, e, in);
    *used = at;
    e->failed |= c->name.failed || c->token.failed || c->early.failed;
    return progress;
}
