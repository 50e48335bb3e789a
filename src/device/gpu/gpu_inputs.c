/* A native linear reads its inputs in a form of their own (kernels/args.h, struct kd_inputs). Here
 * is known who writes it: a norm or an activation waits until the next op is queued, and if that is
 * a native linear over what it makes, one kernel writes both. What was written last stands for its
 * rows until another op is queued: a linear writes to no rows that it reads, and one over other
 * rows has those prepared. */
#include "device/gpu/gpu_inputs.h"
#include "device/gpu/gpu_linear.h"

#include "base/size.h"

#include <assert.h>
#include <string.h>

static struct gpu_rows rows_of(const struct tensor *t)
{
    return (struct gpu_rows){gpu_tensor(t), t->rows, t->cols, t->stride};
}

static bool are_same(const struct gpu_rows *a, const struct gpu_rows *b)
{
    return a->at.memory == b->at.memory && a->at.offset == b->at.offset && a->rows == b->rows &&
           a->cols == b->cols && a->stride == b->stride;
}

static bool overlap(const struct gpu_rows *a, const struct gpu_rows *b)
{
    size_t a_end = a->at.offset + (size_t)a->rows * (size_t)a->stride * sizeof(float);
    size_t b_end = b->at.offset + (size_t)b->rows * (size_t)b->stride * sizeof(float);
    return a->at.memory == b->at.memory && a->at.offset < b_end && b->at.offset < a_end;
}

/* Kernels that write inputs read four columns at once. */
static bool is_aligned(const struct tensor *t)
{
    return !t->buffer || (t->stride % 4 == 0 && t->offset % 16 == 0 && t->cols % 4 == 0);
}

/* --- what waits ------------------------------------------------------------------------------- */

void gpu_rms_norm(struct device *device, const struct rms_norm_args *args)
{
    struct gpu_device *gpu = gpu_device_of(device);
    assert(args->x.dtype == DTYPE_F32);
    assert(args->residual.buffer || args->out.buffer);
    gpu_settle(gpu);
    gpu->waiting = (struct gpu_waiting){
        .kernel = GPU_KERNEL_rms_norm,
        .n_buffers = 4,
        .buffers = {gpu_tensor(&args->x), gpu_tensor(&args->residual), gpu_tensor(&args->weight),
                    gpu_tensor(&args->out)},
        .out = rows_of(&args->out),
        .groups = {args->x.rows, 1, 1},
        .args.norm = {.cols = (uint32_t)args->x.cols,
                      .x_stride = (uint32_t)args->x.stride,
                      .residual_stride = (uint32_t)args->residual.stride,
                      .out_stride = (uint32_t)args->out.stride,
                      .has_residual = args->residual.buffer != NULL,
                      .has_out = args->out.buffer != NULL,
                      .eps = args->eps,
                      .plus = args->plus_one ? 1.0f : 0.0f},
        .args_bytes = sizeof(struct kd_rms_norm)};
    gpu->is_waiting = true;
    if (!gpu->has_native || !args->out.buffer || !is_aligned(&args->x) || !is_aligned(&args->out) ||
        !is_aligned(&args->residual) || !is_aligned(&args->weight))
        gpu_settle(gpu);
}

void gpu_silu_mul(struct device *device, const struct silu_mul_args *args)
{
    struct gpu_device *gpu = gpu_device_of(device);
    struct gpu_rows from = rows_of(&args->gate_up), out = rows_of(&args->out);
    assert(args->gate_up.dtype == DTYPE_F32 && args->gate_up.cols == 2 * args->out.cols);
    gpu_settle(gpu);
    gpu->waiting = (struct gpu_waiting){
        .kernel = GPU_KERNEL_silu_mul,
        .n_buffers = 2,
        .buffers = {gpu_tensor(&args->gate_up), gpu_tensor(&args->out)},
        .out = out,
        .groups = {args->out.rows, ceil_div(args->out.cols, KD_ROW_THREADS), 1},
        .args.silu = {.cols = (uint32_t)args->out.cols,
                      .gate_up_stride = (uint32_t)args->gate_up.stride,
                      .out_stride = (uint32_t)args->out.stride},
        .args_bytes = sizeof(struct kd_silu_mul)};
    gpu->is_waiting = true;
    /* A long row is read twice, the second time when some of it is written. */
    if (!gpu->has_native || !is_aligned(&args->gate_up) || !is_aligned(&args->out) ||
        overlap(&from, &out))
        gpu_settle(gpu);
}

void gpu_release(struct gpu_device *gpu)
{
    const struct gpu_waiting *w = &gpu->waiting;
    if (!gpu->is_waiting)
        return;
    gpu->is_waiting = false;
    gpu_dispatch(gpu, w->kernel, w->buffers, w->n_buffers, &w->args, w->args_bytes, w->groups,
                 KD_ROW_THREADS, 0);
}

void gpu_settle(struct gpu_device *gpu)
{
    gpu_release(gpu);
    gpu->inputs.of = (struct gpu_rows){0};
}

/* --- inputs ----------------------------------------------------------------------------------- */

/* Codes take half of the room for values, their scales an eighth of what is left. */
void gpu_input_ranges(const struct gpu_device *gpu, const struct kd_inputs *p,
                      struct gpu_range to[3])
{
    size_t values = gpu->inputs.values_bytes, factors = values + gpu->inputs.sums_bytes;
    size_t codes = (size_t)p->term_stride * p->positions;
    size_t last = p->rounding == KD_ROUND_INT8 ? codes : factors;
    to[0] = (struct gpu_range){gpu->inputs.memory, 0};
    to[1] = (struct gpu_range){gpu->inputs.memory, values};
    to[2] = (struct gpu_range){gpu->inputs.memory, last};
}

static void run_with_inputs(struct gpu_device *gpu, enum gpu_kernel_name kernel,
                            const struct kd_inputs *p, const void *args, size_t args_bytes,
                            uint32_t n_threads)
{
    const struct gpu_waiting *w = &gpu->waiting;
    struct gpu_range buffers[GPU_WAITING_BUFFERS + 3];
    memcpy(buffers, w->buffers, sizeof w->buffers);
    gpu_input_ranges(gpu, p, buffers + w->n_buffers);
    gpu_dispatch(gpu, kernel, buffers, w->n_buffers + 3, args, args_bytes,
                 (struct gpu_groups){w->out.rows, 1, 1}, n_threads, 0);
}

/* A norm's sum must not depend on the number of rows, so neither do its threads. */
static bool run_norm(struct gpu_device *gpu, const struct kd_inputs *p)
{
    int64_t n_threads = GPU_SIMD_WIDTH * ceil_div(p->positions, 2 * 4 * GPU_SIMD_WIDTH);
    struct kd_norm_inputs both = {gpu->waiting.args.norm, *p};
    if (p->positions > KD_INPUT_THREADS * 4 * KD_KEPT_QUADS)
        return false;
    run_with_inputs(gpu, GPU_KERNEL_rms_norm_inputs, p, &both, sizeof both,
                    n_threads < KD_INPUT_THREADS ? (uint32_t)n_threads : KD_INPUT_THREADS);
    return true;
}

/* With threads for all of a row where there can be so many: else it is read twice. */
static bool run_silu(struct gpu_device *gpu, const struct kd_inputs *p)
{
    struct kd_silu_inputs both = {gpu->waiting.args.silu, *p};
    uint32_t least = gpu_input_threads(gpu, p->positions, gpu->waiting.out.rows);
    int64_t all = GPU_SIMD_WIDTH * ceil_div(p->positions, KD_KEPT_QUADS * 4 * GPU_SIMD_WIDTH);
    uint32_t n_threads = all < KD_INPUT_THREADS ? (uint32_t)all : KD_INPUT_THREADS;
    run_with_inputs(gpu, GPU_KERNEL_silu_mul_inputs, p, &both, sizeof both,
                    n_threads > least ? n_threads : least);
    return true;
}

/* Whether what waits has written x, and its form p. */
static bool run_waiting(struct gpu_device *gpu, const struct gpu_rows *x, const struct kd_inputs *p)
{
    if (!gpu->is_waiting || p->has_order || !are_same(x, &gpu->waiting.out))
        return false;
    gpu->is_waiting =
        !(gpu->waiting.kernel == GPU_KERNEL_rms_norm ? run_norm(gpu, p) : run_silu(gpu, p));
    return !gpu->is_waiting;
}

bool gpu_has_inputs(struct gpu_device *gpu, const struct tensor *x, const struct kd_inputs *p)
{
    struct gpu_rows rows = rows_of(x);
    struct gpu_inputs *in = &gpu->inputs;
    bool is_there = in->of.rows && !p->has_order && are_same(&in->of, &rows) &&
                    memcmp(&in->form, p, sizeof *p) == 0;
    if (!is_there)
        is_there = run_waiting(gpu, &rows, p);
    gpu_release(gpu);
    in->of = p->has_order ? (struct gpu_rows){0} : rows;
    in->form = *p;
    return is_there;
}
