/* Linears with AMX tiles: int8 activations from some rows on (fewer are faster with VNNI,
 * linear_avx512.c, as are weights with a bias for each 16 columns; the results are the same bit for
 * bit), and bf16. Float mode is AVX-512's.
 *
 * int8: every group of 32 (or 16) columns has scales of its own, so a tile product covers 16 rows,
 * 16 outputs and one group, and its i32 sums go through memory into f32 sums in registers. Vector
 * instructions, not tiles, bound this kernel. */
#include "device/cpu/linear_amx.h"

enum {
    MIN_ROWS = 10, /* a tile with fewer rows goes to VNNI */
    UNIT_CODES = UNIT * BLOCK_ROWS,
    UNIT_LEVELS = 2 * BLOCK_ROWS,
    /* Units whose products are kept in memory before they are added up: whole spans. */
    RUN_UNITS = 6,
    /* Blocks whose expanded weights are held at once, so that results of one row come in longer
     * pieces, as long as they stay in the first-level cache. */
    GROUP_BLOCKS = 2,
    GROUP_BYTES = 32 << 10
};

/* One block of weights: signed codes [unit][8 words][16 rows][4 columns], and f32
 * [unit][scale, bias or second scale][16 rows]. */
struct panel {
    int8_t *codes;
    float *levels;
};

static size_t panel_bytes(const struct linear_part *part)
{
    size_t n_units = (size_t)part->padded_cols / UNIT;
    return n_units * (UNIT_CODES + UNIT_LEVELS * sizeof(float));
}

static struct panel panel_at(const struct linear_part *part, void *scratch, int64_t i)
{
    uint8_t *at = (uint8_t *)scratch + (size_t)i * panel_bytes(part);
    size_t codes = (size_t)part->padded_cols * BLOCK_ROWS;
    return (struct panel){(int8_t *)at, (float *)(void *)(at + codes)};
}

ALWAYS_INLINE void expand(enum linear_packing packing, const struct linear_part *part,
                          int64_t block, const struct panel *to)
{
    struct span_walk walk = walk_begin(part, block);
    const __m512i offset = _mm512_set1_epi8((char)offset_of(packing));
    int8_t *codes_to = to->codes;
    float *levels_to = to->levels;
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(packing, &walk, s);
        for (int u = 0; u < 2; u++) {
            __m512i codes[UNIT_WORDS];
            load_codes(packing, &walk, u, codes);
            struct unit_levels levels = load_levels(packing, &walk, u);
            for (int i = 0; i < UNIT_WORDS; i++)
                _mm512_store_si512(codes_to + 64 * i, _mm512_sub_epi8(codes[i], offset));
            _mm512_store_ps(levels_to, levels.scale);
            _mm512_store_ps(levels_to + BLOCK_ROWS, levels.second);
            codes_to += UNIT_CODES;
            levels_to += UNIT_LEVELS;
        }
        walk_leave(packing, &walk);
    }
}

static void expand_block(const struct linear_part *part, int64_t block, const struct panel *to)
{
#define EXPAND(packing)                                                                            \
    case PACKING_##packing:                                                                        \
        expand(PACKING_##packing, part, block, to);                                                \
        break;
    switch (part->packing) {
        QUANTIZED_PACKINGS(EXPAND)
    default:
        break;
    }
#undef EXPAND
}

/* Tile products of n units (n even), or of one half of each; sums [n][16][16]. Codes are signed or
 * (a constant) unsigned. */
ALWAYS_INLINE void multiply_tiles(bool is_signed, const int8_t *x, const int8_t *w, int n,
                                  int32_t *sums)
{
    enum { X_STEP = TILE_ROWS_MAX * UNIT };
#define PRODUCT(sum, left, right, i)                                                               \
    TILE_LOAD(left, x + (i)*X_STEP, UNIT);                                                         \
    TILE_LOAD(right, w + (i)*UNIT_CODES, 64);                                                      \
    TILE_ZERO(sum);                                                                                \
    if (is_signed)                                                                                 \
        TILE_INT8(sum, left, right);                                                               \
    else                                                                                           \
        TILE_INT8_UINT8(sum, left, right)
    for (; n >= 4; n -= 4) {
        PRODUCT(SUM_0, LEFT_0, RIGHT_0, 0);
        PRODUCT(SUM_1, LEFT_1, RIGHT_1, 1);
        PRODUCT(SUM_2, LEFT_0, RIGHT_0, 2);
        PRODUCT(SUM_3, LEFT_1, RIGHT_1, 3);
        TILE_STORE(SUM_0, sums, 64);
        TILE_STORE(SUM_1, sums + TILE_VALUES, 64);
        TILE_STORE(SUM_2, sums + 2 * TILE_VALUES, 64);
        TILE_STORE(SUM_3, sums + 3 * TILE_VALUES, 64);
        x += 4 * X_STEP;
        w += 4 * UNIT_CODES;
        sums += 4 * TILE_VALUES;
    }
    if (n > 0) {
        PRODUCT(SUM_0, LEFT_0, RIGHT_0, 0);
        PRODUCT(SUM_1, LEFT_1, RIGHT_1, 1);
        TILE_STORE(SUM_0, sums, 64);
        TILE_STORE(SUM_1, sums + TILE_VALUES, 64);
    }
#undef PRODUCT
}

/* acc[r] += sums[r] * (scale * sx[r]), then, with a bias, += bias * sx_sum[r]. */
ALWAYS_INLINE void add_sums(bool has_bias, const int32_t *sums, __m512 scale, __m512 bias,
                            const float *sx, __m512 acc[TILE_ROWS_MAX])
{
    for (int r = 0; r < TILE_ROWS_MAX; r++) {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * BLOCK_ROWS));
        acc[r] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(sx[r])), acc[r]);
        if (has_bias)
            acc[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sx[TILE_ROWS_MAX + r]), acc[r]);
    }
}

/* The same of a span under one scale and one bias: sums and sx of its two units. */
ALWAYS_INLINE void add_span_sums(const int32_t *sums, __m512 scale, __m512 bias, const float *sx,
                                 __m512 acc[TILE_ROWS_MAX])
{
    const int32_t *next = sums + TILE_VALUES;
    for (int r = 0; r < TILE_ROWS_MAX; r++, sx++) {
        __m512 both = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + r * BLOCK_ROWS)),
                                    _mm512_set1_ps(*sx));
        both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(next + r * BLOCK_ROWS)),
                               _mm512_set1_ps(sx[2 * TILE_ROWS_MAX]), both);
        __m512 codes =
            _mm512_add_ps(_mm512_set1_ps(sx[TILE_ROWS_MAX]), _mm512_set1_ps(sx[3 * TILE_ROWS_MAX]));
        acc[r] = _mm512_fmadd_ps(bias, codes, acc[r]);
        acc[r] = _mm512_fmadd_ps(scale, both, acc[r]);
    }
}

/* What lies under the scales of a part. */
enum group_kind { GROUP_UNIT, GROUP_UNIT_BIAS, GROUP_HALF, GROUP_SPAN_BIAS };

static enum group_kind group_kind_of(const struct linear_part *part)
{
    if (is_grouped(part->packing) && part->group_spans > 0)
        return GROUP_SPAN_BIAS;
    return has_halves(part->packing)      ? GROUP_HALF
           : has_unit_bias(part->packing) ? GROUP_UNIT_BIAS
                                          : GROUP_UNIT;
}

/* One tile of 16 rows times one panel; `kind` is a constant. `sums` has room for RUN_UNITS units of
 * two groups. */
ALWAYS_INLINE void multiply_panel(enum group_kind kind, const struct panel *panel, int n_units,
                                  const int8_t *x, const float *sx, int32_t *sums,
                                  __m512 acc[TILE_ROWS_MAX])
{
    const bool has_bias = kind == GROUP_UNIT_BIAS || kind == GROUP_SPAN_BIAS;
    const int groups = kind == GROUP_HALF ? 2 : 1; /* a unit */
    const int step = kind == GROUP_SPAN_BIAS ? 2 : 1;
    for (int r = 0; r < TILE_ROWS_MAX; r++)
        acc[r] = _mm512_setzero_ps();
    for (int first = 0; first < n_units; first += RUN_UNITS) {
        int n = n_units - first < RUN_UNITS ? n_units - first : RUN_UNITS;
        for (int g = 0; g < groups; g++) /* first halves of all units, then second halves */
            multiply_tiles(!has_bias, x + first * TILE_ROWS_MAX * UNIT + g * UNIT / 2,
                           panel->codes + first * UNIT_CODES + g * UNIT_CODES / 2, n,
                           sums + g * RUN_UNITS * TILE_VALUES);
        for (int u = 0; u < n; u += step)
            for (int g = 0; g < groups; g++) {
                const float *levels = panel->levels + (first + u) * UNIT_LEVELS;
                const float *sx_unit = sx + (first + u) * 2 * TILE_ROWS_MAX;
                const int32_t *sums_unit = sums + (u + g * RUN_UNITS) * TILE_VALUES;
                __m512 scale = _mm512_load_ps(levels + g * BLOCK_ROWS);
                __m512 bias = _mm512_load_ps(levels + BLOCK_ROWS);
                if (kind == GROUP_SPAN_BIAS)
                    add_span_sums(sums_unit, scale, bias, sx_unit, acc);
                else
                    add_sums(has_bias, sums_unit, scale, bias, sx_unit, acc);
            }
    }
}

/* The rows of one tile, [row, row + n), times one panel. */
static void multiply_tile(const struct linear_part *part, const struct linear_input *in,
                          const struct panel *panel, int64_t block, int64_t row, int n,
                          const struct linear_output *output)
{
    _Alignas(64) int32_t sums[2 * RUN_UNITS * TILE_VALUES];
    int n_units = linear_n_units(in);
    size_t at = (size_t)row * (size_t)n_units;
    const int8_t *x = in->codes + at * UNIT;
    const float *sx = in->levels + at * 2;
    __m512 acc[TILE_ROWS_MAX];
    switch (group_kind_of(part)) {
    case GROUP_UNIT:
        multiply_panel(GROUP_UNIT, panel, n_units, x, sx, sums, acc);
        break;
    case GROUP_UNIT_BIAS:
        multiply_panel(GROUP_UNIT_BIAS, panel, n_units, x, sx, sums, acc);
        break;
    case GROUP_HALF:
        multiply_panel(GROUP_HALF, panel, n_units, x, sx, sums, acc);
        break;
    case GROUP_SPAN_BIAS:
        multiply_panel(GROUP_SPAN_BIAS, panel, n_units, x, sx, sums, acc);
        break;
    }
    store_rows(part, block, row, n, output, acc);
}

static bool is_vnni_tile(const struct linear_part *part, const struct linear_input *in,
                         int64_t tile)
{
    return has_half_bias(part->packing) || in->tile_rows < TILE_ROWS_MAX ||
           in->n_rows - tile * TILE_ROWS_MAX < MIN_ROWS;
}

static int64_t group_blocks(const struct linear_part *part)
{
    size_t fits = GROUP_BYTES / panel_bytes(part);
    return fits < 1 ? 1 : fits > GROUP_BLOCKS ? GROUP_BLOCKS : (int64_t)fits;
}

/* Blocks in groups: each is expanded once, and each tile of rows meets a whole group. */
static void multiply_int8(const struct linear_part *part, const struct linear_input *in,
                          struct linear_range blocks, struct linear_range rows,
                          const struct linear_output *output, void *scratch)
{
    int64_t step = group_blocks(part);
    tiles_begin(TILE_ROWS_MAX, has_halves(part->packing) ? 16 : 32);
    for (int64_t first = blocks.first; first < blocks.end; first += step) {
        int64_t end = first + step < blocks.end ? first + step : blocks.end;
        for (int64_t block = first;
             block < end && !is_vnni_tile(part, in, rows.first / TILE_ROWS_MAX); block++) {
            struct panel panel = panel_at(part, scratch, block - first);
            expand_block(part, block, &panel);
        }
        for (int64_t row = rows.first; row < rows.end; row += in->tile_rows) {
            int64_t n = rows.end - row < in->tile_rows ? rows.end - row : in->tile_rows;
            for (int64_t block = first; block < end; block++) {
                struct panel panel = panel_at(part, scratch, block - first);
                struct linear_range tile = {row, row + n};
                if (is_vnni_tile(part, in, row / TILE_ROWS_MAX))
                    linear_avx512_int8(part, in, (struct linear_range){block, block + 1}, tile,
                                       row == rows.first, output);
                else
                    multiply_tile(part, in, &panel, block, row, (int)n, output);
            }
        }
    }
    tiles_release();
}

/* Up to four tiles of rows share every weight tile. The sums stay in tiles over all columns. */
static void multiply_bf16_tiles(const struct linear_part *part, const struct linear_input *in,
                                int64_t block, int64_t row, int n_tiles, float *sums)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)linear_n_units(in);
    const uint8_t *w = part->data + (size_t)block * part->block_bytes;
    const uint16_t *x = (const uint16_t *)in->rounded + (size_t)row * n_units * UNIT;
    size_t tile = n_units * height * UNIT; /* between two tiles of rows */
    TILE_ZERO(SUM_0);
    TILE_ZERO(SUM_1);
    TILE_ZERO(SUM_2);
    TILE_ZERO(SUM_3);
    for (size_t u = 0; u < n_units; u++, x += height * UNIT, w += TILE_BYTES) {
        prefetch_weights(w, TILE_BYTES);
        TILE_LOAD(RIGHT_0, w, 64);
        TILE_LOAD(LEFT_0, x, 64);
        TILE_BF16(SUM_0, LEFT_0, RIGHT_0);
        if (n_tiles == 1)
            continue;
        TILE_LOAD(LEFT_1, x + tile, 64);
        TILE_BF16(SUM_1, LEFT_1, RIGHT_0);
        if (n_tiles == 2)
            continue;
        TILE_LOAD(LEFT_0, x + 2 * tile, 64);
        TILE_BF16(SUM_2, LEFT_0, RIGHT_0);
        if (n_tiles == 3)
            continue;
        TILE_LOAD(LEFT_1, x + 3 * tile, 64);
        TILE_BF16(SUM_3, LEFT_1, RIGHT_0);
    }
    size_t step = height * BLOCK_ROWS;
    TILE_STORE(SUM_0, sums, 64);
    TILE_STORE(SUM_1, sums + step, 64);
    TILE_STORE(SUM_2, sums + 2 * step, 64);
    TILE_STORE(SUM_3, sums + 3 * step, 64);
}

static void multiply_bf16(const struct linear_part *part, const struct linear_input *in,
                          struct linear_range blocks, struct linear_range rows,
                          const struct linear_output *output)
{
    _Alignas(64) float sums[4 * TILE_VALUES];
    int height = in->tile_rows;
    tiles_begin(height, 64);
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        for (int64_t row = rows.first; row < rows.end; row += 4 * height) {
            int64_t n = rows.end - row < 4 * height ? rows.end - row : 4 * height;
            int n_tiles = (int)((n + height - 1) / height);
            multiply_bf16_tiles(part, in, block, row, n_tiles, sums);
            store_rows(part, block, row, (int)n, output, (const __m512 *)(const void *)sums);
        }
    }
    tiles_release();
}

static int32_t tile_rows(int32_t n_rows)
{
    return n_rows < MIN_ROWS ? n_rows : TILE_ROWS_MAX;
}

static size_t scratch_bytes(const struct linear_part *part)
{
    if (part->mode == MODE_INT8)
        return panel_bytes(part) * (size_t)group_blocks(part);
    return part->packing == PACKING_F8 ? linear_amx_fp8_scratch(part) : 0;
}

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    if (part->mode == MODE_BF16 && part->packing == PACKING_F8)
        linear_amx_fp8(part, in, blocks, rows, output, scratch);
    else if (part->mode == MODE_BF16)
        multiply_bf16(part, in, blocks, rows, output);
    else if (part->mode == MODE_INT8)
        multiply_int8(part, in, blocks, rows, output, scratch);
    else
        for (int64_t block = blocks.first; block < blocks.end; block++)
            linear_avx512_float(part, in, block, rows, output);
    finish_stores(output);
}

const struct linear_kernels linear_kernels_amx = {
    .tile_rows = tile_rows,
    .pass_bytes = LINEAR_PASS_BYTES,
    .prepare = linear_prepare_avx512,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
