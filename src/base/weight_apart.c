/* The encodings whose scales and biases lie apart from the codes: streams of unsigned codes (MLX's
 * affine), of E2M1 (MXFP4, NVFP4) and of E4M3 (MXFP8, block FP8); and floats that are shown as
 * affine codes. Knows no file format. */
#include "base/weight_apart.h"

#include "base/half.h"
#include "base/weight_encode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Columns taken apart at a time: whole bytes of every width, and few enough for the stack. */
enum { CHUNK = 256, MADE_GROUP_MAX = 128 };

static int64_t ceil_div_64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

struct weight_encoding_info weight_apart_shape(const struct weight *w)
{
    const struct weight_levels *levels = &w->levels;
    /* One group of stored codes may be cut at any whole byte. */
    int block = levels->group < w->cols || levels->is_made ? levels->group : 8;
    return (struct weight_encoding_info){.name = weight_info(w->encoding)->name,
                                         .bits = levels->bits,
                                         .group = levels->group,
                                         .block = block,
                                         .block_bytes = block * levels->bits / 8};
}

/* Bytes of the first `cols` columns of a row. */
static size_t column_place(const struct weight *w, int64_t cols)
{
    size_t bits = w->levels.is_made ? 8 * (size_t)weight_info(w->levels.source)->block_bytes
                                    : (size_t)w->levels.bits;
    return (size_t)cols * bits / 8;
}

size_t weight_apart_row_bytes(const struct weight *w)
{
    return column_place(w, w->cols);
}

static size_t n_groups(const struct weight *w)
{
    return (size_t)ceil_div_64(w->cols, w->levels.group);
}

/* Bytes from the first level to that of `row` and column `col`. */
static size_t level_place(const struct weight *w, int64_t row, int64_t col)
{
    size_t line = (size_t)(row / w->levels.group_rows) * n_groups(w);
    return (line + (size_t)(col / w->levels.group)) * weight_level_bytes(w->levels.type);
}

struct weight weight_quantized(const struct weight *floats, int bits, int group)
{
    static const enum weight_level_type types[] = {
        [WEIGHT_F32] = LEVEL_F32, [WEIGHT_F16] = LEVEL_F16, [WEIGHT_BF16] = LEVEL_BF16};
    assert(weight_is_float(floats) && floats->cols % group == 0);
    struct weight made = *floats;
    made.encoding = WEIGHT_AFFINE;
    made.levels = (struct weight_levels){.type = types[floats->encoding],
                                         .bits = bits,
                                         .group = group,
                                         .group_rows = 1,
                                         .factor = 1.0f,
                                         .is_made = true,
                                         .source = floats->encoding};
    return made;
}

struct weight weight_apart_piece(const struct weight *w, int64_t row, int64_t col, int64_t cols)
{
    struct weight piece = *w;
    assert(col % w->levels.group == 0 ||
           col / w->levels.group == (col + cols - 1) / w->levels.group);
    piece.rows = 1;
    piece.cols = cols;
    piece.data = weight_row_data(w, row) + column_place(w, col);
    piece.rope_head_dim = 0;
    piece.levels.group_rows = 1;
    if (piece.levels.scales)
        piece.levels.scales += level_place(w, row, col);
    if (piece.levels.biases)
        piece.levels.biases += level_place(w, row, col);
    return piece;
}

uint64_t weight_levels_bytes(const struct weight *w)
{
    if (w->levels.is_made)
        return 0;
    return (uint64_t)ceil_div_64(w->rows, w->levels.group_rows) * n_groups(w) *
           weight_level_bytes(w->levels.type);
}

size_t weight_apart_bytes(const struct weight *row)
{
    size_t bytes = (size_t)weight_levels_bytes(row);
    return row->levels.biases ? 2 * bytes : bytes;
}

void weight_apart_copy(const struct weight *row, uint8_t *to)
{
    size_t bytes = (size_t)weight_levels_bytes(row);
    if (row->levels.scales)
        memcpy(to, row->levels.scales, bytes);
    if (row->levels.biases)
        memcpy(to + bytes, row->levels.biases, bytes);
}

void weight_apart_point(struct weight *row, const uint8_t *copy)
{
    if (row->levels.scales)
        row->levels.scales = copy;
    if (row->levels.biases)
        row->levels.biases = copy + weight_levels_bytes(row);
}

/* --- codes ------------------------------------------------------------------------------------ */

/* Eight codes of `bits` < 8 bits, one behind the other, to a byte each: fours, pairs, single ones
 * move to their places. */
static inline uint64_t spread_codes(int bits, uint64_t x)
{
    const uint64_t fours = (1u << 4 * bits) - 1;
    const uint64_t pairs = ((1u << 2 * bits) - 1) * 0x0000000100000001u;
    const uint64_t ones = ((1u << bits) - 1) * 0x0001000100010001u;
    x = (x & fours) | (x >> 4 * bits & fours) << 32;
    x = (x & pairs) | (x << (16 - 2 * bits) & pairs << 16);
    return (x & ones) | (x << (8 - bits) & ones << 8);
}

/* n codes of `bits` bits (a constant), eight of them from each `bits` bytes. Reads whole words as
 * long as they are the row's. */
static inline void split_stream(int bits, const uint8_t *restrict data, int64_t n,
                                uint8_t *restrict codes)
{
    uint64_t word, bytes;
    for (; n * bits >= 64; n -= 8, data += bits, codes += 8) {
        memcpy(&word, data, sizeof word);
        bytes = spread_codes(bits, word);
        memcpy(codes, &bytes, sizeof bytes);
    }
    for (; n > 0; n -= 8, data += bits, codes += 8) {
        size_t n_codes = n < 8 ? (size_t)n : 8;
        word = 0;
        memcpy(&word, data, (n_codes * (size_t)bits + 7) / 8);
        bytes = spread_codes(bits, word);
        memcpy(codes, &bytes, n_codes);
    }
}

static void split_nibbles(const uint8_t *restrict data, int64_t n, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < n / 2; i++) {
        codes[2 * i] = data[i] & 15;
        codes[2 * i + 1] = data[i] >> 4;
    }
    if (n % 2)
        codes[n - 1] = data[n / 2] & 15;
}

/* n stored codes from column `col` (a multiple of 8) on, at `data` of their row. */
static void read_stream(const struct weight *w, const uint8_t *data, int64_t col, int64_t n,
                        uint8_t *codes)
{
    const uint8_t *from = data + (size_t)col * (size_t)w->levels.bits / 8;
    switch (w->levels.bits) {
    case 2:
        split_stream(2, from, n, codes);
        break;
    case 3:
        split_stream(3, from, n, codes);
        break;
    case 4:
        split_nibbles(from, n, codes);
        break;
    case 5:
        split_stream(5, from, n, codes);
        break;
    case 6:
        split_stream(6, from, n, codes);
        break;
    default:
        assert(w->levels.bits == 8);
        memcpy(codes, from, (size_t)n);
        break;
    }
}

/* --- levels ----------------------------------------------------------------------------------- */

float weight_e4m3(uint8_t byte)
{
    if ((byte & 0x7F) == 0x7F)
        return NAN;
    /* The same bits in f16 are 2^8 times smaller. */
    return f32_from_f16((uint16_t)((byte & 0x7F) << 7 | (byte & 0x80) << 8)) * 256.0f;
}

/* 2^(e - 127); e = 0 is below the normal numbers of f32. */
static float value_of_e8m0(uint8_t e)
{
    return f32_from_bits(e ? (uint32_t)e << 23 : 0x400000);
}

static float read_level(enum weight_level_type type, const uint8_t *levels, size_t i)
{
    uint32_t word = 0;
    memcpy(&word, levels + i * weight_level_bytes(type), weight_level_bytes(type));
    switch (type) {
    case LEVEL_F32:
        return f32_from_bits(word);
    case LEVEL_F16:
        return f32_from_f16((uint16_t)word);
    case LEVEL_BF16:
        return f32_from_bf16((uint16_t)word);
    case LEVEL_E8M0:
        return value_of_e8m0((uint8_t)word);
    case LEVEL_E4M3:
        return weight_e4m3((uint8_t)word);
    }
    return 0;
}

/* n levels: loops without a choice in them, as a checkpoint has hundreds of millions. */
static void read_levels(enum weight_level_type type, const uint8_t *levels, size_t n, float *out)
{
    uint16_t word;
    switch (type) {
    case LEVEL_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&word, levels + 2 * i, sizeof word);
            out[i] = f32_from_f16(word);
        }
        break;
    case LEVEL_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&word, levels + 2 * i, sizeof word);
            out[i] = f32_from_bf16(word);
        }
        break;
    default:
        for (size_t i = 0; i < n; i++)
            out[i] = read_level(type, levels, i);
    }
}

/* n scales of codes as weight_row_read gives them: those of E2M1 are twice the values. */
static void read_scales(const struct weight *w, const uint8_t *scales, size_t n, float *out)
{
    read_levels(w->levels.type, scales, n, out);
    for (size_t i = 0; i < n; i++)
        out[i] *= w->levels.factor;
    for (size_t i = 0; i < n && w->encoding == WEIGHT_E2M1; i++)
        out[i] *= 0.5f;
}

/* Those that belong to the scales. */
static void read_biases(const struct weight *w, const uint8_t *biases, const float *scales,
                        size_t n, float *out)
{
    float offset = (float)(w->encoding == WEIGHT_E2M1 ? 16 : w->levels.offset);
    if (biases)
        read_levels(w->levels.type, biases, n, out);
    for (size_t i = 0; i < n && !biases; i++)
        out[i] = -scales[i] * offset;
}

/* Group g of a row of floats at `data`: codes [group], and the levels as a file would hold them. */
static void make_group(const struct weight *w, const uint8_t *data, size_t g, uint8_t *codes,
                       float *scale, float *bias)
{
    int n = w->levels.group;
    float values[MADE_GROUP_MAX];
    uint8_t rounded[2 * sizeof(float)];
    struct weight floats = {.encoding = w->levels.source,
                            .rows = 1,
                            .cols = n,
                            .data = data + column_place(w, (int64_t)g * n)};
    assert(n <= MADE_GROUP_MAX && w->cols % n == 0);
    weight_row_dequantize(&floats, 0, values);
    weight_encode_group(values, n, w->levels.bits, codes, scale, bias);
    weight_pack_levels(w->levels.type, (const float[]){*scale, *bias}, 2, rounded);
    *scale = read_level(w->levels.type, rounded, 0);
    *bias = read_level(w->levels.type, rounded, 1);
}

static void read_made(const struct weight *w, int64_t row, const struct weight_row *out)
{
    const uint8_t *data = weight_row_data(w, row);
    uint8_t codes[MADE_GROUP_MAX];
    for (size_t g = 0; g < n_groups(w); g++) {
        float scale, bias;
        make_group(w, data, g, codes, &scale, &bias);
        if (out->codes)
            memcpy(out->codes + g * (size_t)w->levels.group, codes, (size_t)w->levels.group);
        if (out->scales)
            out->scales[g] = scale;
        if (out->biases)
            out->biases[g] = bias;
    }
}

void weight_apart_read(const struct weight *w, int64_t row, const struct weight_row *out)
{
    if (w->levels.is_made) {
        read_made(w, row, out);
        return;
    }
    size_t place = level_place(w, row, 0);
    const uint8_t *scales = w->levels.scales + place;
    const uint8_t *biases = w->levels.biases ? w->levels.biases + place : NULL;
    if (out->codes)
        read_stream(w, weight_row_data(w, row), 0, w->cols, out->codes);
    for (int64_t i = 0; out->codes && w->encoding == WEIGHT_E2M1 && i < w->cols; i++)
        out->codes[i] = weight_table_mxfp4[out->codes[i]];
    for (size_t g = 0, n; (out->scales || out->biases) && g < n_groups(w); g += n) {
        float values[CHUNK];
        size_t bytes = g * weight_level_bytes(w->levels.type);
        n = n_groups(w) - g < CHUNK ? n_groups(w) - g : CHUNK;
        read_scales(w, scales + bytes, n, values);
        if (out->scales)
            memcpy(out->scales + g, values, n * sizeof *values);
        if (out->biases && w->encoding != WEIGHT_E4M3)
            read_biases(w, biases ? biases + bytes : NULL, values, n, out->biases + g);
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* A run of affine codes. Product and sum are separate statements, as in weight.c. */
static void store_affine(const uint8_t *restrict codes, int n, float scale, float bias,
                         float *restrict out)
{
    for (int i = 0; i < n; i++) {
        float product = scale * (float)codes[i];
        out[i] = product + bias;
    }
}

/* A run of stored codes under one scale. */
static void store_values(const struct weight *w, const uint8_t *restrict codes, int n, float scale,
                         float bias, float *restrict out)
{
    static const float twice_e2m1[16] = {0,     1,  2,  3,  4,  6,  8,  12,
                                         -0.0f, -1, -2, -3, -4, -6, -8, -12};
    if (w->encoding == WEIGHT_AFFINE && w->levels.biases)
        store_affine(codes, n, scale, bias, out);
    else if (w->encoding == WEIGHT_E4M3)
        for (int i = 0; i < n; i++)
            out[i] = scale * weight_e4m3(codes[i]);
    else if (w->encoding == WEIGHT_E2M1)
        for (int i = 0; i < n; i++)
            out[i] = scale * twice_e2m1[codes[i]];
    else
        for (int i = 0; i < n; i++)
            out[i] = scale * (float)(codes[i] - w->levels.offset);
}

static void dequantize_made(const struct weight *w, int64_t row, float *out)
{
    const uint8_t *data = weight_row_data(w, row);
    uint8_t codes[MADE_GROUP_MAX];
    for (size_t g = 0; g < n_groups(w); g++, out += w->levels.group) {
        float scale, bias;
        make_group(w, data, g, codes, &scale, &bias);
        store_affine(codes, w->levels.group, scale, bias, out);
    }
}

void weight_apart_dequantize(const struct weight *w, int64_t row, float *out)
{
    if (w->levels.is_made) {
        dequantize_made(w, row, out);
        return;
    }
    const uint8_t *data = weight_row_data(w, row);
    size_t place = level_place(w, row, 0);
    const uint8_t *biases = w->levels.biases ? w->levels.biases + place : NULL;
    uint8_t codes[CHUNK];
    for (size_t g = 0; g < n_groups(w); g++) {
        int64_t first = (int64_t)g * w->levels.group, end = first + w->levels.group;
        end = end < w->cols ? end : w->cols;
        size_t bytes = g * weight_level_bytes(w->levels.type);
        float scale, bias;
        read_scales(w, w->levels.scales + place + bytes, 1, &scale);
        read_biases(w, biases ? biases + bytes : NULL, &scale, 1, &bias);
        for (int64_t done = first; done < end; done += CHUNK) {
            int n = (int)(end - done < CHUNK ? end - done : CHUNK);
            read_stream(w, data, done, n, codes);
            store_values(w, codes, n, scale, bias, out + done);
        }
    }
}
