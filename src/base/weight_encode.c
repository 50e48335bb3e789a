#include "base/weight_encode.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 }; /* n is a multiple of it; loops of this length become vector code */

static void find_range(const float *values, int n, float *low, float *high)
{
    float lows[LANES], highs[LANES];
    memcpy(lows, values, sizeof lows);
    memcpy(highs, values, sizeof highs);
    for (int i = LANES; i < n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float value = values[i + j];
            lows[j] = value < lows[j] ? value : lows[j];
            highs[j] = value > highs[j] ? value : highs[j];
        }
    *low = lows[0];
    *high = highs[0];
    for (int j = 1; j < LANES; j++) {
        *low = lows[j] < *low ? lows[j] : *low;
        *high = highs[j] > *high ? highs[j] : *high;
    }
}

/* The edge of the range that lies farther from zero becomes a bias, and the scale is bent so that
 * the edge is a whole number of steps from zero, which keeps zero exact. The scale is negative when
 * that edge is the upper one. All in f32, in this order, rounded to even. */
void weight_encode_group(const float *values, int n, int bits, uint8_t *codes, float *scale,
                         float *bias)
{
    float low, high, most = (float)((1 << bits) - 1);
    find_range(values, n, &low, &high);
    bool is_low = fabsf(low) > fabsf(high);
    float step = (high - low) / most, edge = is_low ? low : high;
    step = step > 1e-7f ? step : 1e-7f;
    step = is_low ? step : -step;
    float steps = rintf(edge / step);
    *scale = steps != 0 ? edge / steps : step;
    *bias = steps != 0 ? edge : 0;
    for (int i = 0; i < n; i++) {
        /* At 1.5 * 2^23 floats are the integers: the sum is rounded to one. The quotient is at most
         * `most`, but for rounding; a NaN fails both comparisons and becomes 0. */
        float code = (values[i] - *bias) / *scale + 0x1.8p23f;
        code -= 0x1.8p23f;
        code = code > 0 ? code : 0;
        codes[i] = (uint8_t)(int32_t)(code < most ? code : most);
    }
}

void weight_pack_stream(const uint8_t *codes, size_t n, int bits, uint8_t *to)
{
    uint32_t word = 0;
    int held = 0; /* bits in `word` */
    for (size_t i = 0; i < n; i++) {
        word |= (uint32_t)codes[i] << held;
        for (held += bits; held >= 8; held -= 8, word >>= 8)
            *to++ = (uint8_t)word;
    }
}

void weight_pack_levels(enum weight_level_type type, const float *values, size_t n, uint8_t *to)
{
    size_t bytes = weight_level_bytes(type);
    for (size_t i = 0; i < n; i++, to += bytes) {
        uint32_t word = bits_from_f32(values[i]);
        if (type != LEVEL_F32)
            word = type == LEVEL_F16 ? f16_from_f32(values[i]) : bf16_from_f32(values[i]);
        memcpy(to, &word, bytes);
    }
}
