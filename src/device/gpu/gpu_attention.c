/* Paged attention, and the pages as they lie on the GPU (kernels/args.h, struct kd_pages). */
#include "device/gpu/gpu_device.h"

#include "base/size.h"
#include "device/kv_layout.h"

#include <assert.h>

static size_t page_bytes(const struct kv_layout *layout)
{
    return 2 * (size_t)layout->page_size * (size_t)layout->n_heads * (size_t)layout->head_dim *
           dtype_bytes(layout->dtype);
}

size_t gpu_kv_page_bytes(const struct device *device, const struct kv_layout *layout)
{
    (void)device;
    return page_bytes(layout);
}

enum status gpu_attention_reserve(struct device *device, const struct kv_layout *layout,
                                  int32_t n_q_heads, int32_t max_rows, int32_t max_sequences,
                                  struct error *error)
{
    (void)device;
    (void)max_rows;
    (void)max_sequences;
    return kv_layout_check(layout, n_q_heads, KD_MAX_HEAD_DIM, "GPU", error);
}

size_t gpu_attention_workspace(struct device *device, const struct kv_layout *layout,
                               int32_t n_q_heads, int32_t max_rows, int32_t max_sequences)
{
    (void)device;
    (void)layout;
    (void)n_q_heads;
    (void)max_rows;
    (void)max_sequences;
    return 0;
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
                            .slots_stride = (uint32_t)args->slots.stride};
    gpu_run(gpu_device_of(device), GPU_KERNEL_kv_store, buffers, 4, &p, sizeof p,
            (struct gpu_groups){args->k.rows, layout->n_heads, 1}, KD_SIMD_WIDTH);
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

void gpu_paged_attention(struct device *device, const struct paged_attention_args *args)
{
    assert(args->q.dtype == DTYPE_F32 && args->out.rows == args->q.rows);
    struct gpu_range buffers[] = {gpu_tensor(&args->q),          memory_of(&args->pages),
                                  gpu_tensor(&args->q_start),    gpu_tensor(&args->kv_len),
                                  gpu_tensor(&args->page_table), gpu_tensor(&args->sinks),
                                  gpu_tensor(&args->out)};
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
    gpu_run(gpu_device_of(device), GPU_KERNEL_paged_attention, buffers, 7, &p, sizeof p,
            (struct gpu_groups){args->q.rows, args->n_q_heads, 1}, KD_SIMD_WIDTH);
}
