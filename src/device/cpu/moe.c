/* Mixture of experts: a stack of small gated feed-forward blocks, of which each token row has a few
 * chosen. Rows are sorted by expert; each expert's weights are then read once for all of its rows,
 * by the multiplications of linear.h. Knows no instruction set.
 *
 *   inner   act[pair] = act(gate_e x, up_e x)          tasks: ranges of an expert's inner columns
 *   outer   out[t] = s shared + sum_e w down_e act     tasks: ranges of output columns, all experts
 *
 * A pair is a row and one of its experts; pairs lie by expert, then by row. A task of `outer` owns
 * its columns, so that the sum needs no lock and runs in the order of the experts' numbers. */
#include "device/cpu/linear.h"

#include "base/size.h"
#include "device/cpu/rows.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,
    PASS_TOKENS = 1024, /* rows of one pass over the experts: bounds the workspace */
    CHUNK_BLOCKS = 8,   /* weight blocks that are multiplied at once: they stay in the cache */
    CHUNK_COLS = CHUNK_BLOCKS * BLOCK_ROWS,
    CHUNK_ROWS = 128, /* for so many rows; whole tiles */
    /* Few rows take as many more blocks: their weights are met once, best in one long run. */
    FEW_ROWS = TILE_ROWS_MAX,
    FEW_TIMES = CHUNK_ROWS / FEW_ROWS,
    TASKS_PER_THREAD = 4,
    SMALL_INPUT = 1 << 15, /* floats to prepare that are not worth a barrier */
};

struct expert {
    struct linear *gate_up, *down; /* gate_up has two parts */
};

struct experts {
    int32_t n_experts, top_k;
    int32_t hidden, inner; /* H, and I on this rank */
    size_t scratch_bytes;  /* of a worker, the kernels' own behind the chunks */
    struct expert items[];
};

/* --- loading ---------------------------------------------------------------------------------- */

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static enum status check_counts(int32_t n_experts, int32_t top_k, struct error *error)
{
    if (n_experts < 1 || n_experts > MOE_MAX_EXPERTS || top_k < 1 || top_k > n_experts)
        return error_set(error, ERROR_LIMIT,
                         "%d of %d experts a token; 1 to all of at most %d are possible",
                         (int)top_k, (int)n_experts, MOE_MAX_EXPERTS);
    return OK;
}

/* That expert e has the shape of the first one, which it gives the stack. */
static enum status check_expert(struct experts *stack, const struct expert_slices *x, int32_t e,
                                struct error *error)
{
    if (e == 0) {
        stack->hidden = (int32_t)x->gate.cols;
        stack->inner = (int32_t)x->gate.rows;
    }
    int64_t hidden = stack->hidden, inner = stack->inner;
    if (x->gate.cols != hidden || x->up.cols != hidden || x->down.rows != hidden ||
        x->gate.rows != inner || x->up.rows != inner || x->down.cols != inner)
        return error_set(error, ERROR_INVALID,
                         "expert %d is not of the first one's shape, %lld x %lld", (int)e,
                         (long long)inner, (long long)hidden);
    return OK;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Where the parts of the workspace lie in a pass of n rows; the inputs' forms come last. */
struct moe_layout {
    size_t groups, counts, rows, weights, x, act, scratch, forms;
};

static struct moe_layout lay_out(const struct experts *stack, int32_t n_rows, int n_threads);

/* What the workspace must hold for the widest of the experts. The forms of all groups' inputs take
 * at most what one input of all pairs would, and a tile more for each group. */
struct moe_need {
    int32_t pass, form_rows;
    size_t gate_up, down, scratch;
};

static struct moe_need moe_need_of(int32_t n_experts, int32_t top_k, int32_t max_rows)
{
    int32_t pass = min_i32(max_rows, PASS_TOKENS), n_pairs = pass * top_k;
    int32_t n_groups = min_i32(n_pairs, n_experts);
    return (struct moe_need){.pass = pass, .form_rows = n_pairs + n_groups * TILE_ROWS_MAX};
}

static void moe_need_add(struct moe_need *need, const struct linear *gate_up,
                         const struct linear *down)
{
    need->gate_up = max_size(need->gate_up, linear_input_bytes(gate_up, need->form_rows));
    need->down = max_size(need->down, linear_input_bytes(down, need->form_rows));
    need->scratch = max_size(need->scratch, max_size(gate_up->scratch_bytes, down->scratch_bytes));
}

/* Sets the stack's scratch_bytes, too. */
static size_t moe_need_bytes(const struct moe_need *need, struct experts *stack, int n_threads)
{
    stack->scratch_bytes =
        2 * (size_t)CHUNK_ROWS * CHUNK_COLS * sizeof(float) + size_round_up(need->scratch, ALIGN);
    return lay_out(stack, need->pass, n_threads).forms + need->gate_up + need->down;
}

static enum status load_expert(struct cpu_device *cpu, struct experts *stack, int32_t e,
                               const struct expert_slices *slices, struct moe_need *need,
                               struct error *error)
{
    struct expert *x = &stack->items[e];
    struct weight_slice gate_up[] = {slices->gate, slices->up};
    enum status status = check_expert(stack, slices, e, error);
    if (status == OK)
        status = cpu_linear_load(&cpu->device, gate_up, 2, need->pass, &x->gate_up, error);
    if (status == OK)
        status = cpu_linear_load(&cpu->device, &slices->down, 1, need->pass, &x->down, error);
    if (status == OK)
        moe_need_add(need, x->gate_up, x->down);
    return status;
}

enum status cpu_experts_load(struct device *device, const struct expert_source *source,
                             int32_t n_experts, int32_t top_k, int32_t max_rows,
                             struct experts **out, struct error *error)
{
    struct cpu_device *cpu = cpu_device_of(device);
    *out = NULL;
    enum status status = check_counts(n_experts, top_k, error);
    if (status != OK)
        return status;
    size_t bytes = sizeof(struct experts) + (size_t)n_experts * sizeof(struct expert);
    struct experts *stack = calloc(1, bytes);
    if (!stack)
        return error_memory(error, bytes);
    stack->n_experts = n_experts;
    stack->top_k = top_k;
    struct moe_need need = moe_need_of(n_experts, top_k, max_rows);
    for (int32_t e = 0; e < n_experts && status == OK; e++) {
        struct expert_slices slices;
        status = source->open(source->context, e, &slices, error);
        if (status != OK)
            break;
        status = load_expert(cpu, stack, e, &slices, &need, error);
        source->close(source->context, e, &slices);
    }
    if (status == OK)
        status = cpu_workspace_reserve(
            cpu, moe_need_bytes(&need, stack, thread_pool_size(cpu->pool)), error);
    if (status != OK) {
        cpu_experts_free(device, stack);
        return status;
    }
    *out = stack;
    return OK;
}

void cpu_experts_free(struct device *device, struct experts *stack)
{
    if (!stack)
        return;
    for (int32_t e = 0; e < stack->n_experts; e++) {
        cpu_linear_free(device, stack->items[e].gate_up);
        cpu_linear_free(device, stack->items[e].down);
    }
    free(stack);
}

struct device_bytes cpu_experts_bytes(struct device *device, const struct expert_slices *experts,
                                      int32_t n_experts, int32_t top_k, int32_t max_rows)
{
    const struct cpu_device *cpu = cpu_device_of(device);
    struct moe_need need = moe_need_of(n_experts, top_k, max_rows);
    struct device_bytes total = {0};
    for (int32_t e = 0; e < n_experts; e++) {
        struct weight_slice slices[] = {experts[e].gate, experts[e].up};
        struct linear gate_up = {0}, down = {0};
        linear_describe(cpu, slices, 2, &gate_up);
        linear_describe(cpu, &experts[e].down, 1, &down);
        moe_need_add(&need, &gate_up, &down);
        struct device_bytes each[] = {cpu_linear_bytes(device, slices, 2, need.pass),
                                      cpu_linear_bytes(device, &experts[e].down, 1, need.pass)};
        for (int i = 0; i < 2; i++) {
            if (!size_add(total.own, each[i].own, &total.own))
                total.own = SIZE_MAX;
            total.workspace = max_size(total.workspace, each[i].workspace);
        }
    }
    struct experts stack = {.n_experts = n_experts,
                            .top_k = top_k,
                            .hidden = (int32_t)experts->gate.cols,
                            .inner = (int32_t)experts->gate.rows};
    size_t bytes = moe_need_bytes(&need, &stack, thread_pool_size(cpu->pool));
    total.workspace = max_size(total.workspace, bytes);
    return total;
}

size_t cpu_expert_size(const struct experts *experts, int32_t *inner)
{
    const struct expert *first = &experts->items[0];
    *inner = experts->inner;
    return cpu_linear_size(first->gate_up) + cpu_linear_size(first->down);
}

/* --- a pass ----------------------------------------------------------------------------------- */

/* An expert that some row has chosen, and its pairs. */
struct group {
    const struct expert *expert;
    int32_t first, n;           /* pairs */
    struct linear_input x, act; /* what gate_up and down multiply */
};

struct moe_run {
    const struct cpu_device *cpu;
    const struct experts *stack;
    const struct moe_ffn_args *args;
    int32_t first_row, n_rows, n_pairs, n_groups;
    struct group *groups;
    int32_t *rows;  /* [pairs], of the tensors */
    float *weights; /* [pairs] */
    float *x;       /* [pairs, H]: the rows that a group multiplies, side by side */
    float *act;     /* [pairs, I] */
    uint8_t *scratch;
    int n_ranges; /* of an expert's inner columns, or of the output's */
    int32_t chunk_blocks, chunk_cols;
};

static size_t take(size_t *total, size_t bytes)
{
    size_t at = *total;
    *total += size_round_up(bytes, ALIGN);
    return at;
}

static struct moe_layout lay_out(const struct experts *stack, int32_t n_rows, int n_threads)
{
    size_t pairs = (size_t)n_rows * (size_t)stack->top_k, n = (size_t)stack->n_experts;
    size_t total = 0;
    struct moe_layout l;
    l.groups = take(&total, (pairs < n ? pairs : n) * sizeof(struct group));
    l.counts = take(&total, n * sizeof(int32_t));
    l.rows = take(&total, pairs * sizeof(int32_t));
    l.weights = take(&total, pairs * sizeof(float));
    l.x = take(&total, pairs * (size_t)stack->hidden * sizeof(float));
    l.act = take(&total, pairs * (size_t)stack->inner * sizeof(float));
    l.scratch = take(&total, (size_t)n_threads * stack->scratch_bytes);
    l.forms = total;
    return l;
}

static const int32_t *experts_of(const struct moe_run *run, int32_t i)
{
    return tensor_at(&run->args->experts, run->first_row + i);
}

/* Sorts the pairs by expert, by counting: `counts` [E] becomes where each expert's next pair goes.
 */
static void sort_pairs(struct moe_run *run, int32_t *counts)
{
    int32_t n_chosen = run->args->experts.cols, first = 0;
    memset(counts, 0, (size_t)run->stack->n_experts * sizeof *counts);
    for (int32_t i = 0; i < run->n_rows; i++)
        for (int32_t k = 0; k < n_chosen; k++) {
            assert(experts_of(run, i)[k] >= 0 && experts_of(run, i)[k] < run->stack->n_experts);
            counts[experts_of(run, i)[k]]++;
        }
    for (int32_t e = 0; e < run->stack->n_experts; e++) {
        if (counts[e])
            run->groups[run->n_groups++] =
                (struct group){.expert = &run->stack->items[e], .first = first, .n = counts[e]};
        first += counts[e];
        counts[e] = first - counts[e];
    }
    for (int32_t i = 0; i < run->n_rows; i++) {
        const float *weights = tensor_at(&run->args->weights, run->first_row + i);
        for (int32_t k = 0; k < n_chosen; k++) {
            int32_t pair = counts[experts_of(run, i)[k]]++;
            run->rows[pair] = run->first_row + i;
            run->weights[pair] = weights[k];
        }
    }
}

/* A group of one row reads it where it is; of more, they are gathered. */
static void make_inputs(struct moe_run *run, uint8_t *at)
{
    const struct linear_kernels *kernels = run->cpu->linears;
    size_t hidden = (size_t)run->stack->hidden, inner = (size_t)run->stack->inner;
    for (int32_t i = 0; i < run->n_groups; i++) {
        struct group *g = &run->groups[i];
        const struct linear *gate_up = g->expert->gate_up, *down = g->expert->down;
        const float *x = g->n == 1 ? tensor_at(&run->args->x, run->rows[g->first])
                                   : run->x + (size_t)g->first * hidden;
        g->x = linear_input_make(kernels, gate_up, x, hidden, g->n, at);
        at += linear_input_bytes(gate_up, g->n);
        g->act =
            linear_input_make(kernels, down, run->act + (size_t)g->first * inner, inner, g->n, at);
        at += linear_input_bytes(down, g->n);
    }
}

static struct linear_range all_tiles(const struct linear_input *in)
{
    return (struct linear_range){0, (in->n_rows + in->tile_rows - 1) / in->tile_rows};
}

static struct linear_range all_units(const struct linear_input *in)
{
    return (struct linear_range){0, linear_n_units(in)};
}

static void gather_task(void *context, int task, int worker)
{
    (void)worker;
    const struct moe_run *run = context;
    const struct group *g = &run->groups[task];
    size_t hidden = (size_t)run->stack->hidden;
    for (int32_t i = g->first; g->n > 1 && i < g->first + g->n; i++)
        memcpy(run->x + (size_t)i * hidden, tensor_at(&run->args->x, run->rows[i]),
               hidden * sizeof(float));
    linear_input_prepare(run->cpu->linears, g->expert->gate_up, &g->x, all_tiles(&g->x),
                         all_units(&g->x));
}

static void prepare_act_task(void *context, int task, int worker)
{
    (void)worker;
    const struct moe_run *run = context;
    const struct group *g = &run->groups[task];
    linear_input_prepare(run->cpu->linears, g->expert->down, &g->act, all_tiles(&g->act),
                         all_units(&g->act));
}

static void for_groups(struct moe_run *run, thread_task task, int32_t cols)
{
    if ((int64_t)run->n_pairs * cols > SMALL_INPUT) {
        thread_pool_run(run->cpu->pool, task, run, run->n_groups);
        return;
    }
    for (int32_t i = 0; i < run->n_groups; i++)
        task(run, i, 0);
}

/* The results of one multiplication: [rows][chunk_cols], from the ranges' first places. */
static void multiply_chunk(const struct moe_run *run, const struct linear_part *part,
                           const struct linear_input *in, struct linear_range blocks,
                           struct linear_range rows, float *out, uint8_t *scratch)
{
    struct linear_output output = {.out = out,
                                   .stride = (size_t)run->chunk_cols,
                                   .row = rows.first,
                                   .col = blocks.first * BLOCK_ROWS};
    run->cpu->linears->multiply(part, in, blocks, rows, &output, scratch);
}

/* The columns of a range of blocks that are there. */
static int chunk_cols(struct linear_range blocks, int32_t n_cols)
{
    int64_t end = blocks.end * BLOCK_ROWS < n_cols ? blocks.end * BLOCK_ROWS : n_cols;
    return (int)(end - blocks.first * BLOCK_ROWS);
}

static struct linear_range chunk_of(int64_t first, int64_t end, int64_t most)
{
    return (struct linear_range){first, first + most < end ? first + most : end};
}

/* Rows of a chunk: whole tiles. */
static int64_t chunk_rows(const struct linear_input *in)
{
    return CHUNK_ROWS / in->tile_rows * in->tile_rows;
}

static void activate(const struct moe_run *run, const struct group *g, struct linear_range blocks,
                     struct linear_range rows, const float *gate, const float *up)
{
    const struct moe_ffn_args *args = run->args;
    const struct row_kernels *kernels = run->cpu->rows;
    int n = chunk_cols(blocks, run->stack->inner);
    size_t stride = (size_t)run->chunk_cols;
    for (int64_t row = rows.first; row < rows.end; row++, gate += stride, up += stride) {
        float *act = run->act + (size_t)(g->first + row) * (size_t)run->stack->inner +
                     blocks.first * BLOCK_ROWS;
        if (args->activation == ACTIVATION_SILU)
            kernels->silu_mul(gate, up, act, n);
        else
            kernels->clamped_swiglu(gate, up, act, n, args->alpha, args->limit);
    }
}

static void inner_task(void *context, int task, int worker)
{
    const struct moe_run *run = context;
    const struct group *g = &run->groups[task / run->n_ranges];
    const struct linear_part *parts = g->expert->gate_up->parts;
    int64_t range = task % run->n_ranges, n_blocks = parts[0].n_blocks;
    int64_t end = n_blocks * (range + 1) / run->n_ranges;
    uint8_t *mine = run->scratch + (size_t)worker * run->stack->scratch_bytes;
    float *gate = (float *)(void *)mine, *up = gate + CHUNK_ROWS * CHUNK_COLS;
    uint8_t *scratch = (uint8_t *)(up + CHUNK_ROWS * CHUNK_COLS);
    for (int64_t b = n_blocks * range / run->n_ranges; b < end; b += run->chunk_blocks)
        for (int64_t row = 0; row < g->n; row += chunk_rows(&g->x)) {
            struct linear_range blocks = chunk_of(b, end, run->chunk_blocks);
            struct linear_range rows = chunk_of(row, g->n, chunk_rows(&g->x));
            multiply_chunk(run, &parts[0], &g->x, blocks, rows, gate, scratch);
            multiply_chunk(run, &parts[1], &g->x, blocks, rows, up, scratch);
            activate(run, g, blocks, rows, gate, up);
        }
}

/* What the experts' results are added to: zeros, or the shared expert's. */
static void begin_sums(const struct moe_run *run, struct linear_range blocks)
{
    const struct moe_ffn_args *args = run->args;
    int64_t col = blocks.first * BLOCK_ROWS;
    int n = chunk_cols(blocks, run->stack->hidden);
    for (int32_t row = run->first_row; row < run->first_row + run->n_rows; row++) {
        float *out = (float *)tensor_at(&args->out, row) + col;
        if (!args->shared.buffer) {
            memset(out, 0, (size_t)n * sizeof *out);
            continue;
        }
        const float *shared = (const float *)tensor_at(&args->shared, row) + col;
        float scale = 1;
        if (args->shared_gate.buffer)
            scale = 1 / (1 + expf(-*(const float *)tensor_at(&args->shared_gate, row)));
        for (int i = 0; i < n; i++)
            out[i] = shared[i] * scale;
    }
}

static void add_group(const struct moe_run *run, const struct group *g, struct linear_range blocks,
                      float *y, uint8_t *scratch)
{
    int n = chunk_cols(blocks, run->stack->hidden);
    for (int64_t row = 0; row < g->n; row += chunk_rows(&g->act)) {
        struct linear_range rows = chunk_of(row, g->n, chunk_rows(&g->act));
        multiply_chunk(run, &g->expert->down->parts[0], &g->act, blocks, rows, y, scratch);
        for (int64_t i = rows.first; i < rows.end; i++) {
            int32_t pair = g->first + (int32_t)i;
            float *out = tensor_at(&run->args->out, run->rows[pair]);
            run->cpu->rows->add_scaled(y + (i - rows.first) * run->chunk_cols, run->weights[pair],
                                       out + blocks.first * BLOCK_ROWS, n);
        }
    }
}

static void outer_task(void *context, int task, int worker)
{
    const struct moe_run *run = context;
    int64_t n_blocks = run->stack->items->down->n_blocks;
    int64_t end = n_blocks * (task + 1) / run->n_ranges;
    uint8_t *mine = run->scratch + (size_t)worker * run->stack->scratch_bytes;
    float *y = (float *)(void *)mine;
    uint8_t *scratch = (uint8_t *)(y + 2 * CHUNK_ROWS * CHUNK_COLS);
    for (int64_t b = n_blocks * task / run->n_ranges; b < end; b += run->chunk_blocks) {
        struct linear_range blocks = chunk_of(b, end, run->chunk_blocks);
        begin_sums(run, blocks);
        for (int32_t i = 0; i < run->n_groups; i++)
            add_group(run, &run->groups[i], blocks, y, scratch);
    }
}

/* Enough ranges that no thread waits long for the last, for `n` things that are cut alike. */
static int n_ranges(const struct moe_run *run, int32_t n, int64_t n_blocks)
{
    int n_threads = thread_pool_size(run->cpu->pool);
    int64_t wanted = n_threads == 1 ? 1 : ((int64_t)n_threads * TASKS_PER_THREAD + n - 1) / n;
    return (int)(wanted < n_blocks ? wanted : n_blocks);
}

static void run_pass(struct moe_run *run)
{
    const struct experts *stack = run->stack;
    struct thread_pool *pool = run->cpu->pool;
    struct moe_layout at = lay_out(stack, run->n_rows, thread_pool_size(pool));
    uint8_t *workspace = run->cpu->workspace.host;
    run->n_pairs = run->n_rows * run->args->experts.cols;
    run->n_groups = 0;
    run->chunk_blocks = run->n_rows <= FEW_ROWS ? CHUNK_BLOCKS * FEW_TIMES : CHUNK_BLOCKS;
    run->chunk_cols = run->chunk_blocks * BLOCK_ROWS;
    run->groups = (struct group *)(void *)(workspace + at.groups);
    run->rows = (int32_t *)(void *)(workspace + at.rows);
    run->weights = (float *)(void *)(workspace + at.weights);
    run->x = (float *)(void *)(workspace + at.x);
    run->act = (float *)(void *)(workspace + at.act);
    run->scratch = workspace + at.scratch;
    sort_pairs(run, (int32_t *)(void *)(workspace + at.counts));
    make_inputs(run, workspace + at.forms);

    for_groups(run, gather_task, stack->hidden);
    run->n_ranges = n_ranges(run, run->n_groups, stack->items->gate_up->parts[0].n_blocks);
    thread_pool_run(pool, inner_task, run, run->n_groups * run->n_ranges);
    for_groups(run, prepare_act_task, stack->inner);
    run->n_ranges = n_ranges(run, 1, stack->items->down->n_blocks);
    thread_pool_run(pool, outer_task, run, run->n_ranges);
}

void cpu_moe_ffn(struct device *device, const struct moe_ffn_args *args)
{
    struct moe_run run = {.cpu = cpu_device_of(device), .stack = args->stack, .args = args};
    assert(args->x.cols == run.stack->hidden && args->out.cols == run.stack->hidden);
    assert(args->experts.dtype == DTYPE_I32 && args->experts.cols <= run.stack->top_k);
    assert(args->experts.rows == args->x.rows && args->out.rows == args->x.rows);
    for (int32_t row = 0; row < args->x.rows; row += PASS_TOKENS) {
        run.first_row = row;
        run.n_rows = min_i32(PASS_TOKENS, args->x.rows - row);
        run_pass(&run);
    }
}
