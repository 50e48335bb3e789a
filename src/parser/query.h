/* The part of JMESPath that response schemas use: names, @, indices, [*] and [], literals, {key:
 * expression} and [expression, ...], |, ||. */
#ifndef CSGL_PARSER_QUERY_H
#define CSGL_PARSER_QUERY_H

#include "base/arena.h"
#include "base/json.h"

/* Applies `expression` to `input`; the result shares its memory or is the arena's.
 * ERROR_UNSUPPORTED for an expression that is not understood, whatever the input. */
enum status query_run(struct arena *arena, const char *expression, const struct json *input,
                      struct json *out, struct error *error);

#endif
