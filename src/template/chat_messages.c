/* Messages from OpenAI's dialect to what templates expect. */
#include "template/chat_traits.h"

#include <string.h>

/* Where a message's errors point: messages[index]. */
static bool fail_message(struct eval *e, size_t index, const char *what)
{
    error_set(e->error, ERROR_INVALID, "messages[%zu]%s", index, what);
    return false;
}

/* The text of a part, or NULL if the part is none of text. */
static const struct json *part_text(const struct json *part)
{
    static const char *const kinds[] = {"text", "input_text", "output_text"};
    const struct json *kind = json_get(part, "type");
    if (json_string_is(kind, "refusal"))
        return json_get(part, "refusal");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (json_string_is(kind, kinds[i]))
            return json_get(part, "text");
    return json_is_null(kind) ? json_get(part, "text") : NULL;
}

static bool fail_part(struct eval *e, size_t index, size_t part, const struct json *json)
{
    const char *kind = json_string(json_get(json, "type"));
    error_set(e->error, ERROR_INVALID,
              "messages[%zu].content[%zu] is a part of type '%.60s'; only text parts are supported",
              index, part, kind ? kind : "(none)");
    return false;
}

static bool text_part(struct eval *e, struct value text, struct value *out)
{
    struct dict *dict = dict_new(&e->arena);
    if (!dict || !put(e, dict, value_z("type"), value_z("text")) ||
        !put(e, dict, value_z("text"), text))
        return eval_fail_memory(e);
    *out = (struct value){.kind = V_DICT, .dict = dict};
    return true;
}

static bool join_parts(struct eval *e, size_t index, const struct json *parts, struct value *out)
{
    struct str built = {0};
    for (size_t i = 0; i < parts->n; i++) {
        const struct json *text = part_text(&parts->items[i]);
        if (!json_string(text)) {
            str_done(&built);
            return fail_part(e, index, i, &parts->items[i]);
        }
        if (i)
            str_append_char(&built, '\n');
        str_append(&built, text->text, text->n);
    }
    return take_text(e, &built, out);
}

static bool list_parts(struct eval *e, size_t index, const struct json *parts, struct value *out)
{
    struct list *list = list_new(&e->arena, parts->n);
    if (!list)
        return eval_fail_memory(e);
    for (size_t i = 0; i < parts->n; i++) {
        const struct json *text = part_text(&parts->items[i]);
        if (!json_string(text))
            return fail_part(e, index, i, &parts->items[i]);
        if (!text_part(e, value_text(text->text, text->n), &list->items[i]))
            return false;
        list->n++;
    }
    *out = list_value(list);
    return true;
}

static bool convert_content(struct eval *e, const struct chat_traits *traits, size_t index,
                            const struct json *content, struct value *out)
{
    if (json_is_null(content)) {
        *out = traits->asks_content_none ? value_none() : value_text("", 0);
        return true;
    }
    if (content->type == JT_ARRAY)
        return (traits->walks_content ? list_parts : join_parts)(e, index, content, out);
    if (content->type != JT_STRING)
        return fail_message(e, index, ".content is neither a string nor a list of parts");
    *out = value_text(content->text, content->n);
    if (!traits->walks_content || traits->asks_content_string)
        return true;
    struct list *list = list_new(&e->arena, 1);
    if (!list)
        return eval_fail_memory(e);
    if (!text_part(e, *out, &list->items[0]))
        return false;
    list->n = 1;
    *out = list_value(list);
    return true;
}

/* Arguments as an object: {} for none, {"value": ...} for what is no object. */
static bool arguments_object(struct eval *e, const struct json *arguments, struct value *out)
{
    struct json parsed = {0};
    if (json_is_null(arguments)) {
        out->kind = V_DICT;
        out->dict = dict_new(&e->arena);
        return out->dict || eval_fail_memory(e);
    }
    const struct json *from = arguments;
    if (arguments->type == JT_STRING) {
        size_t blank = strspn(arguments->text, " \t\r\n");
        if (blank == arguments->n)
            return arguments_object(e, NULL, out);
        if (json_parse(&e->arena, arguments->text, arguments->n, &parsed, NULL) == OK)
            from = &parsed;
    }
    struct value v;
    if (!value_from_json(&e->arena, from, &v))
        return eval_fail_memory(e);
    if (v.kind == V_DICT) {
        *out = v;
        return true;
    }
    struct dict *dict = dict_new(&e->arena);
    *out = (struct value){.kind = V_DICT, .dict = dict};
    return dict ? put(e, dict, value_z("value"), v) : eval_fail_memory(e);
}

static bool arguments_text(struct eval *e, const struct json *arguments, struct value *out)
{
    if (json_is_null(arguments)) {
        *out = value_z("{}");
        return true;
    }
    if (arguments->type == JT_STRING) {
        *out = value_text(arguments->text, arguments->n);
        return true;
    }
    struct str built = {0};
    json_write(&built, arguments);
    return take_text(e, &built, out);
}

/* One tool call; arguments stand in its function, or beside its name in calls without one. */
static bool convert_call(struct eval *e, const struct chat_traits *traits, const struct json *call,
                         struct value *out)
{
    const struct json *function = json_get(call, "function");
    struct value arguments;
    if (!value_from_json(&e->arena, call, out))
        return eval_fail_memory(e);
    struct dict *dict = out->dict;
    if (function) {
        struct value *inner = dict_get_z(dict, "function");
        if (inner->kind != V_DICT)
            return true;
        dict = inner->dict;
    }
    const struct json *from = json_get(function ? function : call, "arguments");
    if (!(traits->arguments_as_text ? arguments_text : arguments_object)(e, from, &arguments))
        return false;
    return put(e, dict, value_z("arguments"), arguments);
}

static bool convert_calls(struct eval *e, const struct chat_traits *traits, size_t index,
                          const struct json *calls, struct value *out)
{
    if (calls->type != JT_ARRAY)
        return fail_message(e, index, ".tool_calls is not a list");
    struct list *list = list_new(&e->arena, calls->n);
    if (!list)
        return eval_fail_memory(e);
    for (size_t i = 0; i < calls->n; i++) {
        if (calls->items[i].type != JT_OBJECT)
            return fail_message(e, index, ".tool_calls has an item that is not an object");
        if (!convert_call(e, traits, &calls->items[i], &list->items[i]))
            return false;
        list->n++;
    }
    *out = list_value(list);
    return true;
}

/* The values of one key; V_MISSING drops it. */
static bool convert_member(struct eval *e, const struct chat_traits *traits, size_t index,
                           const struct json_member *m, struct value *out)
{
    struct value key = value_text(m->key, m->key_len);
    out->kind = V_MISSING;
    if (value_is_text(&key, "content"))
        return convert_content(e, traits, index, &m->value, out);
    if (json_is_null(&m->value))
        return true;
    if (value_is_text(&key, "role") && json_string_is(&m->value, "developer") &&
        !traits->knows_developer) {
        *out = value_z("system");
        return true;
    }
    if (value_is_text(&key, "tool_calls")) {
        bool empty = m->value.type == JT_ARRAY && m->value.n == 0;
        return empty || convert_calls(e, traits, index, &m->value, out);
    }
    return value_from_json(&e->arena, &m->value, out) || eval_fail_memory(e);
}

static bool add_reasoning(struct eval *e, const struct chat_traits *traits, struct dict *dict)
{
    const struct value *reasoning = dict_get_z(dict, "reasoning_content");
    if (!reasoning) {
        reasoning = dict_get_z(dict, "reasoning");
        if (!reasoning || reasoning->kind != V_STRING)
            return true;
        if (!put(e, dict, value_z("reasoning_content"), *reasoning))
            return false;
        reasoning = dict_get_z(dict, "reasoning_content");
    }
    if (!traits->wants_thinking || dict_get_z(dict, "thinking"))
        return true;
    return put(e, dict, value_z("thinking"), *reasoning);
}

static bool convert_message(struct eval *e, const struct chat_traits *traits, size_t index,
                            const struct json *message, struct value *out)
{
    if (message->type != JT_OBJECT)
        return fail_message(e, index, " is not an object");
    if (!json_string(json_get(message, "role")))
        return fail_message(e, index, " has no role");
    struct dict *dict = dict_new(&e->arena);
    if (!dict)
        return eval_fail_memory(e);
    dict->message = index + 1;
    for (size_t i = 0; i < message->n; i++) {
        const struct json_member *m = &message->members[i];
        struct value v;
        if (!convert_member(e, traits, index, m, &v))
            return false;
        if (v.kind != V_MISSING && !put(e, dict, value_text(m->key, m->key_len), v))
            return false;
    }
    struct value nothing;
    if (!dict_get_z(dict, "content") && (!convert_content(e, traits, index, NULL, &nothing) ||
                                         !put(e, dict, value_z("content"), nothing)))
        return false;
    *out = (struct value){.kind = V_DICT, .dict = dict};
    return add_reasoning(e, traits, dict);
}

bool chat_messages(struct eval *e, const struct chat_traits *traits, const struct json *messages,
                   struct value *out)
{
    if (!messages || messages->type != JT_ARRAY) {
        error_set(e->error, ERROR_INVALID, "messages is not a list");
        return false;
    }
    struct list *list = list_new(&e->arena, messages->n);
    if (!list)
        return eval_fail_memory(e);
    for (size_t i = 0; i < messages->n; i++) {
        if (!convert_message(e, traits, i, &messages->items[i], &list->items[i]))
            return false;
        list->n++;
    }
    *out = list_value(list);
    return true;
}
