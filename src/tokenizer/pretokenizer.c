#include "tokenizer/pretokenizer.h"

#include "tokenizer/split_regex.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

static enum status add_step(struct pretokenizer *p, const struct split_step *step,
                            struct error *error)
{
    if (p->n_steps == PRETOKENIZER_MAX_STEPS)
        return error_set(error, ERROR_UNSUPPORTED, "the pre-tokenizer has more than %d steps",
                         PRETOKENIZER_MAX_STEPS);
    p->steps[p->n_steps++] = *step;
    return OK;
}

enum status pretokenizer_add_rule(struct pretokenizer *p, enum split_rule rule, struct error *error)
{
    return add_step(p, &(struct split_step){.matcher = SPLIT_BY_RULE, .rule = rule}, error);
}

enum status pretokenizer_add_pattern(struct pretokenizer *p, const char *pattern, size_t len,
                                     enum split_behavior behavior, bool invert, struct error *error)
{
    if (len > PRETOKENIZER_MAX_PATTERN)
        return error_set(error, ERROR_LIMIT,
                         "a pre-tokenizer's pattern has %zu bytes; the limit is %d", len,
                         PRETOKENIZER_MAX_PATTERN);
    struct split_step step = {.matcher = SPLIT_BY_RULE,
                              .behavior = behavior,
                              .invert = invert,
                              .rule = split_rule_of_pattern(pattern, len)};
    if (step.rule == SPLIT_RULE_NONE) {
        step.matcher = SPLIT_BY_REGEX;
        enum status status = split_regex_new(pattern, len, &step.regex, error);
        if (status != OK)
            return status;
    }
    enum status status = add_step(p, &step, error);
    if (status != OK)
        split_regex_free(step.regex);
    return status;
}

enum status pretokenizer_add_literal(struct pretokenizer *p, const char *literal, size_t len,
                                     enum split_behavior behavior, bool invert, struct error *error)
{
    if (len > PRETOKENIZER_MAX_PATTERN)
        return error_set(error, ERROR_LIMIT,
                         "a pre-tokenizer's string has %zu bytes; the limit is %d", len,
                         PRETOKENIZER_MAX_PATTERN);
    struct split_step step = {.matcher = SPLIT_BY_LITERAL,
                              .behavior = behavior,
                              .invert = invert,
                              .literal = malloc(len + 1),
                              .literal_len = len};
    if (!step.literal)
        return error_memory(error, len + 1);
    memcpy(step.literal, literal, len);
    enum status status = add_step(p, &step, error);
    if (status != OK)
        free(step.literal);
    return status;
}

enum status pretokenizer_add_digits(struct pretokenizer *p, bool individual, struct error *error)
{
    struct split_step step = {.matcher = SPLIT_BY_DIGITS,
                              .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return add_step(p, &step, error);
}

enum status pretokenizer_add_prefix_space(struct pretokenizer *p, struct error *error)
{
    return add_step(p, &(struct split_step){.matcher = SPLIT_BY_PREFIX}, error);
}

void pretokenizer_done(struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        split_regex_free(p->steps[i].regex);
        free(p->steps[i].literal);
    }
    *p = (struct pretokenizer){0};
}

void pretokenizer_scratch_done(struct pretokenizer_scratch *s)
{
    split_regex_scratch_free(s->regex);
    str_done(&s->prefixed);
    *s = (struct pretokenizer_scratch){0};
}

/* What all steps of one run share. */
struct run {
    const struct pretokenizer *pretokenizer;
    struct pretokenizer_scratch *scratch;
    piece_sink sink;
    void *context;
    struct error *error;
};

/* A piece on its way through the steps: its bytes, and where they end in the whole text. */
struct piece {
    const char *text;
    size_t n, end;
};

static enum status run_step(const struct run *run, size_t nth, struct piece piece);

/* Hands [start, end) of `piece` to the step behind `nth`. */
static enum status pass_on(const struct run *run, size_t nth, const struct piece *piece,
                           size_t start, size_t end)
{
    if (start == end)
        return OK;
    struct piece part = {piece->text + start, end - start, piece->end - (piece->n - end)};
    if (nth + 1 == run->pretokenizer->n_steps)
        return run->sink(run->context, part.text, part.n, part.end, run->error);
    return run_step(run, nth + 1, part);
}

static bool find_digit(const struct piece *piece, size_t from, size_t *start, size_t *end)
{
    for (size_t at = from, bytes; at < piece->n; at += bytes) {
        unsigned char c = (unsigned char)piece->text[at];
        bytes = 1;
        bool is_digit = c < 0x80 ? c >= '0' && c <= '9'
                                 : unicode_is_numeric(utf8_decode(piece->text + at, &bytes));
        if (is_digit) {
            *start = at;
            *end = at + bytes;
            return true;
        }
    }
    return false;
}

static bool find_literal(const struct split_step *step, const struct piece *piece, size_t from,
                         size_t *start, size_t *end)
{
    if (!step->literal_len)
        return false;
    const char *found =
        memmem(piece->text + from, piece->n - from, step->literal, step->literal_len);
    if (!found)
        return false;
    *start = (size_t)(found - piece->text);
    *end = *start + step->literal_len;
    return true;
}

static bool find_rule(enum split_rule rule, const struct piece *piece, size_t from, size_t *start,
                      size_t *end)
{
    for (size_t at = from, bytes; at < piece->n; at += bytes) {
        const char *text = piece->text + at;
        const char *after = split_rule_match(rule, text, piece->text + piece->n);
        if (after) {
            *start = at;
            *end = (size_t)(after - piece->text);
            return true;
        }
        utf8_decode(text, &bytes);
    }
    return false;
}

/* Finds the first match at or behind `from`. */
static enum status find_match(const struct run *run, const struct split_step *step,
                              const struct piece *piece, size_t from, bool *found, size_t *start,
                              size_t *end)
{
    switch (step->matcher) {
    case SPLIT_BY_RULE:
        *found = find_rule(step->rule, piece, from, start, end);
        return OK;
    case SPLIT_BY_DIGITS:
        *found = find_digit(piece, from, start, end);
        return OK;
    case SPLIT_BY_LITERAL:
        *found = find_literal(step, piece, from, start, end);
        return OK;
    case SPLIT_BY_REGEX:
    case SPLIT_BY_PREFIX:
        break;
    }
    return split_regex_find(step->regex, run->scratch->regex, piece->text, piece->n, from, found,
                            start, end, run->error);
}

/* Joins the ranges of matches and gaps as the step's behavior says, and passes them on. The range
 * that may still grow waits here. */
struct joiner {
    const struct run *run;
    const struct piece *piece;
    size_t nth;
    enum split_behavior behavior;
    bool has_waiting, waiting_is_match, last_is_match;
    size_t start, end;
};

static enum status flush_waiting(struct joiner *j)
{
    if (!j->has_waiting)
        return OK;
    j->has_waiting = false;
    if (j->behavior == SPLIT_REMOVED && j->waiting_is_match)
        return OK;
    return pass_on(j->run, j->nth, j->piece, j->start, j->end);
}

static bool joins_waiting(const struct joiner *j, bool is_match)
{
    if (!j->has_waiting)
        return false;
    switch (j->behavior) {
    case SPLIT_CONTIGUOUS:
        return is_match == j->last_is_match;
    case SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !j->last_is_match;
    case SPLIT_MERGED_WITH_NEXT:
        return !is_match && j->last_is_match;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED:
        break;
    }
    return false;
}

static enum status add_range(struct joiner *j, size_t start, size_t end, bool is_match)
{
    bool joins = joins_waiting(j, is_match);
    j->last_is_match = is_match;
    if (joins) {
        j->end = end;
        return OK;
    }
    enum status status = flush_waiting(j);
    j->has_waiting = true;
    j->waiting_is_match = is_match;
    j->start = start;
    j->end = end;
    return status;
}

/* An empty match right behind the last match does not count: the search goes on one character
 * later. */
static enum status run_split(const struct run *run, size_t nth, const struct piece *piece)
{
    const struct split_step *step = &run->pretokenizer->steps[nth];
    struct joiner joiner = {.run = run, .piece = piece, .nth = nth, .behavior = step->behavior};
    size_t from = 0, last_end = 0;
    bool has_match = false;
    enum status status = OK;
    while (status == OK && from <= piece->n) {
        bool found;
        size_t start, end;
        status = find_match(run, step, piece, from, &found, &start, &end);
        if (status != OK || !found)
            break;
        if (start == end && has_match && start == last_end) {
            size_t bytes = 1;
            if (from < piece->n)
                utf8_decode(piece->text + from, &bytes);
            from += bytes;
            continue;
        }
        if (last_end < start)
            status = add_range(&joiner, last_end, start, step->invert);
        if (status == OK)
            status = add_range(&joiner, start, end, !step->invert);
        from = last_end = end;
        has_match = true;
    }
    if (status == OK && last_end < piece->n)
        status = add_range(&joiner, last_end, piece->n, step->invert);
    return status == OK ? flush_waiting(&joiner) : status;
}

/* The common case: a rule that isolates its matches needs no joining. */
static enum status run_rule(const struct run *run, size_t nth, const struct piece *piece)
{
    enum split_rule rule = run->pretokenizer->steps[nth].rule;
    size_t at = 0, start, end;
    enum status status = OK;
    while (status == OK && find_rule(rule, piece, at, &start, &end)) {
        status = pass_on(run, nth, piece, at, start);
        if (status == OK)
            status = pass_on(run, nth, piece, start, end);
        at = end;
    }
    return status == OK ? pass_on(run, nth, piece, at, piece->n) : status;
}

/* Nothing behind this step keeps pieces beyond its call, so one buffer serves all of them. */
static enum status run_prefix(const struct run *run, size_t nth, struct piece piece)
{
    if (piece.text[0] != ' ') {
        struct str *prefixed = &run->scratch->prefixed;
        str_clear(prefixed);
        str_append_char(prefixed, ' ');
        str_append(prefixed, piece.text, piece.n);
        if (prefixed->failed)
            return error_memory(run->error, piece.n);
        piece.text = prefixed->data;
        piece.n = prefixed->len;
    }
    return pass_on(run, nth, &piece, 0, piece.n);
}

static enum status run_step(const struct run *run, size_t nth, struct piece piece)
{
    const struct split_step *step = &run->pretokenizer->steps[nth];
    if (step->matcher == SPLIT_BY_PREFIX)
        return run_prefix(run, nth, piece);
    if (step->matcher == SPLIT_BY_RULE && step->behavior == SPLIT_ISOLATED)
        return run_rule(run, nth, &piece);
    return run_split(run, nth, &piece);
}

enum status pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_scratch *scratch,
                             const char *text, size_t n, piece_sink sink, void *context,
                             struct error *error)
{
    if (!n)
        return OK;
    if (!p->n_steps)
        return sink(context, text, n, n, error);
    if (!scratch->regex && !(scratch->regex = split_regex_scratch_new()))
        return error_memory(error, sizeof(void *));
    struct run run = {p, scratch, sink, context, error};
    return run_step(&run, 0, (struct piece){text, n, n});
}
