/* Chats as JSON text: the form in which they come over the wire and from the C library. */
#include "template/chat_template.h"

#include <string.h>

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

size_t chat_template_tail(const struct chat_template *t, const struct chat_texts *texts,
                          const struct chat_input *input, const struct chat_output *whole)
{
    struct chat_output bare = {0};
    struct chat_input without = *input;
    size_t start = whole->n_messages ? whole->message_starts[whole->n_messages - 1] : 0;
    without.add_generation_prompt = false;
    if (input->add_generation_prompt &&
        chat_template_render_json(t, texts, &without, &bare, NULL) == OK &&
        bare.text.len <= whole->text.len &&
        memcmp(str_z(&bare.text), str_z(&whole->text), bare.text.len) == 0)
        start = bare.text.len;
    chat_output_done(&bare);
    return start;
}

size_t chat_output_marks(const struct chat_output *out, size_t tail, size_t marks[CHAT_MAX_MARKS])
{
    size_t last = out->n_messages ? out->message_starts[out->n_messages - 1] : 0, n = 0;
    const size_t places[CHAT_MAX_MARKS] = {out->header_end, last, tail};
    for (size_t i = 0; i < CHAT_MAX_MARKS; i++)
        if (places[i] > (n > 0 ? marks[n - 1] : 0) && places[i] <= out->text.len)
            marks[n++] = places[i];
    return n;
}
