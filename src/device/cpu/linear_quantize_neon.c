/* Activations into int8 codes with their scales and sums, for NEON: the twin's, bit for bit. */
#include "device/cpu/linear_neon.h"

enum { UNIT_VECTORS = UNIT / LANES };

/* One unit: the codes, the scale, and the sums of the first and the last 16 codes. */
static float quantize_unit(const float *x, int8_t *codes, int32_t sums[2])
{
    float32x4_t values[UNIT_VECTORS];
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < UNIT_VECTORS; i++) { /* as integers, magnitudes order like floats */
        values[i] = vld1q_f32(x + LANES * i);
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(values[i])));
    }
    uint32_t bits = vmaxvq_u32(largest);
    float max;
    memcpy(&max, &bits, sizeof max);
    bool is_zero = max < 0x1p-100f;
    if (is_zero || bits >= 0x7F800000) { /* infinite or NaN: the scale alone carries it */
        memset(codes, 0, UNIT);
        sums[0] = sums[1] = 0;
        return is_zero ? 0 : max / 127.0f;
    }
    float inverse = 127.0f / max;
    for (int half = 0; half < 2; half++) {
        int16x4_t narrow[4];
        for (int i = 0; i < 4; i++)
            narrow[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(values[4 * half + i], inverse)));
        int8x16_t bytes = vcombine_s8(vmovn_s16(vcombine_s16(narrow[0], narrow[1])),
                                      vmovn_s16(vcombine_s16(narrow[2], narrow[3])));
        vst1q_s8(codes + 16 * half, bytes);
        sums[half] = vaddlvq_s8(bytes);
    }
    return max / 127.0f;
}

static void quantize_tile(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    int32_t n_units = linear_n_units(in);
    size_t height = (size_t)in->tile_rows;
    for (size_t r = 0; r < height; r++) {
        int64_t row = tile * in->tile_rows + (int64_t)r;
        for (int64_t u = units.first; u < units.end; u++) {
            size_t at = (size_t)(tile * n_units + u) * height;
            int n = row >= in->n_rows ? 0 : in->cols - (int)u * UNIT;
            float edge[UNIT] = {0};
            const float *x = edge;
            if (n >= UNIT)
                x = in->x + (size_t)row * in->x_stride + (size_t)u * UNIT;
            else if (n > 0)
                memcpy(edge, in->x + (size_t)row * in->x_stride + (size_t)u * UNIT,
                       (size_t)n * sizeof *edge);
            int32_t sums[2];
            float scale = quantize_unit(x, in->codes + (at + r) * UNIT, sums);
            in->levels[at * 2 + r] = scale;
            in->levels[at * 2 + height + r] = scale * (float)(sums[0] + sums[1]);
            in->sums[at * 3 + r] = -(sums[0] + sums[1]);
            in->sums[at * 3 + height + r] = -sums[0];
            in->sums[at * 3 + 2 * height + r] = -sums[1];
        }
    }
}

void linear_prepare_neon(const struct linear_input *in, enum linear_mode mode,
                         struct linear_range tiles, struct linear_range units)
{
    if (mode != MODE_INT8) {
        linear_prepare_scalar(in, mode, tiles, units);
        return;
    }
    for (int64_t tile = tiles.first; tile < tiles.end; tile++)
        quantize_tile(in, tile, units);
}
