// Native paged attention for sequences with few new rows (decode and verify steps): K and V go
// from their pages into registers once, for all query heads that share them. Scores are K q^T, so
// that tokens are the matrix unit's 16 rows and the queries its 8 columns, and the result is
// V^T p^T. A threadgroup has a KV head and 8 NQ columns of it (x), a part of the tokens (y) and a
// sequence (z); its simdgroups take turns along the tokens, 16 at a time. The last threadgroup of
// a sequence and head merges the parts.
#include "attention.h"

enum { FEW_SIMDS = KD_FEW_THREADS / 32, MIN_SPLIT_TILES = 2 * FEW_SIMDS };

// Lane 4 g + t has row g, columns 2 t and 2 t + 1, of a matrix of 8 x 8; then of its transpose.
NATIVE uint32_t transposed(uint32_t word)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(word));
    return r;
}

// What a threadgroup knows of its sequence.
struct few_sequence {
    uint32_t first_row, n_rows, kv_len;
    uint32_t begin; // the first place that any row sees
    uint32_t group, n_columns, first_column;
};

// Places [begin, end) that a column sees; columns that are none see everything.
NATIVE uint2 places_of(const few_sequence &s, uint32_t column, uint32_t window)
{
    if (column >= s.n_columns)
        return make_uint2(s.begin, s.kv_len);
    const uint32_t end = s.kv_len - s.n_rows + column / s.group + 1;
    return make_uint2(window && end > window ? end - window : 0, end);
}

// A lane's part of 16 tokens: of K tokens g and g + 8, dims 8 t .. 8 t + 7 of each 32; of V tokens
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, dims W g .. W g + W - 1 of each 8 W.
template <int D> struct few_tile {
    enum { W = D == 64 ? 4 : 8, PARTS = D / (8 * W) };
    uint4 k[2][D / 32];
    uint32_t v[4][PARTS][W / 2];

    NATIVE void load_k(const uint16_t *page, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                k[r][j] = native_stream(page + ((lane >> 2) + r * 8) * D + (lane & 3) * 8 + j * 32);
    }

    NATIVE void load_v(const uint16_t *page, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < PARTS; c++) {
                const uint16_t *from = page + ((lane & 3) * 2 + (r & 1) + (r >> 1) * 8) * D +
                                       (lane >> 2) * W + c * 8 * W;
                if (W == 8) {
                    const uint4 w = native_stream(from);
                    memcpy(v[r][c], &w, sizeof w);
                } else {
                    const uint2 w = __ldg((const uint2 *)from);
                    memcpy(v[r][c], &w, sizeof w);
                }
            }
    }

    // What no row sees may be anything, also not a number.
    NATIVE void clear_v(uint32_t first, uint32_t begin, uint32_t end, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t place = first + (lane & 3) * 2 + (r & 1) + (r >> 1) * 8;
            if (place < begin || place >= end)
#pragma unroll
                for (int c = 0; c < PARTS * W / 2; c++)
                    (&v[r][0][0])[c] = 0;
        }
    }
};

// The softmax so far of 8 columns, of which the lane has 2 t and 2 t + 1. Dims are numbered by the
// products that make them: product i has those at word and half i of each lane's part of V.
template <int D> struct few_state {
    float out[D / 16][4];
    float largest[2], weight[2];
};

template <int D, bool IS_BF16>
NATIVE void add_values(few_state<D> &s, const few_tile<D> &tile, uint32_t p0, uint32_t p1)
{
    typedef few_tile<D> t;
    int product = 0;
#pragma unroll
    for (int c = 0; c < t::PARTS; c += 2)
#pragma unroll
        for (int word = 0; word < t::W / 2; word++)
#pragma unroll
            for (int e = 0; e < 2; e++, product++) {
                const uint32_t select = e ? 0x7632 : 0x5410;
                native_mma<IS_BF16>(
                    s.out[product], __byte_perm(tile.v[0][c][word], tile.v[1][c][word], select),
                    __byte_perm(tile.v[0][c + 1][word], tile.v[1][c + 1][word], select),
                    __byte_perm(tile.v[2][c][word], tile.v[3][c][word], select),
                    __byte_perm(tile.v[2][c + 1][word], tile.v[3][c + 1][word], select), p0, p1);
            }
}

// Scores in base 2; sums are rescaled only when a score has outgrown the largest by 2^8.
template <int D> NATIVE void rescale(few_state<D> &s, const float (&score)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float now = fmaxf(score[i], score[i + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
            now = fmaxf(now, __shfl_xor_sync(EVERY_LANE, now, step));
        now = fmaxf(now, s.largest[i]);
        const float shrink = exp2_fast(s.largest[i] - now);
        s.largest[i] = now;
        s.weight[i] *= shrink;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            s.out[d][i] *= shrink;
            s.out[d][i + 2] *= shrink;
        }
    }
}

// The query rows of 8 columns as the matrix unit's second operand, scaled for base 2.
template <int D, bool IS_BF16>
NATIVE void load_queries(uint4 (&to)[D / 32], const float *q, const few_sequence &s,
                         uint32_t kv_head, uint32_t column, const kd_attention &p, uint32_t lane)
{
    const float scale = p.scale * LOG2_E;
    const bool is_there = column < s.n_columns;
    const uint32_t row = is_there ? column / s.group : 0, head = is_there ? column % s.group : 0;
    const float *from = q + (size_t)(s.first_row + row) * p.q_stride +
                        (size_t)(kv_head * s.group + head) * D + (lane & 3) * 8;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = is_there ? native_pack<IS_BF16>(from[j * 32 + 2 * i] * scale,
                                                       from[j * 32 + 2 * i + 1] * scale)
                                : 0;
        to[j] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

template <int D, bool IS_BF16, int NQ> struct few_columns {
    uint4 queries[NQ][D / 32];
    uint2 places[NQ][2]; // of columns 2 t and 2 t + 1 of each 8
    few_state<D> states[NQ];

    NATIVE void open(const float *q, const few_sequence &s, uint32_t kv_head, const kd_attention &p,
                     uint32_t lane)
    {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t first = s.first_column + n * 8;
            load_queries<D, IS_BF16>(queries[n], q, s, kv_head, first + (lane >> 2), p, lane);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                places[n][i] = places_of(s, first + (lane & 3) * 2 + i, p.window);
                states[n].largest[i] = NO_SCORE;
                states[n].weight[i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < D / 16 * 4; i++)
                (&states[n].out[0][0])[i] = 0.0f;
        }
    }

    NATIVE void scores(float (&to)[NQ][4], const few_tile<D> &tile)
    {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            float a[4] = {0}, b[4] = {0};
#pragma unroll
            for (int j = 0; j < D / 32; j++) {
                const uint4 q = queries[n][j], k = tile.k[0][j], k8 = tile.k[1][j];
                native_mma<IS_BF16>(a, k.x, k8.x, k.y, k8.y, q.x, q.y);
                native_mma<IS_BF16>(b, k.z, k8.z, k.w, k8.w, q.z, q.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[n][i] = a[i] + b[i];
        }
    }

    NATIVE void hide(float (&score)[NQ][4], uint32_t first, uint32_t lane)
    {
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t place = first + (i >> 1) * 8 + (lane >> 2);
                if (place < places[n][i & 1].x || place >= places[n][i & 1].y)
                    score[n][i] = NO_SCORE;
            }
    }

    NATIVE void add(const float (&score)[NQ][4], const few_tile<D> &tile)
    {
        bool outgrown = false;
#pragma unroll
        for (int n = 0; n < NQ; n++)
            outgrown |= fmaxf(score[n][0], score[n][2]) > states[n].largest[0] + 8.0f ||
                        fmaxf(score[n][1], score[n][3]) > states[n].largest[1] + 8.0f;
        if (__any_sync(EVERY_LANE, outgrown))
#pragma unroll
            for (int n = 0; n < NQ; n++)
                rescale(states[n], score[n]);
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            few_state<D> &s = states[n];
            const float p0 = exp2_fast(score[n][0] - s.largest[0]);
            const float p1 = exp2_fast(score[n][1] - s.largest[1]);
            const float p2 = exp2_fast(score[n][2] - s.largest[0]);
            const float p3 = exp2_fast(score[n][3] - s.largest[1]);
            s.weight[0] += p0 + p2;
            s.weight[1] += p1 + p3;
            add_values<D, IS_BF16>(s, tile, transposed(native_pack<IS_BF16>(p0, p1)),
                                   transposed(native_pack<IS_BF16>(p2, p3)));
        }
    }
};

// The tokens of tiles first, first + FEW_SIMDS, ... below end.
template <int D, bool IS_BF16, int NQ>
NATIVE void run_tiles(few_columns<D, IS_BF16, NQ> &columns, const few_sequence &s,
                      const uint16_t *pages, const int32_t *table, uint32_t kv_head, uint32_t first,
                      uint32_t end, const kd_attention &p, uint32_t lane)
{
    const size_t head = (size_t)p.pages.page_size * D, half = head * p.pages.n_heads;
    // Every column sees all of the places between these.
    const uint32_t whole_end = s.kv_len - s.n_rows + 1;
    const uint32_t whole_begin = p.window && s.kv_len > p.window ? s.kv_len - p.window : 0;
    few_tile<D> tile;
    uint32_t t = first, ahead = 0, n = 0; // ahead: a lane's page of the next 32 tiles
    const uint16_t *page = pages;
    if (t >= end)
        return;
    if (t + lane * FEW_SIMDS < end)
        ahead = (uint32_t)table[(t + lane * FEW_SIMDS) * 16 / p.pages.page_size];
    page = pages + __shfl_sync(EVERY_LANE, ahead, 0) * 2 * half + kv_head * head +
           t * 16 % p.pages.page_size * D;
    tile.load_k(page, lane);
    tile.load_v(page + half, lane);
    while (t < end) {
        const uint32_t next = t + FEW_SIMDS;
        n++;
        if (n % 32 == 0 && next + lane * FEW_SIMDS < end)
            ahead = (uint32_t)table[(next + lane * FEW_SIMDS) * 16 / p.pages.page_size];
        page = pages + __shfl_sync(EVERY_LANE, ahead, n % 32) * 2 * half + kv_head * head +
               next * 16 % p.pages.page_size * D;
        float score[NQ][4];
        columns.scores(score, tile);
        if (next < end)
            tile.load_k(page, lane);
        if (t * 16 < whole_begin || t * 16 + 16 > whole_end) {
            columns.hide(score, t * 16, lane);
            tile.clear_v(t * 16, s.begin, s.kv_len, lane);
        }
        columns.add(score, tile);
        if (next < end)
            tile.load_v(page + half, lane);
        t = next;
    }
}

// Where the parts of 8 columns meet, 128 dims (or all, if fewer) at a time.
template <int D> struct few_shared {
    enum { WIDTH = D < 128 ? D : 128 };
    float out[FEW_SIMDS][8][WIDTH];
    float largest[FEW_SIMDS][8], weight[FEW_SIMDS][8];
    uint32_t is_last;
};

template <int D> NATIVE void put_state(few_shared<D> &shared, few_state<D> &s, int pass,
                                       uint32_t warp, uint32_t lane)
{
    typedef few_tile<D> t;
    typedef few_shared<D> to;
    enum { PRODUCTS = to::WIDTH / 16 };
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *row = shared.out[warp][(lane & 3) * 2 + i] + (lane >> 2) * t::W;
#pragma unroll
        for (int d = 0; d < PRODUCTS; d++) {
            // One pair of parts of V fills the width.
            row[d] = s.out[pass * PRODUCTS + d][i];
            row[d + 8 * t::W] = s.out[pass * PRODUCTS + d][i + 2];
        }
        if (lane < 4) {
            shared.largest[warp][lane * 2 + i] = s.largest[i];
            shared.weight[warp][lane * 2 + i] = s.weight[i];
        }
    }
}

struct few_out {
    float *out, *parts; // parts [sequence and column group][column][split][D]
    float2 *levels;     // likewise without D: the largest score and the sum of weights
    uint32_t *counters; // [sequence and column group], 0 between dispatches
    const float *sinks;
};

// A column's sum into the output; `weight` is without its sink.
template <int V>
NATIVE void put_out(const few_out &o, const few_sequence &s, uint32_t kv_head, uint32_t column,
                    uint32_t dim, const float (&v)[V], float largest, float weight, int d,
                    const kd_attention &p)
{
    const uint32_t head = kv_head * s.group + column % s.group;
    float shrink = 1.0f;
    if (p.has_sinks) {
        const float sink = o.sinks[head] * LOG2_E, most = fmaxf(sink, largest);
        shrink = exp2_fast(largest - most);
        weight = weight * shrink + exp2_fast(sink - most);
    }
    float *to = o.out + (size_t)(s.first_row + column / s.group) * p.out_stride +
                (size_t)head * d + dim;
#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = v[i] * shrink / weight;
}

template <int D, bool IS_BF16, int NQ>
NATIVE void merge(few_columns<D, IS_BF16, NQ> &columns, const few_out &o, const few_sequence &s,
                  uint32_t kv_head, uint32_t n_active, const kd_native_attention &p)
{
    typedef few_shared<D> at;
    enum { V = at::WIDTH / 32 };
    __shared__ at shared;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, split = blockIdx.y;
    const size_t place = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        few_state<D> &state = columns.states[n];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                state.weight[i] += __shfl_xor_sync(EVERY_LANE, state.weight[i], step);
#pragma unroll
        for (int pass = 0; pass < D / at::WIDTH; pass++) {
            __syncthreads();
            put_state<D>(shared, state, pass, warp, lane);
            __syncthreads();
            const uint32_t column = s.first_column + n * 8 + warp;
            if (column >= s.n_columns)
                continue;
            float largest = NO_SCORE, weight = 0.0f, v[V] = {0};
            for (int w = 0; w < FEW_SIMDS; w++)
                largest = fmaxf(largest, shared.largest[w][warp]);
            for (int w = 0; w < FEW_SIMDS; w++) {
                const float shrink = exp2_fast(shared.largest[w][warp] - largest);
                weight += shrink * shared.weight[w][warp];
#pragma unroll
                for (int i = 0; i < V; i++)
                    v[i] += shrink * shared.out[w][warp][lane * V + i];
            }
            const uint32_t dim = pass * at::WIDTH + lane * V;
            if (n_active == 1) {
                put_out(o, s, kv_head, column, dim, v, largest, weight, D, p.attention);
                continue;
            }
            const size_t part = (place * NQ * 8 + n * 8 + warp) * p.n_splits + split;
#pragma unroll
            for (int i = 0; i < V; i++)
                o.parts[part * D + dim + i] = v[i];
            if (lane == 0 && pass == 0)
                o.levels[part] = make_float2(largest, weight);
        }
    }
    if (n_active == 1)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],1;"
                     : "=r"(before)
                     : "l"(o.counters + place)
                     : "memory");
        shared.is_last = before == n_active - 1;
        if (shared.is_last)
            o.counters[place] = 0;
    }
    __syncthreads();
    if (!shared.is_last)
        return;
    enum { ALL = D / 32 };
    for (uint32_t c = warp; c < NQ * 8 && s.first_column + c < s.n_columns; c += FEW_SIMDS) {
        const float2 *levels = o.levels + (place * NQ * 8 + c) * p.n_splits;
        const float *parts = o.parts + (place * NQ * 8 + c) * p.n_splits * D + lane * ALL;
        float largest = NO_SCORE, weight = 0.0f, v[ALL] = {0};
        for (uint32_t i = lane; i < n_active; i += 32)
            largest = fmaxf(largest, __ldcg(levels + i).x);
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, step));
#pragma unroll 8
        for (uint32_t i = 0; i < n_active; i++) {
            const float2 level = __ldcg(levels + i);
            const float shrink = exp2_fast(level.x - largest);
            weight += shrink * level.y;
#pragma unroll
            for (int d = 0; d < ALL; d++)
                v[d] += shrink * __ldcg(parts + (size_t)i * D + d);
        }
        put_out(o, s, kv_head, s.first_column + c, lane * ALL, v, largest, weight, D, p.attention);
    }
}

template <int D, bool IS_BF16, int NQ>
NATIVE void few(const float *q, const uint16_t *pages, const int32_t *q_start,
                const int32_t *kv_len, const int32_t *page_table, const few_out &o,
                const kd_native_attention &p)
{
    const kd_attention &a = p.attention;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sequence = blockIdx.z;
    const uint32_t kv_head = blockIdx.x / p.column_groups;
    native_let_next_start();
    native_wait_for_previous();
    few_sequence s;
    s.first_row = (uint32_t)q_start[sequence * a.q_start_stride];
    s.n_rows = (uint32_t)q_start[(sequence + 1) * a.q_start_stride] - s.first_row;
    s.kv_len = (uint32_t)kv_len[sequence * a.kv_len_stride];
    s.group = a.n_q_heads / a.pages.n_heads;
    s.n_columns = s.n_rows * s.group;
    s.first_column = blockIdx.x % p.column_groups * NQ * 8;
    if (s.first_column >= s.n_columns || s.n_columns > p.max_columns)
        return;
    const uint32_t first_end = s.kv_len - s.n_rows + 1;
    s.begin = a.window && first_end > a.window ? first_end - a.window : 0;
    const uint32_t first_tile = s.begin / 16, n_tiles = (s.kv_len + 15) / 16 - first_tile;
    const uint32_t share = max((n_tiles + p.n_splits - 1) / p.n_splits, (uint32_t)MIN_SPLIT_TILES);
    const uint32_t n_active = (n_tiles + share - 1) / share;
    if (blockIdx.y >= n_active)
        return;
    const uint32_t begin = first_tile + blockIdx.y * share;
    const uint32_t end = min(begin + share, first_tile + n_tiles);
    few_columns<D, IS_BF16, NQ> columns;
    columns.open(q, s, kv_head, a, lane);
    run_tiles(columns, s, pages, page_table + (size_t)sequence * a.table_stride, kv_head,
              begin + warp, end, a, lane);
    merge(columns, o, s, kv_head, n_active, p);
}

#define FEW(name, dim, is_bf16, nq)                                                                \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(KD_FEW_THREADS, 1)                                \
        name(const float *q, const uint16_t *pages, const int32_t *q_start, const int32_t *kv_len, \
             const int32_t *page_table, const float *sinks, float *out, float *parts,              \
             float2 *levels, uint32_t *counters, const __grid_constant__ kd_native_attention p)    \
    {                                                                                              \
        few<dim, is_bf16, nq>(q, pages, q_start, kv_len, page_table,                               \
                              few_out{out, parts, levels, counters, sinks}, p);                    \
    }
FEW(paged_attention_few_64_f16_8, 64, false, 1)
FEW(paged_attention_few_64_f16_16, 64, false, 2)
FEW(paged_attention_few_64_bf16_8, 64, true, 1)
FEW(paged_attention_few_64_bf16_16, 64, true, 2)
FEW(paged_attention_few_128_f16_8, 128, false, 1)
FEW(paged_attention_few_128_f16_16, 128, false, 2)
FEW(paged_attention_few_128_bf16_8, 128, true, 1)
FEW(paged_attention_few_128_bf16_16, 128, true, 2)
FEW(paged_attention_few_256_f16_8, 256, false, 1)
FEW(paged_attention_few_256_bf16_8, 256, true, 1)
