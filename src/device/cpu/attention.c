/* paged_attention: one call is planned into tasks (attention_plan.h), which the pool's threads do.
 */
#include "device/cpu/attention.h"

#include "base/size.h"
#include "device/cpu/attention_codes.h"
#include "device/cpu/attention_plan.h"
#include "device/cpu/cpu_device.h"
#include "device/kv_layout.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Less work than this is done at once by the caller: waking the pool costs about as much. */
enum { SMALL_WORK = 2048 };

const struct attention_kernels *cpu_attention_kernels(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AMX)
        return &attention_kernels_amx;
    if (isa >= CPU_ISA_AVX512)
        return &attention_kernels_avx512;
    if (isa >= CPU_ISA_AVX2)
        return &attention_kernels_avx2;
#elif defined(__aarch64__)
    if (isa >= CPU_ISA_NEON)
        return &attention_kernels_neon;
#endif
    (void)isa;
    return &attention_kernels_scalar;
}

size_t cpu_attention_workspace(struct device *device, const struct kv_layout *layout,
                               int32_t n_q_heads, int32_t max_rows, int32_t max_sequences)
{
    int n_threads = thread_pool_size(cpu_device_of(device)->pool);
    struct attention_shape shape = {
        layout->n_heads, n_q_heads, layout->head_dim, max_rows, max_sequences, n_threads, 0};
    struct attention_space space;
    bool is_possible = max_rows > 0 && max_sequences > 0 && attention_space_of(&shape, &space);
    return is_possible ? space.bytes : 0;
}

enum status cpu_attention_reserve(struct device *device, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                  struct error *error)
{
    struct cpu_device *cpu = cpu_device_of(device);
    int32_t dim = layout->head_dim;
    enum status status = kv_layout_check(layout, n_q_heads, ATTENTION_MAX_DIM, true, "CPU", error);
    if (status != OK)
        return status;
    size_t bytes = cpu_attention_workspace(device, layout, n_q_heads, max_rows, max_sequences);
    if (bytes == 0)
        return error_set(error, ERROR_LIMIT,
                         "attention steps of %d rows in %d sequences with %d heads of %d dims are "
                         "too large; lower the prefill length or the number of running requests",
                         max_rows, max_sequences, n_q_heads, dim);
    return cpu_workspace_reserve(cpu, bytes, error);
}

/* One call. */
struct attention_run {
    const struct paged_attention_args *args;
    struct kv_view view;
    const struct attention_kernels *kernels;
    bool is_rounded; /* products may be rounded to bf16 */
    struct attention_space space;
    char *workspace;
    const struct attention_task *tasks;
    const int32_t *order;
    int32_t n_tasks;
};

/* --- the twin, a head of a row at a time ------------------------------------------------------ */

static void scalar_task(void *context, int task, int worker)
{
    (void)worker;
    const struct attention_run *run = context;
    const struct paged_attention_args *args = run->args;
    int32_t row = task / args->n_q_heads, head = task % args->n_q_heads, sequence = 0;
    while (*(const int32_t *)tensor_at(&args->q_start, sequence + 1) <= row)
        sequence++;
    int32_t behind = *(const int32_t *)tensor_at(&args->q_start, sequence + 1) - row;
    int32_t end = *(const int32_t *)tensor_at(&args->kv_len, sequence) - behind + 1;
    int32_t first = args->window > 0 && end > args->window ? end - args->window : 0;
    size_t at = (size_t)head * (size_t)run->view.head_dim;
    const float *sinks = args->sinks.buffer ? tensor_at(&args->sinks, 0) : NULL;
    attention_scalar(&run->view, tensor_at(&args->page_table, sequence),
                     head / (args->n_q_heads / args->pages.layout.n_heads),
                     (const float *)tensor_at(&args->q, row) + at,
                     (float *)tensor_at(&args->out, row) + at, first, end, args->scale,
                     sinks ? sinks + head : NULL);
}

static const float log2_e = 1.44269504f;

/* --- tiles ------------------------------------------------------------------------------------ */

static struct attention_tile tile_of(const struct attention_run *run, int worker)
{
    size_t dim = (size_t)run->view.head_dim;
    char *next = run->workspace + run->space.scratch + (size_t)worker * run->space.scratch_bytes;
    struct attention_tile tile = {
        .view = &run->view, .dtype = run->view.dtype, .scale = run->args->scale * log2_e};
    /* The widest first, so that all but the last few begin on a cache line. */
    tile.expanded = (uint16_t *)(void *)next;
    next += 2 * ATTENTION_BLOCK * dim * sizeof *tile.expanded;
    tile.q = (float *)(void *)next;
    tile.acc = tile.q + ATTENTION_TILE * dim;
    tile.scores = tile.acc + ATTENTION_TILE * dim;
    tile.p16 = (uint16_t *)(void *)(tile.scores + ATTENTION_TILE * ATTENTION_BLOCK);
    tile.q16 = tile.p16 + ATTENTION_TILE * ATTENTION_BLOCK;
    tile.sums = (float *)(void *)(tile.q16 + ATTENTION_TILE * dim);
    tile.base = tile.sums + ATTENTION_TILE * ATTENTION_LANES;
    tile.sum = tile.base + ATTENTION_TILE;
    tile.first = (int32_t *)(void *)(tile.sum + ATTENTION_TILE);
    tile.end = tile.first + ATTENTION_TILE;
    return tile;
}

/* Which query vector of a task is the m-th: of each KV head the rows, of each row the heads. */
static void vector_of(const struct attention_task *task, int m, int32_t *row, int32_t *head)
{
    int each = task->n_rows * task->n_heads;
    *row = task->first_row + m % each / task->n_heads;
    *head = task->first_head + m / each * task->n_heads + m % task->n_heads;
}

static void fill_tile(const struct attention_run *run, const struct attention_task *task,
                      struct attention_tile *tile)
{
    size_t dim = (size_t)run->view.head_dim;
    tile->n = task->n_kv_heads * task->n_rows * task->n_heads;
    for (int m = 0; m < tile->n; m++) {
        int32_t row, head, window = run->args->window;
        vector_of(task, m, &row, &head);
        const float *q = tensor_at(&run->args->q, row);
        float *to = tile->q + (size_t)m * dim;
        memcpy(to, q + (size_t)head * dim, dim * sizeof *q);
        if (kv_has_codes(&run->view))
            codes_turn(to, run->view.head_dim);
        int32_t end = task->place + row - task->first_row + 1;
        tile->end[m] = end;
        tile->first[m] = window > 0 && end > window ? end - window : 0;
    }
}

static float *out_of(const struct attention_run *run, const struct attention_task *task, int m)
{
    int32_t row, head;
    vector_of(task, m, &row, &head);
    float *out = tensor_at(&run->args->out, row);
    return out + (size_t)head * (size_t)run->view.head_dim;
}

/* What turns acc of vector m into the output, once all its tokens are in: 1 / sum, where a sink is
 * one more key in the sum. */
static float last_factor(const struct attention_run *run, const struct attention_task *task, int m,
                         float base, float sum)
{
    const struct tensor *sinks = &run->args->sinks;
    if (!sinks->buffer)
        return 1 / sum;
    int32_t row, head;
    vector_of(task, m, &row, &head);
    const float *values = tensor_at(sinks, 0);
    float sink = values[head] * log2_e;
    if (sink <= base)
        return 1 / (sum + exp2f(sink - base));
    float shrink = exp2f(base - sink);
    return shrink / (sum * shrink + 1);
}

static void write_tile(const struct attention_run *run, const struct attention_task *task,
                       const struct attention_tile *tile)
{
    int dim = run->view.head_dim;
    for (int m = 0; m < tile->n; m++) {
        float factor = last_factor(run, task, m, tile->base[m], tile->sum[m]);
        float *restrict out = out_of(run, task, m);
        const float *acc = tile->acc + (size_t)m * (size_t)dim;
        for (int d = 0; d < dim; d++)
            out[d] = acc[d] * factor;
        if (kv_has_codes(&run->view))
            codes_turn(out, dim);
    }
}

/* --- parts ------------------------------------------------------------------------------------ */

/* A part's result: acc [n, D], then base and sum of each vector. */
static float *partial_of(const struct attention_run *run, int32_t slot)
{
    char *first = run->workspace + run->space.partials;
    return (float *)(void *)(first + (size_t)slot * run->space.partial_bytes);
}

static _Atomic int32_t *done_of(const struct attention_run *run, int32_t slot)
{
    return (_Atomic int32_t *)(void *)(run->workspace + run->space.done + (size_t)slot * 64);
}

static void keep_part(const struct attention_run *run, const struct attention_task *task,
                      const struct attention_tile *tile)
{
    float *to = partial_of(run, task->slot + task->part);
    size_t n = (size_t)tile->n, values = n * (size_t)run->view.head_dim;
    memcpy(to, tile->acc, values * sizeof *to);
    memcpy(to + values, tile->base, n * sizeof *to);
    memcpy(to + values + n, tile->sum, n * sizeof *to);
}

static void merge_parts(const struct attention_run *run, const struct attention_task *task, int n)
{
    int dim = run->view.head_dim;
    size_t values = (size_t)n * (size_t)dim;
    for (int m = 0; m < n; m++) {
        float base = -INFINITY, sum = 0, *restrict out = out_of(run, task, m);
        for (int32_t i = 0; i < task->n_parts; i++)
            base = fmaxf(base, partial_of(run, task->slot + i)[values + (size_t)m]);
        memset(out, 0, (size_t)dim * sizeof *out);
        for (int32_t i = 0; i < task->n_parts; i++) {
            const float *part = partial_of(run, task->slot + i);
            float weight = exp2f(part[values + (size_t)m] - base);
            sum += weight * part[values + (size_t)n + (size_t)m];
            const float *acc = part + (size_t)m * (size_t)dim;
            for (int d = 0; d < dim; d++)
                out[d] += weight * acc[d];
        }
        float factor = last_factor(run, task, m, base, sum);
        for (int d = 0; d < dim; d++)
            out[d] *= factor;
        if (kv_has_codes(&run->view))
            codes_turn(out, dim);
    }
}

/* Vectors of a KV head that are few, so that they are computed by pieces. */
static int few_vectors(const struct attention_run *run)
{
    const struct attention_kernels *kernels = run->kernels;
    bool is_fit = run->is_rounded && kernels->few && run->view.dtype == DTYPE_BF16 &&
                  run->view.head_dim % kernels->few_unit == 0;
    return is_fit ? kernels->few_most : 0;
}

/* Whether n vectors read codes as they lie. */
static bool reads_codes(const struct attention_run *run, int n)
{
    const struct attention_kernels *kernels = run->kernels;
    return kv_has_codes(&run->view) && run->is_rounded && kernels->coded &&
           n <= kernels->coded_most && run->view.head_dim % kernels->coded_unit == 0;
}

/* For n vectors of a KV head. */
static const struct attention_math *math_of(const struct attention_run *run, int n)
{
    const struct attention_kernels *kernels = run->kernels;
    if (n <= few_vectors(run))
        return kernels->few;
    if (reads_codes(run, n))
        return kernels->coded;
    bool is_rounded = run->is_rounded && n >= kernels->rounded_least &&
                      run->view.head_dim % kernels->rounded_unit == 0 &&
                      run->view.head_dim <= kernels->rounded_most;
    return is_rounded ? kernels->rounded : kernels->exact;
}

/* What a task reads first. */
static const char *first_piece(const struct attention_run *run, const struct attention_task *task)
{
    const int32_t *pages = tensor_at(&run->args->page_table, task->sequence);
    int32_t size = run->view.page_size;
    char *k = kv_k_head(&run->view, pages[task->begin / size], task->kv_head);
    return kv_k_piece(&run->view, k, task->begin % size);
}

/* `next` is the task that this worker is likely to do then, or NULL. */
static void run_task(const struct attention_run *run, const struct attention_task *task,
                     const struct attention_task *next, int worker)
{
    struct attention_tile tile = tile_of(run, worker);
    const struct attention_math *math = math_of(run, task->n_rows * task->n_heads);
    fill_tile(run, task, &tile);
    if (kv_has_codes(&run->view) && !reads_codes(run, tile.n))
        tile.dtype = DTYPE_BF16;
    attention_tile_run(run->kernels, math, &tile, tensor_at(&run->args->page_table, task->sequence),
                       task->kv_head, task->n_kv_heads, task->begin, task->end,
                       next ? first_piece(run, next) : NULL);
    if (task->slot < 0) {
        write_tile(run, task, &tile);
        return;
    }
    keep_part(run, task, &tile);
    /* Whoever ends last sees what the others wrote. */
    int32_t before = atomic_fetch_add_explicit(done_of(run, task->slot), 1, memory_order_acq_rel);
    if (before == task->n_parts - 1)
        merge_parts(run, task, tile.n);
}

/* The n-th task of `order`. The one behind it is this worker's next, unless another takes it first:
 * its K and V are asked for in time. */
static void run_nth_task(void *context, int n, int worker)
{
    const struct attention_run *run = context;
    const struct attention_task *next =
        n + 1 < run->n_tasks ? &run->tasks[run->order[n + 1]] : NULL;
    run_task(run, &run->tasks[run->order[n]], next, worker);
}

static void run_plan(struct cpu_device *cpu, struct attention_run *run)
{
    const struct paged_attention_args *args = run->args;
    const struct kv_layout *layout = &args->pages.layout;
    struct attention_shape shape = {layout->n_heads, args->n_q_heads,   layout->head_dim,
                                    args->q.rows,    args->n_sequences, thread_pool_size(cpu->pool),
                                    few_vectors(run)};
    bool fits = attention_space_of(&shape, &run->space);
    assert(fits && run->space.bytes <= cpu->workspace.bytes);
    (void)fits;
    struct attention_task *tasks = (void *)(run->workspace + run->space.tasks);
    int32_t *order = (void *)(run->workspace + run->space.order);
    int64_t work;
    run->n_tasks = attention_plan(args, &shape, &run->space, tasks, order, &work);
    run->tasks = tasks;
    run->order = order;
    for (int32_t slot = 0; slot < run->space.n_slots; slot++)
        atomic_store_explicit(done_of(run, slot), 0, memory_order_relaxed);
    if (work < SMALL_WORK)
        for (int n = 0; n < run->n_tasks; n++)
            run_nth_task(run, n, 0);
    else
        thread_pool_run(cpu->pool, run_nth_task, run, run->n_tasks);
}

void cpu_paged_attention(struct device *device, const struct paged_attention_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct kv_layout *layout = &args->pages.layout;
    assert(args->q.dtype == DTYPE_F32 && args->out.dtype == DTYPE_F32);
    assert(args->q.cols == args->n_q_heads * layout->head_dim && args->out.cols == args->q.cols);
    assert(!args->sinks.buffer || args->sinks.cols == args->n_q_heads);
    char *base = (char *)args->pages.buffer->host + args->pages.offset;
    struct attention_run run = {.args = args,
                                .view = kv_view_of(layout, base),
                                .kernels = cpu->attention,
                                .workspace = cpu->workspace.host};
    run.is_rounded = cpu->is_int8 && cpu->attention->rounded &&
                     (layout->dtype == DTYPE_BF16 || kv_has_codes(&run.view));
    if (cpu->attention->exact && layout->page_size >= ATTENTION_PIECE)
        run_plan(cpu, &run);
    else
        thread_pool_run(cpu->pool, scalar_task, &run, args->q.rows * args->n_q_heads);
}
