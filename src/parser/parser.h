/* The streaming parser of model output: turns pieces of text into reasoning, content and tool
 * calls.
 *
 * One parser a choice; it runs where the pieces arrive and knows neither models nor HTTP. Whatever
 * way the output is cut into pieces, the concatenated events are the same.
 *
 * What to expect of the events:
 *  - Line breaks behind <think> and </think>, and blanks before </think> and around tool calls, are
 *    formatting and are not reported. Trailing blanks are held until other text follows them.
 *  - Tool calls are looked for only if the request has tools; otherwise their text is content. Tags
 *    inside reasoning are reasoning.
 *  - A call begins when its name and the start of its arguments are known. A malformed call comes
 *    back as content, tags included. If that shows only after its beginning was reported, its raw
 *    text stays in the arguments, which are then not valid JSON (is_valid is false).
 *  - Output cut off by length inside a call: as content if the call had not begun; otherwise the
 *    arguments seen so far stay and no PARSER_CALL_END follows. The collected message shows the
 *    same.
 *  - Arguments are JSON text: the concatenated deltas of a call. No arguments are "{}".
 *  - A declared response_template reports a call as a whole, when its region closes; the older
 *    response_schema can only be applied to whole output and reports everything at the end. */
#ifndef CSGL_PARSER_PARSER_H
#define CSGL_PARSER_PARSER_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

/* How reasoning is marked. */
enum parser_reasoning {
    PARSER_REASONING_AUTO,
    PARSER_REASONING_NONE,
    PARSER_REASONING_QWEN3,       /* <think>...</think>, open if the prompt leaves it open */
    PARSER_REASONING_DEEPSEEK_R1, /* the same, and open unless the prompt has closed it */
    PARSER_REASONING_HUNYUAN,     /* as QWEN3, and <answer>...</answer> around the content */
    PARSER_REASONING_GPT_OSS      /* harmony channels */
};

/* How tool calls are written. */
enum parser_tools {
    PARSER_TOOLS_AUTO,
    PARSER_TOOLS_NONE,
    PARSER_TOOLS_QWEN25, /* <tool_call>{"name", "arguments"}</tool_call>, also Hermes and Qwen3 */
    PARSER_TOOLS_QWEN3_CODER, /* <tool_call><function=NAME><parameter=KEY>..., also Qwen3.5 to 3.8
                               */
    PARSER_TOOLS_GLM,      /* <tool_call>NAME<arg_key>KEY</arg_key><arg_value>..., GLM 4.5 to 4.7 */
    PARSER_TOOLS_LLAMA3,   /* {"name", "parameters"} as the whole message */
    PARSER_TOOLS_HUNYUAN,  /* <tool_calls>[{"name", "arguments"}, ...]</tool_calls> */
    PARSER_TOOLS_DEEPSEEK, /* V3, R1 and V3.1: name and arguments between marks */
    PARSER_TOOLS_GPT_OSS   /* harmony: a recipient functions.NAME */
};

/* A response_template or response_schema, compiled: immutable, shared by the parsers of a model. */
struct parser_response;

struct parser_config {
    enum parser_reasoning reasoning;
    enum parser_tools tools;
    const struct parser_response *response; /* borrowed; if set, it alone decides */
    bool keep_control_tokens;               /* the request's skip_special_tokens is false */
    size_t max_held_bytes;                  /* 0: PARSER_MAX_HELD_BYTES */
};

enum { PARSER_MAX_HELD_BYTES = 64 << 20 };

/* The names of --reasoning-parser (auto, none, qwen3, deepseek-r1, hunyuan, gpt-oss) and
 * --tool-call-parser (auto, none, qwen25, qwen, hermes, qwen3_coder, llama3, hunyuan, deepseekv3,
 * deepseekv31, glm45, glm47, gpt-oss); '-' and '_' are the same.
 * ERROR_INVALID lists them. */
enum status parser_reasoning_named(const char *name, enum parser_reasoning *out,
                                   struct error *error);
enum status parser_tools_named(const char *name, enum parser_tools *out, struct error *error);

/* Replaces AUTO in `config` by what the chat template's text (NULL: none) shows, or by NONE. Keeps
 * config->response only if both were AUTO: a parser asked for by name is used. */
void parser_choose(struct parser_config *config, const char *chat_template);

/* Compiles response_template, or else response_schema, of a tokenizer_config.json tree (which need
 * not outlive the call). `*out` is NULL if the file has neither; the caller frees it. */
enum status parser_response_new(const struct json *tokenizer_config, struct parser_response **out,
                                struct error *error);
void parser_response_free(struct parser_response *response);

enum parser_event_type {
    PARSER_REASONING,      /* text: a delta */
    PARSER_CONTENT,        /* text: a delta */
    PARSER_CALL_BEGIN,     /* text: the name; call: 0, 1, ... in order */
    PARSER_CALL_ARGUMENTS, /* text: a delta of JSON text */
    PARSER_CALL_END        /* is_valid: the arguments are one JSON object */
};

struct parser_event {
    enum parser_event_type type;
    bool is_valid;
    size_t call; /* index of the tool call */
    const char *text;
    size_t len;
    size_t offset; /* private */
};

enum parser_reason {
    PARSER_STOP,  /* the model ended, or a stop string was met */
    PARSER_LENGTH /* cut off by a limit */
};

struct output_parser;

/* A parser for one choice. `prompt_tail` is the rendered prompt behind the last assistant anchor
 * (copied as far as needed): it decides whether the output starts inside reasoning. `tools` is the
 * request's array or NULL; borrowed until output_parser_free. `config` has no AUTO left (AUTO is
 * NONE) and is copied. */
enum status output_parser_new(const struct parser_config *config, const char *prompt_tail,
                              size_t tail_len, const struct json *tools, struct output_parser **out,
                              struct error *error);
void output_parser_free(struct output_parser *parser);

/* Reads the next piece. `is_control`: the piece is the whole content of one special token; it is a
 * marker if the format knows it, and otherwise dropped (or content: keep_control_tokens). Bytes
 * that are not UTF-8 become U+FFFD. ERROR_LIMIT if more than max_held_bytes would have to be held.
 */
enum status output_parser_push(struct output_parser *parser, const char *text, size_t len,
                               bool is_control, struct error *error);

/* The output is at its end; call once, no push may follow. */
enum status output_parser_finish(struct output_parser *parser, enum parser_reason reason,
                                 struct error *error);

/* The events of the last push or finish; neighbouring deltas of one kind are one event. Borrowed
 * until the next call on the parser. */
const struct parser_event *output_parser_events(const struct output_parser *parser, size_t *n);

/* Calls that ended so far: finish_reason is tool_calls if this is not 0. */
size_t output_parser_n_ended_calls(const struct output_parser *parser);

struct parser_call {
    struct str name, arguments;
    bool is_ended, is_valid;
};

/* A whole message, collected from events. Zero-initialise, add, parser_message_done. */
struct parser_message {
    struct str reasoning, content;
    struct parser_call *calls;
    size_t n_calls, calls_cap;
};

enum status parser_message_add(struct parser_message *message, const struct parser_event *events,
                               size_t n, struct error *error);
void parser_message_done(struct parser_message *message);

#endif
