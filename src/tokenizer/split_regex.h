/* Patterns without a hand-written matcher, by PCRE2, with bounds on its steps and memory. */
#ifndef CSGL_TOKENIZER_SPLIT_REGEX_H
#define CSGL_TOKENIZER_SPLIT_REGEX_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct split_regex;
struct split_regex_scratch;

/* ERROR_UNSUPPORTED, naming the pattern, if PCRE2 does not take it. The result is read-only. */
enum status split_regex_new(const char *pattern, size_t len, struct split_regex **out,
                            struct error *error);
void split_regex_free(struct split_regex *regex);

/* Working memory for any split_regex; one a thread. NULL if memory is exhausted. */
struct split_regex_scratch *split_regex_scratch_new(void);
void split_regex_scratch_free(struct split_regex_scratch *scratch);

/* Finds the first match in `text`, valid UTF-8, that starts at or behind `from`. */
enum status split_regex_find(const struct split_regex *regex, struct split_regex_scratch *scratch,
                             const char *text, size_t n, size_t from, bool *found, size_t *start,
                             size_t *end, struct error *error);

#endif
