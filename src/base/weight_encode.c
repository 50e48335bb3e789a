#include "base/weight_encode.h"

#include "base/half.h"

#include <assert.h>
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

/* Eight codes of a byte each to `bits` bits, one behind the other: pairs, fours, all move together.
 */
static inline uint64_t join_codes(int bits, uint64_t x)
{
    const uint64_t ones = ((1u << bits) - 1) * 0x0001000100010001u;
    const uint64_t pairs = ((1u << 2 * bits) - 1) * 0x0000000100000001u;
    const uint64_t fours = (UINT64_C(1) << 4 * bits) - 1;
    x = (x & ones) | (x >> (8 - bits) & ones << bits);
    x = (x & pairs) | (x >> (16 - 2 * bits) & pairs << 2 * bits);
    return (x & fours) | (x >> (32 - 4 * bits) & fours << 4 * bits);
}

/* `bits` is a constant. */
static inline void join_stream(int bits, const uint8_t *restrict codes, size_t n,
                               uint8_t *restrict to)
{
    uint64_t word;
    for (; n >= 8; n -= 8, codes += 8, to += bits) {
        memcpy(&word, codes, sizeof word);
        word = join_codes(bits, word);
        memcpy(to, &word, (size_t)bits);
    }
    word = 0;
    memcpy(&word, codes, n);
    word = join_codes(bits, word);
    memcpy(to, &word, (n * (size_t)bits + 7) / 8);
}

void weight_pack_stream(const uint8_t *codes, size_t n, int bits, uint8_t *to)
{
    switch (bits) {
    case 2:
        join_stream(2, codes, n, to);
        break;
    case 3:
        join_stream(3, codes, n, to);
        break;
    case 4:
        join_stream(4, codes, n, to);
        break;
    case 5:
        join_stream(5, codes, n, to);
        break;
    case 6:
        join_stream(6, codes, n, to);
        break;
    default:
        assert(bits == 8);
        memcpy(to, codes, n);
        break;
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
