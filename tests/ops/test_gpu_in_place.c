/* Weights that a GPU reads where they lie in the checkpoint: which ones, that they take none of its
 * memory, that the plan counts them like copies, and what a linear makes of them. */
#include "ops/linear_case.h"

#include "base/size.h"
#include "device/gpu/gpu_device.h"

enum { ROWS = 40, COLS = 96, GPU_BYTES = 64 << 20 };

struct place {
    const char *what;
    enum weight_encoding encoding;
    int32_t shift; /* bytes from a place on 64 */
    int32_t col, cols;
    bool has_bias, has_heads;
    bool stays;
};

static const struct place places[] = {
    {"f16", WEIGHT_F16, 0, 0, COLS, false, false, true},
    {"bf16 on 16 bytes", WEIGHT_BF16, 16, 0, COLS, false, false, true},
    {"f32", WEIGHT_F32, 0, 0, COLS, false, false, true},
    {"some columns", WEIGHT_BF16, 0, 32, 48, false, false, true},
    {"columns from within 16 bytes", WEIGHT_BF16, 0, 4, 48, false, false, false},
    {"bf16 on 8 bytes", WEIGHT_BF16, 8, 0, COLS, false, false, false},
    {"a bias", WEIGHT_BF16, 0, 0, COLS, true, false, false},
    {"heads in another order", WEIGHT_BF16, 0, 0, COLS, false, true, false},
    {"codes", WEIGHT_Q8_0, 0, 0, COLS, false, false, false},
};

struct loaded {
    uint8_t *memory; /* of the weight and its bias */
    struct weight_slice slice;
};

static struct loaded place_weight(const struct place *place, uint64_t *state)
{
    struct weight w = new_weight(place->encoding, ROWS, COLS, state);
    size_t bytes = (size_t)weight_bytes(&w);
    struct loaded l = {.memory = aligned_alloc(64, size_round_up(bytes + 128 + ROWS * 4, 64))};
    assert_non_null(l.memory);
    float *bias = (float *)(void *)l.memory;
    memset(bias, 0, ROWS * sizeof *bias);
    uint8_t *data = l.memory + size_round_up(ROWS * 4, 64) + place->shift;
    memcpy(data, w.data, bytes);
    free((void *)(uintptr_t)w.data);
    w.data = data;
    if (place->has_heads)
        w.rope_head_dim = 8;
    l.slice = (struct weight_slice){.weight = w,
                                    .row = 3,
                                    .rows = ROWS - 8,
                                    .col = place->col,
                                    .cols = place->cols,
                                    .bias = place->has_bias ? bias : NULL};
    return l;
}

static void check_product(struct device *device, const struct linear *linear,
                          const struct weight_slice *slice, int32_t n_rows, const char *what,
                          uint64_t *state)
{
    struct matrix *x = random_matrix(device, n_rows, (int32_t)slice->cols, 4, state);
    struct matrix *out = new_matrix(device, DTYPE_F32, n_rows, (int32_t)slice->rows, 1);
    float values[COLS];
    run(device, linear, x, out);
    for (int32_t n = 0; n < slice->rows; n++) {
        weight_row_dequantize(&slice->weight, slice->row + n, values);
        for (int32_t t = 0; t < n_rows; t++) {
            double sum = 0;
            for (int32_t c = 0; c < slice->cols; c++)
                sum += (double)at(x, t)[c] * (double)values[slice->col + c];
            if (!(fabs((double)at(out, t)[n] - sum) <= 1e-4))
                fail_msg("%s: [%d, %d] is %.9g, not %.9g", what, t, n, (double)at(out, t)[n], sum);
        }
    }
    check_borders(out);
    free_matrix(device, x);
    free_matrix(device, out);
}

/* An emulator that counts its memory. */
static struct device *open_small_gpu(void)
{
    char bytes[32];
    if (!test_gpu() || has_real_gpu())
        skip();
    snprintf(bytes, sizeof bytes, "%d", (int)GPU_BYTES);
    setenv("CSGL_EMULATOR_MEMORY", bytes, 1);
    return open_test_device(n_test_devices() - 1, ACTIVATIONS_FLOAT, 1);
}

static void close_small_gpu(struct device *device)
{
    device->table->close(device);
    unsetenv("CSGL_EMULATOR_MEMORY");
}

static void floats_that_lie_well_are_read_in_place(void **test)
{
    (void)test;
    uint64_t state = 5;
    struct device *device = open_small_gpu();
    const struct device_table *table = device->table;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *place = &places[i];
        struct loaded l = place_weight(place, &state);
        struct linear *linear;
        struct error error;
        uint64_t before = table->memory_available(device);
        if (table->linear_load(device, &l.slice, 1, 40, &linear, &error) != OK)
            fail_msg("%s: %s", place->what, error.message);
        uint64_t taken = before - table->memory_available(device);
        uint64_t counted = table->linear_bytes(device, &l.slice, 1, 40).own;
        if (table->reads_in_place(device, &l.slice) != place->stays)
            fail_msg("%s: it %s in place", place->what, place->stays ? "is not read" : "is read");
        if (taken != (place->stays ? 0 : counted))
            fail_msg("%s: %llu bytes were taken", place->what, (unsigned long long)taken);
        if (weight_is_float(&l.slice.weight) && !place->has_bias)
            assert_int_equal(counted, (uint64_t)l.slice.rows * (uint64_t)l.slice.cols *
                                          (place->encoding == WEIGHT_F32 ? 4 : 2));
        assert_int_equal(table->linear_size(linear), counted);
        for (int32_t n = 1; n <= 40; n += 13)
            check_product(device, linear, &l.slice, n, place->what, &state);
        table->linear_free(device, linear);
        assert_int_equal(table->memory_available(device), before);
        free(l.memory);
    }
    close_small_gpu(device);
}

static void tables_of_floats_take_no_memory_and_those_of_codes_no_floats(void **test)
{
    (void)test;
    static const enum weight_encoding encodings[] = {WEIGHT_F16, WEIGHT_Q4_0, WEIGHT_Q6_K};
    uint64_t state = 6;
    struct device *device = open_small_gpu();
    for (int i = 0; i < 3; i++) {
        struct weight w = new_weight(encodings[i], 100, 512, &state);
        struct embedding *table;
        uint64_t before = device->table->memory_available(device);
        assert_int_equal(device->table->embedding_load(device, &w, &table, NULL), OK);
        uint64_t taken = before - device->table->memory_available(device);
        uint64_t counted = device->table->embedding_bytes(&w);
        assert_int_equal(taken, i == 0 ? 0 : counted);
        assert_true(counted <= 100 * 512 * 2);
        device->table->embedding_free(device, table);
        assert_int_equal(device->table->memory_available(device), before);
        free((void *)(uintptr_t)w.data);
    }
    close_small_gpu(device);
}

static enum status refuse_view(struct gpu *gpu, const void *data, size_t bytes,
                               struct gpu_memory **out, struct error *error)
{
    (void)gpu;
    (void)data;
    (void)out;
    return error_set(error, ERROR_LIMIT, "a view of %zu bytes is refused", bytes);
}

static void what_the_driver_does_not_view_is_copied(void **test)
{
    (void)test;
    uint64_t state = 7;
    struct device *device = open_small_gpu();
    struct gpu_device *gpu = gpu_device_of(device);
    struct gpu_driver refusing = *gpu->driver;
    const struct gpu_driver *driver = gpu->driver;
    refusing.wrap = refuse_view;
    gpu->driver = &refusing;
    struct loaded l = place_weight(&places[0], &state);
    struct linear *linear;
    uint64_t before = device->table->memory_available(device);
    assert_int_equal(device->table->linear_load(device, &l.slice, 1, 40, &linear, NULL), OK);
    assert_int_equal(before - device->table->memory_available(device),
                     device->table->linear_bytes(device, &l.slice, 1, 40).own);
    check_product(device, linear, &l.slice, 14, "a copy", &state);
    device->table->linear_free(device, linear);
    free(l.memory);
    gpu->driver = driver;
    close_small_gpu(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_that_lie_well_are_read_in_place),
        cmocka_unit_test(what_the_driver_does_not_view_is_copied),
        cmocka_unit_test(tables_of_floats_take_no_memory_and_those_of_codes_no_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
