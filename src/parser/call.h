/* The ways in which tool calls are written inside text: a JSON object, XML-like tags, and
 * DeepSeek's marks. All are machines that are fed the text behind the opening tag and report a call
 * while it comes. */
#ifndef CSGL_PARSER_CALL_H
#define CSGL_PARSER_CALL_H

#include "parser/emitter.h"
#include "parser/json_scan.h"
#include "parser/tools.h"

enum call_progress {
    CALL_MORE,   /* everything up to `used` is understood; wait for more text */
    CALL_DONE,   /* the calls end at `used`; text goes on there */
    CALL_FAILED, /* not a call: the last `raw` bytes used, and what follows, are content */
    CALL_REST    /* the same, behind a call that has ended well */
};

/* What is fed: text that has not been used yet, and whether it is all that comes. */
struct call_input {
    const char *text;
    size_t len;
    bool is_end;
    enum parser_reason reason; /* if is_end */
};

/* {"name": ..., "arguments": {...}}; "parameters" is the same as "arguments". */
struct call_json {
    const struct json *tools;
    struct prose *content; /* is told where calls are */
    const char *close_tag; /* NULL: no tags around it, and the name must be one of the tools */
    bool is_list;          /* the objects may be the items of an array */
    bool needs_raw;        /* what is being read is not reported, its text may yet be content */
    size_t raw;            /* how many bytes of such text have been used, opening tag included */
    bool has_name, has_arguments, has_unknown, is_begun, is_valid;
    unsigned char state, member;
    struct json_scan scan;
    struct str name, token, early; /* token: a key or string being read; early: arguments seen
                                      before the name */
};

/* `tag_len`: bytes of the opening tag before the text that is fed. */
void call_json_start(struct call_json *call, const struct json *tools, struct prose *content,
                     const char *close_tag, bool is_list, size_t tag_len);
enum call_progress call_json_feed(struct call_json *call, struct emitter *e,
                                  const struct call_input *in, size_t *used);
size_t call_json_held(const struct call_json *call);
void call_json_done(struct call_json *call);

/* <function=NAME> <parameter=KEY>VALUE</parameter>... </function>, or as GLM writes it,
 * NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value>... Arguments become a JSON object;
 * values are typed by the tool's schema. */
enum call_xml_kind {
    CALL_XML_WHOLE, /* the text begins before "<function=" */
    CALL_XML_NAMED, /* behind it */
    CALL_XML_GLM    /* before GLM's name */
};

struct call_xml_dialect;

struct call_xml {
    const struct call_xml_dialect *dialect;
    const struct json *tools;
    struct prose *content; /* takes text between parameters, which belongs to no call */
    bool needs_raw, is_begun;
    size_t raw; /* as in call_json */
    unsigned char state;
    size_t n_params;
    const struct json *function;            /* the tool called, or NULL */
    struct str name, value, stray, scratch; /* stray: text between parameters */
    enum param_type types[TOOL_MAX_TYPES];
    int n_types;
    bool is_text, is_guess;               /* the value is a string; it has no schema at all */
    bool is_started, is_block, is_quoted; /* a value: any text, began with a line break, '"' sent */
    bool is_line_end;                     /* the value text used last was a line break */
};

void call_xml_start(struct call_xml *call, enum call_xml_kind kind, const struct json *tools,
                    struct prose *content, size_t tag_len);
enum call_progress call_xml_feed(struct call_xml *call, struct emitter *e,
                                 const struct call_input *in, size_t *used);
size_t call_xml_held(const struct call_xml *call);
void call_xml_done(struct call_xml *call);

/* Calls with a separator behind "function" or the name, as call_deepseek.c describes them. */
struct call_deepseek {
    struct prose *content;
    bool needs_raw, is_begun;
    size_t raw; /* as in call_json */
    unsigned char state;
    bool is_whole;  /* the arguments' object has ended */
    size_t n_ended; /* calls of this list */
    struct json_scan scan;
    struct str name;
};

/* `is_single`: a call without a list around it, whose own mark was the opening tag. */
void call_deepseek_start(struct call_deepseek *call, struct prose *content, bool is_single,
                         size_t tag_len);
enum call_progress call_deepseek_feed(struct call_deepseek *call, struct emitter *e,
                                      const struct call_input *in, size_t *used);
size_t call_deepseek_held(const struct call_deepseek *call);
void call_deepseek_done(struct call_deepseek *call);

#endif
