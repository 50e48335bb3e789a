/* Shared by the scheduler*.c files: what is in flight, and how a step is made. */
#ifndef CSGL_SCHEDULER_SCHEDULER_STRUCT_H
#define CSGL_SCHEDULER_SCHEDULER_STRUCT_H

#include "scheduler/scheduler.h"

enum { MAX_IN_FLIGHT = 2 /* steps: one runs, one is queued behind it */ };

enum {
    MIN_CHUNK = 16 /* prompt tokens of a step, however slow; fewer tell nothing of its speed */
};

/* A step from its making until its samples are taken. */
struct step {
    /* Whose row is the i-th wanted one, NULL when the request is gone, and how its token is drawn:
     * [scheduler_max_want]. Those of rows that decode are the first. */
    struct request **want_requests;
    struct draw *draws;
    int32_t n_want, n_tokens, n_sequences;
    int32_t n_prefill; /* prompt tokens */
    int32_t n_scored;  /* wanted rows beyond one a sequence */
    double begin;      /* when it was queued */
    bool is_traced;    /* its ops are recorded */
};

struct scheduler {
    struct executor executor;
    struct kv_cache *cache;
    struct scheduler_options options;
    scheduler_emit emit;
    void *emit_context;
    struct request **requests; /* [max_queue + max_running] in order of arrival */
    int32_t n_requests;
    struct batch batch;              /* of the step being made */
    struct request **batch_requests; /* [max_running] each of its sequences' request */
    struct step steps[MAX_IN_FLIGHT];
    int32_t oldest, n_in_flight; /* of `steps`; the one behind them is being made */
    struct sample *samples;      /* [scheduler_max_want] of the step that is taken */
    double last_end;             /* when the samples of a step were taken last */
    double seconds_per_token;    /* of prefill, smoothed; 0: unknown */
    struct scheduler_figures figures;
    struct trace *trace; /* NULL: nothing is recorded */
};

/* The i-th step in flight, or behind them the one that is being made. */
static inline struct step *scheduler_step_at(struct scheduler *s, int32_t i)
{
    return &s->steps[(s->oldest + i) % MAX_IN_FLIGHT];
}

/* --- scheduler.c ------------------------------------------------------------------------------ */

/* Takes the request's row away, if it has one; what was committed stays in the tree. */
void scheduler_leave_row(struct scheduler *s, struct request *r);

/* Records one stage of a request's life, when it is over. */
void scheduler_trace_stage(struct scheduler *s, const struct request *r, const char *name,
                           double begin, int32_t n_tokens);

/* --- scheduler_make.c ------------------------------------------------------------------------- */

/* Chooses what the next step computes: fills the batch and the step behind those in flight. */
void scheduler_make_batch(struct scheduler *s);

#endif
