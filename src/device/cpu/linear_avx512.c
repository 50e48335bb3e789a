/* int8 linears with AVX-512 VNNI. One row of the result is always summed in the same order,
 * whatever rows are computed with it: unit by unit, the exact integer sum of the unit times its
 * scales, then its bias. linear_amx.c keeps to the same order. */
#include "device/cpu/linear_avx512.h"

/* Activations of consecutive rows of one tile. */
struct rows_view {
    const int8_t *codes; /* row i, unit u: codes + u * unit_codes + i * 32 */
    const float *levels; /* scale of row i, unit u: levels[u * 2H + i]; scale * sum: + H */
    const int32_t *sums; /* levels' order, three a row */
    size_t height;
};

ALWAYS_INLINE __m512i broadcast_word(const int8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

/* acc + the products of n words of codes with one row's activations; `first` is the word to begin
 * with. */
ALWAYS_INLINE __m512i dot_words(const __m512i *codes, const int8_t *q, int first, int n,
                                __m512i acc)
{
    for (int i = first; i < first + n; i++)
        acc = _mm512_dpbusd_epi32(acc, codes[i], broadcast_word(q + 4 * i));
    return acc;
}

/* offset * -sum(q), where the integer sum begins. Offsets are powers of two. */
ALWAYS_INLINE __m512i start_sum(enum linear_packing packing, const int32_t *negative_sum)
{
    int offset = offset_of(packing);
    if (offset == 0)
        return _mm512_setzero_si512();
    return _mm512_slli_epi32(_mm512_set1_epi32(*negative_sum),
                             (unsigned)__builtin_ctz((unsigned)offset));
}

ALWAYS_INLINE __m512 add_unit(enum linear_packing packing, const __m512i codes[UNIT_WORDS],
                              struct unit_levels levels, const int8_t *q, const float *scale,
                              const int32_t *sums, size_t height, __m512 acc)
{
    __m512 sx = _mm512_set1_ps(*scale);
    if (has_halves(packing)) {
        __m512i a = dot_words(codes, q, 0, 4, start_sum(packing, sums + height));
        __m512i b = dot_words(codes, q, 4, 4, start_sum(packing, sums + 2 * height));
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_mul_ps(levels.scale, sx), acc);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_mul_ps(levels.second, sx), acc);
        for (int h = 0; h < 2 && has_half_bias(packing); h++) {
            __m512 negative_sum = _mm512_set1_ps(*scale * (float)sums[(size_t)(1 + h) * height]);
            acc = _mm512_fmadd_ps(levels.minimum[h], negative_sum, acc);
        }
        return acc;
    }
    __m512i dot = dot_words(codes, q, 0, UNIT_WORDS, start_sum(packing, sums));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(levels.scale, sx), acc);
    if (has_unit_bias(packing))
        acc = _mm512_fmadd_ps(levels.second, _mm512_set1_ps(scale[height]), acc);
    return acc;
}

/* n rows (a constant) times one block; each weight is read and unpacked once. */
ALWAYS_INLINE void multiply_rows(enum linear_packing packing, int n, const struct linear_part *part,
                                 int64_t block, const struct rows_view *rows, __m512 *acc)
{
    struct span_walk walk = walk_begin(part, block);
    size_t height = rows->height;
    const int8_t *q = rows->codes;
    const float *levels = rows->levels;
    const int32_t *sums = rows->sums;
    /* What opens groups lies between the codes: a line more a span is asked for. */
    const int unit_step =
        unit_bytes_of(packing) + (is_grouped(packing) ? 32 : level_bytes_of(packing) / 2);
    for (int i = 0; i < n; i++)
        acc[i] = _mm512_setzero_ps();
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(packing, &walk, s);
        for (int u = 0; u < 2; u++) {
            __m512i codes[UNIT_WORDS];
            load_codes(packing, &walk, u, codes);
            if (n <= 4) /* bound by memory */
                prefetch_weights(walk.at + u * unit_step, unit_step);
            struct unit_levels unit = load_levels(packing, &walk, u);
            for (int i = 0; i < n; i++)
                acc[i] = add_unit(packing, codes, unit, q + i * UNIT, levels + i, sums + i, height,
                                  acc[i]);
            q += height * UNIT;
            levels += height * 2;
            sums += height * 3;
        }
        walk_leave(packing, &walk);
    }
}

typedef void (*rows_kernel)(const struct linear_part *part, int64_t block,
                            const struct rows_view *rows, __m512 *acc);

#define KERNEL(packing, n)                                                                         \
    static void multiply_##packing##_##n(const struct linear_part *part, int64_t block,            \
                                         const struct rows_view *rows, __m512 *acc)                \
    {                                                                                              \
        __m512 sums[n];                                                                            \
        multiply_rows(PACKING_##packing, n, part, block, rows, sums);                              \
        for (int i = 0; i < n; i++)                                                                \
            acc[i] = sums[i];                                                                      \
    }
#define KERNELS(packing) KERNEL(packing, 1) KERNEL(packing, 2) KERNEL(packing, 4) KERNEL(packing, 8)
QUANTIZED_PACKINGS(KERNELS)

#define KERNEL_ROW(packing)                                                                        \
    [PACKING_##packing] = {multiply_##packing##_1, multiply_##packing##_2, multiply_##packing##_4, \
                           multiply_##packing##_8},
static const rows_kernel kernels[N_PACKINGS][4] = {QUANTIZED_PACKINGS(KERNEL_ROW)};

void linear_avx512_int8(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows, const struct linear_output *output)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)linear_n_units(in);
    for (int64_t row = rows.first; row < rows.end;) {
        int64_t left = rows.end - row;
        int size = left >= 8 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0;
        size_t tile = (size_t)row / height, place = (size_t)row % height;
        size_t at = tile * n_units * height;
        struct rows_view view = {in->codes + (at + place) * UNIT, in->levels + at * 2 + place,
                                 in->sums + at * 3 + place, height};
        __m512 acc[8];
        kernels[part->packing][size](part, block, &view, acc);
        store_rows(part, block, row, 1 << size, output, acc);
        row += 1 << size;
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

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    (void)scratch;
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        if (part->mode == MODE_INT8)
            linear_avx512_int8(part, in, block, rows, output);
        else if (part->mode == MODE_BF16 && part->packing == PACKING_F8)
            linear_avx512_fp8(part, in, block, rows, output);
        else if (part->mode == MODE_BF16)
            linear_avx512_bf16(part, in, block, rows, output);
        else
            linear_avx512_float(part, in, block, rows, output);
    }
}

const struct linear_kernels linear_kernels_avx512 = {
    .tile_rows = tile_rows,
    .prepare = linear_prepare_avx512,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
