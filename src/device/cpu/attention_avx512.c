/* Attention for AVX-512: f32 arithmetic from attention_vec.h, and products of bf16 values (q and p
 * rounded, K and V as stored) with f32 sums by vdpbf16ps, which reads K and V as they lie. */
#include "device/cpu/vec_avx512.h"

#include "device/cpu/attention_codes.h"
#include "device/cpu/attention_encode.h"
#include "device/cpu/attention_vec.h"

#include <string.h>

enum {
    PAIR_ROWS = 6, /* query vectors a register block, by four vectors of tokens or dims */
    PAIR_VECS = 4,
    /* Of a piece: the sums of two rows over all of 128 dims fit into registers, so that V is read
     * in its order. */
    PIECE_ROWS = 2,
    PIECE_VECS = 8
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

static inline __m128i load_codes(const void *p)
{
    return _mm_loadu_si128(p);
}

/* A pair of bf16 values in all lanes. */
static inline __m512bh pair_at(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Bytes of a vector's 32 values. */
ALWAYS_INLINE int vector_bytes(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? 64 : dtype == DTYPE_I8 ? 32 : CODES_UNIT_BYTES;
}

/* The bf16 values that codes stand for, twice. */
static inline __m512i table_of_codes(void)
{
    __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_codes(codes_values)));
    return (__m512i)_mm512_cvtne2ps_pbh(values, values);
}

/* 32 values as bf16. */
ALWAYS_INLINE __m512i load_values(enum dtype dtype, const void *p, __m512i table)
{
    if (dtype == DTYPE_BF16)
        return _mm512_loadu_si512(p);
    if (dtype == DTYPE_I8) {
        __m256i codes = _mm256_loadu_si256(p);
        __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
        __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
        return (__m512i)_mm512_cvtne2ps_pbh(b, a);
    }
    /* vpermw looks at five bits of each word: the table is there twice, so that the lowest bit of
     * the code above does not matter. */
    const __m512i shifts = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4)),
        _mm256_setr_epi16(8, 8, 8, 8, 8, 8, 8, 8, 12, 12, 12, 12, 12, 12, 12, 12), 1);
    __m512i words = _mm512_broadcast_i32x4(load_codes(p));
    return _mm512_permutexvar_epi16(_mm512_srlv_epi16(words, shifts), table);
}

ALWAYS_INLINE void score_pairs(enum dtype dtype, int rows, struct attention_tile *tile,
                               const struct attention_block *block, int m)
{
    const int step = vector_bytes(dtype);
    const __m512i table = table_of_codes();
    int dim = tile->view->head_dim;
    const uint16_t *q = tile->q16 + (size_t)m * (size_t)dim;
    vec sums[PAIR_ROWS][PAIR_VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PAIR_VECS; i++)
            sums[r][i] = vec_set(0);
    for (int d = 0; d < dim; d += 2) {
        __m512bh k[PAIR_VECS];
        for (int i = 0; i < PAIR_VECS; i++) {
            const char *at = (const char *)block->k[i] + d / 2 * step;
            if (block->next && m == 0 && d / 2 * step % 64 == 0)
                fetch_place(block->k[i], block->next->k[i], at);
            k[i] = (__m512bh)load_values(dtype, at, table);
        }
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

ALWAYS_INLINE void scores_of(enum dtype dtype, struct attention_tile *tile,
                             const struct attention_block *block)
{
    int m = 0;
    for (; m + PAIR_ROWS <= tile->n; m += PAIR_ROWS)
        score_pairs(dtype, PAIR_ROWS, tile, block, m);
    switch (tile->n - m) {
    case 1:
        score_pairs(dtype, 1, tile, block, m);
        break;
    case 2:
        score_pairs(dtype, 2, tile, block, m);
        break;
    case 3:
        score_pairs(dtype, 3, tile, block, m);
        break;
    case 4:
        score_pairs(dtype, 4, tile, block, m);
        break;
    case 5:
        score_pairs(dtype, 5, tile, block, m);
        break;
    default:
        break;
    }
}

static void rounded_scores(struct attention_tile *tile, const struct attention_block *block)
{
    scores_of(DTYPE_BF16, tile, block);
}

static void coded_scores(struct attention_tile *tile, const struct attention_block *block)
{
    if (tile->dtype == DTYPE_I8)
        scores_of(DTYPE_I8, tile, block);
    else
        scores_of(DTYPE_I4, tile, block);
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
static inline void rounded_softmax_row(struct attention_tile *tile,
                                       const struct attention_block *block, int m, uint64_t seen)
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
    vec sum = vec_add(vec_add(x[0], x[1]), vec_add(x[2], x[3]));
    vec_store(sums, vec_add(vec_load(sums), sum));
    for (int i = 0; i < N && block->v_scales; i++)
        x[i] = vec_mul(x[i], vec_load(block->v_scales + i * VEC_LANES));
    for (int i = 0; i < N; i += 2)
        _mm512_storeu_si512(to + i * VEC_LANES, (__m512i)_mm512_cvtne2ps_pbh(x[i + 1], x[i]));
}

static void rounded_softmax(struct attention_tile *tile, const struct attention_block *block)
{
    for (int m = 0; m < tile->n; m++) {
        int lo, hi;
        if (!seen_tokens(tile, block, m, &lo, &hi)) {
            memset(tile->p16 + (size_t)m * ATTENTION_BLOCK, 0, ATTENTION_BLOCK * sizeof *tile->p16);
            continue;
        }
        if (block->k_scales)
            scale_scores(tile, block, m);
        rounded_softmax_row(tile, block, m, _bzhi_u64(UINT64_MAX, (unsigned)hi) & UINT64_MAX << lo);
    }
}

/* As add_pairs. `halves` has a bit a value of V: those of tokens that may be used. */
ALWAYS_INLINE void add_rounded_pairs(enum dtype dtype, int rows, int vecs,
                                     struct attention_tile *tile,
                                     const struct attention_block *block, struct strip strip,
                                     __mmask32 halves)
{
    const int step = vector_bytes(dtype);
    const __m512i table = table_of_codes();
    int dim = tile->view->head_dim, d = strip.d;
    float *acc = tile->acc + (size_t)strip.m * (size_t)dim + d;
    const uint16_t *p = tile->p16 + (size_t)strip.m * ATTENTION_BLOCK;
    vec sums[PAIR_ROWS][PAIR_VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vecs; i++)
            sums[r][i] =
                vec_load_first(acc + r * dim + i * VEC_LANES, i + 1 < vecs ? VEC_LANES : strip.n);
    for (int pair = strip.pair; pair < strip.end; pair++) {
        const char *v = block->v[pair / PIECE_PAIRS];
        const char *at = v + (pair % PIECE_PAIRS * dim + d) * step / VEC_LANES;
        __m512bh values[PAIR_VECS];
        for (int i = 0; i < vecs; i++, at += step) {
            if (block->next && strip.m == 0 && i * step % 64 == 0)
                fetch_place(v, block->next->v[pair / PIECE_PAIRS], at);
            values[i] =
                (__m512bh)(dtype == DTYPE_BF16
                               ? _mm512_maskz_loadu_epi16(halves, at)
                               : _mm512_maskz_mov_epi16(halves, load_values(dtype, at, table)));
        }
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
ALWAYS_INLINE void add_rounded_block(enum dtype dtype, int rows, int vecs,
                                     struct attention_tile *tile,
                                     const struct attention_block *block, struct strip strip)
{
    int first = block->first, end = block->end;
    __mmask32 all = _bzhi_u32(UINT32_MAX, 2 * (unsigned)strip.n);
    strip.pair = (first + 1) / 2;
    strip.end = end / 2;
    add_rounded_pairs(dtype, rows, vecs, tile, block, strip, all);
    strip.pair = first / 2;
    strip.end = strip.pair + first % 2;
    if (first % 2)
        add_rounded_pairs(dtype, rows, vecs, tile, block, strip, all & 0xAAAAAAAA);
    strip.pair = end / 2;
    strip.end = strip.pair + end % 2;
    if (end % 2)
        add_rounded_pairs(dtype, rows, vecs, tile, block, strip, all & 0x55555555);
}

ALWAYS_INLINE void add_rounded_rows(enum dtype dtype, int rows, struct attention_tile *tile,
                                    const struct attention_block *block, int m)
{
    int dim = tile->view->head_dim, d = 0;
    struct strip strip = {.m = m, .n = VEC_LANES};
    for (; d + PAIR_VECS * VEC_LANES <= dim; d += PAIR_VECS * VEC_LANES) {
        strip.d = d;
        add_rounded_block(dtype, rows, PAIR_VECS, tile, block, strip);
    }
    for (; d < dim; d += VEC_LANES) {
        strip.d = d;
        strip.n = dim - d < VEC_LANES ? dim - d : VEC_LANES;
        add_rounded_block(dtype, rows, 1, tile, block, strip);
    }
}

ALWAYS_INLINE void sums_of(enum dtype dtype, struct attention_tile *tile,
                           const struct attention_block *block)
{
    int m = 0;
    for (; m + PAIR_ROWS <= tile->n; m += PAIR_ROWS)
        add_rounded_rows(dtype, PAIR_ROWS, tile, block, m);
    switch (tile->n - m) {
    case 1:
        add_rounded_rows(dtype, 1, tile, block, m);
        break;
    case 2:
        add_rounded_rows(dtype, 2, tile, block, m);
        break;
    case 3:
        add_rounded_rows(dtype, 3, tile, block, m);
        break;
    case 4:
        add_rounded_rows(dtype, 4, tile, block, m);
        break;
    case 5:
        add_rounded_rows(dtype, 5, tile, block, m);
        break;
    default:
        break;
    }
}

static void rounded_accumulate(struct attention_tile *tile, const struct attention_block *block)
{
    sums_of(DTYPE_BF16, tile, block);
}

static void coded_accumulate(struct attention_tile *tile, const struct attention_block *block)
{
    if (tile->dtype == DTYPE_I8)
        sums_of(DTYPE_I8, tile, block);
    else
        sums_of(DTYPE_I4, tile, block);
}

/* --- few vectors, a piece at a time ----------------------------------------------------------- */

/* Whether pieces ask for what is read next. Zen 4 reads a page that is walked in order as fast
 * without; Zen 5 then reaches half of its memory's speed (docs/performance.md). */
ALWAYS_INLINE bool wants_next(void)
{
    return !__builtin_cpu_is("amdfam19h");
}

/* A line that was read, with a request into the first level for the one at `ask` beside it. It
 * says where both stand, else the compiler asks for several lines at once. */
ALWAYS_INLINE __m512i line_asking(bool asks, __m512i line, const char *ask)
{
    if (asks)
        __asm__ volatile("prefetcht0 %1" : "+v"(line) : "m"(*ask));
    return line;
}

/* Scores of `rows` vectors, with so many sums each that products do not wait for one another. All
 * loops over sums are unrolled here and in piece_sums: an array that is not lies in memory. */
ALWAYS_INLINE void piece_scores(bool asks, int rows, const struct attention_tile *tile,
                                const struct attention_piece *piece, int m, vec *scores)
{
    enum { CHAINS = PIECE_VECS / PIECE_ROWS };
    int dim = tile->view->head_dim;
    const uint16_t *q = tile->q16 + (size_t)m * (size_t)dim, *end = q + dim;
    const char *k = piece->k, *ask = piece->v;
    vec sums[PIECE_ROWS][CHAINS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS; i++)
            sums[r][i] = vec_set(0);
    for (; q < end; q += 2 * CHAINS, k += 64 * CHAINS, ask += 64 * CHAINS) {
#pragma GCC unroll 4
        for (int i = 0; i < CHAINS; i++) {
            __m512i line = line_asking(asks, _mm512_loadu_si512(k + 64 * i), ask + 64 * i);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
                sums[r][i] =
                    _mm512_dpbf16_ps(sums[r][i], (__m512bh)line, pair_at(q + r * dim + 2 * i));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
        scores[r] = vec_add(vec_add(sums[r][0], sums[r][1]), vec_add(sums[r][2], sums[r][3]));
}

/* Scores to probabilities, rounded; as rounded_softmax_row. */
static inline void piece_softmax(struct attention_tile *tile, const struct attention_piece *piece,
                                 int m, vec x)
{
    uint16_t *to = tile->p16 + (size_t)m * ATTENTION_BLOCK;
    int lo = tile->first[m] - piece->place, hi = tile->end[m] - piece->place;
    lo = lo > piece->first ? lo : piece->first;
    hi = hi < piece->end ? hi : piece->end;
    if (lo >= hi) {
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_setzero_si256());
        return;
    }
    __mmask16 seen = (__mmask16)(_bzhi_u32(UINT32_MAX, (unsigned)hi) & UINT32_MAX << lo);
    bool is_new = tile->base[m] == -FLT_MAX;
    vec base = vec_set(is_new ? 0 : tile->base[m]);
    x = _mm512_mask_mov_ps(vec_set(-FLT_MAX), seen, vec_fms(x, vec_set(tile->scale), base));
    if (is_new || vec_any_above(x, ATTENTION_HEADROOM)) {
        float raise = vec_largest(x);
        raise_base(tile, m, is_new ? raise : tile->base[m] + raise);
        x = vec_sub(x, vec_set(raise));
    }
    x = exp2_rough(x);
    float *sums = tile->sums + m * ATTENTION_LANES;
    vec_store(sums, vec_add(vec_load(sums), x));
    _mm256_storeu_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh(x));
}

/* The values of V's pair of tokens 2 pair and 2 pair + 1 that may be used. */
static inline __mmask32 used_halves(const struct attention_piece *piece, int pair)
{
    uint32_t used = _bzhi_u32(UINT32_MAX, (unsigned)piece->end) & UINT32_MAX << piece->first;
    return (used >> 2 * pair & 1) * 0x55555555 | (used >> (2 * pair + 1) & 1) * 0xAAAAAAAA;
}

/* Adds the piece's V to `vecs` vectors of acc from d. */
ALWAYS_INLINE void piece_sums(bool asks, bool is_whole, int rows, int vecs,
                              struct attention_tile *tile, const struct attention_piece *piece,
                              int m, int d)
{
    int dim = tile->view->head_dim;
    float *acc = tile->acc + (size_t)m * (size_t)dim + d;
    const uint16_t *p = tile->p16 + (size_t)m * ATTENTION_BLOCK;
    const char *v = (const char *)piece->v + 4 * d, *ask = (const char *)piece->next + 4 * d;
    vec sums[PIECE_ROWS][PIECE_VECS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++)
            sums[r][i] = vec_load(acc + r * dim + i * VEC_LANES);
    for (int pair = 0; pair < PIECE_PAIRS; pair++, v += 4 * dim, ask += 4 * dim) {
        __mmask32 halves = is_whole ? UINT32_MAX : used_halves(piece, pair);
        __m512bh weights[PIECE_ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
            weights[r] = pair_at(p + r * ATTENTION_BLOCK + 2 * pair);
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++) {
            __m512i line =
                line_asking(asks, _mm512_maskz_loadu_epi16(halves, v + 64 * i), ask + 64 * i);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
                sums[r][i] = _mm512_dpbf16_ps(sums[r][i], (__m512bh)line, weights[r]);
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int i = 0; i < vecs; i++)
            vec_store(acc + r * dim + i * VEC_LANES, sums[r][i]);
}

ALWAYS_INLINE void piece_rows(bool asks, bool is_whole, int rows, struct attention_tile *tile,
                              const struct attention_piece *piece, int m)
{
    vec scores[PIECE_ROWS];
    piece_scores(asks, rows, tile, piece, m, scores);
    for (int r = 0; r < rows; r++)
        piece_softmax(tile, piece, m + r, scores[r]);
    int dim = tile->view->head_dim, d = 0;
    for (; d + PIECE_VECS * VEC_LANES <= dim; d += PIECE_VECS * VEC_LANES)
        piece_sums(asks, is_whole, rows, PIECE_VECS, tile, piece, m, d);
    for (; d + PAIR_VECS * VEC_LANES <= dim; d += PAIR_VECS * VEC_LANES)
        piece_sums(asks, is_whole, rows, PAIR_VECS, tile, piece, m, d);
    for (; d < dim; d += VEC_LANES)
        piece_sums(asks, is_whole, rows, 1, tile, piece, m, d);
}

ALWAYS_INLINE void piece_any(bool asks, struct attention_tile *tile,
                             const struct attention_piece *piece, int m, int n)
{
    bool is_whole = piece->first == 0 && piece->end == ATTENTION_PIECE;
    if (n == PIECE_ROWS && is_whole)
        piece_rows(asks, true, PIECE_ROWS, tile, piece, m);
    else if (n == PIECE_ROWS)
        piece_rows(asks, false, PIECE_ROWS, tile, piece, m);
    else if (is_whole)
        piece_rows(asks, true, 1, tile, piece, m);
    else
        piece_rows(asks, false, 1, tile, piece, m);
}

static void few_piece(struct attention_tile *tile, const struct attention_piece *piece, int m,
                      int n)
{
    if (wants_next())
        piece_any(true, tile, piece, m, n);
    else
        piece_any(false, tile, piece, m, n);
}

void attention_expand_avx512(enum dtype dtype, const void *codes, const void *next, uint16_t *to,
                             int n)
{
    const char *at = codes;
    const __m512i table = table_of_codes();
    for (int i = 0; i < n; i += 32, at += vector_bytes(dtype)) {
        if (next && (at - (const char *)codes) % 64 == 0)
            fetch_place(codes, next, at);
        _mm512_storeu_si512(to + i, dtype == DTYPE_I8 ? load_values(DTYPE_I8, at, table)
                                                      : load_values(DTYPE_I4, at, table));
    }
}

float attention_encode_avx512(enum dtype dtype, const float *x, int dim, uint8_t *codes)
{
    return encode_vector(dtype, x, dim, codes);
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

static const struct attention_math coded_math = {.begin = rounded_begin,
                                                 .scores = coded_scores,
                                                 .softmax = rounded_softmax,
                                                 .accumulate = coded_accumulate,
                                                 .end = reduce_sums};

static const struct attention_math few_math = {
    .begin = rounded_begin, .piece = few_piece, .end = reduce_sums};

const struct attention_kernels attention_kernels_avx512 = {.exact = &attention_exact_avx512,
                                                           .rounded = &attention_rounded_avx512,
                                                           .rounded_least = 1,
                                                           .rounded_unit = 2,
                                                           .rounded_most = ATTENTION_MAX_DIM,
                                                           .few = &few_math,
                                                           .few_unit = VEC_LANES,
                                                           .few_most = PIECE_ROWS,
                                                           .coded = &coded_math,
                                                           .coded_unit = VEC_LANES,
                                                           .coded_most = PAIR_ROWS,
                                                           .expand = attention_expand_avx512,
                                                           .encode = attention_encode_avx512,
                                                           .round_f16 = attention_round_f16_avx512,
                                                           .round_bf16 =
                                                               attention_round_bf16_avx512};
