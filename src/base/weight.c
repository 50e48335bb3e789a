/* The block layouts of all encodings, taken apart exactly. Whole rows pass through plain loops of
 * constant length that compilers turn into vector code: a checkpoint of many gigabytes is repacked
 * through here once at load. Knows no file format and no device. */
#include "base/weight.h"

#include "base/half.h"

#include <assert.h>
#include <string.h>

/* Columns that weight_row_dequantize decodes at a time: a multiple of every block. */
enum { CHUNK = 1024, SMALLEST_GROUP = 16 };

#define WEIGHT_INFO(name, bits, group, block, bytes) {#name, bits, group, block, bytes},
static const struct weight_encoding_info infos[] = {WEIGHT_ENCODINGS(WEIGHT_INFO)};
#undef WEIGHT_INFO

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

/* f16 d, f16 dmin, 12 bytes of scales, then four runs of 32 bytes: 64 columns each, low nibbles
 * first. */
static void codes_q4_k(const uint8_t *data, size_t n, uint8_t *codes)
{
    for (size_t run = 0; run < n * 4; run++) {
        const uint8_t *restrict from = data + run / 4 * 144 + 16 + run % 4 * 32;
        uint8_t *restrict to = codes + run * 64;
        for (int j = 0; j < 32; j++) {
            to[j] = from[j] & 15;
            to[j + 32] = from[j] >> 4;
        }
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

static void levels_q4_1(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        if (out->scales)
            out->scales[b] = f32_from_f16(load_u16(data + b * 20));
        if (out->biases)
            out->biases[b] = f32_from_f16(load_u16(data + b * 20 + 2));
    }
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

static void levels_q4_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * 144;
        uint16_t d = load_u16(block), minimum = load_u16(block + 2);
        float d_f32 = f32_from_f16(d), minimum_f32 = f32_from_f16(minimum);
        int8_t sub_scales[8], sub_biases[8];
        unpack_six_bits(block + 4, sub_scales, sub_biases);
        if (out->super_scales)
            out->super_scales[b] = d;
        if (out->super_biases)
            out->super_biases[b] = minimum;
        if (out->sub_scales)
            memcpy(out->sub_scales + b * 8, sub_scales, 8);
        if (out->sub_biases)
            memcpy(out->sub_biases + b * 8, sub_biases, 8);
        for (int j = 0; out->scales && j < 8; j++)
            out->scales[b * 8 + (size_t)j] = d_f32 * sub_scales[j];
        for (int j = 0; out->biases && j < 8; j++)
            out->biases[b * 8 + (size_t)j] = -(minimum_f32 * sub_biases[j]);
    }
}

static void levels_q6_k(const uint8_t *data, size_t n, const struct weight_row *out)
{
    for (size_t b = 0; b < n; b++) {
        const uint8_t *block = data + b * 210;
        uint16_t d = load_u16(block + 208);
        float d_f32 = f32_from_f16(d);
        int8_t sub_scales[16];
        memcpy(sub_scales, block + 192, 16);
        if (out->super_scales)
            out->super_scales[b] = d;
        if (out->sub_scales)
            memcpy(out->sub_scales + b * 16, sub_scales, 16);
        for (int j = 0; out->scales && j < 16; j++)
            out->scales[b * 16 + (size_t)j] = d_f32 * sub_scales[j];
        for (int j = 0; out->biases && j < 16; j++)
            out->biases[b * 16 + (size_t)j] = -32.0f * (d_f32 * sub_scales[j]);
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
    [WEIGHT_Q4_0] = {codes_q4_0, levels_q4_0, 8},   [WEIGHT_Q4_1] = {codes_q4_1, levels_q4_1, 0},
    [WEIGHT_Q8_0] = {codes_q8_0, levels_q8_0, 128}, [WEIGHT_Q4_K] = {codes_q4_k, levels_q4_k, 0},
    [WEIGHT_Q6_K] = {codes_q6_k, levels_q6_k, 32},
};

size_t weight_row_bytes(const struct weight *w)
{
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

void weight_row_read(const struct weight *w, int64_t row, const struct weight_row *out)
{
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
    default:
        values_quantized(w, data, out);
        break;
    }
}
