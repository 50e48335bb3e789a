/* The gated delta rule in the names of vec_*.h: a file for an instruction set includes its vec_*.h,
 * then this, and fills its table.
 *
 * Columns of a state do not depend on each other. Few rows are computed one by one, a stretch of
 * columns at a time, which stays in the first-level cache. More rows go through the chunked form
 * (arXiv:2412.06464, section 3.3). With G the running sum of g in the chunk, D(r, s) = e^(G[r] -
 * G[s]), S the state before the chunk and n its rows:
 *
 *     delta[r] = beta[r] (v[r] - e^G[r] S^T k[r] - sum_{s<r} D(r, s) (k[r] k[s]) delta[s])
 *
 *     out[r] = e^G[r] S^T q[r] + sum_{s<=r} D(r, s) (q[r] k[s]) delta[s]
 *
 *     S' = e^G[n-1] S + sum_r D(n-1, r) k[r] delta[r]^T
 *
 * which is products of matrices but for the recursion in delta. No exponent is positive.
 */
#ifndef CSGL_DEVICE_CPU_GATED_DELTA_VEC_H
#define CSGL_DEVICE_CPU_GATED_DELTA_VEC_H

#include "device/cpu/gated_delta.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    ROWS = 4,                 /* rows of a product that share one reading of the right matrix, */
    VECS = VEC_REGISTERS / 8, /* by vectors of its columns */
    COLS = VECS * VEC_LANES
};

/* How many lanes of vector `i` of a stretch of n columns exist. */
ALWAYS_INLINE int lanes_of(int n, int i)
{
    int some = n - i * VEC_LANES;
    return some < 0 ? 0 : some < VEC_LANES ? some : VEC_LANES;
}

/* to = from * keep + a b for `rows` rows and a stretch of n <= COLS columns; a is [rows][depth] and
 * b [depth][n]. keep 0: `to` is not read. */
ALWAYS_INLINE void product_block(int rows, int n, int depth, const float *a, size_t a_stride,
                                 const float *b, size_t b_stride, float keep, float *to,
                                 size_t to_stride)
{
    vec sums[ROWS][VECS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < VECS; i++)
            sums[r][i] = keep != 0
                             ? vec_mul(vec_set(keep),
                                       vec_load_first(to + (size_t)r * to_stride + i * VEC_LANES,
                                                      lanes_of(n, i)))
                             : vec_set(0);
    for (int d = 0; d < depth; d++) {
        vec right[VECS];
        for (int i = 0; i < VECS; i++)
            right[i] = vec_load_first(b + (size_t)d * b_stride + i * VEC_LANES, lanes_of(n, i));
        for (int r = 0; r < rows; r++) {
            vec left = vec_set(a[(size_t)r * a_stride + (size_t)d]);
            for (int i = 0; i < VECS; i++)
                sums[r][i] = vec_fma(left, right[i], sums[r][i]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < VECS; i++)
            vec_store_first(to + (size_t)r * to_stride + i * VEC_LANES, sums[r][i], lanes_of(n, i));
}

ALWAYS_INLINE void product_rows(int rows, int n, int depth, const float *a, size_t a_stride,
                                const float *b, size_t b_stride, float keep, float *to,
                                size_t to_stride)
{
    if (n == COLS)
        product_block(rows, COLS, depth, a, a_stride, b, b_stride, keep, to, to_stride);
    else
        product_block(rows, n, depth, a, a_stride, b, b_stride, keep, to, to_stride);
}

/* to [rows][cols] = keep * to + a [rows][depth] b [depth][cols] */
static void product(int rows, int cols, int depth, const float *a, size_t a_stride, const float *b,
                    size_t b_stride, float keep, float *to, size_t to_stride)
{
    for (int col = 0; col < cols; col += COLS) {
        int n = cols - col < COLS ? cols - col : COLS, row = 0;
        for (; row + ROWS <= rows; row += ROWS)
            product_rows(ROWS, n, depth, a + (size_t)row * a_stride, a_stride, b + col, b_stride,
                         keep, to + (size_t)row * to_stride + col, to_stride);
        for (; row < rows; row++)
            product_rows(1, n, depth, a + (size_t)row * a_stride, a_stride, b + col, b_stride, keep,
                         to + (size_t)row * to_stride + col, to_stride);
    }
}

static void normalize(const float *x, float *out, int n, float scale)
{
    vec squares = vec_set(0);
    for (int i = 0; i < n; i += VEC_LANES) {
        vec v = vec_load_first(x + i, n - i < VEC_LANES ? n - i : VEC_LANES);
        squares = vec_fma(v, v, squares);
    }
    vec factor = vec_set(scale / sqrtf(vec_sum(squares) + 1e-6f));
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        vec_store_first(out + i, vec_mul(vec_load_first(x + i, some), factor), some);
    }
}

/* state = decay * state + k delta^T for a stretch of n <= COLS columns. */
ALWAYS_INLINE void update(const float *k, const vec delta[VECS], float decay, float *state,
                          int k_dim, size_t stride, int n)
{
    for (int i = 0; i < k_dim; i++, state += stride) {
        vec left = vec_set(k[i]);
        for (int j = 0; j < VECS; j++) {
            int some = lanes_of(n, j);
            vec s = vec_mul(vec_set(decay), vec_load_first(state + j * VEC_LANES, some));
            vec_store_first(state + j * VEC_LANES, vec_fma(left, delta[j], s), some);
        }
    }
}

/* Row t on a stretch of n columns. S^T k and S^T q come from one reading of the state, since
 * (S + k delta^T)^T q = S^T q + (k.q) delta. */
ALWAYS_INLINE void step(const struct delta_rows *rows, int t, float k_dot_q, float *state, int col,
                        int n)
{
    int k_dim = rows->k_dim;
    size_t stride = (size_t)rows->v_dim;
    const float *q = rows->q + (size_t)t * (size_t)k_dim, *k = rows->k + (size_t)t * (size_t)k_dim;
    const float *v = rows->v + (size_t)t * rows->v_stride + col;
    float *out = rows->out + (size_t)t * rows->out_stride + col;
    float *delta = rows->delta + (size_t)t * stride + col;
    float decay = expf(rows->g[t]);
    vec by_k[VECS], by_q[VECS], deltas[VECS];
    for (int j = 0; j < VECS; j++)
        by_k[j] = by_q[j] = vec_set(0);
    state += col;
    const float *s = state;
    for (int i = 0; i < k_dim; i++, s += stride)
        for (int j = 0; j < VECS; j++) {
            vec one = vec_load_first(s + j * VEC_LANES, lanes_of(n, j));
            by_k[j] = vec_fma(one, vec_set(k[i]), by_k[j]);
            by_q[j] = vec_fma(one, vec_set(q[i]), by_q[j]);
        }
    for (int j = 0; j < VECS; j++) {
        int some = lanes_of(n, j);
        vec rest = vec_fnma(vec_set(decay), by_k[j], vec_load_first(v + j * VEC_LANES, some));
        deltas[j] = vec_mul(vec_set(rows->beta[t]), rest);
        vec_store_first(delta + j * VEC_LANES, deltas[j], some);
        vec o = vec_mul(vec_set(decay), by_q[j]);
        vec_store_first(out + j * VEC_LANES, vec_fma(vec_set(k_dot_q), deltas[j], o), some);
    }
    update(k, deltas, decay, state, k_dim, stride, n);
}

static float dot(const float *a, const float *b, int n)
{
    vec sum = vec_set(0);
    for (int i = 0; i < n; i += VEC_LANES) {
        int some = n - i < VEC_LANES ? n - i : VEC_LANES;
        sum = vec_fma(vec_load_first(a + i, some), vec_load_first(b + i, some), sum);
    }
    return vec_sum(sum);
}

static void advance_by_steps(const struct delta_rows *rows, float *state)
{
    float k_dot_q[DELTA_STEPS];
    for (int t = 0; t < rows->n; t++)
        k_dot_q[t] = dot(rows->k + (size_t)t * (size_t)rows->k_dim,
                         rows->q + (size_t)t * (size_t)rows->k_dim, rows->k_dim);
    for (int col = 0; col < rows->v_dim; col += COLS)
        for (int t = 0; t < rows->n; t++) {
            if (rows->v_dim - col >= COLS)
                step(rows, t, k_dot_q[t], state, col, COLS);
            else
                step(rows, t, k_dot_q[t], state, col, rows->v_dim - col);
        }
}

/* What a chunk works on, in the memory of its rows. */
struct chunk {
    float *k_turned;        /* [k_dim][DELTA_CHUNK] */
    float *shrunk;          /* [n][v_dim]: delta as the state at the end sees it */
    float *by_k;            /* [n][DELTA_CHUNK]: -beta[r] e^(G[r] - G[s]) k[r].k[s] */
    float *by_q;            /* [n][DELTA_CHUNK]: e^(G[r] - G[s]) q[r].k[s], 0 for s > r */
    float sum[DELTA_CHUNK]; /* G */
};

static void chunk_begin(const struct delta_rows *rows, struct chunk *chunk)
{
    int n = rows->n, k_dim = rows->k_dim;
    size_t depth = (size_t)k_dim;
    chunk->k_turned = rows->memory;
    chunk->shrunk = chunk->k_turned + depth * DELTA_CHUNK;
    chunk->by_k = chunk->shrunk + (size_t)rows->v_dim * DELTA_CHUNK;
    chunk->by_q = chunk->by_k + DELTA_CHUNK * DELTA_CHUNK;
    for (int r = 0; r < n; r++) {
        chunk->sum[r] = (r ? chunk->sum[r - 1] : 0) + rows->g[r];
        for (int i = 0; i < k_dim; i++)
            chunk->k_turned[(size_t)i * DELTA_CHUNK + (size_t)r] =
                rows->k[(size_t)r * depth + (size_t)i];
    }
    /* Rows of a product need only the columns up to their own. */
    for (int row = 0; row < n; row += ROWS) {
        int some = n - row < ROWS ? n - row : ROWS;
        size_t at = (size_t)row * depth, to = (size_t)row * DELTA_CHUNK;
        product(some, row + some, k_dim, rows->k + at, depth, chunk->k_turned, DELTA_CHUNK, 0,
                chunk->by_k + to, DELTA_CHUNK);
        product(some, row + some, k_dim, rows->q + at, depth, chunk->k_turned, DELTA_CHUNK, 0,
                chunk->by_q + to, DELTA_CHUNK);
    }
    for (int r = 0; r < n; r++) {
        float *by_k = chunk->by_k + r * DELTA_CHUNK, *by_q = chunk->by_q + r * DELTA_CHUNK;
        for (int s = 0; s <= r; s += VEC_LANES) {
            int some = r + 1 - s < VEC_LANES ? r + 1 - s : VEC_LANES;
            vec between = vec_sub(vec_set(chunk->sum[r]), vec_load_first(chunk->sum + s, some));
            vec decay = vec_exp(between);
            vec left = vec_mul(decay, vec_set(-rows->beta[r]));
            vec_store_first(by_k + s, vec_mul(vec_load_first(by_k + s, some), left), some);
            vec_store_first(by_q + s, vec_mul(vec_load_first(by_q + s, some), decay), some);
        }
        for (int s = r + 1; s < (r / ROWS + 1) * ROWS && s < n; s++)
            by_q[s] = 0;
    }
}

/* delta, from S^T k in its place. */
static void chunk_solve(const struct delta_rows *rows, const struct chunk *chunk)
{
    int n = rows->n, v_dim = rows->v_dim;
    size_t stride = (size_t)v_dim;
    for (int row = 0; row < n; row += ROWS) {
        int end = n - row < ROWS ? n : row + ROWS;
        for (int r = row; r < end; r++) {
            float *delta = rows->delta + (size_t)r * stride;
            const float *v = rows->v + (size_t)r * rows->v_stride;
            vec decay = vec_set(expf(chunk->sum[r])), beta = vec_set(rows->beta[r]);
            for (int j = 0; j < v_dim; j += VEC_LANES) {
                int some = v_dim - j < VEC_LANES ? v_dim - j : VEC_LANES;
                vec rest =
                    vec_fnma(decay, vec_load_first(delta + j, some), vec_load_first(v + j, some));
                vec_store_first(delta + j, vec_mul(beta, rest), some);
            }
        }
        product(end - row, v_dim, row, chunk->by_k + row * DELTA_CHUNK, DELTA_CHUNK, rows->delta,
                stride, 1, rows->delta + (size_t)row * stride, stride);
        for (int r = row + 1; r < end; r++)
            product(1, v_dim, r - row, chunk->by_k + r * DELTA_CHUNK + row, DELTA_CHUNK,
                    rows->delta + (size_t)row * stride, stride, 1, rows->delta + (size_t)r * stride,
                    stride);
    }
}

static void scale_row(const float *from, float factor, float *to, int n)
{
    for (int j = 0; j < n; j += VEC_LANES) {
        int some = n - j < VEC_LANES ? n - j : VEC_LANES;
        vec_store_first(to + j, vec_mul(vec_set(factor), vec_load_first(from + j, some)), some);
    }
}

static void advance_by_chunk(const struct delta_rows *rows, float *state)
{
    struct chunk chunk;
    int n = rows->n, k_dim = rows->k_dim, v_dim = rows->v_dim;
    size_t stride = (size_t)v_dim;
    chunk_begin(rows, &chunk);
    product(n, v_dim, k_dim, rows->k, (size_t)k_dim, state, stride, 0, rows->delta, stride);
    chunk_solve(rows, &chunk);
    product(n, v_dim, k_dim, rows->q, (size_t)k_dim, state, stride, 0, rows->out, rows->out_stride);
    for (int r = 0; r < n; r++) {
        float *out = rows->out + (size_t)r * rows->out_stride;
        scale_row(out, expf(chunk.sum[r]), out, v_dim);
        scale_row(rows->delta + (size_t)r * stride, expf(chunk.sum[n - 1] - chunk.sum[r]),
                  chunk.shrunk + (size_t)r * stride, v_dim);
    }
    for (int row = 0; row < n; row += ROWS) {
        int end = n - row < ROWS ? n : row + ROWS;
        product(end - row, v_dim, end, chunk.by_q + row * DELTA_CHUNK, DELTA_CHUNK, rows->delta,
                stride, 1, rows->out + (size_t)row * rows->out_stride, rows->out_stride);
    }
    product(k_dim, v_dim, n, chunk.k_turned, DELTA_CHUNK, chunk.shrunk, stride,
            expf(chunk.sum[n - 1]), state, stride);
}

static void advance(const struct delta_rows *rows, float *state)
{
    if (rows->n <= DELTA_STEPS)
        advance_by_steps(rows, state);
    else
        advance_by_chunk(rows, state);
}

static void replay(const float *k, const float *delta, float g, float *state, int k_dim, int v_dim)
{
    float decay = expf(g);
    for (int col = 0; col < v_dim; col += COLS) {
        int n = v_dim - col < COLS ? v_dim - col : COLS;
        vec deltas[VECS];
        for (int j = 0; j < VECS; j++)
            deltas[j] = vec_load_first(delta + col + j * VEC_LANES, lanes_of(n, j));
        update(k, deltas, decay, state + col, k_dim, (size_t)v_dim, n);
    }
}

static void convolve(const float *const *rows, int n_rows, const float *weight, size_t stride,
                     float *out, int n)
{
    for (int c = 0; c < n; c += VEC_LANES) {
        int some = n - c < VEC_LANES ? n - c : VEC_LANES;
        vec sum = vec_set(0);
        for (int j = 0; j < n_rows; j++)
            sum = vec_fma(vec_load_first(weight + (size_t)j * stride + c, some),
                          vec_load_first(rows[j] + c, some), sum);
        vec e = vec_exp(vec_sub(vec_set(0), sum));
        vec_store_first(out + c, vec_div(sum, vec_add(vec_set(1), e)), some);
    }
}

#endif
