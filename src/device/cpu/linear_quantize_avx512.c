/* Activations into the forms that the AVX-512 and AMX kernels multiply: int8 codes with their
 * scales and sums, or bf16. Same codes and scales as the twin's, bit for bit. */
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

/* The values of row `row` and unit `unit`; zero outside the input. */
ALWAYS_INLINE struct unit_values values_at(const struct linear_input *in, int64_t row, int32_t unit)
{
    int n = in->cols - unit * UNIT;
    if (row >= in->n_rows || n <= 0)
        return (struct unit_values){_mm512_setzero_ps(), _mm512_setzero_ps()};
    return load_unit(in->x + (size_t)row * in->x_stride + (size_t)unit * UNIT, n);
}

/* The greatest magnitude's bits; magnitudes order like integers, with a NaN above all. */
ALWAYS_INLINE int32_t max_bits(struct unit_values x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i wide = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x.low), magnitude),
                                    _mm512_and_si512(_mm512_castps_si512(x.high), magnitude));
    __m256i m = _mm256_max_epi32(_mm512_castsi512_si256(wide), _mm512_extracti64x4_epi64(wide, 1));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return _mm_cvtsi128_si32(n);
}

/* A quantized unit. */
struct unit_codes {
    __m512i low, high; /* i32 */
    float scale;
};

ALWAYS_INLINE struct unit_codes quantize(struct unit_values x)
{
    int32_t bits = max_bits(x);
    float max = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
    if (max < 0x1p-100f || bits >= 0x7F800000) /* infinite or NaN: the scale alone carries it */
        return (struct unit_codes){_mm512_setzero_si512(), _mm512_setzero_si512(),
                                   max < 0x1p-100f ? 0 : max / 127.0f};
    __m512 inverse = _mm512_set1_ps(127.0f / max);
    return (struct unit_codes){_mm512_cvtps_epi32(_mm512_mul_ps(x.low, inverse)),
                               _mm512_cvtps_epi32(_mm512_mul_ps(x.high, inverse)), max / 127.0f};
}

/* Sums of the first and the last 16 of 32 codes. */
ALWAYS_INLINE void sum_codes(__m256i codes, int32_t *low, int32_t *high)
{
    /* Sums of unsigned bytes: 128 more than each code. */
    __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80)),
                                   _mm256_setzero_si256());
    __m256i pairs = _mm256_add_epi64(sums, _mm256_shuffle_epi32(sums, 0x4E));
    *low = _mm_cvtsi128_si32(_mm256_castsi256_si128(pairs)) - 16 * 128;
    *high = _mm_cvtsi128_si32(_mm256_extracti128_si256(pairs, 1)) - 16 * 128;
}

ALWAYS_INLINE __m256i narrow(struct unit_codes unit)
{
    return _mm256_set_m128i(_mm512_cvtepi32_epi8(unit.high), _mm512_cvtepi32_epi8(unit.low));
}

static void quantize_rows(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    int32_t n_units = linear_n_units(in);
    size_t height = (size_t)in->tile_rows;
    for (size_t r = 0; r < height; r++) {
        for (int64_t u = units.first; u < units.end; u++) {
            size_t at = (size_t)(tile * n_units + u) * height;
            struct unit_codes unit =
                quantize(values_at(in, tile * in->tile_rows + (int64_t)r, (int32_t)u));
            __m256i codes = narrow(unit);
            int32_t low, high;
            sum_codes(codes, &low, &high);
            _mm256_storeu_si256((__m256i *)(void *)(in->codes + (at + r) * UNIT), codes);
            in->levels[at * 2 + r] = unit.scale;
            in->levels[at * 2 + height + r] = unit.scale * (float)(low + high);
            in->sums[at * 3 + r] = -(low + high);
            in->sums[at * 3 + height + r] = -low;
            in->sums[at * 3 + 2 * height + r] = -high;
        }
    }
}

/* --- tiles of 16 rows: what is done once a unit above is done for 16 rows at once ------------- */

typedef __m512i (*combine_lanes)(__m512i a, __m512i b);

ALWAYS_INLINE __m512i max_lanes(__m512i a, __m512i b)
{
    return _mm512_max_epi32(a, b);
}

ALWAYS_INLINE __m512i add_lanes(__m512i a, __m512i b)
{
    return _mm512_add_epi32(a, b);
}

/* Lane r of the result combines the 16 lanes of v[r]. Each step halves the registers and the lanes
 * of each that are still to be combined. */
ALWAYS_INLINE __m512i reduce_rows(combine_lanes combine, const __m512i v[16])
{
    __m512i a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) /* rows i, i + 8 */
        a[i] = combine(_mm512_shuffle_i32x4(v[i], v[i + 8], 0x44),
                       _mm512_shuffle_i32x4(v[i], v[i + 8], 0xEE));
    for (int i = 0; i < 4; i++) /* quarters: rows i, i + 4, i + 8, i + 12 */
        b[i] = combine(_mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                       _mm512_shuffle_i32x4(a[i], a[i + 4], 0xDD));
    for (int i = 0; i < 2; i++)
        c[i] = combine(_mm512_unpacklo_epi32(b[2 * i], b[2 * i + 1]),
                       _mm512_unpackhi_epi32(b[2 * i], b[2 * i + 1]));
    __m512i all = combine(_mm512_unpacklo_epi64(c[0], c[1]), _mm512_unpackhi_epi64(c[0], c[1]));
    /* Quarters now hold rows {0-3}, {8-11}, {4-7}, {12-15}. */
    return _mm512_shuffle_i32x4(all, all, 0xD8);
}

/* Greatest magnitudes -> scales and inverses; 0 where a row's unit is zero or not finite. */
ALWAYS_INLINE void scales_of(__m512i bits, __m512 *scales, __m512 *inverses)
{
    const __m512 most = _mm512_set1_ps(127.0f);
    __m512 max = _mm512_castsi512_ps(bits);
    __mmask16 is_zero = _mm512_cmp_ps_mask(max, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    __mmask16 is_finite = _mm512_cmplt_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
    *scales = _mm512_maskz_div_ps((__mmask16)~is_zero, max, most);
    *inverses = _mm512_maskz_div_ps((__mmask16)(is_finite & ~is_zero), most, max);
}

/* One unit of the 16 rows at x, x + stride, ...; `at` is its place in the arrays of `in`. Codes of
 * a row that is not finite are meaningless; its scale makes its results not finite. */
ALWAYS_INLINE void quantize_unit_of_16(const float *x, size_t stride, const struct linear_input *in,
                                       size_t at)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i low[TILE_ROWS_MAX], high[TILE_ROWS_MAX];
    for (int r = 0; r < TILE_ROWS_MAX; r++) {
        __m512i a = _mm512_loadu_si512(x + (size_t)r * stride);
        __m512i b = _mm512_loadu_si512(x + (size_t)r * stride + 16);
        low[r] = _mm512_max_epi32(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
    }
    __m512 scales, inverses;
    _Alignas(64) float inverse[TILE_ROWS_MAX];
    scales_of(reduce_rows(max_lanes, low), &scales, &inverses);
    _mm512_store_ps(inverse, inverses);
    for (int r = 0; r < TILE_ROWS_MAX; r++) {
        __m512 by = _mm512_set1_ps(inverse[r]);
        const float *row = x + (size_t)r * stride;
        low[r] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row), by));
        high[r] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row + 16), by));
        _mm_storeu_si128((__m128i *)(void *)(in->codes + (at + (size_t)r) * UNIT),
                         _mm512_cvtepi32_epi8(low[r]));
        _mm_storeu_si128((__m128i *)(void *)(in->codes + (at + (size_t)r) * UNIT + 16),
                         _mm512_cvtepi32_epi8(high[r]));
    }
    __m512i first = reduce_rows(add_lanes, low), last = reduce_rows(add_lanes, high);
    __m512i sum = _mm512_add_epi32(first, last), zero = _mm512_setzero_si512();
    _mm512_storeu_ps(in->levels + at * 2, scales);
    _mm512_storeu_ps(in->levels + at * 2 + 16, _mm512_mul_ps(scales, _mm512_cvtepi32_ps(sum)));
    _mm512_storeu_si512(in->sums + at * 3, _mm512_sub_epi32(zero, sum));
    _mm512_storeu_si512(in->sums + at * 3 + 16, _mm512_sub_epi32(zero, first));
    _mm512_storeu_si512(in->sums + at * 3 + 32, _mm512_sub_epi32(zero, last));
}

static void quantize_tile_of_16(const struct linear_input *in, int64_t tile,
                                struct linear_range units)
{
    int64_t row = tile * TILE_ROWS_MAX;
    for (int64_t u = units.first; u < units.end; u++) {
        const float *x = in->x + (size_t)row * in->x_stride + (size_t)u * UNIT;
        size_t stride = in->x_stride;
        float edge[TILE_ROWS_MAX * UNIT];
        if (row + TILE_ROWS_MAX > in->n_rows || (u + 1) * UNIT > in->cols) {
            for (int r = 0; r < TILE_ROWS_MAX; r++) {
                struct unit_values values = values_at(in, row + r, (int32_t)u);
                _mm512_storeu_ps(edge + r * UNIT, values.low);
                _mm512_storeu_ps(edge + r * UNIT + 16, values.high);
            }
            x = edge;
            stride = UNIT;
        }
        size_t at = ((size_t)tile * (size_t)linear_n_units(in) + (size_t)u) * TILE_ROWS_MAX;
        quantize_unit_of_16(x, stride, in, at);
    }
}

static void quantize_tile(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    if (in->tile_rows == TILE_ROWS_MAX)
        quantize_tile_of_16(in, tile, units);
    else
        quantize_rows(in, tile, units);
}

static void round_tile(const struct linear_input *in, int64_t tile, struct linear_range units)
{
    int32_t n_units = linear_n_units(in);
    size_t height = (size_t)in->tile_rows;
    for (size_t r = 0; r < height; r++) {
        for (int64_t u = units.first; u < units.end; u++) {
            struct unit_values x = values_at(in, tile * in->tile_rows + (int64_t)r, (int32_t)u);
            uint16_t *to =
                (uint16_t *)in->rounded + ((size_t)(tile * n_units + u) * height + r) * UNIT;
            __m512bh both = _mm512_cvtne2ps_pbh(x.high, x.low);
            memcpy(to, &both, sizeof both);
        }
    }
}

void linear_prepare_avx512(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles, struct linear_range units)
{
    for (int64_t tile = tiles.first; tile < tiles.end; tile++) {
        if (mode == MODE_INT8)
            quantize_tile(in, tile, units);
        else
            round_tile(in, tile, units);
    }
}
