/* Server-sent events of OpenAI's streams: bytes as they arrive become the data of whole events. */
#ifndef CSGL_BENCH_SSE_H
#define CSGL_BENCH_SSE_H

#include "base/str.h"

enum { SSE_MAX_LINE = 16 << 20 };

/* The data of one event, NUL behind. */
typedef void (*sse_event)(void *context, const char *data, size_t len);

/* Zero-initialise, sse_feed, sse_done. */
struct sse {
    struct str line; /* the one that has begun */
    bool failed;     /* a line was too long, or memory ran out */
};

/* Calls `on_event` for each "data:" line that `bytes` complete; comments and other fields are
 * passed over. */
void sse_feed(struct sse *sse, const char *bytes, size_t n, sse_event on_event, void *context);
void sse_done(struct sse *sse);

/* What one event of /v1/completions or /v1/chat/completions says. */
struct stream_event {
    bool is_end;            /* [DONE] */
    bool has_text;          /* some text, reasoning or tool call of the answer */
    int n_prompt, n_output; /* of its usage; -1: it has none */
    char error[256];        /* what an error event says, or "" */
};

/* False if it is not JSON. */
bool stream_event_read(struct stream_event *out, const char *data, size_t len);

#endif
