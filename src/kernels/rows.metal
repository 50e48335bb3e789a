// Rows that are copied or looked through.
#include "kd.h"

// out[i] = x[rows[i]], as words of 2 bytes. A threadgroup a stretch (y) of a row (x).
KERNEL(gather, CBUF(ushort, x, 0), CBUF(int, rows, 1), BUF(ushort, out, 2), PARM(kd_gather, p, 3))
{
    const uint i = TGID.y * KD_ROW_THREADS + TID;
    const ulong row = (ulong)rows[(ulong)TGID.x * p.rows_stride];
    if (i < p.words)
        out[(ulong)TGID.x * p.out_words + i] = x[row * p.x_words + i];
}

// ids[t] = drawn[from[t]] where from[t] >= 0, but no less than 0. A thread a row.
KERNEL(fill_ids, BUF(int, ids, 0), CBUF(int, from, 1), CBUF(int, drawn, 2), PARM(kd_fill_ids, p, 3))
{
    const uint t = TGID.x * KD_ROW_THREADS + TID;
    if (t < p.n && from[t] >= 0)
        ids[t] = max(drawn[from[t]], 0);
}

// The n_chosen experts with the largest logits, of equal ones the lower; NaN counts as -INFINITY.
// A simdgroup a row; each turn finds the first expert behind the last one found.
KERNEL(moe_route, CBUF(float, logits, 0), BUF(int, experts, 1), BUF(float, weights, 2),
       PARM(kd_moe_route, p, 3))
{
    device const float *from = logits + (ulong)TGID.x * p.logits_stride;
    device int *ids = experts + (ulong)TGID.x * p.experts_stride;
    device float *to = weights + (ulong)TGID.x * p.weights_stride;
    float last = INFINITY, largest = 0.0f, sum = 0.0f;
    int last_id = -1;
    for (uint k = 0; k < p.n_chosen; k++) {
        float best = -INFINITY;
        int best_id = 0x7FFFFFFF;
        for (uint e = LANE; e < p.n_experts; e += KD_SIMD_WIDTH) {
            const float v = isnan(from[e]) ? -INFINITY : from[e];
            const bool is_behind = v < last || (v == last && (int)e > last_id);
            if (is_behind && (best_id == 0x7FFFFFFF || v > best)) {
                best = v;
                best_id = (int)e;
            }
        }
        last = simd_max(best);
        last_id = simd_min(best == last ? best_id : 0x7FFFFFFF);
        const float logit = from[last_id];
        largest = k == 0 ? logit : largest;
        const float weight = kd_exp(logit - largest);
        sum += weight;
        if (LANE == 0) {
            ids[k] = last_id;
            to[k] = weight;
        }
    }
    if (!p.is_normalised) {
        float part = 0.0f;
        for (uint e = LANE; e < p.n_experts; e += KD_SIMD_WIDTH)
            part += kd_exp(from[e] - largest);
        sum = simd_sum(part);
    }
    for (uint k = 0; k < p.n_chosen && LANE == 0; k++)
        to[k] /= sum;
}
