/* Weights in tiles, read back as the native kernels take them: what no machine without the GPU can
 * run is at least laid as the kernels' text says. */
#include "ops/linear_case.h"

#include "device/gpu/gpu_tiles.h"

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

static void check_weight(const struct weight *w, enum gpu_tile_form form, bool has_bias)
{
    float *row = malloc((size_t)(w->cols + 64) * sizeof *row);
    float *bias = calloc((size_t)w->rows, sizeof *bias), tile[64];
    for (int64_t i = 0; i < w->rows; i++)
        bias[i] = (float)i;
    struct weight_slice slice = {.weight = *w, .row = 1, .rows = w->rows - 1, .cols = w->cols};
    slice.bias = has_bias ? bias : NULL;
    struct gpu_tile_shape shape;
    assert_true(gpu_tiles_describe(&slice, 1, &shape));
    assert_int_equal(shape.form, form);
    uint8_t *packed = calloc(1, shape.bytes);
    assert_non_null(packed);
    assert_true(gpu_tiles_pack(&slice, 1, &shape, packed));
    for (uint32_t r = 0; r < shape.rows; r++) {
        weight_row_dequantize(w, 1 + r, row);
        for (uint32_t k = 0; k < shape.n_tiles; k++) {
            read_tile(&shape, packed, r, k, tile);
            for (uint32_t c = 0; c < 64 && k * 64 + c < w->cols; c++)
                if (tile[c] != row[k * 64 + c])
                    fail_msg("%s: [%u, %u] is %.9g, not %.9g", weight_info(w->encoding)->name, r,
                             k * 64 + c, (double)tile[c], (double)row[k * 64 + c]);
        }
    }
    if (has_bias)
        assert_memory_equal(packed + shape.out_bias, bias, shape.rows * sizeof *bias);
    free(packed);
    free(bias);
    free(row);
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
        cmocka_unit_test(test_parts_that_lie_alike_are_one_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
