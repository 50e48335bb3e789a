#include "parser/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Backtracking steps from one starting point, their depth, the memory in KiB that they may use, and
 * the length of a pattern. */
enum {
    MATCH_LIMIT = 1000000,
    DEPTH_LIMIT = 100000,
    HEAP_LIMIT_KIB = 64 << 10,
    MAX_PATTERN = 16384
};

/* Characters of a pattern that are shown in messages. */
enum { SHOWN = 80 };

struct pattern {
    pcre2_code *code;
    uint32_t n_groups;
    char text[SHOWN + 1]; /* its beginning, for messages */
};

struct pattern_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
};

static bool is_hex(const char *text, size_t left, size_t n)
{
    if (left < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    return true;
}

/* Python's escapes that PCRE2 spells otherwise: \uXXXX, \UXXXXXXXX and \Z. */
static void translate(const char *text, size_t len, struct str *out)
{
    for (size_t i = 0; i < len; i++) {
        str_append_char(out, text[i]);
        if (text[i] != '\\' || i + 1 == len)
            continue;
        char c = text[++i];
        size_t digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits && is_hex(text + i + 1, len - i - 1, digits)) {
            str_append(out, "x{", 2);
            str_append(out, text + i + 1, digits);
            str_append_char(out, '}');
            i += digits;
        } else {
            str_append_char(out, c == 'Z' ? 'z' : c);
        }
    }
}

enum status pattern_new(const char *text, size_t len, const char *what, struct pattern **out,
                        struct error *error)
{
    *out = NULL;
    if (len > MAX_PATTERN)
        return error_set(error, ERROR_LIMIT,
                         "%s: the regular expression has %zu bytes, the limit is %d", what, len,
                         MAX_PATTERN);
    struct pattern *p = calloc(1, sizeof *p);
    struct str source = {0};
    translate(text, len, &source);
    if (!p || source.failed) {
        free(p);
        str_done(&source);
        return error_memory(error, sizeof *p + len);
    }
    memcpy(p->text, text, len < SHOWN ? len : SHOWN);
    int code;
    PCRE2_SIZE at;
    p->code = pcre2_compile((PCRE2_SPTR)str_z(&source), source.len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C, &code,
                            &at, NULL);
    str_done(&source);
    if (!p->code) {
        char message[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        enum status status =
            error_set(error, ERROR_INVALID,
                      "%s: the regular expression \"%s\" is not understood at byte %zu: %s", what,
                      p->text, (size_t)at, message);
        free(p);
        return status;
    }
    pcre2_pattern_info(p->code, PCRE2_INFO_CAPTURECOUNT, &p->n_groups);
    *out = p;
    return OK;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

void pattern_escape(struct str *out, const char *literal, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)literal[i];
        if (c < 0x80 && !isalnum(c)) {
            str_printf(out, "\\x{%x}", c);
            continue;
        }
        str_append_char(out, literal[i]);
    }
}

struct pattern_scratch *pattern_scratch_new(const struct pattern *p)
{
    struct pattern_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->match || !s->context) {
        pattern_scratch_free(s);
        return NULL;
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_set_depth_limit(s->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    return s;
}

void pattern_scratch_free(struct pattern_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    free(s);
}

static enum status find(const struct pattern *p, struct pattern_scratch *s, const char *text,
                        size_t len, size_t from, uint32_t options, enum pattern_found *found,
                        size_t *start, size_t *end, struct error *error)
{
    *found = PATTERN_NONE;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, len, from, options | PCRE2_NO_UTF_CHECK,
                         s->match, s->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return OK;
    if (rc < 0 && rc != PCRE2_ERROR_PARTIAL) {
        char message[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        return error_set(error, ERROR_LIMIT,
                         "the response template's regular expression \"%s\" gave up: %s", p->text,
                         message);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(s->match);
    *start = offsets[0];
    *end = offsets[1];
    /* \K can put the start behind the end, or before where the search began. */
    if (*start > *end || *start < from)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the response template's regular expression \"%s\" moves its start with "
                         "\\K, which is not supported",
                         p->text);
    *found = rc == PCRE2_ERROR_PARTIAL ? PATTERN_PARTIAL : PATTERN_FULL;
    return OK;
}

enum status pattern_find(const struct pattern *p, struct pattern_scratch *s, const char *text,
                         size_t len, size_t from, bool may_grow, enum pattern_found *found,
                         size_t *start, size_t *end, struct error *error)
{
    return find(p, s, text, len, from, may_grow ? PCRE2_PARTIAL_HARD : 0, found, start, end, error);
}

unsigned pattern_n_groups(const struct pattern *p)
{
    return p->n_groups;
}

bool pattern_group(const struct pattern_scratch *s, unsigned group, size_t *start, size_t *end)
{
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(s->match);
    if (group >= pcre2_get_ovector_count(s->match) || offsets[2 * group] == PCRE2_UNSET)
        return false;
    *start = offsets[2 * group];
    *end = offsets[2 * group + 1];
    return *start <= *end;
}

/* Rows of the name table: two bytes of number, the name, NUL. */
static const unsigned char *name_row(const struct pattern *p, uint32_t row)
{
    uint32_t n = 0, bytes = 0;
    const unsigned char *table = NULL;
    pcre2_pattern_info(p->code, PCRE2_INFO_NAMECOUNT, &n);
    if (row >= n)
        return NULL;
    pcre2_pattern_info(p->code, PCRE2_INFO_NAMEENTRYSIZE, &bytes);
    pcre2_pattern_info(p->code, PCRE2_INFO_NAMETABLE, &table);
    return table + (size_t)row * bytes;
}

static unsigned row_number(const unsigned char *row)
{
    return (unsigned)row[0] << 8 | row[1];
}

const char *pattern_group_name(const struct pattern *p, unsigned group)
{
    const unsigned char *row;
    for (uint32_t i = 0; (row = name_row(p, i)); i++)
        if (row_number(row) == group)
            return (const char *)row + 2;
    return NULL;
}

unsigned pattern_group_number(const struct pattern *p, const char *name)
{
    const unsigned char *row;
    for (uint32_t i = 0; (row = name_row(p, i)); i++)
        if (strcmp((const char *)row + 2, name) == 0)
            return row_number(row);
    return 0;
}

bool pattern_has_names(const struct pattern *p)
{
    return name_row(p, 0) != NULL;
}

enum status pattern_next(const struct pattern *p, struct pattern_scratch *s,
                         struct pattern_walk *walk, const char *text, size_t len, bool *found,
                         size_t *start, size_t *end, struct error *error)
{
    enum pattern_found what;
    uint32_t options = walk->was_empty ? PCRE2_NOTEMPTY_ATSTART : 0;
    enum status status = find(p, s, text, len, walk->from, options, &what, start, end, error);
    *found = status == OK && what == PATTERN_FULL;
    if (*found) {
        walk->was_empty = *start == *end;
        walk->from = *end;
    }
    return status;
}

/* The group that \1, \g<1> or \g<name> at `at` (behind the backslash) means; bytes read in *n, 0 if
 * it is none of them. */
static unsigned replacement_group(const struct pattern *p, const char *at, size_t *n)
{
    *n = 0;
    if (*at >= '1' && *at <= '9') {
        *n = isdigit((unsigned char)at[1]) ? 2 : 1;
        return (unsigned)(at[0] - '0') * (*n == 2 ? 10 : 1) +
               (*n == 2 ? (unsigned)(at[1] - '0') : 0);
    }
    const char *close = at[0] == 'g' && at[1] == '<' ? strchr(at, '>') : NULL;
    char name[64];
    size_t len = close ? (size_t)(close - at - 2) : 0;
    if (!len || len >= sizeof name)
        return 0;
    memcpy(name, at + 2, len);
    name[len] = '\0';
    *n = len + 3;
    if (isdigit((unsigned char)name[0]))
        return (unsigned)strtoul(name, NULL, 10);
    return pattern_group_number(p, name);
}

static void append_replacement(const struct pattern *p, const struct pattern_scratch *s,
                               const char *replacement, const char *text, struct str *out)
{
    static const char from[] = "nrtabfv\\", to[] = "\n\r\t\a\b\f\v\\";
    for (const char *at = replacement; *at; at++) {
        if (*at != '\\' || !at[1]) {
            str_append_char(out, *at);
            continue;
        }
        size_t n, start, end;
        unsigned group = replacement_group(p, at + 1, &n);
        const char *found = strchr(from, at[1]);
        if (n) {
            if (pattern_group(s, group, &start, &end))
                str_append(out, text + start, end - start);
            at += n;
        } else if (found) {
            str_append_char(out, to[found - from]);
            at++;
        } else {
            str_append_char(out, *at);
        }
    }
}

enum status pattern_replace(const struct pattern *p, const char *replacement, const char *text,
                            size_t len, size_t max, struct str *out, struct error *error)
{
    struct pattern_scratch *s = pattern_scratch_new(p);
    if (!s)
        return error_memory(error, sizeof *s);
    struct pattern_walk walk = {0};
    size_t copied = 0;
    enum status status = OK;
    for (;;) {
        bool found;
        size_t start, end;
        status = pattern_next(p, s, &walk, text, len, &found, &start, &end, error);
        if (status != OK || !found)
            break;
        str_append(out, text + copied, start - copied);
        append_replacement(p, s, replacement, text, out);
        copied = end;
        if (out->failed || out->len > max)
            break;
    }
    str_append(out, text + copied, len - copied);
    pattern_scratch_free(s);
    if (status == OK && out->failed)
        status = error_memory(error, out->len);
    else if (status == OK && out->len > max)
        status = error_set(error, ERROR_LIMIT,
                           "replacing \"%s\" makes the text longer than %zu bytes", p->text, max);
    return status;
}
