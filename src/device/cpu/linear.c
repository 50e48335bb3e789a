/* Linear layers: loading (checks, memory, packing in parallel) and the op, cut into tasks of weight
 * blocks and token rows. Knows no instruction set; the layouts are linear_pack.c's. */
#include "device/cpu/linear.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,
    MAX_COLS =
        1 << 22, /* so that sums of products of codes stay far inside i32 and sizes in size_t */
    MAX_ROWS = 1 << 22, /* token rows of a step */
    TASKS_PER_THREAD = 4,
    /* A few rows are prepared by each thread for itself when there are so few threads: writing
     * lines that another core has read costs four times the quantizing (docs/performance.md). */
    OWN_INPUTS = 4,
    OWN_INPUT_ROWS = TILE_ROWS_MAX,
    /* Results of a call that no second-level cache holds until they are read. */
    STREAMED_BYTES = 1 << 20,
    MIN_RANGES = 16, /* of a pass's blocks, so that a late thread is helped */
    OWN_ROWS = 8,    /* a thread, for each thread, that are worth passes of its own */
    /* Values of an input that are worth a barrier to prepare, and of a task. */
    PREPARE_VALUES = 1 << 13
};

const struct linear_kernels *cpu_linear_kernels(enum cpu_isa isa)
{
#if defined(__x86_64__)
    switch (isa) {
    case CPU_ISA_AMX:
        return &linear_kernels_amx;
    case CPU_ISA_AVX512:
        return &linear_kernels_avx512;
    case CPU_ISA_AVX2:
        return &linear_kernels_avx2;
    default:
        break;
    }
#elif defined(__aarch64__)
    switch (isa) {
    case CPU_ISA_I8MM:
        return &linear_kernels_i8mm;
    case CPU_ISA_DOTPROD:
        return &linear_kernels_dotprod;
    case CPU_ISA_NEON:
        return &linear_kernels_neon;
    default:
        break;
    }
#endif
    (void)isa;
    return &linear_kernels_scalar;
}

static int32_t padded_cols(int64_t cols)
{
    return (int32_t)((cols + SPAN - 1) / SPAN * SPAN);
}

/* Levels that lie apart are packed for groups of 16 (E2M1 with E4M3), 32 and whole spans. */
static enum status check_levels(const struct weight *w, struct error *error)
{
    const struct weight_levels *levels = &w->levels;
    bool is_nv4 = w->encoding == WEIGHT_E2M1 && levels->type == LEVEL_E4M3 && levels->group == 16;
    bool is_mx4 = w->encoding == WEIGHT_E2M1 && levels->type == LEVEL_E8M0 && levels->group == 32;
    bool is_grouped =
        w->encoding != WEIGHT_E2M1 && levels->type != LEVEL_E4M3 &&
        (levels->group == UNIT || levels->group % SPAN == 0 || levels->group >= w->cols);
    if (is_nv4 || is_mx4 || is_grouped)
        return OK;
    return error_set(error, ERROR_UNSUPPORTED,
                     "%s weights in groups of %d columns are not known to the CPU",
                     weight_info(w->encoding)->name, (int)levels->group);
}

static enum status check_slice(const struct weight_slice *slice, int64_t cols, struct error *error)
{
    const struct weight *w = &slice->weight;
    if (!weight_info(w->encoding))
        return error_set(error, ERROR_UNSUPPORTED, "weight encoding %d is not known to the CPU",
                         (int)w->encoding);
    const struct weight_encoding_info info = weight_shape(w);
    if (slice->cols != cols)
        return error_set(error, ERROR_INVALID,
                         "parts of one linear have %lld and %lld columns; they must agree",
                         (long long)cols, (long long)slice->cols);
    if (slice->row < 0 || slice->rows < 1 || slice->rows > w->rows || slice->pattern.first < 0 ||
        slice->pattern.run < 0 || slice->pattern.stride < 0 ||
        linear_slice_place(slice, slice->rows - 1) >= w->rows)
        return error_set(error, ERROR_INVALID, "rows %lld + %lld of a weight of %lld rows",
                         (long long)slice->row, (long long)slice->rows, (long long)w->rows);
    if (slice->col < 0 || slice->cols < 1 || slice->col > w->cols ||
        slice->cols > w->cols - slice->col)
        return error_set(error, ERROR_INVALID, "columns %lld + %lld of a weight of %lld columns",
                         (long long)slice->col, (long long)slice->cols, (long long)w->cols);
    if (slice->col % info.block ||
        (slice->cols % info.block && slice->col + slice->cols != w->cols))
        return error_set(error, ERROR_INVALID,
                         "columns %lld + %lld of a %s weight do not lie on its blocks of %d",
                         (long long)slice->col, (long long)slice->cols, info.name, info.block);
    if (slice->cols > MAX_COLS || slice->rows > INT32_MAX - BLOCK_ROWS)
        return error_set(error, ERROR_LIMIT, "a weight of %lld x %lld; at most %d x %d can be run",
                         (long long)slice->rows, (long long)slice->cols, INT32_MAX - BLOCK_ROWS,
                         MAX_COLS);
    return weight_has_levels_apart(w) ? check_levels(w, error) : OK;
}

static enum linear_mode mode_of(const struct cpu_device *cpu, const struct weight_slice *slice)
{
    const struct weight *w = &slice->weight;
    if (!cpu->is_int8 || slice->keeps_f32)
        return MODE_FLOAT;
    if (w->encoding == WEIGHT_BF16 || w->encoding == WEIGHT_E4M3)
        return MODE_BF16;
    return weight_is_float(w) ? MODE_FLOAT : MODE_INT8;
}

/* What the part takes from its weight, and the bytes of a block of 16 rows in this device's layout.
 */
static void describe_layout(const struct cpu_device *cpu, const struct weight_slice *slice,
                            struct linear_part *part)
{
    const struct weight *w = &slice->weight;
    if (cpu->linears->is_raw) {
        part->packing = PACKING_RAW;
        part->raw = linear_slice_row(slice, 0);
        part->block_bytes = weight_copy_bytes(&part->raw) * BLOCK_ROWS;
        return;
    }
    part->packing = linear_packing_of(w);
    if (weight_has_levels_apart(w)) {
        bool is_exact = w->levels.factor == 1.0f || part->packing == PACKING_NV4;
        part->level_type = is_exact ? w->levels.type : LEVEL_F32;
        part->group_spans = w->levels.group == UNIT ? 0 : (int32_t)ceil_div(w->levels.group, SPAN);
        part->factor = w->levels.factor;
    }
    part->block_bytes = linear_block_bytes(part);
}

void linear_describe(const struct cpu_device *cpu, const struct weight_slice *slices, int n_slices,
                     struct linear *linear)
{
    linear->n_parts = n_slices;
    linear->has_order = slices[0].weight.has_order || slices[0].weight.order;
    linear->cols = (int32_t)slices[0].cols;
    linear->padded_cols = padded_cols(slices[0].cols);
    for (int i = 0; i < n_slices; i++) {
        struct linear_part *part = &linear->parts[i];
        *part = (struct linear_part){
            .mode = mode_of(cpu, &slices[i]),
            .rows = slices[i].rows,
            .cols = linear->cols,
            .padded_cols = linear->padded_cols,
            .n_blocks = ceil_div(slices[i].rows, BLOCK_ROWS),
            .first_out = linear->rows,
        };
        describe_layout(cpu, &slices[i], part);
        size_t scratch = cpu->linears->scratch_bytes(part);
        if (scratch > linear->scratch_bytes)
            linear->scratch_bytes = size_round_up(scratch, ALIGN);
        linear->needs[part->mode] = true;
        linear->rows += part->rows;
        linear->n_blocks += part->n_blocks;
    }
}

/* Bytes of the packed weights and biases of a described linear; false if they overflow. */
static bool memory_bytes(const struct linear *linear, const struct weight_slice *slices,
                         size_t *out)
{
    size_t total = 0;
    for (int i = 0; i < linear->n_parts; i++) {
        size_t bytes, n_blocks = (size_t)linear->parts[i].n_blocks;
        if (!size_mul(linear->parts[i].block_bytes, n_blocks, &bytes) ||
            !size_add(total, size_round_up(bytes, ALIGN), &total) || total > SIZE_MAX / 2)
            return false;
        if (slices[i].bias)
            total += n_blocks * BLOCK_ROWS * sizeof(float);
    }
    *out = total;
    return true;
}

size_t cpu_linear_size(const struct linear *linear)
{
    size_t bytes = 0;
    for (int i = 0; i < linear->n_parts; i++) {
        const struct linear_part *part = &linear->parts[i];
        bytes += (size_t)part->n_blocks * part->block_bytes;
        if (part->bias)
            bytes += (size_t)part->rows * sizeof *part->bias;
    }
    return bytes;
}

struct packing_run {
    const struct linear *linear;
    const struct weight_slice *slices;
    bool is_raw;
    int64_t blocks_per_task;
};

static void copy_raw_block(const struct weight_slice *slice, const struct linear_part *part,
                           int64_t block)
{
    size_t row_bytes = part->block_bytes / BLOCK_ROWS;
    for (int64_t row = block * BLOCK_ROWS; row < (block + 1) * BLOCK_ROWS; row++) {
        uint8_t *to = part->data + (size_t)row * row_bytes;
        if (row < slice->rows) {
            struct weight one = linear_slice_row(slice, row);
            weight_copy_make(&one, to);
        } else {
            memset(to, 0, row_bytes);
        }
    }
}

static void pack_task(void *context, int task, int worker)
{
    (void)worker;
    const struct packing_run *run = context;
    int64_t first = task * run->blocks_per_task, end = first + run->blocks_per_task;
    for (int i = 0; i < run->linear->n_parts; i++) {
        const struct linear_part *part = &run->linear->parts[i];
        int64_t last = end < part->n_blocks ? end : part->n_blocks;
        for (int64_t block = first > 0 ? first : 0; block < last; block++) {
            if (run->is_raw)
                copy_raw_block(&run->slices[i], part, block);
            else
                linear_pack_block(part, &run->slices[i], block,
                                  part->data + (size_t)block * part->block_bytes);
        }
        first -= part->n_blocks;
        end -= part->n_blocks;
    }
}

static void copy_bias(const struct weight_slice *slice, struct linear_part *part)
{
    memset(part->bias, 0, (size_t)part->n_blocks * BLOCK_ROWS * sizeof(float));
    memcpy(part->bias, slice->bias, (size_t)slice->rows * sizeof(float));
}

/* Bytes of the activations in all forms that the linear needs, each part aligned. */
struct input_sizes {
    size_t ordered, codes, levels, sums, rounded, total;
};

static struct input_sizes input_sizes(const struct linear *linear, int32_t n_rows)
{
    size_t rows = size_round_up((size_t)n_rows, TILE_ROWS_MAX), cols = (size_t)linear->padded_cols;
    struct input_sizes sizes = {0};
    if (linear->has_order)
        sizes.ordered = rows * cols * sizeof(float);
    if (linear->needs[MODE_INT8]) {
        sizes.codes = rows * cols;
        sizes.levels = rows * (cols / UNIT) * 2 * sizeof(float);
        sizes.sums = rows * (cols / UNIT) * 3 * sizeof(int32_t);
    }
    if (linear->needs[MODE_BF16])
        sizes.rounded = rows * cols * sizeof(float);
    sizes.total = sizes.ordered + sizes.codes + sizes.levels + sizes.sums + sizes.rounded;
    return sizes;
}

size_t linear_input_bytes(const struct linear *linear, int32_t n_rows)
{
    return input_sizes(linear, n_rows).total;
}

/* SIZE_MAX if it overflows. */
static size_t workspace_bytes(const struct cpu_device *cpu, const struct linear *linear,
                              int32_t max_rows)
{
    size_t n_threads = (size_t)thread_pool_size(cpu->pool), total;
    size_t input = linear_input_bytes(linear, max_rows);
    size_t own = n_threads * linear_input_bytes(linear, OWN_INPUT_ROWS);
    if (n_threads <= OWN_INPUTS && own > input)
        input = own;
    if (!size_add(input, linear->scratch_bytes * n_threads, &total))
        return SIZE_MAX;
    return total > ALIGN ? total : ALIGN;
}

struct device_bytes cpu_linear_bytes(struct device *device, const struct weight_slice *slices,
                                     int n_slices, int32_t max_rows)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct linear linear = {0};
    struct device_bytes bytes;
    linear_describe(cpu, slices, n_slices, &linear);
    if (!memory_bytes(&linear, slices, &bytes.own))
        bytes.own = SIZE_MAX;
    bytes.own = linear_memory_bytes(bytes.own);
    bytes.workspace = workspace_bytes(cpu, &linear, max_rows);
    return bytes;
}

static enum status reserve_workspace(struct cpu_device *cpu, const struct linear *linear,
                                     struct error *error)
{
    size_t bytes = workspace_bytes(cpu, linear, linear->max_rows);
    return bytes == SIZE_MAX ? error_memory(error, bytes)
                             : cpu_workspace_reserve(cpu, bytes, error);
}

/* The order in which the parts take their inputs, which must be one. */
static enum status copy_order(struct linear *linear, const struct weight_slice *slices,
                              int n_slices, struct error *error)
{
    const struct weight *first = &slices[0].weight;
    size_t bytes = (size_t)first->cols * sizeof *first->order;
    for (int i = 0; i < n_slices; i++) {
        const struct weight *w = &slices[i].weight;
        bool is_same = !first->order == !w->order &&
                       (!w->order || (w->cols == first->cols && slices[i].cols == w->cols &&
                                      memcmp(w->order, first->order, bytes) == 0));
        if (!is_same)
            return error_set(error, ERROR_INVALID,
                             "parts of one linear take their inputs in different orders");
    }
    if (!first->order)
        return OK;
    linear->order = malloc(bytes);
    if (!linear->order)
        return error_memory(error, bytes);
    memcpy(linear->order, first->order, bytes);
    return OK;
}

enum status cpu_linear_load(struct device *device, const struct weight_slice *slices, int n_slices,
                            int32_t max_rows, struct linear **out, struct error *error)
{
    struct cpu_device *cpu = cpu_device_of(device);
    *out = NULL;
    if (n_slices < 1 || n_slices > LINEAR_MAX_PARTS)
        return error_set(error, ERROR_LIMIT, "a linear of %d parts; 1 to %d are possible", n_slices,
                         LINEAR_MAX_PARTS);
    if (max_rows < 1 || max_rows > MAX_ROWS)
        return error_set(error, ERROR_LIMIT, "a linear for steps of %d rows; 1 to %d are possible",
                         (int)max_rows, MAX_ROWS);
    for (int i = 0; i < n_slices; i++) {
        enum status status = check_slice(&slices[i], slices[0].cols, error);
        if (status != OK)
            return status;
    }
    struct linear *linear = calloc(1, sizeof *linear);
    if (!linear)
        return error_memory(error, sizeof *linear);
    linear_describe(cpu, slices, n_slices, linear);
    linear->max_rows = max_rows;
    enum status status = copy_order(linear, slices, n_slices, error);
    if (status != OK) {
        cpu_linear_free(device, linear);
        return status;
    }
    size_t bytes = 0;
    bool fits = memory_bytes(linear, slices, &bytes);
    linear->memory = fits ? linear_memory_alloc(cpu, bytes, &linear->slab) : NULL;
    status = linear->memory ? reserve_workspace(cpu, linear, error)
                            : error_memory(error, fits ? bytes : SIZE_MAX);
    if (status != OK) {
        cpu_linear_free(device, linear);
        return status;
    }
    uint8_t *at = linear->memory;
    for (int i = 0; i < n_slices; i++) {
        struct linear_part *part = &linear->parts[i];
        part->data = at;
        at += size_round_up((size_t)part->n_blocks * part->block_bytes, ALIGN);
        if (slices[i].bias) {
            part->bias = (float *)(void *)at;
            at += (size_t)part->n_blocks * BLOCK_ROWS * sizeof(float);
            copy_bias(&slices[i], part);
        }
    }
    struct packing_run run = {linear, slices, cpu->linears->is_raw, 8};
    thread_pool_run(cpu->pool, pack_task, &run,
                    (int)ceil_div(linear->n_blocks, run.blocks_per_task));
    *out = linear;
    return OK;
}

void cpu_linear_free(struct device *device, struct linear *linear)
{
    if (!linear)
        return;
    linear_memory_free(cpu_device_of(device), linear->slab);
    free(linear->order);
    free(linear);
}

/* --- the op ----------------------------------------------------------------------------------- */

/* One worker's input. */
struct own_input {
    _Alignas(64) struct linear_input in;
    bool is_prepared;
};

struct linear_run {
    const struct linear_kernels *kernels;
    const struct linear *linear;
    struct linear_input in;
    struct own_input *own; /* [workers], or NULL: all read `in` */
    float *out;
    size_t stride;
    uint8_t *scratch; /* [workers][scratch_bytes] */
    /* Tasks: n_block_ranges a pass, passes of rows_per_pass rows (whole tiles). */
    int n_block_ranges;
    int32_t rows_per_pass;
    /* Tasks of prepare_task: n_unit_ranges a tile. */
    int n_unit_ranges;
    bool is_streamed;
};

struct linear_input linear_input_make(const struct linear_kernels *kernels,
                                      const struct linear *linear, const float *x, size_t x_stride,
                                      int32_t n_rows, uint8_t *at)
{
    struct input_sizes sizes = input_sizes(linear, n_rows);
    struct linear_input in = {.x = x,
                              .x_stride = x_stride,
                              .n_rows = n_rows,
                              .cols = linear->cols,
                              .padded_cols = linear->padded_cols,
                              .tile_rows = kernels->tile_rows(n_rows)};
    if (linear->order) {
        in.unordered = x;
        in.unordered_stride = x_stride;
        in.x = (const float *)(const void *)at;
        in.x_stride = (size_t)linear->cols;
        at += sizes.ordered;
    }
    in.rounded = at;
    at += sizes.rounded;
    in.codes = (int8_t *)at;
    at += sizes.codes;
    in.levels = (float *)(void *)at;
    at += sizes.levels;
    in.sums = (int32_t *)(void *)at;
    return in;
}

/* Brings some units of whole tiles into the columns' order. */
static void order_inputs(const struct linear *linear, const struct linear_input *in,
                         struct linear_range tiles, struct linear_range units)
{
    int64_t end = tiles.end * in->tile_rows;
    for (int64_t row = tiles.first * in->tile_rows; row < end && row < in->n_rows; row++) {
        const float *from = in->unordered + (size_t)row * in->unordered_stride;
        float *to = (float *)(uintptr_t)in->x + (size_t)row * in->x_stride;
        for (int64_t c = units.first * UNIT; c < units.end * UNIT && c < linear->cols; c++)
            to[c] = from[linear->order[c]];
    }
}

void linear_input_prepare(const struct linear_kernels *kernels, const struct linear *linear,
                          const struct linear_input *in, struct linear_range tiles,
                          struct linear_range units)
{
    if (linear->order)
        order_inputs(linear, in, tiles, units);
    for (int mode = MODE_BF16; mode <= MODE_INT8; mode++)
        if (linear->needs[mode])
            kernels->prepare(in, (enum linear_mode)mode, tiles, units);
}

static void prepare_task(void *context, int task, int worker)
{
    (void)worker;
    const struct linear_run *run = context;
    int64_t tile = task / run->n_unit_ranges, range = task % run->n_unit_ranges;
    int64_t n_units = linear_n_units(&run->in);
    struct linear_range units = {n_units * range / run->n_unit_ranges,
                                 n_units * (range + 1) / run->n_unit_ranges};
    linear_input_prepare(run->kernels, run->linear, &run->in, (struct linear_range){tile, tile + 1},
                         units);
}

static void prepare_all(const struct linear_run *run, const struct linear_input *in)
{
    int64_t n_tiles = ceil_div(in->n_rows, in->tile_rows);
    linear_input_prepare(run->kernels, run->linear, in, (struct linear_range){0, n_tiles},
                         (struct linear_range){0, linear_n_units(in)});
}

static const struct linear_input *input_of(const struct linear_run *run, int worker)
{
    if (!run->own)
        return &run->in;
    struct own_input *own = &run->own[worker];
    if (!own->is_prepared)
        prepare_all(run, &own->in);
    own->is_prepared = true;
    return &own->in;
}

static void multiply_task(void *context, int task, int worker)
{
    const struct linear_run *run = context;
    const struct linear *linear = run->linear;
    const struct linear_input *in = input_of(run, worker);
    int64_t pass = task / run->n_block_ranges, range = task % run->n_block_ranges;
    int64_t first = linear->n_blocks * range / run->n_block_ranges;
    int64_t end = linear->n_blocks * (range + 1) / run->n_block_ranges;
    struct linear_range rows = {pass * run->rows_per_pass, (pass + 1) * run->rows_per_pass};
    if (rows.end > run->in.n_rows)
        rows.end = run->in.n_rows;
    for (int i = 0; i < linear->n_parts; i++) {
        const struct linear_part *part = &linear->parts[i];
        struct linear_range blocks = {first > 0 ? first : 0,
                                      end < part->n_blocks ? end : part->n_blocks};
        struct linear_output output = {.out = run->out + part->first_out,
                                       .stride = run->stride,
                                       .is_streamed = run->is_streamed};
        if (blocks.first < blocks.end)
            run->kernels->multiply(part, in, blocks, rows, &output,
                                   run->scratch + (size_t)worker * linear->scratch_bytes);
        first -= part->n_blocks;
        end -= part->n_blocks;
    }
}

/* Passes whose activations stay in the second-level cache. Threads that read the same activations
 * take them from each other's caches, which may be far: with enough rows each thread has passes of
 * its own, as long as the weights that all of them read then do not become the limit. */
static void plan_tasks(struct linear_run *run, int n_threads)
{
    int32_t n_rows = run->in.n_rows, tile = run->in.tile_rows;
    int64_t most = (int64_t)run->kernels->pass_bytes / run->in.padded_cols / tile;
    int64_t n_tiles = ceil_div(n_rows, tile), blocks = run->linear->n_blocks;
    int64_t n_passes = ceil_div(n_tiles, most < 1 ? 1 : most);
    if (n_rows >= (int64_t)OWN_ROWS * n_threads * n_threads && n_tiles >= n_threads)
        n_passes = ceil_div(n_passes, n_threads) * n_threads;
    run->rows_per_pass = (int32_t)ceil_div(n_tiles, n_passes) * tile;
    n_passes = ceil_div(n_rows, run->rows_per_pass);
    int64_t ranges = ceil_div((int64_t)n_threads * TASKS_PER_THREAD, n_passes);
    ranges = ranges < MIN_RANGES ? MIN_RANGES : ranges;
    run->n_block_ranges = (int)(n_threads == 1 ? 1 : ranges < blocks ? ranges : blocks);
}

static bool has_forms(const struct linear *linear)
{
    return linear->needs[MODE_INT8] || linear->needs[MODE_BF16] || linear->order;
}

/* Fills the input's forms; a few rows are shared out by their columns. */
static void prepare_input(struct linear_run *run, struct thread_pool *pool)
{
    int64_t n_tiles = ceil_div(run->in.n_rows, run->in.tile_rows);
    int64_t values = (int64_t)run->in.n_rows * run->in.cols;
    if (values < PREPARE_VALUES) {
        prepare_all(run, &run->in);
        return;
    }
    int64_t ranges = ceil_div(thread_pool_size(pool), n_tiles), n_units = linear_n_units(&run->in);
    run->n_unit_ranges = (int)(ranges < n_units ? ranges : n_units);
    thread_pool_run(pool, prepare_task, run, (int)n_tiles * run->n_unit_ranges);
}

void cpu_linear(struct device *device, const struct linear_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct linear *linear = args->linear;
    int32_t n_rows = args->x.rows;
    if (n_rows == 0)
        return;
    assert(n_rows <= linear->max_rows && args->x.cols == linear->cols);
    assert(args->out.rows == n_rows && args->out.cols == linear->rows);
    int n_threads = thread_pool_size(cpu->pool);
    bool is_own = has_forms(linear) && n_threads <= OWN_INPUTS && n_rows <= OWN_INPUT_ROWS;
    size_t input_bytes = linear_input_bytes(linear, n_rows);
    uint8_t *workspace = cpu->workspace.host;
    struct own_input own[OWN_INPUTS];
    struct linear_run run = {
        .kernels = cpu->linears,
        .linear = linear,
        .out = tensor_at(&args->out, 0),
        .stride = (size_t)args->out.stride,
        .own = is_own ? own : NULL,
        .scratch = workspace + input_bytes * (size_t)(is_own ? n_threads : 1),
        .is_streamed = (int64_t)n_rows * linear->rows * (int64_t)sizeof(float) >= STREAMED_BYTES,
    };
    run.in = linear_input_make(cpu->linears, linear, tensor_at(&args->x, 0), (size_t)args->x.stride,
                               n_rows, workspace);
    for (int i = 0; is_own && i < n_threads; i++) {
        own[i].in =
            linear_input_make(cpu->linears, linear, tensor_at(&args->x, 0), (size_t)args->x.stride,
                              n_rows, workspace + (size_t)i * input_bytes);
        own[i].is_prepared = false;
    }
    plan_tasks(&run, n_threads);
    if (has_forms(linear) && !is_own)
        prepare_input(&run, cpu->pool);
    int64_t n_passes = ceil_div(n_rows, run.rows_per_pass);
    thread_pool_run(cpu->pool, multiply_task, &run, (int)n_passes * run.n_block_ranges);
}
