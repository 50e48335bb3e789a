#include "engine/executor.h"

#include "base/log.h"

#include <math.h>

enum status engine_executor_init(struct engine_executor *e, struct engine *engine, int32_t n_ids,
                                 struct error *error)
{
    *e = (struct engine_executor){.engine = engine, .n_ids = n_ids};
    return sampler_init(&e->sampler, engine_model(engine)->vocab_size, error);
}

static void end_trace(struct engine_executor *e)
{
    if (!e->profile)
        return;
    engine_profile(e->engine, NULL);
    profile_free(e->profile);
    e->profile = NULL;
}

static void trace(void *context, struct trace *trace)
{
    struct engine_executor *e = context;
    struct error error;
    end_trace(e);
    if (!trace)
        return;
    if (profile_new(&e->profile, engine_device(e->engine), &error) != OK) {
        log_error("ops are not traced: %s", error.message);
        return;
    }
    profile_trace(e->profile, trace);
    engine_profile(e->engine, e->profile);
}

void engine_executor_done(struct engine_executor *e)
{
    end_trace(e);
    sampler_done(&e->sampler);
}

static enum status run(void *context, const struct batch *batch, const struct draw *draws,
                       struct sample *out, struct error *error)
{
    struct engine_executor *e = context;
    int32_t vocab_size = engine_model(e->engine)->vocab_size;
    enum status status = engine_step(e->engine, batch, error);
    if (status != OK)
        return status;
    for (int32_t i = 0; i < batch->n_want; i++) {
        float *logits = engine_logits(e->engine, i);
        for (int32_t id = e->n_ids; id < vocab_size; id++)
            logits[id] = -INFINITY;
        for (int32_t k = 0; k < draws[i].n_banned; k++)
            logits[draws[i].banned[k]] = -INFINITY;
        if (sampler_draw(&e->sampler, draws[i].params, draws[i].history, draws[i].position, logits,
                         &out[i], error) != OK)
            out[i].token = -1;
    }
    return OK;
}

struct executor engine_executor_table(struct engine_executor *e)
{
    return (struct executor){.context = e, .run = run, .trace = trace};
}
