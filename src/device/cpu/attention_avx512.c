/* Attention for AVX-512: f32 arithmetic from attention_vec.h, and products of bf16 values (q and p
 * rounded, K and V as stored) with f32 sums by vdpbf16ps, which reads K and V as they lie. */
#include "device/cpu/vec_avx512.h"

#include "device/cpu/attention_vec.h"

#include <string.h>

enum {
    PAIR_ROWS = 6, /* query vectors a register block, by four vectors of tokens or dims */
    PAIR_VECS = 4
};

static void rounded_begin(struct attention_tile *tile)
{
    int n = tile->n * tile->view->head_dim;
    for (int i = 0; i < n; i += 16) {
        __mmask16 some = vec_first(n - i < 16 ? n - i : 16);
        __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, tile->q + i));
        _mm256_mask_storeu_epi16(tile->q16 + i, some, (__m256i)rounded);
    }
}

/* A pair of bf16 values in all lanes. */
static inline __m512bh pair_at(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

ALWAYS_INLINE void score_pairs(int rows, struct attention_tile *tile,
                               const struct attention_block *block, int m)
{
    int dim = tile->view->head_dim;
    const uint16_t *q = tile->q16 + (size_t)m * (size_t)dim;
    vec sums[PAIR_ROWS][PAIR_VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PAIR_VECS; i++)
            sums[r][i] = vec_set(0);
    for (int d = 0; d < dim; d += 2) {
        __m512bh k[PAIR_VECS];
        for (int i = 0; i < PAIR_VECS; i++)
            k[i] =
                (__m512bh)_mm512_loadu_si512((const uint16_t *)block->k[i] + d * ATTENTION_PIECE);
        for (int r = 0; r < rows; r++) {
            __m512bh pair = pair_at(q + r * dim + d);
            for (int i = 0; i < PAIR_VECS; i++)
                sums[r][i] = _mm512_dpbf16_ps(sums[r][i], k[i], pair);
        }
    }
    float *out = tile->scores + (size_t)m * ATTENTION_BLOCK;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PAIR_VECS; i++)
            vec_store(out + r * ATTENTION_BLOCK + i * VEC_LANES, sums[r][i]);
}

static void rounded_scores(struct attention_tile *tile, const struct attention_block *block)
{
    int m = 0;
    for (; m + PAIR_ROWS <= tile->n; m += PAIR_ROWS)
        score_pairs(PAIR_ROWS, tile, block, m);
    switch (tile->n - m) {
    case 1:
        score_pairs(1, tile, block, m);
        break;
    case 2:
        score_pairs(2, tile, block, m);
        break;
    case 3:
        score_pairs(3, tile, block, m);
        break;
    case 4:
        score_pairs(4, tile, block, m);
        break;
    case 5:
        score_pairs(5, tile, block, m);
        break;
    default:
        break;
    }
}

/* 2^x within 8e-5, far below what rounding to bf16 does: minimax polynomial of degree 3 for the
 * fraction of x; the power takes the floor itself. */
static inline vec exp2_rough(vec x)
{
    vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec p = vec_set(7.802453077e-02f);
    p = vec_fma(p, r, vec_set(2.260671463e-01f));
    p = vec_fma(p, r, vec_set(6.958335417e-01f));
    p = vec_fma(p, r, vec_set(9.999252188e-01f));
    return _mm512_scalef_ps(p, x);
}

/* As softmax_row; probabilities are rounded to bf16, their sum is not. */
static inline void rounded_softmax_row(struct attention_tile *tile, int m, uint64_t seen)
{
    enum { N = ATTENTION_BLOCK / VEC_LANES };
    const float *scores = tile->scores + (size_t)m * ATTENTION_BLOCK;
    uint16_t *to = tile->p16 + (size_t)m * ATTENTION_BLOCK;
    float *sums = tile->sums + m * ATTENTION_LANES;
    bool is_new = tile->base[m] == -FLT_MAX;
    vec x[N], scale = vec_set(tile->scale), base = vec_set(is_new ? 0 : tile->base[m]);
    for (int i = 0; i < N; i++)
        x[i] = _mm512_mask_mov_ps(vec_set(-FLT_MAX), (__mmask16)(seen >> i * VEC_LANES),
                                  vec_fms(vec_load(scores + i * VEC_LANES), scale, base));
    vec best = vec_max(vec_max(x[0], x[1]), vec_max(x[2], x[3]));
    if (is_new || vec_any_above(best, ATTENTION_HEADROOM)) {
        float raise = vec_largest(best);
        raise_base(tile, m, is_new ? raise : tile->base[m] + raise);
        for (int i = 0; i < N; i++)
            x[i] = vec_sub(x[i], vec_set(raise));
    }
    for (int i = 0; i < N; i++)
        x[i] = exp2_rough(x[i]);
    for (int i = 0; i < N; i += 2)
        _mm512_storeu_si512(to + i * VEC_LANES, (__m512i)_mm512_cvtne2ps_pbh(x[i + 1], x[i]));
    vec sum = vec_add(vec_add(x[0], x[1]), vec_add(x[2], x[3]));
    vec_store(sums, vec_add(vec_load(sums), sum));
}

static void rounded_softmax(struct attention_tile *tile, const struct attention_block *block)
{
    for (int m = 0; m < tile->n; m++) {
        int lo, hi;
        if (seen_tokens(tile, block, m, &lo, &hi))
            rounded_softmax_row(tile, m, _bzhi_u64(UINT64_MAX, (unsigned)hi) & UINT64_MAX << lo);
        else
            memset(tile->p16 + (size_t)m * ATTENTION_BLOCK, 0, ATTENTION_BLOCK * sizeof *tile->p16);
    }
}

/* As add_pairs. `halves` has a bit a value of V: those of tokens that may be used. */
ALWAYS_INLINE void add_rounded_pairs(int rows, int vecs, struct attention_tile *tile,
                                     const struct attention_block *block, struct strip strip,
                                     __mmask32 halves)
{
    int dim = tile->view->head_dim, d = strip.d;
    float *acc = tile->acc + (size_t)strip.m * (size_t)dim + d;
    const uint16_t *p = tile->p16 + (size_t)strip.m * ATTENTION_BLOCK;
    vec sums[PAIR_ROWS][PAIR_VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vecs; i++)
            sums[r][i] =
                vec_load_first(acc + r * dim + i * VEC_LANES, i + 1 < vecs ? VEC_LANES : strip.n);
    for (int pair = strip.pair; pair < strip.end; pair++) {
        const uint16_t *v =
            (const uint16_t *)block->v[pair / PIECE_PAIRS] + 2 * (pair % PIECE_PAIRS * dim + d);
        __m512bh values[PAIR_VECS];
        for (int i = 0; i < vecs; i++)
            values[i] = (__m512bh)_mm512_maskz_loadu_epi16(halves, v + i * 2 * VEC_LANES);
        for (int r = 0; r < rows; r++) {
            __m512bh both = pair_at(p + r * ATTENTION_BLOCK + 2 * pair);
            for (int i = 0; i < vecs; i++)
                sums[r][i] = _mm512_dpbf16_ps(sums[r][i], values[i], both);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vecs; i++)
            vec_store_first(acc + r * dim + i * VEC_LANES, sums[r][i],
                            i + 1 < vecs ? VEC_LANES : strip.n);
}

/* As add_block. */
ALWAYS_INLINE void add_rounded_block(int rows, int vecs, struct attention_tile *tile,
                                     const struct attention_block *block, struct strip strip)
{
    int first = block->first, end = block->end;
    __mmask32 all = _bzhi_u32(UINT32_MAX, 2 * (unsigned)strip.n);
    strip.pair = (first + 1) / 2;
    strip.end = end / 2;
    add_rounded_pairs(rows, vecs, tile, block, strip, all);
    strip.pair = first / 2;
    strip.end = strip.pair + first % 2;
    if (first % 2)
        add_rounded_pairs(rows, vecs, tile, block, strip, all & 0xAAAAAAAA);
    strip.pair = end / 2;
    strip.end = strip.pair + end % 2;
    if (end % 2)
        add_rounded_pairs(rows, vecs, tile, block, strip, all & 0x55555555);
}

ALWAYS_INLINE void add_rounded_rows(int rows, struct attention_tile *tile,
                                    const struct attention_block *block, int m)
{
    int dim = tile->view->head_dim, d = 0;
    struct strip strip = {.m = m, .n = VEC_LANES};
    for (; d + PAIR_VECS * VEC_LANES <= dim; d += PAIR_VECS * VEC_LANES) {
        strip.d = d;
        add_rounded_block(rows, PAIR_VECS, tile, block, strip);
    }
    for (; d < dim; d += VEC_LANES) {
        strip.d = d;
        strip.n = dim - d < VEC_LANES ? dim - d : VEC_LANES;
        add_rounded_block(rows, 1, tile, block, strip);
    }
}

static void rounded_accumulate(struct attention_tile *tile, const struct attention_block *block)
{
    int m = 0;
    for (; m + PAIR_ROWS <= tile->n; m += PAIR_ROWS)
        add_rounded_rows(PAIR_ROWS, tile, block, m);
    switch (tile->n - m) {
    case 1:
        add_rounded_rows(1, tile, block, m);
        break;
    case 2:
        add_rounded_rows(2, tile, block, m);
        break;
    case 3:
        add_rounded_rows(3, tile, block, m);
        break;
    case 4:
        add_rounded_rows(4, tile, block, m);
        break;
    case 5:
        add_rounded_rows(5, tile, block, m);
        break;
    default:
        break;
    }
}

void attention_round_f16_avx512(const float *from, uint16_t *to, int n)
{
    vec_round_f16(from, to, n);
}

void attention_round_bf16_avx512(const float *from, uint16_t *to, int n)
{
    round_bf16(from, to, n);
}

const struct attention_math attention_exact_avx512 = {.scores = exact_scores,
                                                      .softmax = exact_softmax,
                                                      .accumulate = exact_accumulate,
                                                      .end = reduce_sums};

const struct attention_math attention_rounded_avx512 = {.begin = rounded_begin,
                                                        .scores = rounded_scores,
                                                        .softmax = rounded_softmax,
                                                        .accumulate = rounded_accumulate,
                                                        .end = reduce_sums};

const struct attention_kernels attention_kernels_avx512 = {.exact = &attention_exact_avx512,
                                                           .rounded = &attention_rounded_avx512,
                                                           .rounded_least = 1,
                                                           .rounded_unit = 2,
                                                           .rounded_most = ATTENTION_MAX_DIM,
                                                           .round_f16 = attention_round_f16_avx512,
                                                           .round_bf16 =
                                                               attention_round_bf16_avx512};
