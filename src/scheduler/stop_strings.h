/* Finds stop strings in text that arrives in pieces, and holds back what could become one. */
#ifndef CSGL_SCHEDULER_STOP_STRINGS_H
#define CSGL_SCHEDULER_STOP_STRINGS_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>

enum { STOP_MAX_STRINGS = 16, STOP_MAX_BYTES = 1024 };

struct stop_strings {
    const char *const *strings; /* borrowed, NUL-terminated, not empty */
    int n;
    struct str held; /* text not yet handed out */
};

/* At most STOP_MAX_STRINGS strings of 1 to STOP_MAX_BYTES bytes. */
enum status stop_strings_init(struct stop_strings *stop, const char *const *strings, int n,
                              struct error *error);
void stop_strings_done(struct stop_strings *stop);

/* Adds a piece; appends to `out` what can be handed out now. True when a stop string is complete:
 * `out` then ends before the earliest one and nothing more follows. */
bool stop_strings_push(struct stop_strings *stop, const char *text, size_t len, struct str *out);

/* The text is at its end: appends what was held back. */
void stop_strings_finish(struct stop_strings *stop, struct str *out);

#endif
