/* The row-wise ops of every device against the scalar twin, and the twin against the formulas. */
#include "ops/apart_case.h"

#include "base/half.h"

static const int32_t row_counts[] = {1, 2, 3, 17, 64, 300};
static const int32_t widths[] = {1, 2, 7, 8, 15, 16, 17, 31, 48, 64, 576, 1000, 2048};

enum { N_ROW_COUNTS = 6, N_WIDTHS = 13 };

/* The first of these are enough where every access is looked at. */
static int n_row_counts(const struct device *device)
{
    return is_slow(device) ? 3 : N_ROW_COUNTS;
}

static int n_widths(const struct device *device)
{
    return is_slow(device) ? 10 : N_WIDTHS;
}

/* Runs `check` on every device, the twin too, on a CPU with 1, 2 and 3 threads. */
typedef void (*check_function)(struct device *twin, struct device *device, uint64_t *state);

static void on_all_devices(check_function check)
{
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    for (int i = 0; i < n_test_devices(); i++)
        for (int n_threads = 1; n_threads <= (is_test_gpu(i) ? 1 : 3); n_threads++) {
            struct device *device = open_test_device(i, ACTIVATIONS_FLOAT, n_threads);
            uint64_t state = 1 + (uint64_t)i * 8 + (uint64_t)n_threads;
            check(twin, device, &state);
            device->table->close(device);
        }
    twin->table->close(twin);
}

/* --- rms_norm --------------------------------------------------------------------------------- */

static void norm_case(struct device *twin, struct device *device, int32_t rows, int32_t cols,
                      bool has_residual, bool plus_one, bool is_in_place, uint64_t *state)
{
    struct matrix *x = random_matrix(device, rows, cols, 3, state);
    struct matrix *x2 = new_matrix(device, DTYPE_F32, rows, cols, 3);
    struct matrix *residual = random_matrix(device, rows, cols, 1, state);
    struct matrix *residual2 = new_matrix(device, DTYPE_F32, rows, cols, 1);
    struct matrix *weight = random_matrix(device, 1, cols, 0, state);
    struct matrix *out = new_matrix(device, DTYPE_F32, rows, cols, 3);
    struct matrix *out2 = new_matrix(device, DTYPE_F32, rows, cols, 3);
    copy_matrix(x2, x);
    copy_matrix(residual2, residual);
    struct rms_norm_args args = {.x = x->tensor,
                                 .weight = weight->tensor,
                                 .out = is_in_place ? x->tensor : out->tensor,
                                 .eps = 1e-5f,
                                 .plus_one = plus_one};
    struct rms_norm_args expected = args;
    expected.x = x2->tensor;
    expected.out = is_in_place ? x2->tensor : out2->tensor;
    if (has_residual) {
        args.residual = residual->tensor;
        expected.residual = residual2->tensor;
    }
    device_rms_norm(device, &args);
    device_rms_norm(twin, &expected);
    check_close(is_in_place ? x : out, is_in_place ? x2 : out2, 1e-5, 1e-30, "rms_norm");
    check_borders(is_in_place ? x : out);
    if (has_residual)
        assert_memory_equal(residual->buffer.host, residual2->buffer.host, residual->buffer.bytes);
    struct matrix *all[] = {x, x2, residual, residual2, weight, out, out2};
    for (int i = 0; i < 7; i++)
        free_matrix(device, all[i]);
}

static void check_norms(struct device *twin, struct device *device, uint64_t *state)
{
    for (int i = 0; i < n_row_counts(device); i++)
        for (int j = 0; j < n_widths(device); j++)
            for (int flags = 0; flags < 8; flags++)
                norm_case(twin, device, row_counts[i], widths[j], flags & 1, flags & 2, flags & 4,
                          state);
}

/* Rows of models' widths, and widths that are no multiple of anything. */
static void check_wide_norms(struct device *twin, struct device *device, uint64_t *state)
{
    static const int32_t wide[] = {1, 5, 96, 1024, 4096, 5000, 12288};
    for (int i = 0; i < 7; i++)
        for (int flags = 0; flags < 8; flags++)
            norm_case(twin, device, 1 + flags % 3, wide[i], flags & 1, flags & 2, flags & 4, state);
}

static void wide_rms_norms_of_all_devices_equal_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_wide_norms);
}

static void rms_norm_of_all_devices_equals_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_norms);
}

static void check_sums(struct device *twin, struct device *device, uint64_t *state)
{
    static const int32_t cols[] = {40, 5000};
    (void)twin;
    for (int i = 0; i < 2; i++) {
        struct matrix *x = random_matrix(device, 3, cols[i], 0, state);
        struct matrix *residual = random_matrix(device, 3, cols[i], 1, state);
        struct matrix *before = new_matrix(device, DTYPE_F32, 3, cols[i], 1);
        copy_matrix(before, residual);
        struct rms_norm_args args = {.x = x->tensor, .residual = residual->tensor, .eps = 1e-5f};
        device_rms_norm(device, &args);
        for (int32_t r = 0; r < 3; r++)
            for (int32_t c = 0; c < cols[i]; c++)
                assert_true(at(residual, r)[c] == at(before, r)[c] + at(x, r)[c]);
        check_borders(residual);
        free_matrix(device, x);
        free_matrix(device, residual);
        free_matrix(device, before);
    }
}

static void rms_norm_without_out_only_adds(void **test)
{
    (void)test;
    on_all_devices(check_sums);
}

static void the_twins_rms_norm_is_the_formula(void **test)
{
    (void)test;
    uint64_t state = 6;
    enum { N = 33 };
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct matrix *x = random_matrix(twin, 1, N, 0, &state);
    struct matrix *w = random_matrix(twin, 1, N, 0, &state);
    struct matrix *out = new_matrix(twin, DTYPE_F32, 1, N, 0);
    struct rms_norm_args args = {
        .x = x->tensor, .weight = w->tensor, .out = out->tensor, .eps = 0.25f, .plus_one = true};
    device_rms_norm(twin, &args);
    double mean = 0;
    for (int i = 0; i < N; i++)
        mean += (double)at(x, 0)[i] * (double)at(x, 0)[i] / N;
    for (int i = 0; i < N; i++) {
        double expected = (double)at(x, 0)[i] / sqrt(mean + 0.25) * (1 + (double)at(w, 0)[i]);
        assert_true(fabs((double)at(out, 0)[i] - expected) <= 1e-7 * (fabs(expected) + 1e-9));
    }
    free_matrix(twin, x);
    free_matrix(twin, w);
    free_matrix(twin, out);
    twin->table->close(twin);
}

/* --- rope ------------------------------------------------------------------------------------- */

static struct matrix *angles_of(struct device *device, const struct matrix *positions,
                                int32_t rotated, float scale)
{
    struct matrix *inv_freq = new_matrix(device, DTYPE_F32, 1, rotated / 2, 0);
    for (int32_t i = 0; i < rotated / 2; i++)
        at(inv_freq, 0)[i] = powf(10000.0f, -2.0f * (float)i / (float)rotated);
    struct matrix *out = new_matrix(device, DTYPE_F32, positions->tensor.rows, rotated, 2);
    struct rope_angles_args args = {positions->tensor, inv_freq->tensor, out->tensor, scale};
    device_rope_angles(device, &args);
    for (int32_t r = 0; r < out->tensor.rows; r++)
        for (int32_t i = 0; i < rotated / 2; i++) {
            double angle = (double)((float)ints_at(positions, r)[0] * at(inv_freq, 0)[i]);
            assert_true(fabs((double)at(out, r)[2 * i] - cos(angle) * (double)scale) < 1e-6);
            assert_true(fabs((double)at(out, r)[2 * i + 1] - sin(angle) * (double)scale) < 1e-6);
        }
    check_borders(out);
    free_matrix(device, inv_freq);
    return out;
}

static void rope_case(struct device *twin, struct device *device, int32_t rows, int32_t dim,
                      int32_t rotated, int flags, uint64_t *state)
{
    struct matrix *positions = new_matrix(device, DTYPE_I32, rows, 1, 0);
    for (int32_t r = 0; r < rows; r++)
        ints_at(positions, r)[0] = random_below(state, 100000);
    struct matrix *angles = angles_of(device, positions, rotated, flags & 4 ? 1.5f : 1.0f);
    struct matrix *q = random_matrix(device, rows, 3 * dim, 1, state);
    struct matrix *k = random_matrix(device, rows, dim, 2, state);
    struct matrix *q2 = new_matrix(device, DTYPE_F32, rows, 3 * dim, 1);
    struct matrix *k2 = new_matrix(device, DTYPE_F32, rows, dim, 2);
    struct matrix *weight = random_matrix(device, 1, dim, 0, state);
    copy_matrix(q2, q);
    copy_matrix(k2, k);
    struct qk_norm_rope_args args = {.q = q->tensor,
                                     .k = k->tensor,
                                     .angles = angles->tensor,
                                     .head_dim = dim,
                                     .eps = 1e-6f,
                                     .plus_one = flags & 2,
                                     .norm_last = flags & 8};
    if (flags & 1)
        args.q_norm = args.k_norm = weight->tensor;
    device_qk_norm_rope(device, &args);
    args.q = q2->tensor;
    args.k = k2->tensor;
    device_qk_norm_rope(twin, &args);
    /* Relative to the norm of a head, which is sqrt(dim / 3) for values uniform in [-1, 1). */
    check_close(q, q2, 1e-5, sqrt(dim / 3.0), "q");
    check_close(k, k2, 1e-5, sqrt(dim / 3.0), "k");
    check_borders(q);
    struct matrix *all[] = {positions, angles, q, k, q2, k2, weight};
    for (int i = 0; i < 7; i++)
        free_matrix(device, all[i]);
}

static void check_ropes(struct device *twin, struct device *device, uint64_t *state)
{
    static const int32_t dims[][2] = {{64, 64}, {80, 80}, {96, 96}, {128, 128}, {256, 256},
                                      {80, 32}, {64, 10}, {2, 2},   {512, 512}, {512, 128}};
    for (int i = 0; i < n_row_counts(device); i++)
        for (int j = 0; j < 10; j++)
            for (int flags = 0; flags < 16; flags++)
                rope_case(twin, device, row_counts[i], dims[j][0], dims[j][1], flags, state);
}

static void rope_of_all_devices_equals_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_ropes);
}

static void rope_turns_the_halves_of_a_head(void **test)
{
    (void)test;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct matrix *q = new_matrix(twin, DTYPE_F32, 1, 6, 0),
                  *k = new_matrix(twin, DTYPE_F32, 1, 6, 0);
    struct matrix *angles = new_matrix(twin, DTYPE_F32, 1, 4, 0);
    for (int i = 0; i < 6; i++)
        at(q, 0)[i] = at(k, 0)[i] = (float)(i + 1);
    const float quarters[] = {0, 1, 0, -1}; /* a quarter turn, and one back */
    memcpy(at(angles, 0), quarters, sizeof quarters);
    struct qk_norm_rope_args args = {
        .q = q->tensor, .k = k->tensor, .angles = angles->tensor, .head_dim = 6};
    device_qk_norm_rope(twin, &args);
    const float expected[] = {-3, 4, 1, -2, 5, 6};
    for (int i = 0; i < 6; i++)
        assert_true(at(q, 0)[i] == expected[i] && at(k, 0)[i] == expected[i]);
    free_matrix(twin, q);
    free_matrix(twin, k);
    free_matrix(twin, angles);
    twin->table->close(twin);
}

/* Weights that differ tell the order: those of the places after the turn, or before it. */
static void the_norm_comes_before_or_after_the_turn(void **test)
{
    (void)test;
    struct device *twin = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct matrix *q = new_matrix(twin, DTYPE_F32, 1, 2, 0),
                  *k = new_matrix(twin, DTYPE_F32, 1, 2, 0);
    struct matrix *angles = new_matrix(twin, DTYPE_F32, 1, 2, 0);
    struct matrix *weight = new_matrix(twin, DTYPE_F32, 1, 2, 0);
    const float quarter[] = {0, 1}, weights[] = {2, 10};
    memcpy(at(angles, 0), quarter, sizeof quarter);
    memcpy(at(weight, 0), weights, sizeof weights);
    for (int last = 0; last < 2; last++) {
        for (int i = 0; i < 2; i++)
            at(q, 0)[i] = at(k, 0)[i] = 3; /* 1 after the norm */
        struct qk_norm_rope_args args = {.q = q->tensor,
                                         .k = k->tensor,
                                         .angles = angles->tensor,
                                         .q_norm = weight->tensor,
                                         .k_norm = weight->tensor,
                                         .head_dim = 2,
                                         .norm_last = last};
        device_qk_norm_rope(twin, &args);
        const float expected[2][2] = {{-10, 2}, {-2, 10}};
        for (int i = 0; i < 2; i++)
            assert_true(at(q, 0)[i] == expected[last][i] && at(k, 0)[i] == expected[last][i]);
    }
    free_matrix(twin, q);
    free_matrix(twin, k);
    free_matrix(twin, angles);
    free_matrix(twin, weight);
    twin->table->close(twin);
}

/* --- silu_mul --------------------------------------------------------------------------------- */

static void silu_case(struct device *twin, struct device *device, int32_t rows, int32_t cols,
                      uint64_t *state)
{
    struct matrix *x = random_matrix(device, rows, 2 * cols, 5, state);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            at(x, r)[c] *= c % 5 == 0 ? 85.0f : 10.0f;
    struct matrix *out = new_matrix(device, DTYPE_F32, rows, cols, 1);
    struct matrix *out2 = new_matrix(device, DTYPE_F32, rows, cols, 1);
    struct silu_mul_args args = {x->tensor, out->tensor}, expected = {x->tensor, out2->tensor};
    device_silu_mul(device, &args);
    device_silu_mul(twin, &expected);
    check_close(out, out2, 1e-5, 1e-36, "silu_mul");
    check_borders(out);
    free_matrix(device, x);
    free_matrix(device, out);
    free_matrix(device, out2);
}

static void check_silus(struct device *twin, struct device *device, uint64_t *state)
{
    for (int i = 0; i < n_row_counts(device); i++)
        for (int j = 0; j < n_widths(device); j++)
            silu_case(twin, device, row_counts[i], widths[j], state);
    silu_case(twin, device, 1, is_slow(device) ? 2000 : 20000, state);
}

static void silu_mul_of_all_devices_equals_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_silus);
}

static void check_extremes(struct device *twin, struct device *device, uint64_t *state)
{
    (void)twin;
    (void)state;
    const float gates[] = {0, -0.0f, 1000, -1000, 3e38f, -3e38f, INFINITY, NAN};
    struct matrix *x = new_matrix(device, DTYPE_F32, 1, 16, 0);
    struct matrix *out = new_matrix(device, DTYPE_F32, 1, 8, 0);
    for (int i = 0; i < 8; i++) {
        at(x, 0)[i] = gates[i];
        at(x, 0)[i + 8] = 1;
    }
    struct silu_mul_args args = {x->tensor, out->tensor};
    device_silu_mul(device, &args);
    const float *y = at(out, 0);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 1000 && fabsf(y[3]) < 1e-36f);
    assert_true(y[4] == 3e38f && fabsf(y[5]) < 1e-3f && y[6] == INFINITY && isnan(y[7]));
    free_matrix(device, x);
    free_matrix(device, out);
}

static void silu_mul_survives_huge_and_broken_values(void **test)
{
    (void)test;
    on_all_devices(check_extremes);
}

/* --- sigmoid_mul, gated_norm ------------------------------------------------------------------ */

static void gate_case(struct device *twin, struct device *device, int32_t rows, int32_t cols,
                      uint64_t *state)
{
    struct matrix *x = random_matrix(device, rows, cols, 1, state);
    struct matrix *gate = random_matrix(device, rows, cols, 2, state);
    struct matrix *out = new_matrix(device, DTYPE_F32, rows, cols, 3);
    struct matrix *out2 = new_matrix(device, DTYPE_F32, rows, cols, 3);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            at(gate, r)[c] *= c % 5 == 0 ? 85.0f : 10.0f;
    struct sigmoid_mul_args args = {x->tensor, gate->tensor, out->tensor}, expected = args;
    expected.out = out2->tensor;
    device_sigmoid_mul(device, &args);
    device_sigmoid_mul(twin, &expected);
    check_close(out, out2, 1e-5, 1e-36, "sigmoid_mul");
    check_borders(out);
    struct matrix *all[] = {x, gate, out, out2};
    for (int i = 0; i < 4; i++)
        free_matrix(device, all[i]);
}

/* Three heads a row, against rms_norm and silu_mul of each. */
static void gated_norm_case(struct device *twin, struct device *device, int32_t rows, int32_t dim,
                            uint64_t *state)
{
    struct matrix *x = random_matrix(device, rows, 3 * dim, 1, state);
    struct matrix *z = random_matrix(device, rows, 3 * dim, 2, state);
    struct matrix *weight = random_matrix(device, 1, dim, 0, state);
    struct matrix *out = new_matrix(device, DTYPE_F32, rows, 3 * dim, 3);
    struct matrix *out2 = new_matrix(device, DTYPE_F32, rows, 3 * dim, 3);
    device_gated_norm(device, &(struct gated_norm_args){x->tensor, z->tensor, weight->tensor,
                                                        out->tensor, 0.01f});
    for (int32_t r = 0; r < rows; r++)
        for (int h = 0; h < 3; h++) {
            const float *from = at(x, r) + h * dim, *gate = at(z, r) + h * dim;
            double mean = 0;
            for (int i = 0; i < dim; i++)
                mean += (double)from[i] * (double)from[i] / dim;
            for (int i = 0; i < dim; i++) {
                double g = (double)gate[i], w = (double)at(weight, 0)[i];
                at(out2, r)[h * dim + i] =
                    (float)((double)from[i] / sqrt(mean + (double)0.01f) * w * g / (1 + exp(-g)));
            }
        }
    check_close(out, out2, 1e-5, 1e-30, "gated_norm");
    check_borders(out);
    (void)twin;
    struct matrix *all[] = {x, z, weight, out, out2};
    for (int i = 0; i < 5; i++)
        free_matrix(device, all[i]);
}

static void check_gates(struct device *twin, struct device *device, uint64_t *state)
{
    for (int i = 0; i < n_row_counts(device); i++)
        for (int j = 0; j < n_widths(device); j++) {
            gate_case(twin, device, row_counts[i], widths[j], state);
            gated_norm_case(twin, device, row_counts[i], widths[j], state);
        }
}

static void gates_of_all_devices_equal_the_twin(void **test)
{
    (void)test;
    on_all_devices(check_gates);
}

/* --- embed, gather, fill_ids ------------------------------------------------------------------ */

static void check_lookups(struct device *twin, struct device *device, uint64_t *state)
{
    (void)twin;
    enum { VOCABULARY = 50, COLS = 96, ROWS = 300 };
    uint16_t values[VOCABULARY * COLS];
    for (int i = 0; i < VOCABULARY * COLS; i++)
        values[i] = bf16_from_f32(random_float(state));
    struct weight weight = {
        .encoding = WEIGHT_BF16, .rows = VOCABULARY, .cols = COLS, .data = (const uint8_t *)values};
    struct embedding *table;
    struct error error;
    assert_int_equal(device->table->embedding_load(device, &weight, &table, &error), OK);
    struct matrix *ids = new_matrix(device, DTYPE_I32, ROWS, 1, 0);
    struct matrix *x = new_matrix(device, DTYPE_F32, ROWS, COLS, 1);
    struct matrix *rows = new_matrix(device, DTYPE_I32, 7, 1, 0);
    struct matrix *out = new_matrix(device, DTYPE_F32, 7, COLS, 3);
    for (int i = 0; i < ROWS; i++)
        ints_at(ids, i)[0] = random_below(state, VOCABULARY);
    for (int i = 0; i < 7; i++)
        ints_at(rows, i)[0] = random_below(state, ROWS);
    device_embed(device, &(struct embed_args){table, ids->tensor, x->tensor});
    device_gather(device, &(struct gather_args){x->tensor, rows->tensor, out->tensor});
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            assert_true(at(x, r)[c] == f32_from_bf16(values[ints_at(ids, r)[0] * COLS + c]));
    for (int r = 0; r < 7; r++)
        assert_memory_equal(at(out, r), at(x, ints_at(rows, r)[0]), COLS * sizeof(float));
    check_borders(x);
    check_borders(out);
    device->table->embedding_free(device, table);
    struct matrix *all[] = {ids, x, rows, out};
    for (int i = 0; i < 4; i++)
        free_matrix(device, all[i]);
}

static void embed_and_gather_copy_the_rows_asked_for(void **test)
{
    (void)test;
    on_all_devices(check_lookups);
}

/* Tokens of an earlier step, and of one that drew none. */
static void check_fill_ids(struct device *twin, struct device *device, uint64_t *state)
{
    (void)twin;
    enum { MOST = 300, DRAWN = 40 };
    for (int n = 1; n <= MOST; n = n * 3 + 1) {
        struct matrix *ids = new_matrix(device, DTYPE_I32, n, 1, 0);
        struct matrix *from = new_matrix(device, DTYPE_I32, n, 1, 0);
        struct matrix *drawn = new_matrix(device, DTYPE_I32, DRAWN, 1, 0);
        int32_t expected[MOST];
        for (int i = 0; i < DRAWN; i++)
            ints_at(drawn, i)[0] = i % 7 == 3 ? -1 : random_below(state, 1000);
        for (int i = 0; i < n; i++) {
            int32_t k = ints_at(from, i)[0] = random_below(state, 2 * DRAWN) - DRAWN;
            ints_at(ids, i)[0] = random_below(state, 1000);
            expected[i] = k < 0 ? ints_at(ids, i)[0] : k % 7 == 3 ? 0 : ints_at(drawn, k)[0];
        }
        device_fill_ids(device, &(struct fill_ids_args){ids->tensor, from->tensor, drawn->tensor});
        for (int i = 0; i < n; i++)
            assert_int_equal(ints_at(ids, i)[0], expected[i]);
        for (int i = n; i < n + 16; i++)
            assert_int_equal(ints_at(ids, i)[0], 0); /* untouched */
        struct matrix *all[] = {ids, from, drawn};
        for (int i = 0; i < 3; i++)
            free_matrix(device, all[i]);
    }
}

static void fill_ids_takes_the_tokens_that_were_drawn(void **test)
{
    (void)test;
    on_all_devices(check_fill_ids);
}

/* --- reads that are queued -------------------------------------------------------------------- */

static void check_reads(struct device *twin, struct device *device, uint64_t *state)
{
    (void)twin;
    (void)state;
    enum { N = 100 };
    const struct device_table *table = device->table;
    int32_t values[4][N], got[2][N];
    struct buffer buffer;
    assert_int_equal(table->buffer_alloc(device, sizeof values[0], &buffer, NULL), OK);
    for (int round = 0; round < 4; round += 2) {
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < N; k++)
                values[round + i][k] = 1000 * (round + i) + k;
            assert_int_equal(
                table->buffer_write(device, &buffer, 0, values[round + i], sizeof values[0], NULL),
                OK);
            assert_int_equal(
                table->read_queue(device, &buffer, 4, got[i], sizeof got[0] - 4, i, NULL), OK);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(table->read_wait(device, i, NULL), OK);
            assert_memory_equal(got[i], values[round + i] + 1, sizeof got[0] - 4);
        }
        assert_int_equal(table->read_queue(device, &buffer, 0, got[0], 0, 0, NULL), OK);
        assert_int_equal(table->read_wait(device, 0, NULL), OK);
    }
    table->buffer_free(device, &buffer);
}

static void a_queued_read_gives_what_the_buffer_held_then(void **test)
{
    (void)test;
    on_all_devices(check_reads);
}

/* Rows of a table as the CPU's decoder has them; frees the table. */
static void check_table(struct device *device, const struct weight *weight, uint64_t *state)
{
    enum { ROWS = 20 };
    struct embedding *table;
    struct error error;
    int32_t cols = (int32_t)weight->cols, n_rows = (int32_t)weight->rows;
    if (device->table->embedding_load(device, weight, &table, &error) != OK)
        fail_msg("%s", error.message);
    struct matrix *ids = new_matrix(device, DTYPE_I32, ROWS, 1, 2);
    struct matrix *out = new_matrix(device, DTYPE_F32, ROWS, cols, 3);
    float *expected = malloc((size_t)cols * sizeof *expected);
    assert_non_null(expected);
    for (int i = 0; i < ROWS; i++)
        ints_at(ids, i)[0] = i ? random_below(state, n_rows) : n_rows - 1;
    device_embed(device, &(struct embed_args){table, ids->tensor, out->tensor});
    for (int r = 0; r < ROWS; r++) {
        weight_row_dequantize(weight, ints_at(ids, r)[0], expected);
        for (int32_t c = 0; c < cols; c++)
            if (at(out, r)[c] != expected[c])
                fail_msg("%s: %s of %d bits: row %d, column %d is %.9g, not %.9g", device->name,
                         weight_info(weight->encoding)->name, weight->levels.bits,
                         ints_at(ids, r)[0], c, (double)at(out, r)[c], (double)expected[c]);
    }
    check_borders(out);
    free(expected);
    device->table->embedding_free(device, table);
    free_matrix(device, ids);
    free_matrix(device, out);
    free((void *)(uintptr_t)weight->data);
}

/* In every encoding; 1536 columns are whole blocks of all, and more than a threadgroup's. */
static void check_tables(struct device *twin, struct device *device, uint64_t *state)
{
    (void)twin;
    for (int e = WEIGHT_F32; e <= WEIGHT_MXFP4; e++) {
        struct weight w = new_weight((enum weight_encoding)e, 40, 1536, state);
        check_table(device, &w, state);
    }
    for (int f = 0; f < N_FORMS; f++) {
        struct weight w = new_apart(&forms[f], 40, 1536, state);
        check_table(device, &w, state);
    }
    /* Made when they are read; and more rows than a linear of the shared kernels can have. */
    struct weight floats = new_weight(WEIGHT_BF16, 40, 256, state);
    struct weight made = weight_quantized(&floats, 4, 64);
    check_table(device, &made, state);
    struct weight long_one = new_weight(WEIGHT_F16, 262150, 9, state);
    check_table(device, &long_one, state);
}

static void tables_of_every_encoding_are_the_decoders_to_the_bit(void **test)
{
    (void)test;
    on_all_devices(check_tables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_twins_rms_norm_is_the_formula),
        cmocka_unit_test(rms_norm_of_all_devices_equals_the_twin),
        cmocka_unit_test(wide_rms_norms_of_all_devices_equal_the_twin),
        cmocka_unit_test(rms_norm_without_out_only_adds),
        cmocka_unit_test(rope_turns_the_halves_of_a_head),
        cmocka_unit_test(the_norm_comes_before_or_after_the_turn),
        cmocka_unit_test(rope_of_all_devices_equals_the_twin),
        cmocka_unit_test(silu_mul_of_all_devices_equals_the_twin),
        cmocka_unit_test(silu_mul_survives_huge_and_broken_values),
        cmocka_unit_test(gates_of_all_devices_equal_the_twin),
        cmocka_unit_test(embed_and_gather_copy_the_rows_asked_for),
        cmocka_unit_test(fill_ids_takes_the_tokens_that_were_drawn),
        cmocka_unit_test(a_queued_read_gives_what_the_buffer_held_then),
        cmocka_unit_test(tables_of_every_encoding_are_the_decoders_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
