/* Chats as JSON text: the form in which they come over the wire and from the C library. */
#include "template/chat_template.h"

enum { TREE_MAX_BYTES = 256 << 20 };

static enum status parse(struct arena *arena, const char *text, size_t len, const char *name,
                         enum json_type type, struct json *out, struct error *error)
{
    enum status status = json_parse(arena, text, len, out, error);
    if (status != OK)
        return error_prefix(error, "%s", name);
    return out->type == type ? OK
                             : error_set(error, ERROR_INVALID, "%s must be a JSON %s", name,
                                         type == JT_ARRAY ? "array" : "object");
}

enum status chat_template_render_json(const struct chat_template *t, const struct chat_texts *texts,
                                      const struct chat_input *rest, struct chat_output *out,
                                      struct error *error)
{
    struct arena arena = {.limit = TREE_MAX_BYTES};
    struct json messages, tools, kwargs;
    struct chat_input input = *rest;
    enum status status = parse(&arena, texts->messages.text, texts->messages.len, "messages",
                               JT_ARRAY, &messages, error);
    input.messages = &messages;
    if (status == OK && texts->tools.len) {
        status =
            parse(&arena, texts->tools.text, texts->tools.len, "tools", JT_ARRAY, &tools, error);
        input.tools = &tools;
    }
    if (status == OK && texts->kwargs.len) {
        status = parse(&arena, texts->kwargs.text, texts->kwargs.len, "chat_template_kwargs",
                       JT_OBJECT, &kwargs, error);
        input.kwargs = &kwargs;
    }
    if (status == OK)
        status = chat_template_render(t, &input, out, error);
    arena_done(&arena);
    return status;
}
