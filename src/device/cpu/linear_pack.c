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
    int cols;
    uint8_t codes[BLOCK_ROWS][CHUNK];
    float scales[BLOCK_ROWS][CHUNK / UNIT], biases[BLOCK_ROWS][CHUNK / UNIT];
    uint16_t super_scales[BLOCK_ROWS][CHUNK / (SPAN * SUPER_SPANS)];
    uint16_t super_biases[BLOCK_ROWS][CHUNK / (SPAN * SUPER_SPANS)];
    int8_t sub_scales[BLOCK_ROWS][CHUNK / MIN_GROUP], sub_biases[BLOCK_ROWS][CHUNK / MIN_GROUP];
};

static const enum linear_packing packings[N_WEIGHT_ENCODINGS] = {
    [WEIGHT_F32] = PACKING_F32,       [WEIGHT_F16] = PACKING_F16,
    [WEIGHT_BF16] = PACKING_BF16,     [WEIGHT_Q4_0] = PACKING_Q4,
    [WEIGHT_Q4_1] = PACKING_Q4_BIAS,  [WEIGHT_Q8_0] = PACKING_Q8,
    [WEIGHT_Q4_K] = PACKING_Q4_SUPER, [WEIGHT_Q6_K] = PACKING_Q6_SUPER,
};

/* Bytes of a span, and of what every SUPER_SPANS spans open with. */
static const struct {
    int span, super;
} sizes[N_PACKINGS] = {
    [PACKING_F32] = {SPAN * 64, 0},      [PACKING_F16] = {SPAN * 32, 0},
    [PACKING_BF16] = {SPAN * 32, 0},     [PACKING_Q4] = {512 + 64, 0},
    [PACKING_Q4_BIAS] = {512 + 128, 0},  [PACKING_Q8] = {1024 + 64, 0},
    [PACKING_Q4_SUPER] = {512 + 64, 64}, [PACKING_Q6_SUPER] = {768 + 64, 64},
};

enum linear_packing linear_packing_of(enum weight_encoding encoding)
{
    return packings[encoding];
}

size_t linear_block_bytes(enum linear_packing packing, int32_t padded_cols)
{
    size_t n_spans = (size_t)padded_cols / SPAN;
    size_t n_supers = (n_spans + SUPER_SPANS - 1) / SUPER_SPANS;
    return n_spans * (size_t)sizes[packing].span + n_supers * (size_t)sizes[packing].super;
}

struct weight linear_slice_row(const struct weight_slice *slice, int64_t row)
{
    const struct weight_encoding_info *info = weight_info(slice->weight.encoding);
    size_t skipped = (size_t)(slice->col / info->block) * (size_t)info->block_bytes;
    return (struct weight){
        .encoding = slice->weight.encoding,
        .rows = 1,
        .cols = slice->cols,
        .data = weight_row_data(&slice->weight, slice->row + row) + skipped,
    };
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

/* One unit of one row, 8 words of 4 codes each, into lane `row` of the block. */
static void pack_codes_4(const uint8_t *codes, int row, uint8_t *to)
{
    for (int i = 0; i < 4; i++) {
        uint32_t low = load_u32(codes + 4 * i) & 0x0F0F0F0F;
        uint32_t high = load_u32(codes + 4 * i + 16) & 0x0F0F0F0F;
        store_u32(to + i * 64 + row * 4, low | high << 4);
    }
}

static void pack_codes_6(const uint8_t *codes, int row, uint8_t *to)
{
    pack_codes_4(codes, row, to);
    for (int j = 0; j < 2; j++) {
        uint32_t pairs = 0;
        for (int f = 0; f < 4; f++)
            pairs |= (load_u32(codes + 16 * j + 4 * f) >> 4 & 0x03030303) << 2 * f;
        store_u32(to + 256 + j * 64 + row * 4, pairs);
    }
}

static void pack_codes_8(const uint8_t *codes, int row, uint8_t *to)
{
    for (int i = 0; i < 8; i++)
        store_u32(to + i * 64 + row * 4, load_u32(codes + 4 * i));
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
        switch (packing) {
        case PACKING_Q4_BIAS:
            store_f16(to + u * 64 + row * 2, from->scales[row][unit]);
            store_f16(to + u * 64 + 32 + row * 2, from->biases[row][unit]);
            break;
        case PACKING_Q4_SUPER:
            to[u * 32 + row] = (uint8_t)from->sub_scales[row][unit];
            to[u * 32 + 16 + row] = (uint8_t)from->sub_biases[row][unit];
            break;
        case PACKING_Q6_SUPER:
            to[u * 32 + row] = (uint8_t)from->sub_scales[row][2 * unit];
            to[u * 32 + 16 + row] = (uint8_t)from->sub_scales[row][2 * unit + 1];
            break;
        default:
            store_f16(to + u * 32 + row * 2, from->scales[row][unit]);
            break;
        }
    }
}

/* What opens super span `s` of the chunk, for one row. */
static void pack_super(enum linear_packing packing, const struct chunk *from, int s, int row,
                       uint8_t *to)
{
    memcpy(to + row * 2, &from->super_scales[row][s], 2);
    if (packing == PACKING_Q4_SUPER)
        memcpy(to + 32 + row * 2, &from->super_biases[row][s], 2);
}

/* All of the chunk; returns where the next one goes. */
static uint8_t *pack_chunk(enum linear_packing packing, const struct chunk *from, uint8_t *to)
{
    void (*pack_codes)(const uint8_t *, int, uint8_t *) = packing == PACKING_Q8 ? pack_codes_8
                                                          : packing == PACKING_Q6_SUPER
                                                              ? pack_codes_6
                                                              : pack_codes_4;
    int unit_bytes = packing == PACKING_Q8 ? 512 : packing == PACKING_Q6_SUPER ? 384 : 256;
    for (int s = 0; s * SPAN < from->cols; s++) {
        if (sizes[packing].super && s % SUPER_SPANS == 0) {
            memset(to, 0, (size_t)sizes[packing].super);
            for (int row = 0; row < BLOCK_ROWS; row++)
                pack_super(packing, from, s / SUPER_SPANS, row, to);
            to += sizes[packing].super;
        }
        for (int row = 0; row < BLOCK_ROWS; row++) {
            for (int u = 0; u < 2; u++)
                pack_codes(from->codes[row] + s * SPAN + u * UNIT, row, to + u * unit_bytes);
            pack_levels(packing, from, s, row, to + 2 * unit_bytes);
        }
        to += sizes[packing].span;
    }
    return to;
}

/* Takes columns [done, done + chunk->cols) of one row apart. */
static void read_quantized(const struct weight_slice *slice, int64_t row, int64_t done,
                           struct chunk *chunk, int lane)
{
    struct weight_slice piece = *slice;
    piece.col += done;
    piece.cols = chunk->cols;
    struct weight one = linear_slice_row(&piece, row);
    const struct weight_encoding_info *info = weight_info(one.encoding);
    bool has_super = info->block > info->group;
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
}

static void pack_quantized(const struct weight_slice *slice, int64_t block, uint8_t *to)
{
    enum linear_packing packing = packings[slice->weight.encoding];
    struct chunk chunk;
    for (int64_t done = 0; done < slice->cols; done += CHUNK) {
        chunk.cols = (int)(slice->cols - done < CHUNK ? slice->cols - done : CHUNK);
        bool is_whole = block * BLOCK_ROWS + BLOCK_ROWS <= slice->rows && chunk.cols % SPAN == 0;
        if (!is_whole)
            memset(&chunk.codes, 0, sizeof chunk - offsetof(struct chunk, codes));
        for (int lane = 0; lane < BLOCK_ROWS; lane++)
            if (block * BLOCK_ROWS + lane < slice->rows)
                read_quantized(slice, block * BLOCK_ROWS + lane, done, &chunk, lane);
        to = pack_chunk(packing, &chunk, to);
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

void linear_pack_block(const struct weight_slice *slice, int64_t block, uint8_t *to)
{
    if (!weight_is_float(&slice->weight)) {
        pack_quantized(slice, block, to);
        return;
    }
    int32_t padded = (int32_t)((slice->cols + SPAN - 1) / SPAN * SPAN);
    memset(to, 0, linear_block_bytes(packings[slice->weight.encoding], padded));
    pack_float(slice, block, to);
}
