/* Linears of every encoding, level, mode and number of threads against the scalar twin, and the
 * twin against sums written out here. */
#include "ops/linear_case.h"

#include "device/cpu/linear.h"

/* Parts of `outputs[i]` rows and the given encodings, as slices of bigger weights. */
static void try_case(const enum weight_encoding *encodings, const int32_t *outputs, int n_parts,
                     int32_t cols, int32_t rows, bool is_sliced, bool has_bias, uint64_t *state)
{
    struct weight weights[MAX_PARTS];
    int32_t around = is_sliced ? 3 : 0;
    for (int i = 0; i < n_parts; i++) {
        int32_t beside = is_sliced ? 2 * weight_info(encodings[i])->block : 0;
        weights[i] = new_weight(encodings[i], outputs[i] + 2 * around, cols + 2 * beside, state);
    }
    try_weights(weights, n_parts, around, cols, rows, has_bias, state);
}

static int32_t whole_blocks(enum weight_encoding encoding, int32_t cols)
{
    int32_t block = weight_info(encoding)->block;
    return (cols + block - 1) / block * block;
}

/* --- the tests -------------------------------------------------------------------------------- */

static void test_every_level_agrees_on_every_encoding_and_shape(void **unused)
{
    (void)unused;
    static const int32_t shapes[][2] = {/* outputs, columns */
                                        {1, 32},   {15, 96},  {16, 64},   {17, 160},
                                        {192, 64}, {33, 576}, {20, 1536}, {5, 4096}};
    static const int32_t row_counts[] = {1, 2, 7, 16, 17, 31, 64};
    uint64_t state = 1;
    int n = 0;
    for (enum weight_encoding encoding = 0; encoding < WEIGHT_AFFINE; encoding++)
        for (int shape = 0; shape < 8; shape++, n++) {
            int32_t cols = whole_blocks(encoding, shapes[shape][1]);
            for (int i = 0; i < 2; i++)
                try_case(&encoding, &shapes[shape][0], 1, cols, row_counts[(n * 2 + i) % 7],
                         n % 2 == 1, n % 3 == 1, &state);
        }
}

static void test_every_number_of_rows_is_right(void **unused)
{
    (void)unused;
    static const enum weight_encoding encodings[] = {WEIGHT_BF16, WEIGHT_F16,  WEIGHT_Q4_1,
                                                     WEIGHT_Q6_K, WEIGHT_Q2_K, WEIGHT_IQ4_NL};
    uint64_t state = 2;
    for (int e = 0; e < 6; e++)
        for (int32_t rows = 1; rows <= 100; rows += rows < 20 ? 1 : 27) {
            int32_t outputs = 18;
            try_case(&encodings[e], &outputs, 1, 256, rows, false, false, &state);
        }
}

/* As many outputs and rows as fill a GPU with its largest tiles; the twin alone takes seconds. */
static void test_a_gpu_takes_many_rows(void **unused)
{
    (void)unused;
    static const enum weight_encoding encodings[] = {WEIGHT_Q4_0, WEIGHT_Q8_0, WEIGHT_Q6_K,
                                                     WEIGHT_Q2_K, WEIGHT_F16,  WEIGHT_BF16};
    uint64_t state = 12;
    for (int e = 0; e < 6 && has_real_gpu(); e++) {
        int32_t outputs = 6010;
        try_case(&encodings[e], &outputs, 1, 256, 701, false, true, &state);
    }
}

static void test_float_weights_may_have_any_number_of_columns(void **unused)
{
    (void)unused;
    static const int32_t widths[] = {1, 2, 3, 31, 33, 65, 100};
    uint64_t state = 3;
    for (enum weight_encoding encoding = WEIGHT_F32; encoding <= WEIGHT_BF16; encoding++)
        for (int i = 0; i < 7; i++) {
            int32_t outputs = 19;
            try_case(&encoding, &outputs, 1, widths[i], 1 + 3 * i, true, true, &state);
        }
}

static void test_parts_of_different_encodings_share_an_input(void **unused)
{
    (void)unused;
    static const enum weight_encoding encodings[] = {WEIGHT_Q4_K, WEIGHT_BF16, WEIGHT_Q6_K,
                                                     WEIGHT_Q8_0, WEIGHT_F32};
    static const int32_t outputs[] = {40, 9, 23};
    static const int32_t row_counts[] = {1, 5, 40};
    uint64_t state = 4;
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < 3; r++)
            try_case(encodings + i, outputs, 3, 512, row_counts[r], r == 1, r != 1, &state);
}

/* Rows of a batch are those of smaller batches, to the bit. */
static void test_a_row_does_not_depend_on_its_batch(void **unused)
{
    (void)unused;
    enum { ROWS = 64, COLS = 512, OUTPUTS = 40 };
    uint64_t state = 5;
    for (enum weight_encoding encoding = 0; encoding < WEIGHT_AFFINE; encoding++)
        for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++)
            for (int mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
                struct device *device = open_device(isa, (enum activations)mode, 2);
                struct linear_case c = {.n_parts = 1, .rows = ROWS};
                c.slices[0] =
                    (struct weight_slice){.rows = OUTPUTS,
                                          .cols = COLS,
                                          .weight = new_weight(encoding, OUTPUTS, COLS, &state)};
                struct linear *linear = load(device, &c);
                struct matrix *x = random_matrix(device, ROWS, COLS, 0, &state);
                struct matrix *whole = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
                struct matrix *part = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
                run(device, linear, x, whole);
                static const int32_t sizes[] = {1, 2, 3, 5, 8, 11, 17, 17};
                int32_t row = 0;
                for (int i = 0; i < 8; row += sizes[i++]) {
                    struct linear_args args = {.linear = linear,
                                               .x = tensor_rows(x->tensor, row, sizes[i]),
                                               .out = tensor_rows(part->tensor, row, sizes[i])};
                    device_linear(device, &args);
                }
                assert_int_equal(row, ROWS);
                assert_memory_equal(at(part, 0), at(whole, 0), ROWS * OUTPUTS * sizeof(float));
                free_matrix(device, x);
                free_matrix(device, whole);
                free_matrix(device, part);
                device->table->linear_free(device, linear);
                free((void *)(uintptr_t)c.slices[0].weight.data);
                device->table->close(device);
            }
}

/* Enough rows for passes of each thread's own and results that pass the caches by, from any number
 * of threads, against 16 rows at a time. */
static void test_large_results_are_those_of_a_few_rows_at_a_time(void **unused)
{
    (void)unused;
    enum { ROWS = 136, COLS = 128, OUTPUTS = 272, STEP = 16 };
    static const enum weight_encoding encodings[] = {WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_BF16};
    uint64_t state = 11;
    for (int e = 0; e < 3; e++)
        for (int threads = 1; threads <= 6; threads++) {
            struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_AUTO, threads);
            struct linear_case c = {.n_parts = 1, .rows = ROWS};
            c.slices[0] =
                (struct weight_slice){.rows = OUTPUTS,
                                      .cols = COLS,
                                      .weight = new_weight(encodings[e], OUTPUTS, COLS, &state)};
            struct linear *linear = load(device, &c);
            struct matrix *x = random_matrix(device, ROWS, COLS, 0, &state);
            struct matrix *whole = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
            struct matrix *part = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
            run(device, linear, x, whole);
            for (int32_t row = 0; row < ROWS; row += STEP) {
                int32_t n = ROWS - row < STEP ? ROWS - row : STEP;
                struct linear_args args = {.linear = linear,
                                           .x = tensor_rows(x->tensor, row, n),
                                           .out = tensor_rows(part->tensor, row, n)};
                device_linear(device, &args);
            }
            assert_memory_equal(at(part, 0), at(whole, 0), ROWS * OUTPUTS * sizeof(float));
            free_matrix(device, x);
            free_matrix(device, whole);
            free_matrix(device, part);
            device->table->linear_free(device, linear);
            free((void *)(uintptr_t)c.slices[0].weight.data);
            device->table->close(device);
        }
}

/* The rows of three heads of two parts each, which the file has in turn: what each part loads is
 * what it would be as a weight of its own. */
static void test_parts_that_share_rows_in_turn_are_taken_apart(void **state)
{
    (void)state;
    enum { HEADS = 3, RUN = 5, COLS = 64, OUTPUTS = HEADS * RUN, ROWS = 2 };
    static const enum weight_encoding encodings[] = {WEIGHT_F32, WEIGHT_Q8_0, WEIGHT_Q4_0};
    uint64_t seed = 77;
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++)
        for (int e = 0; e < 3; e++) {
            struct weight w = new_weight(encodings[e], 2 * OUTPUTS, COLS, &seed);
            struct device *device = open_device(isa, ACTIVATIONS_FLOAT, 2);
            struct matrix *x = random_matrix(device, ROWS, COLS, 0, &seed);
            struct matrix *all = new_matrix(device, DTYPE_F32, ROWS, 2 * OUTPUTS, 1);
            struct matrix *apart = new_matrix(device, DTYPE_F32, ROWS, 2 * OUTPUTS - RUN, 1);
            struct weight_slice whole = {.weight = w, .rows = 2 * OUTPUTS, .cols = COLS};
            /* The second part without its first head, as another rank would have it. */
            struct weight_slice parts[] = {
                {.weight = w, .rows = OUTPUTS, .cols = COLS, .pattern = {0, RUN, 2 * RUN}},
                {.weight = w,
                 .row = RUN,
                 .rows = OUTPUTS - RUN,
                 .cols = COLS,
                 .pattern = {RUN, RUN, 2 * RUN}}};
            struct linear *one, *two, *none;
            assert_int_equal(device->table->linear_load(device, &whole, 1, ROWS, &one, NULL), OK);
            assert_int_equal(device->table->linear_load(device, parts, 2, ROWS, &two, NULL), OK);
            run(device, one, x, all);
            run(device, two, x, apart);
            for (int t = 0; t < ROWS; t++)
                for (int n = 0; n < 2 * OUTPUTS - RUN; n++) {
                    int part = n >= OUTPUTS, row = part ? n - OUTPUTS + RUN : n;
                    int stored = part * RUN + row / RUN * 2 * RUN + row % RUN;
                    assert_true(fabsf(at(apart, t)[n] - at(all, t)[stored]) <= 1e-5f);
                }
            parts[1].pattern.stride = 3 * RUN;
            struct error error;
            assert_int_equal(device->table->linear_load(device, parts, 2, ROWS, &none, &error),
                             ERROR_INVALID);
            device->table->linear_free(device, one);
            device->table->linear_free(device, two);
            free_matrix(device, x);
            free_matrix(device, all);
            free_matrix(device, apart);
            device->table->close(device);
            free((void *)(uintptr_t)w.data);
        }
}

/* Linears come and go in any order without harm to those that stay. */
static void test_linears_share_memory_without_harm(void **unused)
{
    (void)unused;
    enum { N = 40, COLS = 1024, OUTPUTS = 1000 };
    uint64_t state = 9;
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_FLOAT, 1);
    struct linear_case c = {.n_parts = 1, .rows = 1};
    struct linear *linears[N] = {0};
    struct weight weights[N];
    struct matrix *x = random_matrix(device, 1, COLS, 0, &state);
    struct matrix *out = new_matrix(device, DTYPE_F32, 1, OUTPUTS, 0);
    for (int i = 0; i < N; i++)
        weights[i] = new_weight(WEIGHT_Q8_0, OUTPUTS, COLS, &state);
    for (int step = 0; step < 3 * N; step++) { /* 40 linears of 1.1 MB, loaded again and again */
        int i = random_below(&state, N);
        device->table->linear_free(device, linears[i]);
        c.slices[0] = (struct weight_slice){.rows = OUTPUTS, .cols = COLS, .weight = weights[i]};
        linears[i] = load(device, &c);
        int j = random_below(&state, N);
        if (!linears[j])
            continue;
        run(device, linears[j], x, out);
        int32_t n = random_below(&state, OUTPUTS);
        double y = expected_sum(&weights[j], n, at(x, 0), false);
        assert_true(fabs(y - (double)at(out, 0)[n]) <= 1e-4 * (fabs(y) + 1));
    }
    for (int i = 0; i < N; i++) {
        device->table->linear_free(device, linears[i]);
        free((void *)(uintptr_t)weights[i].data);
    }
    free_matrix(device, x);
    free_matrix(device, out);
    device->table->close(device);
}

static void test_the_twin_is_the_written_out_sum(void **unused)
{
    (void)unused;
    uint64_t state = 6;
    for (enum weight_encoding encoding = WEIGHT_Q4_0; encoding < WEIGHT_AFFINE; encoding++) {
        struct weight w = new_weight(encoding, 20, 512, &state);
        check_twin(&w, &state);
        free((void *)(uintptr_t)w.data);
    }
}

static void test_a_broken_row_stays_alone(void **unused)
{
    (void)unused;
    uint64_t state = 7;
    struct weight w = new_weight(WEIGHT_Q4_1, 16, 96, &state);
    check_broken_row(&w, &state);
    free((void *)(uintptr_t)w.data);
}

static void refused(struct device *device, struct weight_slice slice, int n, int32_t max_rows,
                    const char *text)
{
    struct weight_slice slices[LINEAR_MAX_PARTS + 1] = {slice};
    for (int i = 1; i <= LINEAR_MAX_PARTS; i++)
        slices[i] = slices[0];
    struct linear *linear;
    struct error error;
    assert_true(device->table->linear_load(device, slices, n, max_rows, &linear, &error) != OK);
    assert_null(linear);
    assert_non_null(strstr(error.message, text));
}

static void test_what_cannot_be_loaded_is_refused_with_a_sentence(void **unused)
{
    (void)unused;
    uint64_t state = 8;
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_AUTO, 1);
    struct weight w = new_weight(WEIGHT_Q4_0, 20, 96, &state);
    struct weight_slice whole = {.weight = w, .rows = 20, .cols = 96}, slice = whole;
    refused(device, whole, 0, 1, "0 parts");
    refused(device, whole, LINEAR_MAX_PARTS + 1, 1, "5 parts");
    refused(device, whole, 1, 0, "steps of 0 rows");
    slice.rows = 21;
    refused(device, slice, 1, 1, "rows 0 + 21");
    slice.rows = INT64_MAX;
    slice.row = 1;
    refused(device, slice, 1, 1, "of 20 rows");
    slice = whole;
    slice.col = 16;
    slice.cols = 64;
    refused(device, slice, 1, 1, "blocks of 32");
    slice.col = 96;
    slice.cols = 32;
    refused(device, slice, 1, 1, "of 96 columns");
    slice = whole;
    slice.weight.encoding = N_WEIGHT_ENCODINGS;
    refused(device, slice, 1, 1, "not known");
    free((void *)(uintptr_t)w.data);
    device->table->close(device);
}

static void test_packed_bytes_are_close_to_the_files(void **unused)
{
    (void)unused;
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_AUTO, 1);
    for (enum weight_encoding encoding = 0; encoding < WEIGHT_AFFINE; encoding++) {
        struct weight w = {.encoding = encoding, .rows = 4096, .cols = 4096};
        struct weight_slice slice = {.weight = w, .rows = 4096, .cols = 4096};
        size_t stored = weight_bytes(&w), most = stored + stored / 16; /* Q3_K: 1.055 */
        assert_in_range(device->table->linear_bytes(device, &slice, 1, 1).own, stored,
                        linear_memory_bytes(most));
    }
    device->table->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_agrees_on_every_encoding_and_shape),
        cmocka_unit_test(test_every_number_of_rows_is_right),
        cmocka_unit_test(test_a_gpu_takes_many_rows),
        cmocka_unit_test(test_float_weights_may_have_any_number_of_columns),
        cmocka_unit_test(test_parts_of_different_encodings_share_an_input),
        cmocka_unit_test(test_a_row_does_not_depend_on_its_batch),
        cmocka_unit_test(test_large_results_are_those_of_a_few_rows_at_a_time),
        cmocka_unit_test(test_parts_that_share_rows_in_turn_are_taken_apart),
        cmocka_unit_test(test_linears_share_memory_without_harm),
        cmocka_unit_test(test_the_twin_is_the_written_out_sum),
        cmocka_unit_test(test_a_broken_row_stays_alone),
        cmocka_unit_test(test_what_cannot_be_loaded_is_refused_with_a_sentence),
        cmocka_unit_test(test_packed_bytes_are_close_to_the_files),
    };
    return cmocka_run_group_tests(tests, hold_gpu, let_gpu_go);
}
