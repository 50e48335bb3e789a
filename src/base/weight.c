/* The block layouts of all encodings, taken apart exactly. Whole rows pass through plain loops of
 * constant length that compilers turn into vector code: a checkpoint of many gigabytes is repacked
 * through here once at load. Knows no file format and no device. */
#include "base/weight.h"

#include "base/half.h"
#include "base/weight_apart.h"

#include <assert.h>
#include <string.h>

/* Columns that weight_row_dequantize decodes at a time: a multiple of every block. */
enum { CHUNK = 1024, SMALLEST_GROUP = 16 };

#define WEIGHT_INFO(name, bits, group, block, bytes) {#name, bits, group, block, bytes},
static const struct weight_encoding_info infos[] = {WEIGHT_ENCODINGS(WEIGHT_INFO)};
#undef WEIGHT_INFO

const uint8_t weight_table_iq4_nl[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t weight_table_mxfp4[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                        16, 15, 14, 13, 12, 10, 8,  4};

const struct weight_encoding_info *weight_info(enum weight_encoding encoding)
{
    return (unsigned)encoding < N_WEIGHT_ENCODINGS ? &infos[encoding] : NULL;
}

/* Files and all hosts that csgl runs on are little endian; data may lie at any address. */
static uint16_t load_u16(const uint8_t *p)
{
    uint16_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* Codes: n blocks at `data` -> one byte a column. */

/* 32 columns from 16 bytes: column j is the low nibble of byte j, column j+16 its high nibble. */
static void split_nibbles_16(const uint8_t *restrict packed, uint8_t *restrict codes)
{
    for (int j = 0; j < 16; j++) {
        codes[j] = packed[j] & 15;
        codes[j + 16] = packed[j] >> 4;
    }
}

static void codes_q4_0(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++)
        split_nibbles_16(data + b * 18 + 2, codes + b * 32);
}

static void codes_q4_1(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++)
        split_nibbles_16(data + b * 20 + 4, codes + b * 32);
}

/* 32 columns: four bytes of fifth bits, column j's is bit j % 8 of byte j / 8, then the nibbles. */
static void codes_five_bits(const uint8_t *data, size_t n, size_t block_bytes, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + (b + 1) * block_bytes - 20;
        uint8_t *restrict to = codes + b * 32;
        uint8_t fifth[32];
        for (int j = 0; j < 32; j++)
            fifth[j] = (uint8_t)((block[j / 8] >> j % 8 & 1) << 4);
        split_nibbles_16(block + 4, to);
        for (int j = 0; j < 32; j++)
            to[j] |= fifth[j];
    }
}

static void codes_q5_0(const uint8_t *data, size_t n, uint8_t *codes)
{
    codes_five_bits(data, n, 22, codes);
}

static void codes_q5_1(const uint8_t *data, size_t n, uint8_t *codes)
{
    codes_five_bits(data, n, 24, codes);
}

/* Nibbles that are indices into a table of codes. */
static void codes_table(const uint8_t *data, size_t n, size_t block_bytes, const uint8_t *table,
                        uint8_t *codes)
{
    for (size_t b = 0; b < n; b++) {
        uint8_t *restrict to = codes + b * 32;
        split_nibbles_16(data + (b + 1) * block_bytes - 16, to);
        for (int j = 0; j < 32; j++)
            to[j] = table[to[j]];
    }
}

static void codes_iq4_nl(const uint8_t *data, size_t n, uint8_t *codes)
{
    codes_table(data, n, 18, weight_table_iq4_nl, codes);
}

static void codes_mxfp4(const uint8_t *data, size_t n, uint8_t *codes)
{
    codes_table(data, n, 17, weight_table_mxfp4, codes);
}

/* Stored as int8; the unsigned code is 128 more, and the bias takes that back. */
static void codes_q8_0(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *restrict from = data + b * 34 + 2;
        uint8_t *restrict to = codes + b * 32;
        for (int j = 0; j < 32; j++)
            to[j] = from[j] ^ 0x80;
    }
}

/* 256 columns from 64 bytes of bit pairs: each half of them is 128 columns, four runs of 32, lowest
 * pair first. */
static void split_pairs_64(const uint8_t *restrict packed, uint8_t *restrict codes)
{
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 4; run++)
            for (int j = 0; j < 32; j++)
                codes[half * 128 + run * 32 + j] = packed[half * 32 + j] >> 2 * run & 3;
}

/* 256 columns: bit r of byte j of 32 is for column 32 r + j, and becomes its code's bit `place`. */
static void add_bits_32(const uint8_t *restrict packed, int place, uint8_t *restrict codes)
{
    for (int run = 0; run < 8; run++)
        for (int j = 0; j < 32; j++)
            codes[run * 32 + j] |= (uint8_t)((packed[j] >> run & 1) << place);
}

/* 16 bytes of scales, 64 bytes of pairs, f16 d, f16 dmin. */
static void codes_q2_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++)
        split_pairs_64(data + b * 84 + 16, codes + b * 256);
}

/* 32 bytes of third bits, 64 bytes of pairs, 12 bytes of scales, f16 d. */
static void codes_q3_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++) {
        split_pairs_64(data + b * 110 + 32, codes + b * 256);
        add_bits_32(data + b * 110, 2, codes + b * 256);
    }
}

/* 256 columns from four runs of 32 bytes: 64 columns each, low nibbles first. */
static void split_nibbles_128(const uint8_t *restrict packed, uint8_t *restrict codes)
{
    for (int run = 0; run < 4; run++, packed += 32, codes += 64)
        for (int j = 0; j < 32; j++) {
            codes[j] = packed[j] & 15;
            codes[j + 32] = packed[j] >> 4;
        }
}

/* f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles. */
static void codes_q4_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++)
        split_nibbles_128(data + b * 144 + 16, codes + b * 256);
}

/* The same with 32 bytes of fifth bits before the nibbles. */
static void codes_q5_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t b = 0; b < n; b++) {
        split_nibbles_128(data + b * 176 + 48, codes + b * 256);
        add_bits_32(data + b * 176 + 16, 4, codes + b * 256);
    }
}

/* 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, f16 d. Each half of the
 * block is 128 columns: four runs of 32 that share the 32 high bytes, two bits each. */
static void codes_q6_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t half = 0; half < n * 2; half++) {
        const uint8_t *restrict low = data + half / 2 * 210 + half % 2 * 64;
        const uint8_t *restrict high = data + half / 2 * 210 + 128 + half % 2 * 32;
        uint8_t *restrict to = codes + half * 128;
        for (int j = 0; j < 32; j++) {
            to[j] = (uint8_t)((low[j] & 15) | (high[j] & 3) << 4);
            to[j + 32] = (uint8_t)((low[j + 32] & 15) | (high[j] >> 2 & 3) << 4);
            to[j + 64] = (uint8_t)(low[j] >> 4 | (high[j] >> 4 & 3) << 4);
            to[j + 96] = (uint8_t)(low[j + 32] >> 4 | high[j] >> 6 << 4);
        }
    }
}

/* Levels: the scales and biases of n blocks, in whichever forms the caller wants. Every product
 * here fits f32 exactly: 11 bits of an f16 times at most 8 bits. */

/* `offset` codes below zero: bias = -offset * scale. */
static void levels_symmetric(const uint8_t *data, size_t n, size_t block_bytes, float offset,
                             const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        float scale = f32_from_f16(load_u16(data + b * block_bytes));
        if (out->scales)
            out->scales[b] = scale;
        if (out->biases)
            out->biases[b] = -offset * scale;
    }
}

static void levels_q4_0(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_symmetric(data, n, 18, 8, out);
}

static void levels_q8_0(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_symmetric(data, n, 34, 128, out);
}

static void levels_q5_0(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_symmetric(data, n, 22, 16, out);
}

static void levels_iq4_nl(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_symmetric(data, n, 18, 128, out);
}

/* E8M0: 2^(byte - 127), halved because the codes are twice the values. */
static void levels_mxfp4(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        uint32_t exponent = data[b * 17];
        float scale = f32_from_bits(exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
        if (out->scales)
            out->scales[b] = scale;
        if (out->biases)
            out->biases[b] = -16.0f * scale;
    }
}

/* f16 scale, f16 bias. */
static void levels_affine(const uint8_t *data, size_t n, size_t block_bytes,
                          const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        if (out->scales)
            out->scales[b] = f32_from_f16(load_u16(data + b * block_bytes));
        if (out->biases)
            out->biases[b] = f32_from_f16(load_u16(data + b * block_bytes + 2));
    }
}

static void levels_q4_1(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_affine(data, n, 20, out);
}

static void levels_q5_1(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_affine(data, n, 24, out);
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each are the low six
 * bits of bytes 0-3 and 4-7; the last four have their low nibbles in bytes 8-11 and their upper two
 * bits on top of bytes 0-3 and 4-7. */
static void unpack_six_bits(const uint8_t *packed, int8_t *scales, int8_t *minima)
{
    for (int j = 0; j < 4; j++) {
        scales[j] = packed[j] & 63;
        minima[j] = packed[j + 4] & 63;
        scales[j + 4] = (int8_t)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        minima[j + 4] = (int8_t)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

/* What a block of 256 columns says of its groups. */
struct two_levels {
    uint16_t scale, bias; /* f16 */
    int8_t sub_scales[16], sub_biases[16];
};

/* Block b in whichever forms the caller wants: with biases, or (offset > 0) symmetric. */
static void store_two_levels(const struct two_levels *levels, size_t b, size_t n_groups,
                             float offset, const struct weight_row *out)
{
    float scale = f32_from_f16(levels->scale), bias = f32_from_f16(levels->bias);
    size_t at = b * n_groups;
    if (out->super_scales)
        out->super_scales[b] = levels->scale;
    if (out->sub_scales)
        memcpy(out->sub_scales + at, levels->sub_scales, n_groups);
    if (out->super_biases && offset == 0)
        out->super_biases[b] = levels->bias;
    if (out->sub_biases && offset == 0)
        memcpy(out->sub_biases + at, levels->sub_biases, n_groups);
    for (size_t j = 0; out->scales && j < n_groups; j++)
        out->scales[at + j] = scale * levels->sub_scales[j];
    for (size_t j = 0; out->biases && j < n_groups; j++)
        out->biases[at + j] = offset > 0 ? -offset * (scale * levels->sub_scales[j])
                                         : -(bias * levels->sub_biases[j]);
}

static void levels_q2_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * 84;
        struct two_levels levels = {.scale = load_u16(block + 80), .bias = load_u16(block + 82)};
        for (int j = 0; j < 16; j++) {
            levels.sub_scales[j] = block[j] & 15;
            levels.sub_biases[j] = (int8_t)(block[j] >> 4);
        }
        store_two_levels(&levels, b, 16, 0, out);
    }
}

/* Sixteen 6-bit scales in 12 bytes, 32 above their value: the low nibbles of the first eight are
 * those of bytes 0-7, of the last eight their high nibbles; bit pair j / 4 of byte 8 + j % 4 is on
 * top of scale j. */
static void levels_q3_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * 110, *packed = block + 96;
        struct two_levels levels = {.scale = load_u16(block + 108)};
        for (int j = 0; j < 16; j++) {
            int low = packed[j % 8] >> j / 8 * 4 & 15, high = packed[8 + j % 4] >> j / 4 * 2 & 3;
            levels.sub_scales[j] = (int8_t)((low | high << 4) - 32);
        }
        store_two_levels(&levels, b, 16, 4, out);
    }
}

/* Q4_K and Q5_K. */
static void levels_pairs(const uint8_t *data, size_t n, size_t block_bytes,
                         const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * block_bytes;
        struct two_levels levels = {.scale = load_u16(block), .bias = load_u16(block + 2)};
        unpack_six_bits(block + 4, levels.sub_scales, levels.sub_biases);
        store_two_levels(&levels, b, 8, 0, out);
    }
}

static void levels_q4_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_pairs(data, n, 144, out);
}

static void levels_q5_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    levels_pairs(data, n, 176, out);
}

static void levels_q6_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * 210;
        struct two_levels levels = {.scale = load_u16(block + 208)};
        memcpy(levels.sub_scales, block + 192, 16);
        store_two_levels(&levels, b, 16, 32, out);
    }
}

/* How each quantized encoding is read. `offset` > 0: symmetric, w = scale * (code - offset), which
 * is how the reference computes it (so that zeros keep their sign); 0: w = scale * code + bias. */
struct decoder {
    void (*codes)(const uint8_t *data, size_t n, uint8_t *codes);
    void (*levels)(const uint8_t *data, size_t n, const struct weight_row *out);
    float offset;
};

static const struct decoder decoders[N_WEIGHT_ENCODINGS] = {
    [WEIGHT_Q4_0] = {codes_q4_0, levels_q4_0, 8},
    [WEIGHT_Q4_1] = {codes_q4_1, levels_q4_1, 0},
    [WEIGHT_Q5_0] = {codes_q5_0, levels_q5_0, 16},
    [WEIGHT_Q5_1] = {codes_q5_1, levels_q5_1, 0},
    [WEIGHT_Q8_0] = {codes_q8_0, levels_q8_0, 128},
    [WEIGHT_Q2_K] = {codes_q2_k, levels_q2_k, 0},
    [WEIGHT_Q3_K] = {codes_q3_k, levels_q3_k, 4},
    [WEIGHT_Q4_K] = {codes_q4_k, levels_q4_k, 0},
    [WEIGHT_Q5_K] = {codes_q5_k, levels_q5_k, 0},
    [WEIGHT_Q6_K] = {codes_q6_k, levels_q6_k, 32},
    [WEIGHT_IQ4_NL] = {codes_iq4_nl, levels_iq4_nl, 128},
    [WEIGHT_MXFP4] = {codes_mxfp4, levels_mxfp4, 16},
};

struct weight_encoding_info weight_shape(const struct weight *w)
{
    return weight_has_levels_apart(w) ? weight_apart_shape(w) : infos[w->encoding];
}

size_t weight_row_bytes(const struct weight *w)
{
    if (weight_has_levels_apart(w))
        return weight_apart_row_bytes(w);
    const struct weight_encoding_info *info = &infos[w->encoding];
    return (size_t)(w->cols / info->block) * (size_t)info->block_bytes;
}

uint64_t weight_bytes(const struct weight *w)
{
    return (uint64_t)w->rows * weight_row_bytes(w);
}

const uint8_t *weight_row_data(const struct weight *w, int64_t row)
{
    assert(row >= 0 && row < w->rows);
    if (w->rope_head_dim > 0) {
        int64_t half = w->rope_head_dim / 2, inside = row % w->rope_head_dim;
        int64_t stored = inside < half ? 2 * inside : 2 * (inside - half) + 1;
        row += stored - inside;
    }
    return w->data + (size_t)row * weight_row_bytes(w);
}

struct weight weight_row_piece(const struct weight *w, int64_t row, int64_t col, int64_t cols)
{
    if (!w->data) {
        struct weight shape = *w;
        shape.rows = shape.levels.group_rows = 1;
        shape.cols = cols;
        shape.rope_head_dim = 0;
        return shape;
    }
    if (weight_has_levels_apart(w))
        return weight_apart_piece(w, row, col, cols);
    const struct weight_encoding_info *info = &infos[w->encoding];
    size_t skipped = (size_t)(col / info->block) * (size_t)info->block_bytes;
    return (struct weight){.encoding = w->encoding,
                           .rows = 1,
                           .cols = cols,
                           .data = weight_row_data(w, row) + skipped};
}

size_t weight_copy_bytes(const struct weight *row)
{
    return weight_row_bytes(row) + (weight_has_levels_apart(row) ? weight_apart_bytes(row) : 0);
}

void weight_copy_make(const struct weight *row, uint8_t *to)
{
    memcpy(to, row->data, weight_row_bytes(row));
    if (weight_has_levels_apart(row))
        weight_apart_copy(row, to + weight_row_bytes(row));
}

struct weight weight_copy_view(const struct weight *row, const uint8_t *copy)
{
    struct weight view = *row;
    view.data = copy;
    if (weight_has_levels_apart(row))
        weight_apart_point(&view, copy + weight_row_bytes(row));
    return view;
}

void weight_row_read(const struct weight *w, int64_t row, const struct weight_row *out)
{
    if (weight_has_levels_apart(w)) {
        weight_apart_read(w, row, out);
        return;
    }
    const struct decoder *decoder = &decoders[w->encoding];
    assert(decoder->codes); /* a quantized weight */
    const uint8_t *data = weight_row_data(w, row);
    size_t n = (size_t)(w->cols / infos[w->encoding].block);
    if (out->codes)
        decoder->codes(data, n, out->codes);
    decoder->levels(data, n, out);
}

static void values_f32(const uint8_t *data, size_t n, float *out)
{
    memcpy(out, data, n * sizeof *out);
}

static void values_bf16(const uint8_t *data, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = f32_from_bf16(load_u16(data + 2 * i));
}

/* f32_from_f16 with selections instead of branches, so that the loop becomes vector code. */
static void values_f16(const uint8_t *data, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t h = load_u16(data + 2 * i), magnitude = h & 0x7FFF;
        /* Zero and subnormals: the conversion of a value below 1024 and the product are exact. */
        uint32_t small = bits_from_f32((float)(int32_t)(magnitude & 0x3FF) * 0x1p-24f);
        uint32_t large = (magnitude << 13) + (112u << 23);
        uint32_t special = magnitude << 13 | 0x7F800000;
        uint32_t is_small = magnitude < 0x400 ? ~0u : 0, is_special = magnitude > 0x7BFF ? ~0u : 0;
        uint32_t bits = (small & is_small) | (special & is_special) |
                        (large & ~is_small & ~is_special) | (h & 0x8000) << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

/* One group of the reference's arithmetic. Product and sum are separate statements: a fused
 * multiply-add would round differently. */
static void values_affine(const uint8_t *restrict codes, int n, float scale, float bias,
                          float *restrict out)
{
    for (int i = 0; i < n; i++) {
        float product = scale * (float)codes[i];
        out[i] = product + bias;
    }
}

static void values_symmetric(const uint8_t *restrict codes, int n, float scale, float offset,
                             float *restrict out)
{
    for (int i = 0; i < n; i++)
        out[i] = scale * ((float)codes[i] - offset);
}

static void values_quantized(const struct weight *w, const uint8_t *data, float *out)
{
    const struct decoder *decoder = &decoders[w->encoding];
    const struct weight_encoding_info *info = &infos[w->encoding];
    uint8_t codes[CHUNK];
    float scales[CHUNK / SMALLEST_GROUP], biases[CHUNK / SMALLEST_GROUP];
    const struct weight_row levels = {.scales = scales, .biases = biases};
    for (int64_t done = 0; done < w->cols; done += CHUNK) {
        int n = (int)(w->cols - done < CHUNK ? w->cols - done : CHUNK);
        size_t n_blocks = (size_t)(n / info->block);
        decoder->codes(data, n_blocks, codes);
        decoder->levels(data, n_blocks, &levels);
        data += n_blocks * (size_t)info->block_bytes;
        for (int g = 0; g < n / info->group; g++) {
            const uint8_t *from = codes + g * info->group;
            float *to = out + done + g * info->group;
            if (decoder->offset > 0)
                values_symmetric(from, info->group, scales[g], decoder->offset, to);
            else
                values_affine(from, info->group, scales[g], biases[g], to);
        }
    }
}

void weight_row_dequantize(const struct weight *w, int64_t row, float *out)
{
    const uint8_t *data = weight_row_data(w, row);
    size_t n = (size_t)w->cols;
    switch (w->encoding) {
    case WEIGHT_F32:
        values_f32(data, n, out);
        break;
    case WEIGHT_F16:
        values_f16(data, n, out);
        break;
    case WEIGHT_BF16:
        values_bf16(data, n, out);
        break;
    case WEIGHT_AFFINE:
    case WEIGHT_E2M1:
    case WEIGHT_E4M3:
        weight_apart_dequantize(w, row, out);
        break;
    default:
        values_quantized(w, data, out);
        break;
    }
}
