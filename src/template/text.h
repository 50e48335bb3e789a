/* Characters as Python's str sees them: code points, white space, letters and their cases. All text
 * in this room is valid UTF-8, since the template's source and the JSON reader have checked it. */
#ifndef CSGL_TEMPLATE_TEXT_H
#define CSGL_TEMPLATE_TEXT_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at `s` (n > 0 bytes left); `*bytes` is its length. A broken sequence is one byte
 * of U+FFFD, so that no caller can run past the end. */
uint32_t text_decode(const char *s, size_t n, size_t *bytes);

/* Bytes of the last character of `s` (n > 0). */
size_t text_last(const char *s, size_t n);

/* Code points in n bytes. */
size_t text_count(const char *s, size_t n);

/* The byte offset of code point `index`, or n if there are fewer. */
size_t text_offset(const char *s, size_t n, size_t index);

/* Python's str.isspace for one character. */
bool text_is_space(uint32_t c);

/* Bytes of white space that `s` begins with, and ends with. */
size_t text_leading_space(const char *s, size_t n);
size_t text_trailing_space(const char *s, size_t n);

/* One of the line ends of str.splitlines. */
bool text_is_line_end(uint32_t c);

/* Simple one-to-one case mappings of Latin (Basic, Latin-1, Extended-A, Extended Additional and the
 * letters of living languages in Extended-B), Greek, Cyrillic, Armenian, full-width letters and
 * Roman numerals; other characters have no case here. text_append_upper also knows the one-to-many
 * ß -> SS. */
uint32_t text_lower(uint32_t c);
uint32_t text_upper(uint32_t c);
void text_append_upper(struct str *out, uint32_t c);

/* Letters of the scripts with case above and, by block, of the other living scripts (Semitic,
 * Indic, South-East Asian, Kana, Hangul, CJK). */
bool text_is_alpha(uint32_t c);
/* Decimal digits: ASCII, full width, Arabic-Indic, Devanagari. */
bool text_is_digit(uint32_t c);
bool text_is_upper(uint32_t c);
bool text_is_lower(uint32_t c);

/* False for what repr() escapes: controls, formats, separators but the space, private use.
 * Unassigned code points count as printable. */
bool text_is_printable(uint32_t c);

#endif
