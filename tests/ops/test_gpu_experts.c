/* Experts as tiles, but for the products, which are native: how they are loaded, and, by the
 * kernels on any GPU, how rows are sorted by expert and what experts made is added up. */
#include "ops/linear_case.h"

#include "device/gpu/driver.h"
#include "device/gpu/gpu_experts.h"
#include "kernels/args.h"

enum { MAX_MEMORIES = 8 };

/* A GPU without a device around it. */
struct bare {
    const struct gpu_driver *driver;
    struct gpu *gpu;
    struct gpu_memory *memories[MAX_MEMORIES];
    int n_memories;
};

static void bare_open(struct bare *b)
{
    static const struct gpu_driver *const drivers[] = {&gpu_driver_cuda, &gpu_driver_metal,
                                                       &gpu_driver_emulator};
    struct error error;
    *b = (struct bare){0};
    for (int i = 0; i < 3; i++)
        if (strcmp(drivers[i]->name, test_gpu()) == 0)
            b->driver = drivers[i];
    assert_non_null(b->driver);
    if (b->driver->open(0, &b->gpu, &error) != OK)
        fail_msg("%s", error.message);
}

static void forget_memory(struct bare *b)
{
    while (b->n_memories > 0)
        b->driver->free(b->gpu, b->memories[--b->n_memories]);
}

static void bare_close(struct bare *b)
{
    forget_memory(b);
    b->driver->close(b->gpu);
}

static struct gpu_range put(struct bare *b, const void *from, size_t bytes)
{
    struct error error;
    struct gpu_range range = {0};
    assert_true(b->n_memories < MAX_MEMORIES);
    assert_int_equal(b->driver->alloc(b->gpu, bytes, &b->memories[b->n_memories], &error), OK);
    range.memory = b->memories[b->n_memories++];
    assert_int_equal(b->driver->write(b->gpu, &range, from, bytes, &error), OK);
    return range;
}

static void dispatch(struct bare *b, const char *name, const struct gpu_range *buffers,
                     int n_buffers, const void *args, size_t args_bytes, struct gpu_grid grid)
{
    const struct gpu_kernel *kernel;
    struct error error;
    if (b->driver->kernel(b->gpu, name, &kernel, &error) != OK)
        fail_msg("%s", error.message);
    b->driver->dispatch(b->gpu, kernel, buffers, n_buffers, args, args_bytes, &grid);
    b->driver->commit(b->gpu);
    if (b->driver->wait(b->gpu, &error) != OK)
        fail_msg("%s", error.message);
}

static void get(struct bare *b, const struct gpu_range *from, void *to, size_t bytes)
{
    struct error error;
    assert_int_equal(b->driver->read(b->gpu, from, to, bytes, &error), OK);
}

/* --- the sort --------------------------------------------------------------------------------- */

struct sorted {
    uint32_t n_chosen, n_slots;
    int32_t *chosen, *places; /* [rows][k], without gaps */
    struct kd_expert_slot *slots;
};

/* Places are there once, those of an expert side by side from a multiple of KD_PLACE_ALIGN on, and
 * experts in their order. */
static void check_places(const struct kd_expert_sort *p, const struct sorted *s)
{
    uint32_t end = 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t n = 0, lowest = UINT32_MAX, highest = 0;
        for (uint32_t i = 0; i < s->n_chosen; i++) {
            if ((uint32_t)s->chosen[i] != e)
                continue;
            uint32_t place = (uint32_t)s->places[i];
            lowest = place < lowest ? place : lowest;
            highest = place > highest ? place : highest;
            n++;
            for (uint32_t j = 0; j < i; j++)
                assert_int_not_equal(s->places[j], s->places[i]);
        }
        if (n == 0)
            continue;
        assert_true(lowest % KD_PLACE_ALIGN == 0 && lowest >= end);
        assert_int_equal(highest, lowest + n - 1);
        end = highest + 1;
    }
    assert_true(end <= s->n_chosen + (KD_PLACE_ALIGN - 1) * p->n_experts);
}

/* Every place lies in one slot, of its expert. */
static void check_slots(const struct kd_expert_sort *p, const struct sorted *s)
{
    uint32_t n_places = 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        assert_true(s->slots[i].n_places <= p->slot_places);
        n_places += s->slots[i].n_places;
    }
    assert_int_equal(n_places, s->n_chosen);
    for (uint32_t i = 0; i < s->n_chosen; i++) {
        int n = 0;
        for (uint32_t j = 0; j < s->n_slots; j++) {
            const struct kd_expert_slot *slot = &s->slots[j];
            uint32_t place = (uint32_t)s->places[i];
            if (place < slot->first || place - slot->first >= slot->n_places)
                continue;
            assert_int_equal(slot->expert, s->chosen[i]);
            n++;
        }
        assert_int_equal(n, 1);
    }
}

enum pattern { ANY, NEIGHBOURS, SAME };

static void try_sort(struct bare *b, struct kd_expert_sort p, enum pattern pattern, uint64_t *state)
{
    size_t n_words = (size_t)p.n_rows * p.experts_stride;
    struct sorted s = {.n_chosen = p.n_rows * p.n_chosen};
    s.n_slots = s.n_chosen <= p.n_experts ? s.n_chosen : p.n_experts + s.n_chosen / p.slot_places;
    int32_t *experts = malloc(n_words * sizeof *experts);
    s.chosen = malloc(s.n_chosen * sizeof *s.chosen);
    s.places = malloc(s.n_chosen * sizeof *s.places);
    s.slots = malloc(s.n_slots * sizeof *s.slots);
    memset(experts, 0xFF, n_words * sizeof *experts);
    memset(s.places, 0xFF, s.n_chosen * sizeof *s.places);
    memset(s.slots, 0xFF, s.n_slots * sizeof *s.slots);
    for (uint32_t r = 0; r < p.n_rows; r++) {
        int32_t first = random_below(state, (int32_t)p.n_experts);
        for (uint32_t k = 0; k < p.n_chosen; k++) {
            int32_t e = pattern == ANY          ? random_below(state, (int32_t)p.n_experts)
                        : pattern == NEIGHBOURS ? (first + (int32_t)k) % (int32_t)p.n_experts
                                                : (int32_t)(p.n_experts - 1 - k);
            experts[r * p.experts_stride + k] = s.chosen[r * p.n_chosen + k] = e;
        }
    }
    struct gpu_range buffers[] = {put(b, experts, n_words * sizeof *experts),
                                  put(b, s.places, s.n_chosen * sizeof *s.places),
                                  put(b, s.slots, s.n_slots * sizeof *s.slots)};
    dispatch(b, "expert_sort", buffers, 3, &p, sizeof p,
             (struct gpu_grid){{p.n_experts, 1, 1}, p.n_threads, 0});
    get(b, &buffers[1], s.places, s.n_chosen * sizeof *s.places);
    get(b, &buffers[2], s.slots, s.n_slots * sizeof *s.slots);
    check_places(&p, &s);
    check_slots(&p, &s);
    forget_memory(b);
    free(experts);
    free(s.chosen);
    free(s.places);
    free(s.slots);
}

static void rows_are_sorted_by_expert(void **unused)
{
    (void)unused;
    static const uint32_t shapes[][3] = {/* rows, chosen, experts */
                                         {1, 1, 1},   {1, 8, 128}, {2, 4, 7},   {17, 8, 33},
                                         {64, 4, 32}, {37, 1, 5},  {61, 3, 3},  {5, 10, 50},
                                         {9, 10, 91}, {300, 2, 9}, {64, 10, 61}};
    static const uint32_t slot_places[] = {8, 16, 64, 128};
    uint64_t state = 1;
    struct bare b;
    if (!test_gpu())
        skip();
    bare_open(&b);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < 4; c++)
            for (enum pattern pattern = ANY; pattern <= SAME; pattern++) {
                struct kd_expert_sort p = {.n_rows = shapes[i][0],
                                           .n_chosen = shapes[i][1],
                                           .experts_stride = shapes[i][1] + (uint32_t)c,
                                           .n_experts = shapes[i][2],
                                           .slot_places = slot_places[c],
                                           .n_threads = shapes[i][0] <= 32 ? 32 : 256};
                try_sort(&b, p, pattern, &state);
            }
    bare_close(&b);
}

/* --- the sum ---------------------------------------------------------------------------------- */

/* Numbers whose products are exact, but whose sums in another order have other bits. */
static void what_experts_made_is_added_in_their_order(void **unused)
{
    (void)unused;
    enum { ROWS = 3, COLS = 300, CHOSEN = 5, PLACES = 40 };
    static const float weights[CHOSEN] = {1e8f, 1, -1e8f, 1e-3f, 0.3f};
    static const int32_t places[ROWS][CHOSEN] = {
        {4, 0, 8, 12, 16}, {17, 13, 9, 5, 1}, {20, 39, 30, 21, 25}};
    static const float gates[ROWS] = {30, -200, 30}; /* whose sigmoid is 1, 0, 1 */
    float parts[PLACES][COLS], shared[ROWS][COLS], all_weights[ROWS][CHOSEN], out[ROWS][COLS] = {0};
    struct bare b;
    if (!test_gpu())
        skip();
    bare_open(&b);
    for (int place = 0; place < PLACES; place++)
        for (int n = 0; n < COLS; n++)
            parts[place][n] = ldexpf(n % 3 ? 1 : -1, (place * 7 + n) % 5);
    for (int r = 0; r < ROWS; r++) {
        memcpy(all_weights[r], weights, sizeof weights);
        for (int n = 0; n < COLS; n++)
            shared[r][n] = (float)(100 * n + r);
    }
    for (uint32_t kind = 0; kind < 3; kind++) { /* without, with a shared part, with its gate */
        struct kd_expert_sum p = {.cols = COLS,
                                  .n_chosen = CHOSEN,
                                  .parts_stride = COLS,
                                  .weights_stride = CHOSEN,
                                  .out_stride = COLS,
                                  .shared_stride = COLS,
                                  .shared_gate_stride = 1,
                                  .has_shared = kind > 0,
                                  .has_shared_gate = kind > 1};
        struct gpu_range buffers[] = {put(&b, parts, sizeof parts),
                                      put(&b, places, sizeof places),
                                      put(&b, all_weights, sizeof all_weights),
                                      put(&b, shared, sizeof shared),
                                      put(&b, gates, sizeof gates),
                                      put(&b, out, sizeof out)};
        dispatch(&b, "expert_sum", buffers, 6, &p, sizeof p,
                 (struct gpu_grid){
                     {ROWS, (COLS + KD_ROW_THREADS - 1) / KD_ROW_THREADS, 1}, KD_ROW_THREADS, 0});
        get(&b, &buffers[5], out, sizeof out);
        forget_memory(&b);
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < COLS; n++) {
                float sum = kind == 0 || (kind == 2 && gates[r] < 0) ? 0 : shared[r][n];
                for (int place = 0; place < PLACES; place++)
                    for (int k = 0; k < CHOSEN; k++)
                        if (places[r][k] == place)
                            sum += weights[k] * parts[place][n];
                assert_true(out[r][n] == sum);
            }
    }
    bare_close(&b);
}

/* --- loading ---------------------------------------------------------------------------------- */

enum { HIDDEN = 96, INNER = 64, N = 3 };

static struct expert_slices expert_of(const struct weight *gate_up, const struct weight *down,
                                      int32_t e, const float *bias)
{
    struct weight_slice gate = {
        .weight = *gate_up, .row = 2 * e * INNER, .rows = INNER, .cols = HIDDEN, .bias = bias};
    struct weight_slice up = gate;
    up.row += INNER;
    up.bias = bias + INNER;
    return (struct expert_slices){gate,
                                  up,
                                  {.weight = *down,
                                   .row = e * HIDDEN,
                                   .rows = HIDDEN,
                                   .cols = INNER,
                                   .bias = bias + 2 * INNER}};
}

/* As a GPU with the native kernels would: of each expert gate and up as one matrix, and down. */
static void experts_lie_one_behind_another(void **unused)
{
    (void)unused;
    uint64_t state = 3;
    struct bare b;
    if (!test_gpu())
        skip();
    bare_open(&b);
    struct gpu_device gpu = {.driver = b.driver, .gpu = b.gpu, .n_terms = 1};
    struct weight gate_up = new_weight(WEIGHT_Q4_0, N * 2 * INNER, HIDDEN, &state);
    struct weight down = new_weight(WEIGHT_MXFP4, N * HIDDEN, INNER, &state);
    float biases[N][2 * INNER + HIDDEN];
    struct gpu_experts experts;
    struct error error;
    for (int32_t e = 0; e < N; e++)
        for (int i = 0; i < 2 * INNER + HIDDEN; i++)
            biases[e][i] = random_float(&state);
    struct expert_slices first = expert_of(&gate_up, &down, 0, biases[0]);
    assert_false(gpu_experts_describe(&gpu, &first, N, 2, &experts)); /* no native kernels */
    gpu.has_native = true;
    assert_false(gpu_experts_describe(&gpu, &first, N, KD_MAX_CHOSEN + 1, &experts));
    gpu.n_terms = 2;
    assert_false(gpu_experts_describe(&gpu, &first, N, 2, &experts));
    gpu.n_terms = 1;
    assert_true(gpu_experts_describe(&gpu, &first, N, 2, &experts));
    assert_int_equal(gpu_experts_alloc(&gpu, &experts, 2, 10, &error), OK);
    struct device_bytes bytes = gpu_experts_tile_bytes(&experts, 2, 10);
    assert_int_equal(bytes.own, N * (experts.gate_up.bytes + experts.down.bytes));
    assert_int_equal(bytes.workspace, gpu.inputs.bytes);
    for (int32_t e = 0; e < N; e++) {
        struct expert_slices slices = expert_of(&gate_up, &down, e, biases[e]);
        assert_int_equal(gpu_experts_write(&gpu, &experts, e, &slices, &error), OK);
    }
    for (int32_t e = 0; e < N; e++)
        for (int i = 0; i < 2; i++) {
            struct expert_slices slices = expert_of(&gate_up, &down, e, biases[e]);
            const struct weight_slice parts[] = {slices.gate, slices.up};
            const struct gpu_tile_shape *shape = i ? &experts.down : &experts.gate_up;
            struct gpu_range from = {i ? experts.down_memory : experts.gate_up_memory,
                                     (size_t)e * shape->bytes};
            uint8_t *expected = calloc(1, shape->bytes), *got = malloc(shape->bytes);
            assert_true(gpu_tiles_pack(i ? &slices.down : parts, i ? 1 : 2, shape, expected));
            get(&b, &from, got, shape->bytes);
            assert_memory_equal(got, expected, shape->bytes);
            free(expected);
            free(got);
        }
    first.down.bias = NULL;
    assert_int_equal(gpu_experts_write(&gpu, &experts, 2, &first, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "expert 2"));
    gpu_experts_done(&gpu, &experts);
    b.driver->free(b.gpu, gpu.inputs.memory);
    bare_close(&b);
    free((void *)(uintptr_t)gate_up.data);
    free((void *)(uintptr_t)down.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted_by_expert),
        cmocka_unit_test(what_experts_made_is_added_in_their_order),
        cmocka_unit_test(experts_lie_one_behind_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
