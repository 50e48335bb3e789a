/* A trace: what happened when, in a ring of events that overwrites its oldest. The ring is private
 * memory, or a file that other processes map to read it while it is written; all of them share one
 * clock. Written out as the JSON that Perfetto and Chrome's about:tracing read. */
#ifndef CSGL_BASE_TRACE_H
#define CSGL_BASE_TRACE_H

#include "base/error.h"

#include <stdint.h>

enum trace_kind {
    TRACE_STEP,    /* of the scheduler; values: tokens, sequences */
    TRACE_OP,      /* of the device; values: bytes, operations */
    TRACE_REQUEST, /* one stage of a request; values: tokens, 0 */
    TRACE_TASK,    /* anything else; values: its size, 0 */
    N_TRACE_KINDS
};

enum trace_phase { TRACE_PREFILL, TRACE_DECODE, TRACE_NO_PHASE, N_TRACE_PHASES };

enum { TRACE_NAME_MAX = 31, TRACE_DEFAULT_EVENTS = 1 << 16 };

struct trace_event {
    enum trace_kind kind;
    enum trace_phase phase;
    int thread;        /* 0: the process's own thread; others are the pool's */
    const char *name;  /* cut to TRACE_NAME_MAX bytes */
    double begin, end; /* system_seconds() */
    uint64_t id;       /* of a request */
    int64_t values[2];
};

struct trace;

/* A ring of `capacity` events. `path` NULL: private memory; else a file that is made anew.
 * `process` names who writes it, `session` tells its readers which recording it belongs to. */
enum status trace_new(struct trace **out, const char *path, const char *process, uint32_t session,
                      uint32_t capacity, struct error *error);

/* Maps another process's ring for reading. ERROR_NOT_FOUND when there is none. */
enum status trace_open(struct trace **out, const char *path, struct error *error);
void trace_free(struct trace *trace);

uint32_t trace_session(const struct trace *trace);

/* Events ever recorded, and those of them that were overwritten. */
uint64_t trace_count(const struct trace *trace);
uint64_t trace_dropped(const struct trace *trace);

/* Any thread of the owner, at any time. NULL is allowed and records nothing. */
void trace_record(struct trace *trace, const struct trace_event *event);

/* Writes the traces, one process each, as one JSON file. */
enum status trace_write(const char *path, struct trace *const *traces, int n, struct error *error);

#endif
