/* Attention on AMX: q K^T and p V as products of bf16 tiles. K and V lie in pages as tiles want
 * them (16 rows of pairs), so that both are read in place; only tokens at the ends of a range, and
 * V of pages of 16 tokens, whose 32 rows lie apart, are copied. Pays for tiles of many query
 * vectors; for a few, AVX-512 in f32 is as fast (on the Intel cores that have AMX, vdpbf16ps is
 * not).
 *
 * Tiles 0-3 are sums of 2 x 2 tiles of 16 x 16; 4, 5 hold q or p; 6, 7 hold K or V. */
#include "device/cpu/amx.h"
#include "device/cpu/attention.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 64, /* of a row: 16 sums, or 16 pairs */
    STEP = 32,       /* values of the inner dimension a product */
    MOST_DIMS = 256
};

static void amx_begin(struct attention_tile *tile)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < AMX_TILES; i++) {
        config.row_bytes[i] = TILE_BYTES;
        config.rows[i] = TILE_ROWS;
    }
    tiles_configure(&config);
    attention_rounded_avx512.begin(tile);
}

static void amx_end(struct attention_tile *tile)
{
    tiles_release();
    attention_rounded_avx512.end(tile);
}

/* 32 query vectors (or 16: is_pair false) from m times tokens 16 i .. 16 i + 31. */
static inline void score_tiles(struct attention_tile *tile, const struct attention_block *block,
                               int m, bool is_pair, int i)
{
    int dim = tile->view->head_dim;
    const uint16_t *q = tile->q16 + m * dim, *k0 = block->k[i], *k1 = block->k[i + 1];
    size_t q_stride = (size_t)dim * sizeof *q;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int d = 0; d < dim; d += STEP) {
        TILE_LOAD(6, k0 + d * ATTENTION_PIECE, TILE_BYTES);
        TILE_LOAD(7, k1 + d * ATTENTION_PIECE, TILE_BYTES);
        TILE_LOAD(4, q + d, q_stride);
        TILE_BF16(0, 4, 6);
        TILE_BF16(1, 4, 7);
        if (is_pair) {
            TILE_LOAD(5, q + TILE_ROWS * dim + d, q_stride);
            TILE_BF16(2, 5, 6);
            TILE_BF16(3, 5, 7);
        }
    }
    float *out = tile->scores + m * ATTENTION_BLOCK + i * ATTENTION_PIECE;
    enum { OUT_STRIDE = ATTENTION_BLOCK * sizeof(float) };
    TILE_STORE(0, out, OUT_STRIDE);
    TILE_STORE(1, out + ATTENTION_PIECE, OUT_STRIDE);
    if (is_pair) {
        TILE_STORE(2, out + TILE_ROWS * ATTENTION_BLOCK, OUT_STRIDE);
        TILE_STORE(3, out + TILE_ROWS * ATTENTION_BLOCK + ATTENTION_PIECE, OUT_STRIDE);
    }
}

/* Rows behind the last vector are computed too: the arrays of a worker have ATTENTION_TILE rows. */
static void amx_scores(struct attention_tile *tile, const struct attention_block *block)
{
    for (int i = 0; i * ATTENTION_PIECE < block->end; i += 2)
        for (int m = 0; m < tile->n; m += 2 * TILE_ROWS)
            score_tiles(tile, block, m, tile->n - m > TILE_ROWS, i);
}

static void amx_softmax(struct attention_tile *tile, const struct attention_block *block)
{
    attention_rounded_avx512.softmax(tile, block);
}

/* The 16 rows of pairs of tokens `first` .. first + 31 of V: where they lie, or a copy in `to` with
 * zeros for tokens that may not be used. */
static const uint16_t *v_rows(const struct attention_block *block, int first, int dim, uint16_t *to)
{
    const uint16_t *parts[] = {block->v[first / ATTENTION_PIECE],
                               block->v[first / ATTENTION_PIECE + 1]};
    size_t part = (size_t)(ATTENTION_PIECE * dim);
    bool is_whole = first >= block->first && first + STEP <= block->end;
    if (is_whole && parts[1] == parts[0] + part)
        return parts[0];
    for (int i = 0; i < 2; i++)
        if (first + i * ATTENTION_PIECE < block->end)
            memcpy(to + (size_t)i * part, parts[i], part * sizeof *to);
    for (int t = 0; t < STEP && !is_whole; t++)
        if (first + t < block->first || first + t >= block->end)
            for (int d = 0; d < dim; d++)
                to[(t / 2 * dim + d) * 2 + t % 2] = 0;
    return to;
}

/* Adds p V for 32 vectors (or 16) from m and dims d .. d + 31, over `steps` times 32 tokens. */
static inline void add_tiles(struct attention_tile *tile, const uint16_t *const *v, int steps,
                             int m, bool is_pair, int d)
{
    int dim = tile->view->head_dim;
    float *acc = tile->acc + m * dim + d, *acc2 = acc + TILE_ROWS * dim;
    const uint16_t *p = tile->p16 + m * ATTENTION_BLOCK;
    size_t stride = (size_t)dim * sizeof *acc;
    enum { P_STRIDE = ATTENTION_BLOCK * sizeof(uint16_t) };
    TILE_LOAD(0, acc, stride);
    TILE_LOAD(1, acc + TILE_ROWS, stride);
    if (is_pair) {
        TILE_LOAD(2, acc2, stride);
        TILE_LOAD(3, acc2 + TILE_ROWS, stride);
    }
    for (int i = 0; i < steps; i++) {
        TILE_LOAD(6, v[i] + 2 * d, stride);
        TILE_LOAD(7, v[i] + 2 * d + STEP, stride);
        TILE_LOAD(4, p + i * STEP, P_STRIDE);
        TILE_BF16(0, 4, 6);
        TILE_BF16(1, 4, 7);
        if (is_pair) {
            TILE_LOAD(5, p + TILE_ROWS * ATTENTION_BLOCK + i * STEP, P_STRIDE);
            TILE_BF16(2, 5, 6);
            TILE_BF16(3, 5, 7);
        }
    }
    TILE_STORE(0, acc, stride);
    TILE_STORE(1, acc + TILE_ROWS, stride);
    if (is_pair) {
        TILE_STORE(2, acc2, stride);
        TILE_STORE(3, acc2 + TILE_ROWS, stride);
    }
}

static void amx_accumulate(struct attention_tile *tile, const struct attention_block *block)
{
    enum { STEPS = ATTENTION_BLOCK / STEP };
    _Alignas(64) uint16_t copies[STEPS][STEP * MOST_DIMS];
    const uint16_t *v[STEPS];
    int dim = tile->view->head_dim, steps = (block->end + STEP - 1) / STEP;
    assert(dim <= MOST_DIMS && dim % STEP == 0);
    for (int i = 0; i < steps; i++)
        v[i] = v_rows(block, i * STEP, dim, copies[i]);
    for (int d = 0; d < dim; d += STEP)
        for (int m = 0; m < tile->n; m += 2 * TILE_ROWS)
            add_tiles(tile, v, steps, m, tile->n - m > TILE_ROWS, d);
}

static const struct attention_math amx_math = {.begin = amx_begin,
                                               .scores = amx_scores,
                                               .softmax = amx_softmax,
                                               .accumulate = amx_accumulate,
                                               .end = amx_end};

const struct attention_kernels attention_kernels_amx = {.exact = &attention_exact_avx512,
                                                        .rounded = &amx_math,
                                                        .rounded_least = 4,
                                                        .rounded_unit = STEP,
                                                        .rounded_most = MOST_DIMS,
                                                        .expand = attention_expand_avx512,
                                                        .encode = attention_encode_avx512,
                                                        .round_f16 = attention_round_f16_avx512,
                                                        .round_bf16 = attention_round_bf16_avx512};
