/* Recording in several processes at once: the board says whether a profile is being made, and each
 * process keeps its trace beside the board, where the frontend reads it. */
#ifndef CSGL_MESSAGE_PROCESS_TRACE_H
#define CSGL_MESSAGE_PROCESS_TRACE_H

#include "base/trace.h"
#include "message/board.h"

struct process_trace {
    struct board *board;
    const char *folder, *process; /* "scheduler": kept */
    uint32_t session;             /* of the trace; 0: none */
    struct trace *trace;          /* NULL: nothing is recorded */
};

void process_trace_init(struct process_trace *t, struct board *board, const char *folder,
                        const char *process);
void process_trace_done(struct process_trace *t);

/* Begins or ends recording as the board says; true if `trace` has changed. */
bool process_trace_follow(struct process_trace *t);

/* Starts a profile of every process; false if one is running. Steps count from the scheduler's
 * next: `start_step` of them are passed over, then `n_steps` recorded, 0 until it is stopped. */
bool profile_start(struct board *board, uint32_t start_step, uint32_t n_steps);

/* Ends it: the session that ran, or 0. */
uint32_t profile_stop(struct board *board);

/* Writes what all processes of the run directory recorded in that session. */
enum status profile_write(const char *folder, uint32_t session, const char *path,
                          struct error *error);

#endif
