/* The fields of requests: one table. docs/api.md lists the same; a test compares them.
 *
 * A field is honoured, or a label that does not change the answer, or it has a value that asks for
 * nothing; everything else is refused by name. null asks for nothing in any field. */
#include "server/request.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum field_kind {
    FIELD_NUMBER,  /* double at `offset`, in [min, max] */
    FIELD_INT,     /* int32_t */
    FIELD_BOOL,    /* bool */
    FIELD_SWITCH,  /* enum tristate */
    FIELD_STRING,  /* const char * */
    FIELD_CUSTOM,  /* `read` */
    FIELD_LABEL,   /* any value */
    FIELD_NEUTRAL, /* only the values listed in `neutral`, as JSON with '|' between them */
    FIELD_LATER    /* only null: known, but not done */
};

struct field {
    const char *name;
    unsigned apis;
    enum field_kind kind;
    size_t offset;
    double min, max;
    field_reader read;
    const char *neutral;
};

enum {
    C = API_CHAT,
    P = API_COMPLETIONS,
    G = API_GENERATE,
    S = API_SAMPLING,
    OPENAI = C | P,
    ALL = C | P | G | S
};

/* clang-format off */
#define AT(member) offsetof(struct request, member)
#define NUMBER(name, apis, member, min, max) {name, apis, FIELD_NUMBER, AT(member), min, max, 0, 0}
#define INT(name, apis, member, min, max) {name, apis, FIELD_INT, AT(member), min, max, 0, 0}
#define BOOL(name, apis, member) {name, apis, FIELD_BOOL, AT(member), 0, 0, 0, 0}
#define SWITCH(name, apis, member) {name, apis, FIELD_SWITCH, AT(member), 0, 0, 0, 0}
#define STRING(name, apis, member) {name, apis, FIELD_STRING, AT(member), 0, 0, 0, 0}
#define CUSTOM(name, apis, reader) {name, apis, FIELD_CUSTOM, 0, 0, 0, read_##reader, 0}
#define LABEL(name, apis) {name, apis, FIELD_LABEL, 0, 0, 0, 0, 0}
#define NEUTRAL(name, apis, values) {name, apis, FIELD_NEUTRAL, 0, 0, 0, 0, values}
#define LATER(name, apis) {name, apis, FIELD_LATER, 0, 0, 0, 0, 0}

static const struct field fields[] = {
    /* what is asked */
    CUSTOM("model", C | P | G, model),
    CUSTOM("messages", C, messages),
    CUSTOM("prompt", C | P | G, prompt),
    CUSTOM("text", G, prompt),
    CUSTOM("input_ids", G, input_ids),
    CUSTOM("tools", C, tools),
    CUSTOM("tool_choice", C, tool_choice),
    CUSTOM("reasoning_effort", C, effort),
    SWITCH("enable_thinking", C, thinking),
    CUSTOM("chat_template_kwargs", C, kwargs),
    SWITCH("add_generation_prompt", C, adds_generation),
    SWITCH("continue_final_message", C, continues),
    BOOL("add_special_tokens", P, adds_special),
    BOOL("echo", P, echo),
    STRING("rid", G, rid),
    /* how it is answered */
    BOOL("stream", C | P | G, is_stream),
    CUSTOM("stream_options", OPENAI, stream_options),
    BOOL("logprobs", C, has_logprobs),
    INT("top_logprobs", C, top_logprobs, 0, MAX_LOGPROBS),
    CUSTOM("logprobs", P, completion_logprobs),
    /* how tokens are drawn, and when they end */
    CUSTOM("sampling_params", G, sampling_params),
    INT("max_tokens", C | P | G, settings.max_tokens, 1, INT32_MAX),
    INT("max_completion_tokens", C, settings.max_tokens, 1, INT32_MAX),
    INT("max_new_tokens", S, settings.max_tokens, 1, INT32_MAX),
    INT("min_tokens", OPENAI, settings.min_tokens, 0, INT32_MAX),
    INT("min_new_tokens", S, settings.min_tokens, 0, INT32_MAX),
    INT("n", C | P | S, n, 1, MAX_N),
    NUMBER("temperature", ALL, settings.temperature, 0, 2),
    NUMBER("top_p", ALL, settings.top_p, 0, 1),
    CUSTOM("top_k", ALL, top_k),
    NUMBER("min_p", ALL, settings.min_p, 0, 1),
    NUMBER("repetition_penalty", ALL, settings.repetition_penalty, 1e-3, 1e3),
    NUMBER("presence_penalty", ALL, settings.presence_penalty, -2, 2),
    NUMBER("frequency_penalty", ALL, settings.frequency_penalty, -2, 2),
    CUSTOM("logit_bias", C | P | S, logit_bias),
    CUSTOM("seed", C | P | G, seed),
    CUSTOM("sampling_seed", S, seed),
    CUSTOM("stop", ALL, stop),
    CUSTOM("stop_token_ids", C | P | S, stop_token_ids),
    BOOL("ignore_eos", ALL, ignores_eos),
    STRING("cache_salt", OPENAI, cache_salt),
    /* labels */
    LABEL("user", OPENAI),
    LABEL("metadata", OPENAI),
    LABEL("store", OPENAI),
    LABEL("service_tier", OPENAI),
    LABEL("safety_identifier", OPENAI),
    LABEL("prompt_cache_key", OPENAI),
    LABEL("prompt_cache_retention", OPENAI),
    /* values that ask for nothing */
    NEUTRAL("best_of", P, "1"),
    NEUTRAL("suffix", P, "\"\""),
    NEUTRAL("echo", C, "false"),
    NEUTRAL("add_special_tokens", C, "false"),
    NEUTRAL("response_format", OPENAI, "{\"type\": \"text\"}"),
    NEUTRAL("parallel_tool_calls", C, "true"),
    NEUTRAL("functions", C, "[]"),
    NEUTRAL("function_call", C, "\"none\"|\"auto\""),
    NEUTRAL("modalities", C, "[\"text\"]"),
    NEUTRAL("verbosity", C, "\"medium\""),
    NEUTRAL("skip_special_tokens", C | P | S, "true"),
    NEUTRAL("spaces_between_special_tokens", C | P | S, "true"),
    NEUTRAL("include_stop_str_in_output", OPENAI, "false"),
    NEUTRAL("no_stop_trim", S, "false"),
    NEUTRAL("separate_reasoning", C, "true"),
    NEUTRAL("stream_reasoning", C, "true"),
    NEUTRAL("use_beam_search", OPENAI, "false"),
    NEUTRAL("length_penalty", OPENAI, "1"),
    NEUTRAL("return_logprob", G, "false"),
    NEUTRAL("n", G, "1"),
    /* known, but not done: refused with a sentence of their own */
    LATER("audio", C),
    LATER("prediction", C),
    LATER("web_search_options", C),
    LATER("prompt_logprobs", OPENAI),
    LATER("guided_json", OPENAI),
    LATER("guided_regex", OPENAI),
    LATER("guided_choice", OPENAI),
    LATER("guided_grammar", OPENAI),
    LATER("structured_outputs", OPENAI),
    LATER("regex", OPENAI | S),
    LATER("ebnf", OPENAI | S),
    LATER("json_schema", S),
    LATER("grammar", OPENAI),
    LATER("image_data", G),
    LATER("lora_path", OPENAI | G),
};
/* clang-format on */

bool fields_list(size_t index, const char **name, unsigned *apis)
{
    if (index >= sizeof fields / sizeof *fields)
        return false;
    *name = fields[index].name;
    *apis = fields[index].apis;
    return true;
}

static const struct field *find_field(const char *name, size_t len, enum api api)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct field *f = &fields[i];
        if ((f->apis & (unsigned)api) && strlen(f->name) == len && memcmp(f->name, name, len) == 0)
            return f;
    }
    return NULL;
}

/* "'x' must be between 0 and 2." */
static enum status refuse_range(const struct field *f, const char *param, const struct json *value,
                                const char *what, struct refusal *refusal)
{
    char text[128];
    snprintf(text, sizeof text, "%s from %.10g to %.10g", what, f->min, f->max);
    return refuse_value(refusal, param, value, text);
}

static bool values_equal(const struct json *value, const char *neutral, size_t len)
{
    struct str text = {0};
    bool is_equal;
    if (value->type == JT_NUMBER) {
        char *end;
        is_equal = strtod(neutral, &end) == json_number(value, 0) && end != neutral;
    } else {
        json_write(&text, value);
        is_equal = text.len == len && memcmp(str_z(&text), neutral, len) == 0;
    }
    str_done(&text);
    return is_equal;
}

static enum status read_neutral(const struct field *f, const char *param, const struct json *value,
                                struct refusal *refusal)
{
    for (const char *at = f->neutral; *at;) {
        size_t len = strcspn(at, "|");
        if (values_equal(value, at, len))
            return OK;
        at += len + (at[len] == '|');
    }
    struct str text = {0};
    json_write(&text, value);
    refuse(refusal, 400, "unsupported_value", param,
           "'%s' of %.80s is not supported by this server; leave the field out (or send %s).",
           param, str_z(&text), f->neutral);
    str_done(&text);
    return ERROR_INVALID;
}

static enum status read_field(struct request *r, const struct field *f, const char *param,
                              const struct json *value, struct refusal *refusal)
{
    char *target = (char *)r + f->offset;
    int64_t whole;
    switch (f->kind) {
    case FIELD_NUMBER: {
        double number = json_number(value, 0);
        if (value->type != JT_NUMBER || !(number >= f->min && number <= f->max))
            return refuse_range(f, param, value, "a number", refusal);
        memcpy(target, &number, sizeof number);
        return OK;
    }
    case FIELD_INT:
        if (!json_int(value, (int64_t)f->min, (int64_t)f->max, &whole))
            return refuse_range(f, param, value, "a whole number", refusal);
        *(int32_t *)(void *)target = (int32_t)whole;
        return OK;
    case FIELD_BOOL:
        if (value->type != JT_BOOL)
            return refuse_value(refusal, param, value, "true or false");
        *(bool *)target = value->boolean;
        return OK;
    case FIELD_SWITCH:
        if (value->type != JT_BOOL)
            return refuse_value(refusal, param, value, "true or false");
        *(enum tristate *)(void *)target = value->boolean ? YES : NO;
        return OK;
    case FIELD_STRING: {
        const char *text = json_string(value);
        if (!text)
            return refuse_value(refusal, param, value, "a string");
        memcpy(target, &text, sizeof text);
        return OK;
    }
    case FIELD_CUSTOM:
        return f->read(r, value, param, refusal);
    case FIELD_NEUTRAL:
        return read_neutral(f, param, value, refusal);
    case FIELD_LATER:
        return refuse(refusal, 400, "unsupported_parameter", param,
                      "'%s' is not supported by this server; leave it out.", param);
    default: /* FIELD_LABEL */
        return OK;
    }
}

enum status fields_read(struct request *request, const struct json *object, enum api api,
                        const char *prefix, struct refusal *refusal)
{
    for (size_t i = 0; i < object->n; i++) {
        const struct json_member *m = &object->members[i];
        char param[80];
        snprintf(param, sizeof param, "%s%s", prefix, m->key);
        if (m->value.type == JT_NULL)
            continue;
        const struct field *f = find_field(m->key, m->key_len, api);
        if (!f)
            return refuse(refusal, 400, "unknown_parameter", param,
                          "'%s' is not a field of this endpoint that the server knows; docs/api.md "
                          "lists those it knows.",
                          param);
        enum status status = read_field(request, f, param, &m->value, refusal);
        if (status != OK)
            return status;
    }
    return OK;
}
