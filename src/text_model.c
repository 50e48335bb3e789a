#include "text_model.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 64 << 20, TEMPLATE_MAX_BYTES = 4 << 20, TREE_MAX_BYTES = 512 << 20 };

bool text_model_is_eos(const struct text_model *text, int32_t token)
{
    for (int32_t i = 0; i < text->n_eos; i++)
        if (text->eos_ids[i] == token)
            return true;
    return false;
}

static void add_eos(struct text_model *text, int64_t id)
{
    if (id >= 0 && id < tokenizer_size(text->tokenizer) && text->n_eos < TEXT_MAX_EOS &&
        !text_model_is_eos(text, (int32_t)id))
        text->eos_ids[text->n_eos++] = (int32_t)id;
}

/* eos_token_id is an id or a list of ids. */
static void add_eos_ids(struct text_model *text, const struct json *ids)
{
    int64_t id;
    if (json_int(ids, 0, INT32_MAX, &id))
        add_eos(text, id);
    for (size_t i = 0; ids && ids->type == JT_ARRAY && i < ids->n; i++)
        if (json_int(&ids->items[i], 0, INT32_MAX, &id))
            add_eos(text, id);
}

/* The tokenizer's own end-of-text token. */
static void add_eos_token(struct text_model *text)
{
    for (size_t i = 0; i < text->n_tokens; i++)
        if (strcmp(text->tokens[i].name, "eos_token") == 0)
            add_eos(text, tokenizer_find(text->tokenizer, text->tokens[i].text,
                                         strlen(text->tokens[i].text)));
}

/* Makes the content of token `id` known to templates as `name`. */
static void add_token(struct text_model *text, const char *name, int32_t id)
{
    size_t len;
    const char *bytes = id >= 0 ? tokenizer_token_bytes(text->tokenizer, id, &len) : NULL;
    char *copy = bytes ? arena_copy(&text->arena, bytes, len) : NULL;
    if (copy)
        text->tokens[text->n_tokens++] = (struct chat_token){name, copy};
}

static enum status compile(struct chat_template **out, const char *source, size_t len,
                           const char *name, struct error *error)
{
    enum status status = chat_template_new(out, source, len, error);
    return status == OK ? OK : error_prefix(error, "%s", name);
}

/* Compiles the template that answers are chosen a parser by, and keeps its source. */
static enum status set_template(struct text_model *text, const char *source, size_t len,
                                const char *name, struct error *error)
{
    text->template_source = strndup(source, len);
    if (!text->template_source)
        return error_memory(error, len);
    return compile(&text->chat_template, source, len, name, error);
}

static enum status read_template(struct text_model *text, const char *path, struct error *error)
{
    struct str source = {0};
    enum status status = file_read(path, TEMPLATE_MAX_BYTES, &source, error);
    if (status == OK)
        status = set_template(text, str_z(&source), source.len, path, error);
    str_done(&source);
    return status;
}

static enum status read_gguf_tokenizer(struct text_model *text, const struct vocab *v,
                                       const char *path, struct error *error)
{
    enum status status = tokenizer_load_vocab(v, &text->tokenizer, error);
    if (status != OK)
        return error_prefix(error, "%s", path);
    add_token(text, "bos_token", v->bos_id);
    add_token(text, "eos_token", v->eos_id);
    return OK;
}

static enum status read_gguf(struct text_model *text, const struct checkpoint *checkpoint,
                             bool wants_tokenizer, bool wants_template, struct error *error)
{
    struct vocab v;
    enum status status = checkpoint_vocab(checkpoint, &v, error);
    if (status == OK && wants_tokenizer)
        status = read_gguf_tokenizer(text, &v, checkpoint_path(checkpoint), error);
    if (status != OK)
        return status;
    if (wants_template && v.chat_template)
        status = set_template(text, v.chat_template, strlen(v.chat_template),
                              checkpoint_path(checkpoint), error);
    return status;
}

static enum status read_templates(struct text_model *text, const struct json *config,
                                  const char *path, struct error *error)
{
    const char *source, *tool_source;
    size_t len;
    if (json_is_null(json_get(config, "chat_template")))
        return OK;
    if (chat_template_find(config, false, &source, &len, error) != OK)
        source = NULL; /* a list may have a template for tools alone */
    enum status status = source ? set_template(text, source, len, path, error) : OK;
    if (status == OK)
        status = chat_template_find(config, true, &tool_source, &len, error);
    if (status == OK && tool_source != source)
        status = compile(&text->tool_template, tool_source, len, path, error);
    return status;
}

/* An object with the one key that says how answers are taken apart. */
static enum status keep_response_config(struct text_model *text, const struct json *config,
                                        struct error *error)
{
    static const char *const keys[] = {"response_template", "response_schema"};
    struct str source = {0};
    for (int i = 0; i < 2; i++) {
        const struct json *value = json_get(config, keys[i]);
        if (json_is_null(value))
            continue;
        str_printf(&source, "{\"%s\": ", keys[i]);
        json_write(&source, value);
        str_append_char(&source, '}');
        text->response_config = source.data; /* kept: the string's memory */
        return source.failed ? error_memory(error, source.len) : OK;
    }
    return OK;
}

static enum status read_tokenizer_config(struct text_model *text, const char *path,
                                         bool wants_template, struct error *error)
{
    struct str data = {0};
    struct json config;
    text->arena.limit = TREE_MAX_BYTES;
    enum status status = file_read(path, CONFIG_MAX_BYTES, &data, error);
    if (status == OK && json_parse(&text->arena, str_z(&data), data.len, &config, error) != OK)
        status = error_prefix(error, "%s", path);
    if (status == OK) {
        text->n_tokens = chat_tokens_read(&config, text->tokens);
        status = keep_response_config(text, &config, error);
    }
    if (status == OK && wants_template)
        status = read_templates(text, &config, path, error);
    str_done(&data);
    return status;
}

/* The character that byte-level vocabularies write for a byte: printable ones stand for themselves,
 * the others for U+0100 and up (GPT-2's table). */
static unsigned written_byte(unsigned byte)
{
    unsigned n_before = 0;
    for (unsigned i = 0; i <= byte; i++) {
        bool is_plain = (i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
        if (i == byte)
            return is_plain ? byte : 0x100 + n_before;
        n_before += !is_plain;
    }
    return 0;
}

/* The vocabulary of a model without one: the ids below 256 are the bytes, the others are written as
 * their number. */
static enum status make_vocabulary(struct text_model *text, int32_t n_tokens, struct error *error)
{
    struct arena arena = {0};
    struct str token = {0};
    const char **tokens = arena_alloc_array(&arena, (size_t)n_tokens, sizeof *tokens);
    for (int32_t i = 0; tokens && i < n_tokens; i++) {
        str_clear(&token);
        if (i < 256)
            str_append_utf8(&token, written_byte((unsigned)i));
        else
            str_printf(&token, "<%d>", i);
        if (token.failed || !(tokens[i] = arena_copy(&arena, str_z(&token), token.len)))
            tokens = NULL;
    }
    struct vocab vocab = {.model = "gpt2",
                          .n_tokens = (size_t)n_tokens,
                          .tokens = tokens,
                          .bos_id = -1,
                          .eos_id = -1};
    enum status status = tokens ? tokenizer_load_vocab(&vocab, &text->tokenizer, error)
                                : error_memory(error, (unsigned long long)n_tokens);
    str_done(&token);
    arena_done(&arena);
    return status;
}

static enum status make_vocabulary_of(struct text_model *text, const struct checkpoint *checkpoint,
                                      struct error *error)
{
    const struct json *config = checkpoint_config(checkpoint);
    const struct json *inner = json_get(config, "text_config");
    int64_t n_tokens;
    if (!json_int(json_get(inner ? inner : config, "vocab_size"), 1, 1 << 24, &n_tokens))
        return error_set(error, ERROR_INVALID,
                         "%s: the configuration's vocab_size is not a number from 1 to %d",
                         checkpoint_path(checkpoint), 1 << 24);
    return make_vocabulary(text, (int32_t)n_tokens, error);
}

static enum status read_folder(struct text_model *text, const struct checkpoint *checkpoint,
                               bool wants_tokenizer, bool wants_template, struct error *error)
{
    struct str path = {0};
    const char *folder = checkpoint_path(checkpoint);
    path_join(&path, folder, "tokenizer.json");
    if (checkpoint_is_random(checkpoint) && !file_exists(str_z(&path))) {
        str_done(&path);
        return wants_tokenizer ? make_vocabulary_of(text, checkpoint, error) : OK;
    }
    enum status status =
        wants_tokenizer ? tokenizer_load(str_z(&path), &text->tokenizer, error) : OK;
    if (status != OK)
        goto out;
    path_join(&path, folder, "chat_template.jinja");
    if (wants_template && file_exists(str_z(&path))) {
        status = read_template(text, str_z(&path), error);
        wants_template = false;
    }
    path_join(&path, folder, "tokenizer_config.json");
    if (status == OK && file_exists(str_z(&path)))
        status = read_tokenizer_config(text, str_z(&path), wants_template, error);
out:
    str_done(&path);
    return status;
}

static void read_defaults(struct text_model *text, const struct json *generation)
{
    struct sampling_params *p = &text->defaults;
    *p = sampling_params_default();
    p->temperature = (float)json_number(json_get(generation, "temperature"), 1.0);
    p->top_k = (int32_t)json_number(json_get(generation, "top_k"), 0.0);
    p->top_p = (float)json_number(json_get(generation, "top_p"), 1.0);
    p->min_p = (float)json_number(json_get(generation, "min_p"), 0.0);
    p->repetition_penalty = (float)json_number(json_get(generation, "repetition_penalty"), 1.0);
    p->presence_penalty = (float)json_number(json_get(generation, "presence_penalty"), 0.0);
    p->frequency_penalty = (float)json_number(json_get(generation, "frequency_penalty"), 0.0);
    /* A model that asks for greedy decoding; a request's own temperature still counts. */
    if (!json_bool(json_get(generation, "do_sample"), true))
        p->temperature = 0.0f;
}

static enum status open_parts(struct text_model *text, const struct checkpoint *checkpoint,
                              bool wants_tokenizer, const char *template_path, struct error *error)
{
    *text = (struct text_model){0};
    bool wants_template = template_path == NULL;
    enum status status =
        checkpoint_is_gguf(checkpoint)
            ? read_gguf(text, checkpoint, wants_tokenizer, wants_template, error)
            : read_folder(text, checkpoint, wants_tokenizer, wants_template, error);
    if (status == OK && template_path)
        status = read_template(text, template_path, error);
    if (status != OK)
        text_model_done(text);
    return status;
}

enum status text_model_open_templates(struct text_model *text, const struct checkpoint *checkpoint,
                                      const char *template_path, struct error *error)
{
    return open_parts(text, checkpoint, false, template_path, error);
}

enum status text_model_open(struct text_model *text, const struct checkpoint *checkpoint,
                            const char *template_path, struct error *error)
{
    enum status status = open_parts(text, checkpoint, true, template_path, error);
    if (status == OK) {
        const struct json *generation = checkpoint_generation_config(checkpoint);
        const struct json *ids = json_get(generation, "eos_token_id");
        const struct json *config = checkpoint_config(checkpoint);
        if (json_is_null(ids))
            ids = json_get(json_get(config, "text_config"), "eos_token_id");
        if (json_is_null(ids))
            ids = json_get(config, "eos_token_id");
        add_eos_ids(text, ids);
        add_eos_token(text);
        read_defaults(text, generation);
        status = sampling_params_check(&text->defaults, tokenizer_size(text->tokenizer), error);
        if (status != OK)
            error_prefix(error, "%s: generation_config.json", checkpoint_path(checkpoint));
    }
    if (status != OK)
        text_model_done(text);
    return status;
}

void text_model_done(struct text_model *text)
{
    tokenizer_free(text->tokenizer);
    chat_template_free(text->chat_template);
    chat_template_free(text->tool_template);
    free(text->template_source);
    free(text->response_config);
    arena_done(&text->arena);
    *text = (struct text_model){0};
}
