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
};

ALWAYS_INLINE int unit_bytes_of(enum linear_packing packing)
{
    return packing == PACKING_Q8 ? 512 : packing == PACKING_Q6_SUPER ? 384 : 256;
}

ALWAYS_INLINE int level_bytes_of(enum linear_packing packing)
{
    return packing == PACKING_Q4_BIAS ? 128 : 64;
}

/* What is taken from a code: 0 where a bias is stored instead. */
ALWAYS_INLINE int offset_of(enum linear_packing packing)
{
    return packing == PACKING_Q4         ? 8
           : packing == PACKING_Q8       ? 128
           : packing == PACKING_Q6_SUPER ? 32
                                         : 0;
}

ALWAYS_INLINE bool is_super(enum linear_packing packing)
{
    return packing == PACKING_Q4_SUPER || packing == PACKING_Q6_SUPER;
}

ALWAYS_INLINE bool has_bias_levels(enum linear_packing packing)
{
    return packing == PACKING_Q4_BIAS || packing == PACKING_Q4_SUPER;
}

ALWAYS_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Bytes ahead of the reader, past the end of its block into the next one's. */
enum { PREFETCH_AHEAD = 4096 };

/* Asks for the bytes that follow [at, at + bytes) at that distance. */
ALWAYS_INLINE void prefetch_weights(const uint8_t *at, int bytes)
{
    /* A number, because it may lie past all weights, where a prefetch does nothing. */
    uintptr_t address = (uintptr_t)at + PREFETCH_AHEAD;
    for (int line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)(address + (uintptr_t)line), _MM_HINT_T0);
}

/* Before span `s`: reads what opens every fourth one. */
ALWAYS_INLINE void walk_enter(enum linear_packing packing, struct span_walk *walk, int s)
{
    if (is_super(packing) && s % SUPER_SPANS == 0) {
        walk->super_scale = load_f16(walk->at);
        walk->super_bias = load_f16(walk->at + 32);
        walk->at += 64;
    }
}

ALWAYS_INLINE void walk_leave(enum linear_packing packing, struct span_walk *walk)
{
    walk->at += 2 * unit_bytes_of(packing) + level_bytes_of(packing);
}

/* Unsigned codes of unit u of the current span: 8 registers of 4 columns x 16 rows. */
ALWAYS_INLINE void load_codes(enum linear_packing packing, const struct span_walk *walk, int u,
                              __m512i codes[UNIT_WORDS])
{
    const uint8_t *p = walk->at + u * unit_bytes_of(packing);
    if (packing == PACKING_Q8) {
        for (int i = 0; i < UNIT_WORDS; i++)
            codes[i] = _mm512_loadu_si512(p + 64 * i);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        __m512i both = _mm512_loadu_si512(p + 64 * i);
        codes[i] = _mm512_and_si512(both, low);
        codes[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if (packing != PACKING_Q6_SUPER)
        return;
    const __m512i pair = _mm512_set1_epi8(0x30);
    enum { AND_OR = 0xEA }; /* (a & b) | c */
    for (int j = 0; j < 2; j++) {
        __m512i high = _mm512_loadu_si512(p + 256 + 64 * j);
        __m512i *c = codes + 4 * j;
        c[0] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 4), pair, c[0], AND_OR);
        c[1] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 2), pair, c[1], AND_OR);
        c[2] = _mm512_ternarylogic_epi32(high, pair, c[2], AND_OR);
        c[3] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(high, 2), pair, c[3], AND_OR);
    }
}

/* The levels of one unit: `second` is the bias, or, for groups of 16, the second group's scale. */
struct unit_levels {
    __m512 scale, second;
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

ALWAYS_INLINE struct unit_levels load_levels(enum linear_packing packing,
                                             const struct span_walk *walk, int u)
{
    const uint8_t *p = walk->at + 2 * unit_bytes_of(packing) + u * level_bytes_of(packing) / 2;
    struct unit_levels levels = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    switch (packing) {
    case PACKING_Q4_BIAS:
        levels.scale = load_f16(p);
        levels.second = load_f16(p + 32);
        break;
    case PACKING_Q4_SUPER:
        levels.scale = _mm512_mul_ps(walk->super_scale, load_u8(p));
        levels.second =
            _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(walk->super_bias, load_u8(p + 16)));
        break;
    case PACKING_Q6_SUPER:
        levels.scale = _mm512_mul_ps(walk->super_scale, load_i8(p));
        levels.second = _mm512_mul_ps(walk->super_scale, load_i8(p + 16));
        break;
    default:
        levels.scale = load_f16(p);
        break;
    }
    return levels;
}

/* Results of n rows, 16 outputs each; lanes past the part's last row are dropped. */
ALWAYS_INLINE void store_rows(const struct linear_part *part, int64_t block, int64_t row, int n,
                              const struct linear_output *output, const __m512 *y)
{
    int64_t left = part->rows - block * BLOCK_ROWS;
    __mmask16 mask = left >= BLOCK_ROWS ? (__mmask16)0xFFFF : (__mmask16)((1u << left) - 1);
    float *to = output->out + (size_t)row * output->stride + (size_t)block * BLOCK_ROWS;
    __m512 bias =
        part->bias ? _mm512_loadu_ps(part->bias + block * BLOCK_ROWS) : _mm512_setzero_ps();
    for (int i = 0; i < n; i++, to += output->stride)
        _mm512_mask_storeu_ps(to, mask, part->bias ? _mm512_add_ps(y[i], bias) : y[i]);
}

ALWAYS_INLINE int n_spans_of(const struct linear_part *part)
{
    return part->padded_cols / SPAN;
}

/* linear_avx512.c: rows [rows.first, rows.end) of one tile at most, int8 activations. */
void linear_avx512_int8(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows,
                        const struct linear_output *output);
/* linear_quantize_avx512.c */
void linear_prepare_avx512(const struct linear_input *in, enum linear_mode mode,
                           struct linear_range tiles);
/* linear_float_avx512.c: f32 and bf16 activations. */
void linear_avx512_float(const struct linear_part *part, const struct linear_input *in,
                         int64_t block, struct linear_range rows,
                         const struct linear_output *output);
void linear_avx512_bf16(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows,
                        const struct linear_output *output);

#endif
