/* Text with tags: <think> around reasoning, <answer> around content, tags around calls, or a bare
 * JSON object that is the whole message. Without any of them the text passes through as it is. */
#include "parser/call.h"
#include "parser/format.h"

#include <stdlib.h>
#include <string.h>

static const char think_open[] = "<think>", think_close[] = "</think>";
static const char answer_open[] = "<answer>", answer_close[] = "</answer>";
static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>";
static const char list_open[] = "<tool_calls>", list_close[] = "</tool_calls>";
static const char function_open[] = "<function=", python_tag[] = "<|python_tag|>";
static const char marked_list_open[] = "<｜tool▁calls▁begin｜>";
static const char marked_call_open[] = "<｜tool▁call▁begin｜>";

enum place { IN_CONTENT, IN_REASONING, IN_JSON, IN_XML, IN_DEEPSEEK };
enum { MAX_TAGS = 3 };

struct tagged {
    bool is_thinking;           /* think tags count */
    bool is_answer;             /* answer tags do, too */
    const char *tags[MAX_TAGS]; /* that count inside content; those that begin calls first */
    int n_tags, n_call_tags;
    enum parser_tools tools_format;
    const struct json *tools;
    bool keep_control;
    size_t max_bytes;
    enum place place;
    struct prose reasoning, content;
    struct str held; /* text not reported yet */
    size_t from;     /* in `held`: what lies before is done with */
    size_t read;     /* what lies before has been read by the call machine, >= from */
    struct call_json json;
    struct call_xml xml;
    struct call_deepseek deepseek;
};

/* The last occurrence of `tag` in `text`: its offset + 1, or 0. */
static size_t find_last(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag);
    for (size_t at = len + 1; at-- > n;)
        if (memcmp(text + at - n, tag, n) == 0)
            return at - n + 1;
    return 0;
}

/* The state that the prompt leaves: inside reasoning, behind it, or in the middle of prefilled
 * text. */
static void seed(struct tagged *t, const struct format_setup *setup)
{
    size_t open = find_last(setup->tail, setup->tail_len, think_open);
    size_t close = find_last(setup->tail, setup->tail_len, think_close);
    size_t begin = open > close ? open : close;
    bool is_open = open > close || (t->is_thinking && !begin &&
                                    setup->config->reasoning == PARSER_REASONING_DEEPSEEK_R1);
    if (!t->is_thinking)
        return;
    struct prose *now = is_open ? &t->reasoning : &t->content;
    t->place = is_open ? IN_REASONING : IN_CONTENT;
    now->skip_lines = begin || is_open;
    size_t skip = begin ? begin - 1 + strlen(open > close ? think_open : think_close) : 0;
    now->has_text =
        begin && blank_prefix(setup->tail + skip, setup->tail_len - skip) < setup->tail_len - skip;
}

static void tagged_free(void *state)
{
    struct tagged *t = state;
    str_done(&t->reasoning.pending);
    str_done(&t->content.pending);
    str_done(&t->held);
    call_json_done(&t->json);
    call_xml_done(&t->xml);
    call_deepseek_done(&t->deepseek);
    free(t);
}

static void choose_tags(struct tagged *t)
{
    if (t->tools_format == PARSER_TOOLS_QWEN25 || t->tools_format == PARSER_TOOLS_QWEN3_CODER ||
        t->tools_format == PARSER_TOOLS_GLM)
        t->tags[t->n_tags++] = call_open;
    if (t->tools_format == PARSER_TOOLS_QWEN3_CODER)
        t->tags[t->n_tags++] = function_open;
    if (t->tools_format == PARSER_TOOLS_LLAMA3)
        t->tags[t->n_tags++] = python_tag;
    if (t->tools_format == PARSER_TOOLS_HUNYUAN)
        t->tags[t->n_tags++] = list_open;
    if (t->tools_format == PARSER_TOOLS_DEEPSEEK) {
        t->tags[t->n_tags++] = marked_list_open;
        t->tags[t->n_tags++] = marked_call_open;
    }
    t->n_call_tags = t->n_tags;
    if (t->is_answer)
        t->tags[t->n_tags++] = answer_close;
}

static enum status tagged_make(const struct format_setup *setup, struct emitter *e, void **state,
                               struct error *error)
{
    (void)e;
    struct tagged *t = calloc(1, sizeof *t);
    if (!t)
        return error_memory(error, sizeof *t);
    *state = t;
    t->is_answer = setup->config->reasoning == PARSER_REASONING_HUNYUAN;
    t->is_thinking = t->is_answer || setup->config->reasoning == PARSER_REASONING_QWEN3 ||
                     setup->config->reasoning == PARSER_REASONING_DEEPSEEK_R1;
    t->tools_format = setup->tools ? setup->config->tools : PARSER_TOOLS_NONE;
    if (t->tools_format == PARSER_TOOLS_AUTO)
        t->tools_format = PARSER_TOOLS_NONE;
    choose_tags(t);
    t->tools = setup->tools;
    t->keep_control = setup->config->keep_control_tokens;
    t->max_bytes = setup->max_bytes;
    t->reasoning.is_reasoning = true;
    seed(t, setup);
    return OK;
}

/* Begins reading a call whose opening tag (NULL: none) lies at `from`. */
static void start_call(struct tagged *t, const char *tag)
{
    size_t len = tag ? strlen(tag) : 0;
    t->read = t->from + len;
    if (t->tools_format == PARSER_TOOLS_QWEN3_CODER || t->tools_format == PARSER_TOOLS_GLM) {
        enum call_xml_kind kind = t->tools_format == PARSER_TOOLS_GLM ? CALL_XML_GLM
                                  : tag == function_open              ? CALL_XML_NAMED
                                                                      : CALL_XML_WHOLE;
        call_xml_start(&t->xml, kind, t->tools, &t->content, len);
        t->place = IN_XML;
    } else if (t->tools_format == PARSER_TOOLS_DEEPSEEK) {
        call_deepseek_start(&t->deepseek, &t->content, tag == marked_call_open, len);
        t->place = IN_DEEPSEEK;
    } else {
        bool is_list = tag == list_open;
        const char *close = is_list ? list_close : tag == call_open ? call_close : NULL;
        call_json_start(&t->json, t->tools, &t->content, close, is_list, len);
        t->place = IN_JSON;
    }
}

static void take(struct tagged *t, struct emitter *e, struct prose *prose, size_t n)
{
    if (n)
        prose_push(prose, e, str_z(&t->held) + t->from, n);
    t->from += n;
}

static bool read_reasoning(struct tagged *t, struct emitter *e, bool is_end)
{
    static const char *const tags[] = {think_close};
    const char *text = str_z(&t->held) + t->from;
    size_t len = t->held.len - t->from;
    /* A model may write the <think> that its prompt has written already. */
    if (!t->reasoning.has_text) {
        size_t blanks = blank_prefix(text, len);
        enum marker_match open = marker_at(text + blanks, len - blanks, think_open, is_end);
        if (open == MARKER_MAYBE)
            return false;
        if (open == MARKER_YES) {
            t->from += blanks + strlen(think_open);
            t->reasoning.skip_lines = true;
            return true;
        }
    }
    struct marker_hit hit = marker_find(text, len, tags, 1, is_end);
    take(t, e, &t->reasoning, hit.at);
    if (hit.which < 0)
        return false;
    t->from += strlen(think_close);
    t->place = IN_CONTENT;
    t->content.skip_lines = true;
    return true;
}

/* Behind the blanks that begin the content: tags and a bare object that only count here. */
static enum marker_match read_start(struct tagged *t, const char *text, size_t len, bool is_end)
{
    if (t->is_thinking) {
        enum marker_match open = marker_at(text, len, think_open, is_end);
        enum marker_match close = marker_at(text, len, think_close, is_end);
        if (open == MARKER_MAYBE || close == MARKER_MAYBE)
            return MARKER_MAYBE;
        if (open == MARKER_YES || close == MARKER_YES) {
            t->from += strlen(open == MARKER_YES ? think_open : think_close);
            t->place = open == MARKER_YES ? IN_REASONING : IN_CONTENT;
            *(open == MARKER_YES ? &t->reasoning.skip_lines : &t->content.skip_lines) = true;
            return MARKER_YES;
        }
    }
    if (t->is_answer) {
        enum marker_match open = marker_at(text, len, answer_open, is_end);
        if (open == MARKER_YES) {
            t->from += strlen(answer_open);
            t->content.skip_lines = true;
        }
        if (open != MARKER_NO)
            return open;
    }
    if (t->tools_format == PARSER_TOOLS_LLAMA3 && *text == '{') {
        start_call(t, NULL);
        return MARKER_YES;
    }
    return MARKER_NO;
}

static bool read_content(struct tagged *t, struct emitter *e, bool is_end)
{
    if (!t->content.has_text) {
        take(t, e, &t->content, blank_prefix(str_z(&t->held) + t->from, t->held.len - t->from));
        if (t->from == t->held.len)
            return false;
        enum marker_match start =
            read_start(t, str_z(&t->held) + t->from, t->held.len - t->from, is_end);
        if (start != MARKER_NO)
            return start == MARKER_YES;
    }
    struct marker_hit hit =
        marker_find(str_z(&t->held) + t->from, t->held.len - t->from, t->tags, t->n_tags, is_end);
    take(t, e, &t->content, hit.at);
    if (hit.which < 0)
        return false;
    if (hit.which < t->n_call_tags) {
        start_call(t, t->tags[hit.which]);
    } else {
        t->from += strlen(answer_close);
        prose_at_call(&t->content); /* the blanks around this tag are formatting as well */
    }
    return true;
}

/* Text of a failed call: its first byte is content whatever follows, so that reading goes on. */
static void give_back(struct tagged *t, struct emitter *e)
{
    size_t n = t->from < t->held.len ? 1 : 0;
    for (int i = 0; i < t->n_call_tags; i++)
        if (marker_at(str_z(&t->held) + t->from, t->held.len - t->from, t->tags[i], true) ==
            MARKER_YES)
            n = strlen(t->tags[i]);
    take(t, e, &t->content, n);
}

static bool read_call(struct tagged *t, struct emitter *e, bool is_end, enum parser_reason reason)
{
    struct call_input in = {.text = str_z(&t->held) + t->read,
                            .len = t->held.len - t->read,
                            .is_end = is_end,
                            .reason = reason};
    size_t used, raw;
    enum call_progress progress;
    if (t->place == IN_JSON) {
        progress = call_json_feed(&t->json, e, &in, &used);
        raw = t->json.raw;
    } else if (t->place == IN_XML) {
        progress = call_xml_feed(&t->xml, e, &in, &used);
        raw = t->xml.raw;
    } else {
        progress = call_deepseek_feed(&t->deepseek, e, &in, &used);
        raw = t->deepseek.raw;
    }
    t->read += used;
    t->from = t->read - raw;
    if (progress == CALL_MORE)
        return false;
    t->place = IN_CONTENT;
    if (progress == CALL_FAILED)
        give_back(t, e);
    return true;
}

static enum status run(struct tagged *t, struct emitter *e, bool is_end, enum parser_reason reason,
                       struct error *error)
{
    bool go_on = t->held.len > 0 || is_end;
    while (go_on && !e->failed)
        go_on = t->place == IN_REASONING ? read_reasoning(t, e, is_end)
                : t->place == IN_CONTENT ? read_content(t, e, is_end)
                                         : read_call(t, e, is_end, reason);
    if (t->from) {
        memmove(t->held.data, t->held.data + t->from, t->held.len - t->from);
        t->held.len -= t->from;
        t->read = t->read > t->from ? t->read - t->from : 0;
        t->from = 0;
    }
    return format_check_held(t->held.len + t->reasoning.pending.len + t->content.pending.len +
                                 call_json_held(&t->json) + call_xml_held(&t->xml) +
                                 call_deepseek_held(&t->deepseek),
                             t->max_bytes, error);
}

static enum status tagged_text(void *state, struct emitter *e, const char *text, size_t len,
                               struct error *error)
{
    struct tagged *t = state;
    if (!t->is_thinking && t->tools_format == PARSER_TOOLS_NONE) {
        emit_content(e, text, len);
        return OK;
    }
    str_append(&t->held, text, len);
    if (t->held.failed)
        return error_memory(error, t->held.len + len);
    return run(t, e, false, PARSER_STOP, error);
}

static enum status tagged_control(void *state, struct emitter *e, const char *text, size_t len,
                                  struct error *error)
{
    struct tagged *t = state;
    static const char *const known[] = {think_open,       think_close,      answer_open,
                                        answer_close,     call_open,        call_close,
                                        list_open,        list_close,       python_tag,
                                        "<arg_key>",      "</arg_key>",     "<arg_value>",
                                        "</arg_value>",   marked_list_open, "<｜tool▁calls▁end｜>",
                                        marked_call_open, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"};
    bool is_known = t->keep_control;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= len == strlen(known[i]) && memcmp(text, known[i], len) == 0;
    return is_known ? tagged_text(t, e, text, len, error) : OK;
}

static enum status tagged_finish(void *state, struct emitter *e, enum parser_reason reason,
                                 struct error *error)
{
    struct tagged *t = state;
    enum status status = run(t, e, true, reason, error);
    prose_finish(t->place == IN_REASONING ? &t->reasoning : &t->content, e);
    return status;
}

const struct format format_tagged = {tagged_make, tagged_text, tagged_control, tagged_finish,
                                     tagged_free};
