// Paged attention for many rows, on the GPU's matrix units.
//
// A threadgroup has KD_COLUMNS columns (args.h) of a sequence (y counts the tiles of all) and a KV
// head (x): it reads K and V once for all of them, blocks of B places at a time, which it expands
// into its memory. A simdgroup has eight columns and F * 8 of their D dims, whose queries and sums
// stay in its matrices; where that is half of the dims, the simdgroup with the other half has the
// same columns, and both add up what they have of the scores. Heads may have fewer dims, the rest
// are zeros. Sums are rescaled only when a score is more than 2^8 times as large as all before it.
// The kernels of codes (i8) turn the queries, scale K and V, give each score the shares of those
// before in its piece, and turn the sums back.
#include "kd.h"

#include "codes.h"
#include "frag.h"
#include "load.h"
#include "pages.h"

// The columns of a threadgroup: those from `first` on of a sequence with n_columns.
struct columns {
    uint sequence, first_row, n_rows, kv_len;
    uint group, kv_head;
    uint first, n_columns;
};

// What a column is and sees; one behind the last is the last again.
struct column {
    uint row, head;
    uint first, end;
};

KD_INLINE column column_of(constant kd_attention &p, thread const columns &t, uint i)
{
    const uint c = min(t.first + i, t.n_columns - 1u), query = c / t.group;
    column one;
    one.row = t.first_row + query;
    one.head = t.kv_head * t.group + c % t.group;
    one.end = t.kv_len - t.n_rows + query + 1u;
    one.first = p.window && one.end > p.window ? one.end - p.window : 0;
    return one;
}

// Finds tile `index` of all sequences' tiles; false: there are fewer.
KD_INLINE bool find_columns(constant kd_attention &p, device const int *q_start,
                            device const int *kv_len, uint index, thread columns &t)
{
    t.group = p.n_q_heads / p.pages.n_heads;
    for (t.sequence = 0; t.sequence < p.n_sequences; t.sequence++) {
        t.first_row = (uint)q_start[t.sequence * p.q_start_stride];
        t.n_rows = (uint)q_start[(t.sequence + 1) * p.q_start_stride] - t.first_row;
        t.n_columns = t.n_rows * t.group;
        const uint n = kd_is_tiled(p, t.n_rows) ? (t.n_columns + KD_COLUMNS - 1) / KD_COLUMNS : 0;
        if (index < n) {
            t.first = index * KD_COLUMNS;
            t.kv_len = (uint)kv_len[t.sequence * p.kv_len_stride];
            return true;
        }
        index -= n;
    }
    return false;
}

// The K (which 0) or V of B places from `block` on into `tile` [B][D + 4]; those from `end` on, and
// dims that the head does not have, are zeros.
template <uint D, uint F, uint B, bool HAS_CODES>
KD_INLINE void read_block(threadgroup float *tile, device const uchar *pages,
                          device const int *table, constant kd_attention_matrix &p, uint kv_head,
                          uint which, uint block, uint end, uint thread_index)
{
    constant kd_pages &shape = p.attention.pages;
    for (uint i = thread_index; i < B * (D / 8); i += KD_COLUMN_THREADS * D / (F * 8)) {
        const uint place = block + i / (D / 8), d = i % (D / 8) * 8u;
        float v[8];
        KD_UNROLL for (uint k = 0; k < 8; k++) v[k] = 0.0f;
        if (place < end && d < shape.head_dim) {
            const ulong page = (ulong)table[place >> p.page_shift];
            const uint in_page = place & ((1u << p.page_shift) - 1u);
            if (HAS_CODES) {
                const uint both =
                    ((device const uint *)pages)[kd_scales_at(shape, page, in_page, kv_head)];
                const float scale = which ? kd_v_scale(both) : kd_k_scale(both);
                kd_code_eight(pages, kd_code_row(shape, page, in_page, kv_head, which) + d, v);
                KD_UNROLL for (uint k = 0; k < 8; k++) v[k] *= scale;
            } else {
                kd_load_eight(pages, kd_page_row(shape, page, in_page, kv_head, which) + d,
                              shape.dtype, v);
            }
        }
        threadgroup float *to = tile + i / (D / 8) * (D + 4) + d;
        KD_UNROLL for (uint k = 0; k < 8; k++) to[k] = v[k];
    }
}

// What a simdgroup has: queries and sums, and what a lane knows of column lane / 4.
template <uint F> struct column_state {
    kd_frag queries[F], sums[F];
    float largest, weight;
    uint first, end;
    uint own, part; // its first column, and its first dim in `tile`
};

// The queries of the tile's columns, scaled and turned, by way of `tile` [B][D + 4].
template <uint D, uint F, uint B, bool HAS_CODES>
KD_INLINE void read_queries(thread column_state<F> &a, thread const columns &t,
                            device const float *q, constant kd_attention &p,
                            threadgroup float *tile, uint lane, uint simd)
{
    const uint dim = p.pages.head_dim, n_simds = KD_COLUMN_SIMDS * D / (F * 8);
    for (uint base = 0; base < KD_COLUMNS; base += B) {
        for (uint r = simd; r < B; r += n_simds) {
            const column c = column_of(p, t, base + r);
            device const float *from = q + (ulong)c.row * p.q_stride + (ulong)c.head * dim;
            float x[KD_MAX_HEAD_PARTS];
            KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
            {
                const uint d = i * KD_SIMD_WIDTH + lane;
                x[i] = d < dim ? from[d] * (p.scale * KD_LOG2_E) : 0.0f;
            }
            if (HAS_CODES)
                kd_turn(x, dim, lane);
            KD_UNROLL for (uint i = 0; i < D / KD_SIMD_WIDTH; i++)
                tile[r * (D + 4) + i * KD_SIMD_WIDTH + lane] = x[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (a.own >= base && a.own < base + B) {
            threadgroup const float *from = tile + (a.own - base) * (D + 4) + a.part;
            KD_UNROLL for (uint k = 0; k < F; k++)
                kd_frag_load(a.queries[k], from + k * 8u, D + 4, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Adds to each of a lane's C scores, which follow each other, the shares of those before in its
// piece; `from` is the first one's place. Four lanes have a column's scores.
template <uint C> KD_INLINE void add_shares(thread float *scores, uint from, uint piece, uint lane)
{
    float all = 0.0f, before = 0.0f;
    KD_UNROLL for (uint i = 0; i < C; i++) all += kd_piece_share((from + i) % piece) * scores[i];
    KD_UNROLL for (uint step = 1; step < 4; step *= 2)
    {
        const float other = simd_shuffle_xor(all, step);
        if (step * C < piece) {
            before += (lane & step) != 0 ? other : 0.0f;
            all += other;
        }
    }
    KD_UNROLL for (uint i = 0; i < C; i++)
    {
        const float own = scores[i];
        before = (from + i) % piece == 0 ? 0.0f : before;
        scores[i] += before;
        before += kd_piece_share((from + i) % piece) * own;
    }
}

// Multiplies row r of each of the sums by the factor that lanes 4 r to 4 r + 3 have. `diagonal`
// [64].
template <uint F>
KD_INLINE void scale_sums(thread column_state<F> &a, float factor, threadgroup float *diagonal,
                          uint lane)
{
    const float upper = simd_shuffle(factor, lane / 8u * 4u);
    const float lower = simd_shuffle(factor, lane / 8u * 4u + 16u);
    diagonal[lane] = lane / 8u == lane % 8u ? upper : 0.0f;
    diagonal[lane + 32u] = lane / 8u + 4u == lane % 8u ? lower : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    kd_frag factors;
    kd_frag_load(factors, diagonal, 8, lane);
    KD_UNROLL for (uint k = 0; k < F; k++)
    {
        kd_frag scaled;
        kd_frag_zero(scaled);
        kd_frag_add_product(scaled, factors, a.sums[k], lane);
        a.sums[k] = scaled;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// Of the columns' scores of the places in `tile`, what this simdgroup's dims make, into `scores`
// [8][B + 4].
template <uint D, uint F, uint B>
KD_INLINE void multiply_keys(thread column_state<F> &a, threadgroup const float *tile,
                             threadgroup float *scores, uint lane)
{
    for (uint j = 0; j < B; j += 8) {
        kd_frag sum;
        kd_frag_zero(sum);
        KD_UNROLL for (uint k = 0; k < F; k++)
        {
            kd_frag keys;
            kd_frag_load_turned(keys, tile + j * (D + 4) + a.part + k * 8u, D + 4, lane);
            kd_frag_add_product(sum, a.queries[k], keys, lane);
        }
        kd_frag_store(sum, scores + j, B + 4, lane);
    }
}

// A lane's scores of the places from `from` on become shares.
template <uint F, uint C>
KD_INLINE void take_scores(thread column_state<F> &a, thread float *s, threadgroup float *diagonal,
                           uint from, uint lane)
{
    float most = -INFINITY;
    KD_UNROLL for (uint i = 0; i < C; i++)
    {
        s[i] = from + i >= a.first && from + i < a.end ? s[i] : -INFINITY;
        most = max(most, s[i]);
    }
    most = max(most, simd_shuffle_xor(most, 1));
    most = max(most, simd_shuffle_xor(most, 2));
    if (simd_max(most - a.largest) > 8.0f) {
        const float now = max(a.largest, most), shrink = exp2(a.largest - now);
        a.largest = now;
        a.weight *= shrink;
        scale_sums<F>(a, shrink, diagonal, lane);
    }
    KD_UNROLL for (uint i = 0; i < C; i++)
    {
        s[i] = exp2(s[i] - a.largest);
        a.weight += s[i];
    }
}

// Adds the places' V in `tile`, each as its share [8][B + 4] says.
template <uint D, uint F, uint B>
KD_INLINE void add_values(thread column_state<F> &a, threadgroup const float *tile,
                          threadgroup const float *shares, uint lane)
{
    for (uint j = 0; j < B; j += 8) {
        kd_frag share;
        kd_frag_load(share, shares + j, B + 4, lane);
        KD_UNROLL for (uint k = 0; k < F; k++)
        {
            kd_frag values;
            kd_frag_load(values, tile + j * (D + 4) + a.part + k * 8u, D + 4, lane);
            kd_frag_add_product(a.sums[k], share, values, lane);
        }
    }
}

// Writes the tile's columns, by way of `tile` [B][D + 4]. factors [KD_COLUMNS].
template <uint D, uint F, uint B, bool HAS_CODES>
KD_INLINE void write_columns(thread column_state<F> &a, thread const columns &t,
                             device const float *sinks, device float *out, constant kd_attention &p,
                             threadgroup float *tile, threadgroup float *factors, uint lane,
                             uint simd)
{
    const uint dim = p.pages.head_dim, n_simds = KD_COLUMN_SIMDS * D / (F * 8);
    a.weight += simd_shuffle_xor(a.weight, 1);
    a.weight += simd_shuffle_xor(a.weight, 2);
    const uint head = column_of(p, t, a.own + lane / 4u).head;
    const float sink = p.has_sinks ? sinks[head] * KD_LOG2_E : KD_NOTHING;
    const float most = max(a.largest, sink), factor = exp2(a.largest - most);
    const float weight = a.weight * factor + (p.has_sinks ? exp2(sink - most) : 0.0f);
    if (lane % 4u == 0 && a.part == 0)
        factors[a.own + lane / 4u] = factor / weight;
    for (uint base = 0; base < KD_COLUMNS; base += B) {
        if (a.own >= base && a.own < base + B) {
            threadgroup float *to = tile + (a.own - base) * (D + 4) + a.part;
            KD_UNROLL for (uint k = 0; k < F; k++)
                kd_frag_store(a.sums[k], to + k * 8u, D + 4, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint r = simd; r < B && t.first + base + r < t.n_columns; r += n_simds) {
            const column c = column_of(p, t, base + r);
            device float *to = out + (ulong)c.row * p.out_stride + (ulong)c.head * dim;
            float x[KD_MAX_HEAD_PARTS];
            KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
            {
                const uint d = i * KD_SIMD_WIDTH + lane;
                x[i] = d < dim ? tile[r * (D + 4) + d] * factors[base + r] : 0.0f;
            }
            if (HAS_CODES)
                kd_turn(x, dim, lane);
            KD_UNROLL for (uint i = 0; i < D / KD_SIMD_WIDTH; i++)
            {
                const uint d = i * KD_SIMD_WIDTH + lane;
                if (d < dim)
                    to[d] = x[i];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template <uint D, uint F, uint B, bool HAS_CODES>
KD_INLINE void attend_columns(device const float *q, device const uchar *pages,
                              device const int *q_start, device const int *kv_len,
                              device const int *page_table, device const float *sinks,
                              device float *out, constant kd_attention_matrix &p,
                              threadgroup float *tile, threadgroup float *scores,
                              threadgroup float *diagonals, threadgroup float *factors,
                              uint kv_head, uint index, uint thread_index, uint lane, uint simd)
{
    const uint C = B / 4, SCORES = 8 * (B + 4); // of a simdgroup
    columns t;
    if (!find_columns(p.attention, q_start, kv_len, index, t)) // no thread of the group does
        return;
    t.kv_head = kv_head;
    device const int *table = page_table + (ulong)t.sequence * p.attention.table_stride;
    column_state<F> a;
    a.own = simd % KD_COLUMN_SIMDS * 8u;
    a.part = simd / KD_COLUMN_SIMDS * F * 8u;
    const column mine = column_of(p.attention, t, a.own + lane / 4u);
    a.first = mine.first;
    a.end = mine.end;
    a.largest = KD_NOTHING;
    a.weight = 0.0f;
    KD_UNROLL for (uint k = 0; k < F; k++) kd_frag_zero(a.sums[k]);
    read_queries<D, F, B, HAS_CODES>(a, t, q, p.attention, tile, lane, simd);
    const uint piece = HAS_CODES ? kd_piece(p.attention.pages.page_size) : 1;
    const uint begin = column_of(p.attention, t, 0).first / piece * piece;
    const uint end = column_of(p.attention, t, KD_COLUMNS - 1).end;
    const uint at = lane / 4u * (B + 4) + lane % 4u * C; // of a lane's scores in its simdgroup's
    threadgroup float *own = scores + simd * SCORES, *first_part = own;
    if (F * 8 < D)
        first_part = scores + simd % KD_COLUMN_SIMDS * SCORES;
    for (uint block = begin; block < end; block += B) {
        read_block<D, F, B, HAS_CODES>(tile, pages, table, p, kv_head, 0, block, end, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        multiply_keys<D, F, B>(a, tile, own, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float s[B / 4];
        KD_UNROLL for (uint i = 0; i < C; i++) s[i] = first_part[at + i];
        if (F * 8 < D) {
            KD_UNROLL for (uint i = 0; i < C; i++) s[i] +=
                first_part[KD_COLUMN_SIMDS * SCORES + at + i];
        }
        if (HAS_CODES)
            add_shares<B / 4>(s, block + lane % 4u * C, piece, lane);
        take_scores<F, B / 4>(a, s, diagonals + simd * 64, block + lane % 4u * C, lane);
        read_block<D, F, B, HAS_CODES>(tile, pages, table, p, kv_head, 1, block, end, thread_index);
        if (F * 8 < D)
            threadgroup_barrier(mem_flags::mem_threadgroup); // both parts were read
        KD_UNROLL for (uint i = 0; i < C; i++) own[at + i] = s[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_values<D, F, B>(a, tile, own, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    write_columns<D, F, B, HAS_CODES>(a, t, sinks, out, p.attention, tile, factors, lane, simd);
}

#define ATTENTION_MATRIX(name, d, f, b, c)                                                         \
    KERNEL(name, CBUF(float, q, 0), CBUF(uchar, pages, 1), CBUF(int, q_start, 2),                  \
           CBUF(int, kv_len, 3), CBUF(int, page_table, 4), CBUF(float, sinks, 5),                  \
           BUF(float, out, 6), PARM(kd_attention_matrix, p, 7))                                    \
    {                                                                                              \
        TG_ARRAY(float, tile, b *(d + 4));                                                         \
        TG_ARRAY(float, scores, KD_COLUMNS *d / (f * 8) * (b + 4));                                \
        TG_ARRAY(float, diagonals, KD_COLUMN_SIMDS *d / (f * 8) * 64);                             \
        TG_ARRAY(float, factors, KD_COLUMNS);                                                      \
        attend_columns<d, f, b, c>(q, pages, q_start, kv_len, page_table, sinks, out, p, tile,     \
                                   scores, diagonals, factors, TGID.x, TGID.y, TID, LANE, SGID);   \
    }
ATTENTION_MATRIX(attention_matrix_64, 64, 8, 32, false)
ATTENTION_MATRIX(attention_matrix_96, 96, 12, 32, false)
ATTENTION_MATRIX(attention_matrix_128, 128, 16, 32, false)
ATTENTION_MATRIX(attention_matrix_256, 256, 16, 16, false)
ATTENTION_MATRIX(attention_matrix_i8_64, 64, 8, 32, true)
ATTENTION_MATRIX(attention_matrix_i8_96, 96, 12, 32, true)
ATTENTION_MATRIX(attention_matrix_i8_128, 128, 16, 32, true)
ATTENTION_MATRIX(attention_matrix_i8_256, 256, 16, 16, true)
