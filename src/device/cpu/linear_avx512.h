/* Pieces that the AVX-512 and AMX kernels share: packed codes and scales into registers (the
 * layouts are in linear.h). Included by *_avx512.c and *_amx.c only. `packing` is a constant at
 * every call, so that each kernel is compiled for one packing. */
#ifndef CSGL_DEVICE_CPU_LINEAR_AVX512_H
#define CSGL_DEVICE_CPU_LINEAR_AVX512_H

#include "device/cpu/linear.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { UNIT_WORDS = 8 }; /* of 4 columns */

/* A walk along one block of weights, span by span. */
struct span_walk {
    const uint8_t *at; /* the current span's codes */
    __m512 super_scale, super_bias;
    /* Grouped packings: the levels of the two units, and spans until they change. */
    enum weight_level_type level_type;
    int32_t group_spans, spans_left;
    __m512 scale[2], bias[2];
};

ALWAYS_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Bytes ahead of the reader, past the end of its block into the next one's. */
enum { PREFETCH_AHEAD = 4096, PREFETCH_FAR = 8192 };

/* Asks for the bytes that follow [at, at + bytes) at that distance. */
ALWAYS_INLINE void prefetch_weights(const uint8_t *at, int bytes)
{
    /* A number, because it may lie past all weights, where a prefetch does nothing. */
    uintptr_t address = (uintptr_t)at + PREFETCH_AHEAD;
    for (int line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)(address + (uintptr_t)line), _MM_HINT_T0);
}

/* Whether so few products follow a line of weights that memory alone bounds n rows. */
ALWAYS_INLINE bool is_bound_by_memory(int n, int bits)
{
    return n <= 2 || (n <= 4 && bits >= 8);
}

/* Whether to ask for weights ahead of n rows. AMD's own streams are the fastest where memory alone
 * bounds, and requests of ours get in their way (docs/performance.md); Intel's are not. */
ALWAYS_INLINE bool wants_prefetch(int n, int bits)
{
    return !is_bound_by_memory(n, bits) || !__builtin_cpu_is("amd");
}

/* Whether each line that is read asks for the one PREFETCH_FAR behind it. Few rows then read as
 * fast as Zen 5's memory, without or with requests in bursts a fifth slower; Zen 4's streams, and
 * Zen 5's of a single row of 8 and 16 bits, are the fastest alone. */
ALWAYS_INLINE bool wants_spread(int n, int bits)
{
    return (n > 1 || bits < 8) && __builtin_cpu_is("amd") && !__builtin_cpu_is("amdfam19h");
}

/* Past all weights a prefetch does nothing, so the place is a number. */
ALWAYS_INLINE void prefetch_line(const uint8_t *at)
{
    _mm_prefetch((const char *)((uintptr_t)at + PREFETCH_FAR), _MM_HINT_T0);
}

/* For n rows (a constant) that meet weights of some bits at once. Under the products of many rows
 * requests from the first-level cache would fill its few miss buffers and hold up the activations:
 * the second level asks, from further away. */
ALWAYS_INLINE void prefetch_for_rows(int n, int bits, const uint8_t *at, int bytes)
{
    if (is_bound_by_memory(n, bits)) {
        prefetch_weights(at, bytes);
        return;
    }
    uintptr_t address = (uintptr_t)at + PREFETCH_FAR;
    for (int line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)(address + (uintptr_t)line), _MM_HINT_T1);
}

ALWAYS_INLINE struct span_walk walk_begin(const struct linear_part *part, int64_t block)
{
    return (struct span_walk){.at = part->data + (size_t)block * part->block_bytes,
                              .super_scale = _mm512_set1_ps(part->factor),
                              .level_type = part->level_type,
                              .group_spans = part->group_spans};
}

/* 16 levels; the walk moves on. */
ALWAYS_INLINE __m512 load_level(struct span_walk *walk)
{
    const uint8_t *p = walk->at;
    __m512i bits;
    switch (walk->level_type) {
    case LEVEL_F32:
        walk->at += 64;
        return _mm512_loadu_ps(p);
    case LEVEL_F16:
        walk->at += 32;
        return load_f16(p);
    case LEVEL_BF16:
        walk->at += 32;
        bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    default: /* E8M0 */
        walk->at += 16;
        bits = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
        bits =
            _mm512_mask_mov_epi32(_mm512_slli_epi32(bits, 23), _mm512_testn_epi32_mask(bits, bits),
                                  _mm512_set1_epi32(0x400000));
        return _mm512_castsi512_ps(bits);
    }
}

/* The levels of a span that begins a group. */
ALWAYS_INLINE void enter_group(enum linear_packing packing, struct span_walk *walk)
{
    if (walk->spans_left-- > 0)
        return;
    int n = walk->group_spans ? 1 : 2;
    walk->spans_left = walk->group_spans ? walk->group_spans - 1 : 0;
    for (int u = 0; u < n; u++) {
        walk->scale[u] = load_level(walk);
        walk->bias[u] = has_unit_bias(packing) ? load_level(walk) : _mm512_setzero_ps();
    }
    if (n == 1) {
        walk->scale[1] = walk->scale[0];
        walk->bias[1] = walk->bias[0];
    }
}

/* Before span `s`: reads what opens every fourth one, or a group. */
ALWAYS_INLINE void walk_enter(enum linear_packing packing, struct span_walk *walk, int s)
{
    if (is_super(packing) && s % SUPER_SPANS == 0) {
        walk->super_scale = load_f16(walk->at);
        walk->super_bias = load_f16(walk->at + 32);
        walk->at += 64;
    }
    if (is_grouped(packing))
        enter_group(packing, walk);
}

ALWAYS_INLINE void walk_leave(enum linear_packing packing, struct span_walk *walk)
{
    walk->at += 2 * unit_bytes_of(packing) + level_bytes_of(packing);
}

/* Bytes by n bits to the left (n may be negative), for masks that drop what crosses bytes. */
ALWAYS_INLINE __m512i shift_left(__m512i v, int n)
{
    return n >= 0 ? _mm512_slli_epi32(v, (unsigned)n) : _mm512_srli_epi32(v, (unsigned)-n);
}

/* codes |= the field of `mask`'s width at bit `from` of each byte of the plane, moved to `to`. */
ALWAYS_INLINE __m512i add_field(__m512i codes, __m512i plane, int mask, int from, int to)
{
    enum { AND_OR = 0xEA }; /* (a & b) | c */
    return _mm512_ternarylogic_epi32(shift_left(plane, to - from),
                                     _mm512_set1_epi8((char)(mask << to)), codes, AND_OR);
}

/* Unsigned codes of word i (4 columns x 16 rows) of unit u of the current span. */
ALWAYS_INLINE __m512i load_word(enum linear_packing packing, const struct span_walk *walk, int u,
                                int i)
{
    const uint8_t *p = walk->at + level_bytes_of(packing) + u * unit_bytes_of(packing);
    const int bits = packing_shapes[packing].bits;
    if (bits == 8)
        return _mm512_loadu_si512(p + 64 * i);
    __m512i codes = _mm512_setzero_si512();
    if (bits & 4) {
        codes = _mm512_loadu_si512(p + 64 * (i % 4));
        __asm__("" : "+v"(codes)); /* or both words of the line read it */
        codes = _mm512_and_si512(i < 4 ? codes : _mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15));
        p += 256;
    }
    if (bits & 2) {
        codes = add_field(codes, _mm512_loadu_si512(p + 64 * (i / 4)), 3, 2 * (i % 4), bits & 4);
        p += 128;
    }
    if (bits & 1)
        codes = add_field(codes, _mm512_loadu_si512(p), 1, i, bits & 6);
    if (!has_table(packing))
        return codes;
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table_of(packing)));
    return _mm512_shuffle_epi8(table, codes);
}

/* All words of the unit. */
ALWAYS_INLINE void load_codes(enum linear_packing packing, const struct span_walk *walk, int u,
                              __m512i codes[UNIT_WORDS])
{
    for (int i = 0; i < UNIT_WORDS; i++)
        codes[i] = load_word(packing, walk, u, i);
}

/* The levels of one unit: `second` is the bias, or, for groups of 16, the second group's scale.
 * `minimum`: what groups of 16 with a bias take away. */
struct unit_levels {
    __m512 scale, second, minimum[2];
};

ALWAYS_INLINE __m512 load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

ALWAYS_INLINE __m512 load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* Half of 2^(e - 127), f32 below its normal range for e < 2. */
ALWAYS_INLINE __m512 load_e8m0(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(
        _mm512_mask_sllv_epi32(bits, is_small, _mm512_set1_epi32(0x200000), e));
}

/* 16 E4M3 bytes, each in 16 bits. The same bits in f16 are 2^8 times smaller, but for NaN. */
ALWAYS_INLINE __m512 e4m3_to_f32(__m256i bytes)
{
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0x7F)), 7);
    __mmask16 is_nan = _mm256_cmpeq_epi16_mask(rest, _mm256_set1_epi16(0x7F << 7));
    rest = _mm256_mask_mov_epi16(rest, is_nan, _mm256_set1_epi16(0x7E00));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(sign, rest)), _mm512_set1_ps(256.0f));
}

ALWAYS_INLINE __m512 load_e4m3(const uint8_t *p)
{
    return e4m3_to_f32(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* 16 bytes of nibbles: scales below, minima above. */
ALWAYS_INLINE void load_nibbles(const uint8_t *p, __m512 *scale, __m512 *minimum)
{
    __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    *scale = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
    *minimum = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
}

ALWAYS_INLINE struct unit_levels load_levels(enum linear_packing packing,
                                             const struct span_walk *walk, int u)
{
    const uint8_t *p = walk->at + u * level_bytes_of(packing) / 2;
    const __m512 zero = _mm512_setzero_ps();
    struct unit_levels levels = {zero, zero, {zero, zero}};
    switch (packing_shapes[packing].levels) {
    case LEVELS_SCALE:
        levels.scale = load_f16(p);
        break;
    case LEVELS_SCALE_BIAS:
        levels.scale = load_f16(p);
        levels.second = load_f16(p + 32);
        break;
    case LEVELS_E8M0:
        levels.scale = load_e8m0(p);
        break;
    case LEVELS_GROUP_BIAS:
    case LEVELS_GROUP:
        levels.scale = walk->scale[u];
        levels.second = walk->bias[u];
        break;
    case LEVELS_E4M3: /* codes are twice the values */
        levels.scale =
            _mm512_mul_ps(_mm512_mul_ps(walk->super_scale, load_e4m3(p)), _mm512_set1_ps(0.5f));
        levels.second = _mm512_mul_ps(_mm512_mul_ps(walk->super_scale, load_e4m3(p + 16)),
                                      _mm512_set1_ps(0.5f));
        break;
    case LEVELS_SUPER:
        levels.scale = _mm512_mul_ps(walk->super_scale, load_u8(p));
        levels.second = _mm512_sub_ps(zero, _mm512_mul_ps(walk->super_bias, load_u8(p + 16)));
        break;
    case LEVELS_HALVES:
        levels.scale = _mm512_mul_ps(walk->super_scale, load_i8(p));
        levels.second = _mm512_mul_ps(walk->super_scale, load_i8(p + 16));
        break;
    case LEVELS_HALVES_BIAS:
        load_nibbles(p, &levels.scale, &levels.minimum[0]);
        load_nibbles(p + 16, &levels.second, &levels.minimum[1]);
        levels.scale = _mm512_mul_ps(walk->super_scale, levels.scale);
        levels.second = _mm512_mul_ps(walk->super_scale, levels.second);
        for (int h = 0; h < 2; h++)
            levels.minimum[h] = _mm512_mul_ps(walk->super_bias, levels.minimum[h]);
        break;
    }
    return levels;
}

/* Results of n rows, 16 outputs each; lanes past the part's last row are dropped. Streamed ones
 * need finish_stores before another thread may read them. */
ALWAYS_INLINE void store_rows(const struct linear_part *part, int64_t block, int64_t row, int n,
                              const struct linear_output *output, const __m512 *y)
{
    int64_t left = part->rows - block * BLOCK_ROWS;
    __mmask16 mask = left >= BLOCK_ROWS ? (__mmask16)0xFFFF : (__mmask16)((1u << left) - 1);
    float *to = linear_output_at(output, row, block * BLOCK_ROWS);
    __m512 bias =
        part->bias ? _mm512_loadu_ps(part->bias + block * BLOCK_ROWS) : _mm512_setzero_ps();
    if (output->is_streamed && mask == 0xFFFF && ((uintptr_t)to | 4 * output->stride) % 64 == 0) {
        for (int i = 0; i < n; i++, to += output->stride)
            _mm512_stream_ps(to, part->bias ? _mm512_add_ps(y[i], bias) : y[i]);
        return;
    }
    for (int i = 0; i < n; i++, to += output->stride)
        _mm512_mask_storeu_ps(to, mask, part->bias ? _mm512_add_ps(y[i], bias) : y[i]);
}

ALWAYS_INLINE void finish_stores(const struct linear_output *output)
{
    if (output->is_streamed)
        _mm_sfence();
}

ALWAYS_INLINE int n_spans_of(const struct linear_part *part)
{
    return part->padded_cols / SPAN;
}

/* linear_avx512.c: int8 activations, rows of one tile from its first on. `is_first`: no rows before
 * these have met the blocks. */
void linear_avx512_int8(const struct linear_part *part, const struct linear_input *in,
                        struct linear_range blocks, struct linear_range tile, bool is_first,
                        const struct linear_output *output);
/* linear_quantize_avx512.c */
void linear_prepare_avx512(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles, struct linear_range units);
/* linear_float_avx512.c: f32 and bf16 activations. */
void linear_avx512_float(const struct linear_part *part, const struct linear_input *in,
                         int64_t block, struct linear_range rows,
                         const struct linear_output *output);
/* linear_fp8_avx512.c: PACKING_F8 with bf16 activations. */
void linear_avx512_fp8(const struct linear_part *part, const struct linear_input *in, int64_t block,
                       struct linear_range rows, const struct linear_output *output);
void linear_avx512_bf16(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows, bool is_first,
                        const struct linear_output *output);

#endif
