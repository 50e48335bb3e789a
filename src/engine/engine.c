#include "engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct engine {
    struct device *device;
    struct comm *comm;
    struct model *model;
    struct memory_request request;
    struct memory_plan plan;
    struct kv_cache cache;
    struct buffer kv[KV_MAX_GROUPS]; /* one group's pages, layer after layer */
    struct buffer states;            /* slots of recurrent states, layer after layer */
    struct buffer inputs;            /* the batch's arrays on the device */
    struct buffer logits;
    float *host_logits; /* of the last step; of our own where the CPU does not reach `logits` */
    struct forward forward;
    struct profile *profile; /* NULL: nothing is measured */
};

static enum status make_plan(struct engine *e, const struct checkpoint *checkpoint,
                             struct error *error)
{
    struct device_bytes weights;
    enum status status = model_configure(checkpoint, e->comm, &e->model, error);
    if (status == OK)
        status = model_weight_bytes(e->model, checkpoint, e->device, e->comm,
                                    e->request.max_step_tokens, &weights, error);
    if (status == OK)
        status = memory_plan_make(&e->plan, e->model, e->device, &weights, &e->request, error);
    if (status == OK)
        memory_plan_print(&e->plan);
    return status;
}

static struct kv_pages layer_pages(const struct engine *e, int32_t g, int32_t layer)
{
    const struct memory_plan *p = &e->plan;
    size_t layer_bytes = p->page_bytes[g] / (size_t)e->model->kv_groups[g].n_layers;
    return (struct kv_pages){.buffer = &e->kv[g],
                             .offset = (size_t)layer * layer_bytes * (size_t)p->n_pages[g],
                             .layout = p->layout};
}

static enum status make_states(struct engine *e, struct error *error)
{
    const struct memory_plan *p = &e->plan;
    size_t layer_bytes = p->layer_state_bytes * (size_t)p->n_states;
    if (p->n_states == 0)
        return OK;
    enum status status = e->device->table->buffer_alloc(
        e->device, layer_bytes * (size_t)p->state_layout.n_layers, &e->states, error);
    for (int32_t layer = 0; layer < p->state_layout.n_layers && status == OK; layer++)
        e->model->family->bind_states(e->model, layer,
                                      (struct state_slots){.buffer = &e->states,
                                                           .offset = (size_t)layer * layer_bytes,
                                                           .slot_bytes = p->layer_state_bytes,
                                                           .n_slots = p->n_states,
                                                           .layout = p->state_layout});
    return status;
}

static enum status make_cache(struct engine *e, struct error *error)
{
    const struct memory_plan *p = &e->plan;
    struct kv_cache_spec spec = {.type = e->request.cache_type,
                                 .page_size = p->layout.page_size,
                                 .n_rows = e->request.max_running,
                                 .max_length = p->context_length,
                                 .n_groups = p->n_groups,
                                 .n_states = p->n_states};
    for (int32_t g = 0; g < p->n_groups; g++) {
        const struct kv_group *group = &e->model->kv_groups[g];
        spec.windows[g] = group->window;
        spec.n_pages[g] = p->n_pages[g];
        enum status status = e->device->table->buffer_alloc(
            e->device, p->page_bytes[g] * (size_t)p->n_pages[g], &e->kv[g], error);
        if (status != OK)
            return status;
        for (int32_t layer = 0; layer < group->n_layers; layer++)
            e->model->family->bind_pages(e->model, g, layer, layer_pages(e, g, layer));
    }
    enum status status = make_states(e, error);
    return status == OK ? kv_cache_init(&e->cache, &spec, error) : status;
}

static enum status make_host_logits(struct engine *e, struct error *error)
{
    e->host_logits = e->logits.host ? e->logits.host : malloc(e->logits.bytes);
    return e->host_logits ? OK : error_memory(error, e->logits.bytes);
}

static enum status make_workspace(struct engine *e, struct error *error)
{
    const struct device_table *table = e->device->table;
    const struct memory_request *r = &e->request;
    enum status status = table->attention_reserve(e->device, &e->plan.layout, e->model->n_heads,
                                                  r->max_step_tokens, r->max_running, error);
    if (status == OK)
        status = table->buffer_alloc(e->device, e->plan.scratch_bytes, &e->forward.scratch, error);
    if (status == OK)
        status = table->buffer_alloc(
            e->device, forward_tensor_bytes(r->max_want, e->model->vocab_size), &e->logits, error);
    if (status == OK)
        status = make_host_logits(e, error);
    if (status != OK)
        return status;
    struct batch sizes;
    status = engine_batch_init(e, &sizes, error);
    if (status == OK)
        status = table->buffer_alloc(e->device, sizes.memory_bytes, &e->inputs, error);
    batch_done(&sizes);
    return status;
}

enum status engine_open(struct engine **out, const struct checkpoint *checkpoint,
                        struct device *device, struct comm *comm,
                        const struct memory_request *request, load_progress progress,
                        void *progress_context, struct error *error)
{
    *out = NULL;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(error, sizeof *e);
    e->device = device;
    e->comm = comm;
    e->request = *request;
    e->forward.device = device;
    e->forward.comm = comm;
    enum status status = make_plan(e, checkpoint, error);
    if (status == OK)
        status = make_cache(e, error);
    if (status == OK)
        status = make_workspace(e, error);
    if (status == OK)
        status = model_load(e->model, checkpoint, device, comm, request->max_step_tokens, progress,
                            progress_context, error);
    if (status != OK) {
        engine_free(e);
        return status;
    }
    *out = e;
    return OK;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    model_free(e->model);
    kv_cache_done(&e->cache);
    for (int32_t g = 0; g < KV_MAX_GROUPS; g++)
        e->device->table->buffer_free(e->device, &e->kv[g]);
    e->device->table->buffer_free(e->device, &e->states);
    e->device->table->buffer_free(e->device, &e->forward.scratch);
    if (e->host_logits != e->logits.host)
        free(e->host_logits);
    e->device->table->buffer_free(e->device, &e->logits);
    e->device->table->buffer_free(e->device, &e->inputs);
    free(e);
}

const struct model *engine_model(const struct engine *e)
{
    return e->model;
}

const struct memory_plan *engine_plan(const struct engine *e)
{
    return &e->plan;
}

struct kv_cache *engine_cache(struct engine *e)
{
    return &e->cache;
}

enum status engine_batch_init(struct engine *e, struct batch *batch, struct error *error)
{
    return batch_init(batch, &e->cache, e->request.max_step_tokens, e->request.max_running,
                      e->request.max_want, error);
}

/* A step's arrays on their way to the device; the first failure stays. */
struct inputs {
    struct engine *engine;
    const struct batch *batch;
    enum status status;
    struct error *error;
};

/* Copies the used part of one of the batch's arrays to the device: [rows, cols]. */
static struct tensor input(struct inputs *in, const int32_t *array, int32_t rows, int32_t cols)
{
    struct engine *e = in->engine;
    size_t offset = (size_t)(array - in->batch->memory) * sizeof(int32_t);
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(int32_t);
    if (in->status == OK && bytes > 0)
        in->status =
            e->device->table->buffer_write(e->device, &e->inputs, offset, array, bytes, in->error);
    return (struct tensor){.buffer = &e->inputs,
                           .offset = offset,
                           .dtype = DTYPE_I32,
                           .rows = rows,
                           .cols = cols,
                           .stride = cols};
}

static void bind_inputs(struct inputs *in)
{
    struct engine *e = in->engine;
    const struct batch *b = in->batch;
    struct forward *f = &e->forward;
    f->n_tokens = b->n_tokens;
    f->n_sequences = b->n_sequences;
    f->n_want = b->n_want;
    f->tokens = input(in, b->tokens, b->n_tokens, 1);
    f->positions = input(in, b->positions, b->n_tokens, 1);
    f->q_start = input(in, b->q_start, b->n_sequences + 1, 1);
    f->kv_len = input(in, b->kv_len, b->n_sequences, 1);
    f->want = input(in, b->want, b->n_want, 1);
    for (int32_t g = 0; g < b->n_groups; g++) {
        f->groups[g].slots = input(in, b->slots[g], b->n_tokens, 1);
        f->groups[g].page_table = input(in, b->page_table[g], b->n_sequences, b->max_pages);
    }
    f->state_in = input(in, b->state_in, b->n_sequences, 1);
    f->state_out = input(in, b->state_out, b->n_sequences, 1);
    f->snapshots = input(in, b->snapshots, b->n_snapshots, 2);
    int32_t vocab_size = e->model->vocab_size;
    f->logits = (struct tensor){.buffer = &e->logits,
                                .dtype = DTYPE_F32,
                                .rows = b->n_want,
                                .cols = vocab_size,
                                .stride = vocab_size};
    f->scratch_used = 0;
}

static void copy_pages(struct inputs *in)
{
    struct engine *e = in->engine;
    const struct batch *b = in->batch;
    for (int32_t g = 0; g < b->n_groups && b->n_copies > 0; g++) {
        struct tensor pairs = input(in, b->copies[g], b->n_copies, 2);
        for (int32_t layer = 0; in->status == OK && layer < e->model->kv_groups[g].n_layers;
             layer++)
            device_kv_copy_page(e->device,
                                &(struct kv_copy_page_args){layer_pages(e, g, layer), pairs});
    }
}

enum status engine_step(struct engine *e, const struct batch *b, struct error *error)
{
    const struct device_table *table = e->device->table;
    assert(b->n_tokens > 0);
    struct inputs in = {e, b, OK, error};
    bind_inputs(&in);
    if (e->profile)
        profile_phase(e->profile, b->n_tokens > b->n_sequences ? TRACE_PREFILL : TRACE_DECODE);
    copy_pages(&in);
    if (in.status != OK)
        return in.status;
    e->model->family->forward(e->model, &e->forward);
    enum status status = table->sync(e->device, error);
    if (status == OK && b->n_want > 0 && e->host_logits != e->logits.host)
        status = table->buffer_read(
            e->device, &e->logits, 0, e->host_logits,
            (size_t)b->n_want * (size_t)e->model->vocab_size * sizeof(float), error);
    return status;
}

void engine_profile(struct engine *e, struct profile *profile)
{
    e->profile = profile;
    e->forward.device = profile ? profile_device(profile) : e->device;
}

struct device *engine_device(const struct engine *e)
{
    return e->device;
}

float *engine_logits(struct engine *e, int32_t i)
{
    return e->host_logits + (size_t)i * (size_t)e->model->vocab_size;
}
