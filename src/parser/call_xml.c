/* Calls as tags, in two dialects. Values are raw text: they may contain anything, also what looks
 * like their closing tag, so a closing tag counts only if another parameter or the end of the call
 * follows it. */
#include "parser/call.h"

#include <string.h>

enum state {
    HEAD,  /* before <function= */
    NAME,  /* behind it */
    GAP,   /* between parameters */
    VALUE, /* behind <parameter=KEY> */
    AFTER  /* behind </function> */
};

/* Bytes of a function's or parameter's name. */
enum { MAX_NAME = 256 };

static const char function_tag[] = "<function=";
static const char call_close[] = "</tool_call>";
static const char key_close[] = "</arg_key>", value_open[] = "<arg_value>";
enum { TAG_PARAMETER, TAG_CALL_CLOSE, TAG_FUNCTION_CLOSE, MAX_GAP_TAGS };

struct call_xml_dialect {
    const char *gap_tags[MAX_GAP_TAGS]; /* what may stand between parameters */
    int n_gap_tags;
    const char *value_close;
    bool has_lines; /* one line break at each end of a value is formatting */
};

static const struct call_xml_dialect qwen = {
    {"<parameter=", call_close, "</function>"}, 3, "</parameter>", true};
static const struct call_xml_dialect glm = {{"<arg_key>", call_close}, 2, "</arg_value>", false};

static void reset(struct call_xml *c)
{
    c->needs_raw = true;
    c->raw = 0;
    c->is_begun = false;
    c->n_params = 0;
    c->function = NULL;
    str_clear(&c->name);
    str_clear(&c->value);
    str_clear(&c->stray);
}

void call_xml_start(struct call_xml *c, enum call_xml_kind kind, const struct json *tools,
                    struct prose *content, size_t tag_len)
{
    c->dialect = kind == CALL_XML_GLM ? &glm : &qwen;
    c->tools = tools;
    c->content = content;
    reset(c);
    c->raw = tag_len;
    c->state = kind == CALL_XML_WHOLE ? HEAD : NAME;
}

size_t call_xml_held(const struct call_xml *c)
{
    return c->name.len + c->value.len + c->stray.len;
}

void call_xml_done(struct call_xml *c)
{
    str_done(&c->name);
    str_done(&c->value);
    str_done(&c->stray);
    str_done(&c->scratch);
}

static void begin(struct call_xml *c, struct emitter *e)
{
    if (c->is_begun)
        return;
    emit_call_begin(e, str_z(&c->name), c->name.len);
    prose_at_call(c->content);
    c->is_begun = true;
    c->needs_raw = false;
}

/* Behind the call, since it belongs to none; the blanks at its end are formatting. */
static void emit_stray(struct call_xml *c, struct emitter *e)
{
    size_t len = c->stray.len;
    while (len && is_blank(c->stray.data[len - 1]))
        len--;
    if (len)
        prose_push(c->content, e, c->stray.data, len);
    str_clear(&c->stray);
}

static void end(struct call_xml *c, struct emitter *e)
{
    begin(c, e);
    if (!c->n_params)
        emit_arguments(e, "{", 1);
    emit_arguments(e, "}", 1);
    emit_call_end(e, true);
    emit_stray(c, e);
}

/* A name up to '>': 1 and its length, 0 if the text ends too early to say, -1 if it is none. */
static int find_name(const struct call_input *in, size_t at, size_t *len)
{
    size_t i = at;
    while (i < in->len && i - at <= MAX_NAME && in->text[i] != '>') {
        if (in->text[i] == '<' || in->text[i] == '\n')
            return -1;
        i++;
    }
    *len = i - at;
    if (*len > MAX_NAME)
        return -1;
    if (i == in->len)
        return in->is_end ? -1 : 0;
    return *len > 0 ? 1 : -1;
}

/* GLM's name, behind blanks that *at skips: up to the end of the line or the first tag, without the
 * blanks before them; as find_name. */
static int find_bare_name(const struct call_input *in, size_t *at, size_t *len)
{
    *at += blank_prefix(in->text + *at, in->len - *at);
    size_t i = *at;
    while (i < in->len && i - *at <= MAX_NAME && in->text[i] != '<' && in->text[i] != '\n') {
        if (in->text[i] == '{' || in->text[i] == '"')
            return -1; /* an object, as other models write calls */
        i++;
    }
    *len = i - *at;
    if (*len > MAX_NAME) /* with the blanks behind it, or it would depend on what has come by now */
        return -1;
    if (i == in->len)
        return in->is_end ? -1 : 0;
    while (*len && is_blank(in->text[*at + *len - 1]))
        (*len)--;
    return *len > 0 ? 1 : -1;
}

/* The key of a parameter behind its tag, and all that stands before its value: as find_name. */
static int find_key(const struct call_xml *c, const struct call_input *in, size_t at, size_t *len,
                    size_t *used)
{
    if (c->dialect != &glm) {
        int found = find_name(in, at, len);
        *used = *len + 1;
        return found;
    }
    static const char *const closes[] = {key_close};
    size_t left = in->len - at;
    struct marker_hit close = marker_find(in->text + at, left, closes, 1, in->is_end);
    *len = close.at;
    if (*len > MAX_NAME || memchr(in->text + at, '\n', *len))
        return -1;
    if (close.which < 0)
        return in->is_end ? -1 : 0;
    size_t behind = close.at + strlen(key_close);
    behind += blank_prefix(in->text + at + behind, left - behind);
    enum marker_match open =
        marker_at(in->text + at + behind, left - behind, value_open, in->is_end);
    *used = behind + strlen(value_open);
    if (open == MARKER_MAYBE)
        return 0;
    return open == MARKER_YES && *len > 0 ? 1 : -1;
}

static enum call_progress head(struct call_xml *c, const struct call_input *in, size_t *at)
{
    *at += blank_prefix(in->text + *at, in->len - *at);
    switch (marker_at(in->text + *at, in->len - *at, function_tag, in->is_end)) {
    case MARKER_MAYBE:
        return CALL_MORE;
    case MARKER_NO:
        return CALL_FAILED;
    case MARKER_YES:
        break;
    }
    *at += strlen(function_tag);
    c->state = NAME;
    return CALL_MORE;
}

static enum call_progress name(struct call_xml *c, const struct call_input *in, size_t *at)
{
    size_t len;
    bool is_bare = c->dialect == &glm;
    int found = is_bare ? find_bare_name(in, at, &len) : find_name(in, *at, &len);
    if (found <= 0)
        return found ? CALL_FAILED : CALL_MORE;
    const char *text = in->text + *at;
    for (size_t i = 0; i < len; i++)
        if (is_blank(text[i]))
            return CALL_FAILED;
    str_append(&c->name, text, len);
    c->function = tool_find(c->tools, text, len);
    *at += len + !is_bare; /* what ends a bare name may be a tag */
    c->state = GAP;
    return CALL_MORE;
}

/* Quoted and escaped, without the quotes. */
static void emit_escaped(struct call_xml *c, struct emitter *e, const char *text, size_t len)
{
    str_clear(&c->scratch);
    json_write_string(&c->scratch, text, len);
    if (c->scratch.failed)
        e->failed = true;
    else
        emit_arguments(e, c->scratch.data + 1, c->scratch.len - 2);
}

static void start_value(struct call_xml *c, struct emitter *e, const char *key, size_t len)
{
    begin(c, e);
    emit_arguments(e, c->n_params ? ", \"" : "{\"", c->n_params ? 3 : 2);
    emit_escaped(c, e, key, len);
    emit_arguments(e, "\": ", 3);
    c->n_params++;
    bool is_declared;
    const struct json *schema = tool_param(c->function, key, len, &is_declared);
    c->n_types = schema ? tool_types(schema, c->types) : 0;
    c->is_text = c->n_types ? c->types[0] == PARAM_STRING : is_declared && !schema;
    c->is_guess = !c->n_types && !c->is_text;
    c->is_started = c->is_block = c->is_quoted = c->is_line_end = false;
    str_clear(&c->value);
    c->state = VALUE;
}

/* The beginning of a string that could still become null. */
static bool may_be_null(const struct str *value)
{
    return value->len <= 5 && memcmp(str_z(value), "null\n", value->len) == 0;
}

/* Sends the first `n` bytes of the value as (part of) a string. */
static void send_text(struct call_xml *c, struct emitter *e, size_t n)
{
    if (!c->is_quoted)
        emit_arguments(e, "\"", 1);
    c->is_quoted = true;
    emit_escaped(c, e, str_z(&c->value), n);
    if (n < c->value.len)
        memmove(c->value.data, c->value.data + n, c->value.len - n);
    c->value.len -= n;
    if (c->value.data)
        c->value.data[c->value.len] = '\0';
}

/* More of the value. Of Qwen's, one line break at each end is formatting. */
static void value_text(struct call_xml *c, struct emitter *e, const char *text, size_t len)
{
    if (!len)
        return;
    c->is_line_end = text[len - 1] == '\n';
    if (!c->is_started) {
        c->is_started = true;
        c->is_block = c->dialect->has_lines && *text == '\n';
        text += c->is_block;
        len -= c->is_block;
    }
    str_append(&c->value, text, len);
    if (!c->is_text || c->value.failed || (!c->is_quoted && may_be_null(&c->value)))
        return;
    send_text(c, e,
              c->value.len - (c->dialect->has_lines && c->value.data[c->value.len - 1] == '\n'));
}

/* Appends the finished value as JSON if it is not to be a string. */
static bool typed_value(const struct call_xml *c, const char *text, size_t len, struct str *out)
{
    if (len == 4 && memcmp(text, "null", 4) == 0) {
        str_append(out, "null", 4);
        return true;
    }
    if (c->is_text)
        return false;
    if (!c->is_guess)
        return tool_coerce(c->types, c->n_types, text, len, out);
    size_t skip = blank_prefix(text, len);
    while (len > skip && is_blank(text[len - 1]))
        len--;
    if (!json_is_valid(text + skip, len - skip))
        return false;
    str_append(out, text + skip, len - skip);
    return true;
}

static void value_end(struct call_xml *c, struct emitter *e)
{
    size_t len = c->value.len;
    if (c->dialect->has_lines && len && c->value.data[len - 1] == '\n')
        len--;
    str_clear(&c->scratch);
    if (!c->is_quoted && typed_value(c, str_z(&c->value), len, &c->scratch)) {
        emit_arguments(e, str_z(&c->scratch), c->scratch.len);
    } else {
        send_text(c, e, len);
        emit_arguments(e, "\"", 1);
    }
    str_clear(&c->value);
    c->state = GAP;
}

/* Whether a closing tag ends the value, from the text behind it. A value that began on its own line
 * ends on its own line, or at least with one. */
static enum marker_match is_value_end(const struct call_xml *c, const char *text, size_t len,
                                      bool is_end)
{
    size_t blanks = blank_prefix(text, len);
    if (c->is_block && !c->is_line_end && len && text[0] != '\n' && text[0] != '\r')
        return MARKER_NO;
    text += blanks;
    len -= blanks;
    bool is_possible = !len;
    for (int i = 0; i < c->dialect->n_gap_tags; i++) {
        enum marker_match match = marker_at(text, len, c->dialect->gap_tags[i], false);
        if (match == MARKER_YES)
            return MARKER_YES;
        is_possible |= match == MARKER_MAYBE;
    }
    if (!is_possible)
        return MARKER_NO;
    return is_end ? MARKER_YES : MARKER_MAYBE;
}

static enum call_progress value(struct call_xml *c, struct emitter *e, const struct call_input *in,
                                size_t *at)
{
    const char *value_close = c->dialect->value_close;
    const char *text = in->text + *at;
    size_t len = in->len - *at;
    struct marker_hit hit = marker_find(text, len, &value_close, 1, in->is_end);
    value_text(c, e, text, hit.at);
    *at += hit.at;
    if (hit.which < 0)
        return CALL_MORE;
    size_t behind = hit.at + strlen(value_close);
    switch (is_value_end(c, text + behind, len - behind, in->is_end)) {
    case MARKER_MAYBE:
        return CALL_MORE;
    case MARKER_NO:
        value_text(c, e, value_close, strlen(value_close));
        break;
    case MARKER_YES:
        value_end(c, e);
        break;
    }
    *at += strlen(value_close);
    return CALL_MORE;
}

/* Text between parameters: blanks are formatting, the rest is not part of the call. */
static void gap_text(struct call_xml *c, const char *text, size_t len)
{
    size_t skip = c->stray.len ? 0 : blank_prefix(text, len);
    str_append(&c->stray, text + skip, len - skip);
}

static enum call_progress gap(struct call_xml *c, struct emitter *e, const struct call_input *in,
                              size_t *at)
{
    if (!c->is_begun)
        *at += blank_prefix(in->text + *at, in->len - *at);
    const char *text = in->text + *at;
    size_t len = in->len - *at;
    struct marker_hit hit =
        marker_find(text, len, c->dialect->gap_tags, c->dialect->n_gap_tags, in->is_end);
    if (!c->is_begun && hit.at)
        return CALL_FAILED;
    size_t n_key = 0, used = 0, tag = hit.which < 0 ? 0 : strlen(c->dialect->gap_tags[hit.which]);
    int found = hit.which == TAG_PARAMETER ? find_key(c, in, *at + hit.at + tag, &n_key, &used) : 1;
    if (found < 0 && !c->is_begun)
        return CALL_FAILED;
    gap_text(c, text, hit.at);
    *at += hit.at;
    if (hit.which < 0 || found == 0)
        return CALL_MORE;
    text += hit.at + tag;
    *at += tag;
    if (found < 0) {
        str_append(&c->stray, c->dialect->gap_tags[TAG_PARAMETER], tag);
    } else if (hit.which == TAG_PARAMETER) {
        start_value(c, e, text, n_key);
        *at += used;
    } else {
        end(c, e);
        c->state = AFTER;
        return hit.which == TAG_CALL_CLOSE ? CALL_DONE : CALL_MORE;
    }
    return CALL_MORE;
}

static enum call_progress after(struct call_xml *c, const struct call_input *in, size_t *at)
{
    size_t blanks = blank_prefix(in->text + *at, in->len - *at);
    const char *text = in->text + *at + blanks;
    size_t len = in->len - *at - blanks;
    enum marker_match close = marker_at(text, len, call_close, in->is_end);
    enum marker_match next = marker_at(text, len, function_tag, in->is_end);
    if (close == MARKER_YES) {
        *at += blanks + strlen(call_close);
        return CALL_DONE;
    }
    if (next == MARKER_YES) {
        *at += blanks;
        reset(c);
        c->state = HEAD;
        return CALL_MORE;
    }
    return close == MARKER_MAYBE || next == MARKER_MAYBE ? CALL_MORE : CALL_DONE;
}

/* The text ends before the call does. */
static enum call_progress cut_off(struct call_xml *c, struct emitter *e,
                                  const struct call_input *in)
{
    if (c->state == AFTER)
        return CALL_DONE;
    if (!c->is_begun)
        return CALL_FAILED;
    if (c->state == GAP && in->reason == PARSER_STOP) {
        end(c, e);
        return CALL_DONE;
    }
    if (c->state == VALUE) {
        if (c->value.len)
            send_text(c, e, c->value.len);
        if (in->reason == PARSER_STOP)
            emit_call_end(e, false);
    }
    emit_stray(c, e);
    return CALL_DONE;
}

/* At the end of the output the beginning of a tag is no stray text. */
static bool is_cut_tag(const struct call_xml *c, const char *text, size_t len)
{
    size_t blanks = blank_prefix(text, len);
    text += blanks;
    len -= blanks;
    for (int i = 0; i < c->dialect->n_gap_tags; i++)
        if (marker_at(text, len, c->dialect->gap_tags[i], false) == MARKER_MAYBE)
            return true;
    return false;
}

enum call_progress call_xml_feed(struct call_xml *c, struct emitter *e, const struct call_input *in,
                                 size_t *used)
{
    size_t at = 0;
    enum call_progress progress = CALL_MORE;
    while (progress == CALL_MORE && at < in->len) {
        size_t before = at;
        enum state state = c->state;
        switch (state) {
        case HEAD:
            progress = head(c, in, &at);
            break;
        case NAME:
            progress = name(c, in, &at);
            break;
        case GAP:
            if (in->is_end && c->is_begun && is_cut_tag(c, in->text + at, in->len - at))
                at = in->len;
            else
                progress = gap(c, e, in, &at);
            break;
        case VALUE:
            progress = value(c, e, in, &at);
            break;
        case AFTER:
            progress = after(c, in, &at);
            break;
        }
        c->raw = c->needs_raw ? c->raw + (at - before) : 0;
        if (progress == CALL_MORE && at == before && c->state == (unsigned char)state)
            break;
    }
    if (progress == CALL_MORE && in->is_end)
        progress = cut_off(c, e, in);
    *used = at;
    e->failed |= c->name.failed || c->value.failed || c->stray.failed || c->scratch.failed;
    return progress;
}
