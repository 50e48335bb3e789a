/* A request to generate, as read from its JSON body: checked, and ready to be sent. */
#ifndef CSGL_SERVER_REQUEST_H
#define CSGL_SERVER_REQUEST_H

#include "base/json.h"
#include "message/message.h"
#include "server/refusal.h"
#include "server/server.h"

#include <stdbool.h>

enum {
    MAX_N = 128,        /* answers a prompt */
    MAX_CHOICES = 1024, /* answers a request: prompts times n */
    MAX_STOP = 16,
    MAX_STOP_BYTES = 1024,
    MAX_BIASES = 4096,
    MAX_STOP_TOKENS = 256,
    MAX_LOGPROBS = 20,
    MAX_TOOLS = 512
};

/* Which endpoints a field belongs to. */
enum api {
    API_CHAT = 1,
    API_COMPLETIONS = 2,
    API_GENERATE = 4,
    API_SAMPLING = 8 /* inside "sampling_params" of /generate */
};

struct prompt {
    enum prompt_kind kind;
    struct bytes text;
    struct i32s ids;
};

/* Whether a switch was given. */
enum tristate { UNSET, NO, YES };

/* What the reader has to know of the server. */
struct request_setup {
    const struct server_options *options;
    const struct json *default_kwargs; /* an object, or NULL */
    bool knows_xhigh;                  /* the chat template has this word for high effort */
    uint64_t vocab_size;               /* 0: not known yet */
};

struct request {
    const struct request_setup *setup;
    enum api api;
    struct arena arena; /* of the body's tree and all below */
    struct prompt *prompts;
    size_t n_prompts;
    const struct json *messages, *tools; /* NULL: none */
    const struct json *kwargs;           /* the request's own; NULL: none */
    const char *effort;                  /* NULL: not given */
    const char *rid, *cache_salt;        /* NULL: not given */
    enum tristate thinking, adds_generation, continues;
    int32_t n, top_logprobs;
    bool is_stream, include_usage, has_stream_options;
    bool has_logprobs, has_seed, echo, hides_tools, adds_special, ignores_eos;
    bool is_sglang; /* /generate in the form of SGLang, not of mini-sglang */
    /* Ready to be sent but for uid, prompt and choice. */
    struct prompt_message settings;
    struct str messages_text, tools_text, kwargs_text; /* JSON, of a chat */
};

/* Reads `body`; on refusal says why. request_done in either case. */
enum status request_read(struct request *request, const struct request_setup *setup, enum api api,
                         const char *body, size_t bytes, struct refusal *refusal);
void request_done(struct request *request);

/* --- among the files that read requests ------------------------------------------------------- */

/* fields.c: reads the members of one object by the table of fields; `prefix` goes before their
 * names in refusals ("sampling_params."). */
enum status fields_read(struct request *request, const struct json *object, enum api api,
                        const char *prefix, struct refusal *refusal);

/* Row `index` of the table: its name and a set of enum api; false behind the last. */
bool fields_list(size_t index, const char **name, unsigned *apis);

/* The readers of fields that are more than a number or a switch. `param` is the name to show. */
typedef enum status (*field_reader)(struct request *request, const struct json *value,
                                    const char *param, struct refusal *refusal);
#define FIELD_READERS(X)                                                                           \
    X(model)                                                                                       \
    X(messages)                                                                                    \
    X(prompt)                                                                                      \
    X(input_ids)                                                                                   \
    X(sampling_params)                                                                             \
    X(stream_options)                                                                              \
    X(seed)                                                                                        \
    X(stop)                                                                                        \
    X(stop_token_ids)                                                                              \
    X(logit_bias)                                                                                  \
    X(completion_logprobs)                                                                         \
    X(tools)                                                                                       \
    X(tool_choice)                                                                                 \
    X(effort)                                                                                      \
    X(kwargs)                                                                                      \
    X(top_k)
#define DECLARE_READER(name)                                                                       \
    enum status read_##name(struct request *, const struct json *, const char *, struct refusal *);
FIELD_READERS(DECLARE_READER)
#undef DECLARE_READER

/* kwargs.c: the template's variables into request->kwargs_text; empty if there are none. */
enum status kwargs_build(struct request *request, struct refusal *refusal);

/* True if the name is served: the served name, its last path component, or an alias. */
bool model_is_served(const struct server_options *options, const char *name);

#endif
