#include "engine/executor.h"

#include "base/log.h"

enum status engine_executor_init(struct engine_executor *e, struct engine *engine, int32_t n_ids,
                                 struct error *error)
{
    int32_t vocab_size = engine_model(engine)->vocab_size;
    *e = (struct engine_executor){.engine = engine};
    return sampler_init(&e->sampler, engine_device(engine), n_ids < vocab_size ? n_ids : vocab_size,
                        engine_max_want(engine), error);
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
    /* Before the step is queued: what is brought to the device waits for all that is. */
    enum status status = sampler_prepare(&e->sampler, draws, batch->n_want, error);
    if (status == OK)
        status = engine_queue(e->engine, batch, error);
    if (status != OK)
        return status;
    if (batch->n_want == 0)
        return engine_wait(e->engine, error);
    struct tensor logits = engine_logits_tensor(e->engine);
    status = sampler_draw(&e->sampler, engine_ops(e->engine), &logits, out, error);
    /* The tokens' copy has waited; this is for the profile. */
    return status == OK && e->profile ? engine_wait(e->engine, error) : status;
}

struct executor engine_executor_table(struct engine_executor *e)
{
    return (struct executor){.context = e, .run = run, .trace = trace};
}
