/* What the frontend counts, and /metrics in Prometheus' text format. */
#ifndef CSGL_SERVER_METRICS_H
#define CSGL_SERVER_METRICS_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct board;
struct http_stats;

enum { HISTOGRAM_BUCKETS = 15 };

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
    uint64_t n;
};

/* How requests end. */
#define OUTCOMES(X)                                                                                \
    X(stop)                                                                                        \
    X(length)                                                                                      \
    X(tool_calls)                                                                                  \
    X(cancelled)  /* the client left, or /abort_request */                                         \
    X(refused)    /* 4xx */                                                                        \
    X(overloaded) /* 503 before it began: full or not ready */                                     \
    X(failed)     /* any other error */

#define OUTCOME_ENUM(name) OUTCOME_##name,
enum outcome { OUTCOMES(OUTCOME_ENUM) N_OUTCOMES };
#undef OUTCOME_ENUM

enum endpoint { ENDPOINT_CHAT, ENDPOINT_COMPLETIONS, ENDPOINT_GENERATE, N_ENDPOINTS };

struct metrics {
    uint64_t requests[N_ENDPOINTS][N_OUTCOMES];
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    struct histogram ttft, tpot, queue, total; /* seconds */
};

/* The outcome that an error status is counted as. */
enum outcome outcome_of_status(int http_status);

void histogram_add(struct histogram *h, double seconds);

/* The frontend's own figures, the scheduler's from the board, the connections'. */
void metrics_write(struct str *out, const struct metrics *m, const struct board *board,
                   const struct http_stats *http, bool is_healthy);

#endif
