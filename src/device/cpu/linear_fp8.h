/* E4M3 codes into pairs of bf16, for the AVX-512 and AMX kernels of PACKING_F8. */
#ifndef CSGL_DEVICE_CPU_LINEAR_FP8_H
#define CSGL_DEVICE_CPU_LINEAR_FP8_H

#include "device/cpu/linear_avx512.h"

/* 32 E4M3 values in the upper bytes of 16 bits as bf16: a longer exponent field with another bias.
 * Values below the normal numbers of E4M3 are looked up: they are m * 2^-9. */
ALWAYS_INLINE __m512i e4m3_to_bf16(__m512i upper)
{
    const __m512i below =
        _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         0x3C60, 0x3C40, 0x3C20, 0x3C00, 0x3BC0, 0x3B80, 0x3B00, 0);
    __m512i sign = _mm512_and_si512(upper, _mm512_set1_epi16((short)0x8000));
    __m512i rest = _mm512_and_si512(upper, _mm512_set1_epi16(0x7F00));
    __m512i moved = _mm512_srli_epi16(rest, 4);
    __m512i normal = _mm512_add_epi16(moved, _mm512_set1_epi16(120 << 7));
    __mmask32 is_small = _mm512_cmplt_epi16_mask(rest, _mm512_set1_epi16(0x0800));
    __mmask32 is_nan = _mm512_cmpeq_epi16_mask(rest, _mm512_set1_epi16(0x7F00));
    normal = _mm512_mask_permutexvar_epi16(normal, is_small, _mm512_srli_epi16(rest, 8), below);
    normal = _mm512_mask_mov_epi16(normal, is_nan, _mm512_set1_epi16(0x7FC0));
    return _mm512_or_si512(normal, sign);
}

/* Word i of 4 columns as two pairs: columns 0, 1 and columns 2, 3 of each row. */
ALWAYS_INLINE void load_pairs(const uint8_t *p, __m512i pairs[2])
{
    __m512i words = _mm512_loadu_si512(p);
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    pairs[0] = e4m3_to_bf16(_mm512_shuffle_epi8(words, low));
    pairs[1] = e4m3_to_bf16(_mm512_shuffle_epi8(words, high));
}

#endif
