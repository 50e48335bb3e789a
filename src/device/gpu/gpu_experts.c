/* Rows, one for each expert that a row of x has chosen, are sorted by expert on the GPU; then
 * products run over slots of them (kernels/args.h, struct kd_expert_slot). What is dispatched
 * depends on numbers of rows alone, not on what they have chosen, so that steps repeat. */
#include "device/gpu/gpu_experts.h"

#include "base/size.h"
#include "device/gpu/gpu_linear.h"
#include "device/gpu/gpu_weight.h"

#include <assert.h>
#include <stdlib.h>

enum {
    MAX_CHOSEN = 16384, /* of all rows of a pass: bounds the workspace */
    MIN_SLOT = 8,       /* places of the smallest slots */
    SECTION_ALIGN = 256
};

/* --- loading ---------------------------------------------------------------------------------- */

static bool describe(const struct expert_slices *slices, struct gpu_experts *out)
{
    const struct weight_slice gate_up[] = {slices->gate, slices->up};
    return gpu_tiles_describe(gate_up, 2, &out->gate_up) &&
           gpu_tiles_describe(&slices->down, 1, &out->down) && !out->gate_up.order &&
           !out->down.order;
}

bool gpu_experts_describe(const struct gpu_device *gpu, const struct expert_slices *slices,
                          int32_t n_experts, int32_t top_k, struct gpu_experts *out)
{
    *out = (struct gpu_experts){.n_experts = n_experts};
    return gpu->has_native && gpu->n_terms == 1 && top_k <= KD_MAX_CHOSEN && describe(slices, out);
}

static bool is_same(const struct gpu_tile_shape *a, const struct gpu_tile_shape *b)
{
    return a->form == b->form && a->rows == b->rows && a->cols == b->cols &&
           a->level_shift == b->level_shift && a->is_bf16 == b->is_bf16 && a->bytes == b->bytes &&
           a->out_bias == b->out_bias;
}

static enum status write_matrix(struct gpu_device *gpu, struct gpu_memory *to, int32_t e,
                                const struct weight_slice *slices, int n_slices,
                                const struct gpu_tile_shape *shape, struct error *error)
{
    return gpu_tiles_load(gpu, slices, n_slices, shape,
                          &(struct gpu_range){to, (size_t)e * shape->bytes}, error);
}

enum status gpu_experts_write(struct gpu_device *gpu, const struct gpu_experts *experts, int32_t e,
                              const struct expert_slices *slices, struct error *error)
{
    const struct weight_slice *parts[] = {&slices->gate, &slices->up, &slices->down};
    for (int i = 0; i < 3; i++) {
        struct kd_weight unused;
        enum status status = gpu_weight_describe(parts[i], &unused, error);
        if (status != OK)
            return status;
    }
    struct gpu_experts own;
    if (!describe(slices, &own) || !is_same(&own.gate_up, &experts->gate_up) ||
        !is_same(&own.down, &experts->down))
        return error_set(error, ERROR_UNSUPPORTED,
                         "expert %d (%s, %lld x %lld) differs from expert 0 of its layer in type "
                         "or shape; all must be alike",
                         e, weight_info(slices->gate.weight.encoding)->name,
                         (long long)slices->gate.rows, (long long)slices->gate.cols);
    const struct weight_slice gate_up[] = {slices->gate, slices->up};
    enum status status =
        write_matrix(gpu, experts->gate_up_memory, e, gate_up, 2, &experts->gate_up, error);
    if (status != OK)
        return status;
    return write_matrix(gpu, experts->down_memory, e, &slices->down, 1, &experts->down, error);
}

/* --- the workspace ---------------------------------------------------------------------------- */

/* What lies in the workspace during a pass, as offsets. */
struct layout {
    uint32_t n_places; /* also those that are read and not used */
    uint32_t n_slots, slot_places;
    size_t values, sums, factors, parts, places, slots, bytes;
};

static size_t add_section(struct layout *layout, size_t bytes)
{
    size_t at = layout->bytes;
    layout->bytes += size_round_up(bytes, SECTION_ALIGN);
    return at;
}

/* The 16-bit values of a place, and their sums. */
static size_t values_bytes(const struct gpu_tile_shape *shape)
{
    return (size_t)shape->n_tiles * KD_TILE_COLS * 2;
}

static size_t sums_bytes(const struct gpu_tile_shape *shape)
{
    return (size_t)shape->n_tiles * gpu_tile_infos[shape->form].spans * sizeof(float);
}

/* n: experts that rows have chosen, in all. */
static struct layout layout_of(const struct gpu_experts *e, uint32_t n, uint32_t slot_places)
{
    uint32_t n_experts = (uint32_t)e->n_experts;
    uint32_t used = n + (KD_PLACE_ALIGN - 1) * n_experts;
    struct layout l = {.n_slots = n <= n_experts ? n : n_experts + n / slot_places,
                       .slot_places = slot_places};
    /* A tile of rows may end this far behind the last place. */
    l.n_places = (uint32_t)size_round_up(used, KD_INPUT_STACK) + KD_INPUT_STACK;
    size_t width = size_max(e->gate_up.rows, e->down.rows);
    l.values =
        add_section(&l, l.n_places * size_max(values_bytes(&e->gate_up), values_bytes(&e->down)));
    l.sums = add_section(&l, l.n_places * size_max(sums_bytes(&e->gate_up), sums_bytes(&e->down)));
    l.factors = add_section(&l, l.n_places * sizeof(float));
    l.parts = add_section(&l, l.n_places * width * sizeof(float));
    l.places = add_section(&l, n * sizeof(int32_t));
    l.slots = add_section(&l, l.n_slots * sizeof(struct kd_expert_slot));
    return l;
}

/* The most that a pass needs. */
static size_t workspace_bytes(const struct gpu_experts *e, int32_t top_k, int32_t max_rows)
{
    int64_t n = (int64_t)max_rows * top_k;
    return layout_of(e, n < MAX_CHOSEN ? (uint32_t)n : MAX_CHOSEN, MIN_SLOT).bytes;
}

struct device_bytes gpu_experts_tile_bytes(const struct gpu_experts *e, int32_t top_k,
                                           int32_t max_rows)
{
    return (struct device_bytes){.own = (size_t)e->n_experts * (e->gate_up.bytes + e->down.bytes),
                                 .workspace = workspace_bytes(e, top_k, max_rows)};
}

enum status gpu_experts_alloc(struct gpu_device *gpu, struct gpu_experts *e, int32_t top_k,
                              int32_t max_rows, struct error *error)
{
    size_t n = (size_t)e->n_experts;
    enum status status =
        gpu->driver->alloc(gpu->gpu, n * e->gate_up.bytes, &e->gate_up_memory, error);
    if (status == OK)
        status = gpu->driver->alloc(gpu->gpu, n * e->down.bytes, &e->down_memory, error);
    if (status == OK)
        status = gpu_workspace_reserve(gpu, workspace_bytes(e, top_k, max_rows), error);
    return status;
}

void gpu_experts_done(struct gpu_device *gpu, struct gpu_experts *e)
{
    if (e->gate_up_memory)
        gpu->driver->free(gpu->gpu, e->gate_up_memory);
    if (e->down_memory)
        gpu->driver->free(gpu->gpu, e->down_memory);
    e->gate_up_memory = e->down_memory = NULL;
}

/* --- running ---------------------------------------------------------------------------------- */

static const enum gpu_kernel_name kernels[N_GPU_TILE_FORMS][N_GPU_TILE_KERNELS] = {
#define TILE_KERNELS(name, bits, spans, level_bytes)                                               \
    {GPU_KERNEL_expert_flat_##name##_8, GPU_KERNEL_expert_flat_##name##_8x2,                       \
     GPU_KERNEL_expert_flat_##name##_16, GPU_KERNEL_expert_many_##name##_64,                       \
     GPU_KERNEL_expert_many_##name##_128},
    GPU_TILE_FORMS(TILE_KERNELS)
#undef TILE_KERNELS
};

static bool has_room(const struct gpu_device *gpu, const struct gpu_experts *e, uint32_t rows)
{
    uint32_t most = gpu->info.max_shared_bytes;
    return gpu_choose_many(e->gate_up.form, kernels[e->gate_up.form], rows).shared_bytes <= most &&
           gpu_choose_many(e->down.form, kernels[e->down.form], rows).shared_bytes <= most;
}

/* Threadgroups of `rows` places and `outputs` outputs, where experts are chosen evenly and the last
 * slot of each is half full. */
static int64_t n_groups(const struct gpu_experts *e, int64_t n_chosen, int64_t rows,
                        int64_t outputs)
{
    return (n_chosen / rows + e->n_experts / 2) * ceil_div(e->gate_up.rows, outputs);
}

/* Places of a slot: as many as the kernels that suit this many rows take. */
static uint32_t choose_slot(const struct gpu_device *gpu, const struct gpu_experts *e,
                            int32_t n_rows, int64_t n_chosen)
{
    if (n_rows <= 8 || n_chosen <= 4 * (int64_t)e->n_experts) /* no expert, or few, can have more */
        return 8;
    if (n_chosen <= 16 * (int64_t)e->n_experts || !has_room(gpu, e, 64))
        return 16;
    return has_room(gpu, e, 128) && gpu_large_is_faster(gpu, n_groups(e, n_chosen, 64, 64),
                                                        n_groups(e, n_chosen, 128, 256))
               ? 128
               : 64;
}

static struct gpu_tile_choice choose(const struct gpu_device *gpu, const struct gpu_experts *e,
                                     const struct gpu_tile_shape *shape, int64_t n_chosen,
                                     uint32_t slot_places)
{
    const enum gpu_kernel_name *names = kernels[shape->form];
    if (slot_places > 16)
        return gpu_choose_many(shape->form, names, slot_places);
    int64_t n_active = n_chosen < e->n_experts ? n_chosen : e->n_experts;
    struct gpu_tile_choice c = gpu_choose_flat(
        gpu, shape->form, names, n_active * ceil_div(shape->rows, KD_TILE_ROWS), slot_places);
    /* Three tiles a simdgroup at least: its sums are added to the others' in the end. */
    uint32_t most = (uint32_t)ceil_div(shape->n_tiles, 3) * GPU_SIMD_WIDTH;
    c.n_threads = c.n_threads < most ? c.n_threads : most;
    return c;
}

/* A pass over rows of one op. */
struct pass {
    struct gpu_device *gpu;
    const struct gpu_experts *experts;
    const struct moe_ffn_args *args;
    struct layout layout;
    int64_t n_chosen; /* of all rows */
};

static struct gpu_range workspace_at(const struct pass *pass, size_t offset)
{
    return (struct gpu_range){pass->gpu->inputs.memory, offset};
}

static void sort(const struct pass *pass)
{
    const struct moe_ffn_args *args = pass->args;
    uint32_t n_threads = args->x.rows <= GPU_SIMD_WIDTH ? GPU_SIMD_WIDTH : KD_ROW_THREADS;
    struct gpu_range buffers[] = {gpu_tensor(&args->experts),
                                  workspace_at(pass, pass->layout.places),
                                  workspace_at(pass, pass->layout.slots)};
    struct kd_expert_sort p = {.n_rows = (uint32_t)args->x.rows,
                               .n_chosen = (uint32_t)args->experts.cols,
                               .experts_stride = (uint32_t)args->experts.stride,
                               .n_experts = (uint32_t)pass->experts->n_experts,
                               .slot_places = pass->layout.slot_places,
                               .n_threads = n_threads};
    gpu_run(pass->gpu, GPU_KERNEL_expert_sort, buffers, 3, &p, sizeof p,
            (struct gpu_groups){pass->experts->n_experts, 1, 1}, n_threads);
}

/* Inputs of the matrices of `shape`, from x or from what gate and up have made. */
static void prepare(const struct pass *pass, const struct gpu_tile_shape *shape,
                    enum gpu_kernel_name kernel, struct gpu_range from, uint32_t from_stride)
{
    const struct layout *l = &pass->layout;
    uint32_t spans = gpu_tile_infos[shape->form].spans;
    struct kd_expert_inputs p = {.inputs = {.cols = shape->cols,
                                            .positions = shape->n_tiles * KD_TILE_COLS,
                                            .x_stride = from_stride,
                                            .n_terms = 1,
                                            .is_bf16 = shape->form == GPU_TILE_bf16,
                                            .span = spans ? KD_TILE_COLS / spans : 0,
                                            .term_stride = l->n_places},
                                 .n_chosen = (uint32_t)pass->args->experts.cols,
                                 .activation = pass->args->activation,
                                 .alpha = pass->args->alpha,
                                 .limit = pass->args->limit};
    struct gpu_range buffers[] = {from, workspace_at(pass, l->places),
                                  workspace_at(pass, l->values), workspace_at(pass, l->sums),
                                  workspace_at(pass, l->factors)};
    gpu_run(pass->gpu, kernel, buffers, 5, &p, sizeof p, (struct gpu_groups){pass->n_chosen, 1, 1},
            gpu_input_threads(pass->gpu, p.inputs.positions, pass->n_chosen));
}

static void multiply(const struct pass *pass, const struct gpu_tile_shape *shape,
                     const struct gpu_memory *memory)
{
    const struct layout *l = &pass->layout;
    struct gpu_range buffers[] = {{memory, 0},
                                  {shape->levels ? memory : NULL, shape->levels},
                                  workspace_at(pass, l->values),
                                  workspace_at(pass, l->sums),
                                  workspace_at(pass, l->factors),
                                  {shape->out_bias ? memory : NULL, shape->out_bias},
                                  workspace_at(pass, l->parts),
                                  workspace_at(pass, l->slots)};
    struct kd_expert_tiles p = {.matrix_bytes = shape->bytes,
                                .tiles = {.rows = shape->rows,
                                          .n_tiles = shape->n_tiles,
                                          .level_shift = shape->level_shift,
                                          .is_bf16 = shape->is_bf16,
                                          .n_terms = 1,
                                          .term_stride = l->n_places,
                                          .out_stride = shape->rows}};
    struct gpu_tile_choice c =
        choose(pass->gpu, pass->experts, shape, pass->n_chosen, l->slot_places);
    gpu_run_shared(pass->gpu, c.kernel, buffers, 8, &p, sizeof p,
                   (struct gpu_groups){ceil_div(shape->rows, c.outputs), l->n_slots, 1},
                   c.n_threads, c.shared_bytes);
}

static void add_up(const struct pass *pass)
{
    const struct moe_ffn_args *args = pass->args;
    struct gpu_range buffers[] = {workspace_at(pass, pass->layout.parts),
                                  workspace_at(pass, pass->layout.places),
                                  gpu_tensor(&args->weights),
                                  gpu_tensor(&args->shared),
                                  gpu_tensor(&args->shared_gate),
                                  gpu_tensor(&args->out)};
    struct kd_expert_sum p = {.cols = (uint32_t)args->out.cols,
                              .n_chosen = (uint32_t)args->experts.cols,
                              .parts_stride = pass->experts->down.rows,
                              .weights_stride = (uint32_t)args->weights.stride,
                              .out_stride = (uint32_t)args->out.stride,
                              .shared_stride = (uint32_t)args->shared.stride,
                              .shared_gate_stride = (uint32_t)args->shared_gate.stride,
                              .has_shared = args->shared.buffer != NULL,
                              .has_shared_gate = args->shared_gate.buffer != NULL};
    gpu_run(pass->gpu, GPU_KERNEL_expert_sum, buffers, 6, &p, sizeof p,
            (struct gpu_groups){args->out.rows, ceil_div(args->out.cols, KD_ROW_THREADS), 1},
            KD_ROW_THREADS);
}

static void run_pass(struct gpu_device *gpu, const struct gpu_experts *e,
                     const struct moe_ffn_args *args)
{
    int64_t n_chosen = (int64_t)args->x.rows * args->experts.cols;
    uint32_t slot_places = choose_slot(gpu, e, args->x.rows, n_chosen);
    struct pass pass = {gpu, e, args, layout_of(e, (uint32_t)n_chosen, slot_places), n_chosen};
    assert(pass.layout.bytes <= gpu->inputs.bytes);
    sort(&pass);
    prepare(&pass, &e->gate_up, GPU_KERNEL_expert_inputs, gpu_tensor(&args->x),
            (uint32_t)args->x.stride);
    multiply(&pass, &e->gate_up, e->gate_up_memory);
    prepare(&pass, &e->down, GPU_KERNEL_expert_inner_inputs, workspace_at(&pass, pass.layout.parts),
            e->gate_up.rows);
    multiply(&pass, &e->down, e->down_memory);
    add_up(&pass);
}

static void take_rows(struct tensor *t, int32_t first, int32_t n)
{
    if (t->buffer)
        *t = tensor_rows(*t, first, n);
}

void gpu_experts_run(struct gpu_device *gpu, const struct gpu_experts *e,
                     const struct moe_ffn_args *args)
{
    int64_t n_passes = ceil_div(args->x.rows, MAX_CHOSEN / args->experts.cols);
    int32_t n_rows = args->x.rows, step = (int32_t)ceil_div(n_rows, n_passes > 0 ? n_passes : 1);
    for (int32_t first = 0; first < n_rows; first += step) {
        int32_t n = n_rows - first < step ? n_rows - first : step;
        struct moe_ffn_args part = *args;
        struct tensor *all[] = {&part.x,      &part.experts,     &part.weights,
                                &part.shared, &part.shared_gate, &part.out};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            take_rows(all[i], first, n);
        run_pass(gpu, e, &part);
    }
}
