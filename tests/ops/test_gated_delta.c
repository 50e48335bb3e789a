/* The gated delta rule and its convolution: the twin against the formulas, every device against the
 * twin, and what a serving engine relies on: chunks, neighbours, snapshots, verify and commit. */
#include "ops/ops_support.h"

#include "base/half.h"

enum { N_SLOTS = 12, MAX_SEQUENCES = 4 };

struct shape {
    int32_t n_k, n_v, k_dim, v_dim, conv_rows;
    bool is_tiled;
};

static const struct shape shapes[] = {
    {1, 1, 128, 128, 3, false}, {2, 6, 32, 24, 3, false}, {2, 2, 16, 40, 2, false},
    {1, 3, 7, 5, 1, false},     {3, 6, 64, 9, 3, true},   {1, 2, 24, 200, 3, false},
    {2, 6, 7, 5, 3, true},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* The shapes that an emulator, which looks at every access, is fast enough for. */
static bool is_for_device(const struct device *device, const struct shape *shape)
{
    return !is_slow(device) || shape->k_dim * shape->v_dim < 1000;
}

/* Everything that both ops of a layer read, and slots of states. */
struct rig {
    struct device *device;
    struct shape shape;
    struct buffer memory;
    struct state_slots slots;
    int32_t n_rows;
    struct matrix *x, *weight, *qkv, *a, *b, *rate, *dt_bias, *out, *tape;
};

static struct state_layout layout_of(const struct shape *s, enum dtype dtype)
{
    return (struct state_layout){.n_layers = 1,
                                 .n_v_heads = s->n_v,
                                 .k_dim = s->k_dim,
                                 .v_dim = s->v_dim,
                                 .conv_channels = 2 * s->n_k * s->k_dim + s->n_v * s->v_dim,
                                 .conv_rows = s->conv_rows,
                                 .dtype = dtype,
                                 .is_tiled = s->is_tiled};
}

static struct rig rig_new(struct device *device, const struct shape *shape, int32_t n_rows,
                          enum dtype dtype, uint64_t seed)
{
    struct state_layout layout = layout_of(shape, dtype);
    struct rig r = {.device = device, .shape = *shape, .n_rows = n_rows};
    struct error error;
    int32_t channels = layout.conv_channels;
    r.slots = (struct state_slots){.slot_bytes = device->table->state_slot_bytes(device, &layout),
                                   .n_slots = N_SLOTS,
                                   .layout = layout};
    assert_int_equal(
        device->table->buffer_alloc(device, N_SLOTS * r.slots.slot_bytes, &r.memory, &error), OK);
    assert_int_equal(device->table->gated_delta_reserve(device, &layout, &error), OK);
    uint64_t state = seed;
    r.x = random_matrix(device, n_rows, channels, 3, &state);
    r.weight = random_matrix(device, shape->conv_rows + 1, channels, 0, &state);
    r.qkv = new_matrix(device, DTYPE_F32, n_rows, channels, 5);
    r.a = random_matrix(device, n_rows, shape->n_v, 1, &state);
    r.b = random_matrix(device, n_rows, shape->n_v, 2, &state);
    r.rate = random_matrix(device, 1, shape->n_v, 0, &state);
    r.dt_bias = random_matrix(device, 1, shape->n_v, 0, &state);
    r.out = new_matrix(device, DTYPE_F32, n_rows, shape->n_v * shape->v_dim, 1);
    r.tape = new_matrix(device, DTYPE_F32, n_rows, gated_delta_tape_cols(&layout), 4);
    for (int32_t h = 0; h < shape->n_v; h++) /* from slow to almost immediate decay */
        at(r.rate, 0)[h] = expf(3 * at(r.rate, 0)[h]);
    for (int32_t t = 0; t < n_rows; t++)
        for (int32_t h = 0; h < shape->n_v; h++) {
            at(r.a, t)[h] *= t % 7 == 3 ? 30.0f : 2.0f;
            at(r.b, t)[h] *= 4;
        }
    return r;
}

static void rig_done(struct rig *r)
{
    struct matrix *all[] = {r->x,    r->weight,  r->qkv, r->a,   r->b,
                            r->rate, r->dt_bias, r->out, r->tape};
    for (int i = 0; i < 9; i++)
        free_matrix(r->device, all[i]);
    r->device->table->buffer_free(r->device, &r->memory);
}

/* One step: sequence i is rows start[i] .. start[i + 1]. */
struct step {
    int32_t n, start[MAX_SEQUENCES + 1], in[MAX_SEQUENCES], out[MAX_SEQUENCES];
    int32_t n_snapshots, snapshots[8][2];
    bool has_tape;
};

/* An array of the step as a tensor of the device; ends with mirror_give_back. */
static struct tensor ints(struct device *device, struct buffer *buffer, const int32_t *values,
                          int32_t rows, int32_t cols)
{
    *buffer = (struct buffer){.host = (void *)(uintptr_t)values,
                              .bytes = (size_t)rows * (size_t)cols * sizeof *values};
    mirror_lend(device, buffer);
    return (struct tensor){buffer, 0, DTYPE_I32, rows, cols, cols};
}

static void run_step(struct rig *r, const struct step *step)
{
    struct buffer b[4];
    r->slots.buffer = &r->memory;
    struct conv1d_update_args conv = {
        .slots = r->slots,
        .x = r->x->tensor,
        .weight = r->weight->tensor,
        .out = r->qkv->tensor,
        .q_start = ints(r->device, &b[0], step->start, step->n + 1, 1),
        .state_in = ints(r->device, &b[1], step->in, step->n, 1),
        .state_out = ints(r->device, &b[2], step->out, step->n, 1),
        .snapshots = ints(r->device, &b[3], step->snapshots[0], step->n_snapshots, 2)};
    device_conv1d_update(r->device, &conv);
    struct gated_delta_args delta = {.slots = r->slots,
                                     .qkv = r->qkv->tensor,
                                     .a = r->a->tensor,
                                     .b = r->b->tensor,
                                     .rate = r->rate->tensor,
                                     .dt_bias = r->dt_bias->tensor,
                                     .out = r->out->tensor,
                                     .q_start = conv.q_start,
                                     .state_in = conv.state_in,
                                     .state_out = conv.state_out,
                                     .snapshots = conv.snapshots};
    if (step->has_tape)
        delta.tape = r->tape->tensor;
    device_gated_delta(r->device, &delta);
    for (int i = 0; i < 4; i++)
        mirror_give_back(r->device, &b[i]);
}

/* The state, then the rows of the convolution, of a slot. */
static const float *slot_at(const struct rig *r, int32_t slot)
{
    const char *base = r->memory.host;
    return (const float *)(const void *)(base + (size_t)slot * r->slots.slot_bytes);
}

static void check_slots(const struct rig *a, int32_t slot_a, const struct rig *b, int32_t slot_b,
                        double tolerance)
{
    const float *x = slot_at(a, slot_a), *y = slot_at(b, slot_b);
    for (size_t i = 0; i < a->slots.slot_bytes / sizeof(float); i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= tolerance))
            fail_msg("value %zu of slot %d is %.9g, not %.9g", i, slot_a, (double)x[i],
                     (double)y[i]);
}

/* Runs `check` on each device, the twin too, on a CPU with 1 and 3 threads. */
typedef void (*check_function)(struct device *twin, struct device *device);

static void on_all_devices(check_function check)
{
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    for (int i = 0; i < n_test_devices(); i++)
        for (int n_threads = 1; n_threads <= (is_test_gpu(i) ? 1 : 3); n_threads += 2) {
            struct device *device = open_test_device(i, ACTIVATIONS_FLOAT, n_threads);
            check(twin, device);
            device->table->close(device);
        }
    twin->table->close(twin);
}

/* --- the twin against the formulas ------------------------------------------------------------ */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void length_one(double *x, int n, double scale)
{
    double squares = 1e-6;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] *= scale / sqrt(squares);
}

/* Value head `h` of one sequence from a zero state, written out. */
static void check_head(const struct rig *r, int32_t h)
{
    const struct shape *s = &r->shape;
    int32_t key = s->is_tiled ? h % s->n_k : h / (s->n_v / s->n_k),
            k_at = (s->n_k + key) * s->k_dim;
    double state[7][5] = {0}, q[7], k[7];
    for (int32_t t = 0; t < r->n_rows; t++) {
        const float *row = at(r->qkv, t), *v = row + 2 * s->n_k * s->k_dim + h * s->v_dim;
        for (int i = 0; i < s->k_dim; i++) {
            q[i] = (double)row[key * s->k_dim + i];
            k[i] = (double)row[k_at + i];
        }
        length_one(q, s->k_dim, 1 / sqrt(s->k_dim));
        length_one(k, s->k_dim, 1);
        double a = (double)at(r->a, t)[h] + (double)at(r->dt_bias, 0)[h];
        double alpha = exp(-(double)at(r->rate, 0)[h] * log1p(exp(a)));
        double beta = 1 / (1 + exp(-(double)at(r->b, t)[h]));
        for (int j = 0; j < s->v_dim; j++) {
            double m = 0, o = 0;
            for (int i = 0; i < s->k_dim; i++)
                m += alpha * state[i][j] * k[i];
            for (int i = 0; i < s->k_dim; i++) {
                state[i][j] = alpha * state[i][j] + k[i] * beta * ((double)v[j] - m);
                o += state[i][j] * q[i];
            }
            assert_true(fabs((double)at(r->out, t)[h * s->v_dim + j] - o) < 1e-5);
        }
    }
}

static void check_formulas(struct device *twin, const struct shape *shape)
{
    struct rig r = rig_new(twin, shape, 70, DTYPE_F32, 11);
    run_step(&r, &(struct step){.n = 1, .start = {0, 70}, .in = {-1}, .out = {2}});
    for (int32_t t = 0; t < 70; t++)
        for (int32_t c = 0; c < r.x->tensor.cols; c++) {
            double sum = 0;
            for (int32_t j = 0; j <= shape->conv_rows; j++)
                if (t - shape->conv_rows + j >= 0)
                    sum +=
                        (double)at(r.weight, j)[c] * (double)at(r.x, t - shape->conv_rows + j)[c];
            assert_true(fabs((double)at(r.qkv, t)[c] - silu(sum)) < 1e-6);
        }
    for (int32_t h = 0; h < shape->n_v; h++)
        check_head(&r, h);
    rig_done(&r);
}

static void the_twin_is_the_formula(void **test)
{
    (void)test;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    check_formulas(twin, &shapes[3]);
    check_formulas(twin, &shapes[6]);
    twin->table->close(twin);
}

/* --- every device against the twin ------------------------------------------------------------ */

static void check_against_twin(struct device *twin, struct device *device)
{
    static const int32_t lengths[] = {1, 2, 16, 17, 63, 64, 65, 200};
    for (int i = 0; i < N_SHAPES; i++)
        for (int j = 0; j < (is_slow(device) ? 3 : 8); j++) {
            int32_t n = lengths[j];
            if (!is_for_device(device, &shapes[i]))
                continue;
            struct rig r = rig_new(device, &shapes[i], n + 4, DTYPE_F32, 3);
            struct rig expected = rig_new(twin, &shapes[i], n + 4, DTYPE_F32, 3);
            /* Twice, so that the second goes on from the states of the first. */
            struct step step = {
                .n = 3, .start = {0, 1, 1 + n, 4 + n}, .in = {-1, -1, -1}, .out = {0, 1, 2}};
            for (int pass = 0; pass < 2; pass++) {
                run_step(&r, &step);
                run_step(&expected, &step);
                check_close(r.qkv, expected.qkv, 1e-5, 1.0, "conv1d_update");
                check_close(r.out, expected.out, 1e-5, 1.0, "gated_delta");
                for (int32_t slot = 0; slot < 3; slot++)
                    check_slots(&r, slot, &expected, slot, 2e-5);
                memcpy(step.in, step.out, sizeof step.in);
            }
            check_borders(r.qkv);
            check_borders(r.out);
            rig_done(&r);
            rig_done(&expected);
        }
}

static void every_device_equals_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_against_twin);
}

/* --- what an engine relies on ----------------------------------------------------------------- */

/* Rows from .. to - 1 of `whole` alone, as a rig of their own would see them. */
static void check_rows(const struct rig *whole, const struct rig *part, int32_t from, int32_t n)
{
    for (int32_t t = from; t < from + n; t++)
        for (int32_t c = 0; c < whole->out->tensor.cols; c++)
            assert_true(fabs((double)at(whole->out, t)[c] - (double)at(part->out, t)[c]) <= 1e-5);
}

static void check_chunks(struct device *twin, struct device *device)
{
    (void)twin;
    enum { N = 200 };
    static const int32_t sizes[] = {1, 3, 16, 31, 64, 100};
    for (int i = 0; i < N_SHAPES && !is_slow(device); i++) {
        struct rig whole = rig_new(device, &shapes[i], N, DTYPE_F32, 5);
        run_step(&whole, &(struct step){.n = 1, .start = {0, N}, .in = {-1}, .out = {0}});
        for (int j = 0; j < 6; j++) {
            struct rig r = rig_new(device, &shapes[i], N, DTYPE_F32, 5);
            for (int32_t from = 0; from < N; from += sizes[j]) {
                int32_t end = from + sizes[j] < N ? from + sizes[j] : N;
                run_step(&r, &(struct step){
                                 .n = 1, .start = {from, end}, .in = {from ? 4 : -1}, .out = {4}});
            }
            check_rows(&whole, &r, 0, N);
            check_slots(&r, 4, &whole, 0, 1e-5);
            rig_done(&r);
        }
        rig_done(&whole);
    }
}

static void chunks_change_nothing(void **test)
{
    (void)test;
    on_all_devices(check_chunks);
}

static void check_neighbours(struct device *twin, struct device *device)
{
    (void)twin;
    for (int i = 0; i < N_SHAPES && !is_slow(device); i++) {
        struct rig alone = rig_new(device, &shapes[i], 90, DTYPE_F32, 6);
        struct rig r = rig_new(device, &shapes[i], 90, DTYPE_F32, 6);
        struct step step = {
            .n = 4, .start = {0, 1, 70, 72, 90}, .in = {-1, -1, -1, -1}, .out = {3, 2, 1, 0}};
        run_step(&r, &step);
        for (int32_t s = 0; s < 4; s++) {
            struct step one = {.n = 1,
                               .start = {step.start[s], step.start[s + 1]},
                               .in = {-1},
                               .out = {step.out[s]}};
            run_step(&alone, &one);
            check_slots(&r, step.out[s], &alone, step.out[s], 0);
        }
        for (int32_t t = 0; t < 90; t++)
            assert_memory_equal(at(r.out, t), at(alone.out, t),
                                (size_t)r.out->tensor.cols * sizeof(float));
        rig_done(&r);
        rig_done(&alone);
    }
}

static void neighbours_in_the_step_change_nothing(void **test)
{
    (void)test;
    on_all_devices(check_neighbours);
}

static void check_snapshots(struct device *twin, struct device *device)
{
    (void)twin;
    for (int i = 0; i < N_SHAPES; i++) {
        if (!is_for_device(device, &shapes[i]) || (is_slow(device) && i != 3))
            continue;
        struct rig r = rig_new(device, &shapes[i], 150, DTYPE_F32, 7);
        struct rig alone = rig_new(device, &shapes[i], 150, DTYPE_F32, 7);
        struct step step = {.n = 3,
                            .start = {0, 20, 149, 150},
                            .in = {-1, -1, -1},
                            .out = {0, -1, 1},
                            .n_snapshots = 6,
                            .snapshots = {{4, 5}, {19, 6}, {20, 7}, {83, 8}, {84, 9}, {149, 10}}};
        run_step(&r, &step);
        for (int32_t s = 0; s < 6; s++) {
            int32_t row = step.snapshots[s][0], first = row < 20 ? 0 : row < 149 ? 20 : 149;
            run_step(&alone,
                     &(struct step){.n = 1, .start = {first, row + 1}, .in = {-1}, .out = {2}});
            check_slots(&r, step.snapshots[s][1], &alone, 2, 1e-5);
        }
        rig_done(&r);
        rig_done(&alone);
    }
}

static void a_snapshot_is_the_state_after_its_row(void **test)
{
    (void)test;
    on_all_devices(check_snapshots);
}

/* Sequences of `n` rows each go on from slots 0 and 1; the first `accepted` rows are committed. */
static void check_commit_of(struct device *device, const struct shape *shape, int32_t n,
                            int32_t accepted, bool in_place)
{
    struct rig r = rig_new(device, shape, 2 * n, DTYPE_F32, 8);
    struct rig alone = rig_new(device, shape, 2 * n, DTYPE_F32, 8);
    struct step first = {.n = 2, .start = {0, n, 2 * n}, .in = {-1, -1}, .out = {0, 1}};
    run_step(&r, &first);
    run_step(&alone, &first);
    struct step verify = {.n = 2, .start = {0, n, 2 * n}, .in = {0, 1}, .out = {-1, -1}};
    verify.has_tape = true;
    run_step(&r, &verify);
    check_slots(&r, 0, &alone, 0, 0);
    check_slots(&r, 1, &alone, 1, 0);
    check_borders(r.tape);
    int32_t counts[] = {accepted, n}, out[] = {in_place ? 0 : 2, in_place ? 1 : 3};
    struct buffer b[4];
    struct gated_delta_commit_args args = {.slots = r.slots,
                                           .x = r.x->tensor,
                                           .tape = r.tape->tensor,
                                           .q_start = ints(device, &b[0], verify.start, 3, 1),
                                           .n_accepted = ints(device, &b[1], counts, 2, 1),
                                           .state_in = ints(device, &b[2], verify.in, 2, 1),
                                           .state_out = ints(device, &b[3], out, 2, 1)};
    device_gated_delta_commit(device, &args);
    for (int i = 0; i < 4; i++)
        mirror_give_back(device, &b[i]);
    if (accepted)
        run_step(&alone, &(struct step){.n = 1, .start = {0, accepted}, .in = {0}, .out = {0}});
    run_step(&alone, &(struct step){.n = 1, .start = {n, 2 * n}, .in = {1}, .out = {1}});
    double tolerance = n <= 16 ? 2e-7 : 1e-5;
    check_slots(&r, out[0], &alone, 0, tolerance);
    check_slots(&r, out[1], &alone, 1, tolerance);
    rig_done(&r);
    rig_done(&alone);
}

static void check_commits(struct device *twin, struct device *device)
{
    (void)twin;
    static const int32_t lengths[] = {1, 2, 5, 16, 40};
    for (int i = 0; i < N_SHAPES; i++)
        for (int j = 0; j < (is_slow(device) ? 3 : 5) && is_for_device(device, &shapes[i]); j++)
            for (int32_t accepted = 0; accepted <= lengths[j]; accepted += 1 + lengths[j] / 4)
                check_commit_of(device, &shapes[i], lengths[j], accepted, accepted % 2 == 0);
}

static void verify_writes_no_state_and_a_commit_is_a_replay(void **test)
{
    (void)test;
    on_all_devices(check_commits);
}

static void check_bf16(struct device *twin, struct device *device)
{
    for (int i = 0; i < N_SHAPES; i++) {
        if (is_slow(device) && i != 3)
            continue;
        struct rig r = rig_new(device, &shapes[i], 80, DTYPE_BF16, 9);
        struct rig exact = rig_new(twin, &shapes[i], 80, DTYPE_F32, 9);
        struct step step = {.n = 2, .start = {0, 1, 80}, .in = {-1, -1}, .out = {0, 1}};
        run_step(&r, &step);
        run_step(&exact, &step);
        check_close(r.out, exact.out, 1e-5, 1.0, "gated_delta");
        int32_t n = shapes[i].n_v * shapes[i].k_dim * shapes[i].v_dim;
        for (int32_t slot = 0; slot < 2; slot++) {
            const uint16_t *rounded = (const uint16_t *)(const void *)slot_at(&r, slot);
            const float *state = slot_at(&exact, slot);
            for (int32_t j = 0; j < n; j++) {
                double y = (double)state[j];
                assert_true(fabs((double)f32_from_bf16(rounded[j]) - y) <= fabs(y) * 0x1p-8 + 2e-5);
            }
        }
        /* The second step starts from what the first one rounded. */
        step.in[0] = 0;
        step.in[1] = 1;
        run_step(&r, &step);
        run_step(&exact, &step);
        check_close(r.out, exact.out, 0.03, 0.3, "gated_delta from a bf16 state");
        rig_done(&r);
        rig_done(&exact);
    }
}

static void a_bf16_state_is_the_f32_state_rounded(void **test)
{
    (void)test;
    on_all_devices(check_bf16);
}

static void a_copied_slot_is_the_same_state(void **test)
{
    (void)test;
    struct device *device = open_test_device(n_test_devices() - 1, ACTIVATIONS_FLOAT, 1);
    struct rig r = rig_new(device, &shapes[3], 20, DTYPE_F32, 10);
    run_step(&r, &(struct step){.n = 1, .start = {0, 20}, .in = {-1}, .out = {0}});
    device_state_copy(device, &(struct state_copy_args){.slots = r.slots, .from = 0, .to = 11});
    check_slots(&r, 11, &r, 0, 0);
    rig_done(&r);
    device->table->close(device);
}

static void shapes_beyond_the_limits_are_refused(void **test)
{
    (void)test;
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_FLOAT, 1);
    struct state_layout layout = layout_of(&shapes[0], DTYPE_F32);
    struct error error;
    layout.k_dim = 1025;
    assert_int_equal(device->table->gated_delta_reserve(device, &layout, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "1025 x 128"));
    layout.k_dim = 128;
    layout.conv_rows = 16;
    assert_int_equal(device->table->gated_delta_reserve(device, &layout, &error), ERROR_LIMIT);
    device->table->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_twin_is_the_formula),
        cmocka_unit_test(every_device_equals_the_twin),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(neighbours_in_the_step_change_nothing),
        cmocka_unit_test(a_snapshot_is_the_state_after_its_row),
        cmocka_unit_test(verify_writes_no_state_and_a_commit_is_a_replay),
        cmocka_unit_test(a_bf16_state_is_the_f32_state_rounded),
        cmocka_unit_test(a_copied_slot_is_the_same_state),
        cmocka_unit_test(shapes_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
