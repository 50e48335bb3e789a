/* E4M3 weights times bf16 activations in AMX tiles, for any number of rows. A block's codes become
 * bf16 once, exactly; the products of one scale's columns are summed in a tile, and go through
 * memory into sums in registers. */
#include "device/cpu/linear_amx.h"
#include "device/cpu/linear_fp8.h"

enum { RUN_SCALES = 4 }; /* whose sums stand in tiles at once */

/* One block of weights: bf16 [unit][16 pairs][16 rows][2], and f32 scales [unit][16 rows]. */
struct panel {
    uint8_t *codes;
    float *scales;
};

static int n_units_of(const struct linear_part *part)
{
    return part->padded_cols / UNIT;
}

size_t linear_amx_fp8_scratch(const struct linear_part *part)
{
    return (size_t)n_units_of(part) * (TILE_BYTES + BLOCK_ROWS * sizeof(float));
}

static void expand(const struct linear_part *part, int64_t block, const struct panel *to)
{
    struct span_walk walk = walk_begin(part, block);
    uint8_t *codes = to->codes;
    float *scales = to->scales;
    for (int s = 0; s < n_spans_of(part); s++) {
        walk_enter(PACKING_F8, &walk, s);
        for (int u = 0; u < 2; u++, scales += BLOCK_ROWS) {
            const uint8_t *w = walk.at + u * unit_bytes_of(PACKING_F8);
            prefetch_weights(w, unit_bytes_of(PACKING_F8) + 64);
            _mm512_store_ps(scales, walk.scale[u]);
            for (int word = 0; word < UNIT_WORDS; word++, codes += 128) {
                __m512i pairs[2];
                load_pairs(w + 64 * word, pairs);
                _mm512_store_si512(codes, pairs[0]);
                _mm512_store_si512(codes + 64, pairs[1]);
            }
        }
        walk_leave(PACKING_F8, &walk);
    }
}

/* One tile of rows times the units [first, end) of a panel, under one scale. */
#define MULTIPLY_SCALE(sum, first, end)                                                            \
    do {                                                                                           \
        TILE_ZERO(sum);                                                                            \
        for (int unit = (first); unit < (end); unit++) {                                           \
            TILE_LOAD(LEFT_0, x + (size_t)unit * height * UNIT, 64);                               \
            TILE_LOAD(RIGHT_0, panel->codes + (size_t)unit * TILE_BYTES, 64);                      \
            TILE_BF16(sum, LEFT_0, RIGHT_0);                                                       \
        }                                                                                          \
    } while (0)

static int clamp(int value, int most)
{
    return value < most ? value : most;
}

static void multiply_tile(const struct linear_part *part, const struct panel *panel,
                          const uint16_t *x, size_t height, __m512 acc[TILE_ROWS_MAX])
{
    _Alignas(64) float sums[RUN_SCALES * TILE_VALUES];
    int n_units = n_units_of(part), step = part->group_spans ? 2 * part->group_spans : 1;
    for (size_t r = 0; r < height; r++)
        acc[r] = _mm512_setzero_ps();
    for (int first = 0; first < n_units; first += RUN_SCALES * step) {
        MULTIPLY_SCALE(SUM_0, first, clamp(first + step, n_units));
        MULTIPLY_SCALE(SUM_1, first + step, clamp(first + 2 * step, n_units));
        MULTIPLY_SCALE(SUM_2, first + 2 * step, clamp(first + 3 * step, n_units));
        MULTIPLY_SCALE(SUM_3, first + 3 * step, clamp(first + 4 * step, n_units));
        TILE_STORE(SUM_0, sums, 64);
        TILE_STORE(SUM_1, sums + TILE_VALUES, 64);
        TILE_STORE(SUM_2, sums + 2 * TILE_VALUES, 64);
        TILE_STORE(SUM_3, sums + 3 * TILE_VALUES, 64);
        for (int i = 0; i < RUN_SCALES && first + i * step < n_units; i++) {
            __m512 scale = _mm512_load_ps(panel->scales + (first + i * step) * BLOCK_ROWS);
            for (size_t r = 0; r < height; r++)
                acc[r] = _mm512_fmadd_ps(
                    _mm512_load_ps(sums + (size_t)i * TILE_VALUES + r * BLOCK_ROWS), scale, acc[r]);
        }
    }
}

void linear_amx_fp8(const struct linear_part *part, const struct linear_input *in,
                    struct linear_range blocks, struct linear_range rows,
                    const struct linear_output *output, void *scratch)
{
    size_t height = (size_t)in->tile_rows, n_units = (size_t)n_units_of(part);
    struct panel panel = {scratch, (float *)(void *)((uint8_t *)scratch + n_units * TILE_BYTES)};
    tiles_begin((int)height, 64);
    for (int64_t block = blocks.first; block < blocks.end; block++) {
        expand(part, block, &panel);
        for (int64_t row = rows.first; row < rows.end; row += in->tile_rows) {
            int64_t n = rows.end - row < in->tile_rows ? rows.end - row : in->tile_rows;
            const uint16_t *x = (const uint16_t *)in->rounded + (size_t)row * n_units * UNIT;
            __m512 acc[TILE_ROWS_MAX];
            multiply_tile(part, &panel, x, height, acc);
            store_rows(part, block, row, (int)n, output, acc);
        }
    }
    tiles_release();
}
