/* The ops that work on each row for itself: embed, rms_norm, rope_angles, qk_norm_rope, silu_mul,
 * sigmoid_mul, gated_norm, moe_route, gather, fill_ids. Rows are shared out to the pool only where
 * there is more to do than a run of it costs; a single row stays on the calling thread. */
#include "device/cpu/rows.h"

#include "base/size.h"
#include "device/cpu/cpu_device.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The floats of work that pay for waking the pool, and the least a task should have: some 2 us at
 * 8 floats a nanosecond. */
enum { FLOATS_PER_TASK = 8192 };

const struct row_kernels *cpu_row_kernels(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX512)
        return &row_kernels_avx512;
    if (isa >= CPU_ISA_AVX2)
        return &row_kernels_avx2;
#elif defined(__aarch64__)
    if (isa >= CPU_ISA_NEON)
        return &row_kernels_neon;
#endif
    (void)isa;
    return &row_kernels_scalar;
}

/* What a task of each op needs: rows [first, first + n) of an op's arguments. */
typedef void (*rows_function)(const struct row_kernels *kernels, const void *args, int first,
                              int n);

struct rows_run {
    rows_function function;
    const struct row_kernels *kernels;
    const void *args;
    int n_rows, n_tasks;
};

static void run_task(void *context, int task, int worker)
{
    (void)worker;
    const struct rows_run *run = context;
    int first = (int)((int64_t)run->n_rows * task / run->n_tasks);
    int end = (int)((int64_t)run->n_rows * (task + 1) / run->n_tasks);
    run->function(run->kernels, run->args, first, end - first);
}

/* Calls `function` for all rows, each of which means work on about `row_floats` floats. */
static void for_rows(struct device *device, rows_function function, const void *args, int n_rows,
                     int64_t row_floats)
{
    struct cpu_device *cpu = cpu_device_of(device);
    int64_t n_tasks = n_rows * row_floats / FLOATS_PER_TASK;
    int64_t most = 4 * (int64_t)thread_pool_size(cpu->pool);
    n_tasks = n_tasks > most ? most : n_tasks;
    n_tasks = n_tasks > n_rows ? n_rows : n_tasks;
    if (n_tasks <= 1) {
        function(cpu->rows, args, 0, n_rows);
        return;
    }
    struct rows_run run = {function, cpu->rows, args, n_rows, (int)n_tasks};
    thread_pool_run(cpu->pool, run_task, &run, run.n_tasks);
}

/* --- embed ------------------------------------------------------------------------------------ */

struct embedding {
    struct weight weight; /* bytes borrowed from the checkpoint */
};

enum status cpu_embedding_load(struct device *device, const struct weight *weight,
                               struct embedding **out, struct error *error)
{
    (void)device;
    *out = NULL;
    if (weight->rows > INT32_MAX || weight->cols > INT32_MAX)
        return error_set(error, ERROR_LIMIT,
                         "an embedding table of %lld x %lld is larger than the limit of %d a side",
                         (long long)weight->rows, (long long)weight->cols, INT32_MAX);
    struct embedding *embedding = malloc(sizeof *embedding);
    if (!embedding)
        return error_memory(error, sizeof *embedding);
    embedding->weight = *weight;
    *out = embedding;
    return OK;
}

uint64_t cpu_embedding_bytes(const struct weight *weight)
{
    const struct weight_levels *levels = &weight->levels;
    uint64_t level_bytes = levels->scales ? weight_levels_bytes(weight) : 0;
    return weight_bytes(weight) + (levels->biases ? 2 : 1) * level_bytes;
}

void cpu_embedding_free(struct device *device, struct embedding *embedding)
{
    (void)device;
    free(embedding);
}

static void embed_rows(const struct row_kernels *kernels, const void *context, int first, int n)
{
    (void)kernels;
    const struct embed_args *args = context;
    for (int row = first; row < first + n; row++) {
        int32_t id = *(const int32_t *)tensor_at(&args->ids, row);
        assert(id >= 0 && id < args->table->weight.rows);
        weight_row_dequantize(&args->table->weight, id, tensor_at(&args->out, row));
    }
}

void cpu_embed(struct device *device, const struct embed_args *args)
{
    assert(args->ids.dtype == DTYPE_I32 && args->out.dtype == DTYPE_F32);
    assert(args->out.cols == args->table->weight.cols);
    for_rows(device, embed_rows, args, args->out.rows, args->out.cols);
}

/* --- rms_norm --------------------------------------------------------------------------------- */

static void rms_norm_rows(const struct row_kernels *kernels, const void *context, int first, int n)
{
    const struct rms_norm_args *args = context;
    float add = args->plus_one ? 1.0f : 0.0f;
    const float *weight = args->out.buffer ? tensor_at(&args->weight, 0) : NULL;
    for (int row = first; row < first + n; row++) {
        float *residual = args->residual.buffer ? tensor_at(&args->residual, row) : NULL;
        float *out = args->out.buffer ? tensor_at(&args->out, row) : NULL;
        kernels->rms_norm(tensor_at(&args->x, row), residual, weight, out, args->x.cols, args->eps,
                          add);
    }
}

void cpu_rms_norm(struct device *device, const struct rms_norm_args *args)
{
    assert(args->x.dtype == DTYPE_F32);
    assert(args->residual.buffer || args->out.buffer);
    for_rows(device, rms_norm_rows, args, args->x.rows, args->x.cols);
}

/* --- rope ------------------------------------------------------------------------------------- */

static void rope_angles_rows(const struct row_kernels *kernels, const void *context, int first,
                             int n)
{
    (void)kernels;
    const struct rope_angles_args *args = context;
    const float *inv_freq = tensor_at(&args->inv_freq, 0);
    for (int row = first; row < first + n; row++) {
        float position = (float)*(const int32_t *)tensor_at(&args->positions, row);
        float *out = tensor_at(&args->out, row);
        for (int i = 0; i < args->out.cols / 2; i++) {
            float angle = position * inv_freq[i];
            out[2 * i] = cosf(angle) * args->scale;
            out[2 * i + 1] = sinf(angle) * args->scale;
        }
    }
}

void cpu_rope_angles(struct device *device, const struct rope_angles_args *args)
{
    assert(args->positions.dtype == DTYPE_I32 && args->out.dtype == DTYPE_F32);
    enum { ANGLE_COST = 64 }; /* a sine and a cosine in floats of plain work */
    for_rows(device, rope_angles_rows, args, args->out.rows, args->out.cols / 2 * ANGLE_COST);
}

/* Asks for the lines that lie FETCH_AHEAD behind n floats: a linear of many outputs leaves them in
 * memory, and a row ends soon after the processor has seen that it is read in order. Past all rows
 * a prefetch does nothing, so the place is a number. */
static void fetch_ahead(const float *x, int n)
{
    enum { FETCH_AHEAD = 2048, LINE = 64 };
    uintptr_t from = (uintptr_t)x + FETCH_AHEAD;
    for (uintptr_t at = from; at < from + (size_t)n * sizeof *x; at += LINE)
        __builtin_prefetch((const void *)at, 1);
}

/* Norm and rotation, in their order, of each head of one row of q or of k. */
static void norm_rope_row(const struct row_kernels *kernels, const struct qk_norm_rope_args *args,
                          const struct tensor *heads, const struct tensor *weight, int row)
{
    int dim = args->head_dim;
    const float *angles = tensor_at(&args->angles, row);
    float *head = tensor_at(heads, row);
    for (int h = 0; h < heads->cols / dim; h++, head += dim) {
        fetch_ahead(head, dim);
        if (args->norm_last)
            kernels->rotate(head, angles, args->angles.cols);
        if (weight->buffer)
            kernels->rms_norm(head, NULL, tensor_at(weight, 0), head, dim, args->eps,
                              args->plus_one ? 1.0f : 0.0f);
        if (!args->norm_last)
            kernels->rotate(head, angles, args->angles.cols);
    }
}

static void qk_norm_rope_rows(const struct row_kernels *kernels, const void *context, int first,
                              int n)
{
    const struct qk_norm_rope_args *args = context;
    for (int row = first; row < first + n; row++) {
        norm_rope_row(kernels, args, &args->q, &args->q_norm, row);
        norm_rope_row(kernels, args, &args->k, &args->k_norm, row);
    }
}

void cpu_qk_norm_rope(struct device *device, const struct qk_norm_rope_args *args)
{
    assert(args->q.dtype == DTYPE_F32 && args->k.dtype == DTYPE_F32);
    assert(args->angles.cols <= args->head_dim && args->q.rows == args->k.rows);
    for_rows(device, qk_norm_rope_rows, args, args->q.rows, (int64_t)args->q.cols + args->k.cols);
}

/* --- silu_mul --------------------------------------------------------------------------------- */

/* A long row is cut too, so that a single one is shared by the threads. */
enum { SILU_CHUNK = 1024, SILU_COST = 3 /* floats of plain work a value */ };

static void silu_mul_chunks(const struct row_kernels *kernels, const void *context, int first,
                            int n)
{
    const struct silu_mul_args *args = context;
    int cols = args->out.cols, chunks = (int)ceil_div(cols, SILU_CHUNK);
    for (int chunk = first; chunk < first + n; chunk++) {
        int row = chunk / chunks, col = chunk % chunks * SILU_CHUNK;
        const float *gate = (const float *)tensor_at(&args->gate_up, row) + col;
        float *out = (float *)tensor_at(&args->out, row) + col;
        int some = cols - col < SILU_CHUNK ? cols - col : SILU_CHUNK;
        kernels->silu_mul(gate, gate + cols, out, some);
    }
}

void cpu_silu_mul(struct device *device, const struct silu_mul_args *args)
{
    assert(args->gate_up.dtype == DTYPE_F32 && args->gate_up.cols == 2 * args->out.cols);
    int cols = args->out.cols, chunks = (int)ceil_div(cols, SILU_CHUNK);
    for_rows(device, silu_mul_chunks, args, args->out.rows * chunks,
             (int64_t)SILU_COST * (cols < SILU_CHUNK ? cols : SILU_CHUNK));
}

/* --- sigmoid_mul, gated_norm -------------------------------------------------------------------
 */

static void sigmoid_mul_rows(const struct row_kernels *kernels, const void *context, int first,
                             int n)
{
    const struct sigmoid_mul_args *args = context;
    for (int row = first; row < first + n; row++)
        kernels->sigmoid_mul(tensor_at(&args->x, row), tensor_at(&args->gate, row),
                             tensor_at(&args->out, row), args->x.cols);
}

void cpu_sigmoid_mul(struct device *device, const struct sigmoid_mul_args *args)
{
    assert(args->x.dtype == DTYPE_F32 && args->gate.cols == args->x.cols);
    for_rows(device, sigmoid_mul_rows, args, args->x.rows, (int64_t)SILU_COST * args->x.cols);
}

/* A head is a task's unit, so that a single row is shared by the threads. */
static void gated_norm_heads(const struct row_kernels *kernels, const void *context, int first,
                             int n)
{
    const struct gated_norm_args *args = context;
    int dim = args->weight.cols, heads = args->x.cols / dim;
    for (int i = first; i < first + n; i++) {
        int row = i / heads, col = i % heads * dim;
        float *out = (float *)tensor_at(&args->out, row) + col;
        kernels->rms_norm((const float *)tensor_at(&args->x, row) + col, NULL,
                          tensor_at(&args->weight, 0), out, dim, args->eps, 0);
        kernels->silu_mul((const float *)tensor_at(&args->z, row) + col, out, out, dim);
    }
}

void cpu_gated_norm(struct device *device, const struct gated_norm_args *args)
{
    assert(args->x.dtype == DTYPE_F32 && args->x.cols % args->weight.cols == 0);
    assert(args->z.cols == args->x.cols);
    for_rows(device, gated_norm_heads, args, args->x.rows * (args->x.cols / args->weight.cols),
             (int64_t)SILU_COST * args->weight.cols);
}

/* --- moe_route -------------------------------------------------------------------------------- */

/* The n largest of `logits` in `experts`, largest first, a NaN as -inf. A list is kept in order;
 * most experts only look at its end. */
static void choose_experts(const float *logits, int n_experts, int32_t *experts, int n)
{
    for (int e = 0; e < n_experts; e++) {
        float logit = isnan(logits[e]) ? -INFINITY : logits[e];
        int at = e < n ? e : n;
        while (at > 0) {
            float other = logits[experts[at - 1]];
            if (!(logit > (isnan(other) ? -INFINITY : other)))
                break;
            if (at < n)
                experts[at] = experts[at - 1];
            at--;
        }
        if (at < n)
            experts[at] = e;
    }
}

static void moe_route_rows(const struct row_kernels *kernels, const void *context, int first, int n)
{
    const struct moe_route_args *args = context;
    int n_chosen = args->experts.cols, n_experts = args->logits.cols;
    for (int row = first; row < first + n; row++) {
        const float *logits = tensor_at(&args->logits, row);
        int32_t *experts = tensor_at(&args->experts, row);
        float *weights = tensor_at(&args->weights, row);
        choose_experts(logits, n_experts, experts, n_chosen);
        float max = logits[experts[0]], sum = 0;
        for (int i = 0; i < n_chosen; i++) {
            weights[i] = expf(logits[experts[i]] - max);
            sum += weights[i];
        }
        if (!args->is_normalised)
            sum = kernels->sum_exp(logits, n_experts, max);
        for (int i = 0; i < n_chosen; i++)
            weights[i] /= sum;
    }
}

void cpu_moe_route(struct device *device, const struct moe_route_args *args)
{
    assert(args->logits.dtype == DTYPE_F32 && args->experts.dtype == DTYPE_I32);
    assert(args->experts.cols >= 1 && args->experts.cols <= args->logits.cols);
    assert(args->weights.cols == args->experts.cols && args->weights.dtype == DTYPE_F32);
    enum { ROUTE_COST = 4 /* floats of plain work a logit */ };
    for_rows(device, moe_route_rows, args, args->logits.rows,
             (int64_t)ROUTE_COST * args->logits.cols);
}

/* --- gather ----------------------------------------------------------------------------------- */

static void gather_rows(const struct row_kernels *kernels, const void *context, int first, int n)
{
    (void)kernels;
    const struct gather_args *args = context;
    size_t bytes = (size_t)args->out.cols * dtype_bytes(args->out.dtype);
    for (int row = first; row < first + n; row++) {
        int32_t from = *(const int32_t *)tensor_at(&args->rows, row);
        assert(from >= 0 && from < args->x.rows);
        memcpy(tensor_at(&args->out, row), tensor_at(&args->x, from), bytes);
    }
}

void cpu_gather(struct device *device, const struct gather_args *args)
{
    assert(args->rows.dtype == DTYPE_I32 && args->x.dtype == args->out.dtype);
    for_rows(device, gather_rows, args, args->out.rows, args->out.cols);
}

/* A few words: not worth a task. */
void cpu_fill_ids(struct device *device, const struct fill_ids_args *args)
{
    (void)device;
    assert(args->ids.rows == args->from.rows);
    for (int32_t row = 0; row < args->ids.rows; row++) {
        int32_t from = *(const int32_t *)tensor_at(&args->from, row);
        assert(from < args->drawn.rows);
        if (from < 0)
            continue;
        int32_t drawn = *(const int32_t *)tensor_at(&args->drawn, from);
        *(int32_t *)tensor_at(&args->ids, row) = drawn > 0 ? drawn : 0;
    }
}
