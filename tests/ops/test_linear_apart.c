/* Linears whose levels lie apart from their codes (MLX's formats, block FP8), like test_linear.c.
 */
#include "ops/apart_case.h"

#include "device/cpu/linear.h"

static int32_t whole_groups(const struct form *form, int32_t cols)
{
    int32_t group = form->levels.group;
    if (form->levels.group_rows > 1 || group > 1024)
        return cols; /* the last group may be shorter */
    return (cols + group - 1) / group * group;
}

static void test_every_level_agrees_on_every_form_and_shape(void **unused)
{
    (void)unused;
    static const int32_t shapes[][2] = {{1, 32},   {15, 96},  {16, 64},    {17, 160},
                                        {192, 64}, {33, 576}, {150, 1536}, {5, 4096}};
    static const int32_t row_counts[] = {1, 2, 7, 16, 17, 31, 64};
    uint64_t state = 1;
    int n = 0;
    for (int f = 0; f < N_FORMS; f++)
        for (int shape = 0; shape < 8; shape++, n++) {
            const struct form *form = &forms[f];
            bool is_sliced = n % 2 == 1 && form->levels.group <= 128;
            int32_t cols = whole_groups(form, shapes[shape][1]), around = is_sliced ? 3 : 0;
            int32_t beside = is_sliced ? 2 * form->levels.group : 0;
            if (is_sliced && form->levels.group_rows > 1)
                cols = (cols + 127) / 128 * 128; /* a slice in the middle ends on a block */
            for (int i = 0; i < 2; i++) {
                struct weight w =
                    new_apart(form, shapes[shape][0] + 2 * around, cols + 2 * beside, &state);
                try_weights(&w, 1, around, cols, row_counts[(n * 2 + i) % 7], n % 3 == 1, &state);
            }
        }
}

static void test_parts_of_different_forms_share_an_input(void **unused)
{
    (void)unused;
    static const int32_t row_counts[] = {1, 5, 40};
    uint64_t state = 2;
    for (int f = 0; f + 3 <= N_FORMS; f += 2) {
        struct weight weights[3];
        for (int i = 0; i < 3; i++)
            weights[i] = new_apart(&forms[f + i], 20 + 9 * i, 512, &state);
        try_weights(weights, 3, 0, 512, row_counts[f / 2 % 3], true, &state);
    }
}

static void test_the_twin_is_the_written_out_sum(void **unused)
{
    (void)unused;
    uint64_t state = 5;
    for (int f = 0; f < N_FORMS; f++) {
        if (forms[f].encoding != WEIGHT_AFFINE)
            continue;
        struct weight w = new_apart(&forms[f], 20, 512, &state);
        check_twin(&w, &state);
        free((void *)(uintptr_t)w.data);
    }
}

static void test_a_broken_row_stays_alone(void **unused)
{
    (void)unused;
    static const struct form form = AFFINE(4, 64, BF16);
    uint64_t state = 7;
    struct weight w = new_apart(&form, 16, 128, &state);
    check_broken_row(&w, &state);
    free((void *)(uintptr_t)w.data);
}

/* One group a row, or groups of 16, of columns that are no whole units of 32. */
static void test_a_row_may_end_anywhere(void **unused)
{
    (void)unused;
    static const int32_t widths[] = {8, 40, 72, 104, 1000};
    static const struct form halves = FORM(E2M1, E4M3, 4, 16, 1, 0, 1);
    static const struct form whole[] = {FORM(AFFINE, F32, 3, 4096, 1, 0, 1),
                                        FORM(AFFINE, BF16, 4, 4096, 1, 8, 1),
                                        FORM(AFFINE, F16, 8, 4096, 1, 0, 1)};
    uint64_t state = 4;
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 5; i++) {
            struct weight w = new_apart(&whole[f], 19, widths[i], &state);
            try_weights(&w, 1, 0, widths[i], 1 + 3 * i, i % 2 == 1, &state);
        }
    struct weight w = new_apart(&halves, 20, 48, &state);
    try_weights(&w, 1, 0, 48, 3, false, &state);
}

/* Rows of a batch are those of smaller batches, to the bit. */
static void test_a_row_does_not_depend_on_its_batch(void **unused)
{
    (void)unused;
    enum { ROWS = 48, COLS = 512, OUTPUTS = 40 };
    static const int32_t sizes[] = {1, 2, 3, 5, 8, 12, 17};
    uint64_t state = 3;
    for (int f = 0; f < N_FORMS; f++)
        for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++)
            for (int mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
                struct device *device = open_device(isa, (enum activations)mode, 2);
                struct weight w = new_apart(&forms[f], OUTPUTS, COLS, &state);
                struct linear_case c = {.n_parts = 1,
                                        .rows = ROWS,
                                        .slices = {{.weight = w, .rows = OUTPUTS, .cols = COLS}}};
                struct linear *linear = load(device, &c);
                struct matrix *x = random_matrix(device, ROWS, COLS, 0, &state);
                struct matrix *whole = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
                struct matrix *part = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
                run(device, linear, x, whole);
                int32_t row = 0;
                for (int i = 0; i < 7; row += sizes[i++]) {
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
                free((void *)(uintptr_t)w.data);
                device->table->close(device);
            }
}

/* Nothing is repeated or widened: rows of whole spans take what the file takes. */
static void test_packed_bytes_are_those_of_the_file(void **unused)
{
    (void)unused;
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_AUTO, 1);
    for (int f = 0; f < N_FORMS; f++) {
        struct weight w = {
            .encoding = forms[f].encoding, .rows = 4096, .cols = 4096, .levels = forms[f].levels};
        if (w.encoding == WEIGHT_AFFINE && w.levels.offset == 0)
            w.levels.biases = (const uint8_t *)"";
        if (w.levels.group_rows > 1 || w.levels.group == 4096)
            continue; /* FP8: its scales are for each row here; symmetric: its biases are stored */
        struct weight_slice slice = {.weight = w, .rows = 4096, .cols = 4096};
        uint64_t bytes = weight_bytes(&w) + weight_levels_bytes(&w) * (w.levels.biases ? 2 : 1);
        if (cpu_isa_best() > CPU_ISA_SCALAR) /* with the part of a slab that is lost */
            assert_in_range(device->table->linear_bytes(device, &slice, 1, 1).own, bytes,
                            linear_memory_bytes(bytes + bytes / 16));
    }
    device->table->close(device);
}

static void test_groups_that_no_kernel_knows_are_refused(void **unused)
{
    (void)unused;
    uint64_t state = 4;
    struct form form = AFFINE(4, 16, F16);
    struct device *device = open_device(cpu_isa_best(), ACTIVATIONS_AUTO, 1);
    struct weight w = new_apart(&form, 16, 64, &state);
    struct weight_slice slice = {.weight = w, .rows = 16, .cols = 64};
    struct linear *linear;
    struct error error;
    assert_int_equal(device->table->linear_load(device, &slice, 1, 1, &linear, &error),
                     ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "groups of 16"));
    free((void *)(uintptr_t)w.data);
    device->table->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_agrees_on_every_form_and_shape),
        cmocka_unit_test(test_parts_of_different_forms_share_an_input),
        cmocka_unit_test(test_a_row_may_end_anywhere),
        cmocka_unit_test(test_a_row_does_not_depend_on_its_batch),
        cmocka_unit_test(test_the_twin_is_the_written_out_sum),
        cmocka_unit_test(test_a_broken_row_stays_alone),
        cmocka_unit_test(test_packed_bytes_are_those_of_the_file),
        cmocka_unit_test(test_groups_that_no_kernel_knows_are_refused),
    };
    return cmocka_run_group_tests(tests, hold_gpu, let_gpu_go);
}
