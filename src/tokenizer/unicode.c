#include "tokenizer/unicode.h"

#include <string.h>

enum utf8_state utf8_examine(const char *text, size_t n, size_t *bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    *bytes = 1;
    if (s[0] < 0x80)
        return UTF8_VALID;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return UTF8_INVALID;
    size_t want = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    /* The second byte alone excludes overlong forms, surrogates and what is beyond U+10FFFF. */
    unsigned low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < want; i++) {
        if (i == n)
            return UTF8_INCOMPLETE;
        if (s[i] < low || s[i] > high)
            return UTF8_INVALID;
        *bytes = i + 1;
        low = 0x80;
        high = 0xBF;
    }
    return UTF8_VALID;
}

size_t utf8_valid_prefix(const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint64_t word;
        if (n - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                at += sizeof word;
                continue;
            }
        }
        size_t bytes;
        if (utf8_examine(text + at, n - at, &bytes) != UTF8_VALID)
            return at;
        at += bytes;
    }
    return n;
}
