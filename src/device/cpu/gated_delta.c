/* The gated delta rule: a task is one value head of one sequence. It takes the state from its slot,
 * hands its rows to the level's kernel in chunks that end where a snapshot is asked for, and writes
 * the state back. An f32 state is worked on in the slot that it goes to. */
#include "device/cpu/gated_delta.h"

#include "base/half.h"
#include "base/size.h"
#include "device/cpu/attention.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/states.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const struct delta_kernels *cpu_delta_kernels(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa >= CPU_ISA_AVX512)
        return &delta_kernels_avx512;
    if (isa >= CPU_ISA_AVX2)
        return &delta_kernels_avx2;
#elif defined(__aarch64__)
    if (isa >= CPU_ISA_NEON)
        return &delta_kernels_neon;
#endif
    (void)isa;
    return &delta_kernels_scalar;
}

/* --- a worker's memory ------------------------------------------------------------------------ */

/* A state, then q, k and delta of a chunk, then the kernel's own; each begins on 64 bytes. */
static size_t state_floats(const struct state_layout *layout)
{
    return size_round_up((size_t)layout->k_dim * (size_t)layout->v_dim, 16);
}

static size_t worker_bytes(const struct state_layout *layout)
{
    size_t k = (size_t)layout->k_dim, v = (size_t)layout->v_dim;
    size_t floats = state_floats(layout) + DELTA_CHUNK * (2 * k + v) +
                    delta_memory_floats(layout->k_dim, layout->v_dim);
    return size_round_up(floats * sizeof(float), 64);
}

size_t cpu_gated_delta_workspace(struct device *device, const struct state_layout *layout)
{
    return worker_bytes(layout) * (size_t)thread_pool_size(cpu_device_of(device)->pool);
}

enum status cpu_gated_delta_reserve(struct device *device, const struct state_layout *layout,
                                    struct error *error)
{
    struct cpu_device *cpu = cpu_device_of(device);
    if (layout->k_dim > DELTA_MAX_DIM || layout->v_dim > DELTA_MAX_DIM)
        return error_set(error, ERROR_LIMIT,
                         "a gated delta state of %d x %d; at most %d x %d can be run",
                         (int)layout->k_dim, (int)layout->v_dim, DELTA_MAX_DIM, DELTA_MAX_DIM);
    if (layout->conv_rows > STATE_MAX_CONV_ROWS)
        return error_set(error, ERROR_LIMIT,
                         "a convolution over %d rows before a token; at most %d can be run",
                         (int)layout->conv_rows, STATE_MAX_CONV_ROWS);
    return cpu_workspace_reserve(cpu, cpu_gated_delta_workspace(device, layout), error);
}

/* --- states ----------------------------------------------------------------------------------- */

static void load_state(const struct state_slots *slots, int32_t slot, int32_t head, float *state)
{
    size_t n = (size_t)slots->layout.k_dim * (size_t)slots->layout.v_dim;
    if (slot < 0) {
        memset(state, 0, n * sizeof *state);
        return;
    }
    const void *from = state_head(slots, slot, head);
    if (slots->layout.dtype == DTYPE_F32) {
        if (from != state)
            memcpy(state, from, n * sizeof *state);
        return;
    }
    for (size_t i = 0; i < n; i++)
        state[i] = f32_from_bf16(((const uint16_t *)from)[i]);
}

static void store_state(const struct cpu_device *cpu, const struct state_slots *slots, int32_t slot,
                        int32_t head, const float *state)
{
    size_t n = (size_t)slots->layout.k_dim * (size_t)slots->layout.v_dim;
    void *to = state_head(slots, slot, head);
    if (slots->layout.dtype == DTYPE_BF16)
        cpu->attention->round_bf16(state, to, (int)n);
    else if (to != state)
        memcpy(to, state, n * sizeof *state);
}

/* Where head `head` of a sequence is worked on. */
static float *working_state(const struct state_slots *slots, int32_t out, int32_t head,
                            float *memory)
{
    return out >= 0 && slots->layout.dtype == DTYPE_F32 ? state_head(slots, out, head) : memory;
}

/* --- the op ----------------------------------------------------------------------------------- */

struct delta_run {
    struct cpu_device *cpu;
    const struct gated_delta_args *args;
    int32_t n_k_heads;
};

static int32_t count_key_heads(const struct state_layout *layout)
{
    return (layout->conv_channels - layout->n_v_heads * layout->v_dim) / (2 * layout->k_dim);
}

static int32_t key_head_of(const struct state_layout *layout, int32_t value)
{
    int32_t n_k_heads = count_key_heads(layout);
    return layout->is_tiled ? value % n_k_heads : value / (layout->n_v_heads / n_k_heads);
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* One value head's part of a task. */
struct head {
    int32_t value, key; /* the head, and its key head */
    float *q, *k;       /* of a chunk, normalized */
    float g[DELTA_CHUNK], beta[DELTA_CHUNK];
    bool writes_keys; /* of its key head, to the tape */
};

static void prepare(const struct delta_run *run, struct head *head, int32_t first, int32_t n)
{
    const struct gated_delta_args *args = run->args;
    const struct delta_kernels *kernels = run->cpu->delta;
    int32_t k_dim = args->slots.layout.k_dim, h = head->value;
    double rate = (double)((const float *)tensor_at(&args->rate, 0))[h];
    double bias = (double)((const float *)tensor_at(&args->dt_bias, 0))[h];
    float scale = 1 / sqrtf((float)k_dim);
    for (int32_t i = 0; i < n; i++) {
        const float *row = tensor_at(&args->qkv, first + i);
        double a = (double)((const float *)tensor_at(&args->a, first + i))[h];
        double b = (double)((const float *)tensor_at(&args->b, first + i))[h];
        head->g[i] = (float)(-rate * softplus(a + bias));
        head->beta[i] = (float)(1 / (1 + exp(-b)));
        kernels->normalize(row + head->key * k_dim, head->q + i * k_dim, k_dim, scale);
        kernels->normalize(row + (run->n_k_heads + head->key) * k_dim, head->k + i * k_dim, k_dim,
                           1);
    }
}

static void write_tape(const struct delta_run *run, const struct head *head, const float *delta,
                       int32_t first, int32_t n)
{
    const struct state_layout *layout = &run->args->slots.layout;
    size_t k_dim = (size_t)layout->k_dim, v_dim = (size_t)layout->v_dim;
    for (int32_t i = 0; i < n; i++) {
        float *to = tensor_at(&run->args->tape, first + i);
        memcpy(to + (size_t)head->value * v_dim, delta + (size_t)i * v_dim, v_dim * sizeof *to);
        to += (size_t)layout->n_v_heads * v_dim;
        if (head->writes_keys)
            memcpy(to + (size_t)head->key * k_dim, head->k + (size_t)i * k_dim, k_dim * sizeof *to);
        to[(size_t)run->n_k_heads * k_dim + (size_t)head->value] = head->g[i];
    }
}

/* Rows first .. first + n - 1, at most a chunk. */
static void advance(const struct delta_run *run, struct head *head, float *state, float *memory,
                    int32_t first, int32_t n)
{
    const struct gated_delta_args *args = run->args;
    const struct state_layout *layout = &args->slots.layout;
    int32_t k_dim = layout->k_dim, v_dim = layout->v_dim;
    size_t delta_floats = (size_t)DELTA_CHUNK * (size_t)v_dim;
    struct delta_rows rows = {
        .n = n,
        .k_dim = k_dim,
        .v_dim = v_dim,
        .q = head->q,
        .k = head->k,
        .v = (const float *)tensor_at(&args->qkv, first) + 2 * run->n_k_heads * k_dim +
             head->value * v_dim,
        .v_stride = (size_t)args->qkv.stride,
        .g = head->g,
        .beta = head->beta,
        .out = (float *)tensor_at(&args->out, first) + head->value * v_dim,
        .out_stride = (size_t)args->out.stride,
        .delta = memory,
        .memory = memory + delta_floats,
    };
    prepare(run, head, first, n);
    run->cpu->delta->advance(&rows, state);
    if (args->tape.buffer)
        write_tape(run, head, rows.delta, first, n);
}

static void delta_task(void *context, int task, int worker)
{
    const struct delta_run *run = context;
    const struct gated_delta_args *args = run->args;
    const struct state_slots *slots = &args->slots;
    const struct state_layout *layout = &slots->layout;
    int32_t sequence = task / layout->n_v_heads;
    size_t k_floats = (size_t)DELTA_CHUNK * (size_t)layout->k_dim;
    float *memory =
        (float *)(void *)((char *)run->cpu->workspace.host + (size_t)worker * worker_bytes(layout));
    struct head head = {.value = task % layout->n_v_heads};
    head.key = key_head_of(layout, head.value);
    /* The first of the value heads that share a key head writes its keys. */
    int32_t sharing = layout->n_v_heads / run->n_k_heads;
    head.writes_keys = head.value == (layout->is_tiled ? head.key : head.key * sharing);
    int32_t out = value_at(&args->state_out, sequence, 0);
    float *state = working_state(slots, out, head.value, memory);
    head.q = memory + state_floats(layout);
    head.k = head.q + k_floats;
    memory = head.k + k_floats;

    load_state(slots, value_at(&args->state_in, sequence, 0), head.value, state);
    int32_t first = value_at(&args->q_start, sequence, 0), snapshot = 0;
    int32_t end = value_at(&args->q_start, sequence + 1, 0);
    while (snapshot < args->snapshots.rows && value_at(&args->snapshots, snapshot, 0) < first)
        snapshot++;
    while (first < end) {
        int32_t stop = end - first < DELTA_CHUNK ? end : first + DELTA_CHUNK;
        bool is_marked =
            snapshot < args->snapshots.rows && value_at(&args->snapshots, snapshot, 0) < stop;
        if (is_marked)
            stop = value_at(&args->snapshots, snapshot, 0) + 1;
        if (stop > first)
            advance(run, &head, state, memory, first, stop - first);
        if (is_marked)
            store_state(run->cpu, slots, value_at(&args->snapshots, snapshot++, 1), head.value,
                        state);
        first = stop;
    }
    if (out >= 0)
        store_state(run->cpu, slots, out, head.value, state);
}

void cpu_gated_delta(struct device *device, const struct gated_delta_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const struct state_layout *layout = &args->slots.layout;
    struct delta_run run = {cpu, args, count_key_heads(layout)};
    assert(args->qkv.cols == layout->conv_channels);
    assert(layout->n_v_heads % run.n_k_heads == 0);
    assert(cpu->workspace.bytes >= worker_bytes(layout) * (size_t)thread_pool_size(cpu->pool));
    thread_pool_run(cpu->pool, delta_task, &run, args->state_in.rows * layout->n_v_heads);
}

/* --- commit ----------------------------------------------------------------------------------- */

struct commit_run {
    struct cpu_device *cpu;
    const struct gated_delta_commit_args *args;
};

/* The last task of a sequence moves its rows of the convolution. */
static void commit_task(void *context, int task, int worker)
{
    const struct commit_run *run = context;
    const struct gated_delta_commit_args *args = run->args;
    const struct state_slots *slots = &args->slots;
    const struct state_layout *layout = &slots->layout;
    int32_t sequence = task / (layout->n_v_heads + 1), head = task % (layout->n_v_heads + 1);
    if (head == layout->n_v_heads) {
        conv_commit(args, sequence);
        return;
    }
    int32_t k_dim = layout->k_dim, v_dim = layout->v_dim, n_k_heads = count_key_heads(layout);
    int32_t out = value_at(&args->state_out, sequence, 0);
    int32_t first = value_at(&args->q_start, sequence, 0);
    float *memory =
        (float *)(void *)((char *)run->cpu->workspace.host + (size_t)worker * worker_bytes(layout));
    float *state = working_state(slots, out, head, memory);
    load_state(slots, value_at(&args->state_in, sequence, 0), head, state);
    for (int32_t i = 0; i < value_at(&args->n_accepted, sequence, 0); i++) {
        const float *row = tensor_at(&args->tape, first + i);
        const float *keys = row + layout->n_v_heads * v_dim;
        run->cpu->delta->replay(keys + key_head_of(layout, head) * k_dim, row + head * v_dim,
                                keys[n_k_heads * k_dim + head], state, k_dim, v_dim);
    }
    store_state(run->cpu, slots, out, head, state);
}

void cpu_gated_delta_commit(struct device *device, const struct gated_delta_commit_args *args)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct commit_run run = {cpu, args};
    int32_t tasks = args->slots.layout.n_v_heads + 1;
    assert(args->tape.cols == gated_delta_tape_cols(&args->slots.layout));
    thread_pool_run(cpu->pool, commit_task, &run, args->state_in.rows * tasks);
}
