/* Every weight encoding against the values that the public `gguf` package gives for the same blocks
 * (tools/make_weight_vectors.py). */
#include "base/file.h"
#include "base/half.h"
#include "base/weight.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct vectors {
    struct str file;
    struct weight weight;
    const uint8_t *expected; /* f32 [rows, cols], unaligned */
};

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void vectors_load(struct vectors *v, enum weight_encoding encoding)
{
    *v = (struct vectors){0};
    char path[512];
    snprintf(path, sizeof path, "%s/tests/data/weights/%s.bin", SOURCE_DIR,
             weight_info(encoding)->name);
    struct error error;
    assert_int_equal(file_read(path, 1 << 20, &v->file, &error), OK);
    const uint8_t *data = (const uint8_t *)v->file.data;
    v->weight = (struct weight){
        .encoding = encoding, .rows = load_u32(data), .cols = load_u32(data + 4), .data = data + 8};
    assert_true(v->weight.rows == 3 && v->weight.cols == 1280);
    v->expected = v->weight.data + weight_bytes(&v->weight);
    assert_ptr_equal(v->expected + v->weight.rows * v->weight.cols * 4, data + v->file.len);
}

static bool same_bits(float a, float b)
{
    return (isnan(a) && isnan(b)) || bits_from_f32(a) == bits_from_f32(b);
}

static float expected_at(const struct vectors *v, int64_t row, int64_t column)
{
    return f32_from_bits(load_u32(v->expected + (row * v->weight.cols + column) * 4));
}

static void rows_equal_the_reference_bit_for_bit(void **state)
{
    (void)state;
    for (int e = 0; e < WEIGHT_AFFINE; e++) {
        struct vectors v;
        vectors_load(&v, (enum weight_encoding)e);
        float row[1280];
        int n_special = 0;
        for (int64_t r = 0; r < v.weight.rows; r++) {
            weight_row_dequantize(&v.weight, r, row);
            for (int64_t c = 0; c < v.weight.cols; c++) {
                float expected = expected_at(&v, r, c);
                n_special += !isfinite(expected);
                if (!same_bits(row[c], expected))
                    fail_msg("%s row %d column %d: %a, expected %a",
                             weight_info((enum weight_encoding)e)->name, (int)r, (int)c,
                             (double)row[c], (double)expected);
            }
        }
        assert_true(n_special > 0); /* the vectors do contain NaNs or infinities */
        str_done(&v.file);
    }
}

/* scale * code + bias in f64, rounded once, is the reference's value for ordinary scales. */
static void parts_rebuild_the_values(void **state)
{
    (void)state;
    for (int e = WEIGHT_Q4_0; e < WEIGHT_AFFINE; e++) {
        struct vectors v;
        vectors_load(&v, (enum weight_encoding)e);
        const struct weight_encoding_info *info = weight_info((enum weight_encoding)e);
        uint8_t codes[1280];
        float scales[80], biases[80];
        const struct weight_row out = {.codes = codes, .scales = scales, .biases = biases};
        weight_row_read(&v.weight, 0, &out);
        for (int64_t c = 0; c < v.weight.cols; c++) {
            assert_true(codes[c] < 1 << info->bits);
            double value = (double)scales[c / info->group] * codes[c] + biases[c / info->group];
            assert_true((float)value == expected_at(&v, 0, c));
        }
        str_done(&v.file);
    }
}

static void two_level_parts_multiply_to_the_scales(void **state)
{
    (void)state;
    static const enum weight_encoding two_level[] = {WEIGHT_Q2_K, WEIGHT_Q3_K, WEIGHT_Q4_K,
                                                     WEIGHT_Q5_K, WEIGHT_Q6_K};
    static const float offsets[] = {0, 4, 0, 0, 32};
    for (int e = 0; e < 5; e++) {
        struct vectors v;
        vectors_load(&v, two_level[e]);
        const struct weight_encoding_info *info = weight_info(two_level[e]);
        int groups = (int)v.weight.cols / info->group, per_block = info->block / info->group;
        float scales[80], biases[80];
        uint16_t super_scales[5], super_biases[5] = {0};
        int8_t sub_scales[80], sub_biases[80] = {0};
        const struct weight_row whole = {.scales = scales, .biases = biases};
        const struct weight_row parts = {.super_scales = super_scales,
                                         .super_biases = super_biases,
                                         .sub_scales = sub_scales,
                                         .sub_biases = sub_biases};
        for (int64_t r = 0; r < v.weight.rows; r++) {
            weight_row_read(&v.weight, r, &whole);
            weight_row_read(&v.weight, r, &parts);
            for (int g = 0; g < groups; g++) {
                float super_scale = f32_from_f16(super_scales[g / per_block]);
                float super_bias = f32_from_f16(super_biases[g / per_block]);
                assert_true(same_bits(scales[g], super_scale * sub_scales[g]));
                float bias =
                    offsets[e] > 0 ? -offsets[e] * scales[g] : -(super_bias * sub_biases[g]);
                assert_true(same_bits(biases[g], bias));
            }
        }
        str_done(&v.file);
    }
}

static void rope_rows_are_put_back_into_halves(void **state)
{
    (void)state;
    /* Two heads of six rows. Stored in pairs (i, i + 3): 0 3 1 4 2 5. */
    float stored[12], value;
    static const int order[6] = {0, 3, 1, 4, 2, 5};
    for (int r = 0; r < 12; r++)
        stored[r] = (float)(r / 6 * 6 + order[r % 6]);
    const struct weight w = {.encoding = WEIGHT_F32,
                             .rows = 12,
                             .cols = 1,
                             .data = (const uint8_t *)stored,
                             .rope_head_dim = 6};
    for (int r = 0; r < 12; r++) {
        weight_row_dequantize(&w, r, &value);
        assert_true(value == (float)r);
    }
}

static void unaligned_data_reads_the_same(void **state)
{
    (void)state;
    for (int e = 0; e < WEIGHT_AFFINE; e++) {
        struct vectors v;
        vectors_load(&v, (enum weight_encoding)e);
        uint64_t bytes = weight_bytes(&v.weight);
        uint8_t *copy = malloc(bytes + 1);
        assert_non_null(copy);
        memcpy(copy + 1, v.weight.data, bytes);
        struct weight moved = v.weight;
        moved.data = copy + 1;
        float a[1280], b[1280];
        for (int64_t r = 0; r < v.weight.rows; r++) {
            weight_row_dequantize(&v.weight, r, a);
            weight_row_dequantize(&moved, r, b);
            assert_memory_equal(a, b, sizeof a);
        }
        free(copy);
        str_done(&v.file);
    }
}

static void the_table_matches_the_sizes_of_the_format(void **state)
{
    (void)state;
    assert_null(weight_info(N_WEIGHT_ENCODINGS));
    const struct weight w = {.encoding = WEIGHT_Q6_K, .rows = 3, .cols = 512};
    assert_int_equal(weight_row_bytes(&w), 420);
    assert_int_equal(weight_bytes(&w), 1260);
    assert_string_equal(weight_info(WEIGHT_Q4_K)->name, "Q4_K");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_the_reference_bit_for_bit),
        cmocka_unit_test(parts_rebuild_the_values),
        cmocka_unit_test(two_level_parts_multiply_to_the_scales),
        cmocka_unit_test(rope_rows_are_put_back_into_halves),
        cmocka_unit_test(unaligned_data_reads_the_same),
        cmocka_unit_test(the_table_matches_the_sizes_of_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
