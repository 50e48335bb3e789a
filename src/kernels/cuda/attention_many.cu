// Native paged attention for sequences with many new rows (prefill): flash attention (arXiv
// 2205.14135) over tiles of 128 queries, which a threadgroup has in its 8 simdgroups' registers,
// and tiles of TOKENS places, which go through its memory in a ring of two. The queries that share
// a KV head are packed, so that K and V are read once for them. A threadgroup has a KV head (x)
// and a tile of some sequence's queries (y), the last ones first, for they have most to do.
// Codes go through the ring as they are, and all threads together make a tile of bf16 values of
// them.
#include "attention.h"

// Four 8 x 8 matrices of 16-bit values; a lane gives the address of row lane % 8 of matrix
// lane / 8. Transposed: its word is of rows 2 t and 2 t + 1, column g.
template <bool IS_TRANSPOSED> NATIVE void load_matrices(uint32_t (&to)[4], uint32_t at)
{
    if (IS_TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at)
                     : "memory");
}

// A threadgroup's share: packed queries first_query .. of n_queries of a sequence.
struct many_share {
    uint32_t sequence, first_row, n_rows, kv_len;
    uint32_t first_query, n_queries, group;
};

NATIVE uint32_t rows_of(const int32_t *q_start, uint32_t sequence, const kd_attention &p)
{
    return (uint32_t)(q_start[(sequence + 1) * p.q_start_stride] -
                      q_start[sequence * p.q_start_stride]);
}

// Finds the tile number `index` of all sequences' tiles; false if there are fewer. All lanes of a
// simdgroup call it together.
NATIVE bool find_share(many_share &s, uint32_t index, const int32_t *q_start, const int32_t *kv_len,
                       const kd_native_attention &p)
{
    const kd_attention &a = p.attention;
    const uint32_t lane = threadIdx.x & 31;
    s.group = a.n_q_heads / a.pages.n_heads;
    for (uint32_t first = 0; first < a.n_sequences; first += 32) {
        const uint32_t mine = first + lane;
        uint32_t n = mine < a.n_sequences ? rows_of(q_start, mine, a) * s.group : 0;
        n = n > a.max_columns ? (n + KD_MANY_QUERIES - 1) / KD_MANY_QUERIES : 0;
        uint32_t until = n; // tiles up to and with mine
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t below = __shfl_up_sync(EVERY_LANE, until, step);
            until += lane >= step ? below : 0;
        }
        const uint32_t owners = __ballot_sync(EVERY_LANE, index < until);
        const uint32_t all = __shfl_sync(EVERY_LANE, until, 31);
        if (owners == 0) {
            index -= all;
            continue;
        }
        const uint32_t owner = __ffs(owners) - 1;
        const uint32_t end = __shfl_sync(EVERY_LANE, until, owner);
        s.sequence = first + owner;
        s.first_row = (uint32_t)q_start[s.sequence * a.q_start_stride];
        s.n_rows = rows_of(q_start, s.sequence, a);
        s.kv_len = (uint32_t)kv_len[s.sequence * a.kv_len_stride];
        s.n_queries = s.n_rows * s.group;
        s.first_query = (end - 1 - index) * KD_MANY_QUERIES;
        return true;
    }
    return false;
}

// Places [x, y) that a packed query sees; queries that are none see what the last one sees.
NATIVE uint2 query_places(const many_share &s, uint32_t query, uint32_t window)
{
    const uint32_t end = s.kv_len - s.n_rows + min(query, s.n_queries - 1) / s.group + 1;
    return make_uint2(window && end > window ? end - window : 0, end);
}

// Rows of D values of 2 bytes: pieces of 16 bytes lie so that 8 rows' meet different banks.
template <int D> NATIVE uint32_t piece_at(uint32_t row, uint32_t piece)
{
    return row * (D * 2) + ((piece ^ (row & 7u)) * 16);
}

// Starts the copies of places first .. first + TOKENS - 1, zeros for those outside [x, y).
template <int D, int TOKENS>
NATIVE void copy_places(uint32_t to, const kv_head<uint16_t> &kv, uint32_t first, uint2 places)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TOKENS * (D / 8); i += KD_MANY_QUERY_THREADS) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8), place = first + row;
        const bool is_there = place >= places.x && place < places.y;
        const uint32_t page = is_there ? (uint32_t)kv.table[place >> kv.shift] : 0;
        const uint16_t *from = kv.on_page(page, place, D) + piece * 8;
        native_copy_if(to + piece_at<D>(row, piece), from, is_there);
        native_copy_if(to + TOKENS * D * 2 + piece_at<D>(row, piece), from + kv.v_offset, is_there);
    }
}

// The same of codes: rows of D bytes, K and then V, and behind them the scales of the places.
template <int D, int TOKENS>
NATIVE void copy_codes(uint32_t to, const kv_head<int8_t> &kv, uint32_t first, uint2 places)
{
    enum { SCALES = 4 }; // of so many places at once, which are on one page
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TOKENS * (D / 16); i += KD_MANY_QUERY_THREADS) {
        const uint32_t row = i / (D / 16), piece = i % (D / 16), place = first + row;
        const bool is_there = place >= places.x && place < places.y;
        const uint32_t page = is_there ? (uint32_t)kv.table[place >> kv.shift] : 0;
        const int8_t *from = kv.on_page(page, place, D) + piece * 16;
        native_copy_if(to + i * 16, from, is_there);
        native_copy_if(to + TOKENS * D + i * 16, from + kv.v_offset, is_there);
    }
    if (threadIdx.x < TOKENS / SCALES) {
        const uint32_t place = first + threadIdx.x * SCALES;
        const bool is_there = place + SCALES > places.x && place < places.y;
        const uint32_t page = is_there ? (uint32_t)kv.table[place >> kv.shift] : 0;
        native_copy_if(to + 2 * TOKENS * D + threadIdx.x * 16, kv.scales_on(page, place), is_there);
    }
}

// What copy_codes brought, as bf16 values where and as copy_places has them. A thread has 4 dims of
// the places of a piece, of K or V. Places from `end` on have scales of 0.
template <int D, int TOKENS>
NATIVE void expand_codes(uint32_t to, uint32_t from, uint32_t first, uint32_t end)
{
    enum { QUADS = D / 4, N_PIECES = TOKENS / KD_PIECE, OF_K = QUADS * N_PIECES };
    const uint32_t scales = from + 2 * TOKENS * D;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < 2 * OF_K; i += KD_MANY_QUERY_THREADS) {
        const bool is_v = i >= OF_K; // the same for a simdgroup
        const uint32_t quad = i % QUADS, row = i / QUADS % N_PIECES * KD_PIECE;
        const uint32_t codes = from + (is_v ? TOKENS * D : 0) + row * D + quad * 4;
        const uint32_t values = to + (is_v ? TOKENS * D * 2 : 0) + quad % 2 * 8;
        float prediction[4] = {0};
#pragma unroll
        for (uint32_t t = 0; t < KD_PIECE; t++) {
            const uint32_t word = native_shared_word(codes + t * D) ^ 0x80808080u;
            const uint32_t both = native_shared_word(scales + (row + t) * 4);
            float scale = is_v ? v_scale(both) : k_scale(both), x[4];
            scale = first + row + t < end ? scale : 0.0f;
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                // 2^23 + code + 128 as a float's bits
                const float code =
                    __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u | e)) - 8388736.0f;
                x[e] = fmaf(code, scale, prediction[e]);
                if (!is_v)
                    prediction[e] = fmaf(code, piece_share(t) * scale, prediction[e]);
            }
            native_shared_store(values + piece_at<D>(row + t, quad / 2),
                                native_pack<true>(x[0], x[1]), native_pack<true>(x[2], x[3]));
        }
    }
}

// A simdgroup's 16 queries; the lane has rows g and g + 8 (i = 0, 1).
template <int D, bool IS_BF16, bool HAS_CODES, int TOKENS> struct many_queries {
    uint32_t query[D / 16][4];
    float out[D / 8][4];
    float largest[2], weight[2];
    uint2 places[2];

    NATIVE void open(const float *q, const many_share &s, uint32_t head, const kd_attention &p)
    {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const float scale = p.scale * LOG2_E;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t n = s.first_query + warp * 16 + (lane >> 2) + 8 * i;
            const uint32_t at = min(n, s.n_queries - 1);
            const float *from = q + (size_t)(s.first_row + at / s.group) * p.q_stride +
                                (size_t)(head * s.group + at % s.group) * D + (lane & 3) * 2;
            float x[D / 4]; // dims 8 j, 8 j + 1 from the lane's first on
#pragma unroll
            for (int j = 0; j < D / 4; j++)
                x[j] = from[j / 2 * 8 + j % 2] * scale;
            if (HAS_CODES)
                turn<D>(x, 1, 4);
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                query[j][i] = native_pack<IS_BF16>(x[4 * j], x[4 * j + 1]);
                query[j][i + 2] = native_pack<IS_BF16>(x[4 * j + 2], x[4 * j + 3]);
            }
            places[i] = query_places(s, n, p.window);
            largest[i] = NO_SCORE;
            weight[i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < D / 8 * 4; i++)
            (&out[0][0])[i] = 0.0f;
    }

    NATIVE void scores(float (&score)[TOKENS / 8][4], uint32_t k)
    {
        const uint32_t lane = threadIdx.x & 31, matrix = lane >> 3;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n += 2) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[n][i] = score[n + 1][i] = 0.0f;
            const uint32_t row = n * 8 + (matrix >> 1) * 8 + (lane & 7);
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                uint32_t b[4];
                load_matrices<false>(b, k + piece_at<D>(row, 2 * j + (matrix & 1)));
                native_mma<IS_BF16>(score[n], query[j][0], query[j][1], query[j][2], query[j][3],
                                    b[0], b[1]);
                native_mma<IS_BF16>(score[n + 1], query[j][0], query[j][1], query[j][2],
                                    query[j][3], b[2], b[3]);
            }
        }
    }

    NATIVE void hide(float (&score)[TOKENS / 8][4], uint32_t first)
    {
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t place = first + n * 8 + (threadIdx.x & 3) * 2 + (i & 1);
                if (place < places[i >> 1].x || place >= places[i >> 1].y)
                    score[n][i] = NO_SCORE;
            }
    }

    // Scores become shares.
    NATIVE void weigh(float (&score)[TOKENS / 8][4])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float now = largest[i];
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++)
                now = fmaxf(now, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
            now = fmaxf(now, __shfl_xor_sync(EVERY_LANE, now, 1));
            now = fmaxf(now, __shfl_xor_sync(EVERY_LANE, now, 2));
            // Rescaled only when a score has outgrown the largest by 2^8.
            if (__any_sync(EVERY_LANE, now > largest[i] + 8.0f)) {
                const float shrink = exp2_fast(largest[i] - now);
                largest[i] = now;
                weight[i] *= shrink;
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    out[d][2 * i] *= shrink;
                    out[d][2 * i + 1] *= shrink;
                }
            }
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++)
#pragma unroll
                for (int e = 2 * i; e < 2 * i + 2; e++) {
                    score[n][e] = exp2_fast(score[n][e] - largest[i]);
                    weight[i] += score[n][e];
                }
        }
    }

    NATIVE void add_values(const float (&share)[TOKENS / 8][4], uint32_t v)
    {
        const uint32_t lane = threadIdx.x & 31, matrix = lane >> 3;
#pragma unroll
        for (int j = 0; j < TOKENS / 16; j++) {
            const float(&s)[4] = share[2 * j], (&s8)[4] = share[2 * j + 1];
            const uint32_t a0 = native_pack<IS_BF16>(s[0], s[1]);
            const uint32_t a1 = native_pack<IS_BF16>(s[2], s[3]);
            const uint32_t a2 = native_pack<IS_BF16>(s8[0], s8[1]);
            const uint32_t a3 = native_pack<IS_BF16>(s8[2], s8[3]);
            const uint32_t row = j * 16 + (matrix & 1) * 8 + (lane & 7);
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t b[4];
                load_matrices<true>(b, v + piece_at<D>(row, d + (matrix >> 1)));
                native_mma<IS_BF16>(out[d], a0, a1, a2, a3, b[0], b[1]);
                native_mma<IS_BF16>(out[d + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }

    NATIVE void close(float *to, const float *sinks, const many_share &s, uint32_t head,
                      const kd_attention &p)
    {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t n = s.first_query + warp * 16 + (lane >> 2) + 8 * i;
            weight[i] += __shfl_xor_sync(EVERY_LANE, weight[i], 1);
            weight[i] += __shfl_xor_sync(EVERY_LANE, weight[i], 2);
            float sum[D / 4];
#pragma unroll
            for (int d = 0; d < D / 4; d++)
                sum[d] = out[d / 2][2 * i + d % 2];
            if (HAS_CODES)
                turn<D>(sum, 1, 4);
            if (n >= s.n_queries)
                continue;
            const uint32_t q_head = head * s.group + n % s.group;
            float shrink = 1.0f;
            if (p.has_sinks) {
                const float sink = sinks[q_head] * LOG2_E, most = fmaxf(sink, largest[i]);
                shrink = exp2_fast(largest[i] - most);
                weight[i] = weight[i] * shrink + exp2_fast(sink - most);
            }
            float *row = to + (size_t)(s.first_row + n / s.group) * p.out_stride +
                         (size_t)q_head * D + (lane & 3) * 2;
            const float factor = shrink / weight[i];
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                row[d * 8] = sum[2 * d] * factor;
                row[d * 8 + 1] = sum[2 * d + 1] * factor;
            }
        }
    }
};

// K and V of the tiles of a sequence, in turn: begin starts the copies of the first; next returns
// where the values of the tile at `first` lie, once all are done with those before, and starts the
// copies of the one behind it if there is one below seen.y.
template <int D, int TOKENS> struct ring_of_values {
    typedef uint16_t value;
    enum { STAGE_BYTES = 2 * TOKENS * D * 2 };

    NATIVE void begin(uint32_t shared, const kv_head<uint16_t> &kv, uint32_t first, uint2 seen)
    {
        copy_places<D, TOKENS>(shared, kv, first, seen);
        native_copies_end();
    }

    NATIVE uint32_t next(uint32_t shared, uint32_t stage, const kv_head<uint16_t> &kv,
                         uint32_t first, uint2 seen)
    {
        native_copies_wait<0>();
        __syncthreads();
        if (first + TOKENS < seen.y)
            copy_places<D, TOKENS>(shared + (stage ^ 1) * STAGE_BYTES, kv, first + TOKENS, seen);
        native_copies_end();
        return shared + stage * STAGE_BYTES;
    }
};

template <int D, int TOKENS> struct ring_of_codes {
    typedef int8_t value;
    enum { STAGE_BYTES = 2 * TOKENS * D + TOKENS * 4, VALUES_BYTES = 2 * TOKENS * D * 2 };

    // A token needs those before it in its piece, also where no row sees them.
    NATIVE uint2 read(uint2 seen) const
    {
        return make_uint2(seen.x / KD_PIECE * KD_PIECE, seen.y);
    }

    NATIVE void begin(uint32_t shared, const kv_head<int8_t> &kv, uint32_t first, uint2 seen)
    {
        copy_codes<D, TOKENS>(shared + VALUES_BYTES, kv, first, read(seen));
        native_copies_end();
    }

    NATIVE uint32_t next(uint32_t shared, uint32_t stage, const kv_head<int8_t> &kv, uint32_t first,
                         uint2 seen)
    {
        const uint32_t codes = shared + VALUES_BYTES;
        native_copies_wait<0>();
        __syncthreads();
        if (first + TOKENS < seen.y)
            copy_codes<D, TOKENS>(codes + (stage ^ 1) * STAGE_BYTES, kv, first + TOKENS,
                                  read(seen));
        native_copies_end();
        expand_codes<D, TOKENS>(shared, codes + stage * STAGE_BYTES, first, seen.y);
        __syncthreads();
        return shared;
    }
};

template <int D, bool IS_BF16, int TOKENS, class Ring>
NATIVE void many(const float *q, const uint8_t *pages, const int32_t *q_start,
                 const int32_t *kv_len, const int32_t *page_table, const float *sinks, float *out,
                 const kd_native_attention &p)
{
    enum { HAS_CODES = sizeof(typename Ring::value) == 1 };
    extern __shared__ __align__(128) uint8_t stages[];
    const kd_attention &a = p.attention;
    const uint32_t shared = native_shared(stages), head = blockIdx.x;
    native_let_next_start();
    native_wait_for_previous();
    many_share s;
    if (!find_share(s, blockIdx.y, q_start, kv_len, p))
        return;
    const kv_head<typename Ring::value> kv(pages, page_table + (size_t)s.sequence * a.table_stride,
                                           head, D, a.pages);
    const uint2 first_places = query_places(s, s.first_query, a.window);
    const uint2 last_places = query_places(s, s.first_query + KD_MANY_QUERIES - 1, a.window);
    const uint2 seen = make_uint2(first_places.x, last_places.y); // by any of the queries
    const uint2 by_all = make_uint2(last_places.x, first_places.y);
    uint32_t first = seen.x / TOKENS * TOKENS;
    Ring ring;
    ring.begin(shared, kv, first, seen);
    many_queries<D, IS_BF16, HAS_CODES, TOKENS> queries;
    queries.open(q, s, head, a);
    for (uint32_t stage = 0; first < seen.y; first += TOKENS, stage ^= 1) {
        const uint32_t k = ring.next(shared, stage, kv, first, seen);
        float score[TOKENS / 8][4];
        queries.scores(score, k);
        if (first < by_all.x || first + TOKENS > by_all.y)
            queries.hide(score, first);
        queries.weigh(score);
        queries.add_values(score, k + TOKENS * D * 2);
    }
    queries.close(out, sinks, s, head, a);
}

#define MANY(name, dim, is_bf16, tokens, ring)                                                     \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(KD_MANY_QUERY_THREADS, 1)                         \
        name(const float *q, const uint8_t *pages, const int32_t *q_start, const int32_t *kv_len,  \
             const int32_t *page_table, const float *sinks, float *out,                            \
             const __grid_constant__ kd_native_attention p)                                        \
    {                                                                                              \
        many<dim, is_bf16, tokens, ring<dim, tokens>>(q, pages, q_start, kv_len, page_table,       \
                                                      sinks, out, p);                              \
    }
MANY(paged_attention_many_64_f16, 64, false, 64, ring_of_values)
MANY(paged_attention_many_64_bf16, 64, true, 64, ring_of_values)
MANY(paged_attention_many_64_i8, 64, true, 64, ring_of_codes)
MANY(paged_attention_many_128_f16, 128, false, 64, ring_of_values)
MANY(paged_attention_many_128_bf16, 128, true, 64, ring_of_values)
MANY(paged_attention_many_128_i8, 128, true, 64, ring_of_codes)
MANY(paged_attention_many_256_f16, 256, false, 32, ring_of_values)
MANY(paged_attention_many_256_bf16, 256, true, 32, ring_of_values)
MANY(paged_attention_many_256_i8, 256, true, 32, ring_of_codes)
