/* E4M3 weights times bf16 activations, AVX-512: pairs of values become bf16, exactly, and the
 * products of a unit or a span under one scale are summed before they meet it. Column pair k adds
 * to partial sum k mod 2, so that a row's sums do not depend on the rows beside it. */
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
ALWAYS_INLINE void load_pairs(const uint8_t *p, __m512bh pairs[2])
{
    __m512i words = _mm512_loadu_si512(p);
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    __m512i a = e4m3_to_bf16(_mm512_shuffle_epi8(words, low));
    __m512i b = e4m3_to_bf16(_mm512_shuffle_epi8(words, high));
    memcpy(&pairs[0], &a, sizeof a);
    memcpy(&pairs[1], &b, sizeof b);
}

ALWAYS_INLINE __m512bh broadcast_pair(const uint16_t *x)
{
    int32_t word;
    memcpy(&word, x, sizeof word);
    __m512i both = _mm512_set1_epi32(word);
    __m512bh pair;
    memcpy(&pair, &both, sizeof pair);
    return pair;
}

/* n rows (a constant) of one tile; row i, unit u at x + (u * height + i) * 32. */
ALWAYS_INLINE void multiply_rows(int n, const struct linear_part *part, int64_t block,
                                 const uint16_t *x, size_t height, __m512 *out)
{
    struct span_walk walk = walk_begin(part, block);
    for (int i = 0; i < n; i++)
        out[i] = _mm512_setzero_ps();
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(PACKING_F8, &walk, s);
        for (int u = 0; u < 2; u++, x += height * UNIT) {
            const uint8_t *w = walk.at + u * unit_bytes_of(PACKING_F8);
            __m512 sums[4][2];
            for (int i = 0; i < n; i++)
                sums[i][0] = sums[i][1] = _mm512_setzero_ps();
            prefetch_weights(w, unit_bytes_of(PACKING_F8) + 64);
            for (int word = 0; word < UNIT_WORDS; word++) {
                __m512bh pairs[2];
                load_pairs(w + 64 * word, pairs);
                for (int i = 0; i < n; i++)
                    for (int p = 0; p < 2; p++)
                        sums[i][p] = _mm512_dpbf16_ps(
                            sums[i][p], pairs[p], broadcast_pair(x + i * UNIT + 4 * word + 2 * p));
            }
            for (int i = 0; i < n; i++)
                out[i] =
                    _mm512_fmadd_ps(_mm512_add_ps(sums[i][0], sums[i][1]), walk.scale[u], out[i]);
        }
        walk_leave(PACKING_F8, &walk);
    }
}

void linear_avx512_fp8(const struct linear_part *part, const struct linear_input *in, int64_t block,
                       struct linear_range rows, const struct linear_output *output)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)linear_n_units(in);
    for (int64_t row = rows.first; row < rows.end;) {
        size_t tile = (size_t)row / height, place = (size_t)row % height;
        const uint16_t *x =
            (const uint16_t *)in->rounded + (tile * n_units * height + place) * UNIT;
        __m512 y[4];
        int n = rows.end - row >= 4 ? 4 : 1;
        if (n == 4)
            multiply_rows(4, part, block, x, height, y);
        else
            multiply_rows(1, part, block, x, height, y);
        store_rows(part, block, row, n, output, y);
        row += n;
    }
}
