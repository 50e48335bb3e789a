/* Chat templates: the messages, tools and switches of a request become the model's prompt, byte for
 * byte as transformers' apply_chat_template would write it for the same (normalised) messages.
 *
 * What is normalised before rendering, because clients speak OpenAI's dialect and templates Hugging
 * Face's:
 * - keys with the value null are dropped, as is an empty tool_calls;
 * - content null or absent becomes "", or stays none if the template asks whether content is none;
 * - content parts become {"type": "text", "text": ...}; if the template never walks over content
 * they are joined by newlines into one string; a string is wrapped into one part if the template
 * walks over content without asking whether it is a string; other kinds of parts are ERROR_INVALID;
 * - tool_calls[].function.arguments, a string of JSON, becomes an object; text that is no JSON
 * object becomes
 *   {"value": ...}; if the template only ever prints arguments or adds them to strings, text stays
 * text and objects become it;
 * - reasoning_content gets the value of a lone reasoning, and is copied to the key thinking for
 * templates that know only that one (gpt-oss);
 * - the role developer becomes system unless the template knows developer. */
#ifndef CSGL_TEMPLATE_CHAT_TEMPLATE_H
#define CSGL_TEMPLATE_CHAT_TEMPLATE_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* Compiles the source, which is not kept. The template never changes, so any number of threads may
 * render it at a time. ERROR_INVALID and ERROR_UNSUPPORTED name the line, ERROR_LIMIT the limit. */
enum status chat_template_new(struct chat_template **out, const char *source, size_t len,
                              struct error *error);
void chat_template_free(struct chat_template *t);

/* A special token as templates know it: "bos_token" and its text. */
struct chat_token {
    const char *name;
    const char *text;
};

enum { CHAT_MAX_TOKENS = 8 };

/* Everything is borrowed for the call. */
struct chat_input {
    const struct json *messages; /* an array of OpenAI's messages */
    const struct json *tools;    /* an array; NULL, null and [] are no tools */
    const struct json
        *kwargs; /* chat_template_kwargs: an object, or NULL. Further variables; documents
                    and special tokens may be among them, tools is ignored, and the names
                    that apply_chat_template reserves are ERROR_INVALID */
    const struct chat_token *tokens;
    size_t n_tokens;
    bool add_generation_prompt;
    bool continue_final_message; /* the text ends with the last message's content, unclosed;
                                    excludes add_generation_prompt */
    int64_t now;                 /* seconds since 1970 for strftime_now; 0 is the present */
};

struct chat_output {
    struct str text;
    /* Where the output of each message begins: [n_messages] byte offsets. It is where the first
     * iteration of a for over the messages (or a slice, reversal or selection of them) that printed
     * anything for this message began. Messages that no loop prints begin at 0 if they come before
     * the first that one does (a system prompt in the header), else where the next printed message
     * begins or the text ends. */
    size_t *message_starts;
    size_t n_messages;
    /* The end of the part with the system prompt and the tools: the begin of the first message of
     * another role, or 0 if no loop printed that one. */
    size_t header_end;
};

/* Renders into `out`, which the caller ends with chat_output_done whatever the status.
 * ERROR_INVALID: malformed messages, the template's own raise_exception (its message alone), or an
 * error in the template with its line; ERROR_LIMIT: one of the limits of eval.h. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *input,
                                 struct chat_output *out, struct error *error);
void chat_output_done(struct chat_output *out);

/* The same from JSON text. `tools` and `kwargs` may be empty. Errors name the field that is wrong.
 */
struct chat_texts {
    struct {
        const char *text;
        size_t len;
    } messages, tools, kwargs;
};

enum status chat_template_render_json(const struct chat_template *t, const struct chat_texts *texts,
                                      const struct chat_input *rest, struct chat_output *out,
                                      struct error *error);

/* Where the text behind the last message begins: what `whole`, the chat's output, has and would not
 * have without a generation prompt. A final message that is continued is part of it. */
size_t chat_template_tail(const struct chat_template *t, const struct chat_texts *texts,
                          const struct chat_input *input, const struct chat_output *whole);

enum { CHAT_MAX_MARKS = 3 };

/* The places of the output, ascending, at which another chat is likely to part from this one: the
 * end of its header, the begin of its last message and that of its tail. Returns how many. */
size_t chat_output_marks(const struct chat_output *out, size_t tail, size_t marks[CHAT_MAX_MARKS]);

/* The template inside a tokenizer_config.json: chat_template is a string, or a list of {name,
 * template}, of which "tool_use" is for requests with tools (`has_tools`) and "default" for the
 * others. Borrowed from the tree. ERROR_NOT_FOUND if there is none. */
enum status chat_template_find(const struct json *config, bool has_tools, const char **source,
                               size_t *len, struct error *error);

/* bos_token, eos_token, ... of a tokenizer_config.json, strings or {"content": ...}; returns how
 * many. Borrowed from the tree. */
size_t chat_tokens_read(const struct json *config, struct chat_token tokens[CHAT_MAX_TOKENS]);

#endif
