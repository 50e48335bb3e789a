/* Cuts a normalized text into the pieces that are encoded one by one: a list of steps, each of
 * which cuts the pieces of the step before it. */
#ifndef CSGL_TOKENIZER_PRETOKENIZER_H
#define CSGL_TOKENIZER_PRETOKENIZER_H

#include "base/error.h"
#include "base/str.h"
#include "tokenizer/split_rules.h"

#include <stdbool.h>
#include <stddef.h>

enum { PRETOKENIZER_MAX_STEPS = 16, PRETOKENIZER_MAX_PATTERN = 16 << 10 };

enum split_matcher {
    SPLIT_BY_RULE,    /* a pattern with a hand-written matcher */
    SPLIT_BY_REGEX,   /* any other pattern, by PCRE2 */
    SPLIT_BY_LITERAL, /* a fixed string */
    SPLIT_BY_DIGITS,  /* every numeric character */
    SPLIT_BY_PREFIX,  /* not a split: a space is put before a piece that has none */
};

/* What becomes of a match and of the text between matches. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
};

struct split_step {
    enum split_matcher matcher;
    enum split_behavior behavior;
    bool invert; /* matches and gaps change places */
    enum split_rule rule;
    char *literal; /* owned */
    size_t literal_len;
    struct split_regex *regex; /* owned */
};

/* Zero-initialise, add steps, pretokenizer_done. Read-only when complete: shared by all encoders.
 */
struct pretokenizer {
    struct split_step steps[PRETOKENIZER_MAX_STEPS];
    size_t n_steps;
};

/* ERROR_UNSUPPORTED if there are too many steps. `pattern` steps: a known pattern becomes a rule.
 */
enum status pretokenizer_add_rule(struct pretokenizer *p, enum split_rule rule,
                                  struct error *error);
enum status pretokenizer_add_pattern(struct pretokenizer *p, const char *pattern, size_t len,
                                     enum split_behavior behavior, bool invert,
                                     struct error *error);
enum status pretokenizer_add_literal(struct pretokenizer *p, const char *literal, size_t len,
                                     enum split_behavior behavior, bool invert,
                                     struct error *error);
enum status pretokenizer_add_digits(struct pretokenizer *p, bool individual, struct error *error);
enum status pretokenizer_add_prefix_space(struct pretokenizer *p, struct error *error);
void pretokenizer_done(struct pretokenizer *p);

/* Working memory of one encoder. Zero-initialise, pretokenizer_scratch_done. */
struct pretokenizer_scratch {
    struct split_regex_scratch *regex;
    struct str prefixed; /* the piece with its added space */
};

void pretokenizer_scratch_done(struct pretokenizer_scratch *scratch);

/* Receives a piece (len > 0), borrowed for the call, and where it ends in the text. */
typedef enum status (*piece_sink)(void *context, const char *piece, size_t len, size_t end,
                                  struct error *error);

/* Cuts `text`, valid UTF-8. Stops at the first status of `sink` that is not OK, and returns it.
 * ERROR_LIMIT if a regular expression needs more steps or memory than is allowed. */
enum status pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_scratch *scratch,
                             const char *text, size_t n, piece_sink sink, void *context,
                             struct error *error);

#endif
