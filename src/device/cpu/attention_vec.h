/* Attention in f32 arithmetic in the names of vec_*.h: a file for an instruction set includes its
 * vec_*.h, then this, and fills its table. Values of narrower pages are expanded exactly. */
#ifndef CSGL_DEVICE_CPU_ATTENTION_VEC_H
#define CSGL_DEVICE_CPU_ATTENTION_VEC_H

#include "base/half.h"
#include "device/cpu/attention.h"

#include <float.h>
#include <stdbool.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 4,                  /* query vectors a register block, */
    VECS = VEC_REGISTERS / 8,  /* by vectors of tokens (scores) or of dims (accumulate) */
    TOKENS = VECS * VEC_LANES, /* a pass of scores */
    PIECE_PAIRS = ATTENTION_PIECE / 2
};

/* Fetches into the second level what lies as far behind `next` as `at` behind `from`. */
ALWAYS_INLINE void fetch_place(const void *from, const void *next, const void *at)
{
    __builtin_prefetch((const char *)next + ((const char *)at - (const char *)from), 0, 2);
}

/* Dims d and d + 1 (d even) of VEC_LANES tokens from `lane` of a piece of K. */
ALWAYS_INLINE void load_k(enum dtype dtype, const void *piece, int lane, int d, vec *a, vec *b)
{
    if (dtype == DTYPE_F32) {
        const float *p = (const float *)piece + d * ATTENTION_PIECE + lane;
        *a = vec_load(p);
        *b = vec_load(p + ATTENTION_PIECE);
    } else if (dtype == DTYPE_F16) {
        const uint16_t *p = (const uint16_t *)piece + d * ATTENTION_PIECE + lane;
        *a = vec_load_f16(p);
        *b = vec_load_f16(p + ATTENTION_PIECE);
    } else {
        const uint16_t *p = (const uint16_t *)piece + d * ATTENTION_PIECE + 2 * lane;
        vec_load_bf16_pairs(p, VEC_LANES, a, b);
    }
}

/* `rows` vectors times TOKENS tokens from token `first` of the block. */
ALWAYS_INLINE void score_rows(enum dtype dtype, int rows, struct attention_tile *tile,
                              const struct attention_block *block, int m, int first)
{
    int dim = tile->view->head_dim;
    const float *q = tile->q + (size_t)m * (size_t)dim;
    vec sums[ROWS][VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < VECS; i++)
            sums[r][i] = vec_set(0);
    for (int d = 0; d < dim; d += 2) {
        vec a[VECS], b[VECS];
        for (int i = 0; i < VECS; i++) {
            int token = first + i * VEC_LANES;
            load_k(dtype, block->k[token / ATTENTION_PIECE], token % ATTENTION_PIECE, d, &a[i],
                   &b[i]);
        }
        for (int r = 0; r < rows; r++) {
            vec q0 = vec_set(q[r * dim + d]), q1 = vec_set(q[r * dim + d + 1]);
            for (int i = 0; i < VECS; i++) {
                sums[r][i] = vec_fma(a[i], q0, sums[r][i]);
                sums[r][i] = vec_fma(b[i], q1, sums[r][i]);
            }
        }
    }
    float *out = tile->scores + (size_t)m * ATTENTION_BLOCK + first;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < VECS; i++)
            vec_store(out + r * ATTENTION_BLOCK + i * VEC_LANES, sums[r][i]);
}

ALWAYS_INLINE void score_all(enum dtype dtype, struct attention_tile *tile,
                             const struct attention_block *block)
{
    for (int first = 0; first < block->end; first += TOKENS) {
        int m = 0;
        for (; m + ROWS <= tile->n; m += ROWS)
            score_rows(dtype, ROWS, tile, block, m, first);
        if (tile->n - m == 3)
            score_rows(dtype, 3, tile, block, m, first);
        else if (tile->n - m == 2)
            score_rows(dtype, 2, tile, block, m, first);
        else if (tile->n - m == 1)
            score_rows(dtype, 1, tile, block, m, first);
    }
}

static void exact_scores(struct attention_tile *tile, const struct attention_block *block)
{
    if (tile->dtype == DTYPE_F32)
        score_all(DTYPE_F32, tile, block);
    else if (tile->dtype == DTYPE_F16)
        score_all(DTYPE_F16, tile, block);
    else
        score_all(DTYPE_BF16, tile, block);
}

/* Takes a new base for vector m: what was summed so far shrinks. */
static inline void raise_base(struct attention_tile *tile, int m, float base)
{
    int dim = tile->view->head_dim;
    float *acc = tile->acc + (size_t)m * (size_t)dim, *sums = tile->sums + m * ATTENTION_LANES;
    float before = tile->base[m];
    tile->base[m] = base;
    if (before == -FLT_MAX)
        return; /* nothing yet */
    vec shrink = vec_exp2(vec_set(before - base));
    for (int d = 0; d < dim; d += VEC_LANES) {
        int some = dim - d < VEC_LANES ? dim - d : VEC_LANES;
        vec_store_first(acc + d, vec_mul(vec_load_first(acc + d, some), shrink), some);
    }
    for (int i = 0; i < ATTENTION_LANES; i += VEC_LANES)
        vec_store(sums + i, vec_mul(vec_load(sums + i), shrink));
}

/* Probabilities of one vector that sees tokens lo .. hi-1 of the block, which are some. The base
 * need not be the largest score, only near enough that nothing overflows: while it holds, which is
 * nearly always, no maximum across lanes is taken and nothing is scaled. */
static inline void softmax_row(struct attention_tile *tile, const struct attention_block *block,
                               int m, int lo, int hi)
{
    enum { N = ATTENTION_BLOCK / VEC_LANES };
    float *scores = tile->scores + (size_t)m * ATTENTION_BLOCK;
    float *sums = tile->sums + m * ATTENTION_LANES;
    bool is_new = tile->base[m] == -FLT_MAX;
    vec x[N], scale = vec_set(tile->scale), best = vec_set(-FLT_MAX);
    vec base = vec_set(is_new ? 0 : tile->base[m]);
    for (int i = 0; i < N; i++) {
        vec s = vec_keep(vec_load(scores + i * VEC_LANES), lo - i * VEC_LANES, hi - i * VEC_LANES,
                         vec_set(0));
        x[i] = vec_fms(s, scale, base);
        best = vec_max(best,
                       vec_keep(x[i], lo - i * VEC_LANES, hi - i * VEC_LANES, vec_set(-FLT_MAX)));
    }
    if (is_new || vec_any_above(best, ATTENTION_HEADROOM)) {
        float raise = vec_largest(best);
        raise_base(tile, m, is_new ? raise : tile->base[m] + raise);
        for (int i = 0; i < N; i++)
            x[i] = vec_sub(x[i], vec_set(raise));
    }
    for (int i = 0; i < N; i++) {
        vec p = vec_keep(vec_exp2(x[i]), lo - i * VEC_LANES, hi - i * VEC_LANES, vec_set(0));
        vec weight = block->v_scales ? vec_mul(p, vec_load(block->v_scales + i * VEC_LANES)) : p;
        vec_store(scores + i * VEC_LANES, weight);
        float *sum = sums + i * VEC_LANES % ATTENTION_LANES;
        vec_store(sum, vec_add(vec_load(sum), p));
    }
}

/* The scores of vector m for codes: times their scales, and for each token the shares of those
 * before it in its piece. */
static inline void scale_scores(struct attention_tile *tile, const struct attention_block *block,
                                int m)
{
    for (int i = 0; i < block->end; i += ATTENTION_PIECE) {
        float *scores = tile->scores + (size_t)m * ATTENTION_BLOCK + i, before = 0;
        for (int lane = 0; lane < ATTENTION_PIECE; lane += VEC_LANES) {
            vec x = vec_mul(vec_load(scores + lane), vec_load(block->k_scales + i + lane));
            if (block->shares) {
                vec share = vec_mul(x, vec_load(block->shares + lane));
                vec up_to = vec_add(vec_prefix_sum(share), vec_set(before));
                x = vec_add(x, vec_sub(up_to, share));
                before += vec_sum(share);
            }
            vec_store(scores + lane, x);
        }
    }
}

/* The tokens lo .. hi-1 of the block that vector m sees; false if none. */
static inline bool seen_tokens(const struct attention_tile *tile,
                               const struct attention_block *block, int m, int *lo, int *hi)
{
    int first = tile->first[m] - block->place, end = tile->end[m] - block->place;
    *lo = first < block->first ? block->first : first;
    *hi = end > block->end ? block->end : end;
    return *lo < *hi;
}

static void reduce_sums(struct attention_tile *tile)
{
    for (int m = 0; m < tile->n; m++) {
        vec sum = vec_set(0);
        for (int i = 0; i < ATTENTION_LANES; i += VEC_LANES)
            sum = vec_add(sum, vec_load(tile->sums + m * ATTENTION_LANES + i));
        tile->sum[m] = vec_sum(sum);
    }
}

static void exact_softmax(struct attention_tile *tile, const struct attention_block *block)
{
    for (int m = 0; m < tile->n; m++) {
        int lo, hi;
        if (seen_tokens(tile, block, m, &lo, &hi)) {
            if (block->k_scales)
                scale_scores(tile, block, m);
            softmax_row(tile, block, m, lo, hi);
            continue;
        }
        float *scores = tile->scores + (size_t)m * ATTENTION_BLOCK;
        for (int i = 0; i < ATTENTION_BLOCK; i += VEC_LANES)
            vec_store(scores + i, vec_set(0));
    }
}

/* n dims from d of tokens 2 * pair and 2 * pair + 1. */
ALWAYS_INLINE void load_v(enum dtype dtype, const void *piece, int pair, int dim, int d, int n,
                          vec *a, vec *b)
{
    int at = 2 * pair * dim + d;
    if (dtype == DTYPE_F32) {
        *a = vec_load_first((const float *)piece + at, n);
        *b = vec_load_first((const float *)piece + at + dim, n);
    } else if (dtype == DTYPE_F16) {
        *a = vec_load_f16_first((const uint16_t *)piece + at, n);
        *b = vec_load_f16_first((const uint16_t *)piece + at + dim, n);
    } else {
        vec_load_bf16_pairs((const uint16_t *)piece + at + d, n, a, b);
    }
}

/* acc of `rows` vectors, `vecs` vectors of dims from d (the last `n` values long): adds the pairs
 * of tokens from `pair` to `end`, of each the first, the second or both. */
struct strip {
    int m, d, n;
    int pair, end;
    bool is_first, is_second;
};

ALWAYS_INLINE void add_pairs(enum dtype dtype, int rows, int vecs, struct attention_tile *tile,
                             const struct attention_block *block, struct strip strip)
{
    int dim = tile->view->head_dim, d = strip.d;
    float *acc = tile->acc + (size_t)strip.m * (size_t)dim + d;
    const float *p = tile->scores + (size_t)strip.m * ATTENTION_BLOCK;
    vec sums[ROWS][VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vecs; i++)
            sums[r][i] =
                vec_load_first(acc + r * dim + i * VEC_LANES, i + 1 < vecs ? VEC_LANES : strip.n);
    for (int pair = strip.pair; pair < strip.end; pair++) {
        vec a[VECS], b[VECS];
        for (int i = 0; i < vecs; i++)
            load_v(dtype, block->v[pair / PIECE_PAIRS], pair % PIECE_PAIRS, dim, d + i * VEC_LANES,
                   i + 1 < vecs ? VEC_LANES : strip.n, &a[i], &b[i]);
        for (int r = 0; r < rows; r++) {
            vec p0 = vec_set(p[r * ATTENTION_BLOCK + 2 * pair]);
            vec p1 = vec_set(p[r * ATTENTION_BLOCK + 2 * pair + 1]);
            for (int i = 0; i < vecs; i++) {
                if (strip.is_first)
                    sums[r][i] = vec_fma(a[i], p0, sums[r][i]);
                if (strip.is_second)
                    sums[r][i] = vec_fma(b[i], p1, sums[r][i]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vecs; i++)
            vec_store_first(acc + r * dim + i * VEC_LANES, sums[r][i],
                            i + 1 < vecs ? VEC_LANES : strip.n);
}

/* All tokens of the block for one strip: the pairs that it has whole, then the halves at its ends.
 * What lies in the other half may be anything, so it is not touched even with p = 0. */
ALWAYS_INLINE void add_block(enum dtype dtype, int rows, int vecs, struct attention_tile *tile,
                             const struct attention_block *block, struct strip strip)
{
    int first = block->first, end = block->end;
    strip.pair = (first + 1) / 2;
    strip.end = end / 2;
    strip.is_first = strip.is_second = true;
    add_pairs(dtype, rows, vecs, tile, block, strip);
    if (first % 2) {
        struct strip half = strip;
        half.pair = first / 2;
        half.end = half.pair + 1;
        half.is_first = false;
        add_pairs(dtype, rows, vecs, tile, block, half);
    }
    if (end % 2) {
        struct strip half = strip;
        half.pair = end / 2;
        half.end = half.pair + 1;
        half.is_second = false;
        add_pairs(dtype, rows, vecs, tile, block, half);
    }
}

ALWAYS_INLINE void add_rows(enum dtype dtype, int rows, struct attention_tile *tile,
                            const struct attention_block *block, int m)
{
    int dim = tile->view->head_dim, d = 0;
    struct strip strip = {.m = m, .n = VEC_LANES};
    for (; d + VECS * VEC_LANES <= dim; d += VECS * VEC_LANES) {
        strip.d = d;
        add_block(dtype, rows, VECS, tile, block, strip);
    }
    for (; d < dim; d += VEC_LANES) {
        strip.d = d;
        strip.n = dim - d < VEC_LANES ? dim - d : VEC_LANES;
        add_block(dtype, rows, 1, tile, block, strip);
    }
}

ALWAYS_INLINE void accumulate_all(enum dtype dtype, struct attention_tile *tile,
                                  const struct attention_block *block)
{
    int m = 0;
    for (; m + ROWS <= tile->n; m += ROWS)
        add_rows(dtype, ROWS, tile, block, m);
    if (tile->n - m == 3)
        add_rows(dtype, 3, tile, block, m);
    else if (tile->n - m == 2)
        add_rows(dtype, 2, tile, block, m);
    else if (tile->n - m == 1)
        add_rows(dtype, 1, tile, block, m);
}

static void exact_accumulate(struct attention_tile *tile, const struct attention_block *block)
{
    if (tile->dtype == DTYPE_F32)
        accumulate_all(DTYPE_F32, tile, block);
    else if (tile->dtype == DTYPE_F16)
        accumulate_all(DTYPE_F16, tile, block);
    else
        accumulate_all(DTYPE_BF16, tile, block);
}

static void round_bf16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = bf16_from_f32(from[i]);
}

#endif
