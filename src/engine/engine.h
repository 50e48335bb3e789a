/* The engine: a model on a device with its paged cache; runs one ragged batch a step. Knows
 * batches, not requests. */
#ifndef CSGL_ENGINE_ENGINE_H
#define CSGL_ENGINE_ENGINE_H

#include "device/profile.h"
#include "engine/batch.h"
#include "engine/memory_plan.h"

struct engine;

/* Opens a model. The checkpoint, device and comm are borrowed until engine_free. `progress` may be
 * NULL. */
enum status engine_open(struct engine **out, const struct checkpoint *checkpoint,
                        struct device *device, struct comm *comm,
                        const struct memory_request *request, load_progress progress,
                        void *progress_context, struct error *error);
void engine_free(struct engine *engine);

/* Seconds that the parts of engine_open took. */
struct engine_times {
    double plan, memory, weights; /* memory: of caches and workspace */
};
struct engine_times engine_times(const struct engine *engine);

const struct model *engine_model(const struct engine *engine);
const struct memory_plan *engine_plan(const struct engine *engine);
struct kv_cache *engine_cache(struct engine *engine);

/* An empty batch of this engine's capacities; batch_done ends it. */
enum status engine_batch_init(struct engine *engine, struct batch *batch, struct error *error);

/* Where later steps find the tokens [n, 1] that the step before them has drawn: batch->drawn_by.
 * The buffer is borrowed. Without it every token of a batch must be known. */
void engine_bind_drawn(struct engine *engine, const struct tensor *drawn);

/* Queues the step. The tokens of the batch must be in [0, vocab_size). */
enum status engine_queue(struct engine *engine, const struct batch *batch, struct error *error);
/* Waits for what was queued; the device's first fault. */
enum status engine_wait(struct engine *engine, struct error *error);
/* Both. */
enum status engine_step(struct engine *engine, const struct batch *batch, struct error *error);

/* Measures the ops of every later step with `profile`, which is over this engine's device; NULL
 * ends it. A step with more tokens than sequences counts as prefill. */
void engine_profile(struct engine *engine, struct profile *profile);

/* The device that the engine was opened on. */
struct device *engine_device(const struct engine *engine);
/* The device to run further operations of a step on: it measures them while a step's are. */
struct device *engine_ops(const struct engine *engine);

/* Rows of a step whose logits may be wanted. */
int32_t engine_max_want(const struct engine *engine);

/* The logits [n_want, vocab_size] of the step that was queued last, until the next one. */
struct tensor engine_logits_tensor(const struct engine *engine);

/* The logits [vocab_size] of the i-th wanted row of the last step, copied from the device where the
 * CPU does not reach it; valid until the next call. NULL if the device fails. */
const float *engine_logits(struct engine *engine, int32_t i);

#endif
