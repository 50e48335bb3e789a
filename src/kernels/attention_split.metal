// Paged attention for head sizes of 64, 128 and 256, whose time is that of reading K and V: once
// for up to 4 query heads that share them, 16 bytes a lane, and by several threadgroups where there
// are few rows.
//
// A threadgroup has a row (x), a KV head with up to G of its query heads (y), and a part of the
// places (z). LPT = dim / 8 lanes share a place, 8 dims each; a simdgroup takes U places of each of
// its 32 / LPT groups of lanes at once. Its U * G partial scores are summed and dealt out over the
// lanes together, so that a lane computes one exponential. Sums are rescaled only when a score is
// more than 2^8 times as large as all before it. The kernels of codes (i8) turn the query, scale
// scores by K's scales and shares by V's, and turn the sums back before simdgroups meet.
#include "kd.h"

#include "codes.h"
#include "load.h"
#include "pages.h"

// Sums each of s[N] over LPT lanes; lane `sub` of them gets that of s[sub % N], in s[0].
template <uint LPT, uint N> KD_INLINE void deal_sums(thread float *s, uint sub)
{
    KD_UNROLL for (uint w = LPT / 2; w >= N; w /= 2)
    {
        KD_UNROLL for (uint i = 0; i < N; i++) s[i] += simd_shuffle_xor(s[i], w);
    }
    KD_UNROLL for (uint w = N / 2; w > 0; w /= 2)
    {
        const bool is_upper = (sub & w) != 0;
        KD_UNROLL for (uint i = 0; i < w; i++)
        {
            const float kept = is_upper ? s[i + w] : s[i], given = is_upper ? s[i] : s[i + w];
            s[i] = kept + simd_shuffle_xor(given, w);
        }
    }
}

// The softmax of some places for G heads: what a lane of a simdgroup knows of it.
template <uint G> struct split_state {
    float query[G * 8], sums[G * 8]; // of its 8 dims
    float largest, weight;           // of head lane % G
    float shares; // codes: of the scores of the tokens before in the piece, of head lane % G
};

// A lane has the share of the place u SLOTS + slot of U SLOTS in the scores of those behind it in
// its piece: returns what it gets itself, and keeps what goes to the places behind them.
template <uint LPT, uint G, uint U>
KD_INLINE float sum_shares(thread split_state<G> &a, float share, uint from, uint piece, uint lane)
{
    const uint SLOTS = KD_SIMD_WIDTH / LPT;
    float before = from % piece == 0 ? 0.0f : a.shares, all = share;
    a.shares = before;
    KD_UNROLL for (uint step = 1; step < U * SLOTS; step *= 2)
    {
        const uint bit = step < SLOTS ? step * LPT : step / SLOTS * G; // of the lane's number
        const float other = simd_shuffle_xor(all, bit);
        if (step < piece) {
            before += (lane & bit) != 0 ? other : 0.0f;
            all += other;
        }
    }
    a.shares += all;
    return before;
}

template <uint LPT, uint G, uint U, bool HAS_CODES>
KD_INLINE void take_places(thread split_state<G> &a, device const uchar *pages,
                           device const int *table, constant kd_attention_split &p, uint kv_head,
                           uint from, uint first, uint stop, uint lane)
{
    const uint N = U * G, SLOTS = KD_SIMD_WIDTH / LPT;
    const uint sub = lane % LPT, slot = lane / LPT, dtype = p.attention.pages.dtype;
    float s[U * G], values[8], v_scales[U];
    ulong at[U];
    KD_UNROLL for (uint u = 0; u < U; u++)
    {
        const uint place = min(from + u * SLOTS + slot, stop - 1u);
        const ulong page = (ulong)table[place >> p.page_shift];
        const uint in_page = place & ((1u << p.page_shift) - 1u);
        float k_scale = 1.0f;
        if (HAS_CODES) {
            at[u] = kd_code_row(p.attention.pages, page, in_page, kv_head, 0) + sub * 8u;
            kd_code_eight(pages, at[u], values);
            const uint both = ((
                device const uint *)pages)[kd_scales_at(p.attention.pages, page, in_page, kv_head)];
            k_scale = kd_k_scale(both);
            v_scales[u] = kd_v_scale(both);
        } else {
            at[u] = kd_page_row(p.attention.pages, page, in_page, kv_head, 0) + sub * 8u;
            kd_load_eight(pages, at[u], dtype, values);
        }
        KD_UNROLL for (uint g = 0; g < G; g++)
        {
            float score = 0.0f;
            KD_UNROLL for (uint i = 0; i < 8; i++) score =
                fma(a.query[g * 8 + i], values[i], score);
            s[u * G + g] = HAS_CODES ? score * k_scale : score;
        }
    }
    deal_sums<LPT, U * G>(s, sub);
    const uint place = from + sub % N / G * SLOTS + slot;
    if (HAS_CODES) {
        const uint piece = kd_piece(p.attention.pages.page_size);
        s[0] += sum_shares<LPT, G, U>(a, kd_piece_share(place % piece) * s[0], from, piece, lane);
    }
    const float score = place >= first && place < stop ? s[0] : -INFINITY;
    if (simd_max(score - a.largest) > 8.0f) {
        float now = max(a.largest, score);
        KD_UNROLL for (uint w = G; w < KD_SIMD_WIDTH; w *= 2) now =
            max(now, simd_shuffle_xor(now, w));
        const float shrink = exp2(a.largest - now);
        a.largest = now;
        a.weight *= shrink;
        KD_UNROLL for (uint g = 0; g < G; g++)
        {
            const float factor = simd_shuffle(shrink, g);
            KD_UNROLL for (uint i = 0; i < 8; i++) a.sums[g * 8 + i] *= factor;
        }
    }
    const float share = exp2(score - a.largest);
    a.weight += share;
    const ulong to_v = (ulong)p.attention.pages.n_heads * p.attention.pages.page_size * (LPT * 8u);
    KD_UNROLL for (uint u = 0; u < U; u++)
    {
        if (HAS_CODES)
            kd_code_eight(pages, at[u] + to_v, values);
        else
            kd_load_eight(pages, at[u] + to_v, dtype, values);
        KD_UNROLL for (uint g = 0; g < G; g++)
        {
            float factor = simd_shuffle(share, slot * LPT + u * G + g);
            if (HAS_CODES)
                factor *= v_scales[u];
            KD_UNROLL for (uint i = 0; i < 8; i++) a.sums[g * 8 + i] =
                fma(factor, values[i], a.sums[g * 8 + i]);
        }
    }
}

// Puts what the simdgroup has into the threadgroup's memory, [simd][G] and [simd][G][dim].
template <uint LPT, uint G, uint U, bool HAS_CODES>
KD_INLINE void give_sums(thread split_state<G> &a, threadgroup float *largest,
                         threadgroup float *weights, threadgroup float *sums, uint lane, uint simd)
{
    const uint dim = LPT * 8u;
    KD_UNROLL for (uint w = G; w < KD_SIMD_WIDTH; w *= 2) a.weight += simd_shuffle_xor(a.weight, w);
    // Each score was there LPT / (U G) times.
    a.weight *= (float)(U * G) / (float)LPT;
    KD_UNROLL for (uint i = 0; i < G * 8; i++)
    {
        KD_UNROLL for (uint w = LPT; w < KD_SIMD_WIDTH; w *= 2) a.sums[i] +=
            simd_shuffle_xor(a.sums[i], w);
    }
    if (HAS_CODES) {
        KD_UNROLL for (uint g = 0; g < G; g++) kd_turn_eights<LPT>(a.sums + g * 8, lane % LPT);
    }
    if (lane < G) {
        largest[simd * G + lane] = a.largest;
        weights[simd * G + lane] = a.weight;
    }
    if (lane < LPT) {
        KD_UNROLL for (uint i = 0; i < G * 8; i++)
            sums[(simd * G + i / 8) * dim + lane * 8u + i % 8] = a.sums[i];
    }
}

template <uint LPT, uint G, uint U, bool HAS_CODES>
KD_INLINE void attend(device const float *q, device const uchar *pages, device const int *q_start,
                      device const int *kv_len, device const int *page_table,
                      device const float *sinks, device float *out, device float *parts,
                      device float *levels, constant kd_attention_split &p,
                      threadgroup float *largest, threadgroup float *weights,
                      threadgroup float *sums, uint row, uint y, uint split, uint thread_index,
                      uint lane, uint simd)
{
    const uint dim = LPT * 8u, step = U * KD_SIMD_WIDTH / LPT;
    const uint run = HAS_CODES ? (uint)KD_PIECE : step; // places that a simdgroup takes in a row
    const uint group = p.attention.n_q_heads / p.attention.pages.n_heads;
    const uint kv_head = y / p.n_chunks, chunk = y % p.n_chunks;
    const uint first_head = kv_head * group + chunk * G, n_heads = min(G, group - chunk * G);
    const kd_seen seen = kd_places_seen(p.attention, q_start, kv_len, row);
    if (seen.is_tiled) // all threads of the group
        return;
    const uint first = HAS_CODES ? seen.first / KD_PIECE * KD_PIECE : seen.first;
    const uint all = seen.end - first;
    uint n = (all + p.n_splits - 1) / p.n_splits;
    n = (max(n, (uint)KD_MIN_SPLIT) + run - 1) / run * run;
    const uint begin = first + min(split * n, all), stop = min(begin + n, seen.end);
    device const int *table = page_table + (ulong)seen.sequence * p.attention.table_stride;
    split_state<G> a;
    a.largest = KD_NOTHING;
    a.weight = 0.0f;
    a.shares = 0.0f;
    KD_UNROLL for (uint g = 0; g < G; g++)
    {
        const ulong head = first_head + min(g, n_heads - 1u);
        device const float *from = q + (ulong)row * p.attention.q_stride + head * dim;
        kd_load_eight((device const uchar *)from, lane % LPT * 8u, KD_F32, a.query + g * 8);
        KD_UNROLL for (uint i = 0; i < 8; i++)
        {
            a.query[g * 8 + i] *= p.attention.scale * KD_LOG2_E;
            a.sums[g * 8 + i] = 0.0f;
        }
        if (HAS_CODES)
            kd_turn_eights<LPT>(a.query + g * 8, lane % LPT);
    }
    for (uint from = begin + simd * run; from < stop; from += KD_SPLIT_SIMDS * run)
        for (uint i = 0; i < run && from + i < stop; i += step)
            take_places<LPT, G, U, HAS_CODES>(a, pages, table, p, kv_head, from + i, seen.first,
                                              stop, lane);
    give_sums<LPT, G, U, HAS_CODES>(a, largest, weights, sums, lane, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < n_heads * dim; i += KD_SPLIT_THREADS) {
        const uint g = i / dim, head = first_head + g;
        float most = KD_NOTHING, weight = 0.0f, sum = 0.0f;
        for (uint s = 0; s < KD_SPLIT_SIMDS; s++)
            most = max(most, largest[s * G + g]);
        if (p.n_splits == 1 && p.attention.has_sinks) {
            most = max(most, sinks[head] * KD_LOG2_E);
            weight = exp2(sinks[head] * KD_LOG2_E - most);
        }
        for (uint s = 0; s < KD_SPLIT_SIMDS; s++) {
            const float factor = exp2(largest[s * G + g] - most);
            weight += factor * weights[s * G + g];
            sum += factor * sums[(s * G + g) * dim + i % dim];
        }
        if (p.n_splits == 1) {
            out[(ulong)row * p.attention.out_stride + head * dim + i % dim] = sum / weight;
            continue;
        }
        const ulong part = ((ulong)row * p.attention.n_q_heads + head) * p.n_splits + split;
        parts[part * dim + i % dim] = sum;
        if (i % dim == 0) {
            levels[part * 2] = most;
            levels[part * 2 + 1] = weight;
        }
    }
}

#define ATTENTION_SPLIT(name, dim, g, u, c)                                                        \
    KERNEL(name, CBUF(float, q, 0), CBUF(uchar, pages, 1), CBUF(int, q_start, 2),                  \
           CBUF(int, kv_len, 3), CBUF(int, page_table, 4), CBUF(float, sinks, 5),                  \
           BUF(float, out, 6), BUF(float, parts, 7), BUF(float, levels, 8),                        \
           PARM(kd_attention_split, p, 9))                                                         \
    {                                                                                              \
        TG_ARRAY(float, largest, KD_SPLIT_SIMDS *g);                                               \
        TG_ARRAY(float, weights, KD_SPLIT_SIMDS *g);                                               \
        TG_ARRAY(float, sums, KD_SPLIT_SIMDS *g *dim);                                             \
        attend<dim / 8, g, u, c>(q, pages, q_start, kv_len, page_table, sinks, out, parts, levels, \
                                 p, largest, weights, sums, TGID.x, TGID.y, TGID.z, TID, LANE,     \
                                 SGID);                                                            \
    }
ATTENTION_SPLIT(attention_split_64_1, 64, 1, 2, false)
ATTENTION_SPLIT(attention_split_64_2, 64, 2, 2, false)
ATTENTION_SPLIT(attention_split_64_4, 64, 4, 2, false)
ATTENTION_SPLIT(attention_split_128_1, 128, 1, 4, false)
ATTENTION_SPLIT(attention_split_128_2, 128, 2, 4, false)
ATTENTION_SPLIT(attention_split_128_4, 128, 4, 4, false)
ATTENTION_SPLIT(attention_split_256_1, 256, 1, 4, false)
ATTENTION_SPLIT(attention_split_256_2, 256, 2, 4, false)
ATTENTION_SPLIT(attention_split_256_4, 256, 4, 4, false)
ATTENTION_SPLIT(attention_split_i8_64_1, 64, 1, 2, true)
ATTENTION_SPLIT(attention_split_i8_64_2, 64, 2, 2, true)
ATTENTION_SPLIT(attention_split_i8_64_4, 64, 4, 2, true)
ATTENTION_SPLIT(attention_split_i8_128_1, 128, 1, 4, true)
ATTENTION_SPLIT(attention_split_i8_128_2, 128, 2, 4, true)
ATTENTION_SPLIT(attention_split_i8_128_4, 128, 4, 4, true)
ATTENTION_SPLIT(attention_split_i8_256_1, 256, 1, 4, true)
ATTENTION_SPLIT(attention_split_i8_256_2, 256, 2, 4, true)
ATTENTION_SPLIT(attention_split_i8_256_4, 256, 4, 4, true)

// Puts the parts of a row (x) and head (y) together.
KERNEL(attention_merge, CBUF(float, parts, 0), CBUF(float, levels, 1), CBUF(float, sinks, 2),
       BUF(float, out, 3), PARM(kd_attention_split, p, 4))
{
    const uint dim = p.attention.pages.head_dim, head = TGID.y;
    const ulong first = ((ulong)TGID.x * p.attention.n_q_heads + head) * p.n_splits;
    const float sink = p.attention.has_sinks ? sinks[head] * KD_LOG2_E : KD_NOTHING;
    float most = sink;
    for (uint s = 0; s < p.n_splits; s++)
        most = max(most, levels[(first + s) * 2]);
    float weight = p.attention.has_sinks ? exp2(sink - most) : 0.0f;
    for (uint s = 0; s < p.n_splits; s++)
        weight += exp2(levels[(first + s) * 2] - most) * levels[(first + s) * 2 + 1];
    for (uint d = TID; d < dim; d += KD_SPLIT_THREADS) {
        float sum = 0.0f;
        for (uint s = 0; s < p.n_splits; s++)
            sum += exp2(levels[(first + s) * 2] - most) * parts[(first + s) * dim + d];
        out[(ulong)TGID.x * p.attention.out_stride + head * dim + d] = sum / weight;
    }
}
