/* A whole step: forward and sampling. The scheduler sees this table alone, so that tests can put
 * something else in the engine's place. */
#ifndef CSGL_ENGINE_EXECUTOR_H
#define CSGL_ENGINE_EXECUTOR_H

#include "engine/engine.h"
#include "engine/sampler.h"

struct executor {
    void *context;
    /* One step may be queued before the samples of the one before it are taken; its batch may have
     * tokens that only the one before draws. Otherwise a step is done when queue returns. */
    bool has_queue;
    /* Queues the batch and the drawing of a token for each of its wanted rows. Batch and draws are
     * borrowed for the call. Nothing is queued after an error. */
    enum status (*queue)(void *context, const struct batch *batch, const struct draw *draws,
                         struct error *error);
    /* Waits for the oldest step that was queued and not taken, and for no later one; the samples of
     * its wanted rows, in their order. A row whose logits hold no number gets token -1. Any other
     * failure is the device's and concerns every row. Also after one the step counts as taken. */
    enum status (*take)(void *context, struct sample *out, struct error *error);
    /* Records the ops of later steps; a trace of NULL ends it. NULL: it has none. */
    void (*trace)(void *context, struct trace *trace);
};

/* The executor over an engine. */
struct engine_executor {
    struct engine *engine;
    struct sampler sampler;
    struct profile *profile; /* while a trace is recorded */
};

/* Ids below n_ids exist; those behind are the vocabulary's padding and never drawn. */
enum status engine_executor_init(struct engine_executor *e, struct engine *engine, int32_t n_ids,
                                 struct error *error);
void engine_executor_done(struct engine_executor *e);
struct executor engine_executor_table(struct engine_executor *e);

#endif
