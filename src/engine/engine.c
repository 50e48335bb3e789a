#include "engine/engine.h"

#include "base/system.h"

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
    struct buffer inputs;            /* the step's arrays on the device */
    char *packed_inputs;             /* the same, before they are copied there */
    struct buffer logits;
    struct tensor drawn; /* the tokens of the step before; no buffer: they are known */
    float *row_logits;   /* [vocabulary] what engine_logits hands out */
    struct forward forward;
    struct profile *profile; /* NULL: nothing is measured */
    struct engine_times times;
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
    struct kv_cache_spec spec = memory_plan_cache(p, e->model, &e->request);
    for (int32_t g = 0; g < p->n_groups; g++) {
        const struct kv_group *group = &e->model->kv_groups[g];
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
    if (status == OK && !(e->row_logits = calloc((size_t)e->model->vocab_size, sizeof(float))))
        status = error_memory(error, (size_t)e->model->vocab_size * sizeof(float));
    if (status != OK)
        return status;
    struct batch sizes;
    status = engine_batch_init(e, &sizes, error);
    if (status == OK)
        status = table->buffer_alloc(e->device, sizes.memory_bytes, &e->inputs, error);
    if (status == OK && !(e->packed_inputs = malloc(sizes.memory_bytes)))
        status = error_memory(error, sizes.memory_bytes);
    batch_done(&sizes);
    return status;
}

/* Seconds since `begin`, which becomes now. */
static double take_time(double *begin)
{
    double now = system_seconds(), taken = now - *begin;
    *begin = now;
    return taken;
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
    double begin = system_seconds();
    enum status status = make_plan(e, checkpoint, error);
    e->times.plan = take_time(&begin);
    if (status == OK)
        status = make_cache(e, error);
    if (status == OK)
        status = make_workspace(e, error);
    e->times.memory = take_time(&begin);
    if (status == OK)
        status = model_load(e->model, checkpoint, device, comm, request->max_step_tokens, progress,
                            progress_context, error);
    e->times.weights = take_time(&begin);
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
    free(e->row_logits);
    e->device->table->buffer_free(e->device, &e->logits);
    e->device->table->buffer_free(e->device, &e->inputs);
    free(e->packed_inputs);
    free(e);
}

struct engine_times engine_times(const struct engine *e)
{
    return e->times;
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

/* A step's arrays on their way to the device: packed one behind another, so that they travel in one
 * copy, and steps of the same shape find them in the same places. */
struct inputs {
    struct engine *engine;
    const struct batch *batch;
    size_t used; /* bytes of packed_inputs */
};

/* Where the next [rows, cols] lie on the device. */
static struct tensor place(struct inputs *in, int32_t rows, int32_t cols)
{
    struct tensor t = {.buffer = &in->engine->inputs,
                       .offset = in->used,
                       .dtype = DTYPE_I32,
                       .rows = rows,
                       .cols = cols,
                       .stride = cols};
    in->used += (size_t)rows * (size_t)cols * sizeof(int32_t);
    return t;
}

/* The used part of one of the batch's arrays. */
static struct tensor input(struct inputs *in, const int32_t *array, int32_t rows, int32_t cols)
{
    struct tensor t = place(in, rows, cols);
    if (in->used > t.offset)
        memcpy(in->engine->packed_inputs + t.offset, array, in->used - t.offset);
    return t;
}

/* The part of a page table that the longest sequence uses, widened to a power of two so that its
 * shape seldom changes. */
static struct tensor input_table(struct inputs *in, const int32_t *table)
{
    const struct batch *b = in->batch;
    int32_t page_size = in->engine->plan.layout.page_size, longest = 0, cols = 1;
    for (int32_t i = 0; i < b->n_sequences; i++)
        longest = b->kv_len[i] > longest ? b->kv_len[i] : longest;
    while (cols < b->max_pages && (int64_t)cols * page_size < longest)
        cols *= 2;
    struct tensor t = place(in, b->n_sequences, cols < b->max_pages ? cols : b->max_pages);
    size_t row_bytes = (size_t)t.cols * sizeof(int32_t);
    for (int32_t i = 0; i < b->n_sequences; i++)
        memcpy(in->engine->packed_inputs + t.offset + (size_t)i * row_bytes,
               table + (size_t)i * (size_t)b->max_pages, row_bytes);
    return t;
}

static void copy_pages(struct engine *e, const struct batch *b, const struct tensor *pairs)
{
    for (int32_t g = 0; g < b->n_groups && b->n_copies > 0; g++)
        for (int32_t layer = 0; layer < e->model->kv_groups[g].n_layers; layer++)
            device_kv_copy_page(e->device,
                                &(struct kv_copy_page_args){layer_pages(e, g, layer), pairs[g]});
}

static void bind_inputs(struct inputs *in, struct tensor *copies, struct tensor *drawn_by)
{
    struct engine *e = in->engine;
    const struct batch *b = in->batch;
    struct forward *f = &e->forward;
    f->n_tokens = b->n_tokens;
    f->n_sequences = b->n_sequences;
    f->n_want = b->n_want;
    f->tokens = input(in, b->tokens, b->n_tokens, 1);
    *drawn_by = input(in, b->drawn_by, b->n_tokens, 1);
    f->positions = input(in, b->positions, b->n_tokens, 1);
    f->q_start = input(in, b->q_start, b->n_sequences + 1, 1);
    f->kv_len = input(in, b->kv_len, b->n_sequences, 1);
    f->want = input(in, b->want, b->n_want, 1);
    for (int32_t g = 0; g < b->n_groups; g++) {
        f->groups[g].slots = input(in, b->slots[g], b->n_tokens, 1);
        f->groups[g].page_table = input_table(in, b->page_table[g]);
        copies[g] = input(in, b->copies[g], b->n_copies, 2);
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

void engine_bind_drawn(struct engine *e, const struct tensor *drawn)
{
    e->drawn = *drawn;
}

enum status engine_queue(struct engine *e, const struct batch *b, struct error *error)
{
    const struct device_table *table = e->device->table;
    assert(b->n_tokens > 0);
    struct inputs in = {e, b, 0};
    struct tensor copies[KV_CACHE_MAX_GROUPS], drawn_by;
    bind_inputs(&in, copies, &drawn_by);
    enum status status =
        table->buffer_write(e->device, &e->inputs, 0, e->packed_inputs, in.used, error);
    if (status != OK)
        return status;
    if (e->profile)
        profile_phase(e->profile, b->n_tokens > b->n_sequences ? TRACE_PREFILL : TRACE_DECODE);
    copy_pages(e, b, copies);
    /* In every step, so that steps of one shape are equal lists. */
    if (e->drawn.buffer)
        device_fill_ids(e->forward.device,
                        &(struct fill_ids_args){e->forward.tokens, drawn_by, e->drawn});
    e->model->family->forward(e->model, &e->forward);
    return OK;
}

enum status engine_wait(struct engine *e, struct error *error)
{
    enum status status = e->device->table->sync(e->device, error);
    return status == OK && e->profile ? profile_collect(e->profile, error) : status;
}

enum status engine_step(struct engine *e, const struct batch *b, struct error *error)
{
    enum status status = engine_queue(e, b, error);
    return status == OK ? engine_wait(e, error) : status;
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

struct device *engine_ops(const struct engine *e)
{
    return e->forward.device;
}

int32_t engine_max_want(const struct engine *e)
{
    return e->request.max_want;
}

struct tensor engine_logits_tensor(const struct engine *e)
{
    return e->forward.logits;
}

const float *engine_logits(struct engine *e, int32_t i)
{
    size_t bytes = (size_t)e->model->vocab_size * sizeof(float);
    return e->device->table->buffer_read(e->device, &e->logits, (size_t)i * bytes, e->row_logits,
                                         bytes, NULL) == OK
               ? e->row_logits
               : NULL;
}
