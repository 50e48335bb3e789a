/* Parts of answers that endpoints share, as JSON. */
#ifndef CSGL_SERVER_REPLY_H
#define CSGL_SERVER_REPLY_H

#include "server/call.h"

/* A JSON string of bytes that may not be UTF-8; what is not becomes U+FFFD. */
void reply_string(struct str *out, const char *data, size_t len);

/* {"error": {...}} as http_error writes it. */
void reply_error(struct str *out, int http_status, const char *code, const char *message);

/* {"prompt_tokens": ...} over all choices; each prompt counts once. */
void reply_usage(struct str *out, const struct call *call);

/* {"queue_ms": ...} over n choices that ended together: the longest times, the sum of tokens. */
void reply_timings(struct str *out, const struct call *call, const struct choice *choices,
                   size_t n);

/* A logarithm as JSON; what is no number there is the -9999 that OpenAI uses. */
void reply_logprob(struct str *out, double logprob);

/* The whole answer: its head, `write_choice` for each choice, usage and timings. `object` is the
 * answer's kind ("chat.completion"). */
void reply_whole(struct call *call, const char *object,
                 void (*write_choice)(struct call *call, struct choice *choice, struct str *out),
                 struct str *out);

/* The end of a stream: usage and timings, if they were asked for, and the end mark. */
void reply_stream_end(struct call *call, struct str *out);

/* The error as the last event of a stream, and its end mark. */
void reply_stream_error(struct call *call, int http_status, const char *code, const char *message,
                        struct str *out);

#endif
