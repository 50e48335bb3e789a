// Logits are edited, and become logarithms of probabilities (device/ops.h).
#include "kd.h"

#include "reduce.h"

// A thread an edit. The product is an fma so that no compiler joins it with the difference.
KERNEL(edit_logits, BUF(float, logits, 0), BUF(kd_logit_edit, edits, 1), PARM(kd_edit_logits, p, 2))
{
    const uint i = TGID.x * KD_ROW_THREADS + TID;
    if (i >= p.n_edits)
        return;
    device kd_logit_edit *e = edits + i;
    device float *at = logits + (ulong)e->row * p.logits_stride + (uint)e->token;
    if (p.is_undo) {
        *at = e->before;
        return;
    }
    const float before = *at, l = before + e->bias;
    e->before = before;
    *at = (l > 0.0f ? l / e->penalty : fma(l, e->penalty, 0.0f)) - e->minus;
}

// The best of a threadgroup's candidates, of equal ones that with the lowest id; `maxima` and `ids`
// [KD_MAX_SIMDS] may be used again after a barrier.
struct kd_best {
    float logit;
    int id;
};

KD_INLINE kd_best kd_find_best(kd_best mine, threadgroup float *maxima, threadgroup int *ids,
                               uint lane, uint simd)
{
    const float max = simd_max(mine.logit);
    const int id = simd_min(mine.logit == max ? mine.id : 0x7FFFFFFF);
    if (lane == 0) {
        maxima[simd] = max;
        ids[simd] = id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    kd_best best = {maxima[0], ids[0]};
    for (uint i = 1; i < KD_MAX_SIMDS; i++)
        if (maxima[i] > best.logit || (maxima[i] == best.logit && ids[i] < best.id)) {
            best.logit = maxima[i];
            best.id = ids[i];
        }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return best;
}

// A threadgroup a row; each turn finds the first token behind the last one found.
KERNEL(logprobs, CBUF(float, logits, 0), CBUF(int, tokens, 1), BUF(float, logprobs, 2),
       BUF(int, top_tokens, 3), BUF(float, top_logprobs, 4), PARM(kd_logprobs, p, 5))
{
    TG_ARRAY(float, maxima, KD_MAX_SIMDS);
    TG_ARRAY(int, ids, KD_MAX_SIMDS);
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    const ulong row = TGID.x;
    device const float *from = logits + row * p.logits_stride;
    const int token = tokens[row * p.tokens_stride];
    kd_best last = {INFINITY, -1}, first = {0.0f, 0};
    float log_sum = 0.0f;
    for (uint turn = 0; turn < (p.n_top > 1 ? p.n_top : 1); turn++) {
        kd_best best = {-INFINITY, 0x7FFFFFFF};
        for (uint i = TID; i < p.n_tokens; i += KD_ROW_THREADS) {
            const float l = from[i];
            const bool is_behind = l < last.logit || (l == last.logit && (int)i > last.id);
            if (is_behind && (best.id == 0x7FFFFFFF || l > best.logit)) {
                best.logit = l;
                best.id = (int)i;
            }
        }
        best = kd_find_best(best, maxima, ids, LANE, SGID);
        if (turn == 0) {
            first = best;
            float sum = 0.0f;
            for (uint i = TID; i < p.n_tokens; i += KD_ROW_THREADS) {
                const float l = from[i];
                sum += isnan(l) ? 0.0f : kd_exp(l - first.logit);
            }
            log_sum = kd_log(kd_sum(sum, parts, KD_MAX_SIMDS, LANE, SGID));
            if (!(first.logit > -INFINITY && first.logit < INFINITY))
                log_sum = as_type<float>(0x7FC00000u);
        }
        last = best;
        if (TID == 0 && turn < p.n_top) {
            const bool is_found = best.id != 0x7FFFFFFF;
            top_tokens[row * p.top_tokens_stride + turn] = is_found ? best.id : -1;
            top_logprobs[row * p.top_logprobs_stride + turn] = best.logit - first.logit - log_sum;
        }
    }
    if (TID == 0)
        logprobs[row * p.logprobs_stride] =
            token >= 0 ? from[token] - first.logit - log_sum : as_type<float>(0x7FC00000u);
}
