/* A growable byte string. Its data always has a NUL behind it and may contain NULs. */
#ifndef CSGL_BASE_STR_H
#define CSGL_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise, append, str_done. When memory runs out `failed` is set, the string keeps what it
 * had, and later appends do nothing: a caller checks once, at the end. */
struct str {
    char *data;
    size_t len, cap;
    bool failed;
};

void str_append(struct str *s, const char *text, size_t n);
void str_append_z(struct str *s, const char *text);
void str_append_char(struct str *s, char c);
void str_printf(struct str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends the UTF-8 form of a code point (0 .. 0x10FFFF; surrogates are encoded as they are). */
void str_append_utf8(struct str *s, unsigned code_point);

/* Makes room for `n` more bytes; false if memory is exhausted. */
bool str_reserve(struct str *s, size_t n);

/* Length 0, memory kept. */
void str_clear(struct str *s);

/* The data as a C string, never NULL. Borrowed until the next change. */
const char *str_z(const struct str *s);

void str_done(struct str *s);

#endif
