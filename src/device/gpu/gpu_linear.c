/* Linear layers. Where the driver has the native kernels, parts that lie alike are one matrix of
 * tiles (gpu_tiles.h); all else is one dispatch of the shared kernel a part. */
#include "device/gpu/gpu_linear.h"
#include "device/gpu/gpu_inputs.h"
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FLAT_COLUMNS = 16, INPUT_ALIGN = 256 };

/* Parts in one matrix: in tiles, or as the shared kernel has one part. */
struct unit {
    bool has_tiles;
    bool is_int8; /* its weights are codes, and its inputs become int8 */
    int32_t rows;
    struct gpu_tile_shape tiles;
    struct gpu_memory *memory;
    struct gpu_weight weight;
};

struct linear {
    int n_units;
    int32_t cols, rows, max_rows;
    struct unit units[LINEAR_MAX_PARTS];
};

/* --- loading ---------------------------------------------------------------------------------- */

/* How many of the slices make the next unit; shape: their tiles, where they have some. */
static int next_unit(const struct gpu_device *gpu, const struct weight_slice *slices, int n_slices,
                     bool *has_tiles, struct gpu_tile_shape *shape)
{
    *has_tiles = false;
    for (int n = gpu->has_native ? n_slices : 0; n > 0; n--)
        if (gpu_tiles_describe(slices, n, shape)) {
            /* Two terms are exact for f16 weights alone: two of bf16 hold 16 bits of an input, and
             * of subnormal codes the matrix unit's sums lose as many bits as are zero above them
             * (logits of MLX's 3 bits off by 3.9e-4, an H200). */
            *has_tiles = gpu->n_terms == 1 || shape->form == GPU_TILE_f16;
            return *has_tiles ? n : 1;
        }
    return 1;
}

static enum status load_tiles(struct gpu_device *gpu, struct unit *unit,
                              const struct weight_slice *slices, int n_slices, struct error *error)
{
    for (int i = 0; i < n_slices; i++) {
        struct kd_weight unused;
        enum status status = gpu_weight_describe(&slices[i], &unused, error);
        if (status != OK)
            return status;
    }
    enum status status = gpu->driver->alloc(gpu->gpu, unit->tiles.bytes, &unit->memory, error);
    return status == OK ? gpu_tiles_load(gpu, slices, n_slices, &unit->tiles,
                                         &(struct gpu_range){unit->memory, 0}, error)
                        : status;
}

/* The sizes that `max_rows` rows of n_tiles tiles need. */
static struct gpu_inputs input_sizes(const struct gpu_device *gpu, uint32_t n_tiles,
                                     int32_t max_rows)
{
    size_t rows = size_round_up((size_t)max_rows, KD_INPUT_STACK) * gpu->n_terms;
    return (struct gpu_inputs){.values_bytes = rows * n_tiles * KD_TILE_COLS * 2,
                               .sums_bytes = rows * n_tiles * 4 * sizeof(float),
                               .factors_bytes = size_round_up(rows * sizeof(float), INPUT_ALIGN)};
}

/* What the shared kernels need for int8 inputs of a slice; 0: it is multiplied with floats. */
static size_t int8_bytes(const struct gpu_device *gpu, const struct weight_slice *slice,
                         const struct kd_weight *shape, int32_t max_rows)
{
    bool is_int8 = gpu->is_int8 && !slice->keeps_f32 && gpu_product_takes_int8(shape);
    return is_int8 ? gpu_product_int8_bytes(shape->cols, max_rows) : 0;
}

enum status gpu_workspace_reserve(struct gpu_device *gpu, size_t bytes, struct error *error)
{
    struct gpu_inputs *in = &gpu->inputs;
    if (bytes <= in->bytes)
        return OK;
    gpu_settle(gpu);
    if (in->memory)
        gpu->driver->free(gpu->gpu, in->memory);
    in->memory = NULL;
    in->bytes = 0;
    enum status status = gpu->driver->alloc(gpu->gpu, bytes, &in->memory, error);
    if (status == OK)
        in->bytes = bytes;
    return status;
}

/* Makes room for the inputs of any linear loaded so far. */
static enum status reserve_inputs(struct gpu_device *gpu, uint32_t n_tiles, int32_t max_rows,
                                  struct error *error)
{
    struct gpu_inputs need = input_sizes(gpu, n_tiles, max_rows), *in = &gpu->inputs;
    in->values_bytes = size_max(need.values_bytes, in->values_bytes);
    in->sums_bytes = size_max(need.sums_bytes, in->sums_bytes);
    in->factors_bytes = size_max(need.factors_bytes, in->factors_bytes);
    return gpu_workspace_reserve(gpu, in->values_bytes + in->sums_bytes + in->factors_bytes, error);
}

/* As the shared kernels read it. */
static enum status load_plain(struct gpu_device *gpu, struct unit *unit,
                              const struct weight_slice *slice, int32_t max_rows,
                              struct error *error)
{
    enum status status = gpu_weight_load(gpu, &unit->weight, slice, 0, 1, error);
    if (status != OK)
        return status;
    size_t bytes = int8_bytes(gpu, slice, &unit->weight.shape, max_rows);
    unit->is_int8 = bytes > 0;
    return gpu_workspace_reserve(gpu, bytes, error);
}

static enum status load_unit(struct gpu_device *gpu, struct linear *linear, struct unit *unit,
                             const struct weight_slice *slices, int n_slices, struct error *error)
{
    for (int i = 0; i < n_slices; i++)
        unit->rows += (int32_t)slices[i].rows;
    if (!unit->has_tiles)
        return load_plain(gpu, unit, slices, linear->max_rows, error);
    unit->is_int8 = gpu->is_int8 && unit->tiles.form < N_GPU_CODE_FORMS;
    enum status status = load_tiles(gpu, unit, slices, n_slices, error);
    return status == OK ? reserve_inputs(gpu, unit->tiles.n_tiles, linear->max_rows, error)
                        : status;
}

enum status gpu_linear_load(struct device *device, const struct weight_slice *slices, int n_slices,
                            int32_t max_rows, struct linear **out, struct error *error)
{
    *out = NULL;
    assert(n_slices >= 1 && n_slices <= LINEAR_MAX_PARTS);
    for (int i = 1; i < n_slices; i++)
        if (slices[i].cols != slices[0].cols)
            return error_set(error, ERROR_INVALID,
                             "parts of one linear have %lld and %lld columns; they must agree",
                             (long long)slices[0].cols, (long long)slices[i].cols);
    struct gpu_device *gpu = gpu_device_of(device);
    struct linear *linear = calloc(1, sizeof *linear);
    if (!linear)
        return error_memory(error, sizeof *linear);
    linear->cols = (int32_t)slices[0].cols;
    linear->max_rows = max_rows;
    enum status status = OK;
    for (int i = 0; i < n_slices && status == OK;) {
        struct unit *unit = &linear->units[linear->n_units++];
        int n = next_unit(gpu, slices + i, n_slices - i, &unit->has_tiles, &unit->tiles);
        status = load_unit(gpu, linear, unit, slices + i, n, error);
        linear->rows += unit->rows;
        i += n;
    }
    if (status != OK) {
        gpu_linear_free(device, linear);
        return status;
    }
    *out = linear;
    return OK;
}

void gpu_linear_free(struct device *device, struct linear *linear)
{
    struct gpu_device *gpu = gpu_device_of(device);
    if (!linear)
        return;
    for (int i = 0; i < linear->n_units; i++) {
        gpu_weight_done(gpu, &linear->units[i].weight);
        if (linear->units[i].memory)
            gpu->driver->free(gpu->gpu, linear->units[i].memory);
    }
    free(linear);
}

struct device_bytes gpu_linear_bytes(struct device *device, const struct weight_slice *slices,
                                     int n_slices, int32_t max_rows)
{
    const struct gpu_device *gpu = gpu_device_of(device);
    struct device_bytes bytes = {0};
    for (int i = 0; i < n_slices;) {
        struct gpu_tile_shape tiles;
        struct kd_weight shape;
        bool has_tiles;
        int n = next_unit(gpu, slices + i, n_slices - i, &has_tiles, &tiles);
        if (has_tiles) {
            struct gpu_inputs in = input_sizes(gpu, tiles.n_tiles, max_rows);
            bytes.own += tiles.bytes;
            bytes.workspace =
                size_max(bytes.workspace, in.values_bytes + in.sums_bytes + in.factors_bytes);
        } else if (gpu_weight_describe(&slices[i], &shape, NULL) == OK) {
            bytes.own += shape.matrix_bytes;
            bytes.workspace =
                size_max(bytes.workspace, int8_bytes(gpu, &slices[i], &shape, max_rows));
        }
        i += n;
    }
    return bytes;
}

bool gpu_reads_in_place(const struct device *device, const struct weight_slice *slice)
{
    const struct gpu_device *gpu = (const struct gpu_device *)(const void *)device;
    return gpu_weight_stays(gpu, slice);
}

size_t gpu_linear_size(const struct linear *linear)
{
    size_t bytes = 0;
    for (int i = 0; i < linear->n_units; i++)
        bytes += linear->units[i].has_tiles ? linear->units[i].tiles.bytes
                                            : linear->units[i].weight.shape.matrix_bytes;
    return bytes;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Terms of the rows lie this far apart. */
static uint32_t term_stride(int32_t n_rows)
{
    return (uint32_t)size_round_up((size_t)n_rows, KD_INPUT_STACK);
}

static struct gpu_range section(const struct unit *unit, size_t offset)
{
    return (struct gpu_range){offset ? unit->memory : NULL, offset};
}

/* Rows that linear_wide takes: more than linear_flat does, of one term. */
static bool is_wide(const struct gpu_device *gpu, int32_t n_rows)
{
    return gpu->has_wide && gpu->n_terms == 1 && n_rows > FLAT_COLUMNS;
}

static bool is_flat(const struct gpu_tile_choice *choice)
{
    return choice->shared_bytes == 0;
}

/* In int8 mode kernels for many rows multiply what the codes stand for, rounded to 16 bits, which
 * loses far less than the codes did: sums that are scaled for each 32 columns would take more time
 * than products of int8 save. */
static struct kd_inputs inputs_of(const struct gpu_device *gpu, const struct unit *unit,
                                  const struct tensor *x, const struct gpu_tile_choice *choice)
{
    uint32_t spans = gpu_tile_infos[unit->tiles.form].spans;
    enum kd_rounding rounding = !unit->is_int8    ? KD_ROUND_16
                                : is_flat(choice) ? KD_ROUND_INT8
                                                  : KD_ROUND_INT8_16;
    return (struct kd_inputs){.cols = (uint32_t)x->cols,
                              .positions = unit->tiles.n_tiles * KD_TILE_COLS,
                              .x_stride = (uint32_t)x->stride,
                              .n_terms = gpu->n_terms,
                              .is_bf16 = unit->tiles.form == GPU_TILE_bf16,
                              .has_order = unit->tiles.order != 0,
                              .span = spans ? KD_TILE_COLS / spans : 0,
                              .term_stride = term_stride(x->rows),
                              .is_paired = is_wide(gpu, x->rows),
                              .rounding = rounding};
}

uint32_t gpu_input_threads(const struct gpu_device *gpu, uint32_t positions, int64_t n_rows)
{
    uint32_t most = n_rows < gpu->info.n_processors ? KD_INPUT_THREADS : 256;
    uint32_t n_threads = (uint32_t)size_round_up(positions / 4, GPU_SIMD_WIDTH);
    return n_threads < most ? n_threads : most;
}

static void prepare_inputs(struct gpu_device *gpu, const struct unit *unit, const struct tensor *x,
                           const struct kd_inputs *p)
{
    struct gpu_range buffers[5] = {gpu_tensor(x), section(unit, unit->tiles.order)};
    gpu_input_ranges(gpu, p, buffers + 2);
    gpu_dispatch(gpu, GPU_KERNEL_linear_inputs, buffers, 5, p, sizeof *p,
                 (struct gpu_groups){x->rows, 1, 1}, gpu_input_threads(gpu, p->positions, x->rows),
                 0);
}

/* Bytes of a stage of linear_many: stage in linear_many.cu. */
static uint32_t stage_bytes(enum gpu_tile_form form, uint32_t outputs, uint32_t rows)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[form];
    uint32_t codes = outputs * KD_TILE_COLS * info->bits / 8;
    uint32_t levels = outputs * info->spans * info->level_bytes;
    return codes + levels + rows * (KD_TILE_COLS * 2 + info->spans * 4);
}

/* Few threadgroups: more simdgroups of each share the columns, so that a processor is full. Two
 * tiles a simdgroup save loads of inputs, at the price of registers: for codes with wide levels, of
 * which more cannot be on their way otherwise, and for many outputs of narrow ones. */
struct gpu_tile_choice gpu_choose_flat(const struct gpu_device *gpu, enum gpu_tile_form form,
                                       const enum gpu_kernel_name names[N_GPU_TILE_KERNELS],
                                       int64_t n_tiles, uint32_t columns)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[form];
    int64_t n = gpu->info.n_processors;
    if (columns > 8)
        return (struct gpu_tile_choice){names[GPU_FLAT_16], KD_TILE_ROWS,
                                        FLAT_COLUMNS / gpu->n_terms,
                                        n_tiles <= n       ? 512
                                        : n_tiles <= 2 * n ? 256
                                                           : 128,
                                        0};
    uint32_t rows = 8 / gpu->n_terms;
    bool is_one_wave = n_tiles > 4 * n && n_tiles <= 8 * n;
    uint32_t n_threads = n_tiles <= 2 * n ? 512 : is_one_wave ? 128 : 256;
    if (info->level_bytes == 8 || info->spans == 2)
        return (struct gpu_tile_choice){names[GPU_FLAT_8X2], 2 * KD_TILE_ROWS, rows, n_threads, 0};
    if (info->bits == 4 && n_tiles > 8 * n)
        return (struct gpu_tile_choice){names[GPU_FLAT_8X2], 2 * KD_TILE_ROWS, rows, 128, 0};
    return (struct gpu_tile_choice){names[GPU_FLAT_8], KD_TILE_ROWS, rows, n_threads, 0};
}

/* linear_wide for so many outputs and rows a threadgroup, of which a processor holds one, its
 * threads that multiply, and what it takes: cycles for a tile of columns, and besides. Measured on
 * an H200 with codes of 4 bits, 2026-11-30. */
struct wide {
    uint32_t outputs, rows, n_threads;
    int64_t tile_cycles, more_cycles;
};

static int64_t wide_cycles(const struct wide *w, const struct unit *unit, int64_t n_rows, int64_t n)
{
    int64_t groups = ceil_div(unit->tiles.rows, w->outputs) * ceil_div(n_rows, w->rows);
    return ceil_div(groups, n) * (unit->tiles.n_tiles * w->tile_cycles + w->more_cycles);
}

static struct gpu_tile_choice choose_wide(const struct gpu_device *gpu, const struct unit *unit,
                                          int32_t n_rows)
{
    static const struct wide shapes[] = {{64, 64, 512, 280, 10000},
                                         {256, 64, 512, 1050, 11000},
                                         {128, 128, 256, 800, 14000},
                                         {256, 128, 256, 1180, 17000}};
    enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
    static const enum gpu_kernel_name kernels[N_GPU_TILE_FORMS][N_SHAPES] = {
#define WIDE_KERNELS(name, bits, spans, level_bytes)                                               \
    {GPU_KERNEL_linear_wide_##name##_64, GPU_KERNEL_linear_wide_##name##_64x4,                     \
     GPU_KERNEL_linear_wide_##name##_128, GPU_KERNEL_linear_wide_##name##_128x2},
        GPU_TILE_FORMS(WIDE_KERNELS)
#undef WIDE_KERNELS
    };
    int best = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < N_SHAPES; i++) {
        int64_t cycles = wide_cycles(&shapes[i], unit, n_rows, gpu->info.n_processors);
        if (cycles < least) {
            least = cycles;
            best = i;
        }
    }
    const struct wide *w = &shapes[best];
    return (struct gpu_tile_choice){kernels[unit->tiles.form][best], w->outputs, w->rows,
                                    w->n_threads + KD_WIDE_COPIERS, KD_WIDE_BYTES};
}

struct gpu_tile_choice gpu_choose_many(enum gpu_tile_form form,
                                       const enum gpu_kernel_name names[N_GPU_TILE_KERNELS],
                                       uint32_t rows)
{
    uint32_t outputs = rows == 64 ? 64 : 256;
    return (struct gpu_tile_choice){names[rows == 64 ? GPU_MANY_64 : GPU_MANY_128], outputs, rows,
                                    KD_MANY_THREADS,
                                    KD_MANY_STAGES * stage_bytes(form, outputs, rows)};
}

/* A large tile takes 17 / 3 times as long as a small one among as many as a processor holds. */
bool gpu_large_is_faster(const struct gpu_device *gpu, int64_t n_small, int64_t n_large)
{
    int64_t n = gpu->info.n_processors;
    return 3 * n_small > 17 * n * ceil_div(n_large, n);
}

static struct gpu_tile_choice choose(const struct gpu_device *gpu, const struct unit *unit,
                                     int32_t n_rows)
{
    static const enum gpu_kernel_name kernels[N_GPU_TILE_FORMS][N_GPU_TILE_KERNELS] = {
#define TILE_KERNELS(name, bits, spans, level_bytes)                                               \
    {GPU_KERNEL_linear_flat_##name##_8, GPU_KERNEL_linear_flat_##name##_8x2,                       \
     GPU_KERNEL_linear_flat_##name##_16, GPU_KERNEL_linear_many_##name##_64,                       \
     GPU_KERNEL_linear_many_##name##_128},
        GPU_TILE_FORMS(TILE_KERNELS)
#undef TILE_KERNELS
    };
    static const enum gpu_kernel_name int8_kernels[N_GPU_CODE_FORMS][GPU_FLAT_16 + 1] = {
#define INT8_KERNELS(name, bits, spans, level_bytes)                                               \
    {GPU_KERNEL_linear_flat_int8_##name##_8, GPU_KERNEL_linear_flat_int8_##name##_8x2,             \
     GPU_KERNEL_linear_flat_int8_##name##_16},
        GPU_CODE_FORMS(INT8_KERNELS)
#undef INT8_KERNELS
    };
    enum gpu_tile_form form = unit->tiles.form;
    const enum gpu_kernel_name *names = kernels[form];
    uint32_t columns = (uint32_t)n_rows * gpu->n_terms, outputs = unit->tiles.rows;
    if (is_wide(gpu, n_rows))
        return choose_wide(gpu, unit, n_rows);
    struct gpu_tile_choice small = gpu_choose_many(form, names, 64);
    struct gpu_tile_choice large = gpu_choose_many(form, names, 128);
    /* The weights again for each 16 rows, while that takes less than the steps of one tile of many:
     * measured on an H200, 2026-11-30, like what follows. */
    bool is_few = columns <= FLAT_COLUMNS || ceil_div(columns, FLAT_COLUMNS) * outputs <=
                                                 150 * (int64_t)gpu->info.n_processors;
    if (is_few || small.shared_bytes > gpu->info.max_shared_bytes)
        return gpu_choose_flat(gpu, form, unit->is_int8 ? int8_kernels[form] : names,
                               ceil_div(outputs, KD_TILE_ROWS), columns);
    bool is_large = large.shared_bytes <= gpu->info.max_shared_bytes &&
                    gpu_large_is_faster(gpu, ceil_div(outputs, 64) * ceil_div(n_rows, 64),
                                        ceil_div(outputs, 256) * ceil_div(n_rows, 128));
    return is_large ? large : small;
}

static void run_tiles(struct gpu_device *gpu, const struct unit *unit, int32_t n_rows,
                      const struct kd_inputs *inputs, const struct gpu_tile_choice *c,
                      const struct tensor *out)
{
    const struct gpu_tile_shape *tiles = &unit->tiles;
    struct gpu_range in[3];
    gpu_input_ranges(gpu, inputs, in);
    struct gpu_range buffers[] = {{unit->memory, 0},
                                  section(unit, tiles->levels),
                                  in[0],
                                  is_wide(gpu, n_rows) ? section(unit, tiles->row_factors) : in[1],
                                  in[2],
                                  section(unit, tiles->out_bias),
                                  gpu_tensor(out)};
    struct kd_tiles p = {.rows = tiles->rows,
                         .n_tiles = tiles->n_tiles,
                         .level_shift = tiles->level_shift,
                         .is_bf16 = tiles->is_bf16,
                         .n_rows = (uint32_t)n_rows,
                         .n_terms = gpu->n_terms,
                         .term_stride = term_stride(n_rows),
                         .out_stride = (uint32_t)out->stride};
    int64_t along_outputs = ceil_div(tiles->rows, c->outputs);
    int64_t along_rows = ceil_div(n_rows, c->rows);
    gpu_dispatch(gpu, c->kernel, buffers, 7, &p, sizeof p,
                 is_flat(c) ? (struct gpu_groups){along_outputs, along_rows, 1}
                            : (struct gpu_groups){along_rows, along_outputs, 1},
                 c->n_threads, c->shared_bytes);
}

void gpu_linear(struct device *device, const struct linear_args *args)
{
    struct gpu_device *gpu = gpu_device_of(device);
    const struct linear *linear = args->linear;
    assert(args->x.rows <= linear->max_rows && args->x.cols == linear->cols);
    assert(args->out.rows == args->x.rows && args->out.cols == linear->rows);
    int32_t first = 0;
    /* Units with prepared inputs share the place of these. */
    bool is_beside = !gpu->has_native && !gpu->is_int8;
    if (is_beside)
        gpu_beside_begin(gpu);
    for (int i = 0; i < linear->n_units; i++) {
        const struct unit *unit = &linear->units[i];
        struct tensor out = tensor_cols(args->out, first, unit->rows);
        first += unit->rows;
        if (!unit->has_tiles) {
            gpu_product(gpu, &unit->weight, unit->is_int8, &args->x, &out);
            continue;
        }
        struct gpu_tile_choice choice = choose(gpu, unit, args->x.rows);
        struct kd_inputs p = inputs_of(gpu, unit, &args->x, &choice);
        if (!gpu_has_inputs(gpu, &args->x, &p))
            prepare_inputs(gpu, unit, &args->x, &p);
        run_tiles(gpu, unit, args->x.rows, &p, &choice, &out);
    }
    if (is_beside)
        gpu_beside_end(gpu);
}
