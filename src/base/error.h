/* The status every fallible function returns, and the sentence that goes with it. */
#ifndef CSGL_BASE_ERROR_H
#define CSGL_BASE_ERROR_H

#include <stdarg.h>

#define STATUS_LIST(X)                                                                             \
    X(OK, "ok")                                                                                    \
    X(ERROR_INVALID, "invalid input")                                                              \
    X(ERROR_UNSUPPORTED, "unsupported")                                                            \
    X(ERROR_NOT_FOUND, "not found")                                                                \
    X(ERROR_LIMIT, "limit exceeded")                                                               \
    X(ERROR_MEMORY, "out of memory")                                                               \
    X(ERROR_IO, "input/output error")                                                              \
    X(ERROR_CANCELLED, "cancelled")

#define STATUS_ENUM(name, text) name,
enum status { STATUS_LIST(STATUS_ENUM) };
#undef STATUS_ENUM

/* One sentence that names the thing, the value, the limit and the remedy. */
struct error {
    enum status status;
    char message[512];
};

/* Fills `error` (which may be NULL) and returns `status`, so that callers can `return
 * error_set(...)`. A message longer than the buffer is cut at a UTF-8 border. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "PREFIX: " before the message that is there, to add the file or tensor concerned. */
enum status error_prefix(struct error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ERROR_MEMORY with the number of bytes that could not be had. */
enum status error_memory(struct error *error, unsigned long long bytes);

const char *status_name(enum status status);

#endif
