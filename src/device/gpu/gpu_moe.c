/* Mixture of experts: the experts of a layer lie one behind another, a dispatch makes what they
 * hold inside, a second one their outputs. */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>

struct experts {
    int32_t n_experts, top_k, hidden, inner, max_rows;
    struct gpu_weight gate, up, down;
    struct gpu_memory *act; /* f32 [max_rows * top_k][inner] */
};

static enum status check_experts(const struct expert_slices *experts, int32_t n_experts,
                                 int32_t top_k, struct error *error)
{
    if (n_experts < 1 || n_experts > MOE_MAX_EXPERTS || top_k < 1 || top_k > n_experts)
        return error_set(error, ERROR_LIMIT,
                         "%d of %d experts a token; 1 to all of at most %d are possible", top_k,
                         n_experts, MOE_MAX_EXPERTS);
    const struct expert_slices *first = &experts[0];
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

static enum status load(struct gpu_device *gpu, struct experts *e,
                        const struct expert_slices *slices, struct error *error)
{
    size_t stride = sizeof *slices, act;
    enum status status =
        gpu_weight_load(gpu, &e->gate, &slices->gate, stride, e->n_experts, error);
    if (status == OK)
        status = gpu_weight_load(gpu, &e->up, &slices->up, stride, e->n_experts, error);
    if (status == OK)
        status = gpu_weight_load(gpu, &e->down, &slices->down, stride, e->n_experts, error);
    if (status != OK)
        return status;
    act = (size_t)e->max_rows * (size_t)e->top_k * (size_t)e->inner * sizeof(float);
    return gpu->driver->alloc(gpu->gpu, act, &e->act, error);
}

enum status gpu_experts_load(struct device *device, const struct expert_slices *slices,
                             int32_t n_experts, int32_t top_k, int32_t max_rows,
                             struct experts **out, struct error *error)
{
    *out = NULL;
    enum status status = check_experts(slices, n_experts, top_k, error);
    if (status != OK)
        return status;
    struct experts *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(error, sizeof *e);
    e->n_experts = n_experts;
    e->top_k = top_k;
    e->hidden = (int32_t)slices->gate.cols;
    e->inner = (int32_t)slices->gate.rows;
    e->max_rows = max_rows;
    status = load(gpu_device_of(device), e, slices, error);
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
    if (e->act)
        gpu->driver->free(gpu->gpu, e->act);
    free(e);
}

size_t gpu_experts_bytes(struct device *device, const struct expert_slices *slices,
                         int32_t n_experts)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < n_experts; i++)
        bytes += gpu_linear_bytes(device, &slices[i].gate, 1) +
                 gpu_linear_bytes(device, &slices[i].up, 1) +
                 gpu_linear_bytes(device, &slices[i].down, 1);
    return bytes;
}

size_t gpu_expert_size(const struct experts *e, int32_t *inner)
{
    *inner = e->inner;
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
    run_inner(gpu, args);
    struct gpu_range buffers[] = {{e->down.memory, 0},
                                  {e->act, 0},
                                  gpu_tensor(&args->experts),
                                  gpu_tensor(&args->weights),
                                  gpu_tensor(&args->shared),
                                  gpu_tensor(&args->shared_gate),
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
