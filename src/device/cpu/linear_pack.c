/* Weights from any encoding into blocks of 16 interleaved rows (linear.h). Goes through the generic
 * decoder of base/weight.h, so that it knows code widths and kinds of scales, not file formats. */
#include "base/half.h"
#include "device/cpu/linear.h"

#include <string.h>

enum {
    CHUNK = 1024, /* columns decoded at a time: whole blocks of every encoding, whole super spans */
    MIN_GROUP = 16
};

/* The columns of 16 rows that are being packed. */
struct chunk {
    int64_t first; /* column of the slice */
    int cols;
    uint8_t codes[BLOCK_ROWS][CHUNK];
    float scales[BLOCK_ROWS][CHUNK / MIN_GROUP], biases[BLOCK_ROWS][CHUNK / MIN_GROUP];
    uint16_t super_scales[BLOCK_ROWS][CHUNK / (SPAN * SUPER_SPANS)];
    uint16_t super_biases[BLOCK_ROWS][CHUNK / (SPAN * SUPER_SPANS)];
    int8_t sub_scales[BLOCK_ROWS][CHUNK / MIN_GROUP], sub_biases[BLOCK_ROWS][CHUNK / MIN_GROUP];
};

static const enum linear_packing packings[N_WEIGHT_ENCODINGS] = {
    [WEIGHT_F32] = PACKING_F32,       [WEIGHT_F16] = PACKING_F16,
    [WEIGHT_BF16] = PACKING_BF16,     [WEIGHT_Q4_0] = PACKING_Q4,
    [WEIGHT_Q4_1] = PACKING_Q4_BIAS,  [WEIGHT_Q5_0] = PACKING_Q5,
    [WEIGHT_Q5_1] = PACKING_Q5_BIAS,  [WEIGHT_Q8_0] = PACKING_Q8,
    [WEIGHT_Q2_K] = PACKING_Q2_SUPER, [WEIGHT_Q3_K] = PACKING_Q3_SUPER,
    [WEIGHT_Q4_K] = PACKING_Q4_SUPER, [WEIGHT_Q5_K] = PACKING_Q5_SUPER,
    [WEIGHT_Q6_K] = PACKING_Q6_SUPER, [WEIGHT_IQ4_NL] = PACKING_IQ4,
    [WEIGHT_MXFP4] = PACKING_MX4,
};

/* Bytes of what every SUPER_SPANS spans open with. */
enum { SUPER_BYTES = 64 };

/* Bytes of what a span opens with that begins a group. */
static size_t group_bytes(const struct linear_part *part)
{
    size_t one = BLOCK_ROWS * weight_level_bytes(part->level_type);
    one *= has_unit_bias(part->packing) ? 2 : 1;
    return part->group_spans == 0 ? 2 * one : one;
}

static int span_bytes_of(enum linear_packing packing)
{
    if (packing == PACKING_F32)
        return SPAN * BLOCK_ROWS * 4;
    if (packing == PACKING_F16 || packing == PACKING_BF16)
        return SPAN * BLOCK_ROWS * 2;
    return 2 * unit_bytes_of(packing) + level_bytes_of(packing);
}

enum linear_packing linear_packing_of(const struct weight *w)
{
    static const enum linear_packing affine[] = {
        [2] = PACKING_A2, [3] = PACKING_A3, [4] = PACKING_A4,
        [5] = PACKING_A5, [6] = PACKING_A6, [8] = PACKING_A8};
    switch (w->encoding) {
    case WEIGHT_AFFINE:
        return affine[w->levels.bits];
    case WEIGHT_E2M1:
        return w->levels.type == LEVEL_E4M3 ? PACKING_NV4 : PACKING_MX4;
    case WEIGHT_E4M3:
        return PACKING_F8;
    default:
        return packings[w->encoding];
    }
}

size_t linear_block_bytes(const struct linear_part *part)
{
    size_t n_spans = (size_t)part->padded_cols / SPAN, opening = 0;
    size_t spans = n_spans * (size_t)span_bytes_of(part->packing);
    if (is_super(part->packing)) {
        opening = (n_spans + SUPER_SPANS - 1) / SUPER_SPANS * SUPER_BYTES;
    } else if (is_grouped(part->packing)) {
        size_t group = part->group_spans ? (size_t)part->group_spans : 1;
        opening = (n_spans + group - 1) / group * group_bytes(part);
    }
    return spans + opening;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static void store_u32(uint8_t *p, uint32_t value)
{
    memcpy(p, &value, sizeof value);
}

/* The planes of one unit of one row, 8 words of 4 codes each, into lane `row` of the block; the
 * plane's bits begin at bit `shift` of the codes. */
static void pack_nibbles(const uint8_t *codes, int row, uint8_t *to)
{
    for (int i = 0; i < 4; i++) {
        uint32_t low = load_u32(codes + 4 * i) & 0x0F0F0F0F;
        uint32_t high = load_u32(codes + 4 * i + 16) & 0x0F0F0F0F;
        store_u32(to + i * 64 + row * 4, low | high << 4);
    }
}

static void pack_pairs(const uint8_t *codes, int shift, int row, uint8_t *to)
{
    for (int j = 0; j < 2; j++) {
        uint32_t pairs = 0;
        for (int f = 0; f < 4; f++)
            pairs |= (load_u32(codes + 16 * j + 4 * f) >> shift & 0x03030303) << 2 * f;
        store_u32(to + j * 64 + row * 4, pairs);
    }
}

static void pack_singles(const uint8_t *codes, int shift, int row, uint8_t *to)
{
    uint32_t singles = 0;
    for (int i = 0; i < 8; i++)
        singles |= (load_u32(codes + 4 * i) >> shift & 0x01010101) << i;
    store_u32(to + row * 4, singles);
}

static void pack_codes(int bits, const uint8_t *codes, int row, uint8_t *to)
{
    if (bits == 8) {
        for (int i = 0; i < 8; i++)
            store_u32(to + i * 64 + row * 4, load_u32(codes + 4 * i));
        return;
    }
    if (bits & 4) {
        pack_nibbles(codes, row, to);
        to += 256;
    }
    if (bits & 2) {
        pack_pairs(codes, bits & 4, row, to);
        to += 128;
    }
    if (bits & 1)
        pack_singles(codes, bits & 6, row, to);
}

/* Codes that are values of a table, into its indices; of two equal values, the first one's. Codes
 * that are not there pad: their products count nowhere. */
static void find_indices(const uint8_t table[16], struct chunk *chunk)
{
    uint8_t indices[256] = {0};
    for (int i = 15; i >= 0; i--)
        indices[table[i]] = (uint8_t)i;
    for (int row = 0; row < BLOCK_ROWS; row++)
        for (int i = 0; i < chunk->cols; i++)
            chunk->codes[row][i] = indices[chunk->codes[row][i]];
}

/* The E8M0 byte of which weight_row_read made this scale. */
static uint8_t exponent_of(float scale)
{
    uint32_t bits = bits_from_f32(scale);
    if (bits >= 0x7F800000)
        return 255;
    return bits >= 1u << 23 ? (uint8_t)((bits >> 23) + 1) : bits == 0x400000;
}

/* A level whose value weight_row_read gave as f32, as it was stored. */
static void store_level(enum weight_level_type type, float value, uint8_t *to)
{
    uint32_t word = bits_from_f32(value);
    switch (type) {
    case LEVEL_F16:
        word = f16_from_f32(value);
        break;
    case LEVEL_BF16:
        word >>= 16;
        break;
    case LEVEL_E8M0:
        word = word >= 1u << 23 ? word >> 23 : 0;
        break;
    default:
        break;
    }
    memcpy(to, &word, weight_level_bytes(type));
}

static void store_f16(uint8_t *to, float value)
{
    uint16_t bits = f16_from_f32(value);
    memcpy(to, &bits, sizeof bits);
}

/* The levels of span `s` of the chunk for one row; `to` is where the span's levels begin. */
static void pack_levels(enum linear_packing packing, const struct chunk *from, int s, int row,
                        uint8_t *to)
{
    for (int u = 0; u < 2; u++) {
        int unit = 2 * s + u;
        switch (packing_shapes[packing].levels) {
        case LEVELS_SCALE:
            store_f16(to + u * 32 + row * 2, from->scales[row][unit]);
            break;
        case LEVELS_SCALE_BIAS:
            store_f16(to + u * 64 + row * 2, from->scales[row][unit]);
            store_f16(to + u * 64 + 32 + row * 2, from->biases[row][unit]);
            break;
        case LEVELS_E8M0:
            to[u * 16 + row] = exponent_of(from->scales[row][unit]);
            break;
        case LEVELS_SUPER:
            to[u * 32 + row] = (uint8_t)from->sub_scales[row][unit];
            to[u * 32 + 16 + row] = (uint8_t)from->sub_biases[row][unit];
            break;
        case LEVELS_HALVES:
            to[u * 32 + row] = (uint8_t)from->sub_scales[row][2 * unit];
            to[u * 32 + 16 + row] = (uint8_t)from->sub_scales[row][2 * unit + 1];
            break;
        case LEVELS_HALVES_BIAS:
            for (int h = 0; h < 2; h++)
                to[u * 32 + h * 16 + row] = (uint8_t)(from->sub_scales[row][2 * unit + h] |
                                                      from->sub_biases[row][2 * unit + h] << 4);
            break;
        case LEVELS_E4M3:
            to[u * 32 + row] = (uint8_t)from->sub_scales[row][2 * unit];
            to[u * 32 + 16 + row] = (uint8_t)from->sub_scales[row][2 * unit + 1];
            break;
        case LEVELS_GROUP_BIAS:
        case LEVELS_GROUP:
            break; /* before the span */
        }
    }
}

/* What opens super span `s` of the chunk, for one row. */
static void pack_super(enum linear_packing packing, const struct chunk *from, int s, int row,
                       uint8_t *to)
{
    memcpy(to + row * 2, &from->super_scales[row][s], 2);
    if (has_unit_bias(packing) || has_half_bias(packing))
        memcpy(to + 32 + row * 2, &from->super_biases[row][s], 2);
}

/* What opens span `s` of the chunk, for all rows, if a group begins there; returns where the codes
 * go. */
static uint8_t *pack_group(const struct linear_part *part, const struct chunk *from, int s,
                           uint8_t *to)
{
    int64_t span = from->first / SPAN + s;
    if (part->group_spans && span % part->group_spans)
        return to;
    size_t level = weight_level_bytes(part->level_type);
    int n = part->group_spans ? 1 : 2;
    for (int g = 0; g < n; g++) {
        int at = part->group_spans ? s / part->group_spans : 2 * s + g;
        for (size_t row = 0; row < BLOCK_ROWS; row++)
            store_level(part->level_type, from->scales[row][at], to + row * level);
        to += BLOCK_ROWS * level;
        if (!has_unit_bias(part->packing))
            continue;
        for (size_t row = 0; row < BLOCK_ROWS; row++)
            store_level(part->level_type, from->biases[row][at], to + row * level);
        to += BLOCK_ROWS * level;
    }
    return to;
}

/* All of the chunk; returns where the next one goes. */
static uint8_t *pack_chunk(const struct linear_part *part, const struct chunk *from, uint8_t *to)
{
    enum linear_packing packing = part->packing;
    int bits = packing_shapes[packing].bits, unit_bytes = unit_bytes_of(packing);
    int level_bytes = level_bytes_of(packing);
    for (int s = 0; s * SPAN < from->cols; s++) {
        if (is_super(packing) && s % SUPER_SPANS == 0) {
            memset(to, 0, SUPER_BYTES);
            for (int row = 0; row < BLOCK_ROWS; row++)
                pack_super(packing, from, s / SUPER_SPANS, row, to);
            to += SUPER_BYTES;
        }
        if (is_grouped(packing))
            to = pack_group(part, from, s, to);
        for (int row = 0; row < BLOCK_ROWS; row++) {
            for (int u = 0; u < 2; u++)
                pack_codes(bits, from->codes[row] + s * SPAN + u * UNIT, row,
                           to + level_bytes + u * unit_bytes);
            pack_levels(packing, from, s, row, to);
        }
        to += span_bytes_of(packing);
    }
    return to;
}

/* Takes the chunk's columns of one row apart. */
static void read_quantized(const struct weight_slice *slice, int64_t row, struct chunk *chunk,
                           int lane)
{
    struct weight one = weight_row_piece(&slice->weight, linear_slice_place(slice, row),
                                         slice->col + chunk->first, chunk->cols);
    const struct weight_encoding_info info = weight_shape(&one);
    bool has_super = info.block > info.group;
    struct weight_row to = {.codes = chunk->codes[lane]};
    if (has_super) {
        to.super_scales = chunk->super_scales[lane];
        to.super_biases = chunk->super_biases[lane];
        to.sub_scales = chunk->sub_scales[lane];
        to.sub_biases = chunk->sub_biases[lane];
    } else {
        to.scales = chunk->scales[lane];
        to.biases = chunk->biases[lane];
    }
    weight_row_read(&one, 0, &to);
    if (weight_has_levels_apart(&one) && one.levels.type == LEVEL_E4M3)
        memcpy(chunk->sub_scales[lane], one.levels.scales, (size_t)(chunk->cols / MIN_GROUP));
}

/* Columns from `done` on that make a chunk: no part of a group is left over. */
static int chunk_cols(const struct weight_slice *slice, int64_t done)
{
    int64_t n = slice->cols - done < CHUNK ? slice->cols - done : CHUNK;
    int64_t group = weight_shape(&slice->weight).group;
    if (group > CHUNK && group - done % group < n)
        return (int)(group - done % group);
    return (int)(group < CHUNK && n == CHUNK ? n - n % group : n);
}

static void pack_quantized(const struct linear_part *part, const struct weight_slice *slice,
                           int64_t block, uint8_t *to)
{
    struct chunk chunk;
    for (int64_t done = 0; done < slice->cols; done += chunk.cols) {
        chunk.first = done;
        chunk.cols = chunk_cols(slice, done);
        bool is_whole = block * BLOCK_ROWS + BLOCK_ROWS <= slice->rows && chunk.cols % SPAN == 0;
        if (!is_whole)
            memset(&chunk.codes, 0, sizeof chunk - offsetof(struct chunk, codes));
        for (int lane = 0; lane < BLOCK_ROWS; lane++)
            if (block * BLOCK_ROWS + lane < slice->rows)
                read_quantized(slice, block * BLOCK_ROWS + lane, &chunk, lane);
        if (has_table(part->packing))
            find_indices(table_of(part->packing), &chunk);
        to = pack_chunk(part, &chunk, to);
    }
}

/* One span of one row of f32 or bf16, as words of 4 bytes. */
static void pack_words(const uint8_t *from, size_t bytes, int lane, uint8_t *to)
{
    size_t whole = bytes / 4;
    for (size_t i = 0; i < whole; i++)
        store_u32(to + (i * BLOCK_ROWS + (size_t)lane) * 4, load_u32(from + 4 * i));
    if (bytes % 4) /* an odd number of bf16 */
        memcpy(to + (whole * BLOCK_ROWS + (size_t)lane) * 4, from + 4 * whole, bytes % 4);
}

static void pack_f16(const uint8_t *from, size_t bytes, int lane, uint8_t *to)
{
    for (size_t i = 0; i < bytes / 2; i++)
        memcpy(to + (i * BLOCK_ROWS + (size_t)lane) * 2, from + 2 * i, 2);
}

/* f32, f16 and bf16: the values themselves. `to` is zero. */
static void pack_float(const struct weight_slice *slice, int64_t block, uint8_t *to)
{
    enum weight_encoding encoding = slice->weight.encoding;
    size_t size = encoding == WEIGHT_F32 ? 4 : 2, left = (size_t)slice->cols * size;
    const uint8_t *rows[BLOCK_ROWS] = {0};
    for (int lane = 0; lane < BLOCK_ROWS && block * BLOCK_ROWS + lane < slice->rows; lane++)
        rows[lane] = linear_slice_row(slice, block * BLOCK_ROWS + lane).data;
    for (size_t done = 0; done < left; done += SPAN * size, to += SPAN * size * BLOCK_ROWS) {
        size_t bytes = left - done < SPAN * size ? left - done : SPAN * size;
        for (int lane = 0; lane < BLOCK_ROWS && rows[lane]; lane++) {
            if (encoding == WEIGHT_F16)
                pack_f16(rows[lane] + done, bytes, lane, to);
            else
                pack_words(rows[lane] + done, bytes, lane, to);
        }
    }
}

void linear_pack_block(const struct linear_part *part, const struct weight_slice *slice,
                       int64_t block, uint8_t *to)
{
    if (!weight_is_float(&slice->weight)) {
        pack_quantized(part, slice, block, to);
        return;
    }
    memset(to, 0, part->block_bytes);
    pack_float(slice, block, to);
}
