/* Weights in tiles, read back as the native kernels take them: what no machine without the GPU can
 * run is at least laid as the kernels' text says. */
#include "ops/linear_case.h"

#include "device/gpu/gpu_tiles.h"
#include "device/gpu/gpu_upload.h"

/* The 16 bits that the matrix unit's first operand has for row g (low 0) or g + 8 (1) and j of a
 * half: fragment() of kernels/cuda/linear_tiles.h, one value at a time. */
static uint16_t operand(const uint8_t *tile, enum gpu_tile_form form, uint32_t lane, uint32_t half,
                        uint32_t low, uint32_t j)
{
    uint32_t w[4], is_b = j / 4, second = j % 4 / 2, value, bits = gpu_tile_infos[form].bits;
    uint32_t word = bits == 4 ? 0 : bits == 8 ? half : 2 * half + is_b;
    memcpy(w, tile + ((size_t)word * 32 + lane) * 16, sizeof w);
    if (form == GPU_TILE_e2m1) {
        static const uint32_t signs[] = {0, 3, 1, 2}, magnitudes[] = {0, 3, 6, 9};
        value = w[2 * low + half];
        value = (value << signs[j / 2] & 0x80008000u) | (value << magnitudes[j / 2] & 0x0E000E00u);
    } else if (bits == 4)
        value = w[2 * low + half] >> (8 * second) & (is_b ? 0x00F000F0u : 0x000F000Fu);
    else if (bits == 8)
        value = w[2 * low + second] >> (8 * is_b) & 0x00FF00FFu;
    else
        value = w[2 * second + low];
    value = value >> (16 * (j % 2)) & 0xFFFF;
    return (uint16_t)(bits == 4 && form != GPU_TILE_e2m1 && is_b ? value >> 4 : value);
}

static float level(const struct gpu_tile_shape *shape, const uint8_t *levels, size_t i)
{
    float wide;
    uint16_t narrow;
    if (gpu_tile_infos[shape->form].level_bytes == 8) {
        memcpy(&wide, levels + 4 * i, 4);
        return wide;
    }
    memcpy(&narrow, levels + 2 * i, 2);
    return shape->is_bf16 ? f32_from_bf16(narrow) : f32_from_f16(narrow);
}

/* Row `row` and the tile `k` of a packed matrix, [64]. */
static void read_tile(const struct gpu_tile_shape *shape, const uint8_t *packed, uint32_t row,
                      uint32_t k, float *out)
{
    const struct gpu_tile_info *info = &gpu_tile_infos[shape->form];
    uint32_t n_levels = (shape->n_tiles + (1u << shape->level_shift) - 1) >> shape->level_shift;
    const uint8_t *tile = packed + ((size_t)(row / 16) * shape->n_tiles + k) * 128 * info->bits;
    for (uint32_t position = 0; position < 64; position++) {
        uint32_t half = position / 32, t = position / 8 % 4, low = row / 8 % 2;
        uint32_t column = gpu_tile_column(position, info->spans);
        uint16_t value = operand(tile, shape->form, row % 8 * 4 + t, half, low, position % 8);
        if (info->spans == 0) {
            out[column] = shape->is_bf16 ? f32_from_bf16(value) : f32_from_f16(value);
            continue;
        }
        size_t at = (size_t)(row / 16) * n_levels + (k >> shape->level_shift);
        at = (at * info->spans + column / (64 / info->spans)) * 8 + row % 8;
        if (shape->form == GPU_TILE_e2m1) {
            float scale = level(shape, packed + shape->levels, at * 2 + low);
            out[column] = scale * (0x1p14f * f32_from_f16(value));
            continue;
        }
        at = at * 4 + 2 * low;
        float product = level(shape, packed + shape->levels, at) * (float)value;
        out[column] = product + level(shape, packed + shape->levels, at + 1);
    }
}

/* A row's factor is a power of two that brings its largest weight to about as many times 2^-9, or
 * of E2M1 2, as there are codes. */
static void check_factor(const struct gpu_tile_shape *shape, const uint8_t *packed, uint32_t row,
                         float largest)
{
    float factor;
    int exponent;
    if (!shape->row_factors || largest < 0x1p-100f || !isfinite(largest))
        return;
    memcpy(&factor, packed + shape->row_factors + row * sizeof factor, sizeof factor);
    assert_true(frexpf(factor, &exponent) == 0.5f);
    int bits = (int)gpu_tile_infos[shape->form].bits;
    int top = bits + (shape->form == GPU_TILE_e2m1 ? 1 : -9);
    if (largest * factor > ldexpf(1.0f, top + 2) || largest * factor < ldexpf(1.0f, top - 7))
        fail_msg("row %u: %g times %g", row, (double)largest, (double)factor);
}

/* A driver whose memory is the test's own; it writes `writes_left` times, then fails. */
struct gpu_memory {
    uint8_t *bytes;
    size_t n, writes_left;
};

static enum status write_memory(struct gpu *gpu, const struct gpu_range *to, const void *from,
                                size_t bytes, struct error *error)
{
    (void)gpu;
    struct gpu_memory *memory = (struct gpu_memory *)(uintptr_t)to->memory;
    if (memory->writes_left-- == 0)
        return error_set(error, ERROR_IO, "the driver fails");
    enum status status = gpu_check_range(to, memory->n, bytes, error);
    if (status == OK)
        memcpy(memory->bytes + to->offset, from, bytes);
    return status;
}

static const struct gpu_driver memory_driver = {.write = write_memory};

/* What is loaded equals what is packed, at an offset and with nothing written around it. */
static void check_load(const struct weight_slice *slices, int n_slices,
                       const struct gpu_tile_shape *shape, const uint8_t *packed, int n_threads)
{
    enum { AT = 256 };
    struct error error;
    struct gpu_memory memory = {calloc(1, shape->bytes + 2 * AT), shape->bytes + 2 * AT, SIZE_MAX};
    struct gpu_device gpu = {.driver = &memory_driver};
    const uint8_t zeros[AT] = {0};
    assert_non_null(memory.bytes);
    assert_int_equal(thread_pool_new(&gpu.loaders, n_threads, &error), OK);
    struct gpu_range to = {&memory, AT};
    assert_int_equal(gpu_tiles_load(&gpu, slices, n_slices, shape, &to, &error), OK);
    gpu_upload_done(&gpu);
    assert_memory_equal(memory.bytes, zeros, AT);
    assert_memory_equal(memory.bytes + AT + shape->bytes, zeros, AT);
    if (memcmp(memory.bytes + AT, packed, shape->bytes) != 0)
        fail_msg("%u x %u: %d threads load other bytes", shape->rows, shape->cols, n_threads);
    free(memory.bytes);
}

/* Packs the slices, which lie one below the other as tiles of the form, and reads them back. */
static void check_slices(const struct weight_slice *slices, int n_slices, enum gpu_tile_form form)
{
    struct gpu_tile_shape shape;
    assert_true(gpu_tiles_describe(slices, n_slices, &shape));
    assert_int_equal(shape.form, form);
    uint8_t *packed = calloc(1, shape.bytes);
    assert_non_null(packed);
    assert_true(gpu_tiles_pack(slices, n_slices, &shape, packed));
    uint32_t first = 0;
    for (int i = 0; i < n_slices; i++) {
        const struct weight_slice *slice = &slices[i];
        const struct weight *w = &slice->weight;
        float *row = malloc((size_t)(w->cols + 64) * sizeof *row), tile[64];
        for (uint32_t r = 0; r < slice->rows; r++) {
            float largest = 0.0f;
            weight_row_dequantize(w, row_pattern_at(&slice->pattern, slice->row + r), row);
            for (uint32_t k = 0; k < shape.n_tiles; k++) {
                read_tile(&shape, packed, first + r, k, tile);
                for (uint32_t c = 0; c < 64 && k * 64 + c < slice->cols; c++) {
                    float wanted = row[slice->col + k * 64 + c];
                    largest = fmaxf(largest, fabsf(wanted));
                    if (tile[c] != wanted)
                        fail_msg("%s: [%u, %u] is %.9g, not %.9g", weight_info(w->encoding)->name,
                                 r, k * 64 + c, (double)tile[c], (double)wanted);
                }
            }
            check_factor(&shape, packed, first + r, largest);
        }
        if (slice->bias)
            assert_memory_equal(packed + shape.out_bias + first * sizeof(float), slice->bias,
                                (size_t)slice->rows * sizeof(float));
        first += (uint32_t)slice->rows;
        free(row);
    }
    if (shape.order)
        assert_memory_equal(packed + shape.order, slices->weight.order,
                            shape.cols * sizeof(int32_t));
    check_load(slices, n_slices, &shape, packed, 1);
    check_load(slices, n_slices, &shape, packed, 3);
    free(packed);
}

static void check_weight(const struct weight *w, enum gpu_tile_form form, bool has_bias)
{
    float *bias = calloc((size_t)w->rows, sizeof *bias);
    for (int64_t i = 0; i < w->rows; i++)
        bias[i] = (float)i;
    struct weight_slice slice = {.weight = *w, .row = 1, .rows = w->rows - 1, .cols = w->cols};
    slice.bias = has_bias ? bias : NULL;
    check_slices(&slice, 1, form);
    free(bias);
}

static void test_tiles_hold_every_value(void **unused)
{
    (void)unused;
    static const struct {
        enum weight_encoding encoding;
        enum gpu_tile_form form;
        int32_t cols;
    } cases[] = {
        {WEIGHT_F16, GPU_TILE_f16, 100},    {WEIGHT_BF16, GPU_TILE_bf16, 64},
        {WEIGHT_Q4_0, GPU_TILE_q4s2w, 160}, {WEIGHT_Q8_0, GPU_TILE_q8s2w, 96},
        {WEIGHT_Q6_K, GPU_TILE_q8s4w, 256}, {WEIGHT_Q2_K, GPU_TILE_q4s4w, 512},
        {WEIGHT_Q5_1, GPU_TILE_q8s2w, 64},  {WEIGHT_Q4_K, GPU_TILE_q4s2w, 256},
        {WEIGHT_MXFP4, GPU_TILE_e2m1, 96},  {WEIGHT_IQ4_NL, GPU_TILE_q8s2w, 64},
        {WEIGHT_Q3_K, GPU_TILE_q4s4w, 256},
    };
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weight w = new_weight(cases[i].encoding, 38, cases[i].cols, &state);
        check_weight(&w, cases[i].form, i % 2);
        free((void *)(uintptr_t)w.data);
    }
}

/* MLX's codes, made of bf16 values: levels stay 2 bytes, and tiles may share them. */
static void test_levels_of_two_bytes_stay_so(void **unused)
{
    (void)unused;
    static const struct {
        int bits, group;
        enum gpu_tile_form form;
    } cases[] = {{4, 64, GPU_TILE_q4},   {4, 32, GPU_TILE_q4s2}, {8, 128, GPU_TILE_q8},
                 {8, 32, GPU_TILE_q8s2}, {4, 128, GPU_TILE_q4},  {6, 64, GPU_TILE_q8},
                 {3, 64, GPU_TILE_q4}};
    uint64_t state = 6;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weight floats = new_weight(WEIGHT_BF16, 20, 384, &state);
        struct weight made = weight_quantized(&floats, cases[i].bits, cases[i].group);
        check_weight(&made, cases[i].form, false);
        free((void *)(uintptr_t)floats.data);
    }
}

/* Floats of 4 bits stay so where their scales, apart from them, are powers of two. */
static void test_floats_of_4_bits_are_packed_as_such(void **unused)
{
    (void)unused;
    enum { ROWS = 20, COLS = 160, GROUPS = COLS / 32 };
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * GROUPS];
    uint64_t state = 8;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(next_random(&state) >> 33);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)random_below(&state, 255);
    struct weight w = {.encoding = WEIGHT_E2M1,
                       .rows = ROWS,
                       .cols = COLS,
                       .data = codes,
                       .levels = {.type = LEVEL_E8M0,
                                  .bits = 4,
                                  .group = 32,
                                  .group_rows = 1,
                                  .scales = scales,
                                  .factor = 1}};
    check_weight(&w, GPU_TILE_e2m1, false);
    w.levels.factor = 3; /* no bf16 for these any more */
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(100 + random_below(&state, 20));
    check_weight(&w, GPU_TILE_q8s2w, false);
}

/* Columns from one that begins no tile on, rows of some heads, and padding behind both. */
static void test_tiles_of_a_part_of_a_weight(void **unused)
{
    (void)unused;
    static const enum weight_encoding encodings[] = {WEIGHT_BF16, WEIGHT_Q4_0, WEIGHT_Q8_0};
    static const enum gpu_tile_form forms[] = {GPU_TILE_bf16, GPU_TILE_q4s2w, GPU_TILE_q8s2w};
    uint64_t state = 8;
    for (int i = 0; i < 3; i++) {
        struct weight w = new_weight(encodings[i], 96, 256, &state);
        struct weight_slice slice = {.weight = w, .row = 3, .rows = 39, .col = 32, .cols = 160};
        slice.pattern = (struct row_pattern){.first = 4, .run = 8, .stride = 16};
        check_slices(&slice, 1, forms[i]);
        free((void *)(uintptr_t)w.data);
    }
}

static void test_an_order_and_the_biases_of_one_part(void **unused)
{
    (void)unused;
    uint64_t state = 9;
    float bias[24];
    int32_t order[64];
    struct weight a = new_weight(WEIGHT_Q8_0, 32, 64, &state);
    struct weight b = new_weight(WEIGHT_Q8_0, 24, 64, &state);
    for (int i = 0; i < 24; i++)
        bias[i] = 0.5f * (float)(i + 1);
    struct weight_slice slices[] = {{.weight = a, .rows = 32, .cols = 64},
                                    {.weight = b, .rows = 24, .cols = 64, .bias = bias}};
    check_slices(slices, 2, GPU_TILE_q8s2w);
    for (int i = 0; i < 64; i++)
        order[i] = 63 - i;
    slices[1].weight.has_order = true;
    slices[1].weight.order = order;
    check_slices(&slices[1], 1, GPU_TILE_q8s2w);
    free((void *)(uintptr_t)a.data);
    free((void *)(uintptr_t)b.data);
}

/* More than a piece of the upload: many rows of tiles, and rows of which one is more. */
static void test_large_weights_are_loaded_in_pieces(void **unused)
{
    (void)unused;
    static const struct {
        enum weight_encoding encoding;
        int64_t rows, cols;
        enum gpu_tile_form form;
    } cases[] = {{WEIGHT_Q4_0, 5000, 2048, GPU_TILE_q4s2w}, {WEIGHT_F16, 40, 140000, GPU_TILE_f16}};
    uint64_t state = 10;
    for (int i = 0; i < 2; i++) {
        struct weight w = new_weight(cases[i].encoding, cases[i].rows, cases[i].cols, &state);
        struct weight_slice slice = {.weight = w, .rows = w.rows, .cols = w.cols};
        check_slices(&slice, 1, cases[i].form);
        free((void *)(uintptr_t)w.data);
    }
}

/* Whichever write it is: of a piece in the middle, of the last levels. */
static void test_a_write_that_fails_is_told(void **unused)
{
    (void)unused;
    uint64_t state = 11;
    struct error error;
    struct gpu_tile_shape shape;
    struct gpu_device gpu = {.driver = &memory_driver};
    struct weight w = new_weight(WEIGHT_Q8_0, 3000, 2048, &state);
    struct weight_slice slice = {.weight = w, .rows = w.rows, .cols = w.cols};
    assert_true(gpu_tiles_describe(&slice, 1, &shape));
    assert_int_equal(thread_pool_new(&gpu.loaders, 3, &error), OK);
    uint8_t *bytes = malloc(shape.bytes);
    enum status status = ERROR_IO;
    for (size_t n = 0; status != OK && n < 8; n++) {
        struct gpu_memory memory = {bytes, shape.bytes, n};
        status = gpu_tiles_load(&gpu, &slice, 1, &shape, &(struct gpu_range){&memory, 0}, &error);
        assert_true(status == (n < 6 ? ERROR_IO : OK)); /* two pieces, of three sections each */
        if (status != OK)
            assert_string_equal(error.message, "the driver fails");
    }
    gpu_upload_done(&gpu);
    free(bytes);
    free((void *)(uintptr_t)w.data);
}

static void test_parts_that_lie_alike_are_one_matrix(void **unused)
{
    (void)unused;
    uint64_t state = 7;
    struct weight a = new_weight(WEIGHT_Q8_0, 32, 64, &state);
    struct weight b = new_weight(WEIGHT_Q8_0, 20, 64, &state);
    struct weight other = new_weight(WEIGHT_Q4_0, 20, 64, &state);
    struct weight_slice slices[] = {{.weight = a, .rows = 32, .cols = 64},
                                    {.weight = b, .rows = 20, .cols = 64},
                                    {.weight = b, .rows = 20, .cols = 64}};
    struct gpu_tile_shape shape;
    assert_true(gpu_tiles_describe(slices, 2, &shape));
    assert_int_equal(shape.rows, 52);
    assert_false(gpu_tiles_describe(slices, 3, &shape)); /* the third would begin inside a tile */
    slices[1].weight = other;
    assert_false(gpu_tiles_describe(slices, 2, &shape));
    slices[1].weight = b;
    slices[0].keeps_f32 = true;
    assert_false(gpu_tiles_describe(slices, 1, &shape));
    free((void *)(uintptr_t)a.data);
    free((void *)(uintptr_t)b.data);
    free((void *)(uintptr_t)other.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_hold_every_value),
        cmocka_unit_test(test_levels_of_two_bytes_stay_so),
        cmocka_unit_test(test_floats_of_4_bits_are_packed_as_such),
        cmocka_unit_test(test_tiles_of_a_part_of_a_weight),
        cmocka_unit_test(test_an_order_and_the_biases_of_one_part),
        cmocka_unit_test(test_large_weights_are_loaded_in_pieces),
        cmocka_unit_test(test_a_write_that_fails_is_told),
        cmocka_unit_test(test_parts_that_lie_alike_are_one_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
