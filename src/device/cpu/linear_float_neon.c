/* Linears with f32 products for NEON: spans of weights are expanded to f32 once for many rows.
 * Column k of a span adds to partial sum k mod 2, so that a row's sums do not depend on the rows
 * beside it. */
#include "device/cpu/linear_neon.h"

enum { GROUP_ROWS = 32, N_PARTIAL = 2, PARTIAL = N_PARTIAL * BLOCK_ROWS };

/* One span of coded weights as f32 [64][16]. */
ALWAYS_INLINE void expand_codes(enum linear_packing packing, const struct walk *walk, float *to)
{
    const int32x4_t offset = vdupq_n_s32(offset_of(packing));
    for (int u = 0; u < 2; u++) {
        struct unit_levels levels = load_levels(packing, walk, u);
        for (int h = 0; h < QUARTERS; h++) {
            uint8x16_t codes[UNIT_WORDS];
            load_codes(packing, walk, u, h, codes);
            for (int i = 0; i < UNIT_WORDS; i++) {
                float32x4_t scale = levels.scale[i / 4].quarter[h];
                float32x4_t bias = levels.bias[i / 4].quarter[h];
                float *at = to + (u * UNIT + 4 * i) * BLOCK_ROWS + LANES * h;
                for (int j = 0; j < 4; j++) {
                    uint32x4_t moved =
                        vshlq_u32(vreinterpretq_u32_u8(codes[i]), vdupq_n_s32(-8 * j));
                    uint32x4_t code = vandq_u32(moved, vdupq_n_u32(255));
                    float32x4_t value =
                        packing == PACKING_F8
                            ? e4m3_to_f32(code)
                            : vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(code), offset));
                    vst1q_f32(at + j * BLOCK_ROWS, vfmaq_f32(bias, value, scale));
                }
            }
        }
    }
}

static void expand_bf16(const uint8_t *from, float *to)
{
    for (int i = 0; i < SPAN / 2; i++) {
        for (int h = 0; h < QUARTERS; h++) {
            uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(from + 64 * i + 16 * h));
            float *at = to + 2 * i * BLOCK_ROWS + LANES * h;
            vst1q_f32(at, vreinterpretq_f32_u32(vshlq_n_u32(pair, 16)));
            vst1q_f32(at + BLOCK_ROWS,
                      vreinterpretq_f32_u32(vandq_u32(pair, vdupq_n_u32(0xFFFF0000))));
        }
    }
}

static void expand_f16(const uint8_t *from, float *to)
{
    for (int k = 0; k < SPAN * BLOCK_ROWS / LANES; k++)
        vst1q_f32(to + LANES * k, load_f16_quarter(from + 8 * k));
}

/* Span s as f32; the walk moves on. */
static void expand_span(enum linear_packing packing, struct walk *walk, int s, float *to)
{
#define EXPAND(which)                                                                              \
    case PACKING_##which:                                                                          \
        walk_enter(PACKING_##which, walk, s);                                                      \
        expand_codes(PACKING_##which, walk, to);                                                   \
        walk_leave(PACKING_##which, walk);                                                         \
        break;
    switch (packing) {
        EXPANDED_PACKINGS(EXPAND)
    case PACKING_F32:
        memcpy(to, walk->at, SPAN * BLOCK_ROWS * sizeof *to);
        walk->at += SPAN * BLOCK_ROWS * 4;
        break;
    case PACKING_F16:
        expand_f16(walk->at, to);
        walk->at += SPAN * BLOCK_ROWS * 2;
        break;
    default:
        expand_bf16(walk->at, to);
        walk->at += SPAN * BLOCK_ROWS * 2;
        break;
    }
#undef EXPAND
}

/* partial[i][p][16] += span * x of n rows (a constant, at most 3: 24 sums, 4 weights and 3 values
 * fill the registers). */
ALWAYS_INLINE void add_span(int n, const float *span, int cols, const float *x, size_t stride,
                            float *partial)
{
    float32x4_t acc[3][N_PARTIAL][QUARTERS];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            for (int h = 0; h < QUARTERS; h++)
                acc[i][p][h] = vld1q_f32(partial + i * PARTIAL + p * BLOCK_ROWS + LANES * h);
    for (int k = 0; k < cols; k += N_PARTIAL) {
        for (int p = 0; p < N_PARTIAL && k + p < cols; p++) {
            const float *w = span + (k + p) * BLOCK_ROWS;
            float32x4_t weights[QUARTERS];
            for (int h = 0; h < QUARTERS; h++)
                weights[h] = vld1q_f32(w + LANES * h);
            for (int i = 0; i < n; i++) {
                float value = x[(size_t)i * stride + (size_t)(k + p)];
                for (int h = 0; h < QUARTERS; h++)
                    acc[i][p][h] = vfmaq_n_f32(acc[i][p][h], weights[h], value);
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            for (int h = 0; h < QUARTERS; h++)
                vst1q_f32(partial + i * PARTIAL + p * BLOCK_ROWS + LANES * h, acc[i][p][h]);
}

/* At most GROUP_ROWS rows: each span of weights is expanded once for all of them. */
static void add_rows(const struct linear_part *part, int64_t block, const float *x, size_t stride,
                     int n, float *partial)
{
    struct walk walk = walk_begin(part, block);
    float span[SPAN * BLOCK_ROWS];
    memset(partial, 0, (size_t)n * PARTIAL * sizeof *partial);
    for (int s = 0; s < part->padded_cols / SPAN; s++) {
        int cols = part->cols - s * SPAN < SPAN ? part->cols - s * SPAN : SPAN;
        const float *at = x + (size_t)s * SPAN;
        expand_span(part->packing, &walk, s, span);
        int i = 0;
        for (; i + 3 <= n; i += 3)
            add_span(3, span, cols, at + (size_t)i * stride, stride, partial + i * PARTIAL);
        for (; i < n; i++)
            add_span(1, span, cols, at + (size_t)i * stride, stride, partial + i * PARTIAL);
    }
}

void linear_neon_float(const struct linear_part *part, const struct linear_input *in, int64_t block,
                       struct linear_range rows, const struct linear_output *output)
{
    bool is_rounded = part->mode == MODE_BF16;
    const float *x = is_rounded ? in->rounded : in->x;
    size_t stride = is_rounded ? (size_t)in->padded_cols : in->x_stride;
    float partial[GROUP_ROWS * PARTIAL];
    for (int64_t row = rows.first; row < rows.end; row += GROUP_ROWS) {
        int n = (int)(rows.end - row < GROUP_ROWS ? rows.end - row : GROUP_ROWS);
        add_rows(part, block, x + (size_t)row * stride, stride, n, partial);
        for (int i = 0; i < n; i++) {
            const float *p = partial + i * PARTIAL;
            struct f32x16 y;
            for (int h = 0; h < QUARTERS; h++)
                y.quarter[h] =
                    vaddq_f32(vld1q_f32(p + LANES * h), vld1q_f32(p + BLOCK_ROWS + LANES * h));
            store_row(part, block, row + i, output, y);
        }
    }
}
