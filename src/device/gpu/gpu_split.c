#include "device/gpu/gpu_split.h"

#include "base/size.h"

#include <string.h>

enum {
    /* Threadgroups that a step should have: a few for each of a large GPU's cores (Apple's have 8
     * to 80). */
    WANTED_GROUPS = 128,
    MAX_SPLITS = 32,
    MAX_PARTS = WANTED_GROUPS * KD_SPLIT_HEADS,
    MAX_DIM = 256
};

static const size_t parts_bytes = (size_t)MAX_PARTS * MAX_DIM * sizeof(float);
static const size_t levels_bytes = (size_t)MAX_PARTS * 2 * sizeof(float);

enum status gpu_split_reserve(struct gpu_device *gpu, struct error *error)
{
    if (gpu->split_parts)
        return OK;
    enum status status = gpu->driver->alloc(gpu->gpu, parts_bytes, &gpu->split_parts, error);
    if (status == OK)
        status = gpu->driver->alloc(gpu->gpu, levels_bytes, &gpu->split_levels, error);
    return status;
}

size_t gpu_split_bytes(void)
{
    return parts_bytes + levels_bytes;
}

void gpu_split_done(struct gpu_device *gpu)
{
    if (gpu->split_parts)
        gpu->driver->free(gpu->gpu, gpu->split_parts);
    if (gpu->split_levels)
        gpu->driver->free(gpu->gpu, gpu->split_levels);
    gpu->split_parts = gpu->split_levels = NULL;
}

/* How many query heads of a KV head a threadgroup takes: 1, 2 or 4, as index 0, 1 or 2. */
static int heads_index(uint32_t group)
{
    return group == 1 ? 0 : group == 2 ? 1 : 2;
}

/* The kernels for a head size and KV type; NULL: there are none. */
static const enum gpu_kernel_name *kernels_for(uint32_t dim, bool has_codes)
{
#define HEADS(dim)                                                                                 \
    {                                                                                              \
        GPU_KERNEL_attention_split_##dim##_1, GPU_KERNEL_attention_split_##dim##_2,                \
            GPU_KERNEL_attention_split_##dim##_4                                                   \
    }
    static const enum gpu_kernel_name of_64[][3] = {HEADS(64), HEADS(i8_64)},
                                      of_128[][3] = {HEADS(128), HEADS(i8_128)},
                                      of_256[][3] = {HEADS(256), HEADS(i8_256)};
#undef HEADS
    return dim == 64    ? of_64[has_codes]
           : dim == 128 ? of_128[has_codes]
           : dim == 256 ? of_256[has_codes]
                        : NULL;
}

/* The kernel reads 16 bytes at once. */
static bool is_aligned(const struct paged_attention_args *args)
{
    return args->q.offset % 16 == 0 && args->q.stride % 4 == 0 && args->pages.offset % 16 == 0;
}

static uint32_t choose_splits(const struct paged_attention_args *args, int64_t n_groups)
{
    int64_t places = (int64_t)args->page_table.cols * args->pages.layout.page_size;
    uint32_t n = 1;
    while (n < MAX_SPLITS && 2 * n * n_groups <= WANTED_GROUPS && n * KD_MIN_SPLIT < places)
        n *= 2;
    return n;
}

bool gpu_split_attention(struct gpu_device *gpu, const struct paged_attention_args *args,
                         const struct gpu_range buffers[7], const struct kd_attention *shape,
                         bool may_split)
{
    const struct kd_pages *pages = &shape->pages;
    const enum gpu_kernel_name *kernels = kernels_for(pages->head_dim, pages->dtype == KD_I8);
    if (!kernels || !is_aligned(args) || !gpu->split_parts)
        return false;
    uint32_t group = shape->n_q_heads / pages->n_heads;
    struct kd_attention_split p = {.attention = *shape,
                                   .page_shift = gpu_log2(pages->page_size),
                                   .n_chunks = (uint32_t)ceil_div(group, KD_SPLIT_HEADS)};
    int64_t y = (int64_t)pages->n_heads * p.n_chunks;
    p.n_splits = may_split ? choose_splits(args, args->q.rows * y) : 1;
    struct gpu_range all[9];
    memcpy(all, buffers, 7 * sizeof *all);
    all[7] = (struct gpu_range){gpu->split_parts, 0};
    all[8] = (struct gpu_range){gpu->split_levels, 0};
    gpu_run(gpu, kernels[heads_index(group)], all, 9, &p, sizeof p,
            (struct gpu_groups){args->q.rows, y, p.n_splits}, KD_SPLIT_THREADS);
    if (p.n_splits == 1)
        return true;
    struct gpu_range merged[] = {all[7], all[8], buffers[5], buffers[6]};
    gpu_run(gpu, GPU_KERNEL_attention_merge, merged, 4, &p, sizeof p,
            (struct gpu_groups){args->q.rows, args->n_q_heads, 1}, KD_SPLIT_THREADS);
    return true;
}
