/* int8 linears for NEON, compiled once a level: linear_neon.c with widening products, for
 * linear_dotprod.c with sdot, for linear_i8mm.c also with smmla. Integer sums are exact at each,
 * and one row of the result is always summed in the same order, whatever rows are computed with it:
 * group by group, the integer sum times its scales, then its bias. */
#ifndef CSGL_DEVICE_CPU_LINEAR_INT8_NEON_H
#define CSGL_DEVICE_CPU_LINEAR_INT8_NEON_H

#include "device/cpu/linear_neon.h"

enum { MOST_ROWS = 4 };

/* Codes of 8 bits, or of a table of such: 128 is taken from them, so that they are signed. */
ALWAYS_INLINE bool is_wide(enum linear_packing packing)
{
    return offset_of(packing) == 128 || packing_shapes[packing].bits == 8;
}

ALWAYS_INLINE void load_signed(enum linear_packing packing, const struct walk *walk, int u, int h,
                               int8x16_t codes[UNIT_WORDS])
{
    uint8x16_t bytes[UNIT_WORDS];
    load_codes(packing, walk, u, h, bytes);
    for (int i = 0; i < UNIT_WORDS; i++) {
        uint8x16_t code = is_wide(packing) ? veorq_u8(bytes[i], vdupq_n_u8(0x80)) : bytes[i];
        codes[i] = vreinterpretq_s8_u8(code);
    }
}

#if defined(__ARM_FEATURE_DOTPROD)
/* The sum of n (4 or 8) words of codes of 4 rows times the activations of one row. */
ALWAYS_INLINE int32x4_t dot_words(const int8x16_t *codes, int n, const int8_t *q)
{
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < n; i += 4) {
        int8x16_t x = vld1q_s8(q + 4 * i);
        sum = vdotq_laneq_s32(sum, codes[i], x, 0);
        sum = vdotq_laneq_s32(sum, codes[i + 1], x, 1);
        sum = vdotq_laneq_s32(sum, codes[i + 2], x, 2);
        sum = vdotq_laneq_s32(sum, codes[i + 3], x, 3);
    }
    return sum;
}
#else
ALWAYS_INLINE int8x8_t broadcast_word(const int8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return vreinterpret_s8_s32(vdup_n_s32(word));
}

/* The sum of n (4 or 8) words of codes of 4 rows times the activations of one row. Two products
 * fit into i16: at most 2 * 128 * 127 = 32512. */
ALWAYS_INLINE int32x4_t dot_words(const int8x16_t *codes, int n, const int8_t *q)
{
    int32x4_t low = vdupq_n_s32(0), high = low;
    for (int i = 0; i < n; i += 2) {
        int8x8_t a = broadcast_word(q + 4 * i), b = broadcast_word(q + 4 * i + 4);
        int16x8_t products = vmull_s8(vget_low_s8(codes[i]), a);
        low = vpadalq_s16(low, vmlal_s8(products, vget_low_s8(codes[i + 1]), b));
        products = vmull_s8(vget_high_s8(codes[i]), a);
        high = vpadalq_s16(high, vmlal_s8(products, vget_high_s8(codes[i + 1]), b));
    }
    return vpaddq_s32(low, high);
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* The same for two rows of activations, q and q + UNIT: products of 2 x 8 with 8 x 2. */
ALWAYS_INLINE void dot_two_rows(const int8x16_t *codes, int n, const int8_t *q, int32x4_t dots[2])
{
    int32x4_t low = vdupq_n_s32(0), high = low; /* rows 0 and 1, 2 and 3: [w0x0 w0x1 w1x0 w1x1] */
    for (int i = 0; i < n; i += 2) {
        int32x4_t a = vreinterpretq_s32_s8(codes[i]), b = vreinterpretq_s32_s8(codes[i + 1]);
        int8x16_t x = vcombine_s8(vld1_s8(q + 4 * i), vld1_s8(q + UNIT + 4 * i));
        low = vmmlaq_s32(low, vreinterpretq_s8_s32(vzip1q_s32(a, b)), x);
        high = vmmlaq_s32(high, vreinterpretq_s8_s32(vzip2q_s32(a, b)), x);
    }
    dots[0] = vuzp1q_s32(low, high);
    dots[1] = vuzp2q_s32(low, high);
}
#endif

/* dots[i] for each of n rows (a constant) of activations. */
ALWAYS_INLINE void dot_rows(const int8x16_t *codes, int n_words, const int8_t *q, int n,
                            int32x4_t dots[MOST_ROWS])
{
    int i = 0;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    for (; i + 2 <= n; i += 2)
        dot_two_rows(codes, n_words, q + i * UNIT, dots + i);
#endif
    for (; i < n; i++)
        dots[i] = dot_words(codes, n_words, q + i * UNIT);
}

/* One unit of one quarter for n rows; q, scale and sums are the first row's. */
ALWAYS_INLINE void add_unit(enum linear_packing packing, const int8x16_t codes[UNIT_WORDS],
                            const struct unit_levels *levels, int h, const int8_t *q,
                            const float *scale, const int32_t *sums, size_t height, int n,
                            struct f32x16 *acc)
{
    const int n_groups = has_halves(packing) ? 2 : 1, n_words = UNIT_WORDS / n_groups;
    const int offset = offset_of(packing) - (is_wide(packing) ? 128 : 0);
    for (int g = 0; g < n_groups; g++) {
        int32x4_t dots[MOST_ROWS];
        dot_rows(codes + g * n_words, n_words, q + 4 * g * n_words, n, dots);
        const int32_t *negative_sums = sums + (n_groups == 2 ? (size_t)(1 + g) * height : 0);
        for (int i = 0; i < n; i++) {
            float32x4_t *to = &acc[i].quarter[h];
            if (offset)
                dots[i] = vaddq_s32(dots[i], vdupq_n_s32(offset * negative_sums[i]));
            *to = vfmaq_f32(*to, vcvtq_f32_s32(dots[i]),
                            vmulq_n_f32(levels->scale[g].quarter[h], scale[i]));
            if (has_half_bias(packing))
                *to = vfmsq_n_f32(*to, levels->bias[g].quarter[h],
                                  scale[i] * (float)negative_sums[i]);
        }
    }
    for (int i = 0; i < n && has_unit_bias(packing); i++)
        acc[i].quarter[h] =
            vfmaq_n_f32(acc[i].quarter[h], levels->bias[0].quarter[h], scale[height + (size_t)i]);
}

/* n rows (a constant) of one tile times one block. */
ALWAYS_INLINE void multiply_rows(enum linear_packing packing, int n, const struct linear_part *part,
                                 const struct linear_input *in, int64_t block, int64_t row,
                                 struct f32x16 *acc)
{
    size_t height = (size_t)in->tile_rows;
    size_t at = (size_t)row / height * (size_t)linear_n_units(in) * height;
    size_t place = (size_t)row % height;
    struct walk walk = walk_begin(part, block);
    for (int s = 0; s < part->padded_cols / SPAN; s++) {
        walk_enter(packing, &walk, s);
        for (int u = 0; u < 2; u++, at += height) {
            struct unit_levels levels = load_levels(packing, &walk, u);
            for (int h = 0; h < QUARTERS; h++) {
                int8x16_t codes[UNIT_WORDS];
                load_signed(packing, &walk, u, h, codes);
                add_unit(packing, codes, &levels, h, in->codes + (at + place) * UNIT,
                         in->levels + at * 2 + place, in->sums + at * 3 + place, height, n, acc);
            }
        }
        walk_leave(packing, &walk);
    }
}

typedef void (*rows_kernel)(const struct linear_part *part, const struct linear_input *in,
                            int64_t block, int64_t row, struct f32x16 *acc);

#define KERNEL(packing, n)                                                                         \
    static void multiply_##packing##_##n(const struct linear_part *part,                           \
                                         const struct linear_input *in, int64_t block,             \
                                         int64_t row, struct f32x16 *acc)                          \
    {                                                                                              \
        struct f32x16 sums[n] = {0};                                                               \
        multiply_rows(PACKING_##packing, n, part, in, block, row, sums);                           \
        memcpy(acc, sums, sizeof sums);                                                            \
    }
#define KERNELS(packing) KERNEL(packing, 1) KERNEL(packing, 2) KERNEL(packing, 4)
QUANTIZED_PACKINGS(KERNELS)

#define KERNEL_ROW(packing)                                                                        \
    [PACKING_##packing] = {multiply_##packing##_1, multiply_##packing##_2, multiply_##packing##_4},
static const rows_kernel kernels[N_PACKINGS][3] = {QUANTIZED_PACKINGS(KERNEL_ROW)};

static void multiply_int8(const struct linear_part *part, const struct linear_input *in,
                          int64_t block, struct linear_range rows,
                          const struct linear_output *output)
{
    int64_t height = in->tile_rows;
    for (int64_t row = rows.first; row < rows.end;) {
        int64_t end = (row / height + 1) * height;
        int64_t left = (end < rows.end ? end : rows.end) - row;
        int size = left >= 4 ? 2 : left >= 2 ? 1 : 0;
        struct f32x16 acc[MOST_ROWS];
        kernels[part->packing][size](part, in, block, row, acc);
        for (int i = 0; i < 1 << size; i++)
            store_row(part, block, row + i, output, acc[i]);
        row += 1 << size;
    }
}

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    (void)scratch;
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        if (part->mode == MODE_INT8)
            multiply_int8(part, in, block, rows, output);
        else
            linear_neon_float(part, in, block, rows, output);
    }
}

static int32_t tile_rows(int32_t n_rows)
{
    return n_rows < TILE_ROWS_MAX ? n_rows : TILE_ROWS_MAX;
}

static size_t scratch_bytes(const struct linear_part *part)
{
    (void)part;
    return 0;
}

#endif
