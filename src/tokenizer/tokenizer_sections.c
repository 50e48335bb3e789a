#include "tokenizer/tokenizer_sections.h"

#include <string.h>

/* What is wrong with a section, in one sentence that names it. */
static enum status refuse(struct error *error, const char *section, const char *type)
{
    return error_set(error, ERROR_UNSUPPORTED, "the %s \"%.60s\" is not supported", section,
                     type ? type : "without a type");
}

/* The items of a Sequence under `key`: NULL, with the status, if they are not a list. */
static enum status sequence_items(const struct json *section, const char *key,
                                  const struct json **items, struct error *error)
{
    *items = json_get(section, key);
    if (!*items || (*items)->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID, "a Sequence has no list of %s", key);
    return OK;
}

enum status read_normalizer(struct tokenizer *t, const struct json *section, struct error *error)
{
    if (json_is_null(section))
        return OK;
    const char *type = json_string(json_get(section, "type"));
    if (type && strcmp(type, "NFC") == 0) {
        t->is_nfc = true;
        return OK;
    }
    if (!type || strcmp(type, "Sequence") != 0)
        return refuse(error, "normalizer", type);
    const struct json *items;
    enum status status = sequence_items(section, "normalizers", &items, error);
    for (size_t i = 0; status == OK && i < items->n; i++)
        status = read_normalizer(t, &items->items[i], error);
    return status;
}

static enum status read_behavior(const struct json *value, enum split_behavior *out,
                                 struct error *error)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (json_string_is(value, names[i])) {
            *out = (enum split_behavior)i;
            return OK;
        }
    }
    return refuse(error, "behavior of Split", json_string(value));
}

static enum status read_split(struct tokenizer *t, const struct json *section, struct error *error)
{
    enum split_behavior behavior = SPLIT_ISOLATED;
    enum status status = read_behavior(json_get(section, "behavior"), &behavior, error);
    if (status != OK)
        return status;
    bool invert = json_bool(json_get(section, "invert"), false);
    const struct json *pattern = json_get(section, "pattern");
    const struct json *regex = json_get(pattern, "Regex"), *literal = json_get(pattern, "String");
    if (regex && regex->type == JT_STRING)
        return pretokenizer_add_pattern(&t->pretokenizer, regex->text, regex->n, behavior, invert,
                                        error);
    if (literal && literal->type == JT_STRING)
        return pretokenizer_add_literal(&t->pretokenizer, literal->text, literal->n, behavior,
                                        invert, error);
    return error_set(error, ERROR_INVALID,
                     "the pre-tokenizer Split has neither a Regex nor a String for its pattern");
}

static enum status read_byte_level(struct tokenizer *t, const struct json *section,
                                   struct error *error)
{
    enum status status = OK;
    if (json_bool(json_get(section, "add_prefix_space"), true))
        status = pretokenizer_add_prefix_space(&t->pretokenizer, error);
    if (status == OK && json_bool(json_get(section, "use_regex"), true))
        status = pretokenizer_add_rule(&t->pretokenizer, SPLIT_RULE_GPT2, error);
    return status;
}

/* ByteLevel turns characters into others, so that it must come once and last. */
static enum status read_pre_tokenizer_step(struct tokenizer *t, const struct json *section,
                                           bool *has_byte_level, struct error *error)
{
    const char *type = json_string(json_get(section, "type"));
    if (!type)
        return refuse(error, "pre-tokenizer", type);
    if (strcmp(type, "Sequence") == 0) {
        const struct json *items;
        enum status status = sequence_items(section, "pretokenizers", &items, error);
        for (size_t i = 0; status == OK && i < items->n; i++)
            status = read_pre_tokenizer_step(t, &items->items[i], has_byte_level, error);
        return status;
    }
    if (*has_byte_level)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the pre-tokenizer \"%.60s\" behind ByteLevel is not supported", type);
    if (strcmp(type, "ByteLevel") == 0) {
        *has_byte_level = true;
        return read_byte_level(t, section, error);
    }
    if (strcmp(type, "Split") == 0)
        return read_split(t, section, error);
    if (strcmp(type, "Digits") == 0)
        return pretokenizer_add_digits(
            &t->pretokenizer, json_bool(json_get(section, "individual_digits"), false), error);
    return refuse(error, "pre-tokenizer", type);
}

enum status read_pre_tokenizer(struct tokenizer *t, const struct json *section, struct error *error)
{
    bool has_byte_level = false;
    enum status status = OK;
    if (!json_is_null(section))
        status = read_pre_tokenizer_step(t, section, &has_byte_level, error);
    if (status == OK && !has_byte_level)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the tokenizer has no ByteLevel pre-tokenizer; only byte-level BPE is "
                         "supported");
    return status;
}

/* Puts the ids of one special token of a template before or behind the text. */
static enum status read_template_token(struct tokenizer *t, const struct json *section,
                                       const char *name, bool is_behind, struct error *error)
{
    struct token_frame *frame = &t->frame;
    const struct json *ids =
        name ? json_get(json_get(json_get(section, "special_tokens"), name), "ids") : NULL;
    if (!ids || ids->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID,
                         "the post-processor's template names \"%.60s\", which is not among its "
                         "special tokens",
                         name ? name : "");
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id;
        if (!json_int(&ids->items[i], 0, VOCABULARY_MAX_IDS - 1, &id))
            return error_set(error, ERROR_INVALID,
                             "the post-processor's special token \"%.60s\" has an id that is not a "
                             "token id",
                             name);
        if (frame->n_before + frame->n_after == TOKENIZER_MAX_FRAME)
            return error_set(error, ERROR_LIMIT,
                             "the post-processor adds more than %d tokens to a text",
                             TOKENIZER_MAX_FRAME);
        if (is_behind)
            frame->after[frame->n_after++] = (int32_t)id;
        else
            frame->before[frame->n_before++] = (int32_t)id;
    }
    return OK;
}

static enum status read_template(struct tokenizer *t, const struct json *section,
                                 struct error *error)
{
    const struct json *single = json_get(section, "single");
    bool is_behind = false;
    if (!single || single->type != JT_ARRAY)
        return error_set(error, ERROR_INVALID,
                         "the post-processor TemplateProcessing has no list \"single\"");
    for (size_t i = 0; i < single->n; i++) {
        const struct json *special = json_get(&single->items[i], "SpecialToken");
        if (special) {
            enum status status = read_template_token(
                t, section, json_string(json_get(special, "id")), is_behind, error);
            if (status != OK)
                return status;
        } else if (json_get(&single->items[i], "Sequence") && !is_behind) {
            is_behind = true;
        } else {
            return error_set(error, ERROR_UNSUPPORTED,
                             "the post-processor's template must hold special tokens and the text "
                             "once");
        }
    }
    if (!is_behind)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the post-processor's template leaves out the text");
    return OK;
}

static enum status read_post_processor_step(struct tokenizer *t, const struct json *section,
                                            bool *has_template, struct error *error)
{
    const char *type = json_string(json_get(section, "type"));
    if (type && strcmp(type, "ByteLevel") == 0)
        return OK; /* changes offsets, not ids */
    if (type && strcmp(type, "TemplateProcessing") == 0 && !*has_template) {
        *has_template = true;
        return read_template(t, section, error);
    }
    if (!type || strcmp(type, "Sequence") != 0)
        return refuse(error, "post-processor", type);
    const struct json *items;
    enum status status = sequence_items(section, "processors", &items, error);
    for (size_t i = 0; status == OK && i < items->n; i++)
        status = read_post_processor_step(t, &items->items[i], has_template, error);
    return status;
}

enum status read_post_processor(struct tokenizer *t, const struct json *section,
                                struct error *error)
{
    bool has_template = false;
    return json_is_null(section) ? OK : read_post_processor_step(t, section, &has_template, error);
}

enum status read_decoder(const struct json *section, struct error *error)
{
    const char *type = json_string(json_get(section, "type"));
    if (json_is_null(section) || (type && strcmp(type, "ByteLevel") == 0))
        return OK;
    const struct json *items = json_get(section, "decoders");
    if (type && strcmp(type, "Sequence") == 0 && items && items->type == JT_ARRAY && items->n == 1)
        return read_decoder(&items->items[0], error);
    return refuse(error, "decoder", type);
}
