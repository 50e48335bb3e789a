#include "tokenizer/split_rules.h"

#include "tokenizer/unicode.h"

#include <string.h>

/* What the rules distinguish. UPPERISH and LOWERISH are o200k's two letter classes. */
enum {
    LETTER = UNICODE_LETTER,
    UPPERISH = UNICODE_UPPER | UNICODE_OTHER_LETTER | UNICODE_MARK,
    LOWERISH = UNICODE_LOWER | UNICODE_OTHER_LETTER | UNICODE_MARK,
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SYMBOLS_AND_SPACES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define DEEPSEEK_WORDS(cr, lf)                                                                     \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                        \
    "|[^" cr lf "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                                              \
    "| ?[\\p{P}\\p{S}]+[" cr lf "]*|\\s*[" cr lf "]+|\\s+(?!\\S)|\\s+"

static const struct {
    enum split_rule rule;
    const char *pattern;
} known_patterns[] = {
    {SPLIT_RULE_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                      "\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_QWEN2, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" SYMBOLS_AND_SPACES},
    {SPLIT_RULE_QWEN35, CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                     "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                                     "\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_LLAMA3,
     CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" SYMBOLS_AND_SPACES},
    {SPLIT_RULE_O200K,
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_RULE_DEEPSEEK_NUMBERS, "\\p{N}{1,3}"},
    {SPLIT_RULE_DEEPSEEK_CJK, "[一-龥぀-ゟ゠-ヿ]+"},
    /* Line breaks as themselves or spelled out. */
    {SPLIT_RULE_DEEPSEEK_WORDS, DEEPSEEK_WORDS("\r", "\n")},
    {SPLIT_RULE_DEEPSEEK_WORDS, DEEPSEEK_WORDS("\\r", "\\n")},
};

enum split_rule split_rule_of_pattern(const char *pattern, size_t len)
{
    for (size_t i = 0; i < sizeof known_patterns / sizeof known_patterns[0]; i++)
        if (strlen(known_patterns[i].pattern) == len &&
            memcmp(known_patterns[i].pattern, pattern, len) == 0)
            return known_patterns[i].rule;
    return SPLIT_RULE_NONE;
}

static inline unsigned class_at(const char *at, size_t *bytes)
{
    unsigned char c = (unsigned char)*at;
    if (c < 0x80) {
        *bytes = 1;
        return unicode_class_blocks[c]; /* the generator stores ASCII's block first */
    }
    return unicode_class(utf8_decode(at, bytes));
}

/* Behind the longest run of characters whose class has one of `bits`. */
static inline const char *run_of(const char *at, const char *end, unsigned bits)
{
    size_t bytes;
    while (at < end && (class_at(at, &bytes) & bits))
        at += bytes;
    return at;
}

/* Behind the longest run of characters whose class has none of `bits`. */
static inline const char *run_without(const char *at, const char *end, unsigned bits)
{
    size_t bytes;
    while (at < end && !(class_at(at, &bytes) & bits))
        at += bytes;
    return at;
}

static inline bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

/* Behind 's 't 're 've 'm 'll 'd, or NULL. Ignoring case, U+017F is an s, as case folding has it.
 */
static const char *contraction(const char *at, const char *end, bool ignore_case)
{
    if (end - at < 2 || at[0] != '\'')
        return NULL;
    unsigned char fold = ignore_case ? 0x20 : 0;
    unsigned char first = (unsigned char)((unsigned char)at[1] | fold);
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if (end - at < 3)
        return NULL;
    if (ignore_case && memcmp(at + 1, "\xC5\xBF", 2) == 0)
        return at + 3;
    unsigned char second = (unsigned char)((unsigned char)at[2] | fold);
    bool is_pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                   (first == 'l' && second == 'l');
    return is_pair ? at + 3 : NULL;
}

/* The alternatives for white space: `\s*[\r\n]+` if `newlines`, then `\s+(?!\S)`, then `\s+`. */
static const char *spaces(const char *at, const char *end, bool newlines)
{
    const char *run = run_of(at, end, UNICODE_SPACE);
    if (newlines)
        for (const char *back = run; back > at; back--)
            if (is_newline(back[-1]))
                return back;
    if (run == end)
        return run;
    const char *last = utf8_previous(run);
    return last > at ? last : run;
}

static const char *match_gpt2(const char *at, const char *end)
{
    const char *after = contraction(at, end, false);
    if (after)
        return after;
    const char *word = *at == ' ' && at + 1 < end ? at + 1 : at;
    size_t bytes;
    unsigned kind = class_at(word, &bytes);
    if (kind & LETTER)
        return run_of(word + bytes, end, LETTER);
    if (kind & UNICODE_NUMBER)
        return run_of(word + bytes, end, UNICODE_NUMBER);
    if (kind & UNICODE_SPACE)
        return spaces(at, end, false);
    return run_without(word + bytes, end, UNICODE_SPACE | LETTER | UNICODE_NUMBER);
}

/* Up to `most` numbers from `at`, which is at one. */
static const char *numbers(const char *at, const char *end, int most)
{
    size_t bytes;
    for (int i = 0; i < most && at < end && (class_at(at, &bytes) & UNICODE_NUMBER); i++)
        at += bytes;
    return at;
}

/* ` ?[^\s\p{L}\p{N}]+[\r\n]*`, with `letters` for \p{L} and "/" among the last if `slash`; NULL if
 * there is no such run. */
static const char *symbols(const char *at, const char *end, unsigned letters, bool slash)
{
    unsigned others = UNICODE_SPACE | UNICODE_NUMBER | letters;
    const char *first = *at == ' ' ? at + 1 : at;
    const char *run = run_without(first, end, others);
    if (run == first)
        return NULL;
    while (run < end && (is_newline(*run) || (slash && *run == '/')))
        run++;
    return run;
}

/* Qwen2, Qwen3.5 and Llama 3. */
static inline const char *match_word_rule(const char *at, const char *end, unsigned letters,
                                          int digits)
{
    if (*at == '\'') {
        const char *after = contraction(at, end, true);
        if (after)
            return after;
    }
    size_t bytes;
    unsigned kind = class_at(at, &bytes);
    if (kind & letters)
        return run_of(at + bytes, end, letters);
    if (kind & UNICODE_NUMBER)
        return numbers(at, end, digits);
    if (!is_newline(*at)) {
        const char *word = run_of(at + bytes, end, letters);
        if (word > at + bytes)
            return word;
    }
    const char *run = symbols(at, end, letters, false);
    return run ? run : spaces(at, end, true);
}

/* A word of o200k that starts at `at`: `[U]*[W]+`, else `[U]+[W]*`; NULL if there is none. The
 * letters and marks that are in both classes make it worth a comment: the run of U takes all it
 * can, then W+ needs one character, and if none follows it gets the last one of the run that is in
 * W, which then is its end. */
static const char *o200k_word(const char *at, const char *end)
{
    const char *upper = at, *last_lower_end = NULL;
    size_t bytes;
    for (unsigned kind; upper < end && ((kind = class_at(upper, &bytes)) & UPPERISH);) {
        upper += bytes;
        if (kind & LOWERISH)
            last_lower_end = upper;
    }
    const char *lower = run_of(upper, end, LOWERISH);
    if (lower > upper)
        return lower;
    if (last_lower_end)
        return last_lower_end;
    return upper > at ? upper : NULL;
}

/* Whether `[U]*[W]+` matches at `at`: the pattern tries it with and without a leading character
 * before it tries `[U]+[W]*`. */
static bool has_lower(const char *at, const char *end)
{
    size_t bytes;
    for (unsigned kind; at < end && ((kind = class_at(at, &bytes)) & (UPPERISH | LOWERISH));) {
        if (kind & LOWERISH)
            return true;
        at += bytes;
    }
    return false;
}

static const char *match_o200k(const char *at, const char *end)
{
    size_t bytes;
    unsigned kind = class_at(at, &bytes);
    bool may_lead = !(kind & (LETTER | UNICODE_NUMBER)) && !is_newline(*at);
    const char *word = NULL;
    if (may_lead) {
        /* A mark may lead a word as well as be part of one. */
        bool skip = (kind & UNICODE_MARK) && !has_lower(at + bytes, end);
        word = skip ? at + bytes : o200k_word(at + bytes, end);
    } else if (kind & LETTER) {
        word = o200k_word(at, end);
    }
    if (word) {
        const char *after = contraction(word, end, true);
        return after ? after : word;
    }
    if (kind & UNICODE_NUMBER)
        return numbers(at, end, 3);
    const char *run = symbols(at, end, LETTER, true);
    return run ? run : spaces(at, end, true);
}

static bool is_han_or_kana(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

static const char *match_deepseek_cjk(const char *at, const char *end)
{
    const char *run = at;
    for (size_t bytes; run < end && (unsigned char)*run >= 0x80; run += bytes)
        if (!is_han_or_kana(utf8_decode(run, &bytes)))
            break;
    return run > at ? run : NULL;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static const char *match_deepseek_words(const char *at, const char *end)
{
    enum { WORD = LETTER | UNICODE_MARK };
    size_t bytes;
    unsigned kind = class_at(at, &bytes);
    if (kind & WORD)
        return run_of(at + bytes, end, WORD);
    if (kind & UNICODE_SYMBOL) {
        const char *run = at + 1;
        while (bytes == 1 && run < end && is_ascii_letter(*run))
            run++;
        if (run > at + 1)
            return run;
    } else if (!is_newline(*at)) {
        const char *word = run_of(at + bytes, end, WORD);
        if (word > at + bytes)
            return word;
    }
    const char *first = *at == ' ' ? at + 1 : at;
    const char *run = run_of(first, end, UNICODE_SYMBOL);
    if (run > first) {
        while (run < end && is_newline(*run))
            run++;
        return run;
    }
    return kind & UNICODE_SPACE ? spaces(at, end, true) : NULL;
}

const char *split_rule_match(enum split_rule rule, const char *at, const char *end)
{
    switch (rule) {
    case SPLIT_RULE_GPT2:
        return match_gpt2(at, end);
    case SPLIT_RULE_QWEN2:
        return match_word_rule(at, end, LETTER, 1);
    case SPLIT_RULE_QWEN35:
        return match_word_rule(at, end, LETTER | UNICODE_MARK, 1);
    case SPLIT_RULE_LLAMA3:
        return match_word_rule(at, end, LETTER, 3);
    case SPLIT_RULE_O200K:
        return match_o200k(at, end);
    case SPLIT_RULE_DEEPSEEK_NUMBERS: {
        const char *run = numbers(at, end, 3);
        return run > at ? run : NULL;
    }
    case SPLIT_RULE_DEEPSEEK_CJK:
        return match_deepseek_cjk(at, end);
    case SPLIT_RULE_DEEPSEEK_WORDS:
        return match_deepseek_words(at, end);
    case SPLIT_RULE_NONE:
        break;
    }
    return NULL;
}
