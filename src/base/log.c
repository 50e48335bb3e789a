#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic int current_level = LOG_INFO;

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

void log_write(enum log_level level, const char *format, ...)
{
    if ((int)level > atomic_load(&current_level))
        return;
    char line[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    static const char *const tags[] = {"error: ", "warning: ", "", "debug: "};
    fprintf(stderr, "csgl: %s%s\n", tags[level], line);
}
