/* Python's regular expressions by way of PCRE2: Unicode, the dot matches line breaks. A compiled
 * pattern is immutable; who matches brings a scratch. Matching is limited in steps and memory. */
#ifndef CSGL_PARSER_PATTERN_H
#define CSGL_PARSER_PATTERN_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

struct pattern;
struct pattern_scratch;

/* `what` names the pattern in messages. */
enum status pattern_new(const char *text, size_t len, const char *what, struct pattern **out,
                        struct error *error);
void pattern_free(struct pattern *pattern);

/* Appends `literal` so that as a pattern it matches itself. */
void pattern_escape(struct str *out, const char *literal, size_t len);

/* NULL if memory is exhausted. A scratch serves one pattern. */
struct pattern_scratch *pattern_scratch_new(const struct pattern *pattern);
void pattern_scratch_free(struct pattern_scratch *scratch);

enum pattern_found {
    PATTERN_NONE,
    PATTERN_PARTIAL, /* more text could make or lengthen a match that begins at `start` */
    PATTERN_FULL
};

/* The leftmost match at or behind `from` in `text`, valid UTF-8. With `may_grow` text may still be
 * appended: the first place where the outcome depends on that is PATTERN_PARTIAL, so that decisions
 * never depend on how the text was cut. ERROR_LIMIT if the pattern needs too many steps. */
enum status pattern_find(const struct pattern *pattern, struct pattern_scratch *scratch,
                         const char *text, size_t len, size_t from, bool may_grow,
                         enum pattern_found *found, size_t *start, size_t *end,
                         struct error *error);

/* Groups of the last match: 1 .. pattern_n_groups. False if the group took no part. */
unsigned pattern_n_groups(const struct pattern *pattern);
bool pattern_group(const struct pattern_scratch *scratch, unsigned group, size_t *start,
                   size_t *end);
/* The group's name, or NULL. */
const char *pattern_group_name(const struct pattern *pattern, unsigned group);
/* 0 if there is no such group. */
unsigned pattern_group_number(const struct pattern *pattern, const char *name);
bool pattern_has_names(const struct pattern *pattern);

/* All matches one after the other, as Python's finditer. Zero-initialise. */
struct pattern_walk {
    size_t from;
    bool was_empty;
};
enum status pattern_next(const struct pattern *pattern, struct pattern_scratch *scratch,
                         struct pattern_walk *walk, const char *text, size_t len, bool *found,
                         size_t *start, size_t *end, struct error *error);

/* Python's re.sub: `replacement` with \1, \g<1>, \g<name> and the usual escapes. The result is at
 * most `max` bytes, else ERROR_LIMIT. */
enum status pattern_replace(const struct pattern *pattern, const char *replacement,
                            const char *text, size_t len, size_t max, struct str *out,
                            struct error *error);

#endif
