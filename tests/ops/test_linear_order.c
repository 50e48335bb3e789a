/* Linears whose columns take their inputs in an order of their own. */
#include "ops/linear_case.h"

enum { COLS = 192, OUTPUTS = 40 };

/* A permutation of the columns. */
static int32_t *new_order(uint64_t *state)
{
    int32_t *order = malloc(COLS * sizeof *order);
    assert_non_null(order);
    for (int32_t i = 0; i < COLS; i++)
        order[i] = i;
    for (int32_t i = COLS - 1; i > 0; i--) {
        int32_t j = random_below(state, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    return order;
}

static void check_order(enum cpu_isa isa, enum activations activations, int32_t rows)
{
    uint64_t state = 11;
    struct device *device = open_device(isa, activations, 2);
    struct weight w = new_weight(WEIGHT_Q4_1, OUTPUTS, COLS, &state);
    struct linear_case c = {
        .n_parts = 1, .rows = rows, .slices = {{.weight = w, .rows = OUTPUTS, .cols = COLS}}};
    int32_t *order = new_order(&state);
    struct matrix *x = random_matrix(device, rows, COLS, 3, &state);
    struct matrix *ordered = new_matrix(device, DTYPE_F32, rows, COLS, 0);
    struct matrix *expected = new_matrix(device, DTYPE_F32, rows, OUTPUTS, 0);
    struct matrix *out = new_matrix(device, DTYPE_F32, rows, OUTPUTS, 5);
    for (int32_t t = 0; t < rows; t++)
        for (int32_t i = 0; i < COLS; i++)
            at(ordered, t)[i] = at(x, t)[order[i]];
    struct linear *plain = load(device, &c);
    c.slices[0].weight.order = order;
    struct linear *linear = load(device, &c);
    run(device, plain, ordered, expected);
    run(device, linear, x, out);
    for (int32_t t = 0; t < rows; t++)
        assert_memory_equal(at(out, t), at(expected, t), OUTPUTS * sizeof(float));
    check_borders(out);
    device->table->linear_free(device, plain);
    device->table->linear_free(device, linear);
    free_matrix(device, x);
    free_matrix(device, ordered);
    free_matrix(device, expected);
    free_matrix(device, out);
    free(order);
    free((void *)(uintptr_t)w.data);
    device->table->close(device);
}

static void test_ordered_inputs_give_what_plain_ones_in_that_order_give(void **unused)
{
    (void)unused;
    static const int32_t rows[] = {1, 5, 40};
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++)
        for (int mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++)
            for (int i = 0; i < 3; i++)
                check_order(isa, (enum activations)mode, rows[i]);
}

static void test_parts_in_different_orders_are_refused(void **unused)
{
    (void)unused;
    uint64_t state = 12;
    struct device *device = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct weight w = new_weight(WEIGHT_Q4_1, OUTPUTS, COLS, &state);
    int32_t *first = new_order(&state), *second = new_order(&state);
    struct weight_slice slices[2] = {{.weight = w, .rows = OUTPUTS, .cols = COLS},
                                     {.weight = w, .rows = OUTPUTS, .cols = COLS}};
    struct linear *linear;
    for (int i = 0; i < 3; i++) {
        slices[0].weight.order = i == 0 ? NULL : first;
        slices[1].weight.order = i == 1 ? NULL : second;
        assert_int_equal(device->table->linear_load(device, slices, 2, 4, &linear, NULL),
                         ERROR_INVALID);
    }
    free(first);
    free(second);
    free((void *)(uintptr_t)w.data);
    device->table->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordered_inputs_give_what_plain_ones_in_that_order_give),
        cmocka_unit_test(test_parts_in_different_orders_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
