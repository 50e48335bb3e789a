#include "server/request.h"

#include "base/system.h"

#include <math.h>
#include <string.h>

enum {
    TREE_BYTES_PER_BYTE = 40, /* a tree of the densest body: one number in two bytes */
    TREE_BASE_BYTES = 1 << 20,
    TREE_MAX_BYTES = 256 << 20
};

static void set_defaults(struct request *r)
{
    r->n = 1;
    r->adds_special = true;
    r->top_logprobs = -1;
    r->settings = (struct prompt_message){.temperature = NAN,
                                          .top_p = NAN,
                                          .min_p = NAN,
                                          .repetition_penalty = NAN,
                                          .presence_penalty = NAN,
                                          .frequency_penalty = NAN,
                                          .top_k = -1,
                                          .max_tokens = -1,
                                          .min_tokens = -1,
                                          .n_logprobs = -1};
}

/* One chat is one prompt; its text is made here so that all its choices share it. */
static enum status chat_prompt(struct request *r, struct refusal *refusal)
{
    if (r->messages && r->prompts)
        return refuse(refusal, 400, "invalid_request", "prompt",
                      "Both 'messages' and 'prompt' are given; send one of them.");
    if (!r->messages && !r->prompts)
        return refuse(refusal, 400, "missing_required_parameter", "messages",
                      "'messages' is missing; it must be an array of at least one message.");
    if (!r->messages)
        return OK; /* raw text, as mini-sglang's chat endpoint takes it */
    r->prompts = arena_alloc(&r->arena, sizeof *r->prompts);
    json_write(&r->messages_text, r->messages);
    if (r->tools && !r->hides_tools)
        json_write(&r->tools_text, r->tools);
    if (!r->prompts || r->messages_text.failed || r->tools_text.failed)
        return refuse_memory(refusal);
    r->n_prompts = 1;
    r->prompts[0] = (struct prompt){.kind = PROMPT_CHAT, .text = bytes_of(&r->messages_text)};
    r->settings.tools = bytes_of(&r->tools_text);
    return kwargs_build(r, refusal);
}

static enum status check_together(struct request *r, struct refusal *refusal)
{
    if (r->has_stream_options && !r->is_stream)
        return refuse(refusal, 400, "invalid_value", "stream_options",
                      "'stream_options' is only allowed when 'stream' is true.");
    if (r->api == API_CHAT && r->top_logprobs >= 0 && !r->has_logprobs)
        return refuse(refusal, 400, "invalid_value", "top_logprobs",
                      "'top_logprobs' needs 'logprobs' to be true.");
    if (r->continues == YES && r->adds_generation == YES)
        return refuse(refusal, 400, "invalid_value", "continue_final_message",
                      "'continue_final_message' and 'add_generation_prompt' cannot both be true.");
    if (r->n_prompts * (size_t)r->n > MAX_CHOICES)
        return refuse(refusal, 400, "invalid_value", "n",
                      "%zu prompts times n = %d are more than %d answers; send several requests.",
                      r->n_prompts, r->n, MAX_CHOICES);
    for (size_t i = 0; r->echo && !r->has_logprobs && i < r->n_prompts; i++)
        if (r->prompts[i].kind != PROMPT_TEXT)
            return refuse(refusal, 400, "unsupported_value", "echo",
                          "'echo' without 'logprobs' needs a prompt of text, not of token ids.");
    return OK;
}

/* What the fields mean for the message. */
static void complete_settings(struct request *r)
{
    struct prompt_message *s = &r->settings;
    enum { SMALLEST_TOP_P = 1000000000 };
    if (s->top_p < 1.0 / SMALLEST_TOP_P) /* 0 keeps the most likely token alone, as this does */
        s->top_p = 1.0 / SMALLEST_TOP_P;
    s->ignore_eos = r->ignores_eos;
    s->scores_prompt = r->echo && r->has_logprobs;
    if (!r->has_seed)
        s->seed = system_random();
    if (r->has_logprobs)
        s->n_logprobs = r->top_logprobs > 0 ? r->top_logprobs : 0;
    if (r->adds_special)
        s->flags |= PROMPT_ADD_SPECIAL;
    if (r->continues == YES)
        s->flags |= PROMPT_CONTINUE_FINAL;
    if (r->adds_generation == NO)
        s->flags |= PROMPT_NO_GENERATION_PROMPT;
    if (r->cache_salt)
        s->cache_salt = (struct bytes){r->cache_salt, (uint32_t)strlen(r->cache_salt)};
}

enum status request_read(struct request *r, const struct request_setup *setup, enum api api,
                         const char *body, size_t bytes, struct refusal *refusal)
{
    struct error error;
    struct json tree;
    size_t limit = TREE_BASE_BYTES + bytes * TREE_BYTES_PER_BYTE;
    *r = (struct request){.setup = setup, .api = api};
    r->arena.limit = limit < TREE_MAX_BYTES ? limit : TREE_MAX_BYTES;
    set_defaults(r);
    enum status status = json_parse(&r->arena, body, bytes, &tree, &error);
    if (status != OK)
        return refuse(refusal, 400, "invalid_json", NULL, "The body is not valid JSON: %s.",
                      error.message);
    if (tree.type != JT_OBJECT)
        return refuse(refusal, 400, "invalid_json", NULL, "The body must be a JSON object.");
    r->arena.limit += TREE_BASE_BYTES; /* for the lists below, whose sizes are limited each */
    status = fields_read(r, &tree, api, "", refusal);
    if (api == API_GENERATE && json_is_null(json_get(&tree, "stream")))
        r->is_stream = !r->is_sglang; /* mini-sglang always streams */
    if (status == OK && api == API_CHAT)
        status = chat_prompt(r, refusal);
    if (status == OK && !r->prompts)
        status = refuse(refusal, 400, "missing_required_parameter", "prompt",
                        "'prompt' is missing; it must be a string or an array.");
    if (status == OK)
        status = check_together(r, refusal);
    if (status == OK)
        complete_settings(r);
    return status;
}

void request_done(struct request *r)
{
    arena_done(&r->arena);
    str_done(&r->messages_text);
    str_done(&r->tools_text);
    str_done(&r->kwargs_text);
}
