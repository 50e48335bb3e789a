// Native paged attention for sequences with few new rows (decode and verify steps): K and V go
// from their pages into registers once, for all query heads that share them. Scores are K q^T, so
// that tokens are the matrix unit's 16 rows and the queries its 8 columns, and the result is
// V^T p^T. A threadgroup has a KV head and 8 NQ columns of it (x), a part of the tokens (y) and a
// sequence (z); its simdgroups take turns along the tokens, 16 at a time. The last threadgroup of
// a sequence and head merges the parts.
#include "attention.h"

enum { FEW_SIMDS = KD_FEW_THREADS / 32, MIN_SPLIT_TILES = 4 };

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

// The softmax so far of 8 columns, of which the lane has 2 t and 2 t + 1. Dims are numbered by the
// products that make them, in the order in which a tile's add_values takes a lane's part of V.
template <int D> struct few_state {
    float out[D / 16][4];
    float largest[2], weight[2];
};

// A lane's part of V, as few_tile and few_codes have it: 8 or 16 bytes of a part at once.
template <int D, int W, int PARTS, int WORDS, class value>
NATIVE void load_values(uint32_t (&v)[4][PARTS][WORDS], const value *page, uint32_t lane)
{
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < PARTS; c++) {
            const value *from = page + ((lane & 3) * 2 + (r & 1) + (r >> 1) * 8) * D +
                                (lane >> 2) * W + c * 8 * W;
            if (WORDS == 4) {
                const uint4 w = native_stream(from);
                memcpy(v[r][c], &w, sizeof w);
            } else {
                const uint2 w = __ldg((const uint2 *)from);
                memcpy(v[r][c], &w, sizeof w);
            }
        }
}

// A lane's part of 16 tokens: of K tokens g and g + 8, dims 8 t .. 8 t + 7 of each 32; of V tokens
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, dims W g .. W g + W - 1 of each 8 W. A product's rows g + 8
// are dims BESIDE behind those of its rows g.
template <int D, bool BF16> struct few_tile {
    typedef uint16_t value;
    enum { DIMS = D, IS_BF16 = BF16, HAS_CODES = 0 };
    enum { W = D == 64 ? 4 : 8, PARTS = D / (8 * W), BESIDE = 8 * W };
    uint4 k[2][D / 32];
    uint32_t v[4][PARTS][W / 2];

    NATIVE void load_k(const uint16_t *page, const uint32_t *, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                k[r][j] = native_stream(page + ((lane >> 2) + r * 8) * D + (lane & 3) * 8 + j * 32);
    }

    NATIVE void load_v(const uint16_t *page, uint32_t lane)
    {
        load_values<D, W>(v, page, lane);
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

    template <int NQ>
    NATIVE void scores(float (&to)[NQ][4], const uint4 (&queries)[NQ][D / 32], uint32_t)
    {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            float a[4] = {0}, b[4] = {0};
#pragma unroll
            for (int j = 0; j < D / 32; j++) {
                const uint4 q = queries[n][j], k0 = k[0][j], k8 = k[1][j];
                native_mma<BF16>(a, k0.x, k8.x, k0.y, k8.y, q.x, q.y);
                native_mma<BF16>(b, k0.z, k8.z, k0.w, k8.w, q.z, q.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[n][i] = a[i] + b[i];
        }
    }

    // p0 and p1: the shares of tokens 0 .. 7 and 8 .. 15, transposed.
    NATIVE void add_values(few_state<D> &s, uint32_t p0, uint32_t p1) const
    {
        int product = 0;
#pragma unroll
        for (int c = 0; c < PARTS; c += 2)
#pragma unroll
            for (int word = 0; word < W / 2; word++)
#pragma unroll
                for (int e = 0; e < 2; e++, product++) {
                    const uint32_t select = e ? 0x7632 : 0x5410;
                    native_mma<BF16>(
                        s.out[product], __byte_perm(v[0][c][word], v[1][c][word], select),
                        __byte_perm(v[0][c + 1][word], v[1][c + 1][word], select),
                        __byte_perm(v[2][c][word], v[3][c][word], select),
                        __byte_perm(v[2][c + 1][word], v[3][c + 1][word], select), p0, p1);
                }
    }

    NATIVE void scale_shares(float (&)[4]) const
    {
    }
};

// Bytes 0 and 2 of a word of codes as two bf16 values: their low 7 bits behind 128 (0x4300), less
// 128 or, where the sign sets the lowest bit of the exponent, 256.
NATIVE uint32_t two_codes(uint32_t word)
{
    const uint32_t value = (word & 0x007F007Fu) | 0x43004300u;
    const uint32_t sign = (word & 0x00800080u) | 0x43004300u, minus_one = 0xBF80BF80u;
    uint32_t r;
    asm("fma.rn.bf16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(sign), "r"(minus_one), "r"(value));
    return r;
}

// The same part as codes, dims 16 t .. 16 t + 15 of each 64 of K. The tile is a piece
// (kernels/codes.h): scores have shares of those of the tokens before them.
template <int D> struct few_codes {
    typedef int8_t value;
    enum { DIMS = D, IS_BF16 = 1, HAS_CODES = 1 };
    enum { W = D == 64 ? 8 : 16, PARTS = D / (8 * W), BESIDE = W / 2 };
    uint4 k[2][D / 64];
    uint32_t v[4][PARTS][W / 4];
    uint32_t scales[2]; // of tokens g and g + 8
    float v_scales[2];  // likewise, once there are scores

    NATIVE void load_k(const int8_t *page, const uint32_t *scales_of_page, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            scales[r] = __ldg(scales_of_page + (lane >> 2) + r * 8);
#pragma unroll
            for (int j = 0; j < D / 64; j++)
                k[r][j] =
                    native_stream(page + ((lane >> 2) + r * 8) * D + (lane & 3) * 16 + j * 64);
        }
    }

    NATIVE void load_v(const int8_t *page, uint32_t lane)
    {
        load_values<D, W>(v, page, lane);
    }

    // Codes are numbers whatever they are; scales may be none.
    NATIVE void clear_v(uint32_t first, uint32_t begin, uint32_t end, uint32_t lane)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t place = first + (lane >> 2) + r * 8;
            if (place < begin || place >= end)
                v_scales[r] = 0.0f;
        }
    }

    template <int NQ>
    NATIVE void scores(float (&to)[NQ][4], const uint4 (&queries)[NQ][D / 32], uint32_t lane)
    {
        float odd[NQ][4];
#pragma unroll
        for (int i = 0; i < NQ * 4; i++)
            (&to[0][0])[i] = (&odd[0][0])[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < D / 64; j++)
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const uint4 k0 = k[0][j], k8 = k[1][j];
                const uint32_t a = w == 0 ? k0.x : w == 1 ? k0.y : w == 2 ? k0.z : k0.w;
                const uint32_t a8 = w == 0 ? k8.x : w == 1 ? k8.y : w == 2 ? k8.z : k8.w;
                const uint32_t x = two_codes(a), x8 = two_codes(a8);
                const uint32_t y = two_codes(a >> 8), y8 = two_codes(a8 >> 8);
#pragma unroll
                for (int n = 0; n < NQ; n++) {
                    const uint4 q = queries[n][2 * j + w / 2];
                    if (w % 2 == 0)
                        native_mma<true>(to[n], x, x8, y, y8, q.x, q.y);
                    else
                        native_mma<true>(odd[n], x, x8, y, y8, q.z, q.w);
                }
            }
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float own = (to[n][c] + odd[n][c]) * k_scale(scales[0]);
                const float own8 = (to[n][c + 2] + odd[n][c + 2]) * k_scale(scales[1]);
                float before = 0.0f, before8 = 0.0f; // the shares of the tokens before, of each 8
                float all = piece_share(lane >> 2) * own, all8 = piece_share(8) * own8;
#pragma unroll
                for (uint32_t step = 4; step < 32; step *= 2) {
                    const float other = __shfl_xor_sync(EVERY_LANE, all, step);
                    const float other8 = __shfl_xor_sync(EVERY_LANE, all8, step);
                    before += (lane & step) != 0 ? other : 0.0f;
                    before8 += (lane & step) != 0 ? other8 : 0.0f;
                    all += other;
                    all8 += other8;
                }
                to[n][c] = own + before;
                to[n][c + 2] = own8 + (all + before8);
            }
        v_scales[0] = v_scale(scales[0]);
        v_scales[1] = v_scale(scales[1]);
    }

    NATIVE void add_values(few_state<D> &s, uint32_t p0, uint32_t p1) const
    {
        int product = 0;
#pragma unroll
        for (int c = 0; c < PARTS; c++)
#pragma unroll
            for (int word = 0; word < W / 8; word++)
#pragma unroll
                for (int e = 0; e < 2; e++, product += 2) {
                    const int beside = word + W / 8;
                    const uint32_t select = e ? 0x7632 : 0x5410;
                    const uint32_t a = __byte_perm(v[0][c][word], v[1][c][word], select);
                    const uint32_t b = __byte_perm(v[0][c][beside], v[1][c][beside], select);
                    const uint32_t a8 = __byte_perm(v[2][c][word], v[3][c][word], select);
                    const uint32_t b8 = __byte_perm(v[2][c][beside], v[3][c][beside], select);
                    native_mma<true>(s.out[product], two_codes(a), two_codes(b), two_codes(a8),
                                     two_codes(b8), p0, p1);
                    native_mma<true>(s.out[product + 1], two_codes(a >> 8), two_codes(b >> 8),
                                     two_codes(a8 >> 8), two_codes(b8 >> 8), p0, p1);
                }
    }

    NATIVE void scale_shares(float (&p)[4]) const
    {
        p[0] *= v_scales[0];
        p[1] *= v_scales[0];
        p[2] *= v_scales[1];
        p[3] *= v_scales[1];
    }
};

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
NATIVE void load_queries(uint4 (&to)[D / 32], const float *q, const few_sequence &s, uint32_t head,
                         uint32_t column, const kd_attention &p, uint32_t lane)
{
    const float scale = p.scale * LOG2_E;
    const bool is_there = column < s.n_columns;
    const uint32_t row = is_there ? column / s.group : 0, q_head = is_there ? column % s.group : 0;
    const float *from = q + (size_t)(s.first_row + row) * p.q_stride +
                        (size_t)(head * s.group + q_head) * D + (lane & 3) * 8;
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

// The same for codes: turned, and in the order in which few_codes has dims of K.
template <int D>
NATIVE void load_turned_queries(uint4 (&to)[D / 32], const float *q, const few_sequence &s,
                                uint32_t head, uint32_t column, const kd_attention &p,
                                uint32_t lane)
{
    const float scale = p.scale * LOG2_E;
    const bool is_there = column < s.n_columns;
    const uint32_t row = is_there ? column / s.group : 0, q_head = is_there ? column % s.group : 0;
    const float *from = q + (size_t)(s.first_row + row) * p.q_stride +
                        (size_t)(head * s.group + q_head) * D + (lane & 3) * 16;
    float x[D / 4];
#pragma unroll
    for (int i = 0; i < D / 4; i++)
        x[i] = is_there ? from[i / 16 * 64 + i % 16] * scale : 0.0f;
    turn<D>(x, 1, 4);
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        const int i = j * 8;
        to[j] = make_uint4(native_pack<true>(x[i], x[i + 2]), native_pack<true>(x[i + 1], x[i + 3]),
                           native_pack<true>(x[i + 4], x[i + 6]),
                           native_pack<true>(x[i + 5], x[i + 7]));
    }
}

template <class Tile, int NQ> struct few_columns {
    enum { D = Tile::DIMS, IS_BF16 = Tile::IS_BF16 };
    uint4 queries[NQ][D / 32];
    uint2 places[NQ][2]; // of columns 2 t and 2 t + 1 of each 8
    few_state<D> states[NQ];

    NATIVE void open(const float *q, const few_sequence &s, uint32_t head, const kd_attention &p,
                     uint32_t lane)
    {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t first = s.first_column + n * 8;
            if (Tile::HAS_CODES)
                load_turned_queries<D>(queries[n], q, s, head, first + (lane >> 2), p, lane);
            else
                load_queries<D, IS_BF16>(queries[n], q, s, head, first + (lane >> 2), p, lane);
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

    NATIVE void add(const float (&score)[NQ][4], const Tile &tile)
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
            float share[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                share[i] = exp2_fast(score[n][i] - s.largest[i & 1]);
            s.weight[0] += share[0] + share[2];
            s.weight[1] += share[1] + share[3];
            tile.scale_shares(share);
            tile.add_values(s, transposed(native_pack<IS_BF16>(share[0], share[1])),
                            transposed(native_pack<IS_BF16>(share[2], share[3])));
        }
    }
};

// The tokens of tiles first, first + FEW_SIMDS, ... below end. Opens the columns, once the first
// loads are on their way.
template <class Tile, int NQ>
NATIVE void run_tiles(few_columns<Tile, NQ> &columns, const float *q, const few_sequence &s,
                      const kv_head<typename Tile::value> &kv, uint32_t head, uint32_t first,
                      uint32_t end, const kd_attention &p, uint32_t lane)
{
    enum { D = Tile::DIMS };
    // Every column sees all of the places between these.
    const uint32_t whole_end = s.kv_len - s.n_rows + 1;
    const uint32_t whole_begin = p.window && s.kv_len > p.window ? s.kv_len - p.window : 0;
    Tile tile;
    uint32_t t = first, ahead = 0, n = 0; // ahead: a lane's page of the next 32 tiles
    if (t + lane * FEW_SIMDS < end)
        ahead = (uint32_t)kv.table[(t + lane * FEW_SIMDS) * 16 >> kv.shift];
    uint32_t page = __shfl_sync(EVERY_LANE, ahead, 0);
    const typename Tile::value *k = kv.on_page(page, t * 16, D);
    if (t < end) {
        tile.load_k(k, kv.scales_on(page, t * 16), lane);
        tile.load_v(k + kv.v_offset, lane);
    }
    columns.open(q, s, head, p, lane);
    while (t < end) {
        const uint32_t next = t + FEW_SIMDS;
        n++;
        if (n % 32 == 0 && next + lane * FEW_SIMDS < end)
            ahead = (uint32_t)kv.table[(next + lane * FEW_SIMDS) * 16 >> kv.shift];
        page = __shfl_sync(EVERY_LANE, ahead, n % 32);
        k = kv.on_page(page, next * 16, D);
        float score[NQ][4];
        tile.scores(score, columns.queries, lane);
        if (next < end)
            tile.load_k(k, kv.scales_on(page, next * 16), lane);
        if (t * 16 < whole_begin || t * 16 + 16 > whole_end) {
            columns.hide(score, t * 16, lane);
            tile.clear_v(t * 16, s.begin, s.kv_len, lane);
        }
        columns.add(score, tile);
        if (next < end)
            tile.load_v(k + kv.v_offset, lane);
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

template <class Tile, int D>
NATIVE void put_state(few_shared<D> &shared, few_state<D> &s, int pass, uint32_t warp,
                      uint32_t lane)
{
    typedef Tile t;
    typedef few_shared<D> to;
    enum { PRODUCTS = to::WIDTH / 16 };
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *row = shared.out[warp][(lane & 3) * 2 + i] + (lane >> 2) * t::W;
#pragma unroll
        for (int d = 0; d < PRODUCTS; d++) {
            // One part of V, or a pair that is multiplied together, fills the width.
            row[d] = s.out[pass * PRODUCTS + d][i];
            row[d + t::BESIDE] = s.out[pass * PRODUCTS + d][i + 2];
        }
        if (lane < 4) {
            shared.largest[warp][lane * 2 + i] = s.largest[i];
            shared.weight[warp][lane * 2 + i] = s.weight[i];
        }
    }
}

// Some values of a lane that follow each other, which other threadgroups write or read.
template <int V> NATIVE void load_parts(float (&v)[V], const float *from)
{
#pragma unroll
    for (int i = 0; i < V; i += V < 4 ? 2 : 4)
        if (V < 4) {
            const float2 part = __ldcg((const float2 *)(from + i));
            v[i] = part.x;
            v[i + 1] = part.y;
        } else {
            const float4 part = __ldcg((const float4 *)(from + i));
            memcpy(&v[i], &part, sizeof part);
        }
}

template <int V> NATIVE void store_parts(float *to, const float (&v)[V])
{
#pragma unroll
    for (int i = 0; i < V; i += V < 4 ? 2 : 4)
        if (V < 4)
            *(float2 *)(to + i) = make_float2(v[i], v[i + 1]);
        else
            *(float4 *)(to + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
}

struct few_out {
    float *out, *parts; // parts [sequence and column group][column][split][D]
    float2 *levels;     // likewise without D: the largest score and the sum of weights
    uint32_t *counters; // [sequence and column group], 0 between dispatches
    const float *sinks;
};

// A column's sum into the output; `weight` is without its sink.
template <int V>
NATIVE void put_out(const few_out &o, const few_sequence &s, uint32_t head, uint32_t column,
                    uint32_t dim, const float (&v)[V], float largest, float weight, int d,
                    const kd_attention &p)
{
    const uint32_t q_head = head * s.group + column % s.group;
    float shrink = 1.0f;
    if (p.has_sinks) {
        const float sink = o.sinks[q_head] * LOG2_E, most = fmaxf(sink, largest);
        shrink = exp2_fast(largest - most);
        weight = weight * shrink + exp2_fast(sink - most);
    }
    float *to =
        o.out + (size_t)(s.first_row + column / s.group) * p.out_stride + (size_t)q_head * d + dim;
#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = v[i] * shrink / weight;
}

template <class Tile, int NQ>
NATIVE void merge(few_columns<Tile, NQ> &columns, const few_out &o, const few_sequence &s,
                  uint32_t head, uint32_t n_active, const kd_native_attention &p)
{
    enum { D = Tile::DIMS, V = few_shared<D>::WIDTH / 32, PASSES = D / few_shared<D>::WIDTH };
    typedef few_shared<D> at;
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
        const uint32_t column = s.first_column + n * 8 + warp;
        float largest = NO_SCORE, weight = 0.0f, v[PASSES * V] = {0};
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            __syncthreads();
            put_state<Tile>(shared, state, pass, warp, lane);
            __syncthreads();
            if (column >= s.n_columns)
                continue;
            weight = 0.0f;
            for (int w = 0; w < FEW_SIMDS; w++)
                largest = fmaxf(largest, shared.largest[w][warp]);
            for (int w = 0; w < FEW_SIMDS; w++) {
                const float shrink = exp2_fast(shared.largest[w][warp] - largest);
                weight += shrink * shared.weight[w][warp];
#pragma unroll
                for (int i = 0; i < V; i++)
                    v[pass * V + i] += shrink * shared.out[w][warp][lane * V + i];
            }
        }
        if (column >= s.n_columns)
            continue;
        const size_t part = (place * NQ * 8 + n * 8 + warp) * p.n_splits + split;
        if (n_active > 1 && lane == 0)
            o.levels[part] = make_float2(largest, weight);
        if (n_active == 1 && Tile::HAS_CODES)
            turn<D>(v, 1, 32);
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const uint32_t dim = pass * at::WIDTH + lane * V;
            float of_pass[V];
#pragma unroll
            for (int i = 0; i < V; i++)
                of_pass[i] = v[pass * V + i];
            if (n_active == 1)
                put_out(o, s, head, column, dim, of_pass, largest, weight, D, p.attention);
            else
                store_parts(o.parts + part * D + dim, of_pass);
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
            float part[ALL];
            load_parts(part, parts + (size_t)i * D);
            weight += shrink * level.y;
#pragma unroll
            for (int d = 0; d < ALL; d++)
                v[d] += shrink * part[d];
        }
        if (Tile::HAS_CODES)
            turn<D>(v, 1, 32);
        put_out(o, s, head, s.first_column + c, lane * ALL, v, largest, weight, D, p.attention);
    }
}

template <class Tile, int NQ>
NATIVE void few(const float *q, const uint8_t *pages, const int32_t *q_start, const int32_t *kv_len,
                const int32_t *page_table, const few_out &o, const kd_native_attention &p)
{
    const kd_attention &a = p.attention;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sequence = blockIdx.z;
    const uint32_t head = blockIdx.x / p.column_groups;
    native_let_next_start();
    native_wait_for_previous();
    few_sequence s;
    s.first_row = (uint32_t)q_start[sequence * a.q_start_stride];
    s.n_rows = (uint32_t)q_start[(sequence + 1) * a.q_start_stride] - s.first_row;
    s.kv_len = (uint32_t)kv_len[sequence * a.kv_len_stride];
    s.group = a.n_q_heads / a.pages.n_heads;
    s.n_columns = s.n_rows * s.group;
    s.first_column = blockIdx.x % p.column_groups * NQ * 8;
    if (s.first_column >= s.n_columns || s.n_columns > a.max_columns)
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
    few_columns<Tile, NQ> columns;
    const kv_head<typename Tile::value> kv(pages, page_table + (size_t)sequence * a.table_stride,
                                           head, Tile::DIMS, a.pages);
    run_tiles(columns, q, s, kv, head, begin + warp, end, a, lane);
    merge(columns, o, s, head, n_active, p);
}

// n_groups: threadgroups that a processor should have room for.
#define FEW(name, n_groups, nq, ...)                                                               \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(KD_FEW_THREADS, n_groups)                         \
        name(const float *q, const uint8_t *pages, const int32_t *q_start, const int32_t *kv_len,  \
             const int32_t *page_table, const float *sinks, float *out, float *parts,              \
             float2 *levels, uint32_t *counters, const __grid_constant__ kd_native_attention p)    \
    {                                                                                              \
        few<__VA_ARGS__, nq>(q, pages, q_start, kv_len, page_table,                                \
                             few_out{out, parts, levels, counters, sinks}, p);                     \
    }
FEW(paged_attention_few_64_f16_8, 1, 1, few_tile<64, false>)
FEW(paged_attention_few_64_f16_16, 1, 2, few_tile<64, false>)
FEW(paged_attention_few_64_bf16_8, 1, 1, few_tile<64, true>)
FEW(paged_attention_few_64_bf16_16, 1, 2, few_tile<64, true>)
FEW(paged_attention_few_64_i8_8, 2, 1, few_codes<64>)
FEW(paged_attention_few_64_i8_16, 1, 2, few_codes<64>)
FEW(paged_attention_few_128_f16_8, 1, 1, few_tile<128, false>)
FEW(paged_attention_few_128_f16_16, 1, 2, few_tile<128, false>)
FEW(paged_attention_few_128_bf16_8, 1, 1, few_tile<128, true>)
FEW(paged_attention_few_128_bf16_16, 1, 2, few_tile<128, true>)
FEW(paged_attention_few_128_i8_8, 2, 1, few_codes<128>)
FEW(paged_attention_few_128_i8_16, 1, 2, few_codes<128>)
FEW(paged_attention_few_256_f16_8, 1, 1, few_tile<256, false>)
FEW(paged_attention_few_256_bf16_8, 1, 1, few_tile<256, true>)
FEW(paged_attention_few_256_i8_8, 1, 1, few_codes<256>)
