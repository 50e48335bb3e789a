/* Messages for the person who runs csgl, on stderr. The level is the only mutable file-scope state.
 */
#ifndef CSGL_BASE_LOG_H
#define CSGL_BASE_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);

/* Writes one line, "csgl: " and the text; lines from several threads do not mix. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
