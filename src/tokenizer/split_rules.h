/* The regular expressions of the tokenizers that matter most, as hand-written matchers. But for
 * DeepSeek's, these patterns match at every place of every text, so that a text is cut into matches
 * without gaps. */
#ifndef CSGL_TOKENIZER_SPLIT_RULES_H
#define CSGL_TOKENIZER_SPLIT_RULES_H

#include <stddef.h>

enum split_rule {
    SPLIT_RULE_NONE = -1,
    SPLIT_RULE_GPT2,   /* ByteLevel's own: contractions, letters, numbers, symbols, spaces */
    SPLIT_RULE_QWEN2,  /* any one character may lead a word; digits one by one */
    SPLIT_RULE_QWEN35, /* the same, and marks count as letters */
    SPLIT_RULE_LLAMA3, /* as Qwen2 with up to three digits together */
    SPLIT_RULE_O200K,  /* words split where case changes; contractions belong to the word */
    /* DeepSeek V3 and R1, and Hunyuan's dense models: three steps one behind the other */
    SPLIT_RULE_DEEPSEEK_NUMBERS, /* up to three digits together */
    SPLIT_RULE_DEEPSEEK_CJK,     /* runs of Han characters and kana */
    SPLIT_RULE_DEEPSEEK_WORDS,   /* all else; numbers and controls without a word are no match */
};

/* The rule that a pattern of tokenizer.json spells; SPLIT_RULE_NONE if there is no matcher for it.
 */
enum split_rule split_rule_of_pattern(const char *pattern, size_t len);

/* The end of the match that starts at `at` < `end` of a valid UTF-8 text; NULL if none does. */
const char *split_rule_match(enum split_rule rule, const char *at, const char *end);

#endif
