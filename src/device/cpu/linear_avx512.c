/* int8 linears with AVX-512 VNNI. One row of the result is always summed in the same order,
 * whatever rows are computed with it: unit by unit, the exact integer sum of the unit times its
 * scales, then its bias; where a group covers whole spans, span by span (add_span). linear_amx.c
 * keeps to the same order. */
#include "device/cpu/linear_avx512.h"

enum { MAX_ROWS = 8 }; /* of a kernel */

/* Activations of consecutive rows of one tile. */
struct rows_view {
    const int8_t *codes; /* row i, unit u: codes + u * unit_codes + i * 32 */
    const float *levels; /* scale of row i, unit u: levels[u * 2H + i]; scale * sum: + H */
    const int32_t *sums; /* levels' order, three a row */
    size_t height;
    bool is_first; /* of the rows that the block meets in this call */
};

ALWAYS_INLINE __m512i broadcast_word(const int8_t *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
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

/* sums[i] += the products of n_words words of codes, from the first-th of unit u on, with row i's
 * activations. Word by word over all rows, so that the sums, each a chain of dependent products,
 * run side by side. No later weights are read before these: a compiler that moves loads of the next
 * unit up takes lines out of turn, and a row of 8 bits runs at half of memory's speed. */
ALWAYS_INLINE void dot_words(enum linear_packing packing, int n, const struct span_walk *walk,
                             int u, int first, int n_words, const int8_t *q, __m512i sums[MAX_ROWS])
{
#pragma GCC unroll 8
    for (int word = first; word < first + n_words; word++) {
        __m512i codes = load_word(packing, walk, u, word);
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            sums[i] = _mm512_dpbusd_epi32(sums[i], codes, broadcast_word(q + i * UNIT + 4 * word));
    }
    __asm__ volatile("" ::: "memory");
}

/* acc[i] += the group of columns whose codes these are, times row i. */
ALWAYS_INLINE void add_group(enum linear_packing packing, int n, const struct span_walk *walk,
                             int u, int first, int n_words, __m512 scale, const int8_t *q,
                             const float *scales, const int32_t *negative_sums,
                             __m512 acc[MAX_ROWS])
{
    __m512i sums[MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        sums[i] = start_sum(packing, negative_sums + i);
    dot_words(packing, n, walk, u, first, n_words, q, sums);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(scales[i])), acc[i]);
}

/* Unit u of n rows; levels and sums lie `height` apart. */
ALWAYS_INLINE void add_unit(enum linear_packing packing, int n, const struct span_walk *walk, int u,
                            struct unit_levels levels, const int8_t *q, const float *scales,
                            const int32_t *sums, size_t height, __m512 acc[MAX_ROWS])
{
    if (!has_halves(packing)) {
        add_group(packing, n, walk, u, 0, UNIT_WORDS, levels.scale, q, scales, sums, acc);
        if (!has_unit_bias(packing))
            return;
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            acc[i] =
                _mm512_fmadd_ps(levels.second, _mm512_set1_ps(scales[height + (size_t)i]), acc[i]);
        return;
    }
    add_group(packing, n, walk, u, 0, 4, levels.scale, q, scales, sums + height, acc);
    add_group(packing, n, walk, u, 4, 4, levels.second, q, scales, sums + 2 * height, acc);
    for (int h = 0; h < 2 && has_half_bias(packing); h++) {
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            float negative_sum = scales[i] * (float)sums[(size_t)(1 + h) * height + (size_t)i];
            acc[i] = _mm512_fmadd_ps(levels.minimum[h], _mm512_set1_ps(negative_sum), acc[i]);
        }
    }
}

/* A span under one scale and one bias (and no offset): the units' sums meet each other before they
 * meet the weights' scale, three multiplications a row in place of four. */
ALWAYS_INLINE void add_span(enum linear_packing packing, int n, const struct span_walk *walk,
                            const int8_t *q, const float *levels, size_t height,
                            __m512 acc[MAX_ROWS])
{
    __m512i sums[2][MAX_ROWS];
    __m512 both[MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        sums[0][i] = sums[1][i] = _mm512_setzero_si512();
    dot_words(packing, n, walk, 0, 0, UNIT_WORDS, q, sums[0]);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        both[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[0][i]), _mm512_set1_ps(levels[i]));
    dot_words(packing, n, walk, 1, 0, UNIT_WORDS, q + height * UNIT, sums[1]);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const float *at = levels + i;
        both[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1][i]), _mm512_set1_ps(at[2 * height]),
                                  both[i]);
        __m512 codes = _mm512_add_ps(_mm512_set1_ps(at[height]), _mm512_set1_ps(at[3 * height]));
        acc[i] = _mm512_fmadd_ps(walk->scale[0], both[i], acc[i]);
        acc[i] = _mm512_fmadd_ps(walk->bias[0], codes, acc[i]);
    }
}

/* n rows (a constant) times one block; each weight is read and unpacked once. The first rows of a
 * block ask for the memory that the first rows of the next ones will read. */
ALWAYS_INLINE void multiply_rows(enum linear_packing packing, bool has_spans, int n,
                                 const struct linear_part *part, int64_t block,
                                 const struct rows_view *rows, __m512 *out)
{
    struct span_walk walk = walk_begin(part, block);
    if (is_grouped(packing) && has_spans != (walk.group_spans > 0))
        __builtin_unreachable();
    const size_t height = rows->height;
    const int8_t *q = rows->codes;
    const float *levels = rows->levels;
    const int32_t *sums = rows->sums;
    /* What opens groups and super spans lies between the codes: a line more a span is asked for. */
    const int bits = packing_shapes[packing].bits;
    const bool prefetches = rows->is_first && wants_prefetch(n, bits);
    const int span_step = 2 * unit_bytes_of(packing) + level_bytes_of(packing) +
                          (is_grouped(packing) || is_super(packing) ? 64 : 0);
    __m512 acc[MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = _mm512_setzero_ps();
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(packing, &walk, s);
        if (prefetches)
            prefetch_for_rows(n, bits, walk.at, span_step);
        if (has_spans) {
            add_span(packing, n, &walk, q, levels, height, acc);
        } else {
            for (size_t u = 0; u < 2; u++) {
                struct unit_levels unit = load_levels(packing, &walk, (int)u);
                add_unit(packing, n, &walk, (int)u, unit, q + u * height * UNIT,
                         levels + u * height * 2, sums + u * height * 3, height, acc);
            }
        }
        q += 2 * height * UNIT;
        levels += 2 * height * 2;
        sums += 2 * height * 3;
        walk_leave(packing, &walk);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        out[i] = acc[i];
}

typedef void (*rows_kernel)(const struct linear_part *part, int64_t block,
                            const struct rows_view *rows, __m512 *acc);

#define KERNEL(name, packing, has_spans, n)                                                        \
    static void multiply_##name##_##n(const struct linear_part *part, int64_t block,               \
                                      const struct rows_view *rows, __m512 *out)                   \
    {                                                                                              \
        multiply_rows(packing, has_spans, n, part, block, rows, out);                              \
    }
#define KERNELS(name, packing, has_spans)                                                          \
    KERNEL(name, packing, has_spans, 1)                                                            \
    KERNEL(name, packing, has_spans, 2)                                                            \
    KERNEL(name, packing, has_spans, 3)                                                            \
    KERNEL(name, packing, has_spans, 4)                                                            \
    KERNEL(name, packing, has_spans, 6)                                                            \
    KERNEL(name, packing, has_spans, 8)
#define UNIT_KERNELS(packing) KERNELS(packing##_units, PACKING_##packing, false)
#define SPAN_KERNELS(packing) KERNELS(packing##_spans, PACKING_##packing, true)
QUANTIZED_PACKINGS(UNIT_KERNELS)
GROUPED_PACKINGS(SPAN_KERNELS)

#define KERNEL_ROW(name)                                                                           \
    {                                                                                              \
        [1] = multiply_##name##_1, [2] = multiply_##name##_2, [3] = multiply_##name##_3,           \
        [4] = multiply_##name##_4, [6] = multiply_##name##_6, [8] = multiply_##name##_8            \
    }
#define UNIT_ROW(packing) [PACKING_##packing] = KERNEL_ROW(packing##_units),
#define SPAN_ROW(packing) [PACKING_##packing] = KERNEL_ROW(packing##_spans),
/* Index 1: groups of whole spans. Apart, because a loop with both paths reads levels as scalars and
 * spreads them with shuffles, which take the multipliers' places (docs/performance.md). */
static const rows_kernel kernels[2][N_PACKINGS][MAX_ROWS + 1] = {{QUANTIZED_PACKINGS(UNIT_ROW)},
                                                                 {GROUPED_PACKINGS(SPAN_ROW)}};

/* The rows of the kernel to use next. */
static int kernel_rows(int64_t left)
{
    static const int8_t most[MAX_ROWS + 1] = {0, 1, 2, 3, 4, 3, 6, 4, 8};
    return most[left < MAX_ROWS ? left : MAX_ROWS];
}

void linear_avx512_int8(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows, bool is_first,
                        const struct linear_output *output)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)linear_n_units(in);
    bool has_spans = is_grouped(part->packing) && part->group_spans > 0;
    for (int64_t row = rows.first; row < rows.end;) {
        size_t tile = (size_t)row / height, place = (size_t)row % height;
        size_t at = tile * n_units * height;
        struct rows_view view = {in->codes + (at + place) * UNIT, in->levels + at * 2 + place,
                                 in->sums + at * 3 + place, height, is_first && row == rows.first};
        int n = kernel_rows(rows.end - row);
        __m512 y[MAX_ROWS];
        kernels[has_spans][part->packing][n](part, block, &view, y);
        store_rows(part, block, row, n, output, y);
        row += n;
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

/* Blocks that some rows meet before the next rows do, so that results of one row come in longer
 * pieces; their weights stay in the second-level cache. */
enum { GROUP_BLOCKS = 4, GROUP_BYTES = 128 << 10 };

static int64_t group_blocks(const struct linear_part *part)
{
    size_t fits = GROUP_BYTES / part->block_bytes;
    return fits < 1 ? 1 : fits > GROUP_BLOCKS ? GROUP_BLOCKS : (int64_t)fits;
}

static void multiply_groups(const struct linear_part *part, const struct linear_input *in,
                            struct linear_range blocks, struct linear_range rows,
                            const struct linear_output *output)
{
    int64_t step = group_blocks(part);
    for (int64_t first = blocks.first; first < blocks.end; first += step) {
        int64_t end = first + step < blocks.end ? first + step : blocks.end;
        for (int64_t row = rows.first; row < rows.end; row += in->tile_rows) {
            int64_t next = row + in->tile_rows;
            struct linear_range tile = {row, next < rows.end ? next : rows.end};
            for (int64_t block = first; block < end; block++) {
                if (part->mode == MODE_INT8)
                    linear_avx512_int8(part, in, block, tile, row == rows.first, output);
                else
                    linear_avx512_bf16(part, in, block, tile, row == rows.first, output);
            }
        }
    }
}

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    (void)scratch;
    bool is_fp8 = part->mode == MODE_BF16 && part->packing == PACKING_F8;
    if (part->mode != MODE_FLOAT && !is_fp8) {
        multiply_groups(part, in, blocks, rows, output);
    } else {
        for (int64_t block = blocks.first; block < blocks.end; block++) {
            if (is_fp8)
                linear_avx512_fp8(part, in, block, rows, output);
            else
                linear_avx512_float(part, in, block, rows, output);
        }
    }
    finish_stores(output);
}

const struct linear_kernels linear_kernels_avx512 = {
    .tile_rows = tile_rows,
    .pass_bytes = 256 << 10, /* of 1 MiB on Zen 4 */
    .prepare = linear_prepare_avx512,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
