#include "base/error.h"

#include <stdio.h>
#include <string.h>

#define STATUS_TEXT(name, text) text,
static const char *const status_texts[] = {STATUS_LIST(STATUS_TEXT)};
#undef STATUS_TEXT

/* vsnprintf may have cut a UTF-8 sequence in two; drop the half that is left. */
static void drop_cut_character(char *message, size_t size)
{
    size_t n = strlen(message);
    if (n + 1 < size)
        return;
    size_t start = n;
    while (start > 0 && ((unsigned char)message[start - 1] & 0xC0) == 0x80)
        start--;
    if (start > 0 && (unsigned char)message[start - 1] >= 0xC0)
        message[start - 1] = '\0';
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
        drop_cut_character(error->message, sizeof error->message);
        error->status = status;
    }
    return status;
}

enum status error_prefix(struct error *error, const char *format, ...)
{
    if (!error)
        return ERROR_INVALID;
    char prefix[256];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix - 2, format, args);
    va_end(args);
    drop_cut_character(prefix, sizeof prefix - 2);
    strcat(prefix, ": ");
    size_t n = strlen(prefix), size = sizeof error->message;
    memmove(error->message + n, error->message, size - n);
    memcpy(error->message, prefix, n);
    error->message[size - 1] = '\0';
    drop_cut_character(error->message, sizeof error->message);
    return error->status;
}

enum status error_memory(struct error *error, unsigned long long bytes)
{
    return error_set(error, ERROR_MEMORY, "out of memory: %llu bytes could not be allocated",
                     bytes);
}

const char *status_name(enum status status)
{
    return (unsigned)status < sizeof status_texts / sizeof status_texts[0] ? status_texts[status]
                                                                           : "unknown status";
}
