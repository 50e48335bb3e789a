/* Paged attention, and the pages as they lie on the GPU (kernels/args.h, struct kd_pages): native
 * kernels for 16-bit and int8 KV and common head sizes where the driver has them, else the shared
 * ones: of tiles for sequences with many rows, where the driver has_matrices, and of rows. */
#include "device/gpu/gpu_split.h"

#include "base/size.h"
#include "device/kv_layout.h"

#include <assert.h>
#include <string.h>

enum { FEW_COLUMNS = 16, MAX_NATIVE_DIM = 256, SCALE_BYTES = 2 };

static size_t page_bytes(const struct kv_layout *layout)
{
    size_t n = 2 * (size_t)layout->page_size * (size_t)layout->n_heads; /* vectors */
    if (layout->dtype == DTYPE_I8)
        return size_round_up(n * ((size_t)layout->head_dim + SCALE_BYTES), KD_PAGE_UNIT);
    return n * (size_t)layout->head_dim * dtype_bytes(layout->dtype);
}

size_t gpu_kv_page_bytes(const struct device *device, const struct kv_layout *layout)
{
    (void)device;
    return page_bytes(layout);
}

/* Most columns of a sequence that paged_attention_few takes, in threadgroups of `width` columns. */
static uint32_t few_columns(uint32_t group, uint32_t width)
{
    return (uint32_t)size_round_up(group, width);
}

/* The parts that a threadgroup's columns may have: as many as fill each processor once, which takes
 * `per_processor` threadgroups. */
static uint32_t n_splits(const struct gpu_device *gpu, int64_t n_groups, uint32_t per_processor)
{
    uint32_t n = 1;
    while (2 * n * n_groups <= (int64_t)gpu->info.n_processors * per_processor && n < KD_MAX_SPLITS)
        n *= 2;
    return n;
}

struct split_sizes {
    size_t parts, levels, counters;
};

/* Room for as many parts as fill the processors, where there are several of one sequence: of 16
 * columns, or of 8 and twice as many. */
static struct split_sizes split_sizes(const struct gpu_device *gpu, int32_t max_sequences,
                                      int32_t n_q_heads)
{
    size_t n = (size_t)gpu->info.n_processors * FEW_COLUMNS;
    return (struct split_sizes){.parts = n * MAX_NATIVE_DIM * sizeof(float),
                                .levels = n * 2 * sizeof(float),
                                .counters = (size_t)max_sequences * (size_t)n_q_heads *
                                            sizeof(uint32_t)};
}

static enum status reserve_splits(struct gpu_device *gpu, int32_t max_sequences, int32_t n_q_heads,
                                  struct error *error)
{
    struct split_sizes sizes = split_sizes(gpu, max_sequences, n_q_heads);
    enum status status = OK;
    if (!gpu->splits.parts)
        status = gpu->driver->alloc(gpu->gpu, sizes.parts, &gpu->splits.parts, error);
    if (status == OK && !gpu->splits.levels)
        status = gpu->driver->alloc(gpu->gpu, sizes.levels, &gpu->splits.levels, error);
    if (status == OK && gpu->splits.counters)
        gpu->driver->free(gpu->gpu, gpu->splits.counters);
    gpu->splits.counters = NULL;
    return status == OK
               ? gpu->driver->alloc(gpu->gpu, sizes.counters, &gpu->splits.counters, error)
               : status;
}

enum status gpu_attention_reserve(struct device *device, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                  struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    (void)max_rows;
    enum status status = kv_layout_check(layout, n_q_heads, KD_MAX_HEAD_DIM, false, "GPU", error);
    if (status == OK && gpu->has_native)
        status = reserve_splits(gpu, max_sequences, n_q_heads, error);
    return status == OK ? gpu_split_reserve(gpu, error) : status;
}

size_t gpu_attention_workspace(struct device *device, const struct kv_layout *layout,
                               int32_t n_q_heads, int32_t max_rows, int32_t max_sequences)
{
    const struct gpu_device *gpu = gpu_device_of(device);
    (void)layout;
    (void)max_rows;
    struct split_sizes sizes = {0};
    if (gpu->has_native)
        sizes = split_sizes(gpu, max_sequences, n_q_heads);
    return sizes.parts + sizes.levels + sizes.counters + gpu_split_bytes();
}

static struct kd_pages shape_of(const struct kv_layout *layout)
{
    return (struct kd_pages){.page_size = (uint32_t)layout->page_size,
                             .n_heads = (uint32_t)layout->n_heads,
                             .head_dim = (uint32_t)layout->head_dim,
                             .dtype = layout->dtype};
}

static struct gpu_range memory_of(const struct kv_pages *pages)
{
    return (struct gpu_range){pages->buffer->handle, pages->offset};
}

void gpu_kv_store(struct device *device, const struct kv_store_args *args)
{
    const struct kv_layout *layout = &args->pages.layout;
    assert(args->k.dtype == DTYPE_F32 && args->k.cols == layout->n_heads * layout->head_dim);
    struct gpu_range buffers[] = {gpu_tensor(&args->k), gpu_tensor(&args->v),
                                  gpu_tensor(&args->slots), memory_of(&args->pages)};
    struct kd_kv_store p = {.pages = shape_of(layout),
                            .k_stride = (uint32_t)args->k.stride,
                            .v_stride = (uint32_t)args->v.stride,
                            .slots_stride = (uint32_t)args->slots.stride,
                            .n_rows = (uint32_t)args->k.rows};
    struct gpu_device *gpu = gpu_device_of(device);
    if (layout->dtype == DTYPE_I8)
        gpu_run(gpu, GPU_KERNEL_kv_store_i8, buffers, 4, &p, sizeof p,
                (struct gpu_groups){args->k.rows, layout->n_heads, 2}, KD_SIMD_WIDTH);
    else
        gpu_run(gpu, GPU_KERNEL_kv_store, buffers, 4, &p, sizeof p,
                (struct gpu_groups){args->k.rows, ceil_div(args->k.cols, KD_ROW_THREADS), 1},
                KD_ROW_THREADS);
}

void gpu_kv_copy_page(struct device *device, const struct kv_copy_page_args *args)
{
    struct gpu_range buffers[] = {gpu_tensor(&args->pairs), memory_of(&args->pages)};
    struct kd_copy_page p = {.words = (uint32_t)(page_bytes(&args->pages.layout) / 2),
                             .n_pairs = (uint32_t)args->pairs.rows,
                             .pairs_stride = (uint32_t)args->pairs.stride};
    gpu_run(gpu_device_of(device), GPU_KERNEL_kv_copy_page, buffers, 2, &p, sizeof p,
            (struct gpu_groups){ceil_div(p.words, KD_ROW_THREADS), 1, 1}, KD_ROW_THREADS);
}

/* The native kernels for a head size and KV type. */
struct native {
    int32_t dim;
    enum dtype dtype;
    enum gpu_kernel_name few[2], many; /* few: for 8 columns a threadgroup, and for 16 */
    uint32_t per_processor;            /* threadgroups of few[0] (kernels/cuda/attention_few.cu) */
    uint32_t many_bytes;               /* two stages of K and V, or of codes beside their values */
};

static const struct native *native_of(const struct gpu_device *gpu, const struct kv_layout *layout)
{
#define NATIVE(dim, type, name, wide, groups, places, scale_bytes)                                 \
    {                                                                                              \
        dim, type,                                                                                 \
            {GPU_KERNEL_paged_attention_few_##dim##_##name##_8,                                    \
             GPU_KERNEL_paged_attention_few_##dim##_##name##_##wide},                              \
            GPU_KERNEL_paged_attention_many_##dim##_##name, groups,                                \
            2 * places *(2 * dim * 2 + scale_bytes)                                                \
    }
    static const struct native all[] = {
        NATIVE(64, DTYPE_F16, f16, 16, 1, 64, 0),    NATIVE(64, DTYPE_BF16, bf16, 16, 1, 64, 0),
        NATIVE(64, DTYPE_I8, i8, 16, 2, 64, 4),      NATIVE(128, DTYPE_F16, f16, 16, 1, 64, 0),
        NATIVE(128, DTYPE_BF16, bf16, 16, 1, 64, 0), NATIVE(128, DTYPE_I8, i8, 16, 2, 64, 4),
        NATIVE(256, DTYPE_F16, f16, 8, 1, 32, 0),    NATIVE(256, DTYPE_BF16, bf16, 8, 1, 32, 0),
        NATIVE(256, DTYPE_I8, i8, 8, 1, 32, 4),
    };
#undef NATIVE
    /* They round queries and shares to the type of the KV, or with codes to bf16. */
    bool is_exact = gpu->n_terms > 1;
    if (!gpu->has_native || is_exact || layout->page_size < KD_MIN_NATIVE_PAGE)
        return NULL;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].dim == layout->head_dim && all[i].dtype == layout->dtype &&
            all[i].many_bytes <= gpu->info.max_shared_bytes)
            return &all[i];
    return NULL;
}

/* Sequences with few rows by one kernel and those with many by another, each of which passes the
 * other's by. Only the device knows which are which; a step of one row each has no others. */
static void run_native(struct gpu_device *gpu, const struct native *native,
                       const struct gpu_range *buffers, const struct kd_attention *shape,
                       const struct paged_attention_args *args)
{
    uint32_t group = shape->n_q_heads / shape->pages.n_heads;
    bool is_decode = args->q.rows == args->n_sequences;
    bool is_wide = native->few[1] != native->few[0] && (group > 8 || !is_decode);
    uint32_t width = is_wide ? 16 : 8;
    struct kd_native_attention p = {.attention = *shape};
    p.attention.max_columns = few_columns(group, width);
    p.column_groups = p.attention.max_columns / width;
    int64_t n_heads = (int64_t)shape->pages.n_heads * p.column_groups;
    p.n_splits = n_splits(gpu, n_heads * args->n_sequences, is_wide ? 1 : native->per_processor);
    struct gpu_range few[10];
    memcpy(few, buffers, 7 * sizeof *few);
    few[7] = (struct gpu_range){gpu->splits.parts, 0};
    few[8] = (struct gpu_range){gpu->splits.levels, 0};
    few[9] = (struct gpu_range){gpu->splits.counters, 0};
    gpu_run(gpu, native->few[is_wide], few, 10, &p, sizeof p,
            (struct gpu_groups){n_heads, p.n_splits, args->n_sequences}, KD_FEW_THREADS);
    if (is_decode)
        return;
    int64_t n_tiles = ceil_div((int64_t)args->q.rows * group, KD_MANY_QUERIES) + args->n_sequences;
    gpu_run_shared(gpu, native->many, buffers, 7, &p, sizeof p,
                   (struct gpu_groups){shape->pages.n_heads, n_tiles, 1}, KD_MANY_QUERY_THREADS,
                   native->many_bytes);
}

/* The kernel of tiles for a head size and KV type; NULL: there is none. */
static const enum gpu_kernel_name *matrix_of(const struct gpu_device *gpu,
                                             const struct paged_attention_args *args)
{
    static const struct {
        int32_t max_dim;
        enum gpu_kernel_name of_floats, of_codes;
    } all[] = {
        {64, GPU_KERNEL_attention_matrix_64, GPU_KERNEL_attention_matrix_i8_64},
        {96, GPU_KERNEL_attention_matrix_96, GPU_KERNEL_attention_matrix_i8_96},
        {128, GPU_KERNEL_attention_matrix_128, GPU_KERNEL_attention_matrix_i8_128},
        {256, GPU_KERNEL_attention_matrix_256, GPU_KERNEL_attention_matrix_i8_256},
    };
    const struct kv_layout *layout = &args->pages.layout;
    /* It reads eight values of a head at once. */
    if (!gpu->info.has_matrices || layout->head_dim % 8 || args->pages.offset % 16)
        return NULL;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (layout->head_dim <= all[i].max_dim)
            return layout->dtype == DTYPE_I8 ? &all[i].of_codes : &all[i].of_floats;
    return NULL;
}

/* Sequences whose columns fill more than half a tile by tiles, the others by rows; only the device
 * knows which are which. */
static void run_shared(struct gpu_device *gpu, const struct gpu_range *buffers,
                       struct kd_attention *shape, const struct paged_attention_args *args)
{
    bool is_decode = args->q.rows == args->n_sequences;
    const enum gpu_kernel_name *tiles = is_decode ? NULL : matrix_of(gpu, args);
    shape->max_columns = tiles ? KD_COLUMNS / 2 : UINT32_MAX;
    if (tiles) {
        gpu_beside_begin(gpu);
        struct kd_attention_matrix p = {.attention = *shape,
                                        .page_shift = gpu_log2(shape->pages.page_size)};
        int64_t n_columns = (int64_t)args->q.rows * (shape->n_q_heads / shape->pages.n_heads);
        gpu_run(gpu, *tiles, buffers, 7, &p, sizeof p,
                (struct gpu_groups){shape->pages.n_heads,
                                    ceil_div(n_columns, KD_COLUMNS) + args->n_sequences, 1},
                shape->pages.head_dim > KD_COLUMN_DIMS ? 2 * KD_COLUMN_THREADS : KD_COLUMN_THREADS);
    }
    if (!gpu_split_attention(gpu, args, buffers, shape, !tiles))
        gpu_run(gpu, GPU_KERNEL_paged_attention, buffers, 7, shape, sizeof *shape,
                (struct gpu_groups){args->q.rows, args->n_q_heads, 1}, KD_SIMD_WIDTH);
    if (tiles)
        gpu_beside_end(gpu);
}

void gpu_paged_attention(struct device *device, const struct paged_attention_args *args)
{
    assert(args->q.dtype == DTYPE_F32 && args->out.rows == args->q.rows);
    struct gpu_device *gpu = gpu_device_of(device);
    struct gpu_range buffers[] = {gpu_tensor(&args->q),          memory_of(&args->pages),
                                  gpu_tensor(&args->q_start),    gpu_tensor(&args->kv_len),
                                  gpu_tensor(&args->page_table), gpu_tensor(&args->sinks),
                                  gpu_tensor(&args->out)};
    const struct native *native = native_of(gpu, &args->pages.layout);
    struct kd_attention p = {.pages = shape_of(&args->pages.layout),
                             .q_stride = (uint32_t)args->q.stride,
                             .out_stride = (uint32_t)args->out.stride,
                             .table_stride = (uint32_t)args->page_table.stride,
                             .q_start_stride = (uint32_t)args->q_start.stride,
                             .kv_len_stride = (uint32_t)args->kv_len.stride,
                             .n_sequences = (uint32_t)args->n_sequences,
                             .n_q_heads = (uint32_t)args->n_q_heads,
                             .has_sinks = args->sinks.buffer != NULL,
                             .window = (uint32_t)args->window,
                             .scale = args->scale};
    if (native)
        run_native(gpu, native, buffers, &p, args);
    else
        run_shared(gpu, buffers, &p, args);
}
