#include "base/str.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool str_reserve(struct str *s, size_t n)
{
    if (s->failed)
        return false;
    if (s->cap > s->len && s->cap - s->len > n)
        return true;
    size_t need = s->len + n + 1;
    if (n >= SIZE_MAX / 2 - s->len) {
        s->failed = true;
        return false;
    }
    size_t cap = s->cap * 2 > need ? s->cap * 2 : need < 32 ? 32 : need;
    char *data = realloc(s->data, cap);
    if (!data) {
        s->failed = true;
        return false;
    }
    s->data = data;
    s->cap = cap;
    s->data[s->len] = '\0';
    return true;
}

void str_append(struct str *s, const char *text, size_t n)
{
    if (!n || !str_reserve(s, n))
        return;
    memcpy(s->data + s->len, text, n);
    s->len += n;
    s->data[s->len] = '\0';
}

void str_append_z(struct str *s, const char *text)
{
    str_append(s, text, strlen(text));
}

void str_append_char(struct str *s, char c)
{
    str_append(s, &c, 1);
}

void str_printf(struct str *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !str_reserve(s, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(s->data + s->len, (size_t)n + 1, format, args);
    va_end(args);
    s->len += (size_t)n;
}

void str_append_utf8(struct str *s, unsigned c)
{
    char b[4];
    if (c < 0x80) {
        b[0] = (char)c;
        str_append(s, b, 1);
    } else if (c < 0x800) {
        b[0] = (char)(0xC0 | c >> 6);
        b[1] = (char)(0x80 | (c & 0x3F));
        str_append(s, b, 2);
    } else if (c < 0x10000) {
        b[0] = (char)(0xE0 | c >> 12);
        b[1] = (char)(0x80 | (c >> 6 & 0x3F));
        b[2] = (char)(0x80 | (c & 0x3F));
        str_append(s, b, 3);
    } else {
        b[0] = (char)(0xF0 | c >> 18);
        b[1] = (char)(0x80 | (c >> 12 & 0x3F));
        b[2] = (char)(0x80 | (c >> 6 & 0x3F));
        b[3] = (char)(0x80 | (c & 0x3F));
        str_append(s, b, 4);
    }
}

void str_clear(struct str *s)
{
    s->len = 0;
    if (s->data)
        s->data[0] = '\0';
}

const char *str_z(const struct str *s)
{
    return s->data ? s->data : "";
}

void str_done(struct str *s)
{
    free(s->data);
    *s = (struct str){0};
}
