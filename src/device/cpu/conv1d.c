/* The convolution before the gated delta rule: each sequence's rows go on from those in its slot.
 * Tasks are a sequence and a stretch of channels, which no other task reads or writes. */
#include "device/cpu/cpu_device.h"
#include "device/cpu/gated_delta.h"
#include "device/cpu/states.h"

#include "base/size.h"

#include <assert.h>
#include <string.h>

enum { STRETCH = 512 };

/* One task's rows: `before` are the conv_rows rows ahead of row 0, NULL: zeros. */
struct stretch {
    const struct conv1d_update_args *args;
    const float *before;
    int32_t first, n; /* rows of the step */
    int32_t channel, n_channels;
};

/* Row `row` of the rows before and then the step's, from the stretch's first channel. */
static const float *row_at(const struct stretch *s, int32_t row)
{
    static const float zeros[STRETCH];
    const struct state_layout *layout = &s->args->slots.layout;
    if (row >= layout->conv_rows)
        return (const float *)tensor_at(&s->args->x, s->first + row - layout->conv_rows) +
               s->channel;
    return s->before ? s->before + (size_t)row * (size_t)layout->conv_channels + s->channel : zeros;
}

/* Stores the conv_rows rows that precede row `n` of the sequence. Where a slot is read and written,
 * the rows move towards its start, one after another. */
static void store(const struct stretch *s, int32_t n, int32_t slot)
{
    const struct state_layout *layout = &s->args->slots.layout;
    float *to = state_rows(&s->args->slots, slot) + s->channel;
    for (int32_t i = 0; i < layout->conv_rows; i++, to += layout->conv_channels)
        memmove(to, row_at(s, n + i), (size_t)s->n_channels * sizeof *to);
}

static void convolve(const struct delta_kernels *kernels, const struct stretch *s)
{
    const struct conv1d_update_args *args = s->args;
    int32_t n_taps = args->weight.rows;
    const float *weight = (const float *)tensor_at(&args->weight, 0) + s->channel;
    for (int32_t row = 0; row < s->n; row++) {
        const float *rows[STATE_MAX_CONV_ROWS + 1];
        for (int32_t j = 0; j < n_taps; j++)
            rows[j] = row_at(s, row + j);
        kernels->convolve(rows, n_taps, weight, (size_t)args->weight.stride,
                          (float *)tensor_at(&args->out, s->first + row) + s->channel,
                          s->n_channels);
    }
}

struct conv_run {
    const struct delta_kernels *kernels;
    const struct conv1d_update_args *args;
    int32_t n_stretches;
};

static void run_task(void *context, int task, int worker)
{
    (void)worker;
    const struct conv_run *run = context;
    const struct conv1d_update_args *args = run->args;
    int32_t sequence = task / run->n_stretches, rest;
    int32_t in = value_at(&args->state_in, sequence, 0);
    int32_t out = value_at(&args->state_out, sequence, 0);
    struct stretch s = {.args = args,
                        .before = in >= 0 ? state_rows(&args->slots, in) : NULL,
                        .first = value_at(&args->q_start, sequence, 0),
                        .channel = task % run->n_stretches * STRETCH};
    s.n = value_at(&args->q_start, sequence + 1, 0) - s.first;
    rest = args->x.cols - s.channel;
    s.n_channels = rest < STRETCH ? rest : STRETCH;
    convolve(run->kernels, &s);
    for (int32_t i = 0; i < args->snapshots.rows; i++) {
        int32_t row = value_at(&args->snapshots, i, 0) - s.first;
        if (row >= 0 && row < s.n)
            store(&s, row + 1, value_at(&args->snapshots, i, 1));
    }
    if (out >= 0)
        store(&s, s.n, out);
}

void cpu_conv1d_update(struct device *device, const struct conv1d_update_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    assert(args->slots.layout.conv_rows <= STATE_MAX_CONV_ROWS);
    assert(args->weight.rows == args->slots.layout.conv_rows + 1);
    assert(args->x.cols == args->slots.layout.conv_channels && args->out.cols == args->x.cols);
    struct conv_run run = {cpu->delta, args, (int32_t)ceil_div(args->x.cols, STRETCH)};
    thread_pool_run(cpu->pool, run_task, &run, args->state_in.rows * run.n_stretches);
}

void conv_commit(const struct gated_delta_commit_args *args, int32_t sequence)
{
    const struct state_layout *layout = &args->slots.layout;
    int32_t in = value_at(&args->state_in, sequence, 0);
    struct conv1d_update_args rows = {.slots = args->slots, .x = args->x};
    for (int32_t channel = 0; channel < layout->conv_channels; channel += STRETCH) {
        int32_t rest = layout->conv_channels - channel;
        struct stretch s = {.args = &rows,
                            .before = in >= 0 ? state_rows(&args->slots, in) : NULL,
                            .first = value_at(&args->q_start, sequence, 0),
                            .channel = channel,
                            .n_channels = rest < STRETCH ? rest : STRETCH};
        store(&s, value_at(&args->n_accepted, sequence, 0),
              value_at(&args->state_out, sequence, 0));
    }
}
