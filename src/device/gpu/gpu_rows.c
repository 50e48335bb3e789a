/* The ops that work on each row for itself, but those of gpu_inputs.c. */
#include "device/gpu/gpu_weight.h"

#include "base/size.h"

#include <assert.h>
#include <stdlib.h>

/* Every kernel here gives a threadgroup to a row, or to a part of it. */
static void run_rows(struct device *device, enum gpu_kernel_name kernel,
                     const struct gpu_range *buffers, int n_buffers, const void *args,
                     size_t args_bytes, int64_t rows, int64_t parts)
{
    gpu_run(gpu_device_of(device), kernel, buffers, n_buffers, args, args_bytes,
            (struct gpu_groups){rows, parts, 1}, KD_ROW_THREADS);
}

/* --- embed --------------------------------------------------------------------------------------
 */

struct embedding {
    struct gpu_weight weight;
    bool rounds_products; /* before biases are added, as the CPU's decoder does */
};

uint64_t gpu_embedding_bytes(const struct weight *weight)
{
    struct kd_weight shape;
    return gpu_table_describe(weight, &shape, NULL) == OK ? shape.matrix_bytes : 0;
}

enum status gpu_embedding_load(struct device *device, const struct weight *weight,
                               struct embedding **out, struct error *error)
{
    *out = NULL;
    assert(!weight->has_order);
    struct embedding *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(error, sizeof *e);
    /* Products of codes with other levels need no rounding. */
    e->rounds_products = weight->encoding == WEIGHT_AFFINE && weight->levels.type == LEVEL_F32;
    enum status status = gpu_table_load(gpu_device_of(device), &e->weight, weight, error);
    if (status != OK) {
        gpu_embedding_free(device, e);
        return status;
    }
    *out = e;
    return OK;
}

void gpu_embedding_free(struct device *device, struct embedding *e)
{
    if (e)
        gpu_weight_done(gpu_device_of(device), &e->weight);
    free(e);
}

void gpu_embed(struct device *device, const struct embed_args *args)
{
    const struct embedding *table = args->table;
    assert(args->ids.dtype == DTYPE_I32 && args->out.dtype == DTYPE_F32);
    assert((uint32_t)args->out.cols == table->weight.shape.cols);
    struct gpu_range buffers[] = {
        {table->weight.memory, 0}, gpu_tensor(&args->ids), gpu_tensor(&args->out)};
    struct kd_embed p = {.weight = table->weight.shape,
                         .ids_stride = (uint32_t)args->ids.stride,
                         .out_stride = (uint32_t)args->out.stride,
                         .rounds_products = table->rounds_products};
    run_rows(device, GPU_KERNEL_embed, buffers, 3, &p, sizeof p, args->out.rows,
             ceil_div(args->out.cols, KD_ROW_THREADS));
}

/* --- rope ---------------------------------------------------------------------------------------
 */

void gpu_rope_angles(struct device *device, const struct rope_angles_args *args)
{
    assert(args->positions.dtype == DTYPE_I32 && args->out.dtype == DTYPE_F32);
    struct gpu_range buffers[] = {gpu_tensor(&args->positions), gpu_tensor(&args->inv_freq),
                                  gpu_tensor(&args->out)};
    struct kd_rope_angles p = {.pairs = (uint32_t)args->out.cols / 2,
                               .positions_stride = (uint32_t)args->positions.stride,
                               .out_stride = (uint32_t)args->out.stride,
                               .scale = args->scale};
    run_rows(device, GPU_KERNEL_rope_angles, buffers, 3, &p, sizeof p, args->out.rows, 1);
}

void gpu_qk_norm_rope(struct device *device, const struct qk_norm_rope_args *args)
{
    int32_t dim = args->head_dim, rotated = args->angles.cols;
    assert(args->q.dtype == DTYPE_F32 && args->k.dtype == DTYPE_F32);
    assert(rotated <= dim && dim <= KD_MAX_HEAD_DIM && args->q.rows == args->k.rows);
    struct gpu_range buffers[] = {gpu_tensor(&args->q), gpu_tensor(&args->k),
                                  gpu_tensor(&args->angles), gpu_tensor(&args->q_norm),
                                  gpu_tensor(&args->k_norm)};
    int64_t n_simds = ceil_div(dim - rotated / 2, GPU_SIMD_WIDTH);
    struct kd_norm_rope p = {.head_dim = (uint32_t)dim,
                             .rotated = (uint32_t)rotated,
                             .q_stride = (uint32_t)args->q.stride,
                             .k_stride = (uint32_t)args->k.stride,
                             .angles_stride = (uint32_t)args->angles.stride,
                             .n_q_heads = (uint32_t)(args->q.cols / dim),
                             .n_simds = n_simds < KD_MAX_SIMDS ? (uint32_t)n_simds : KD_MAX_SIMDS,
                             .has_q_norm = args->q_norm.buffer != NULL,
                             .has_k_norm = args->k_norm.buffer != NULL,
                             .is_norm_last = args->norm_last,
                             .eps = args->eps,
                             .plus = args->plus_one ? 1.0f : 0.0f};
    gpu_run(gpu_device_of(device), GPU_KERNEL_norm_rope, buffers, 5, &p, sizeof p,
            (struct gpu_groups){args->q.rows, args->q.cols / dim + args->k.cols / dim, 1},
            p.n_simds * GPU_SIMD_WIDTH);
}

/* --- gates --------------------------------------------------------------------------------------
 */

void gpu_sigmoid_mul(struct device *device, const struct sigmoid_mul_args *args)
{
    assert(args->x.dtype == DTYPE_F32 && args->gate.cols == args->x.cols);
    struct gpu_range buffers[] = {gpu_tensor(&args->x), gpu_tensor(&args->gate),
                                  gpu_tensor(&args->out)};
    struct kd_sigmoid_mul p = {.cols = (uint32_t)args->x.cols,
                               .x_stride = (uint32_t)args->x.stride,
                               .gate_stride = (uint32_t)args->gate.stride,
                               .out_stride = (uint32_t)args->out.stride};
    run_rows(device, GPU_KERNEL_sigmoid_mul, buffers, 3, &p, sizeof p, args->x.rows,
             ceil_div(args->x.cols, KD_ROW_THREADS));
}

void gpu_gated_norm(struct device *device, const struct gated_norm_args *args)
{
    assert(args->x.dtype == DTYPE_F32 && args->x.cols % args->weight.cols == 0);
    struct gpu_range buffers[] = {gpu_tensor(&args->x), gpu_tensor(&args->z),
                                  gpu_tensor(&args->weight), gpu_tensor(&args->out)};
    struct kd_gated_norm p = {.head_dim = (uint32_t)args->weight.cols,
                              .x_stride = (uint32_t)args->x.stride,
                              .z_stride = (uint32_t)args->z.stride,
                              .out_stride = (uint32_t)args->out.stride,
                              .eps = args->eps};
    run_rows(device, GPU_KERNEL_gated_norm, buffers, 4, &p, sizeof p, args->x.rows,
             args->x.cols / args->weight.cols);
}

/* --- gather, fill_ids, moe_route -------------------------------------------------------------- */

void gpu_gather(struct device *device, const struct gather_args *args)
{
    assert(args->rows.dtype == DTYPE_I32 && args->x.dtype == args->out.dtype);
    uint32_t words = (uint32_t)dtype_bytes(args->x.dtype) / 2;
    struct gpu_range buffers[] = {gpu_tensor(&args->x), gpu_tensor(&args->rows),
                                  gpu_tensor(&args->out)};
    struct kd_gather p = {.words = (uint32_t)args->out.cols * words,
                          .rows_stride = (uint32_t)args->rows.stride,
                          .x_words = (uint32_t)args->x.stride * words,
                          .out_words = (uint32_t)args->out.stride * words};
    run_rows(device, GPU_KERNEL_gather, buffers, 3, &p, sizeof p, args->out.rows,
             ceil_div(p.words, KD_ROW_THREADS));
}

void gpu_fill_ids(struct device *device, const struct fill_ids_args *args)
{
    assert(args->ids.stride == 1 && args->from.stride == 1 && args->drawn.stride == 1);
    struct gpu_range buffers[] = {gpu_tensor(&args->ids), gpu_tensor(&args->from),
                                  gpu_tensor(&args->drawn)};
    struct kd_fill_ids p = {.n = (uint32_t)args->ids.rows};
    gpu_run(gpu_device_of(device), GPU_KERNEL_fill_ids, buffers, 3, &p, sizeof p,
            (struct gpu_groups){ceil_div(p.n, KD_ROW_THREADS), 1, 1}, KD_ROW_THREADS);
}

void gpu_moe_route(struct device *device, const struct moe_route_args *args)
{
    assert(args->logits.dtype == DTYPE_F32 && args->experts.dtype == DTYPE_I32);
    assert(args->experts.cols >= 1 && args->experts.cols <= args->logits.cols);
    struct gpu_range buffers[] = {gpu_tensor(&args->logits), gpu_tensor(&args->experts),
                                  gpu_tensor(&args->weights)};
    struct kd_moe_route p = {.n_experts = (uint32_t)args->logits.cols,
                             .n_chosen = (uint32_t)args->experts.cols,
                             .logits_stride = (uint32_t)args->logits.stride,
                             .experts_stride = (uint32_t)args->experts.stride,
                             .weights_stride = (uint32_t)args->weights.stride,
                             .is_normalised = args->is_normalised};
    gpu_run(gpu_device_of(device), GPU_KERNEL_moe_route, buffers, 3, &p, sizeof p,
            (struct gpu_groups){args->logits.rows, 1, 1}, KD_SIMD_WIDTH);
}
