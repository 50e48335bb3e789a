/* Recurrent states: the convolution, the gated delta rule, slots (kernels/args.h, struct
 * kd_states). */
#include "device/gpu/gpu_device.h"

#include "base/size.h"

#include <assert.h>
#include <math.h>

enum { SLOT_ALIGN = 64 };

static size_t state_bytes(const struct state_layout *layout)
{
    return size_round_up((size_t)layout->n_v_heads * (size_t)layout->k_dim *
                             (size_t)layout->v_dim * dtype_bytes(layout->dtype),
                         SLOT_ALIGN);
}

size_t gpu_state_slot_bytes(const struct device *device, const struct state_layout *layout)
{
    (void)device;
    size_t rows = (size_t)layout->conv_rows * (size_t)layout->conv_channels * sizeof(float);
    return state_bytes(layout) + size_round_up(rows, SLOT_ALIGN);
}

enum status gpu_gated_delta_reserve(struct device *device, const struct state_layout *layout,
                                    struct error *error)
{
    (void)device;
    if (layout->k_dim > KD_MAX_STATE_DIM || layout->v_dim > KD_MAX_STATE_DIM)
        return error_set(error, ERROR_LIMIT,
                         "a gated delta state of %d x %d; at most %d x %d can be run",
                         (int)layout->k_dim, (int)layout->v_dim, KD_MAX_STATE_DIM,
                         KD_MAX_STATE_DIM);
    if (layout->conv_rows > KD_MAX_CONV_ROWS)
        return error_set(error, ERROR_LIMIT,
                         "a convolution over %d rows before a token; at most %d can be run",
                         (int)layout->conv_rows, KD_MAX_CONV_ROWS);
    return OK;
}

size_t gpu_gated_delta_workspace(struct device *device, const struct state_layout *layout)
{
    (void)device;
    (void)layout;
    return 0;
}

static struct kd_states shape_of(const struct state_slots *slots)
{
    const struct state_layout *l = &slots->layout;
    int32_t keys = l->conv_channels - l->n_v_heads * l->v_dim;
    return (struct kd_states){.slot_bytes = slots->slot_bytes,
                              .rows_offset = state_bytes(l),
                              .n_v_heads = (uint32_t)l->n_v_heads,
                              .n_k_heads = (uint32_t)(keys / (2 * l->k_dim)),
                              .k_dim = (uint32_t)l->k_dim,
                              .v_dim = (uint32_t)l->v_dim,
                              .channels = (uint32_t)l->conv_channels,
                              .conv_rows = (uint32_t)l->conv_rows,
                              .dtype = l->dtype,
                              .is_tiled = l->is_tiled};
}

static struct gpu_range memory_of(const struct state_slots *slots, int32_t slot)
{
    return (struct gpu_range){slots->buffer->handle,
                              slots->offset + (size_t)slot * slots->slot_bytes};
}

/* `snapshots` NULL: none are asked for. */
static struct kd_sequences sequences_of(const struct tensor *q_start, const struct tensor *state_in,
                                        const struct tensor *state_out,
                                        const struct tensor *snapshots)
{
    return (struct kd_sequences){
        .q_start_stride = (uint32_t)q_start->stride,
        .state_in_stride = (uint32_t)state_in->stride,
        .state_out_stride = (uint32_t)state_out->stride,
        .n_snapshots = snapshots ? (uint32_t)snapshots->rows : 0,
        .snapshots_stride = snapshots ? (uint32_t)snapshots->stride : 0};
}

/* A thread a channel. */
static struct gpu_groups channel_groups(const struct state_slots *slots, int32_t n_sequences)
{
    return (struct gpu_groups){ceil_div(slots->layout.conv_channels, KD_ROW_THREADS), n_sequences,
                               1};
}

/* A threadgroup a value head, a thread a column of its state. */
static void run_heads(struct device *device, enum gpu_kernel_name kernel,
                      const struct gpu_range *buffers, int n_buffers, const void *args,
                      size_t args_bytes, const struct state_slots *slots, int32_t n_sequences)
{
    gpu_run(gpu_device_of(device), kernel, buffers, n_buffers, args, args_bytes,
            (struct gpu_groups){slots->layout.n_v_heads, n_sequences, 1},
            (uint32_t)size_round_up((size_t)slots->layout.v_dim, KD_SIMD_WIDTH));
}

void gpu_conv1d_update(struct device *device, const struct conv1d_update_args *args)
{
    assert(args->slots.layout.conv_rows <= KD_MAX_CONV_ROWS);
    assert(args->weight.rows == args->slots.layout.conv_rows + 1);
    assert(args->x.cols == args->slots.layout.conv_channels && args->out.cols == args->x.cols);
    struct gpu_range buffers[] = {gpu_tensor(&args->x),         gpu_tensor(&args->weight),
                                  gpu_tensor(&args->out),       memory_of(&args->slots, 0),
                                  gpu_tensor(&args->q_start),   gpu_tensor(&args->state_in),
                                  gpu_tensor(&args->state_out), gpu_tensor(&args->snapshots)};
    struct kd_conv1d p = {.states = shape_of(&args->slots),
                          .sequences = sequences_of(&args->q_start, &args->state_in,
                                                    &args->state_out, &args->snapshots),
                          .x_stride = (uint32_t)args->x.stride,
                          .weight_stride = (uint32_t)args->weight.stride,
                          .out_stride = (uint32_t)args->out.stride};
    gpu_run(gpu_device_of(device), GPU_KERNEL_conv1d_update, buffers, 8, &p, sizeof p,
            channel_groups(&args->slots, args->state_in.rows), KD_ROW_THREADS);
}

void gpu_gated_delta(struct device *device, const struct gated_delta_args *args)
{
    struct gpu_range buffers[] = {
        gpu_tensor(&args->qkv),       gpu_tensor(&args->a),         gpu_tensor(&args->b),
        gpu_tensor(&args->rate),      gpu_tensor(&args->dt_bias),   gpu_tensor(&args->out),
        gpu_tensor(&args->tape),      memory_of(&args->slots, 0),   gpu_tensor(&args->q_start),
        gpu_tensor(&args->state_in),  gpu_tensor(&args->state_out), gpu_tensor(&args->snapshots)};
    struct kd_gated_delta p = {.states = shape_of(&args->slots),
                               .sequences = sequences_of(&args->q_start, &args->state_in,
                                                         &args->state_out, &args->snapshots),
                               .qkv_stride = (uint32_t)args->qkv.stride,
                               .a_stride = (uint32_t)args->a.stride,
                               .b_stride = (uint32_t)args->b.stride,
                               .out_stride = (uint32_t)args->out.stride,
                               .has_tape = args->tape.buffer != NULL,
                               .tape_stride = (uint32_t)args->tape.stride,
                               .q_scale = 1.0f / sqrtf((float)args->slots.layout.k_dim)};
    run_heads(device, GPU_KERNEL_gated_delta, buffers, 12, &p, sizeof p, &args->slots,
              args->state_in.rows);
}

void gpu_gated_delta_commit(struct device *device, const struct gated_delta_commit_args *args)
{
    struct kd_delta_commit p = {
        .states = shape_of(&args->slots),
        .sequences = sequences_of(&args->q_start, &args->state_in, &args->state_out, NULL),
        .n_accepted_stride = (uint32_t)args->n_accepted.stride,
        .x_stride = (uint32_t)args->x.stride,
        .tape_stride = (uint32_t)args->tape.stride};
    struct gpu_range buffers[] = {gpu_tensor(&args->tape),       memory_of(&args->slots, 0),
                                  gpu_tensor(&args->q_start),    gpu_tensor(&args->n_accepted),
                                  gpu_tensor(&args->state_in),   gpu_tensor(&args->state_out)};
    run_heads(device, GPU_KERNEL_gated_delta_commit, buffers, 6, &p, sizeof p, &args->slots,
              args->state_in.rows);
    buffers[0] = gpu_tensor(&args->x);
    gpu_run(gpu_device_of(device), GPU_KERNEL_conv1d_commit, buffers, 6, &p, sizeof p,
            channel_groups(&args->slots, args->state_in.rows), KD_ROW_THREADS);
}

void gpu_state_copy(struct device *device, const struct state_copy_args *args)
{
    if (args->from == args->to)
        return;
    struct gpu_range buffers[] = {memory_of(&args->slots, args->from),
                                  memory_of(&args->slots, args->to)};
    struct kd_state_copy p = {.words = args->slots.slot_bytes / 4};
    gpu_run(gpu_device_of(device), GPU_KERNEL_state_copy, buffers, 2, &p, sizeof p,
            (struct gpu_groups){ceil_div((int64_t)p.words, KD_ROW_THREADS), 1, 1}, KD_ROW_THREADS);
}
