/* The C library: a request's prompt becomes ids. */
#include "csgl_live.h"

#include <stdlib.h>
#include <string.h>

/* Renders the chat and encodes it; control tokens come from the template, so none are added. */
static enum status encode_chat(struct csgl_engine *e, const struct csgl_request *r,
                               struct encoded_prompt *out, struct error *error)
{
    struct chat_output output = {0};
    struct chat_texts texts = {.messages = {r->messages_json, strlen(r->messages_json)}};
    struct chat_input input = {
        .tokens = e->text.tokens, .n_tokens = e->text.n_tokens, .add_generation_prompt = true};
    const struct chat_template *t =
        r->tools_json && e->text.tool_template ? e->text.tool_template : e->text.chat_template;
    if (!t)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s has no chat template; give one with --chat-template, or a prompt "
                         "instead of messages",
                         checkpoint_path(e->checkpoint));
    if (r->tools_json) {
        texts.tools.text = r->tools_json;
        texts.tools.len = strlen(r->tools_json);
    }
    if (r->template_kwargs_json) {
        texts.kwargs.text = r->template_kwargs_json;
        texts.kwargs.len = strlen(r->template_kwargs_json);
    }
    enum status status = chat_template_render_json(t, &texts, &input, &output, error);
    if (status == OK) {
        size_t places[CHAT_MAX_MARKS], marks[CHAT_MAX_MARKS];
        size_t tail = chat_template_tail(t, &texts, &input, &output);
        size_t n = chat_output_marks(&output, tail, places);
        status = encoder_encode_marked(e->encoder, str_z(&output.text), output.text.len, 0, places,
                                       n, marks, &out->ids, error);
        for (size_t i = 0; i < n && status == OK; i++)
            out->marks[out->n_marks++] = (int32_t)marks[i];
    }
    chat_output_done(&output);
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
                               struct encoded_prompt *out, struct error *error)
{
    if ((r->prompt != NULL) + (r->messages_json != NULL) + (r->tokens != NULL) != 1)
        return error_set(error, ERROR_INVALID,
                         "a request has exactly one of prompt, messages_json and tokens");
    if (r->messages_json)
        return encode_chat(e, r, out, error);
    if (r->tokens)
        return copy_tokens(r, &out->ids, error);
    return encoder_encode(e->encoder, r->prompt, strlen(r->prompt), ENCODE_ADD_SPECIAL, &out->ids,
                          error);
}
