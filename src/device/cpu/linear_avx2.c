/* Linears with AVX2: the layout of linear.h, one block as two registers of 8 rows. int8 sums are
 * exact: codes of at most 6 bits times int8 pairs stay inside i16; 8-bit codes are made signed and
 * the sign moves to the activation. Float mode is the default of this level. */
#include "device/cpu/linear.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { HALVES = 2, LANES = 8, UNIT_WORDS = 8, GROUP_ROWS = 32, N_PARTIAL = 2 };

/* 16 rows of f32 or of packed bytes. */
struct f32x16 {
    __m256 half[HALVES];
};

ALWAYS_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

ALWAYS_INLINE struct f32x16 load_f16(const uint8_t *p)
{
    __m256i both = load_256(p);
    return (struct f32x16){{_mm256_cvtph_ps(_mm256_castsi256_si128(both)),
                            _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1))}};
}

/* 16 small integers times a vector. */
ALWAYS_INLINE struct f32x16 scale_bytes(const uint8_t *p, bool is_signed, struct f32x16 by)
{
    struct f32x16 out;
    for (int h = 0; h < HALVES; h++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * h));
        __m256i wide = is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
        out.half[h] = _mm256_mul_ps(by.half[h], _mm256_cvtepi32_ps(wide));
    }
    return out;
}

/* A walk along one block of weights. The packing is a constant parameter of what reads it. */
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
    __m256 factor = _mm256_set1_ps(part->factor);
    return (struct walk){.at = part->data + (size_t)block * part->block_bytes,
                         .super_scale = {{factor, factor}},
                         .level_type = part->level_type,
                         .group_spans = part->group_spans};
}

/* 8 levels. */
ALWAYS_INLINE __m256 load_half_level(enum weight_level_type type, const uint8_t *p)
{
    __m256i bits;
    switch (type) {
    case LEVEL_F32:
        return _mm256_loadu_ps((const float *)(const void *)p);
    case LEVEL_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
    case LEVEL_BF16:
        bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    default: /* E8M0 */
        bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
        bits = _mm256_blendv_epi8(_mm256_slli_epi32(bits, 23), _mm256_set1_epi32(0x400000),
                                  _mm256_cmpeq_epi32(bits, _mm256_setzero_si256()));
        return _mm256_castsi256_ps(bits);
    }
}

/* 16 levels; the walk moves on. */
ALWAYS_INLINE struct f32x16 load_level(struct walk *walk)
{
    struct f32x16 out;
    for (int h = 0; h < HALVES; h++) {
        out.half[h] = load_half_level(walk->level_type, walk->at);
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
        walk->bias[u] = has_unit_bias(packing) ? load_level(walk) : (struct f32x16){0};
    }
    if (n == 1) {
        walk->scale[1] = walk->scale[0];
        walk->bias[1] = walk->bias[0];
    }
}

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

/* Scale and bias of each of the two groups of 16 columns of unit u. */
struct unit_levels {
    struct f32x16 scale[2], bias[2];
};

/* Half of 2^(e - 127), f32 below its normal range for e < 2. */
ALWAYS_INLINE struct f32x16 load_e8m0(const uint8_t *p)
{
    struct f32x16 out;
    for (int h = 0; h < HALVES; h++) {
        __m256i e =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * h)));
        __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        out.half[h] = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
    }
    return out;
}

ALWAYS_INLINE struct f32x16 negative(struct f32x16 v)
{
    for (int h = 0; h < HALVES; h++)
        v.half[h] = _mm256_sub_ps(_mm256_setzero_ps(), v.half[h]);
    return v;
}

/* Bytes of two nibbles: the scale below, the bias above. */
ALWAYS_INLINE void load_nibbles(const struct walk *walk, const uint8_t *p, struct f32x16 *scale,
                                struct f32x16 *bias)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i both = _mm_loadu_si128((const __m128i *)(const void *)p);
    uint8_t split[2][BLOCK_ROWS];
    _mm_storeu_si128((__m128i *)(void *)split[0], _mm_and_si128(both, low));
    _mm_storeu_si128((__m128i *)(void *)split[1], _mm_and_si128(_mm_srli_epi16(both, 4), low));
    *scale = scale_bytes(split[0], false, walk->super_scale);
    *bias = negative(scale_bytes(split[1], false, walk->super_bias));
}

/* 8 E4M3 bytes, each in 32 bits. The same bits in f16 are 2^8 times smaller, but for NaN. */
ALWAYS_INLINE __m256 e4m3_to_f32(__m256i bytes)
{
    __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi32(0x7F));
    __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0x80)), 8);
    __m256i rest =
        _mm256_blendv_epi8(_mm256_slli_epi32(magnitude, 7), _mm256_set1_epi32(0x7E00), is_nan);
    __m256i wide = _mm256_or_si256(sign, rest);
    __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

/* Half of 16 E4M3 values (codes are twice the values) times a vector. */
ALWAYS_INLINE struct f32x16 scale_e4m3(const uint8_t *p, struct f32x16 by)
{
    for (int h = 0; h < HALVES; h++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(p + LANES * h));
        __m256 value = e4m3_to_f32(_mm256_cvtepu8_epi32(bytes));
        by.half[h] = _mm256_mul_ps(_mm256_mul_ps(by.half[h], value), _mm256_set1_ps(0.5f));
    }
    return by;
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
        out.scale[0] = scale_bytes(p, false, walk->super_scale);
        out.bias[0] = negative(scale_bytes(p + 16, false, walk->super_bias));
        break;
    case LEVELS_HALVES:
        out.scale[0] = scale_bytes(p, true, walk->super_scale);
        out.scale[1] = scale_bytes(p + 16, true, walk->super_scale);
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

/* codes |= the field of `mask`'s width at bit `from` of each byte of the plane, moved to `to`. */
ALWAYS_INLINE __m256i add_field(__m256i codes, __m256i plane, int mask, int from, int to)
{
    __m256i moved =
        to >= from ? _mm256_slli_epi16(plane, to - from) : _mm256_srli_epi16(plane, from - to);
    return _mm256_or_si256(codes, _mm256_and_si256(moved, _mm256_set1_epi8((char)(mask << to))));
}

/* Unsigned codes of half h (8 rows) of unit u, 4 columns a register. */
ALWAYS_INLINE void load_codes(enum linear_packing packing, const struct walk *walk, int u, int h,
                              __m256i codes[UNIT_WORDS])
{
    const uint8_t *p = walk->at + level_bytes_of(packing) + u * unit_bytes_of(packing) + 32 * h;
    const int bits = packing_shapes[packing].bits;
    if (bits == 8) {
        for (int i = 0; i < UNIT_WORDS; i++)
            codes[i] = load_256(p + 64 * i);
        return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        __m256i both = bits & 4 ? load_256(p + 64 * i) : _mm256_setzero_si256();
        codes[i] = _mm256_and_si256(both, low);
        codes[i + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
    p += bits & 4 ? 256 : 0;
    for (int j = 0; j < 2 && bits & 2; j++, p += 64) {
        __m256i pairs = load_256(p);
        for (int f = 0; f < 4; f++)
            codes[4 * j + f] = add_field(codes[4 * j + f], pairs, 3, 2 * f, bits & 4);
    }
    if (bits & 1) {
        __m256i singles = load_256(p);
        for (int i = 0; i < UNIT_WORDS; i++)
            codes[i] = add_field(codes[i], singles, 1, i, bits & 6);
    }
    if (!has_table(packing))
        return;
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)table_of(packing)));
    for (int i = 0; i < UNIT_WORDS; i++)
        codes[i] = _mm256_shuffle_epi8(table, codes[i]);
}

/* Codes above 6 bits: they are made signed before they are multiplied. */
ALWAYS_INLINE bool is_wide(enum linear_packing packing)
{
    return offset_of(packing) == 128 || packing_shapes[packing].bits == 8;
}

/* --- int8 ------------------------------------------------------------------------------------- */

/* Exact i32 sums of (code - offset) * q over words [first, first + 4) of 8 rows. Products of two
 * columns are added in i16: 6-bit codes reach 2 * 63 * 127 = 16002, two such sums 32004; signed
 * 8-bit codes 2 * 128 * 127 = 32512. */
ALWAYS_INLINE __m256i dot_half_unit(enum linear_packing packing, const __m256i codes[UNIT_WORDS],
                                    int first, const int8_t *q)
{
    const __m256i ones = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)0x80);
    __m256i sum = _mm256_setzero_si256();
    for (int i = first; i < first + 4; i += 2) {
        __m256i products[2];
        for (int j = 0; j < 2; j++) {
            int32_t word;
            memcpy(&word, q + 4 * (i + j), sizeof word);
            __m256i x = _mm256_set1_epi32(word);
            if (is_wide(packing)) {
                __m256i w = _mm256_xor_si256(codes[i + j], flip);
                products[j] = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            } else {
                products[j] = _mm256_maddubs_epi16(codes[i + j], x);
            }
        }
        if (is_wide(packing))
            sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(products[0], ones),
                                                         _mm256_madd_epi16(products[1], ones)));
        else
            sum = _mm256_add_epi32(
                sum, _mm256_madd_epi16(_mm256_add_epi16(products[0], products[1]), ones));
    }
    return sum;
}

ALWAYS_INLINE __m256 add_unit(enum linear_packing packing, const __m256i codes[UNIT_WORDS],
                              const struct unit_levels *levels, int h, const int8_t *q,
                              const float *scale, const int32_t *sums, size_t height, __m256 acc)
{
    __m256 sx = _mm256_set1_ps(*scale);
    for (int g = 0; g < 2; g++) {
        __m256i dot = dot_half_unit(packing, codes, 4 * g, q);
        const int32_t *negative_sum = sums + (size_t)(1 + g) * height;
        /* Wide codes were multiplied less 128. */
        int offset = offset_of(packing) - (is_wide(packing) ? 128 : 0);
        if (offset)
            dot = _mm256_add_epi32(dot, _mm256_set1_epi32(offset * *negative_sum));
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(levels->scale[g].half[h], sx),
                              acc);
        if (has_half_bias(packing))
            acc = _mm256_fnmadd_ps(levels->bias[g].half[h],
                                   _mm256_set1_ps(*scale * (float)*negative_sum), acc);
    }
    if (has_unit_bias(packing))
        acc = _mm256_fmadd_ps(levels->bias[0].half[h], _mm256_set1_ps(scale[height]), acc);
    return acc;
}

/* At most 4 rows of one tile times one block. */
ALWAYS_INLINE void multiply_int8(enum linear_packing packing, const struct linear_part *part,
                                 const struct linear_input *in, int64_t block, int64_t row, int n,
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
            for (int h = 0; h < HALVES; h++) {
                __m256i codes[UNIT_WORDS];
                load_codes(packing, &walk, u, h, codes);
                for (int i = 0; i < n; i++) {
                    size_t r = place + (size_t)i;
                    acc[i].half[h] = add_unit(packing, codes, &levels, h,
                                              in->codes + (at + r) * UNIT, in->levels + at * 2 + r,
                                              in->sums + at * 3 + r, height, acc[i].half[h]);
                }
            }
        }
        walk.at += 2 * unit_bytes_of(packing) + level_bytes_of(packing);
    }
}

static void int8_rows(const struct linear_part *part, const struct linear_input *in, int64_t block,
                      int64_t row, int n, struct f32x16 *acc)
{
#define CASE(packing)                                                                              \
    case PACKING_##packing:                                                                        \
        multiply_int8(PACKING_##packing, part, in, block, row, n, acc);                            \
        break;
    switch (part->packing) {
        QUANTIZED_PACKINGS(CASE)
    default:
        break;
    }
#undef CASE
}

/* --- f32 activations -------------------------------------------------------------------------- */

/* One span of quantized weights as f32 [64][16]. */
ALWAYS_INLINE void expand_quantized(enum linear_packing packing, const struct walk *walk, float *to)
{
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256i offset = _mm256_set1_epi32(offset_of(packing));
    for (int u = 0; u < 2; u++) {
        struct unit_levels levels = load_levels(packing, walk, u);
        for (int h = 0; h < HALVES; h++) {
            __m256i codes[UNIT_WORDS];
            load_codes(packing, walk, u, h, codes);
            for (int i = 0; i < UNIT_WORDS; i++) {
                __m256 scale = levels.scale[i / 4].half[h], bias = levels.bias[i / 4].half[h];
                float *at = to + (u * UNIT + 4 * i) * BLOCK_ROWS + LANES * h;
                for (int j = 0; j < 4; j++) {
                    __m256i code = _mm256_and_si256(_mm256_srli_epi32(codes[i], 8 * j), byte);
                    __m256 value = packing == PACKING_F8
                                       ? e4m3_to_f32(code)
                                       : _mm256_cvtepi32_ps(_mm256_sub_epi32(code, offset));
                    _mm256_storeu_ps(at + j * BLOCK_ROWS, _mm256_fmadd_ps(value, scale, bias));
                }
            }
        }
    }
}

static void expand_bf16(const uint8_t *from, float *to)
{
    const __m256i upper = _mm256_set1_epi32((int)0xFFFF0000);
    for (int i = 0; i < SPAN / 2; i++) {
        for (int h = 0; h < HALVES; h++) {
            __m256i pair = load_256(from + 64 * i + 32 * h);
            float *at = to + 2 * i * BLOCK_ROWS + LANES * h;
            _mm256_storeu_ps(at, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
            _mm256_storeu_ps(at + BLOCK_ROWS, _mm256_castsi256_ps(_mm256_and_si256(pair, upper)));
        }
    }
}

/* Span s as f32; the walk moves on. */
static void expand_span(enum linear_packing packing, struct walk *walk, int s, float *to)
{
#define EXPAND(which)                                                                              \
    case PACKING_##which:                                                                          \
        walk_enter(PACKING_##which, walk, s);                                                      \
        expand_quantized(PACKING_##which, walk, to);                                               \
        walk->at += 2 * unit_bytes_of(PACKING_##which) + level_bytes_of(PACKING_##which);          \
        break;
    switch (packing) {
        EXPANDED_PACKINGS(EXPAND)
    case PACKING_F32:
        memcpy(to, walk->at, SPAN * BLOCK_ROWS * sizeof *to);
        walk->at += SPAN * BLOCK_ROWS * 4;
        break;
    case PACKING_F16:
        for (int k = 0; k < SPAN; k++) {
            struct f32x16 w = load_f16(walk->at + 32 * k);
            _mm256_storeu_ps(to + k * BLOCK_ROWS, w.half[0]);
            _mm256_storeu_ps(to + k * BLOCK_ROWS + LANES, w.half[1]);
        }
        walk->at += SPAN * BLOCK_ROWS * 2;
        break;
    default:
        expand_bf16(walk->at, to);
        walk->at += SPAN * BLOCK_ROWS * 2;
        break;
    }
#undef EXPAND
}

/* partial[i][p][16] += span * x of n rows (a constant, at most 3); column k goes to p = k mod 2. */
ALWAYS_INLINE void add_span(int n, const float *span, int cols, const float *x, size_t stride,
                            float *partial)
{
    __m256 acc[3][N_PARTIAL][HALVES];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            for (int h = 0; h < HALVES; h++)
                acc[i][p][h] =
                    _mm256_loadu_ps(partial + (i * N_PARTIAL + p) * BLOCK_ROWS + LANES * h);
    for (int k = 0; k < cols; k += N_PARTIAL) {
        for (int p = 0; p < N_PARTIAL && k + p < cols; p++) {
            const float *w = span + (k + p) * BLOCK_ROWS;
            __m256 low = _mm256_loadu_ps(w), high = _mm256_loadu_ps(w + LANES);
            for (int i = 0; i < n; i++) {
                __m256 value = _mm256_broadcast_ss(x + (size_t)i * stride + (size_t)(k + p));
                acc[i][p][0] = _mm256_fmadd_ps(low, value, acc[i][p][0]);
                acc[i][p][1] = _mm256_fmadd_ps(high, value, acc[i][p][1]);
            }
        }
    }
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            for (int h = 0; h < HALVES; h++)
                _mm256_storeu_ps(partial + (i * N_PARTIAL + p) * BLOCK_ROWS + LANES * h,
                                 acc[i][p][h]);
}

/* At most GROUP_ROWS rows: each span of weights is expanded once for all of them. */
static void float_rows(const struct linear_part *part, int64_t block, const float *x, size_t stride,
                       int n, float *partial)
{
    struct walk walk = walk_begin(part, block);
    _Alignas(32) float span[SPAN * BLOCK_ROWS];
    memset(partial, 0, (size_t)n * N_PARTIAL * BLOCK_ROWS * sizeof *partial);
    for (int s = 0; s < part->padded_cols / SPAN; s++) {
        int cols = part->cols - s * SPAN < SPAN ? part->cols - s * SPAN : SPAN;
        const float *at = x + (size_t)s * SPAN;
        expand_span(part->packing, &walk, s, span);
        int i = 0;
        for (; i + 3 <= n; i += 3)
            add_span(3, span, cols, at + (size_t)i * stride, stride,
                     partial + i * N_PARTIAL * BLOCK_ROWS);
        for (; i < n; i++)
            add_span(1, span, cols, at + (size_t)i * stride, stride,
                     partial + i * N_PARTIAL * BLOCK_ROWS);
    }
}

/* --- the table -------------------------------------------------------------------------------- */

static void store_row(const struct linear_part *part, int64_t block, int64_t row,
                      const struct linear_output *output, struct f32x16 y)
{
    float values[BLOCK_ROWS];
    for (int h = 0; h < HALVES; h++) {
        if (part->bias)
            y.half[h] = _mm256_add_ps(y.half[h],
                                      _mm256_loadu_ps(part->bias + block * BLOCK_ROWS + LANES * h));
        _mm256_storeu_ps(values + LANES * h, y.half[h]);
    }
    int64_t left = part->rows - block * BLOCK_ROWS;
    size_t n = left < BLOCK_ROWS ? (size_t)left : BLOCK_ROWS;
    memcpy(linear_output_at(output, row, block * BLOCK_ROWS), values, n * sizeof(float));
}

static void multiply_block_int8(const struct linear_part *part, const struct linear_input *in,
                                int64_t block, struct linear_range rows,
                                const struct linear_output *output)
{
    int64_t height = in->tile_rows;
    for (int64_t row = rows.first; row < rows.end;) {
        int64_t end = (row / height + 1) * height;
        end = end < rows.end ? end : rows.end;
        int n = (int)(end - row < 4 ? end - row : 4);
        struct f32x16 acc[4] = {0};
        int8_rows(part, in, block, row, n, acc);
        for (int i = 0; i < n; i++)
            store_row(part, block, row + i, output, acc[i]);
        row += n;
    }
}

static void multiply_block_float(const struct linear_part *part, const float *x, size_t stride,
                                 int64_t block, struct linear_range rows,
                                 const struct linear_output *output)
{
    float partial[GROUP_ROWS * N_PARTIAL * BLOCK_ROWS];
    for (int64_t row = rows.first; row < rows.end; row += GROUP_ROWS) {
        int n = (int)(rows.end - row < GROUP_ROWS ? rows.end - row : GROUP_ROWS);
        float_rows(part, block, x + (size_t)row * stride, stride, n, partial);
        for (int i = 0; i < n; i++) {
            const float *p = partial + i * N_PARTIAL * BLOCK_ROWS;
            struct f32x16 y;
            for (int h = 0; h < HALVES; h++)
                y.half[h] = _mm256_add_ps(_mm256_loadu_ps(p + LANES * h),
                                          _mm256_loadu_ps(p + BLOCK_ROWS + LANES * h));
            store_row(part, block, row + i, output, y);
        }
    }
}

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    (void)scratch;
    bool is_rounded = part->mode == MODE_BF16;
    const float *x = is_rounded ? in->rounded : in->x;
    size_t stride = is_rounded ? (size_t)in->padded_cols : in->x_stride;
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        if (part->mode == MODE_INT8)
            multiply_block_int8(part, in, block, rows, output);
        else
            multiply_block_float(part, x, stride, block, rows, output);
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

const struct linear_kernels linear_kernels_avx2 = {
    .tile_rows = tile_rows,
    .pass_bytes = LINEAR_PASS_BYTES,
    .prepare = linear_prepare_scalar,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
