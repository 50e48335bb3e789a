/* The C library: a request's prompt becomes ids. */
#include "csgl_live.h"

#include <stdlib.h>
#include <string.h>

enum { JSON_TREE_MAX = 512 << 20 };

static enum status parse_json(struct arena *arena, const char *text, const char *name,
                              enum json_type type, struct json *out, struct error *error)
{
    enum status status = json_parse(arena, text, strlen(text), out, error);
    if (status != OK)
        return error_prefix(error, "%s", name);
    if (out->type != type)
        return error_set(error, ERROR_INVALID, "%s must be a JSON %s", name,
                         type == JT_ARRAY ? "array" : "object");
    return OK;
}

/* Renders the chat and encodes it; control tokens come from the template, so none are added. */
static enum status encode_chat(struct csgl_engine *e, const struct csgl_request *r,
                               struct token_ids *out, struct error *error)
{
    struct arena arena = {.limit = JSON_TREE_MAX};
    struct json messages, tools, kwargs;
    struct chat_output output = {0};
    bool has_tools = r->tools_json != NULL;
    const struct chat_template *t =
        has_tools && e->text.tool_template ? e->text.tool_template : e->text.chat_template;
    enum status status = OK;
    if (!t)
        status = error_set(error, ERROR_UNSUPPORTED,
                           "%s has no chat template; give one with --chat-template, or a prompt "
                           "instead of messages",
                           checkpoint_path(e->checkpoint));
    if (status == OK)
        status = parse_json(&arena, r->messages_json, "messages", JT_ARRAY, &messages, error);
    if (status == OK && has_tools)
        status = parse_json(&arena, r->tools_json, "tools", JT_ARRAY, &tools, error);
    if (status == OK && r->template_kwargs_json)
        status = parse_json(&arena, r->template_kwargs_json, "chat_template_kwargs", JT_OBJECT,
                            &kwargs, error);
    struct chat_input input = {.messages = &messages,
                               .tools = has_tools ? &tools : NULL,
                               .kwargs = r->template_kwargs_json ? &kwargs : NULL,
                               .tokens = e->text.tokens,
                               .n_tokens = e->text.n_tokens,
                               .add_generation_prompt = true};
    if (status == OK)
        status = chat_template_render(t, &input, &output, error);
    if (status == OK)
        status = encoder_encode(e->encoder, str_z(&output.text), output.text.len, 0, out, error);
    chat_output_done(&output);
    arena_done(&arena);
    return status;
}

static enum status copy_tokens(const struct csgl_request *r, struct token_ids *out,
                               struct error *error)
{
    if (r->n_tokens > INT32_MAX)
        return error_set(error, ERROR_LIMIT, "%zu prompt tokens are too many", r->n_tokens);
    out->ids = malloc((r->n_tokens + 1) * sizeof *out->ids);
    if (!out->ids)
        return error_memory(error, r->n_tokens * sizeof *out->ids);
    memcpy(out->ids, r->tokens, r->n_tokens * sizeof *out->ids);
    out->n = r->n_tokens;
    out->cap = r->n_tokens + 1;
    return OK;
}

enum status csgl_encode_prompt(struct csgl_engine *e, const struct csgl_request *r,
                               struct token_ids *out, struct error *error)
{
    if ((r->prompt != NULL) + (r->messages_json != NULL) + (r->tokens != NULL) != 1)
        return error_set(error, ERROR_INVALID,
                         "a request has exactly one of prompt, messages_json and tokens");
    if (r->messages_json)
        return encode_chat(e, r, out, error);
    if (r->tokens)
        return copy_tokens(r, out, error);
    return encoder_encode(e->encoder, r->prompt, strlen(r->prompt), ENCODE_ADD_SPECIAL, out, error);
}
