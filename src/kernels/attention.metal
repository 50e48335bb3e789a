// Paged attention and the pages that it reads.
#include "kd.h"

#include "codes.h"
#include "load.h"
#include "pages.h"

// Row t of k and v into slot slots[t] = page * page_size + place. A threadgroup a stretch (y) of a
// row (x).
KERNEL(kv_store, CBUF(float, k, 0), CBUF(float, v, 1), CBUF(int, slots, 2), BUF(uchar, pages, 3),
       PARM(kd_kv_store, p, 4))
{
    const uint i = TGID.y * KD_ROW_THREADS + TID;
    if (i >= p.pages.n_heads * p.pages.head_dim)
        return;
    const float key = k[(ulong)TGID.x * p.k_stride + i];
    const float value = v[(ulong)TGID.x * p.v_stride + i];
    const uint slot = (uint)slots[(ulong)TGID.x * p.slots_stride];
    const uint head = i / p.pages.head_dim, d = i % p.pages.head_dim;
    const ulong page = slot / p.pages.page_size;
    const uint place = slot % p.pages.page_size;
    kd_store(pages, kd_page_row(p.pages, page, place, head, 0) + d, p.pages.dtype, key);
    kd_store(pages, kd_page_row(p.pages, page, place, head, 1) + d, p.pages.dtype, value);
}

// Adds the share of token `i` of a piece, whose codes' values the lane has, to the prediction.
// Products are rounded as the CPU's are, so that codes are the same.
KD_INLINE void add_share(thread float *prediction, thread const float *values, uint i, float scale)
{
    const float factor = kd_product(kd_piece_share(i), scale);
    KD_UNROLL for (uint n = 0; n < KD_MAX_HEAD_PARTS; n++) prediction[n] +=
        kd_product(factor, values[n]);
}

// A turned vector as codes into `to`; x becomes what they mean without the scale, which is
// returned.
KD_INLINE float encode(thread float *x, device uchar *to, uint dim, uint lane)
{
    // Magnitudes as integers: what is not a number is the largest.
    uint most = 0;
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++) most =
        max(most, as_type<uint>(x[i]) & 0x7FFFFFFFu);
    const float scale = kd_bf16(as_type<float>(simd_max(most)) / 127.0f);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
    {
        const uint d = i * KD_SIMD_WIDTH + lane;
        float code = x[i] * inverse;
        code = code < 127.0f ? code : 127.0f;
        code = code > -127.0f ? code : -127.0f;
        x[i] = rint(code);
        if (d < dim)
            to[d] = (uchar)(int)x[i];
    }
    return scale;
}

// The same as codes. A simdgroup a row (x), KV head (y), and K or V (z); for K it stores the row's
// whole run of slots in a piece, or nothing if the row before began it.
KERNEL(kv_store_i8, CBUF(float, k, 0), CBUF(float, v, 1), CBUF(int, slots, 2), BUF(uchar, pages, 3),
       PARM(kd_kv_store, p, 4))
{
    const uint dim = p.pages.head_dim, piece = kd_piece(p.pages.page_size), is_v = TGID.z;
    const uint n_rows = is_v ? TGID.x + 1 : p.n_rows;
    uint row = TGID.x, slot = (uint)slots[(ulong)row * p.slots_stride];
    if (!is_v && row > 0 && slot % piece > 0 &&
        (uint)slots[(ulong)(row - 1) * p.slots_stride] == slot - 1)
        return;
    const ulong page = slot / p.pages.page_size;
    const uint place = slot % p.pages.page_size;
    device uchar *to = pages + kd_code_row(p.pages, page, place, TGID.y, is_v);
    device ushort *scales = (device ushort *)pages + kd_scales_at(p.pages, page, place, TGID.y) * 2;
    float x[KD_MAX_HEAD_PARTS], prediction[KD_MAX_HEAD_PARTS];
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++) prediction[i] = 0.0f;
    const uint first = is_v ? 0 : slot % piece;
    for (uint t = 0; t < first; t++) {
        const uint back = first - t;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            x[i] = d < dim ? kd_code((to - (ulong)back * dim)[d], 0) : 0.0f;
        }
        add_share(prediction, x, t, as_type<float>((uint)(scales - 2 * back)[0] << 16));
    }
    for (uint t = first;; t++, to += dim, scales += 2) {
        device const float *from = is_v ? v + (ulong)row * p.v_stride : k + (ulong)row * p.k_stride;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            x[i] = d < dim ? from[(ulong)TGID.y * dim + d] : 0.0f;
        }
        kd_turn(x, dim, LANE);
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++) x[i] -= prediction[i];
        const float scale = encode(x, to, dim, LANE);
        if (LANE == 0)
            scales[is_v] = (ushort)(as_type<uint>(scale) >> 16);
        add_share(prediction, x, t, scale);
        slot++;
        row++;
        if (row >= n_rows || slot % piece == 0 || (uint)slots[(ulong)row * p.slots_stride] != slot)
            return;
    }
}

// Page pairs[i, 1] becomes what page pairs[i, 0] is, pair after pair: a thread owns a word of all
// pages, so that the order holds without barriers.
KERNEL(kv_copy_page, CBUF(int, pairs, 0), BUF(ushort, pages, 1), PARM(kd_copy_page, p, 2))
{
    const uint word = TGID.x * KD_ROW_THREADS + TID;
    if (word >= p.words)
        return;
    for (uint i = 0; i < p.n_pairs; i++) {
        device const int *pair = pairs + (ulong)i * p.pairs_stride;
        pages[(ulong)pair[1] * p.words + word] = pages[(ulong)pair[0] * p.words + word];
    }
}

// A value or, without its scale, a code of a page.
KD_INLINE float load_value(device const uchar *pages, ulong i, uint dtype)
{
    return dtype == KD_I8 ? kd_code(pages[i], 0) : kd_load(pages, i, dtype);
}

// Online softmax over the places that the row sees. A simdgroup a row (x) and head (y); a lane has
// every 32nd dim.
KERNEL(paged_attention, CBUF(float, q, 0), CBUF(uchar, pages, 1), CBUF(int, q_start, 2),
       CBUF(int, kv_len, 3), CBUF(int, page_table, 4), CBUF(float, sinks, 5), BUF(float, out, 6),
       PARM(kd_attention, p, 7))
{
    const uint dim = p.pages.head_dim, head = TGID.y;
    const uint kv_head = head / (p.n_q_heads / p.pages.n_heads);
    const kd_seen seen = kd_places_seen(p, q_start, kv_len, TGID.x);
    if (seen.is_tiled)
        return;
    device const int *table = page_table + (ulong)seen.sequence * p.table_stride;
    device const float *from = q + (ulong)TGID.x * p.q_stride + (ulong)head * dim;
    device float *to = out + (ulong)TGID.x * p.out_stride + (ulong)head * dim;
    const bool has_codes = p.pages.dtype == KD_I8;
    float query[KD_MAX_HEAD_PARTS], sum[KD_MAX_HEAD_PARTS];
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
    {
        const uint d = i * KD_SIMD_WIDTH + LANE;
        query[i] = d < dim ? from[d] * p.scale : 0.0f;
        sum[i] = 0.0f;
    }
    if (has_codes)
        kd_turn(query, dim, LANE);
    float largest = p.has_sinks ? sinks[head] : -INFINITY, weight = p.has_sinks ? 1.0f : 0.0f;
    const uint piece = has_codes ? kd_piece(p.pages.page_size) : 1;
    float shares = 0.0f; // of the scores of the tokens before in the piece
    for (uint place = seen.first / piece * piece; place < seen.end; place++) {
        const ulong page = (ulong)table[place / p.pages.page_size];
        const uint in_page = place % p.pages.page_size;
        ulong k, v;
        float k_scale = 1.0f, v_scale = 1.0f;
        if (has_codes) {
            k = kd_code_row(p.pages, page, in_page, kv_head, 0);
            v = kd_code_row(p.pages, page, in_page, kv_head, 1);
            const uint both =
                ((device const uint *)pages)[kd_scales_at(p.pages, page, in_page, kv_head)];
            k_scale = kd_k_scale(both);
            v_scale = kd_v_scale(both);
        } else {
            k = kd_page_row(p.pages, page, in_page, kv_head, 0);
            v = kd_page_row(p.pages, page, in_page, kv_head, 1);
        }
        float score = 0.0f;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            if (d < dim)
                score += query[i] * load_value(pages, k + d, p.pages.dtype);
        }
        score = simd_sum(score) * k_scale;
        if (has_codes) {
            const float own = score;
            shares = place % piece == 0 ? 0.0f : shares;
            score += shares;
            shares += kd_piece_share(place % piece) * own;
            if (place < seen.first)
                continue;
        }
        const float now = max(largest, score);
        const float shrink = kd_exp(largest - now), share = kd_exp(score - now);
        weight = weight * shrink + share;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            if (d < dim)
                sum[i] =
                    sum[i] * shrink + share * v_scale * load_value(pages, v + d, p.pages.dtype);
        }
        largest = now;
    }
    if (has_codes)
        kd_turn(sum, dim, LANE);
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
    {
        const uint d = i * KD_SIMD_WIDTH + LANE;
        if (d < dim)
            to[d] = sum[i] / weight;
    }
}
