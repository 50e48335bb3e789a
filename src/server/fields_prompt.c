/* Readers of the fields that say what is asked: model, messages, prompts, tools. */
#include "server/request.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME_BYTES = 256 };

bool model_is_served(const struct server_options *options, const char *name)
{
    for (int i = 0; i < options->n_model_names; i++)
        if (strcmp(options->model_names[i], name) == 0)
            return true;
    const char *slash = strrchr(options->model_names[0], '/');
    return slash && slash[1] && strcmp(slash + 1, name) == 0;
}

enum status read_model(struct request *r, const struct json *value, const char *param,
                       struct refusal *refusal)
{
    const struct server_options *o = r->setup->options;
    const char *name = json_string(value);
    if (!name)
        return refuse_value(refusal, param, value, "a string");
    if (model_is_served(o, name))
        return OK;
    struct str names = {0};
    for (int i = 0; i < o->n_model_names; i++)
        str_printf(&names, "%s'%s'", i ? ", " : "", o->model_names[i]);
    refuse(refusal, 404, "model_not_found", param, "The model '%.100s' is not served here; %s is.",
           name, str_z(&names));
    str_done(&names);
    return ERROR_NOT_FOUND;
}

enum status read_messages(struct request *r, const struct json *value, const char *param,
                          struct refusal *refusal)
{
    if (value->type != JT_ARRAY || value->n == 0)
        return refuse_value(refusal, param, value, "an array of at least one message");
    for (size_t i = 0; i < value->n; i++) {
        char name[48];
        const struct json *content = json_get(&value->items[i], "content");
        const struct json *role = json_get(&value->items[i], "role");
        snprintf(name, sizeof name, "messages[%zu]", i);
        if (value->items[i].type != JT_OBJECT)
            return refuse_value(refusal, name, &value->items[i], "an object with role and content");
        snprintf(name, sizeof name, "messages[%zu].role", i);
        if (!role)
            return refuse(refusal, 400, "missing_required_parameter", name, "'%s' is missing.",
                          name);
        if (role->type != JT_STRING)
            return refuse_value(refusal, name, role, "a string");
        snprintf(name, sizeof name, "messages[%zu].content", i);
        if (content && content->type != JT_STRING && content->type != JT_ARRAY &&
            content->type != JT_NULL)
            return refuse_value(refusal, name, content, "a string, null, or an array of parts");
    }
    r->messages = value;
    return OK;
}

static enum status read_ids(struct request *r, const struct json *value, const char *param,
                            struct i32s *out, struct refusal *refusal)
{
    uint64_t vocab_size = r->setup->vocab_size;
    int64_t last = vocab_size ? (int64_t)vocab_size - 1 : INT32_MAX, id;
    int32_t *ids = arena_alloc_array(&r->arena, value->n, sizeof *ids);
    if (!ids)
        return refuse_memory(refusal);
    for (size_t i = 0; i < value->n; i++) {
        char what[64];
        snprintf(what, sizeof what, "token ids from 0 to %lld", (long long)last);
        if (!json_int(&value->items[i], 0, last, &id))
            return refuse_value(refusal, param, &value->items[i], what);
        ids[i] = (int32_t)id;
    }
    *out = (struct i32s){ids, (uint32_t)value->n};
    return OK;
}

static enum status read_one_prompt(struct request *r, const struct json *value, const char *param,
                                   struct prompt *out, struct refusal *refusal)
{
    if (value->type == JT_STRING) {
        *out = (struct prompt){.kind = PROMPT_TEXT, .text = {value->text, (uint32_t)value->n}};
        return OK;
    }
    out->kind = PROMPT_IDS;
    if (value->type != JT_ARRAY || value->n == 0)
        return refuse_value(refusal, param, value, "a string or a non-empty array of token ids");
    return read_ids(r, value, param, &out->ids, refusal);
}

/* A string, strings, ids, or arrays of ids. */
enum status read_prompt(struct request *r, const struct json *value, const char *param,
                        struct refusal *refusal)
{
    const struct json *items = value;
    size_t n = 1;
    if (value->type == JT_ARRAY && value->n > 0 && value->items[0].type != JT_NUMBER) {
        items = value->items;
        n = value->n;
    }
    if (n > 1 && r->api == API_CHAT)
        return refuse_value(refusal, param, value, "one string or one array of token ids");
    if (n > MAX_CHOICES)
        return refuse(refusal, 400, "invalid_value", param,
                      "'%s' has %zu prompts; at most %d are "
                      "possible.",
                      param, n, MAX_CHOICES);
    if (r->prompts)
        return refuse(refusal, 400, "invalid_request", param,
                      "'%s' is a second prompt; send one of prompt, text and input_ids.", param);
    r->prompts = arena_alloc_array(&r->arena, n, sizeof *r->prompts);
    r->n_prompts = n;
    if (!r->prompts)
        return refuse_memory(refusal);
    for (size_t i = 0; i < n; i++) {
        enum status status = read_one_prompt(r, &items[i], param, &r->prompts[i], refusal);
        if (status != OK)
            return status;
    }
    if (strcmp(param, "text") == 0)
        r->is_sglang = true;
    return OK;
}

enum status read_input_ids(struct request *r, const struct json *value, const char *param,
                           struct refusal *refusal)
{
    if (value->type != JT_ARRAY || value->n == 0)
        return refuse_value(refusal, param, value, "an array of token ids, or of such arrays");
    r->is_sglang = true;
    return read_prompt(r, value, param, refusal);
}

enum status read_sampling_params(struct request *r, const struct json *value, const char *param,
                                 struct refusal *refusal)
{
    if (value->type != JT_OBJECT)
        return refuse_value(refusal, param, value, "an object");
    r->is_sglang = true;
    return fields_read(r, value, API_SAMPLING, "sampling_params.", refusal);
}

static enum status check_tool(const struct json *tool, size_t index, struct refusal *refusal)
{
    char name[64];
    const struct json *function = json_get(tool, "function");
    const struct json *parameters = json_get(function, "parameters");
    const struct json *strict = json_get(function, "strict");
    const char *text = json_string(json_get(function, "name"));
    snprintf(name, sizeof name, "tools[%zu]", index);
    if (tool->type != JT_OBJECT || !json_string_is(json_get(tool, "type"), "function"))
        return refuse(refusal, 400, "invalid_value", name,
                      "'%s' must be an object whose type is \"function\".", name);
    snprintf(name, sizeof name, "tools[%zu].function.name", index);
    if (!text || !*text || strlen(text) > MAX_NAME_BYTES)
        return refuse(refusal, 400, "invalid_value", name,
                      "'%s' must be a string of 1 to %d bytes.", name, MAX_NAME_BYTES);
    snprintf(name, sizeof name, "tools[%zu].function.parameters", index);
    if (!json_is_null(parameters) && parameters->type != JT_OBJECT)
        return refuse_value(refusal, name, parameters, "a JSON schema (an object)");
    snprintf(name, sizeof name, "tools[%zu].function.strict", index);
    if (json_bool(strict, false))
        return refuse(refusal, 400, "unsupported_value", name,
                      "'%s' of true is not supported: this server cannot force arguments to follow "
                      "a schema; leave it out.",
                      name);
    return OK;
}

enum status read_tools(struct request *r, const struct json *value, const char *param,
                       struct refusal *refusal)
{
    if (value->type != JT_ARRAY || value->n > MAX_TOOLS) {
        char what[48];
        snprintf(what, sizeof what, "an array of at most %d tools", MAX_TOOLS);
        return refuse_value(refusal, param, value, what);
    }
    for (size_t i = 0; i < value->n; i++) {
        enum status status = check_tool(&value->items[i], i, refusal);
        if (status != OK)
            return status;
    }
    r->tools = value->n ? value : NULL;
    return OK;
}

enum status read_tool_choice(struct request *r, const struct json *value, const char *param,
                             struct refusal *refusal)
{
    if (json_string_is(value, "none"))
        r->hides_tools = true;
    else if (!json_string_is(value, "auto"))
        return refuse(refusal, 400, "unsupported_value", param,
                      "'%s' must be \"auto\" or \"none\": this server cannot force a tool call.",
                      param);
    return OK;
}

enum status read_effort(struct request *r, const struct json *value, const char *param,
                        struct refusal *refusal)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_string_is(value, words[i]))
            r->effort = words[i];
    return r->effort ? OK
                     : refuse_value(refusal, param, value,
                                    "one of none, minimal, low, medium, high and xhigh");
}

enum status read_kwargs(struct request *r, const struct json *value, const char *param,
                        struct refusal *refusal)
{
    if (value->type != JT_OBJECT)
        return refuse_value(refusal, param, value, "an object");
    r->kwargs = value;
    return OK;
}
