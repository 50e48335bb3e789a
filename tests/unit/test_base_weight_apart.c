/* Weights whose levels lie apart from their codes, against what mlx.core makes of the same bytes
 * (tools/make_mlx_vectors.py). */
#include "base/file.h"
#include "base/half.h"
#include "base/weight_encode.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A file of records, read one after the other. */
struct records {
    struct str file;
    size_t at;
};

static void records_open(struct records *r, const char *name)
{
    char path[512];
    struct error error;
    *r = (struct records){0};
    snprintf(path, sizeof path, "%s/tests/data/weights/%s", SOURCE_DIR, name);
    assert_int_equal(file_read(path, 1 << 22, &r->file, &error), OK);
}

static const uint8_t *take(struct records *r, size_t bytes)
{
    assert_true(bytes <= r->file.len - r->at);
    r->at += bytes;
    return (const uint8_t *)r->file.data + r->at - bytes;
}

/* The header of the next record as a weight without bytes; false at the end. */
static bool next_weight(struct records *r, struct weight *w)
{
    uint32_t fields[6];
    if (r->at == r->file.len)
        return false;
    memcpy(fields, take(r, sizeof fields), sizeof fields);
    *w = (struct weight){.encoding = (enum weight_encoding)(WEIGHT_AFFINE + fields[0]),
                         .rows = fields[4],
                         .cols = fields[5],
                         .levels = {.type = (enum weight_level_type)fields[1],
                                    .bits = (int32_t)fields[2],
                                    .group = (int32_t)fields[3],
                                    .group_rows = 1,
                                    .factor = 1.0f}};
    return true;
}

static bool next_stored(struct records *r, struct weight *w, const uint8_t **values)
{
    if (!next_weight(r, w))
        return false;
    w->data = take(r, (size_t)weight_bytes(w));
    w->levels.scales = take(r, (size_t)weight_levels_bytes(w));
    if (w->encoding == WEIGHT_AFFINE)
        w->levels.biases = take(r, (size_t)weight_levels_bytes(w));
    *values = take(r, (size_t)(w->rows * w->cols) * sizeof(float));
    return true;
}

static float float_at(const uint8_t *values, int64_t i)
{
    float value;
    memcpy(&value, values + i * 4, sizeof value);
    return value;
}

static bool same_bits(float a, float b)
{
    return (isnan(a) && isnan(b)) || bits_from_f32(a) == bits_from_f32(b);
}

static void check_row(const struct weight *w, const float *row, const uint8_t *expected, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        if (!same_bits(row[c], float_at(expected, c)))
            fail_msg("%s of %d bits, groups of %d, levels %d: column %d is %a, expected %a",
                     weight_info(w->encoding)->name, (int)w->levels.bits, (int)w->levels.group,
                     (int)w->levels.type, (int)c, (double)row[c], (double)float_at(expected, c));
}

static void rows_equal_mlx_bit_for_bit(void **state)
{
    (void)state;
    struct records r;
    struct weight w;
    const uint8_t *values;
    int n = 0;
    records_open(&r, "mlx_dequantize.bin");
    for (; next_stored(&r, &w, &values); n++) {
        float *row = malloc((size_t)w.cols * sizeof *row);
        for (int64_t i = 0; i < w.rows; i++) {
            weight_row_dequantize(&w, i, row);
            check_row(&w, row, values + i * w.cols * 4, w.cols);
        }
        free(row);
    }
    assert_int_equal(n, 21);
    str_done(&r.file);
}

/* scale * code + bias in f64, rounded once or twice, for finite values. */
static void parts_rebuild_the_values(void **state)
{
    (void)state;
    struct records r;
    struct weight w;
    const uint8_t *values;
    records_open(&r, "mlx_dequantize.bin");
    while (next_stored(&r, &w, &values)) {
        size_t groups = (size_t)(w.cols / w.levels.group);
        uint8_t *codes = malloc((size_t)w.cols);
        float *scales = malloc(groups * 2 * sizeof *scales), *biases = scales + groups;
        memset(biases, 0, groups * sizeof *biases);
        weight_row_read(&w, 0,
                        &(struct weight_row){.codes = codes, .scales = scales, .biases = biases});
        for (int64_t c = 0; c < w.cols; c++) {
            int64_t g = c / w.levels.group;
            double code = w.encoding == WEIGHT_E4M3 ? (double)weight_e4m3(codes[c]) : codes[c];
            double value = (double)scales[g] * code + (double)biases[g];
            float expected = float_at(values, c);
            if (isfinite(expected) && isfinite(scales[g]))
                assert_true(fabs(value - (double)expected) <=
                            2e-7 * (fabs((double)scales[g] * code) + fabs((double)biases[g])));
        }
        free(codes);
        free(scales);
    }
    str_done(&r.file);
}

/* Pieces and copies of rows hold the same values, wherever they begin. */
static void pieces_and_copies_read_the_same(void **state)
{
    (void)state;
    struct records r;
    struct weight w;
    const uint8_t *values;
    records_open(&r, "mlx_dequantize.bin");
    while (next_stored(&r, &w, &values)) {
        int64_t row = w.rows - 1, cols = w.cols - w.levels.group;
        float *out = malloc((size_t)cols * sizeof *out);
        for (int64_t col = 0; col <= w.levels.group; col += w.levels.group) {
            struct weight piece = weight_row_piece(&w, row, col, cols);
            uint8_t *copy = malloc(weight_copy_bytes(&piece));
            weight_copy_make(&piece, copy);
            struct weight view = weight_copy_view(&piece, copy);
            weight_row_dequantize(&piece, 0, out);
            check_row(&w, out, values + (row * w.cols + col) * 4, cols);
            weight_row_dequantize(&view, 0, out);
            check_row(&w, out, values + (row * w.cols + col) * 4, cols);
            free(copy);
        }
        free(out);
    }
    str_done(&r.file);
}

/* Levels of blocks of 128 x 128, the last of which are smaller. */
static void block_scales_belong_to_rows_and_columns(void **state)
{
    (void)state;
    enum { ROWS = 200, COLS = 300 };
    static uint8_t codes[ROWS * COLS];
    static const float scales[2 * 3] = {1, 2, 4, -8, 16, 32};
    float row[COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        codes[i] = (uint8_t)(0x38 + i % 3); /* 1, 1.125, 1.25 */
    struct weight w = {.encoding = WEIGHT_E4M3,
                       .rows = ROWS,
                       .cols = COLS,
                       .data = codes,
                       .levels = {.type = LEVEL_F32,
                                  .bits = 8,
                                  .group = 128,
                                  .group_rows = 128,
                                  .scales = (const uint8_t *)scales,
                                  .factor = 1.0f}};
    assert_int_equal(weight_levels_bytes(&w), sizeof scales);
    for (int i = 0; i < ROWS; i += 127) {
        weight_row_dequantize(&w, i, row);
        for (int c = 0; c < COLS; c++) {
            float expected =
                scales[i / 128 * 3 + c / 128] * (1.0f + 0.125f * (float)((i * COLS + c) % 3));
            assert_true(row[c] == expected);
        }
        struct weight piece = weight_row_piece(&w, i, 128, 172);
        float part[172];
        weight_row_dequantize(&piece, 0, part);
        assert_memory_equal(part, row + 128, sizeof part);
    }
}

/* Floats shown as codes: codes and levels are mlx's, to the bit. */
static void floats_are_quantized_as_by_mlx(void **state)
{
    (void)state;
    static const enum weight_encoding sources[] = {WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16};
    struct records r;
    struct weight w;
    int n = 0;
    records_open(&r, "mlx_quantize.bin");
    for (; next_weight(&r, &w); n++) {
        struct weight made = w;
        made.levels.is_made = true;
        made.levels.source = sources[w.levels.type];
        made.data = take(&r, (size_t)weight_bytes(&made));
        w.data = take(&r, (size_t)weight_bytes(&w));
        w.levels.scales = take(&r, (size_t)weight_levels_bytes(&w));
        w.levels.biases = take(&r, (size_t)weight_levels_bytes(&w));
        assert_int_equal(weight_levels_bytes(&made), 0);
        for (int64_t i = 0; i < w.rows; i++) {
            uint8_t codes[2][256], stream[256], levels[2][32];
            float scales[2][8], biases[2][8], values[2][256];
            const struct weight *both[] = {&w, &made};
            size_t groups = (size_t)(w.cols / w.levels.group);
            for (int k = 0; k < 2; k++) {
                weight_row_read(both[k], i,
                                &(struct weight_row){
                                    .codes = codes[k], .scales = scales[k], .biases = biases[k]});
                weight_row_dequantize(both[k], i, values[k]);
            }
            assert_memory_equal(codes[0], codes[1], (size_t)w.cols);
            assert_memory_equal(scales[0], scales[1], groups * sizeof(float));
            assert_memory_equal(biases[0], biases[1], groups * sizeof(float));
            assert_memory_equal(values[0], values[1], sizeof values[0]);
            /* And back into the bytes of a file. */
            weight_pack_stream(codes[1], (size_t)w.cols, w.levels.bits, stream);
            assert_memory_equal(stream, weight_row_data(&w, i), weight_row_bytes(&w));
            weight_pack_levels(w.levels.type, scales[1], groups, levels[0]);
            size_t level_row = groups * weight_level_bytes(w.levels.type);
            assert_memory_equal(levels[0], w.levels.scales + (size_t)i * level_row, level_row);
        }
    }
    assert_int_equal(n, 54);
    str_done(&r.file);
}

/* Any number of codes into a stream and back: the last word and byte are part of neither's rest. */
static void streams_end_anywhere(void **state)
{
    (void)state;
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        for (size_t n = 1; n <= 40; n++) {
            uint8_t codes[40], back[41], stream[41];
            float level = 1;
            size_t bytes = (n * (size_t)widths[k] + 7) / 8;
            for (size_t i = 0; i < n; i++)
                codes[i] = (uint8_t)((i * 37 + n) % (1u << widths[k]));
            memset(stream, 0xEE, sizeof stream);
            memset(back, 0xEE, sizeof back);
            weight_pack_stream(codes, n, widths[k], stream);
            assert_int_equal(stream[bytes], 0xEE);
            for (size_t bit = 0; bit < 8 * bytes; bit++) {
                size_t i = bit / (size_t)widths[k], place = bit % (size_t)widths[k];
                assert_int_equal(stream[bit / 8] >> bit % 8 & 1, i < n ? codes[i] >> place & 1 : 0);
            }
            uint8_t *exact = malloc(bytes); /* a sanitizer sees what is read behind it */
            assert_non_null(exact);
            memcpy(exact, stream, bytes);
            struct weight w = {.encoding = WEIGHT_AFFINE, .rows = 1, .cols = (int64_t)n};
            w.data = exact;
            w.levels = (struct weight_levels){.bits = widths[k],
                                              .group = 64,
                                              .group_rows = 1,
                                              .scales = (const uint8_t *)&level,
                                              .factor = 1.0f};
            if (bytes == n * (size_t)widths[k] / 8) { /* rows are whole bytes */
                weight_row_read(&w, 0, &(struct weight_row){.codes = back});
                assert_memory_equal(back, codes, n);
                assert_int_equal(back[n], 0xEE);
            }
            free(exact);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_mlx_bit_for_bit),
        cmocka_unit_test(streams_end_anywhere),
        cmocka_unit_test(parts_rebuild_the_values),
        cmocka_unit_test(pieces_and_copies_read_the_same),
        cmocka_unit_test(block_scales_belong_to_rows_and_columns),
        cmocka_unit_test(floats_are_quantized_as_by_mlx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
