/* Linears with AMX tiles: int8 activations from some rows on (fewer are faster with VNNI,
 * linear_avx512.c; the results are the same bit for bit), and bf16. Float mode is AVX-512's.
 *
 * int8: one tile product covers 16 rows, one block of 16 outputs and one group of 32 (or 16)
 * columns, because every group has scales of its own: the i32 tile goes through memory into f32
 * sums in registers. Of a block's weights signed codes [unit][8 words][16 rows][4] and f32 levels
 * [unit][2][16 rows] are laid out in scratch once and used by all rows. */
#include "device/cpu/linear_avx512.h"

enum {
    MIN_ROWS = 8, /* a tile with fewer rows goes to VNNI */
    TILE_BYTES = 1024,
    UNIT_CODES = UNIT * BLOCK_ROWS,
    UNIT_LEVELS = 2 * BLOCK_ROWS
};

/* Palette 1: tiles of up to 16 rows of 64 bytes (Intel SDM vol. 1, ch. 18). */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* The tile registers. Macros, because gcc 12 pastes their numbers into assembly text. */
#define SUM_0 0
#define SUM_1 1
#define SUM_2 2
#define SUM_3 3
#define LEFT_0 4
#define LEFT_1 5
#define RIGHT_0 6
#define RIGHT_1 7
enum { N_TILES = 8 };

/* `rows` x `k_bytes` activations times k_bytes / 4 words of weights. */
static void configure(int rows, int k_bytes)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < N_TILES; i++) {
        config.row_bytes[i] = (uint16_t)(i == LEFT_0 || i == LEFT_1 ? k_bytes : 64);
        config.rows[i] = (uint8_t)(i >= RIGHT_0 ? k_bytes / 4 : rows);
    }
    _tile_loadconfig(&config);
}

struct panel {
    int8_t *codes;
    float *levels;
};

ALWAYS_INLINE void expand(enum linear_packing packing, const struct linear_part *part,
                          int64_t block, const struct panel *to)
{
    struct span_walk walk = {.at = part->data + (size_t)block * part->block_bytes};
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
    switch (part->packing) {
    case PACKING_Q4:
        expand(PACKING_Q4, part, block, to);
        break;
    case PACKING_Q4_BIAS:
        expand(PACKING_Q4_BIAS, part, block, to);
        break;
    case PACKING_Q8:
        expand(PACKING_Q8, part, block, to);
        break;
    case PACKING_Q4_SUPER:
        expand(PACKING_Q4_SUPER, part, block, to);
        break;
    default:
        expand(PACKING_Q6_SUPER, part, block, to);
        break;
    }
}

/* acc[r] += tile[r] * scale * sx[r] (+ bias * sx_sum[r]). */
ALWAYS_INLINE void add_tile(bool has_bias, const int32_t *tile, __m512 scale, __m512 bias,
                            const float *sx, __m512 acc[TILE_ROWS_MAX])
{
    for (int r = 0; r < TILE_ROWS_MAX; r++) {
        __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(tile + r * BLOCK_ROWS));
        acc[r] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(sx[r])), acc[r]);
        if (has_bias)
            acc[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(sx[TILE_ROWS_MAX + r]), acc[r]);
    }
}

/* One tile of 16 rows times the panel. Units come in twos (columns are padded to 64), so that the
 * product of one is under way while the other's sums are added. */
ALWAYS_INLINE void multiply_tile(bool has_bias, const struct panel *panel, int n_units,
                                 const int8_t *x, const float *sx, __m512 acc[TILE_ROWS_MAX])
{
    _Alignas(64) int32_t tiles[2][TILE_ROWS_MAX * BLOCK_ROWS];
    const int8_t *w = panel->codes;
    const float *levels = panel->levels;
    for (int r = 0; r < TILE_ROWS_MAX; r++)
        acc[r] = _mm512_setzero_ps();
#define PRODUCT(sum, left, right, u, to)                                                           \
    _tile_loadd(left, x + (u)*TILE_ROWS_MAX * UNIT, UNIT);                                         \
    _tile_loadd(right, w + (u)*UNIT_CODES, 64);                                                    \
    _tile_zero(sum);                                                                               \
    _tile_dpbssd(sum, left, right);                                                                \
    _tile_stored(sum, to, 64)
#define ADD(u, from)                                                                               \
    add_tile(has_bias, from, _mm512_load_ps(levels + (u)*UNIT_LEVELS),                             \
             _mm512_load_ps(levels + (u)*UNIT_LEVELS + BLOCK_ROWS), sx + (u)*2 * TILE_ROWS_MAX,    \
             acc)
    PRODUCT(SUM_0, LEFT_0, RIGHT_0, 0, tiles[0]);
    for (int u = 0; u < n_units; u += 2) {
        PRODUCT(SUM_1, LEFT_1, RIGHT_1, u + 1, tiles[1]);
        ADD(u, tiles[0]);
        if (u + 2 < n_units) {
            PRODUCT(SUM_0, LEFT_0, RIGHT_0, u + 2, tiles[0]);
        }
        ADD(u + 1, tiles[1]);
    }
#undef PRODUCT
#undef ADD
}

/* The same for groups of 16 columns: two products a unit, each with its own scale. */
ALWAYS_INLINE void multiply_tile_halves(const struct panel *panel, int n_units, const int8_t *x,
                                        const float *sx, __m512 acc[TILE_ROWS_MAX])
{
    _Alignas(64) int32_t tiles[2][TILE_ROWS_MAX * BLOCK_ROWS];
    for (int r = 0; r < TILE_ROWS_MAX; r++)
        acc[r] = _mm512_setzero_ps();
    for (int u = 0; u < n_units; u++, x += TILE_ROWS_MAX * UNIT, sx += 2 * TILE_ROWS_MAX) {
        const int8_t *w = panel->codes + u * UNIT_CODES;
        const float *levels = panel->levels + u * UNIT_LEVELS;
        _tile_loadd(LEFT_0, x, UNIT);
        _tile_loadd(LEFT_1, x + 16, UNIT);
        _tile_loadd(RIGHT_0, w, 64);
        _tile_loadd(RIGHT_1, w + UNIT_CODES / 2, 64);
        _tile_zero(SUM_0);
        _tile_zero(SUM_1);
        _tile_dpbssd(SUM_0, LEFT_0, RIGHT_0);
        _tile_dpbssd(SUM_1, LEFT_1, RIGHT_1);
        _tile_stored(SUM_0, tiles[0], 64);
        _tile_stored(SUM_1, tiles[1], 64);
        add_tile(false, tiles[0], _mm512_load_ps(levels), _mm512_setzero_ps(), sx, acc);
        add_tile(false, tiles[1], _mm512_load_ps(levels + BLOCK_ROWS), _mm512_setzero_ps(), sx,
                 acc);
    }
}

static void multiply_panel(const struct linear_part *part, const struct linear_input *in,
                           const struct panel *panel, int64_t block, struct linear_range rows,
                           const struct linear_output *output)
{
    int n_units = linear_n_units(in);
    for (int64_t row = rows.first; row < rows.end; row += TILE_ROWS_MAX) {
        size_t at = (size_t)row * (size_t)n_units;
        const int8_t *x = in->codes + at * UNIT;
        const float *sx = in->levels + at * 2;
        int n = (int)(rows.end - row < TILE_ROWS_MAX ? rows.end - row : TILE_ROWS_MAX);
        if (n < MIN_ROWS) {
            linear_avx512_int8(part, in, block, (struct linear_range){row, rows.end}, output);
            return;
        }
        __m512 acc[TILE_ROWS_MAX];
        if (part->packing == PACKING_Q6_SUPER)
            multiply_tile_halves(panel, n_units, x, sx, acc);
        else if (has_bias_levels(part->packing))
            multiply_tile(true, panel, n_units, x, sx, acc);
        else
            multiply_tile(false, panel, n_units, x, sx, acc);
        for (int r = 0; r < n; r++)
            store_row(part, block, row + r, output, acc[r]);
    }
}

static void multiply_int8(const struct linear_part *part, const struct linear_input *in,
                          struct linear_range blocks, struct linear_range rows,
                          const struct linear_output *output, void *scratch)
{
    if (in->tile_rows < TILE_ROWS_MAX) {
        for (int64_t block = blocks.first; block < blocks.end; block++)
            linear_avx512_int8(part, in, block, rows, output);
        return;
    }
    struct panel panel = {.codes = scratch};
    panel.levels = (float *)(void *)(panel.codes + (size_t)part->padded_cols * BLOCK_ROWS);
    configure(TILE_ROWS_MAX, part->packing == PACKING_Q6_SUPER ? 16 : 32);
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        expand_block(part, block, &panel);
        multiply_panel(part, in, &panel, block, rows, output);
    }
    _tile_release();
}

/* Up to four tiles of rows share every weight tile. The sums stay in tiles over all columns. */
static void multiply_bf16_tiles(const struct linear_part *part, const struct linear_input *in,
                                int64_t block, int64_t row, int n_tiles, float *sums)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)linear_n_units(in);
    const uint8_t *w = part->data + (size_t)block * part->block_bytes;
    const uint16_t *x = (const uint16_t *)in->rounded + (size_t)row * n_units * UNIT;
    size_t tile = n_units * height * UNIT; /* between two tiles of rows */
    _tile_zero(SUM_0);
    _tile_zero(SUM_1);
    _tile_zero(SUM_2);
    _tile_zero(SUM_3);
    for (size_t u = 0; u < n_units; u++, x += height * UNIT, w += TILE_BYTES) {
        _tile_loadd(RIGHT_0, w, 64);
        _tile_loadd(LEFT_0, x, 64);
        _tile_dpbf16ps(SUM_0, LEFT_0, RIGHT_0);
        if (n_tiles == 1)
            continue;
        _tile_loadd(LEFT_1, x + tile, 64);
        _tile_dpbf16ps(SUM_1, LEFT_1, RIGHT_0);
        if (n_tiles == 2)
            continue;
        _tile_loadd(LEFT_0, x + 2 * tile, 64);
        _tile_dpbf16ps(SUM_2, LEFT_0, RIGHT_0);
        if (n_tiles == 3)
            continue;
        _tile_loadd(LEFT_1, x + 3 * tile, 64);
        _tile_dpbf16ps(SUM_3, LEFT_1, RIGHT_0);
    }
    float *to = sums;
    size_t step = height * BLOCK_ROWS;
    _tile_stored(SUM_0, to, 64);
    _tile_stored(SUM_1, to + step, 64);
    _tile_stored(SUM_2, to + 2 * step, 64);
    _tile_stored(SUM_3, to + 3 * step, 64);
}

static void multiply_bf16(const struct linear_part *part, const struct linear_input *in,
                          struct linear_range blocks, struct linear_range rows,
                          const struct linear_output *output)
{
    _Alignas(64) float sums[4 * TILE_ROWS_MAX * BLOCK_ROWS];
    int height = in->tile_rows;
    configure(height, 64);
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        for (int64_t row = rows.first; row < rows.end; row += 4 * height) {
            int64_t n = rows.end - row < 4 * height ? rows.end - row : 4 * height;
            int n_tiles = (int)((n + height - 1) / height);
            multiply_bf16_tiles(part, in, block, row, n_tiles, sums);
            for (int64_t r = 0; r < n; r++)
                store_row(part, block, row + r, output, _mm512_load_ps(sums + r * BLOCK_ROWS));
        }
    }
    _tile_release();
}

static int32_t tile_rows(int32_t n_rows)
{
    return n_rows < MIN_ROWS ? n_rows : TILE_ROWS_MAX;
}

static size_t scratch_bytes(const struct linear_part *part)
{
    size_t n_units = (size_t)part->padded_cols / UNIT;
    return part->mode == MODE_INT8 ? n_units * (UNIT_CODES + UNIT_LEVELS * sizeof(float)) : 0;
}

static void multiply(const struct linear_part *part, const struct linear_input *in,
                     struct linear_range blocks, struct linear_range rows,
                     const struct linear_output *output, void *scratch)
{
    if (part->mode == MODE_INT8)
        multiply_int8(part, in, blocks, rows, output, scratch);
    else if (part->mode == MODE_BF16)
        multiply_bf16(part, in, blocks, rows, output);
    else
        for (int64_t block = blocks.first; block < blocks.end; block++)
            linear_avx512_float(part, in, block, rows, output);
}

const struct linear_kernels linear_kernels_amx = {
    .tile_rows = tile_rows,
    .prepare = linear_prepare_avx512,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
