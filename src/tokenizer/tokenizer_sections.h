/* The small sections of a tokenizer.json, as trees: what is supported becomes part of the
 * tokenizer, what is not is refused by name. */
#ifndef CSGL_TOKENIZER_TOKENIZER_SECTIONS_H
#define CSGL_TOKENIZER_TOKENIZER_SECTIONS_H

#include "base/json.h"
#include "tokenizer/tokenizer_parts.h"

/* Each takes the value of its key; NULL stands for a section that is absent. */
enum status read_normalizer(struct tokenizer *t, const struct json *section, struct error *error);
enum status read_pre_tokenizer(struct tokenizer *t, const struct json *section,
                               struct error *error);
enum status read_post_processor(struct tokenizer *t, const struct json *section,
                                struct error *error);
enum status read_decoder(const struct json *section, struct error *error);

#endif
