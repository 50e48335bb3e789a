/* The board: one page of shared memory in the run directory on which every process says how it is.
 * Who died and was started again, who is ready, what the scheduler has done: read without asking,
 * so that /health and /metrics answer during any step. Each word has one writer. */
#ifndef CSGL_MESSAGE_BOARD_H
#define CSGL_MESSAGE_BOARD_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { BOARD_MAX_TOKENIZERS = 16 };

/* Tokenizer worker i is ROLE_TOKENIZER + i. */
enum board_role {
    ROLE_FRONTEND,
    ROLE_SCHEDULER,
    ROLE_DETOKENIZER,
    ROLE_TOKENIZER,
    N_ROLES = ROLE_TOKENIZER + BOARD_MAX_TOKENIZERS
};

enum process_state { PROCESS_ABSENT, PROCESS_STARTING, PROCESS_READY, PROCESS_DOWN };

/* What the scheduler counts. Gauges go up and down, counters only up (from the process's start). */
#define BOARD_FIGURES(X)                                                                           \
    X(running)         /* gauge: requests with a row */                                            \
    X(waiting)         /* gauge: requests in the queue */                                          \
    X(kv_pages)        /* gauge: pages of all groups */                                            \
    X(kv_pages_used)   /* gauge: held by rows */                                                   \
    X(kv_pages_cached) /* gauge: kept by the tree alone */                                         \
    X(steps)                                                                                       \
    X(prefill_tokens) /* computed prompt tokens */                                                 \
    X(decode_tokens)                                                                               \
    X(cached_tokens)       /* prompt tokens taken from the cache */                                \
    X(kv_hit_tokens)       /* prompt tokens whose K and V were in the cache */                     \
    X(snapshot_hit_tokens) /* prompt tokens that a snapshot of recurrent state saved */            \
    X(copied_pages)        /* part-filled, for snapshots and rows that continue there */           \
    X(state_slots)         /* gauge: slots of recurrent states */                                  \
    X(state_slots_used)    /* gauge: held by rows */                                               \
    X(state_snapshots)     /* gauge: slots kept by the tree */                                     \
    X(made_snapshots)                                                                              \
    X(evicted_snapshots)                                                                           \
    X(evicted_pages)                                                                               \
    X(preemptions)                                                                                 \
    X(last_batch_size) /* gauge: sequences of the last step */                                     \
    X(context_length)  /* tokens a sequence may have */                                            \
    X(vocab_size)

struct board {
    _Atomic uint32_t generation;          /* raised at every start of a process */
    _Atomic uint32_t is_draining;         /* no new requests: the supervisor stops */
    _Atomic uint32_t started_at[N_ROLES]; /* generation of the role's last start */
    _Atomic uint32_t state[N_ROLES];      /* enum process_state */
    _Atomic uint32_t n_restarts[N_ROLES];
    _Atomic int32_t pid[N_ROLES];
    /* process_trace.h: the profile that is being made, 0 for none, and how many there were. */
    _Atomic uint32_t profile_session, n_profiles, profile_start_step, profile_steps;
    /* CLOCK_MONOTONIC nanoseconds of the scheduler's last sign of life: the end of a step, or of a
     * wait for work. */
    _Atomic uint64_t scheduler_heartbeat;
#define BOARD_FIGURE(name) _Atomic uint64_t name;
    BOARD_FIGURES(BOARD_FIGURE)
#undef BOARD_FIGURE
};

/* Makes the file "board" in `folder` (the supervisor), or maps it (the others). */
enum status board_create(struct board **out, const char *folder, struct error *error);
enum status board_open(struct board **out, const char *folder, struct error *error);
void board_close(struct board *board);

/* The generation of the youngest start of any role: requests of earlier epochs are lost. */
uint32_t board_youngest_start(const struct board *board);

/* True if every role that exists is ready. */
bool board_is_ready(const struct board *board);

#endif
