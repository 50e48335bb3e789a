/* Activations into the forms that the AVX-512 and AMX kernels multiply: int8 codes with their
 * scales and sums, or bf16. Same results as the twin's quantization, bit for bit. */
#include "device/cpu/linear_avx512.h"

/* 32 values of a row; places past its end are zero. */
struct unit_values {
    __m512 low, high;
};

ALWAYS_INLINE struct unit_values load_unit(const float *x, int n)
{
    if (n >= UNIT)
        return (struct unit_values){_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    __mmask16 low = n >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << n) - 1);
    __mmask16 high = n > 16 ? (__mmask16)((1u << (n - 16)) - 1) : (__mmask16)0;
    return (struct unit_values){_mm512_maskz_loadu_ps(low, x),
                                high ? _mm512_maskz_loadu_ps(high, x + 16) : _mm512_setzero_ps()};
}

/* Where one unit of one row goes: element [0] of strided arrays, `height` apart. */
struct unit_place {
    int8_t *codes;
    float *levels;
    int32_t *sums;
    size_t height;
};

ALWAYS_INLINE void store_unit_levels(const struct unit_place *to, float scale, int32_t low,
                                     int32_t high)
{
    to->levels[0] = scale;
    to->levels[to->height] = scale * (float)(low + high);
    to->sums[0] = -(low + high);
    to->sums[to->height] = -low;
    to->sums[2 * to->height] = -high;
}

ALWAYS_INLINE void quantize_unit(struct unit_values x, const struct unit_place *to)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i a = _mm512_and_si512(_mm512_castps_si512(x.low), magnitude);
    __m512i b = _mm512_and_si512(_mm512_castps_si512(x.high), magnitude);
    /* Magnitudes order like integers, with a NaN above all. */
    int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
    if (max < 0x1p-100f || bits >= 0x7F800000) {
        memset(to->codes, 0, UNIT);
        store_unit_levels(to, max < 0x1p-100f ? 0 : max / 127.0f, 0, 0);
        return;
    }
    __m512 inverse = _mm512_set1_ps(127.0f / max);
    __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(x.low, inverse));
    __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(x.high, inverse));
    _mm_storeu_si128((__m128i *)(void *)to->codes, _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128((__m128i *)(void *)(to->codes + 16), _mm512_cvtepi32_epi8(high));
    store_unit_levels(to, max / 127.0f, _mm512_reduce_add_epi32(low),
                      _mm512_reduce_add_epi32(high));
}

/* The values of row `row` and unit `unit`; zero outside the input. */
ALWAYS_INLINE struct unit_values values_at(const struct linear_input *in, int64_t row, int32_t unit)
{
    int n = in->cols - unit * UNIT;
    if (row >= in->n_rows || n <= 0)
        return (struct unit_values){_mm512_setzero_ps(), _mm512_setzero_ps()};
    return load_unit(in->x + (size_t)row * in->x_stride + (size_t)unit * UNIT, n);
}

static void quantize_tile(const struct linear_input *in, int64_t tile)
{
    int32_t n_units = linear_n_units(in);
    size_t height = (size_t)in->tile_rows;
    for (size_t r = 0; r < height; r++) {
        for (int32_t unit = 0; unit < n_units; unit++) {
            size_t at = (size_t)(tile * n_units + unit) * height;
            struct unit_place to = {in->codes + (at + r) * UNIT, in->levels + at * 2 + r,
                                    in->sums + at * 3 + r, height};
            quantize_unit(values_at(in, tile * in->tile_rows + (int64_t)r, unit), &to);
        }
    }
}

static void round_tile(const struct linear_input *in, int64_t tile)
{
    int32_t n_units = linear_n_units(in);
    size_t height = (size_t)in->tile_rows;
    for (size_t r = 0; r < height; r++) {
        for (int32_t unit = 0; unit < n_units; unit++) {
            struct unit_values x = values_at(in, tile * in->tile_rows + (int64_t)r, unit);
            uint16_t *to =
                (uint16_t *)in->rounded + ((size_t)(tile * n_units + unit) * height + r) * UNIT;
            __m512bh both = _mm512_cvtne2ps_pbh(x.high, x.low);
            memcpy(to, &both, sizeof both);
        }
    }
}

void linear_prepare_avx512(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles)
{
    for (int64_t tile = tiles.first; tile < tiles.end; tile++) {
        if (mode == MODE_INT8)
            quantize_tile(in, tile);
        else
            round_tile(in, tile);
    }
}
