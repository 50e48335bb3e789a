/* int8 linears with AVX-512 VNNI. One row of the result is always summed in the same order,
 * whatever rows are computed with it: unit by unit, the exact integer sum of the unit times its
 * scales, then its bias; where a group covers whole spans, span by span (add_span). linear_amx.c
 * keeps to the same order. */
#include "device/cpu/linear_avx512.h"

#include "base/size.h"

enum { MAX_ROWS = 8, PAIR_ROWS = 5, MAX_BLOCKS = 2 }; /* of a kernel */

/* The blocks that a kernel multiplies at once, and what it asks of memory meanwhile. Two variables,
 * not an array, which a compiler would keep in memory. */
struct walks {
    struct span_walk *first, *second; /* second is NULL for one block */
    bool is_spread;                   /* one block: each line asks for the one behind it */
    uintptr_t *ahead;                 /* two blocks: what to ask for next, */
    size_t ahead_step;                /* so many bytes a unit */
};

/* Activations of consecutive rows of one tile. */
struct rows_view {
    const int8_t *codes; /* row i, unit u: codes + u * unit_codes + i * 32 */
    const float *levels; /* scale of row i, unit u: levels[u * 2H + i]; scale * sum: + H */
    const int32_t *sums; /* levels' order, three a row */
    size_t height;
    bool is_first; /* of the rows that the block meets in this call */
    uintptr_t ahead;
    size_t ahead_step;
};

/* Moves on to the rows that follow the first n. */
ALWAYS_INLINE void rows_advance(struct rows_view *rows, int n)
{
    rows->codes += n * UNIT;
    rows->levels += n;
    rows->sums += n;
    rows->is_first = false;
}

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

/* Asks for the next bytes, half a span's at a time: requests for a whole span at once fill the miss
 * buffers, and the products wait. */
ALWAYS_INLINE void ask_ahead(struct walks walks)
{
    for (size_t i = 0; i < walks.ahead_step; i += 64)
        _mm_prefetch((const char *)(*walks.ahead + i), _MM_HINT_T1);
    *walks.ahead += walks.ahead_step;
}

/* Of a span; what opens groups and super spans lies between the codes and counts as a line of each.
 */
ALWAYS_INLINE int span_bytes_of(enum linear_packing packing)
{
    return 2 * unit_bytes_of(packing) + level_bytes_of(packing) +
           (is_grouped(packing) || is_super(packing) ? 64 : 0);
}

/* Asks for what lies behind the lines of word i of unit u, so that all words of a span ask for all
 * of one. */
ALWAYS_INLINE void ask_behind(enum linear_packing packing, struct walks walks, int u, int i)
{
    const int n_lines = span_bytes_of(packing) / 64, place = u * UNIT_WORDS + i;
    const int first = place * n_lines / (2 * UNIT_WORDS);
    const int end = (place + 1) * n_lines / (2 * UNIT_WORDS);
    if (walks.is_spread)
        for (int line = first; line < end; line++)
            prefetch_line(walks.first->at + 64 * line);
}

/* The i-th word to multiply of a unit or half of one: words that share a line of nibbles follow
 * each other, so that it is read once. */
ALWAYS_INLINE int word_at(enum linear_packing packing, int first, int n_words, int i)
{
    bool is_shared = packing_shapes[packing].bits != 8 && n_words == UNIT_WORDS;
    return is_shared ? i / 2 + i % 2 * (UNIT_WORDS / 2) : first + i;
}

/* sums[b][i] += the products of n_words words of block b's codes, from the first-th of unit u on,
 * with row i's activations. Word by word over all rows and blocks, so that the sums, each a chain
 * of dependent products, run side by side. No later weights are read before these: a compiler that
 * moves loads of the next unit up takes lines out of turn, and a row of 8 bits runs at half of
 * memory's speed. */
ALWAYS_INLINE void dot_words(enum linear_packing packing, int n, struct walks walks, int u,
                             int first, int n_words, const int8_t *q,
                             __m512i sums[MAX_BLOCKS][MAX_ROWS])
{
    if (walks.second && first == 0)
        ask_ahead(walks);
#pragma GCC unroll 8
    for (int i = 0; i < n_words; i++) {
        const int word = word_at(packing, first, n_words, i);
        if (!walks.second)
            ask_behind(packing, walks, u, first + i);
        __m512i a = load_word(packing, walks.first, u, word);
        __m512i b = walks.second ? load_word(packing, walks.second, u, word) : a;
#pragma GCC unroll 8
        for (int row = 0; row < n; row++) {
            __m512i x = broadcast_word(q + row * UNIT + 4 * word);
            sums[0][row] = _mm512_dpbusd_epi32(sums[0][row], a, x);
            if (walks.second)
                sums[1][row] = _mm512_dpbusd_epi32(sums[1][row], b, x);
        }
    }
    __asm__ volatile("" ::: "memory");
}

/* acc[i] += sums[i] under both scales. */
ALWAYS_INLINE void add_sums(int n, const __m512i *sums, __m512 scale, const float *scales,
                            __m512 *acc)
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(scales[i])), acc[i]);
}

/* acc[b][i] += the group of columns whose codes these are, times row i. */
ALWAYS_INLINE void add_group(enum linear_packing packing, int n, struct walks walks, int u,
                             int first, int n_words, __m512 scale, __m512 second_scale,
                             const int8_t *q, const float *scales, const int32_t *negative_sums,
                             __m512 acc[MAX_BLOCKS][MAX_ROWS])
{
    __m512i sums[MAX_BLOCKS][MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        sums[0][i] = sums[1][i] = start_sum(packing, negative_sums + i);
    dot_words(packing, n, walks, u, first, n_words, q, sums);
    add_sums(n, sums[0], scale, scales, acc[0]);
    if (walks.second)
        add_sums(n, sums[1], second_scale, scales, acc[1]);
}

/* acc[i] += what the biases of unit u add. */
ALWAYS_INLINE void add_biases(enum linear_packing packing, int n, const struct unit_levels *levels,
                              const float *scales, const int32_t *sums, size_t height, __m512 *acc)
{
    if (!has_halves(packing) && has_unit_bias(packing)) {
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            acc[i] =
                _mm512_fmadd_ps(levels->second, _mm512_set1_ps(scales[height + (size_t)i]), acc[i]);
    }
    for (int h = 0; h < 2 && has_half_bias(packing); h++) {
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            float negative_sum = scales[i] * (float)sums[(size_t)(1 + h) * height + (size_t)i];
            acc[i] = _mm512_fmadd_ps(levels->minimum[h], _mm512_set1_ps(negative_sum), acc[i]);
        }
    }
}

/* Unit u of n rows; levels and sums lie `height` apart. */
ALWAYS_INLINE void add_unit(enum linear_packing packing, int n, struct walks walks, int u,
                            const int8_t *q, const float *scales, const int32_t *sums,
                            size_t height, __m512 acc[MAX_BLOCKS][MAX_ROWS])
{
    struct unit_levels a = load_levels(packing, walks.first, u);
    struct unit_levels b = walks.second ? load_levels(packing, walks.second, u) : a;
    if (has_halves(packing)) {
        add_group(packing, n, walks, u, 0, 4, a.scale, b.scale, q, scales, sums + height, acc);
        add_group(packing, n, walks, u, 4, 4, a.second, b.second, q, scales, sums + 2 * height,
                  acc);
    } else {
        add_group(packing, n, walks, u, 0, UNIT_WORDS, a.scale, b.scale, q, scales, sums, acc);
    }
    add_biases(packing, n, &a, scales, sums, height, acc[0]);
    if (walks.second)
        add_biases(packing, n, &b, scales, sums, height, acc[1]);
}

/* both[i] = the first unit's sums of a span under their rows' scales. */
ALWAYS_INLINE void scale_sums(int n, const __m512i *sums, const float *levels, __m512 *both)
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        both[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_set1_ps(levels[i]));
}

/* acc[i] += the bias of a span times the sums of both units' activations. */
ALWAYS_INLINE void add_span_bias(int n, __m512 bias, const float *levels, size_t height,
                                 __m512 *acc)
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        const float *at = levels + i;
        __m512 codes = _mm512_add_ps(_mm512_set1_ps(at[height]), _mm512_set1_ps(at[3 * height]));
        acc[i] = _mm512_fmadd_ps(bias, codes, acc[i]);
    }
}

/* acc[i] += the scale of a span times both units: `both`, and the second's sums. */
ALWAYS_INLINE void finish_span(int n, __m512 scale, const __m512i *sums, const __m512 *both,
                               const float *second_scales, __m512 *acc)
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        __m512 all =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_set1_ps(second_scales[i]), both[i]);
        acc[i] = _mm512_fmadd_ps(scale, all, acc[i]);
    }
}

/* A span under one scale and one bias (and no offset): the units' sums meet each other before they
 * meet the weights' scale, three multiplications a row in place of four. The bias comes between the
 * units, where it takes places that the chains of products leave open (docs/performance.md). */
ALWAYS_INLINE void add_span(enum linear_packing packing, int n, struct walks walks, const int8_t *q,
                            const float *levels, size_t height, __m512 acc[MAX_BLOCKS][MAX_ROWS])
{
    __m512i sums[2][MAX_BLOCKS][MAX_ROWS];
    __m512 both[MAX_BLOCKS][MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        sums[0][0][i] = sums[0][1][i] = sums[1][0][i] = sums[1][1][i] = _mm512_setzero_si512();
    dot_words(packing, n, walks, 0, 0, UNIT_WORDS, q, sums[0]);
    scale_sums(n, sums[0][0], levels, both[0]);
    if (walks.second)
        scale_sums(n, sums[0][1], levels, both[1]);
    add_span_bias(n, walks.first->bias[0], levels, height, acc[0]);
    if (walks.second)
        add_span_bias(n, walks.second->bias[0], levels, height, acc[1]);
    dot_words(packing, n, walks, 1, 0, UNIT_WORDS, q + height * UNIT, sums[1]);
    finish_span(n, walks.first->scale[0], sums[1][0], both[0], levels + 2 * height, acc[0]);
    if (walks.second)
        finish_span(n, walks.second->scale[0], sums[1][1], both[1], levels + 2 * height, acc[1]);
}

/* n rows (a constant) times one or two blocks; each weight is read and unpacked once. The first
 * rows of a block ask for the memory that the first rows of the next ones will read. */
ALWAYS_INLINE void multiply_rows(enum linear_packing packing, bool has_spans, int n_blocks, int n,
                                 const struct linear_part *part, int64_t block,
                                 const struct rows_view *rows, __m512 *out)
{
    struct span_walk first = walk_begin(part, block), second = walk_begin(part, block + 1);
    const int bits = packing_shapes[packing].bits;
    const bool is_alone = n_blocks == 1 && rows->is_first;
    const bool is_spread = is_alone && wants_spread(n, bits);
    const bool is_burst = is_alone && !is_spread && wants_prefetch(n, bits);
    uintptr_t ahead = rows->ahead;
    const struct walks walks = {&first, n_blocks == 2 ? &second : NULL, is_spread, &ahead,
                                rows->ahead_step};
    if (is_grouped(packing) && has_spans != (part->group_spans > 0))
        __builtin_unreachable();
    const size_t height = rows->height;
    const int8_t *q = rows->codes;
    const float *levels = rows->levels;
    const int32_t *sums = rows->sums;
    __m512 acc[MAX_BLOCKS][MAX_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        acc[0][i] = acc[1][i] = _mm512_setzero_ps();
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(packing, &first, s);
        if (n_blocks == 2)
            walk_enter(packing, &second, s);
        if (is_burst)
            prefetch_for_rows(n, bits, first.at, span_bytes_of(packing));
        if (has_spans) {
            add_span(packing, n, walks, q, levels, height, acc);
        } else {
            for (size_t u = 0; u < 2; u++)
                add_unit(packing, n, walks, (int)u, q + u * height * UNIT, levels + u * height * 2,
                         sums + u * height * 3, height, acc);
        }
        q += 2 * height * UNIT;
        levels += 2 * height * 2;
        sums += 2 * height * 3;
        walk_leave(packing, &first);
        walk_leave(packing, &second);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        out[i] = acc[0][i];
        if (n_blocks == 2)
            out[n + i] = acc[1][i];
    }
}

typedef void (*rows_kernel)(const struct linear_part *part, int64_t block,
                            const struct rows_view *rows, __m512 *acc);

#define KERNEL(name, packing, has_spans, b, n)                                                     \
    static void multiply_##name##_##b##_##n(const struct linear_part *part, int64_t block,         \
                                            const struct rows_view *rows, __m512 *out)             \
    {                                                                                              \
        multiply_rows(packing, has_spans, b, n, part, block, rows, out);                           \
    }
#define KERNELS(name, packing, has_spans)                                                          \
    KERNEL(name, packing, has_spans, 1, 1)                                                         \
    KERNEL(name, packing, has_spans, 1, 2)                                                         \
    KERNEL(name, packing, has_spans, 1, 3)                                                         \
    KERNEL(name, packing, has_spans, 1, 4)                                                         \
    KERNEL(name, packing, has_spans, 1, 5)                                                         \
    KERNEL(name, packing, has_spans, 1, 6)                                                         \
    KERNEL(name, packing, has_spans, 1, 7)                                                         \
    KERNEL(name, packing, has_spans, 1, 8)                                                         \
    KERNEL(name, packing, has_spans, 2, 3)                                                         \
    KERNEL(name, packing, has_spans, 2, 4)                                                         \
    KERNEL(name, packing, has_spans, 2, 5)
#define UNIT_KERNELS(packing) KERNELS(packing##_units, PACKING_##packing, false)
#define SPAN_KERNELS(packing) KERNELS(packing##_spans, PACKING_##packing, true)
QUANTIZED_PACKINGS(UNIT_KERNELS)
GROUPED_PACKINGS(SPAN_KERNELS)

#define KERNEL_ROW(name)                                                                           \
    {                                                                                              \
        {NULL,                                                                                     \
         multiply_##name##_1_1,                                                                    \
         multiply_##name##_1_2,                                                                    \
         multiply_##name##_1_3,                                                                    \
         multiply_##name##_1_4,                                                                    \
         multiply_##name##_1_5,                                                                    \
         multiply_##name##_1_6,                                                                    \
         multiply_##name##_1_7,                                                                    \
         multiply_##name##_1_8},                                                                   \
        {                                                                                          \
            [3] = multiply_##name##_2_3, [4] = multiply_##name##_2_4, [5] = multiply_##name##_2_5  \
        }                                                                                          \
    }
#define UNIT_ROW(packing) [PACKING_##packing] = KERNEL_ROW(packing##_units),
#define SPAN_ROW(packing) [PACKING_##packing] = KERNEL_ROW(packing##_spans),
/* Index 1: groups of whole spans. Apart, because a loop with both paths reads levels as scalars and
 * spreads them with shuffles, which take the multipliers' places (docs/performance.md). */
static const rows_kernel kernels[2][N_PACKINGS][MAX_BLOCKS][MAX_ROWS + 1] = {
    {QUANTIZED_PACKINGS(UNIT_ROW)}, {GROUPED_PACKINGS(SPAN_ROW)}};

static bool has_spans(const struct linear_part *part)
{
    return is_grouped(part->packing) && part->group_spans > 0;
}

/* Whether n rows meet blocks in pairs. Where the products bound them more than memory does, each
 * broadcast of activations then serves two products, and a processor of two vector products a cycle
 * has two loads a cycle for everything. Rows that meet a block in one pass are bound by memory, or
 * nearly, and do not rest in a pair's second pass (docs/performance.md). */
static bool wants_pairs(int64_t n)
{
    return n > MAX_ROWS;
}

/* The activations of a tile of rows. */
ALWAYS_INLINE struct rows_view rows_of(const struct linear_input *in, struct linear_range tile)
{
    size_t at = (size_t)tile.first * (size_t)linear_n_units(in);
    return (struct rows_view){.codes = in->codes + at * UNIT,
                              .levels = in->levels + at * 2,
                              .sums = in->sums + at * 3,
                              .height = (size_t)in->tile_rows};
}

/* A tile of rows times one block. */
static void multiply_block(const struct linear_part *part, const struct linear_input *in,
                           int64_t block, struct linear_range tile, bool is_first,
                           const struct linear_output *output)
{
    const rows_kernel *by_rows = kernels[has_spans(part)][part->packing][0];
    struct rows_view rows = rows_of(in, tile);
    __m512 y[MAX_ROWS];
    rows.is_first = is_first;
    int64_t left = ceil_div(tile.end - tile.first, MAX_ROWS);
    for (int64_t row = tile.first; row < tile.end; left--) {
        int n = (int)ceil_div(tile.end - row, left);
        by_rows[n](part, block, &rows, y);
        store_rows(part, block, row, n, output, y);
        rows_advance(&rows, n);
        row += n;
    }
}

/* A tile of rows times a block and the one behind it, in even passes. If they are the first to
 * meet these blocks, each pass asks for its share of the next two. */
static void multiply_pair(const struct linear_part *part, const struct linear_input *in,
                          int64_t block, struct linear_range tile, bool is_first,
                          const struct linear_output *output)
{
    const rows_kernel *by_rows = kernels[has_spans(part)][part->packing][1];
    struct rows_view rows = rows_of(in, tile);
    __m512 y[2 * PAIR_ROWS];
    int left = (int)ceil_div(tile.end - tile.first, PAIR_ROWS);
    if (is_first) {
        size_t n_steps = 2 * (size_t)left * (size_t)n_spans_of(part);
        size_t bytes = 2 * part->block_bytes;
        rows.ahead = (uintptr_t)(part->data + (size_t)(block + 2) * part->block_bytes);
        rows.ahead_step = (bytes + n_steps - 1) / n_steps;
    }
    for (int64_t row = tile.first; left > 0; left--) {
        int n = (int)ceil_div(tile.end - row, left);
        by_rows[n](part, block, &rows, y);
        store_rows(part, block, row, n, output, y);
        store_rows(part, block + 1, row, n, output, y + n);
        rows.ahead += 2 * rows.ahead_step * (size_t)n_spans_of(part);
        rows_advance(&rows, n);
        row += n;
    }
}

void linear_avx512_int8(const struct linear_part *part, const struct linear_input *in,
                        struct linear_range blocks, struct linear_range tile, bool is_first,
                        const struct linear_output *output)
{
    int64_t block = blocks.first;
    if (wants_pairs(tile.end - tile.first))
        for (; block + 2 <= blocks.end; block += 2)
            multiply_pair(part, in, block, tile, is_first, output);
    for (; block < blocks.end; block++)
        multiply_block(part, in, block, tile, is_first, output);
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
            if (part->mode == MODE_INT8)
                linear_avx512_int8(part, in, (struct linear_range){first, end}, tile,
                                   row == rows.first, output);
            for (int64_t block = first; block < end && part->mode == MODE_BF16; block++)
                linear_avx512_bf16(part, in, block, tile, row == rows.first, output);
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
