#include "engine/executor.h"

#include "base/log.h"

enum status engine_executor_init(struct engine_executor *e, struct engine *engine, int32_t n_ids,
                                 struct error *error)
{
    int32_t vocab_size = engine_model(engine)->vocab_size;
    *e = (struct engine_executor){.engine = engine};
    enum status status =
        sampler_init(&e->sampler, engine_device(engine), n_ids < vocab_size ? n_ids : vocab_size,
                     engine_max_want(engine), error);
    if (status != OK || !engine_device(engine)->table->has_queue)
        return status;
    struct tensor drawn = sampler_tokens(&e->sampler);
    engine_bind_drawn(engine, &drawn);
    return OK;
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

static enum status queue(void *context, const struct batch *batch, const struct draw *draws,
                         struct error *error)
{
    struct engine_executor *e = context;
    /* Before the step is queued: where a device has no queue, what is brought to it waits for all
     * that runs. */
    enum status status = sampler_prepare(&e->sampler, draws, batch->n_want, error);
    if (status == OK)
        status = engine_queue(e->engine, batch, error);
    if (status != OK)
        return status;
    struct tensor logits = engine_logits_tensor(e->engine);
    return sampler_queue(&e->sampler, engine_ops(e->engine), &logits, error);
}

static enum status take(void *context, struct sample *out, struct error *error)
{
    struct engine_executor *e = context;
    enum status status = sampler_take(&e->sampler, out, error);
    /* The samples were waited for; this is for the profile. */
    return status == OK && e->profile ? engine_wait(e->engine, error) : status;
}

struct executor engine_executor_table(struct engine_executor *e)
{
    return (struct executor){.context = e,
                             .has_queue = engine_device(e->engine)->table->has_queue,
                             .queue = queue,
                             .take = take,
                             .trace = trace};
}
