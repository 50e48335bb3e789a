/* Mixture of experts: as tiles where native kernels take them (gpu_experts.h). Else the experts of
 * a layer lie one behind another, a dispatch makes what they hold inside, a second one their
 * outputs.
 */
#include "device/gpu/gpu_experts.h"
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>

struct experts {
    int32_t n_experts, top_k, hidden, inner, max_rows;
    bool has_tiles;
    struct gpu_experts tiles;
    struct gpu_weight gate, up, down;
    struct gpu_memory *act; /* f32 [max_rows * top_k][inner] */
};

static enum status check_counts(int32_t n_experts, int32_t top_k, struct error *error)
{
    if (n_experts < 1 || n_experts > MOE_MAX_EXPERTS || top_k < 1 || top_k > n_experts)
        return error_set(error, ERROR_LIMIT,
                         "%d of %d experts a token; 1 to all of at most %d are possible", top_k,
                         n_experts, MOE_MAX_EXPERTS);
    return OK;
}

static enum status check_shape(const struct expert_slices *first, struct error *error)
{
    if (first->up.cols != first->gate.cols || first->down.rows != first->gate.cols ||
        first->up.rows != first->gate.rows || first->down.cols != first->gate.rows)
        return error_set(error, ERROR_INVALID,
                         "an expert's gate is %lld x %lld, its up %lld x %lld, its down %lld x "
                         "%lld; they do not fit together",
                         (long long)first->gate.rows, (long long)first->gate.cols,
                         (long long)first->up.rows, (long long)first->up.cols,
                         (long long)first->down.rows, (long long)first->down.cols);
    return OK;
}

/* f32 for what each of `top_k` experts of a row holds inside. */
static size_t act_bytes(int32_t max_rows, int32_t top_k, int64_t inner)
{
    return (size_t)max_rows * (size_t)top_k * (size_t)inner * sizeof(float);
}

/* As the shared kernels read them. */
static enum status load_plain(struct gpu_device *gpu, struct experts *e,
                              const struct expert_slices *slices, struct error *error)
{
    size_t stride = sizeof *slices;
    enum status status = gpu_weight_load(gpu, &e->gate, &slices->gate, stride, e->n_experts, error);
    if (status == OK)
        status = gpu_weight_load(gpu, &e->up, &slices->up, stride, e->n_experts, error);
    if (status == OK)
        status = gpu_weight_load(gpu, &e->down, &slices->down, stride, e->n_experts, error);
    if (status != OK)
        return status;
    return gpu->driver->alloc(gpu->gpu, act_bytes(e->max_rows, e->top_k, e->inner), &e->act, error);
}

/* Such a stack is written matrix by matrix, so all experts are open at once; the first one is. */
static enum status open_all(struct gpu_device *gpu, struct experts *e,
                            const struct expert_source *source, const struct expert_slices *first,
                            struct error *error)
{
    struct expert_slices *slices = calloc((size_t)e->n_experts, sizeof *slices);
    if (!slices)
        return error_memory(error, (size_t)e->n_experts * sizeof *slices);
    slices[0] = *first;
    enum status status = OK;
    int32_t n_open = 1;
    while (status == OK && n_open < e->n_experts) {
        status = source->open(source->context, n_open, &slices[n_open], error);
        n_open += status == OK;
    }
    if (status == OK)
        status = load_plain(gpu, e, slices, error);
    for (int32_t i = 1; i < n_open; i++)
        source->close(source->context, i, &slices[i]);
    free(slices);
    return status;
}

/* One after another, behind the first one, which is open. */
static enum status open_in_turn(struct gpu_device *gpu, struct experts *e,
                                const struct expert_source *source,
                                const struct expert_slices *first, struct error *error)
{
    enum status status = gpu_experts_alloc(gpu, &e->tiles, e->top_k, e->max_rows, error);
    if (status == OK)
        status = gpu_experts_write(gpu, &e->tiles, 0, first, error);
    for (int32_t i = 1; i < e->n_experts && status == OK; i++) {
        struct expert_slices slices;
        status = source->open(source->context, i, &slices, error);
        if (status != OK)
            return status;
        status = gpu_experts_write(gpu, &e->tiles, i, &slices, error);
        source->close(source->context, i, &slices);
    }
    return status;
}

static enum status load(struct gpu_device *gpu, struct experts *e,
                        const struct expert_source *source, const struct expert_slices *first,
                        struct error *error)
{
    enum status status = check_shape(first, error);
    if (status != OK)
        return status;
    e->hidden = (int32_t)first->gate.cols;
    e->inner = (int32_t)first->gate.rows;
    e->has_tiles = gpu_experts_describe(gpu, first, e->n_experts, e->top_k, &e->tiles);
    return e->has_tiles ? open_in_turn(gpu, e, source, first, error)
                        : open_all(gpu, e, source, first, error);
}

enum status gpu_experts_load(struct device *device, const struct expert_source *source,
                             int32_t n_experts, int32_t top_k, int32_t max_rows,
                             struct experts **out, struct error *error)
{
    *out = NULL;
    enum status status = check_counts(n_experts, top_k, error);
    if (status != OK)
        return status;
    struct experts *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(error, sizeof *e);
    e->n_experts = n_experts;
    e->top_k = top_k;
    e->max_rows = max_rows;
    struct expert_slices first;
    status = source->open(source->context, 0, &first, error);
    if (status == OK) {
        status = load(gpu_device_of(device), e, source, &first, error);
        source->close(source->context, 0, &first);
    }
    if (status != OK) {
        gpu_experts_free(device, e);
        return status;
    }
    *out = e;
    return OK;
}

void gpu_experts_free(struct device *device, struct experts *e)
{
    struct gpu_device *gpu = gpu_device_of(device);
    if (!e)
        return;
    gpu_weight_done(gpu, &e->gate);
    gpu_weight_done(gpu, &e->up);
    gpu_weight_done(gpu, &e->down);
    gpu_experts_done(gpu, &e->tiles);
    if (e->act)
        gpu->driver->free(gpu->gpu, e->act);
    free(e);
}

struct device_bytes gpu_experts_bytes(struct device *device, const struct expert_slices *slices,
                                      int32_t n_experts, int32_t top_k, int32_t max_rows)
{
    struct gpu_experts tiles;
    if (gpu_experts_describe(gpu_device_of(device), slices, n_experts, top_k, &tiles))
        return gpu_experts_tile_bytes(&tiles, top_k, max_rows);
    struct device_bytes bytes = {.own = act_bytes(max_rows, top_k, slices->gate.rows)};
    for (int32_t i = 0; i < n_experts; i++) {
        const struct weight_slice *parts[] = {&slices[i].gate, &slices[i].up, &slices[i].down};
        for (int k = 0; k < 3; k++) {
            struct kd_weight shape;
            if (gpu_weight_describe(parts[k], &shape, NULL) == OK)
                bytes.own += shape.matrix_bytes;
        }
    }
    return bytes;
}

size_t gpu_expert_size(const struct experts *e, int32_t *inner)
{
    *inner = e->inner;
    if (e->has_tiles)
        return e->tiles.gate_up.bytes + e->tiles.down.bytes;
    return e->gate.shape.matrix_bytes + e->up.shape.matrix_bytes + e->down.shape.matrix_bytes;
}

static void run_inner(struct gpu_device *gpu, const struct moe_ffn_args *args)
{
    const struct experts *e = args->stack;
    struct gpu_range buffers[] = {{e->gate.memory, 0},
                                  {e->up.memory, 0},
                                  gpu_tensor(&args->x),
                                  gpu_tensor(&args->experts),
                                  {e->act, 0}};
    struct kd_moe_inner p = {.gate = e->gate.shape,
                             .up = e->up.shape,
                             .top_k = (uint32_t)args->experts.cols,
                             .x_stride = (uint32_t)args->x.stride,
                             .experts_stride = (uint32_t)args->experts.stride,
                             .activation = args->activation,
                             .alpha = args->alpha,
                             .limit = args->limit};
    gpu_run(gpu, GPU_KERNEL_moe_inner, buffers, 5, &p, sizeof p,
            (struct gpu_groups){(int64_t)args->x.rows * args->experts.cols,
                                ceil_div(e->inner, KD_DOTS), 1},
            KD_DOT_THREADS);
}

void gpu_moe_ffn(struct device *device, const struct moe_ffn_args *args)
{
    struct gpu_device *gpu = gpu_device_of(device);
    const struct experts *e = args->stack;
    assert(args->x.rows <= e->max_rows && args->experts.cols <= e->top_k);
    assert(args->x.cols == e->hidden && args->out.cols == e->hidden);
    if (e->has_tiles) {
        gpu_experts_run(gpu, &e->tiles, args);
        return;
    }
    run_inner(gpu, args);
    struct gpu_range buffers[] = {{e->down.memory, 0},        {e->act, 0},
                                  gpu_tensor(&args->experts), gpu_tensor(&args->weights),
                                  gpu_tensor(&args->shared),  gpu_tensor(&args->shared_gate),
                                  gpu_tensor(&args->out)};
    struct kd_moe_outer p = {.down = e->down.shape,
                             .top_k = (uint32_t)args->experts.cols,
                             .experts_stride = (uint32_t)args->experts.stride,
                             .weights_stride = (uint32_t)args->weights.stride,
                             .out_stride = (uint32_t)args->out.stride,
                             .shared_stride = (uint32_t)args->shared.stride,
                             .shared_gate_stride = (uint32_t)args->shared_gate.stride,
                             .has_shared = args->shared.buffer != NULL,
                             .has_shared_gate = args->shared_gate.buffer != NULL};
    gpu_run(gpu, GPU_KERNEL_moe_outer, buffers, 7, &p, sizeof p,
            (struct gpu_groups){args->x.rows, ceil_div(e->hidden, KD_DOTS), 1}, KD_DOT_THREADS);
}
