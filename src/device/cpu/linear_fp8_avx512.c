/* E4M3 weights times bf16 activations, AVX-512: pairs of values become bf16, exactly, and the
 * products of a unit or a span under one scale are summed before they meet it. Column pair k adds
 * to partial sum k mod 2, so that a row's sums do not depend on the rows beside it. */
#include "device/cpu/linear_fp8.h"

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
                __m512i loaded[2];
                __m512bh pairs[2];
                load_pairs(w + 64 * word, loaded);
                memcpy(pairs, loaded, sizeof pairs);
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
