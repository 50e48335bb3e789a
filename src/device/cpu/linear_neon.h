/* Weights of the layout of linear.h in the names of NEON: a block of 16 rows is four registers of 4
 * rows, its quarters. Shared by linear_float_neon.c and, for each level's int8 products,
 * linear_int8_neon.h. */
#ifndef CSGL_DEVICE_CPU_LINEAR_NEON_H
#define CSGL_DEVICE_CPU_LINEAR_NEON_H

#include "device/cpu/linear.h"

#include <arm_neon.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { QUARTERS = 4, LANES = 4, UNIT_WORDS = 8 };

/* 16 rows. */
struct f32x16 {
    float32x4_t quarter[QUARTERS];
};

/* linear_float_neon.c: f32 weights, or expanded ones, times f32 or rounded activations. */
void linear_neon_float(const struct linear_part *part, const struct linear_input *in, int64_t block,
                       struct linear_range rows, const struct linear_output *output);
/* linear_quantize_neon.c */
void linear_prepare_neon(const struct linear_input *in, enum linear_mode mode,
                         struct linear_range tiles, struct linear_range units);

/* --- levels ----------------------------------------------------------------------------------- */

ALWAYS_INLINE float32x4_t load_f16_quarter(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

ALWAYS_INLINE struct f32x16 load_f16(const uint8_t *p)
{
    struct f32x16 out;
    for (int h = 0; h < QUARTERS; h++)
        out.quarter[h] = load_f16_quarter(p + 8 * h);
    return out;
}

/* 16 bytes, each widened to 32 bits. */
struct u32x16 {
    uint32x4_t quarter[QUARTERS];
};

ALWAYS_INLINE struct u32x16 widen_bytes(uint8x16_t bytes)
{
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return (struct u32x16){{vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)),
                            vmovl_u16(vget_low_u16(high)), vmovl_u16(vget_high_u16(high))}};
}

/* 16 small integers times a vector. */
ALWAYS_INLINE struct f32x16 scale_bytes(uint8x16_t bytes, struct f32x16 by)
{
    struct u32x16 wide = widen_bytes(bytes);
    for (int h = 0; h < QUARTERS; h++)
        by.quarter[h] = vmulq_f32(by.quarter[h], vcvtq_f32_u32(wide.quarter[h]));
    return by;
}

/* The same for i8: x = (x ^ 128) - 128. */
ALWAYS_INLINE struct f32x16 scale_signed_bytes(uint8x16_t bytes, struct f32x16 by)
{
    struct u32x16 wide = widen_bytes(veorq_u8(bytes, vdupq_n_u8(0x80)));
    for (int h = 0; h < QUARTERS; h++) {
        int32x4_t value = vsubq_s32(vreinterpretq_s32_u32(wide.quarter[h]), vdupq_n_s32(128));
        by.quarter[h] = vmulq_f32(by.quarter[h], vcvtq_f32_s32(value));
    }
    return by;
}

/* 4 E4M3 bytes, each in 32 bits. The same bits in f16 are 2^8 times smaller, but for NaN. */
ALWAYS_INLINE float32x4_t e4m3_to_f32(uint32x4_t bytes)
{
    uint32x4_t magnitude = vandq_u32(bytes, vdupq_n_u32(0x7F));
    uint32x4_t is_nan = vceqq_u32(magnitude, vdupq_n_u32(0x7F));
    uint32x4_t sign = vshlq_n_u32(vandq_u32(bytes, vdupq_n_u32(0x80)), 8);
    uint32x4_t rest = vbslq_u32(is_nan, vdupq_n_u32(0x7E00), vshlq_n_u32(magnitude, 7));
    float16x4_t half = vreinterpret_f16_u16(vmovn_u32(vorrq_u32(sign, rest)));
    return vmulq_n_f32(vcvt_f32_f16(half), 256.0f);
}

/* Half of 16 E4M3 values (codes are twice the values) times a vector. */
ALWAYS_INLINE struct f32x16 scale_e4m3(const uint8_t *p, struct f32x16 by)
{
    struct u32x16 wide = widen_bytes(vld1q_u8(p));
    for (int h = 0; h < QUARTERS; h++)
        by.quarter[h] = vmulq_n_f32(vmulq_f32(by.quarter[h], e4m3_to_f32(wide.quarter[h])), 0.5f);
    return by;
}

/* Half of 2^(e - 127), f32 below its normal range for e < 2. */
ALWAYS_INLINE struct f32x16 load_e8m0(const uint8_t *p)
{
    struct u32x16 wide = widen_bytes(vld1q_u8(p));
    struct f32x16 out;
    for (int h = 0; h < QUARTERS; h++) {
        uint32x4_t e = wide.quarter[h];
        uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        uint32x4_t small = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
        out.quarter[h] =
            vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, normal));
    }
    return out;
}

ALWAYS_INLINE struct f32x16 negative(struct f32x16 v)
{
    for (int h = 0; h < QUARTERS; h++)
        v.quarter[h] = vnegq_f32(v.quarter[h]);
    return v;
}

/* --- the walk along a block's spans ----------------------------------------------------------- */

/* The packing is a constant parameter of what reads a walk. */
struct walk {
    const uint8_t *at;
    struct f32x16 super_scale, super_bias;
    /* Grouped packings: the levels of the two units, and spans until they change. */
    enum weight_level_type level_type;
    int32_t group_spans, spans_left;
    struct f32x16 scale[2], bias[2];
};

ALWAYS_INLINE struct walk walk_begin(const struct linear_part *part, int64_t block)
{
    float32x4_t factor = vdupq_n_f32(part->factor);
    return (struct walk){.at = part->data + (size_t)block * part->block_bytes,
                         .super_scale = {{factor, factor, factor, factor}},
                         .level_type = part->level_type,
                         .group_spans = part->group_spans};
}

/* 4 levels. */
ALWAYS_INLINE float32x4_t load_quarter_level(enum weight_level_type type, const uint8_t *p)
{
    uint32x4_t bits;
    switch (type) {
    case LEVEL_F32:
        return vreinterpretq_f32_u8(vld1q_u8(p));
    case LEVEL_F16:
        return load_f16_quarter(p);
    case LEVEL_BF16:
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
    default: { /* E8M0 */
        uint32_t word;
        memcpy(&word, p, sizeof word);
        bits = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
        uint32x4_t is_zero = vceqq_u32(bits, vdupq_n_u32(0));
        bits = vbslq_u32(is_zero, vdupq_n_u32(0x400000), vshlq_n_u32(bits, 23));
        return vreinterpretq_f32_u32(bits);
    }
    }
}

/* 16 levels; the walk moves on. */
ALWAYS_INLINE struct f32x16 load_level(struct walk *walk)
{
    struct f32x16 out;
    for (int h = 0; h < QUARTERS; h++) {
        out.quarter[h] = load_quarter_level(walk->level_type, walk->at);
        walk->at += LANES * weight_level_bytes(walk->level_type);
    }
    return out;
}

/* The levels of a span that begins a group. */
ALWAYS_INLINE void enter_group(enum linear_packing packing, struct walk *walk)
{
    if (walk->spans_left-- > 0)
        return;
    int n = walk->group_spans ? 1 : 2;
    walk->spans_left = walk->group_spans ? walk->group_spans - 1 : 0;
    for (int u = 0; u < n; u++) {
        walk->scale[u] = load_level(walk);
        if (has_unit_bias(packing))
            walk->bias[u] = load_level(walk);
    }
    if (n == 1) {
        walk->scale[1] = walk->scale[0];
        walk->bias[1] = walk->bias[0];
    }
}

/* Before span s: reads what opens every fourth one, or a group. */
ALWAYS_INLINE void walk_enter(enum linear_packing packing, struct walk *walk, int s)
{
    if (is_super(packing) && s % SUPER_SPANS == 0) {
        walk->super_scale = load_f16(walk->at);
        walk->super_bias = load_f16(walk->at + 32);
        walk->at += 64;
    }
    if (is_grouped(packing))
        enter_group(packing, walk);
}

ALWAYS_INLINE void walk_leave(enum linear_packing packing, struct walk *walk)
{
    walk->at += 2 * unit_bytes_of(packing) + level_bytes_of(packing);
}

/* Scale and bias of each of the two groups of 16 columns of a unit. */
struct unit_levels {
    struct f32x16 scale[2], bias[2];
};

/* Bytes of two nibbles: the scale below, the bias above. */
ALWAYS_INLINE void load_nibbles(const struct walk *walk, const uint8_t *p, struct f32x16 *scale,
                                struct f32x16 *bias)
{
    uint8x16_t both = vld1q_u8(p);
    *scale = scale_bytes(vandq_u8(both, vdupq_n_u8(15)), walk->super_scale);
    *bias = negative(scale_bytes(vshrq_n_u8(both, 4), walk->super_bias));
}

ALWAYS_INLINE struct unit_levels load_levels(enum linear_packing packing, const struct walk *walk,
                                             int u)
{
    const uint8_t *p = walk->at + u * level_bytes_of(packing) / 2;
    struct unit_levels out = {0};
    switch (packing_shapes[packing].levels) {
    case LEVELS_SCALE:
        out.scale[0] = load_f16(p);
        break;
    case LEVELS_SCALE_BIAS:
        out.scale[0] = load_f16(p);
        out.bias[0] = load_f16(p + 32);
        break;
    case LEVELS_E8M0:
        out.scale[0] = load_e8m0(p);
        break;
    case LEVELS_GROUP_BIAS:
    case LEVELS_GROUP:
        out.scale[0] = walk->scale[u];
        out.bias[0] = walk->bias[u];
        break;
    case LEVELS_E4M3:
        out.scale[0] = scale_e4m3(p, walk->super_scale);
        out.scale[1] = scale_e4m3(p + 16, walk->super_scale);
        break;
    case LEVELS_SUPER:
        out.scale[0] = scale_bytes(vld1q_u8(p), walk->super_scale);
        out.bias[0] = negative(scale_bytes(vld1q_u8(p + 16), walk->super_bias));
        break;
    case LEVELS_HALVES:
        out.scale[0] = scale_signed_bytes(vld1q_u8(p), walk->super_scale);
        out.scale[1] = scale_signed_bytes(vld1q_u8(p + 16), walk->super_scale);
        break;
    case LEVELS_HALVES_BIAS:
        load_nibbles(walk, p, &out.scale[0], &out.bias[0]);
        load_nibbles(walk, p + 16, &out.scale[1], &out.bias[1]);
        break;
    }
    if (!has_halves(packing)) {
        out.scale[1] = out.scale[0];
        out.bias[1] = out.bias[0];
    }
    return out;
}

/* --- codes ------------------------------------------------------------------------------------ */

/* codes |= the field of `mask`'s width at bit `from` of each byte of the plane, moved to `to`. */
ALWAYS_INLINE uint8x16_t add_field(uint8x16_t codes, uint8x16_t plane, int mask, int from, int to)
{
    uint8x16_t moved = vshlq_u8(plane, vdupq_n_s8((int8_t)(to - from))); /* right where negative */
    return vorrq_u8(codes, vandq_u8(moved, vdupq_n_u8((uint8_t)(mask << to))));
}

/* Unsigned codes of quarter h (4 rows) of unit u, 4 columns of each row a register. */
ALWAYS_INLINE void load_codes(enum linear_packing packing, const struct walk *walk, int u, int h,
                              uint8x16_t codes[UNIT_WORDS])
{
    const uint8_t *p = walk->at + level_bytes_of(packing) + u * unit_bytes_of(packing) + 16 * h;
    const int bits = packing_shapes[packing].bits;
    if (bits == 8) {
        for (int i = 0; i < UNIT_WORDS; i++)
            codes[i] = vld1q_u8(p + 64 * i);
        return;
    }
    for (int i = 0; i < 4; i++) {
        uint8x16_t both = bits & 4 ? vld1q_u8(p + 64 * i) : vdupq_n_u8(0);
        codes[i] = vandq_u8(both, vdupq_n_u8(15));
        codes[i + 4] = vshrq_n_u8(both, 4);
    }
    p += bits & 4 ? 256 : 0;
    for (int j = 0; j < 2 && bits & 2; j++, p += 64) {
        uint8x16_t pairs = vld1q_u8(p);
        for (int f = 0; f < 4; f++)
            codes[4 * j + f] = add_field(codes[4 * j + f], pairs, 3, 2 * f, bits & 4);
    }
    if (bits & 1) {
        uint8x16_t singles = vld1q_u8(p);
        for (int i = 0; i < UNIT_WORDS; i++)
            codes[i] = add_field(codes[i], singles, 1, i, bits & 6);
    }
    if (!has_table(packing))
        return;
    const uint8x16_t table = vld1q_u8(table_of(packing));
    for (int i = 0; i < UNIT_WORDS; i++)
        codes[i] = vqtbl1q_u8(table, codes[i]);
}

/* --- results ---------------------------------------------------------------------------------- */

/* One row of results of a block, its bias added. */
ALWAYS_INLINE void store_row(const struct linear_part *part, int64_t block, int64_t row,
                             const struct linear_output *output, struct f32x16 y)
{
    float values[BLOCK_ROWS];
    for (int h = 0; h < QUARTERS; h++) {
        if (part->bias)
            y.quarter[h] =
                vaddq_f32(y.quarter[h], vld1q_f32(part->bias + block * BLOCK_ROWS + LANES * h));
        vst1q_f32(values + LANES * h, y.quarter[h]);
    }
    int64_t left = part->rows - block * BLOCK_ROWS;
    size_t n = left < BLOCK_ROWS ? (size_t)left : BLOCK_ROWS;
    memcpy(linear_output_at(output, row, block * BLOCK_ROWS), values, n * sizeof(float));
}

#endif
