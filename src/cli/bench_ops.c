/* csgl bench_ops: one op of the device at given shapes, against what the machine can do. Each op is
 * a row of a table: how it is prepared and called, and what a call costs. */
#include "base/log.h"
#include "base/size.h"
#include "base/system.h"
#include "bench/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random.h"
#include "cli/bench_common.h"
#include "cli/commands.h"
#include "device/cpu/cpu.h"
#include "engine/memory_plan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COPIES = 64, COLD_BYTES = 128 << 20, MAX_ROWS = 1 << 16, PAGE_SIZE = 16 };

struct bench {
    struct model_options options; /* threads, activations, kv_cache_dtype */
    const char *rows_text, *quantization, *output_file;
    int mlx_bits; /* of mlx_q4 and mlx_q8; 0: the weights are as made */
    struct int_list rows;
    int n_experts, top_k;
    int n, k, batch_size, context_len, n_heads, n_kv_heads, head_dim, window, runs;
    bool is_json;
    struct device *device;
    struct random_weights *weights;
    struct cpu_limits limits;
    uint64_t random;
};

/* One op, prepared for `rows` rows. Buffers are the harness's to free. */
enum { MAX_BUFFERS = 12 };
struct prepared {
    struct buffer buffers[MAX_BUFFERS];
    int n_buffers;
    struct linear *linears[MAX_COPIES]; /* copies, so that weights come from memory */
    int n_copies;
    struct linear_args linear;
    struct experts *experts;
    struct moe_ffn_args moe;
    struct paged_attention_args attention;
    size_t layer_bytes; /* of its pages; layers take turns, so that they come from memory */
    int n_layers;
    struct gated_delta_args delta;
    struct op_cost cost;
    enum arithmetic arithmetic;
};

struct op_bench {
    const char *name, *about;
    enum status (*prepare)(struct bench *b, struct prepared *p, int32_t rows, struct error *error);
    void (*call)(struct bench *b, struct prepared *p, int i);
    void (*describe)(const struct bench *b, struct report *r);
};

/* --- memory ----------------------------------------------------------------------------------- */

static enum status new_tensor(struct bench *b, struct prepared *p, int32_t rows, int32_t cols,
                              enum dtype dtype, struct tensor *out, struct error *error)
{
    struct buffer *buffer = &p->buffers[p->n_buffers];
    size_t bytes = (size_t)rows * (size_t)cols * dtype_bytes(dtype);
    enum status status = b->device->table->buffer_alloc(b->device, bytes, buffer, error);
    if (status != OK)
        return status;
    p->n_buffers++;
    *out = (struct tensor){
        .buffer = buffer, .dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
    return OK;
}

static enum status new_values(struct bench *b, struct prepared *p, int32_t rows, int32_t cols,
                              struct tensor *out, struct error *error)
{
    enum status status = new_tensor(b, p, rows, cols, DTYPE_F32, out, error);
    float *values = status == OK ? tensor_at(out, 0) : NULL;
    for (size_t i = 0; values && i < (size_t)rows * (size_t)cols; i++)
        values[i] = (float)(rng_uniform(&b->random) * 2.0 - 1.0);
    return status;
}

static void release(struct bench *b, struct prepared *p)
{
    for (int i = 0; i < p->n_copies; i++)
        b->device->table->linear_free(b->device, p->linears[i]);
    if (p->experts)
        b->device->table->experts_free(b->device, p->experts);
    for (int i = 0; i < p->n_buffers; i++)
        b->device->table->buffer_free(b->device, &p->buffers[i]);
}

/* What quantized weights are multiplied in. */
static enum arithmetic linear_arithmetic(const struct bench *b)
{
    return cpu_device_activations(b->device) == ACTIVATIONS_INT8 ? ARITHMETIC_INT8 : ARITHMETIC_F32;
}

/* A weight of the type asked for. */
static enum status make_weight(struct bench *b, const char *name, int32_t rows, int32_t cols,
                               struct weight *out, struct error *error)
{
    enum { GROUP = 64 };
    enum status status =
        random_weights_make(b->weights, name, rows, cols, b->mlx_bits == 0, out, error);
    if (status != OK || b->mlx_bits == 0)
        return status;
    if (cols % GROUP)
        return error_set(error, ERROR_INVALID, "%d columns are not whole groups of %d; use others",
                         (int)cols, GROUP);
    *out = weight_quantized(out, b->mlx_bits, GROUP);
    return random_weights_fill(b->weights, name, out, error);
}

/* --- linear ----------------------------------------------------------------------------------- */

static enum status load_copy(struct bench *b, struct prepared *p, int32_t rows, struct error *error)
{
    struct weight_slice slice = {.rows = b->n, .cols = b->k};
    char name[32];
    snprintf(name, sizeof name, "copy %d", p->n_copies);
    enum status status = make_weight(b, name, b->n, b->k, &slice.weight, error);
    if (status == OK)
        status = b->device->table->linear_load(b->device, &slice, 1, rows, &p->linears[p->n_copies],
                                               error);
    random_weights_release(b->weights, slice.weight.data);
    if (status == OK)
        p->n_copies++;
    return status;
}

static enum status prepare_linear(struct bench *b, struct prepared *p, int32_t rows,
                                  struct error *error)
{
    enum status status = load_copy(b, p, rows, error);
    size_t bytes = status == OK ? b->device->table->linear_size(p->linears[0]) : 1;
    while (status == OK && p->n_copies < MAX_COPIES && (size_t)p->n_copies * bytes < COLD_BYTES)
        status = load_copy(b, p, rows, error);
    if (status == OK)
        status = new_values(b, p, rows, b->k, &p->linear.x, error);
    if (status == OK)
        status = new_tensor(b, p, rows, b->n, DTYPE_F32, &p->linear.out, error);
    if (status != OK)
        return status;
    p->linear.linear = p->linears[0];
    p->cost = profile_cost_linear(b->device, &p->linear);
    p->arithmetic = linear_arithmetic(b);
    return OK;
}

static void call_linear(struct bench *b, struct prepared *p, int i)
{
    p->linear.linear = p->linears[i % p->n_copies];
    device_linear(b->device, &p->linear);
}

static void describe_linear(const struct bench *b, struct report *r)
{
    report_int(r, "n", "outputs (n)", b->n);
    report_int(r, "k", "inputs (k)", b->k);
    report_text(r, "quantization", "weights", b->quantization);
}

/* --- attention -------------------------------------------------------------------------------- */

static enum status fill_tables(struct bench *b, struct prepared *p, int32_t rows, int32_t n_pages,
                               struct error *error)
{
    struct paged_attention_args *a = &p->attention;
    enum status status = new_tensor(b, p, b->batch_size + 1, 1, DTYPE_I32, &a->q_start, error);
    if (status == OK)
        status = new_tensor(b, p, b->batch_size, 1, DTYPE_I32, &a->kv_len, error);
    if (status == OK)
        status = new_tensor(b, p, b->batch_size, n_pages, DTYPE_I32, &a->page_table, error);
    if (status != OK)
        return status;
    int32_t *q_start = tensor_at(&a->q_start, 0), *kv_len = tensor_at(&a->kv_len, 0);
    for (int32_t i = 0; i < b->batch_size; i++) {
        int32_t *pages = tensor_at(&a->page_table, i);
        q_start[i + 1] = (i + 1) * rows;
        kv_len[i] = b->context_len;
        for (int32_t k = 0; k < n_pages; k++)
            pages[k] = i * n_pages + k;
    }
    return OK;
}

/* Random keys and values, stored as a model stores them, a page after the other. */
static enum status fill_pages(struct bench *b, struct prepared *p, int32_t n_pages,
                              struct error *error)
{
    struct kv_store_args store = {.pages = p->attention.pages};
    struct prepared own = {0};
    int32_t cols = b->n_kv_heads * b->head_dim;
    enum status status = new_values(b, &own, PAGE_SIZE, cols, &store.k, error);
    if (status == OK)
        status = new_values(b, &own, PAGE_SIZE, cols, &store.v, error);
    if (status == OK)
        status = new_tensor(b, &own, PAGE_SIZE, 1, DTYPE_I32, &store.slots, error);
    for (int32_t page = 0; status == OK && page < n_pages; page++) {
        int32_t *slots = tensor_at(&store.slots, 0);
        for (int32_t i = 0; i < PAGE_SIZE; i++)
            slots[i] = page * PAGE_SIZE + i;
        device_kv_store(b->device, &store);
    }
    release(b, &own);
    return status;
}

static enum status prepare_attention(struct bench *b, struct prepared *p, int32_t rows,
                                     struct error *error)
{
    struct paged_attention_args *a = &p->attention;
    int32_t n_rows = rows * b->batch_size, cols = b->n_heads * b->head_dim;
    int32_t n_pages = (b->context_len + PAGE_SIZE - 1) / PAGE_SIZE;
    struct kv_layout layout = {.page_size = PAGE_SIZE,
                               .n_heads = b->n_kv_heads,
                               .head_dim = b->head_dim,
                               .dtype = kv_dtype_of_word(b->options.kv_cache_dtype)};
    if (rows > b->context_len || b->n_heads % b->n_kv_heads)
        return error_set(error, ERROR_INVALID,
                         "%d rows of a context of %d, %d heads over %d key-value heads: rows are "
                         "at most the context, and heads a multiple",
                         (int)rows, b->context_len, b->n_heads, b->n_kv_heads);
    size_t bytes = b->device->table->kv_page_bytes(b->device, &layout) * (size_t)n_pages *
                   (size_t)b->batch_size;
    p->layer_bytes = size_round_up(bytes, 64);
    p->n_layers = 1;
    while (p->n_layers < MAX_COPIES && (size_t)p->n_layers * bytes < COLD_BYTES)
        p->n_layers++;
    enum status status = b->device->table->buffer_alloc(
        b->device, p->layer_bytes * (size_t)p->n_layers, &p->buffers[p->n_buffers], error);
    if (status != OK)
        return status;
    *a = (struct paged_attention_args){
        .pages = {.buffer = &p->buffers[p->n_buffers++], .layout = layout},
        .n_sequences = b->batch_size,
        .n_q_heads = b->n_heads,
        .window = b->window,
        .scale = 0.1f};
    status = b->device->table->attention_reserve(b->device, &layout, b->n_heads, n_rows,
                                                 b->batch_size, error);
    if (status == OK)
        status = new_values(b, p, n_rows, cols, &a->q, error);
    if (status == OK)
        status = new_tensor(b, p, n_rows, cols, DTYPE_F32, &a->out, error);
    if (status == OK)
        status = fill_tables(b, p, rows, n_pages, error);
    for (int i = 0; i < p->n_layers && status == OK; i++) {
        a->pages.offset = p->layer_bytes * (size_t)i;
        status = fill_pages(b, p, n_pages * b->batch_size, error);
    }
    if (status == OK)
        p->cost = profile_cost_paged_attention(b->device, a);
    bool is_rounded = cpu_device_activations(b->device) == ACTIVATIONS_INT8 &&
                      layout.dtype != DTYPE_F32 && layout.dtype != DTYPE_F16 &&
                      b->limits.operations_per_s[ARITHMETIC_BF16][1] > 0;
    p->arithmetic = is_rounded ? ARITHMETIC_BF16 : ARITHMETIC_F32;
    return status;
}

static void call_attention(struct bench *b, struct prepared *p, int i)
{
    p->attention.pages.offset = p->layer_bytes * (size_t)(i % p->n_layers);
    device_paged_attention(b->device, &p->attention);
}

static void describe_attention(const struct bench *b, struct report *r)
{
    report_int(r, "batch_size", "sequences", b->batch_size);
    report_int(r, "context_len", "tokens of each", b->context_len);
    report_int(r, "n_heads", "query heads", b->n_heads);
    report_int(r, "n_kv_heads", "key-value heads", b->n_kv_heads);
    report_int(r, "head_dim", "dimensions of a head", b->head_dim);
    report_int(r, "window", b->window ? "window" : NULL, b->window);
}

/* --- mixture of experts ----------------------------------------------------------------------- */

static enum status new_slice(struct bench *b, const char *part, int32_t e, int32_t rows,
                             int32_t cols, struct weight_slice *out, struct error *error)
{
    char name[48];
    snprintf(name, sizeof name, "experts.%d.%s", (int)e, part);
    *out = (struct weight_slice){.rows = rows, .cols = cols};
    return make_weight(b, name, rows, cols, &out->weight, error);
}

static enum status open_expert(void *context, int32_t e, struct expert_slices *out,
                               struct error *error)
{
    struct bench *b = context;
    enum status status = new_slice(b, "gate", e, b->n, b->k, &out->gate, error);
    if (status == OK)
        status = new_slice(b, "up", e, b->n, b->k, &out->up, error);
    if (status == OK)
        status = new_slice(b, "down", e, b->k, b->n, &out->down, error);
    return status;
}

static void close_expert(void *context, int32_t e, const struct expert_slices *slices)
{
    struct bench *b = context;
    (void)e;
    random_weights_release(b->weights, slices->gate.weight.data);
    random_weights_release(b->weights, slices->up.weight.data);
    random_weights_release(b->weights, slices->down.weight.data);
}

static enum status load_experts(struct bench *b, struct prepared *p, int32_t rows,
                                struct error *error)
{
    struct expert_source source = {open_expert, close_expert, b};
    return b->device->table->experts_load(b->device, &source, b->n_experts, b->top_k, rows,
                                          &p->experts, error);
}

/* Each row chooses K neighbouring experts, beginning somewhere. */
static enum status prepare_moe(struct bench *b, struct prepared *p, int32_t rows,
                               struct error *error)
{
    struct moe_ffn_args *a = &p->moe;
    if (b->top_k > b->n_experts)
        return error_set(error, ERROR_INVALID,
                         "--top-k %d is more than the %d experts of --num-experts", b->top_k,
                         b->n_experts);
    enum status status = load_experts(b, p, rows, error);
    if (status == OK)
        status = new_values(b, p, rows, b->k, &a->x, error);
    if (status == OK)
        status = new_values(b, p, rows, b->top_k, &a->weights, error);
    if (status == OK)
        status = new_tensor(b, p, rows, b->top_k, DTYPE_I32, &a->experts, error);
    if (status == OK)
        status = new_tensor(b, p, rows, b->k, DTYPE_F32, &a->out, error);
    if (status != OK)
        return status;
    for (int32_t row = 0; row < rows; row++) {
        int32_t *ids = tensor_at(&a->experts, row),
                first = rng_int(&b->random, 0, b->n_experts - 1);
        for (int32_t i = 0; i < b->top_k; i++)
            ids[i] = (first + i) % b->n_experts;
    }
    a->stack = p->experts;
    p->cost = profile_cost_moe_ffn(b->device, a);
    p->arithmetic = linear_arithmetic(b);
    return OK;
}

/* The next experts each time, so that weights come from memory. */
static void call_moe(struct bench *b, struct prepared *p, int i)
{
    (void)i;
    for (int32_t row = 0; row < p->moe.experts.rows; row++) {
        int32_t *ids = tensor_at(&p->moe.experts, row);
        for (int32_t k = 0; k < b->top_k; k++)
            ids[k] = (ids[k] + b->top_k) % b->n_experts;
    }
    device_moe_ffn(b->device, &p->moe);
}

static void describe_moe(const struct bench *b, struct report *r)
{
    report_int(r, "n_experts", "experts", b->n_experts);
    report_int(r, "top_k", "experts of a row", b->top_k);
    describe_linear(b, r);
}

/* --- gated delta rule ------------------------------------------------------------------------- */

static enum status fill_states(struct bench *b, struct prepared *p, int32_t rows,
                               struct error *error)
{
    struct gated_delta_args *a = &p->delta;
    enum status status = new_tensor(b, p, b->batch_size + 1, 1, DTYPE_I32, &a->q_start, error);
    if (status == OK)
        status = new_tensor(b, p, b->batch_size, 1, DTYPE_I32, &a->state_in, error);
    if (status != OK)
        return status;
    int32_t *q_start = tensor_at(&a->q_start, 0), *slots = tensor_at(&a->state_in, 0);
    for (int32_t i = 0; i < b->batch_size; i++) {
        q_start[i + 1] = (i + 1) * rows;
        slots[i] = i;
    }
    a->state_out = a->state_in;
    a->snapshots = (struct tensor){.buffer = a->state_in.buffer, .dtype = DTYPE_I32, .cols = 2};
    return OK;
}

static enum status fill_delta(struct bench *b, struct prepared *p, int32_t rows,
                              const struct state_layout *layout, struct error *error)
{
    struct gated_delta_args *a = &p->delta;
    int32_t n_rows = rows * b->batch_size;
    enum status status = new_values(b, p, n_rows, layout->conv_channels, &a->qkv, error);
    if (status == OK)
        status = new_values(b, p, n_rows, b->n_heads, &a->a, error);
    if (status == OK)
        status = new_values(b, p, n_rows, b->n_heads, &a->b, error);
    if (status == OK)
        status = new_values(b, p, 1, b->n_heads, &a->rate, error);
    if (status == OK)
        status = new_values(b, p, 1, b->n_heads, &a->dt_bias, error);
    if (status == OK)
        status = new_tensor(b, p, n_rows, b->n_heads * b->head_dim, DTYPE_F32, &a->out, error);
    if (status == OK)
        status = fill_states(b, p, rows, error);
    float *rates = status == OK ? tensor_at(&a->rate, 0) : NULL;
    for (int32_t i = 0; rates && i < b->n_heads; i++)
        rates[i] = rates[i] * rates[i]; /* states decay */
    return status;
}

static enum status prepare_delta(struct bench *b, struct prepared *p, int32_t rows,
                                 struct error *error)
{
    struct state_layout layout = {.n_layers = 1,
                                  .n_v_heads = b->n_heads,
                                  .k_dim = b->head_dim,
                                  .v_dim = b->head_dim,
                                  .conv_channels = (2 * b->n_kv_heads + b->n_heads) * b->head_dim,
                                  .conv_rows = 3,
                                  .dtype = DTYPE_F32};
    if (b->n_heads % b->n_kv_heads)
        return error_set(error, ERROR_INVALID, "%d value heads are no multiple of %d key heads",
                         b->n_heads, b->n_kv_heads);
    const struct device_table *table = b->device->table;
    size_t slot_bytes = table->state_slot_bytes(b->device, &layout);
    enum status status = table->gated_delta_reserve(b->device, &layout, error);
    if (status == OK)
        status = table->buffer_alloc(b->device, slot_bytes * (size_t)b->batch_size,
                                     &p->buffers[p->n_buffers], error);
    if (status != OK)
        return status;
    p->delta.slots = (struct state_slots){.buffer = &p->buffers[p->n_buffers++],
                                          .slot_bytes = slot_bytes,
                                          .n_slots = b->batch_size,
                                          .layout = layout};
    status = fill_delta(b, p, rows, &layout, error);
    if (status == OK)
        p->cost = profile_cost_gated_delta(b->device, &p->delta);
    p->arithmetic = ARITHMETIC_F32;
    return status;
}

static void call_delta(struct bench *b, struct prepared *p, int i)
{
    (void)i;
    device_gated_delta(b->device, &p->delta);
}

static void describe_delta(const struct bench *b, struct report *r)
{
    report_int(r, "batch_size", "sequences", b->batch_size);
    report_int(r, "n_heads", "value heads", b->n_heads);
    report_int(r, "n_kv_heads", "key heads", b->n_kv_heads);
    report_int(r, "head_dim", "dimensions of a head", b->head_dim);
}

static const struct op_bench ops[] = {
    {"linear", "rows times a weight [n, k]", prepare_linear, call_linear, describe_linear},
    {"attention", "rows of each sequence over its cached context", prepare_attention,
     call_attention, describe_attention},
    {"moe", "rows through the experts they chose", prepare_moe, call_moe, describe_moe},
    {"gdn", "the gated delta rule over rows of each sequence", prepare_delta, call_delta,
     describe_delta},
};
enum { N_OPS = sizeof ops / sizeof ops[0] };

/* --- timing ----------------------------------------------------------------------------------- */

/* Calls until a run takes some milliseconds; seconds a call, one sample a run. */
static void time_calls(struct bench *b, const struct op_bench *op, struct prepared *p,
                       struct samples *out)
{
    int n_calls = 1, i = 0;
    for (double seconds = 0.0; seconds < 0.02 && n_calls < 1 << 20;) {
        double start = system_seconds();
        for (int call = 0; call < n_calls; call++)
            op->call(b, p, i++);
        seconds = system_seconds() - start;
        if (seconds < 0.02)
            n_calls *= 2;
    }
    for (int run = 0; run < b->runs; run++) {
        double start = system_seconds();
        for (int call = 0; call < n_calls; call++)
            op->call(b, p, i++);
        samples_add(out, (system_seconds() - start) / n_calls);
    }
}

static enum status report_op(struct bench *b, const struct op_bench *op, const struct prepared *p,
                             int32_t rows, struct samples *seconds, struct error *error)
{
    struct report r = {0};
    double median = samples_summary(seconds).median;
    report_text(&r, "benchmark", NULL, "ops");
    report_text(&r, "op", "op", op->name);
    report_int(&r, "rows", "rows", rows);
    op->describe(b, &r);
    report_int(&r, "threads", "threads", b->limits.n_threads);
    report_number(&r, "us", "microseconds a call (median)", median * 1e6);
    report_number(&r, "gb_per_s", "GB/s", p->cost.bytes / median * 1e-9);
    report_number(&r, "gop_per_s", "GOP/s", p->cost.operations / median * 1e-9);
    report_number(
        &r, "of_limit", "part of the measured limit",
        limit_share(&b->limits, p->arithmetic, p->cost.bytes, p->cost.operations, median));
    enum status status = report_finish(&r, b->is_json, b->output_file, error);
    report_done(&r);
    return status;
}

static enum status run_op(struct bench *b, const struct op_bench *op, int32_t rows,
                          struct error *error)
{
    struct prepared p = {0};
    struct samples seconds = {0};
    enum status status = op->prepare(b, &p, rows, error);
    if (status == OK) {
        time_calls(b, op, &p, &seconds);
        status = seconds.failed ? error_memory(error, sizeof seconds)
                                : report_op(b, op, &p, rows, &seconds, error);
    }
    samples_done(&seconds);
    release(b, &p);
    return status;
}

static int run(struct bench *b, const struct op_bench *op)
{
    struct error error;
    struct cpu_options cpu = {.n_threads = b->options.threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)b->options.activations};
    int word = checkpoint_quantization_word(b->quantization);
    b->mlx_bits = word > 0 ? 4 * word : 0;
    enum status status =
        random_weights_new(&b->weights, word < 0 ? b->quantization : "bf16", &error);
    if (status == OK)
        status = cpu_measure(&b->limits, b->options.threads, cpu.isa, &error);
    if (status == OK)
        status = cpu_device_open(&b->device, &cpu, &error);
    for (int i = 0; i < b->rows.n && status == OK; i++)
        status = run_op(b, op, b->rows.values[i], &error);
    if (status != OK)
        log_error("%s", error.message);
    if (b->device)
        b->device->table->close(b->device);
    random_weights_free(b->weights);
    return status == OK ? 0 : 1;
}

static const struct op_bench *find_op(const struct command_line *line)
{
    const char *name = line->positionals.n ? line->positionals.items[0] : NULL;
    for (int i = 0; name && i < N_OPS; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    struct str names = {0};
    for (int i = 0; i < N_OPS; i++)
        str_printf(&names, "%s%s (%s)", i ? ", " : "", ops[i].name, ops[i].about);
    log_error("%s%s%s; the ops are %s", name ? "there is no op \"" : "no op was named",
              name ? name : "", name ? "\"" : "", str_z(&names));
    str_done(&names);
    return NULL;
}

int command_bench_ops(int argc, char **argv)
{
    struct bench b = {.rows_text = "1",
                      .quantization = "Q4_0",
                      .n = 4096,
                      .k = 4096,
                      .batch_size = 1,
                      .context_len = 2048,
                      .n_heads = 16,
                      .n_kv_heads = 8,
                      .head_dim = 128,
                      .n_experts = 64,
                      .top_k = 8,
                      .runs = 7,
                      .random = 1};
    const struct option options[] = {
        {"--rows", "--m", OPTION_STRING, &b.rows_text, "T,...", 0, 0,
         "token rows; of each sequence for attention"},
        {"--n", NULL, OPTION_INT, &b.n, "N", 1, 1 << 20,
         "linear: outputs; moe: an expert's inner width"},
        {"--k", NULL, OPTION_INT, &b.k, "K", 1, 1 << 20, "linear, moe: inputs"},
        {"--quantization", NULL, OPTION_STRING, &b.quantization, "TYPE", 0, 0,
         "linear, moe: type of the weights"},
        {"--batch-size", NULL, OPTION_INT, &b.batch_size, "N", 1, 1024,
         "attention, gdn: sequences"},
        {"--context-len", NULL, OPTION_INT, &b.context_len, "TOKENS", 1, 1 << 20,
         "attention: tokens of each sequence"},
        {"--num-heads", NULL, OPTION_INT, &b.n_heads, "N", 1, 1024,
         "attention: query heads; gdn: value heads"},
        {"--num-kv-heads", NULL, OPTION_INT, &b.n_kv_heads, "N", 1, 1024,
         "attention: key-value heads; gdn: key heads"},
        {"--head-dim", NULL, OPTION_INT, &b.head_dim, "N", 1, 1024,
         "attention, gdn: dimensions of a head"},
        {"--num-experts", NULL, OPTION_INT, &b.n_experts, "N", 1, MOE_MAX_EXPERTS, "moe: experts"},
        {"--top-k", NULL, OPTION_INT, &b.top_k, "K", 1, MOE_MAX_EXPERTS, "moe: experts of a row"},
        {"--window", NULL, OPTION_INT, &b.window, "TOKENS", 0, 1 << 20, "attention: 0: all tokens"},
        {"--threads", NULL, OPTION_INT, &b.options.threads, "N", 0, 1024,
         "threads; 0: all processors"},
        {"--activations", NULL, OPTION_CHOICE, &b.options.activations, "auto|float|int8", 0, 0,
         "arithmetic of quantized linears"},
        {"--kv-cache-dtype", NULL, OPTION_CHOICE, &b.options.kv_cache_dtype,
         "auto|bf16|f16|f32|int8|int4", 0, 0, "type of cached keys and values"},
        {"--runs", NULL, OPTION_INT, &b.runs, "N", 1, 1000, "runs; the median is reported"},
        {"--output-file", NULL, OPTION_STRING, &b.output_file, "FILE", 0, 0,
         "append lines of JSON"},
        {"--json", NULL, OPTION_FLAG, &b.is_json, NULL, 0, 0, "print lines of JSON"},
    };
    struct command_line line = {.usage = "csgl bench_ops linear|attention|moe|gdn [options]",
                                .about = "Times one op against what the machine can do.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0],
                                .max_positionals = 1};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    const struct op_bench *op = find_op(&line);
    exit_status = op ? int_list_parse(&b.rows, "--rows", b.rows_text, 1, MAX_ROWS) : 2;
    return exit_status ? exit_status : run(&b, op);
}
