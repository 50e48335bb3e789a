#include "device/profile.h"

#include "base/system.h"
#include "device/device_open.h"

#include <stdlib.h>

#define OP_INDEX(name) OP_##name,
enum { DEVICE_OPS(OP_INDEX) N_OPS };
#undef OP_INDEX

/* A call on a device with marks, until it is known how long it took. */
struct pending_call {
    int op, mark; /* of its begin; its end is the next one */
    enum trace_phase phase;
    struct op_cost cost;
};

/* Arrays that a cost is counted from, where the CPU does not reach them. */
enum { MAX_COPIES = 2 };

struct profile {
    struct device device; /* first, so that a struct device * is one of these */
    struct device_table table;
    struct device *real;
    struct trace *trace;
    struct thread_observer observer;
    const char *op; /* the one that runs */
    enum trace_phase phase;
    struct pending_call *pending;
    int n_pending, max_pending;
    struct buffer copies[MAX_COPIES];
    struct profile_entry entries[N_TRACE_PHASES][N_OPS];
};

static struct profile *profile_of(struct device *device)
{
    return (struct profile *)(void *)device;
}

/* --- what a call has to move and compute ------------------------------------------------------ */

static double bytes_of(const struct tensor *t)
{
    return t->buffer ? (double)t->rows * t->cols * (double)dtype_bytes(t->dtype) : 0.0;
}

struct op_cost profile_cost_linear(const struct device *device, const struct linear_args *a)
{
    double weights = (double)device->table->linear_size(a->linear);
    return (struct op_cost){weights + bytes_of(&a->x) + bytes_of(&a->out),
                            2.0 * a->x.rows * a->x.cols * a->out.cols};
}

/* K and V of a token in a layer, with what the device keeps beside them. */
static double token_bytes(const struct device *device, const struct kv_layout *layout)
{
    return (double)device->table->kv_page_bytes(device, layout) / layout->page_size;
}

/* The keys that each sequence's rows see: read once a sequence, multiplied once a row. */
struct op_cost profile_cost_paged_attention(const struct device *device,
                                            const struct paged_attention_args *a)
{
    const struct kv_layout *layout = &a->pages.layout;
    const int32_t *q_start = tensor_at(&a->q_start, 0), *kv_len = tensor_at(&a->kv_len, 0);
    double n_read = 0.0, n_scores = 0.0;
    for (int32_t i = 0; i < a->n_sequences; i++) {
        double rows = q_start[i + 1] - q_start[i], length = kv_len[i];
        double seen = length - (rows - 1.0) / 2.0; /* by a row, on average */
        if (a->window && seen > a->window)
            seen = a->window;
        n_scores += rows * seen;
        n_read += a->window && length > a->window + rows ? a->window + rows : length;
    }
    double row_bytes = token_bytes(device, layout);
    return (struct op_cost){n_read * row_bytes + bytes_of(&a->q) + bytes_of(&a->out),
                            4.0 * n_scores * a->n_q_heads * layout->head_dim};
}

static struct op_cost cost_embed(const struct device *device, const void *args)
{
    const struct embed_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = 2.0 * bytes_of(&a->out)};
}

static struct op_cost cost_rms_norm(const struct device *device, const void *args)
{
    const struct rms_norm_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->x) + 2.0 * bytes_of(&a->residual) +
                                     bytes_of(&a->weight) + bytes_of(&a->out)};
}

static struct op_cost cost_linear(const struct device *device, const void *args)
{
    return profile_cost_linear(device, args);
}

static struct op_cost cost_rope_angles(const struct device *device, const void *args)
{
    const struct rope_angles_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->out)};
}

static struct op_cost cost_qk_norm_rope(const struct device *device, const void *args)
{
    const struct qk_norm_rope_args *a = args;
    (void)device;
    return (struct op_cost){.bytes =
                                2.0 * (bytes_of(&a->q) + bytes_of(&a->k)) + bytes_of(&a->angles)};
}

static struct op_cost cost_kv_store(const struct device *device, const void *args)
{
    const struct kv_store_args *a = args;
    return (struct op_cost){.bytes = bytes_of(&a->k) + bytes_of(&a->v) +
                                     a->k.rows * token_bytes(device, &a->pages.layout)};
}

static struct op_cost cost_paged_attention(const struct device *device, const void *args)
{
    return profile_cost_paged_attention(device, args);
}

static struct op_cost cost_silu_mul(const struct device *device, const void *args)
{
    const struct silu_mul_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->gate_up) + bytes_of(&a->out)};
}

static struct op_cost cost_gather(const struct device *device, const void *args)
{
    const struct gather_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = 2.0 * bytes_of(&a->out)};
}

static struct op_cost cost_fill_ids(const struct device *device, const void *args)
{
    const struct fill_ids_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = 2.0 * bytes_of(&a->from) + bytes_of(&a->ids)};
}

static struct op_cost cost_kv_copy_page(const struct device *device, const void *args)
{
    const struct kv_copy_page_args *a = args;
    double page = (double)device->table->kv_page_bytes(device, &a->pages.layout);
    return (struct op_cost){.bytes = 2.0 * a->pairs.rows * page};
}

static struct op_cost cost_state_copy(const struct device *device, const void *args)
{
    const struct state_copy_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = 2.0 * (double)a->slots.slot_bytes};
}

static struct op_cost cost_moe_route(const struct device *device, const void *args)
{
    const struct moe_route_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->logits) + bytes_of(&a->experts) +
                                     bytes_of(&a->weights)};
}

/* Experts that some row has chosen, each counted once. */
static int32_t count_chosen(const struct tensor *experts)
{
    bool is_chosen[MOE_MAX_EXPERTS] = {false};
    int32_t n = 0;
    for (int32_t row = 0; row < experts->rows; row++) {
        const int32_t *ids = tensor_at(experts, row);
        for (int32_t k = 0; k < experts->cols; k++) {
            n += !is_chosen[ids[k]];
            is_chosen[ids[k]] = true;
        }
    }
    return n;
}

struct op_cost profile_cost_moe_ffn(const struct device *device, const struct moe_ffn_args *a)
{
    int32_t inner;
    double expert = (double)device->table->expert_size(a->stack, &inner);
    return (struct op_cost){count_chosen(&a->experts) * expert + bytes_of(&a->x) +
                                bytes_of(&a->shared) + bytes_of(&a->out),
                            6.0 * a->x.rows * a->experts.cols * a->x.cols * inner};
}

static struct op_cost cost_moe_ffn(const struct device *device, const void *args)
{
    return profile_cost_moe_ffn(device, args);
}

static struct op_cost cost_sigmoid_mul(const struct device *device, const void *args)
{
    const struct sigmoid_mul_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->x) + bytes_of(&a->gate) + bytes_of(&a->out)};
}

static struct op_cost cost_gated_norm(const struct device *device, const void *args)
{
    const struct gated_norm_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->x) + bytes_of(&a->z) + bytes_of(&a->out)};
}

static struct op_cost cost_conv1d_update(const struct device *device, const void *args)
{
    const struct conv1d_update_args *a = args;
    (void)device;
    double slots = 2.0 * (a->q_start.rows - 1) * a->slots.layout.conv_rows * a->x.cols;
    return (struct op_cost){bytes_of(&a->x) + bytes_of(&a->weight) + bytes_of(&a->out) +
                                slots * sizeof(float),
                            2.0 * a->x.rows * a->x.cols * a->weight.rows};
}

/* The state of each sequence is read and written once; a row decays it, reads it twice and adds to
 * it: seven operations an element. */
struct op_cost profile_cost_gated_delta(const struct device *device,
                                        const struct gated_delta_args *a)
{
    const struct state_layout *l = &a->slots.layout;
    double elements = (double)l->n_v_heads * l->k_dim * l->v_dim;
    (void)device;
    return (struct op_cost){2.0 * (a->q_start.rows - 1) * elements * (double)dtype_bytes(l->dtype) +
                                bytes_of(&a->qkv) + bytes_of(&a->out) + bytes_of(&a->tape),
                            7.0 * a->qkv.rows * elements};
}

static struct op_cost cost_gated_delta(const struct device *device, const void *args)
{
    return profile_cost_gated_delta(device, args);
}

static struct op_cost cost_gated_delta_commit(const struct device *device, const void *args)
{
    const struct gated_delta_commit_args *a = args;
    const struct state_layout *l = &a->slots.layout;
    double elements = (double)l->n_v_heads * l->k_dim * l->v_dim;
    (void)device;
    return (struct op_cost){2.0 * a->n_accepted.rows * elements * (double)dtype_bytes(l->dtype) +
                                bytes_of(&a->x) + bytes_of(&a->tape),
                            3.0 * a->x.rows * elements};
}

static struct op_cost cost_edit_logits(const struct device *device, const void *args)
{
    const struct edit_logits_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->edits) + 8.0 * a->edits.rows};
}

static struct op_cost cost_sample(const struct device *device, const void *args)
{
    const struct sample_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->logits)};
}

static struct op_cost cost_logprobs(const struct device *device, const void *args)
{
    const struct logprobs_args *a = args;
    (void)device;
    return (struct op_cost){.bytes = bytes_of(&a->logits)};
}

/* An op that is not in this list is measured in time alone. */
typedef struct op_cost (*op_cost_function)(const struct device *device, const void *args);
static const op_cost_function costs[N_OPS] = {
    [OP_embed] = cost_embed,
    [OP_rms_norm] = cost_rms_norm,
    [OP_linear] = cost_linear,
    [OP_rope_angles] = cost_rope_angles,
    [OP_qk_norm_rope] = cost_qk_norm_rope,
    [OP_kv_store] = cost_kv_store,
    [OP_paged_attention] = cost_paged_attention,
    [OP_silu_mul] = cost_silu_mul,
    [OP_gather] = cost_gather,
    [OP_fill_ids] = cost_fill_ids,
    [OP_kv_copy_page] = cost_kv_copy_page,
    [OP_state_copy] = cost_state_copy,
    [OP_moe_route] = cost_moe_route,
    [OP_moe_ffn] = cost_moe_ffn,
    [OP_sigmoid_mul] = cost_sigmoid_mul,
    [OP_gated_norm] = cost_gated_norm,
    [OP_conv1d_update] = cost_conv1d_update,
    [OP_gated_delta] = cost_gated_delta,
    [OP_gated_delta_commit] = cost_gated_delta_commit,
    [OP_edit_logits] = cost_edit_logits,
    [OP_sample] = cost_sample,
    [OP_logprobs] = cost_logprobs,
};

bool profile_knows(int op)
{
    return costs[op] != NULL;
}

/* --- forwarding ------------------------------------------------------------------------------- */

/* Makes `t`, i32, a tensor that the CPU reaches, in copy `i`; false if that fails. */
static bool bring(struct profile *p, struct tensor *t, int i)
{
    struct buffer *copy = &p->copies[i];
    if (t->buffer->host)
        return true;
    size_t bytes =
        ((size_t)(t->rows - 1) * (size_t)t->stride + (size_t)t->cols) * sizeof(int32_t);
    void *host = realloc(copy->host, bytes);
    if (!host)
        return false;
    copy->host = host;
    struct error error;
    if (p->real->table->buffer_read(p->real, t->buffer, t->offset, host, bytes, &error) != OK)
        return false;
    t->buffer = copy;
    t->offset = 0;
    return true;
}

/* Some costs depend on what arrays hold, which later ops may overwrite. */
static struct op_cost cost_of(struct profile *p, int op, const void *args)
{
    if (op == OP_paged_attention) {
        struct paged_attention_args a = *(const struct paged_attention_args *)args;
        return bring(p, &a.q_start, 0) && bring(p, &a.kv_len, 1) ? costs[op](p->real, &a)
                                                                 : (struct op_cost){0};
    }
    if (op == OP_moe_ffn) {
        struct moe_ffn_args a = *(const struct moe_ffn_args *)args;
        return bring(p, &a.experts, 0) ? costs[op](p->real, &a) : (struct op_cost){0};
    }
    return costs[op] ? costs[op](p->real, args) : (struct op_cost){0};
}

static void account(struct profile *p, int op, enum trace_phase phase, const struct op_cost *cost,
                    double begin, double end)
{
    struct profile_entry *e = &p->entries[phase][op];
    e->calls++;
    e->seconds += end - begin;
    e->bytes += cost->bytes;
    e->operations += cost->operations;
    trace_record(
        p->trace,
        &(struct trace_event){.kind = TRACE_OP,
                              .phase = phase,
                              .name = e->name,
                              .begin = begin,
                              .end = end,
                              .values = {(int64_t)cost->bytes, (int64_t)cost->operations}});
}

/* Notes the begin of a call; -1 without memory: the call is not measured. */
static int begin_pending(struct profile *p, int op, const struct op_cost *cost)
{
    if (p->n_pending == p->max_pending) {
        int n = p->max_pending ? 2 * p->max_pending : 256;
        struct pending_call *pending = realloc(p->pending, (size_t)n * sizeof *pending);
        if (!pending)
            return -1;
        p->pending = pending;
        p->max_pending = n;
    }
    int mark = 2 * p->n_pending;
    p->pending[p->n_pending++] = (struct pending_call){op, mark, p->phase, *cost};
    p->real->table->mark(p->real, mark);
    return mark;
}

#define DEFINE_OP(name)                                                                            \
    static void profiled_##name(struct device *device, const struct name##_args *args)             \
    {                                                                                              \
        struct profile *p = profile_of(device);                                                    \
        struct op_cost cost = cost_of(p, OP_##name, args);                                         \
        int mark = p->real->table->mark ? begin_pending(p, OP_##name, &cost) : -1;                 \
        p->op = #name;                                                                             \
        double begin = system_seconds();                                                           \
        p->real->table->name(p->real, args);                                                       \
        if (mark >= 0)                                                                             \
            p->real->table->mark(p->real, mark + 1);                                               \
        else if (!p->real->table->mark)                                                            \
            account(p, OP_##name, p->phase, &cost, begin, system_seconds());                       \
    }
DEVICE_OPS(DEFINE_OP)
#undef DEFINE_OP

enum status profile_collect(struct profile *p, struct error *error)
{
    enum status status = OK;
    int n = p->n_pending, last = 2 * n - 1;
    double now = system_seconds(); /* when the last op was done, or soon after */
    for (int i = 0; i < n && status == OK; i++) {
        const struct pending_call *c = &p->pending[i];
        double seconds, before;
        status = p->real->table->marked(p->real, c->mark, c->mark + 1, &seconds, error);
        if (status == OK)
            status = p->real->table->marked(p->real, c->mark + 1, last, &before, error);
        if (status == OK)
            account(p, c->op, c->phase, &c->cost, now - before - seconds, now - before);
    }
    p->n_pending = 0;
    return status;
}

static void on_worker(void *context, int worker, double begin, double end)
{
    const struct profile *p = context;
    trace_record(p->trace, &(struct trace_event){.kind = TRACE_TASK,
                                                 .phase = p->phase,
                                                 .thread = worker,
                                                 .name = p->op ? p->op : "other",
                                                 .begin = begin,
                                                 .end = end});
}

enum status profile_new(struct profile **out, struct device *real, struct error *error)
{
    *out = NULL;
    if (!device_is_cpu(real) && !real->table->mark)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%s runs operations after they are called, and cannot tell when",
                         real->name);
    struct profile *p = calloc(1, sizeof *p);
    if (!p)
        return error_memory(error, sizeof *p);
#define PROFILED_ENTRY(op) .op = profiled_##op,
    p->table = (struct device_table){DEVICE_OPS(PROFILED_ENTRY)};
#undef PROFILED_ENTRY
    p->device = (struct device){.table = &p->table, .name = real->name};
    p->real = real;
    p->observer = (struct thread_observer){on_worker, p};
    profile_reset(p);
    *out = p;
    return OK;
}

void profile_free(struct profile *p)
{
    if (!p)
        return;
    profile_trace(p, NULL);
    for (int i = 0; i < MAX_COPIES; i++)
        free(p->copies[i].host);
    free(p->pending);
    free(p);
}

struct device *profile_device(struct profile *p)
{
    return &p->device;
}

void profile_trace(struct profile *p, struct trace *trace)
{
    p->trace = trace;
    p->real->table->observe(p->real, trace ? &p->observer : NULL);
}

void profile_phase(struct profile *p, enum trace_phase phase)
{
    p->phase = phase;
}

const struct profile_entry *profile_entries(const struct profile *p, enum trace_phase phase, int *n)
{
    *n = N_OPS;
    return p->entries[phase];
}

void profile_reset(struct profile *p)
{
#define OP_NAME(name) #name,
    static const char *const names[N_OPS] = {DEVICE_OPS(OP_NAME)};
#undef OP_NAME
    for (int phase = 0; phase < N_TRACE_PHASES; phase++)
        for (int i = 0; i < N_OPS; i++)
            p->entries[phase][i] = (struct profile_entry){.name = names[i]};
}
