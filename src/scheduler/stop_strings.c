#include "scheduler/stop_strings.h"

#include <stdint.h>
#include <string.h>

enum status stop_strings_init(struct stop_strings *stop, const char *const *strings, int n,
                              struct error *error)
{
    *stop = (struct stop_strings){.strings = strings, .n = n};
    if (n > STOP_MAX_STRINGS)
        return error_set(error, ERROR_LIMIT, "%d stop strings were given; at most %d are possible",
                         n, STOP_MAX_STRINGS);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (len == 0 || len > STOP_MAX_BYTES)
            return error_set(error, ERROR_INVALID,
                             "stop string %d has %zu bytes; 1 to %d are possible", i + 1, len,
                             STOP_MAX_BYTES);
    }
    return OK;
}

void stop_strings_done(struct stop_strings *stop)
{
    str_done(&stop->held);
}

/* Where the earliest complete stop string begins, or SIZE_MAX. */
static size_t find_stop(const struct stop_strings *stop)
{
    size_t earliest = SIZE_MAX;
    for (int i = 0; i < stop->n; i++) {
        const char *found =
            memmem(stop->held.data, stop->held.len, stop->strings[i], strlen(stop->strings[i]));
        if (found && (size_t)(found - stop->held.data) < earliest)
            earliest = (size_t)(found - stop->held.data);
    }
    return earliest;
}

/* Where the longest tail begins that is the beginning of a stop string; the length if none is. */
static size_t find_tail(const struct stop_strings *stop)
{
    size_t tail = stop->held.len;
    for (int i = 0; i < stop->n; i++) {
        size_t len = strlen(stop->strings[i]);
        size_t start = stop->held.len >= len ? stop->held.len - len + 1 : 0;
        for (; start < tail; start++)
            if (memcmp(stop->held.data + start, stop->strings[i], stop->held.len - start) == 0) {
                tail = start;
                break;
            }
    }
    return tail;
}

bool stop_strings_push(struct stop_strings *stop, const char *text, size_t len, struct str *out)
{
    if (stop->n == 0) {
        str_append(out, text, len);
        return false;
    }
    str_append(&stop->held, text, len);
    if (stop->held.len == 0)
        return false;
    size_t end = find_stop(stop);
    bool is_complete = end != SIZE_MAX;
    if (!is_complete)
        end = find_tail(stop);
    str_append(out, stop->held.data, end);
    if (is_complete) {
        str_clear(&stop->held);
        return true;
    }
    memmove(stop->held.data, stop->held.data + end, stop->held.len - end);
    stop->held.len -= end;
    return false;
}

void stop_strings_finish(struct stop_strings *stop, struct str *out)
{
    str_append(out, str_z(&stop->held), stop->held.len);
    str_clear(&stop->held);
}
