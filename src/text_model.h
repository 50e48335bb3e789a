/* The text side of a model: tokenizer, chat template, end-of-text ids and the sampling defaults
 * that its files state. Made from a checkpoint's files; knows no device. */
#ifndef CSGL_TEXT_MODEL_H
#define CSGL_TEXT_MODEL_H

#include "checkpoint/checkpoint.h"
#include "engine/sampler.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

enum { TEXT_MAX_EOS = 64 };

struct text_model {
    struct tokenizer *tokenizer;         /* NULL: only templates were opened */
    struct chat_template *chat_template; /* NULL: the model has none */
    struct chat_template *tool_template; /* used when tools are given; NULL: chat_template */
    char *template_source;               /* of chat_template; for choosing an output parser */
    char *response_config; /* JSON object of response_template or response_schema; NULL: none */
    struct arena arena;    /* the special tokens' text */
    struct chat_token tokens[CHAT_MAX_TOKENS];
    size_t n_tokens;
    int32_t n_eos;
    int32_t eos_ids[TEXT_MAX_EOS];
    struct sampling_params defaults; /* from generation_config.json */
};

/* `template_path` replaces the model's own template when not NULL. */
enum status text_model_open(struct text_model *text, const struct checkpoint *checkpoint,
                            const char *template_path, struct error *error);
void text_model_done(struct text_model *text);

/* The same without a tokenizer, end-of-text ids and defaults: for who only reads answers. */
enum status text_model_open_templates(struct text_model *text, const struct checkpoint *checkpoint,
                                      const char *template_path, struct error *error);

bool text_model_is_eos(const struct text_model *text, int32_t token);

#endif
