/* Linears with f32 activations (any weight, expanded to f32 exactly) and with bf16 activations
 * (bf16 weights), AVX-512. A panel of weights is expanded once and used by all rows. Column k adds
 * to partial sum k mod 4 (pairs: mod 2), so that a row's sums do not depend on the rows beside it.
 */
#include "device/cpu/linear_avx512.h"

enum {
    PANEL_SPANS = 2,
    PANEL_COLS = PANEL_SPANS * SPAN,
    GROUP_ROWS = 32, /* whose partial sums are kept beside a panel */
    N_PARTIAL = 4
};

/* One span of quantized weights as f32 [64][16]. */
ALWAYS_INLINE void expand_quantized(enum linear_packing packing, const struct span_walk *walk,
                                    float *to)
{
    const __m512i byte = _mm512_set1_epi32(255), offset = _mm512_set1_epi32(offset_of(packing));
    for (int u = 0; u < 2; u++) {
        __m512i codes[UNIT_WORDS];
        load_codes(packing, walk, u, codes);
        struct unit_levels levels = load_levels(packing, walk, u);
        for (int i = 0; i < UNIT_WORDS; i++) {
            __m512 scale = has_halves(packing) && i >= 4 ? levels.second : levels.scale;
            for (int j = 0; j < 4; j++) {
                __m512i code =
                    _mm512_and_si512(_mm512_srli_epi32(codes[i], (unsigned)(8 * j)), byte);
                __m512 value = packing == PACKING_F8
                                   ? e4m3_to_f32(_mm512_cvtepi32_epi16(code))
                                   : _mm512_cvtepi32_ps(_mm512_sub_epi32(code, offset));
                __m512 w;
                if (has_half_bias(packing))
                    w = _mm512_fmsub_ps(value, scale, levels.minimum[i / 4]);
                else if (has_unit_bias(packing))
                    w = _mm512_fmadd_ps(value, scale, levels.second);
                else
                    w = _mm512_mul_ps(value, scale);
                _mm512_storeu_ps(to + (u * UNIT + i * 4 + j) * BLOCK_ROWS, w);
            }
        }
    }
}

ALWAYS_INLINE void expand_bf16(const uint8_t *from, float *to)
{
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000);
    for (int i = 0; i < SPAN / 2; i++) {
        __m512i pair = _mm512_loadu_si512(from + 64 * i);
        _mm512_storeu_ps(to + 2 * i * BLOCK_ROWS, _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)));
        _mm512_storeu_ps(to + (2 * i + 1) * BLOCK_ROWS,
                         _mm512_castsi512_ps(_mm512_and_si512(pair, upper)));
    }
}

/* n spans from span s on as f32; the walk moves on. */
static void expand_panel(const struct linear_part *part, struct span_walk *walk, int s, int n,
                         float *to)
{
#define EXPAND(packing)                                                                            \
    case PACKING_##packing:                                                                        \
        walk_enter(PACKING_##packing, walk, s);                                                    \
        expand_quantized(PACKING_##packing, walk, to);                                             \
        walk_leave(PACKING_##packing, walk);                                                       \
        break;
    for (int end = s + n; s < end; s++, to += SPAN * BLOCK_ROWS) {
        switch (part->packing) {
            EXPANDED_PACKINGS(EXPAND)
        case PACKING_F32:
            memcpy(to, walk->at, SPAN * BLOCK_ROWS * sizeof *to);
            walk->at += SPAN * BLOCK_ROWS * 4;
            break;
        case PACKING_F16:
            for (int k = 0; k < SPAN; k++)
                _mm512_storeu_ps(to + k * BLOCK_ROWS, load_f16(walk->at + 32 * k));
            walk->at += SPAN * BLOCK_ROWS * 2;
            break;
        default:
            expand_bf16(walk->at, to);
            walk->at += SPAN * BLOCK_ROWS * 2;
            break;
        }
    }
#undef EXPAND
}

/* partial[i][0..3] += panel * x of n rows (a constant), `cols` columns. */
ALWAYS_INLINE void add_panel(int n, const float *panel, int cols, const float *x, size_t stride,
                             float *partial)
{
    __m512 acc[5][N_PARTIAL];
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            acc[i][p] = _mm512_loadu_ps(partial + (i * N_PARTIAL + p) * BLOCK_ROWS);
    int k = 0;
    for (; k + N_PARTIAL <= cols; k += N_PARTIAL) {
        for (int p = 0; p < N_PARTIAL; p++) {
            __m512 w = _mm512_loadu_ps(panel + (k + p) * BLOCK_ROWS);
            for (int i = 0; i < n; i++)
                acc[i][p] = _mm512_fmadd_ps(
                    w, _mm512_set1_ps(x[(size_t)i * stride + (size_t)(k + p)]), acc[i][p]);
        }
    }
    for (int p = 0; k + p < cols; p++) {
        __m512 w = _mm512_loadu_ps(panel + (k + p) * BLOCK_ROWS);
        for (int i = 0; i < n; i++)
            acc[i][p] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)i * stride + (size_t)(k + p)]),
                                        acc[i][p]);
    }
    for (int i = 0; i < n; i++)
        for (int p = 0; p < N_PARTIAL; p++)
            _mm512_storeu_ps(partial + (i * N_PARTIAL + p) * BLOCK_ROWS, acc[i][p]);
}

/* At most GROUP_ROWS rows. */
static void multiply_group(const struct linear_part *part, int64_t block, const float *x,
                           size_t stride, int n_rows, float *partial)
{
    struct span_walk walk = walk_begin(part, block);
    _Alignas(64) float panel[PANEL_COLS * BLOCK_ROWS];
    memset(partial, 0, (size_t)n_rows * N_PARTIAL * BLOCK_ROWS * sizeof *partial);
    for (int s = 0; s < n_spans_of(part); s += PANEL_SPANS) {
        int n_spans = n_spans_of(part) - s < PANEL_SPANS ? n_spans_of(part) - s : PANEL_SPANS;
        int cols = part->cols - s * SPAN < PANEL_COLS ? part->cols - s * SPAN : PANEL_COLS;
        expand_panel(part, &walk, s, n_spans, panel);
        const float *at = x + (size_t)s * SPAN;
        int i = 0;
        for (; i + 5 <= n_rows; i += 5)
            add_panel(5, panel, cols, at + (size_t)i * stride, stride,
                      partial + i * N_PARTIAL * BLOCK_ROWS);
        for (; i < n_rows; i++)
            add_panel(1, panel, cols, at + (size_t)i * stride, stride,
                      partial + i * N_PARTIAL * BLOCK_ROWS);
    }
}

void linear_avx512_float(const struct linear_part *part, const struct linear_input *in,
                         int64_t block, struct linear_range rows,
                         const struct linear_output *output)
{
    _Alignas(64) float partial[GROUP_ROWS * N_PARTIAL * BLOCK_ROWS];
    for (int64_t row = rows.first; row < rows.end; row += GROUP_ROWS) {
        int n = (int)(rows.end - row < GROUP_ROWS ? rows.end - row : GROUP_ROWS);
        multiply_group(part, block, in->x + (size_t)row * in->x_stride, in->x_stride, n, partial);
        for (int i = 0; i < n; i++) {
            const float *p = partial + i * N_PARTIAL * BLOCK_ROWS;
            __m512 y = _mm512_add_ps(_mm512_add_ps(_mm512_load_ps(p), _mm512_load_ps(p + 16)),
                                     _mm512_add_ps(_mm512_load_ps(p + 32), _mm512_load_ps(p + 48)));
            store_rows(part, block, row + i, 1, output, &y);
        }
    }
}

enum {
    BF16_ROWS = 8, /* of a kernel */
    UNIT_BYTES = UNIT * BLOCK_ROWS * 2,
    /* So many units of weights stay in the first level until all rows have met them, beside the
     * lines that are asked for meanwhile. */
    CHUNK_UNITS = PREFETCH_FAR / UNIT_BYTES
};

/* How a kernel asks for the weights that come next. */
enum ahead { AHEAD_NOT, AHEAD_SPREAD, AHEAD_BURST };

ALWAYS_INLINE __m512bh broadcast_pair(const uint16_t *x)
{
    int32_t word;
    memcpy(&word, x, sizeof word);
    __m512i both = _mm512_set1_epi32(word);
    __m512bh pair;
    memcpy(&pair, &both, sizeof pair);
    return pair;
}

/* sums[i] += units of weights times n rows (a constant); row i, unit u at x + (u * height + i) *
 * 32. */
ALWAYS_INLINE void add_units(int n, enum ahead ahead, const uint8_t *w, int n_units,
                             const uint16_t *x, size_t height, __m512 (*sums)[2])
{
    __m512 acc[BF16_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        acc[i][0] = sums[i][0];
        acc[i][1] = sums[i][1];
    }
    for (int u = 0; u < n_units; u++, x += height * UNIT) {
        if (ahead == AHEAD_BURST)
            prefetch_for_rows(n, 16, w, UNIT_BYTES);
#pragma GCC unroll 16
        for (int pair = 0; pair < UNIT / 2; pair++, w += 64) {
            __m512bh weights;
            memcpy(&weights, w, sizeof weights);
            if (ahead == AHEAD_SPREAD)
                prefetch_line(w);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
                acc[i][pair % 2] = _mm512_dpbf16_ps(acc[i][pair % 2], weights,
                                                    broadcast_pair(x + i * UNIT + 2 * pair));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        sums[i][0] = acc[i][0];
        sums[i][1] = acc[i][1];
    }
}

typedef void (*bf16_kernel)(enum ahead ahead, const uint8_t *w, int n_units, const uint16_t *x,
                            size_t height, __m512 (*sums)[2]);

#define BF16_KERNEL(n)                                                                             \
    static void add_units_##n(enum ahead ahead, const uint8_t *w, int n_units, const uint16_t *x,  \
                              size_t height, __m512(*sums)[2])                                     \
    {                                                                                              \
        add_units(n, ahead, w, n_units, x, height, sums);                                          \
    }
BF16_KERNEL(1)
BF16_KERNEL(2)
BF16_KERNEL(3)
BF16_KERNEL(4)
BF16_KERNEL(5)
BF16_KERNEL(6)
BF16_KERNEL(7)
BF16_KERNEL(8)

static const bf16_kernel bf16_kernels[BF16_ROWS + 1] = {NULL,        add_units_1, add_units_2,
                                                        add_units_3, add_units_4, add_units_5,
                                                        add_units_6, add_units_7, add_units_8};

/* Of the first of a tile's n rows that meet a block. */
static enum ahead ahead_of(int n)
{
    if (wants_spread(n, 16))
        return AHEAD_SPREAD;
    return wants_prefetch(n, 16) ? AHEAD_BURST : AHEAD_NOT;
}

/* n_units of weights from unit u on times all rows of a tile, in passes of about as many. */
static void add_chunk(const uint8_t *w, int u, int n_units, const uint16_t *x, size_t height,
                      int n_rows, bool is_first, __m512 (*sums)[2])
{
    int n_passes = (n_rows + BF16_ROWS - 1) / BF16_ROWS;
    for (int pass = 0; pass < n_passes; pass++) {
        int row = n_rows * pass / n_passes, n = n_rows * (pass + 1) / n_passes - row;
        bf16_kernels[n](is_first && pass == 0 ? ahead_of(n) : AHEAD_NOT, w + (size_t)u * UNIT_BYTES,
                        n_units, x + ((size_t)u * height + (size_t)row) * UNIT, height, sums + row);
    }
}

void linear_avx512_bf16(const struct linear_part *part, const struct linear_input *in,
                        int64_t block, struct linear_range rows, bool is_first,
                        const struct linear_output *output)
{
    size_t height = (size_t)in->tile_rows, first = (size_t)rows.first;
    int n_units = part->padded_cols / UNIT, n_rows = (int)(rows.end - rows.first);
    const uint8_t *w = part->data + (size_t)block * part->block_bytes;
    const uint16_t *x = (const uint16_t *)in->rounded +
                        (first / height * (size_t)n_units * height + first % height) * UNIT;
    __m512 sums[TILE_ROWS_MAX][2], y[TILE_ROWS_MAX];
    for (int i = 0; i < n_rows; i++)
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    /* A lone tile's second pass would find nothing of a whole block in the first level, and memory
     * would rest; more tiles have their blocks in the second level, where chunks cost. */
    bool has_chunks = n_rows > BF16_ROWS && in->n_rows <= TILE_ROWS_MAX;
    int chunk = has_chunks ? CHUNK_UNITS : n_units;
    for (int u = 0; u < n_units; u += chunk)
        add_chunk(w, u, n_units - u < chunk ? n_units - u : chunk, x, height, n_rows, is_first,
                  sums);
    for (int i = 0; i < n_rows; i++)
        y[i] = _mm512_add_ps(sums[i][0], sums[i][1]);
    store_rows(part, block, rows.first, n_rows, output, y);
}
