// Paged attention and the pages that it reads.
#include "kd.h"

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

// Online softmax over the places that the row sees. A simdgroup a row (x) and head (y); a lane has
// every 32nd dim.
KERNEL(paged_attention, CBUF(float, q, 0), CBUF(uchar, pages, 1), CBUF(int, q_start, 2),
       CBUF(int, kv_len, 3), CBUF(int, page_table, 4), CBUF(float, sinks, 5), BUF(float, out, 6),
       PARM(kd_attention, p, 7))
{
    const uint dim = p.pages.head_dim, head = TGID.y;
    const uint kv_head = head / (p.n_q_heads / p.pages.n_heads);
    const kd_seen seen = kd_places_seen(p, q_start, kv_len, TGID.x);
    device const int *table = page_table + (ulong)seen.sequence * p.table_stride;
    device const float *from = q + (ulong)TGID.x * p.q_stride + (ulong)head * dim;
    device float *to = out + (ulong)TGID.x * p.out_stride + (ulong)head * dim;
    float query[KD_MAX_HEAD_PARTS], sum[KD_MAX_HEAD_PARTS];
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
    {
        const uint d = i * KD_SIMD_WIDTH + LANE;
        query[i] = d < dim ? from[d] * p.scale : 0.0f;
        sum[i] = 0.0f;
    }
    float largest = p.has_sinks ? sinks[head] : -INFINITY, weight = p.has_sinks ? 1.0f : 0.0f;
    for (uint place = seen.first; place < seen.end; place++) {
        const ulong page = (ulong)table[place / p.pages.page_size];
        const ulong k = kd_page_row(p.pages, page, place % p.pages.page_size, kv_head, 0);
        const ulong v = kd_page_row(p.pages, page, place % p.pages.page_size, kv_head, 1);
        float score = 0.0f;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            if (d < dim)
                score += query[i] * kd_load(pages, k + d, p.pages.dtype);
        }
        score = simd_sum(score);
        const float now = max(largest, score);
        const float shrink = kd_exp(largest - now), share = kd_exp(score - now);
        weight = weight * shrink + share;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            const uint d = i * KD_SIMD_WIDTH + LANE;
            if (d < dim)
                sum[i] = sum[i] * shrink + share * kd_load(pages, v + d, p.pages.dtype);
        }
        largest = now;
    }
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
    {
        const uint d = i * KD_SIMD_WIDTH + LANE;
        if (d < dim)
            to[d] = sum[i] / weight;
    }
}
