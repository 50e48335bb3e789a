#include "template/chat_template.h"

#include "template/chat_traits.h"
#include "template/text.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MAX_MEMORY = 256 << 20 };

struct chat_template {
    struct arena arena;
    struct ast ast;
    struct chat_traits traits;
};

enum status chat_template_new(struct chat_template **out, const char *source, size_t len,
                              struct error *error)
{
    struct chat_template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return error_memory(error, sizeof *t);
    t->arena.limit = TEMPLATE_MAX_MEMORY;
    enum status status = template_parse(&t->arena, source, len, &t->ast, error);
    if (status != OK) {
        chat_template_free(t);
        return status;
    }
    t->traits = chat_traits_of(&t->ast, source, len);
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    arena_done(&t->arena);
    free(t);
}

void chat_output_done(struct chat_output *out)
{
    str_done(&out->text);
    free(out->message_starts);
    *out = (struct chat_output){0};
}

/* ---- variables ---- */

static bool is_reserved(const struct value *name)
{
    static const char *const reserved[] = {
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "messages",
        "conversation",
        "chat_template",
        "return_dict",
        "return_tensors",
        "padding",
        "truncation",
        "max_length",
    };
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++)
        if (value_is_text(name, reserved[i]))
            return true;
    return false;
}

static bool add_json(struct eval *e, struct value name, const struct json *json)
{
    struct value v;
    if (!value_from_json(&e->arena, json, &v))
        return eval_fail_memory(e);
    return put(e, e->context, name, v);
}

static bool add_kwargs(struct eval *e, const struct json *kwargs)
{
    if (json_is_null(kwargs))
        return true;
    if (kwargs->type != JT_OBJECT) {
        error_set(e->error, ERROR_INVALID, "chat_template_kwargs is not an object");
        return false;
    }
    for (size_t i = 0; i < kwargs->n; i++) {
        const struct json_member *m = &kwargs->members[i];
        struct value name = value_text(m->key, m->key_len);
        if (is_reserved(&name)) {
            error_set(e->error, ERROR_INVALID,
                      "chat_template_kwargs must not hold '%.*s', which the request sets itself",
                      (int)name.len, name.text);
            return false;
        }
        if (!value_is_text(&name, "tools") && !add_json(e, name, &m->value))
            return false;
    }
    return true;
}

static bool add_variables(struct eval *e, const struct chat_input *input,
                          const struct value *messages)
{
    e->context = dict_new(&e->arena);
    if (!e->context || !globals_add(&e->arena, e->context))
        return eval_fail_memory(e);
    for (size_t i = 0; i < input->n_tokens; i++)
        if (!put(e, e->context, value_z(input->tokens[i].name), value_z(input->tokens[i].text)))
            return false;
    /* Present though none, as apply_chat_template passes them. */
    if (!put(e, e->context, value_z("documents"), value_none()) ||
        !put(e, e->context, value_z("tools"), value_none()) || !add_kwargs(e, input->kwargs))
        return false;
    if (!json_is_null(input->tools) && input->tools->type != JT_ARRAY) {
        error_set(e->error, ERROR_INVALID, "tools is not a list");
        return false;
    }
    if (!json_is_null(input->tools) && input->tools->n > 0 &&
        !add_json(e, value_z("tools"), input->tools))
        return false;
    return put(e, e->context, value_z("messages"), *messages) &&
           put(e, e->context, value_z("add_generation_prompt"),
               value_bool(input->add_generation_prompt));
}

/* ---- continuing the final message ---- */

static const char continue_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* As transformers does it: the content gets a tag at its end, and the rendered text is cut there.
 */
static bool add_continue_tag(struct eval *e, const struct chat_traits *traits,
                             const struct value *messages, struct value *content)
{
    struct value tag = value_z(continue_tag), *at = NULL;
    if (!messages->list->n || !traits->mentions_content) {
        error_set(e->error, ERROR_INVALID,
                  "continue_final_message needs a message and a template that prints its content");
        return false;
    }
    at = dict_get_z(messages->list->items[messages->list->n - 1].dict, "content");
    if (at->kind == V_LIST) {
        struct list *parts = at->list;
        at = parts->n ? dict_get_z(parts->items[parts->n - 1].dict, "text") : NULL;
    }
    if (!at || at->kind != V_STRING) {
        error_set(
            e->error, ERROR_INVALID,
            "continue_final_message is set, but the final message has no content to continue");
        return false;
    }
    *content = *at;
    return concatenate(e, content, &tag, at);
}

static const char *find_last(const struct str *s, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = s->len >= n ? s->len - n + 1 : 0; i-- > 0;)
        if (memcmp(s->data + i, what, n) == 0)
            return s->data + i;
    return NULL;
}

static bool cut_at_tag(struct eval *e, const struct value *content)
{
    static const char bare[] = "CONTINUE_FINAL_MESSAGE_TAG";
    size_t begin = text_leading_space(content->text, content->len);
    size_t end = content->len - text_trailing_space(content->text + begin, content->len - begin);
    const char *tag = find_last(&e->text, bare);
    bool found = tag && (end == begin ||
                         memmem(e->text.data, e->text.len, content->text + begin, end - begin));
    if (!found) {
        error_set(
            e->error, ERROR_INVALID,
            "continue_final_message is set, but the template does not print the whole content "
            "of the final message");
        return false;
    }
    size_t cut = (size_t)(tag - e->text.data);
    bool kept_blank =
        cut + sizeof bare - 1 < e->text.len && e->text.data[cut + sizeof bare - 1] == ' ';
    if (!kept_blank)
        cut -= text_trailing_space(e->text.data, cut);
    e->text.len = cut;
    e->text.data[cut] = '\0';
    return true;
}

/* ---- marks ---- */

static bool is_header_role(const struct value *message)
{
    const struct value *role = dict_get_z(message->dict, "role");
    return value_is_text(role, "system") || value_is_text(role, "developer");
}

static void finish_marks(const struct eval *e, const struct value *messages,
                         struct chat_output *out)
{
    size_t *starts = e->message_starts, n = messages->list->n, next = e->text.len, first = 0;
    while (first < n && is_header_role(&messages->list->items[first]))
        first++;
    if (first < n && starts[first] != SIZE_MAX)
        out->header_end = starts[first] < e->text.len ? starts[first] : e->text.len;
    size_t printed = 0; /* messages before the first printed one */
    while (printed < n && starts[printed] > e->text.len)
        printed++;
    for (size_t i = n; i-- > 0;) {
        if (starts[i] > e->text.len)
            starts[i] = i < printed ? 0 : next;
        next = starts[i];
    }
    out->message_starts = starts;
    out->n_messages = n;
}

/* ---- rendering ---- */

static bool render(struct eval *e, const struct chat_template *t, const struct chat_input *input,
                   struct chat_output *out)
{
    struct value messages, content = {0};
    if (input->continue_final_message && input->add_generation_prompt) {
        error_set(e->error, ERROR_INVALID,
                  "continue_final_message and add_generation_prompt exclude each other");
        return false;
    }
    if (!chat_messages(e, &t->traits, input->messages, &messages) ||
        !add_variables(e, input, &messages))
        return false;
    if (input->continue_final_message && !add_continue_tag(e, &t->traits, &messages, &content))
        return false;
    size_t n = messages.list->n;
    e->message_starts = malloc((n ? n : 1) * sizeof *e->message_starts);
    if (!e->message_starts)
        return error_memory(e->error, n * sizeof *e->message_starts) == OK;
    for (size_t i = 0; i < n; i++)
        e->message_starts[i] = SIZE_MAX;
    if (!eval_template(e, &t->ast))
        return false;
    if (input->continue_final_message && !cut_at_tag(e, &content))
        return false;
    finish_marks(e, &messages, out);
    e->message_starts = NULL;
    out->text = e->text;
    e->text = (struct str){0};
    return true;
}

enum status chat_template_render(const struct chat_template *t, const struct chat_input *input,
                                 struct chat_output *out, struct error *error)
{
    struct error local = {0};
    struct eval *e = calloc(1, sizeof *e);
    *out = (struct chat_output){0};
    if (!e)
        return error_memory(error, sizeof *e);
    e->error = error ? error : &local;
    e->arena.limit = EVAL_MAX_MEMORY;
    e->now = input->now;
    enum status status = render(e, t, input, out) ? OK : e->error->status;
    for (size_t i = 0; i < sizeof e->captures / sizeof e->captures[0]; i++)
        str_done(&e->captures[i]);
    str_done(&e->text);
    free(e->message_starts);
    arena_done(&e->arena);
    free(e);
    return status;
}

/* ---- tokenizer_config.json ---- */

enum status chat_template_find(const struct json *config, bool has_tools, const char **source,
                               size_t *len, struct error *error)
{
    const struct json *given = json_get(config, "chat_template"), *found = NULL;
    if (given && given->type == JT_STRING)
        found = given;
    for (size_t i = 0; given && given->type == JT_ARRAY && i < given->n; i++) {
        const struct json *name = json_get(&given->items[i], "name");
        const struct json *text = json_get(&given->items[i], "template");
        bool is_tool_use = has_tools && json_string_is(name, "tool_use");
        if (json_string(text) && (is_tool_use || (!found && json_string_is(name, "default"))))
            found = text;
        if (is_tool_use && found == text)
            break;
    }
    if (!found)
        return error_set(error, ERROR_NOT_FOUND,
                         "tokenizer_config.json has no chat_template; pass one as "
                         "chat_template.jinja beside it");
    *source = found->text;
    *len = found->n;
    return OK;
}

size_t chat_tokens_read(const struct json *config, struct chat_token tokens[CHAT_MAX_TOKENS])
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct json *token = json_get(config, names[i]);
        const char *text = json_string(token);
        if (!text)
            text = json_string(json_get(token, "content"));
        if (text)
            tokens[n++] = (struct chat_token){names[i], text};
    }
    return n;
}
