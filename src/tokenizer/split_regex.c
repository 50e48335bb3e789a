#include "tokenizer/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

/* Backtracking steps of one match, its depth, and the memory in KiB it may use. */
enum { MATCH_LIMIT = 20000000, DEPTH_LIMIT = 1000000, HEAP_LIMIT_KIB = 64 << 10 };

struct split_regex {
    pcre2_code *code;
};

struct split_regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
};

/* Characters of a pattern that are shown in messages. */
enum { SHOWN = 80 };

enum status split_regex_new(const char *pattern, size_t len, struct split_regex **out,
                            struct error *error)
{
    *out = NULL;
    int shown = len > SHOWN ? SHOWN : (int)len;
    /* Oniguruma, which these patterns are written for, intersects classes with &&; PCRE2 does not.
     */
    for (size_t i = 0; i + 1 < len; i++)
        if (pattern[i] == '&' && pattern[i + 1] == '&')
            return error_set(error, ERROR_UNSUPPORTED,
                             "the pre-tokenizer's pattern \"%.*s\" intersects classes with &&, "
                             "which is not supported",
                             shown, pattern);
    struct split_regex *regex = malloc(sizeof *regex);
    if (!regex)
        return error_memory(error, sizeof *regex);
    int code;
    PCRE2_SIZE at;
    /* MULTILINE: in Oniguruma's default syntax ^ and $ match at lines. */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    regex->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &at, NULL);
    if (!regex->code) {
        char text[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        free(regex);
        return error_set(error, ERROR_UNSUPPORTED,
                         "the pre-tokenizer's pattern \"%.*s\" is not understood at byte %zu: %s",
                         shown, pattern, (size_t)at, text);
    }
    /* Without a JIT the interpreter serves; it is slower, not different. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    *out = regex;
    return OK;
}

void split_regex_free(struct split_regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    free(regex);
}

struct split_regex_scratch *split_regex_scratch_new(void)
{
    struct split_regex_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->match || !s->context) {
        split_regex_scratch_free(s);
        return NULL;
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    pcre2_set_depth_limit(s->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    return s;
}

void split_regex_scratch_free(struct split_regex_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    free(s);
}

enum status split_regex_find(const struct split_regex *regex, struct split_regex_scratch *s,
                             const char *text, size_t n, size_t from, bool *found, size_t *start,
                             size_t *end, struct error *error)
{
    *found = false;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(regex->code, (PCRE2_SPTR)text, n, from, options, s->match, s->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(regex->code, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, s->match,
                         s->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return OK;
    if (rc < 0) {
        char message[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        return error_set(
            error, ERROR_LIMIT,
            "the pre-tokenizer's regular expression gave up at byte %zu of the text: %s", from,
            message);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(s->match);
    *start = offsets[0];
    *end = offsets[1];
    /* \K inside a lookahead can put the start behind the end. */
    if (*start > *end || *start < from)
        return error_set(error, ERROR_UNSUPPORTED,
                         "the pre-tokenizer's regular expression uses \\K in a way that is not "
                         "supported");
    *found = true;
    return OK;
}
