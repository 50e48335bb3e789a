// Tokens are drawn from logits (device/ops.h, struct sample_row). A row goes through turns, each a
// dispatch: its parts, a threadgroup each, look through the logits once for what the row's state asks,
// and all of them draw the same conclusion from what the parts found in the turn before. Weights are
// whole numbers, so that their sums do not depend on any order.
#include "kd.h"

// What the parts are asked: the first in rank; the sum of all that is kept; the sums by the next
// digit of the rank; the sum of those of the rank that was found; the token.
enum kd_sample_task { TASK_MAX, TASK_TOTAL, TASK_DIGIT, TASK_PART, TASK_TOKEN, TASK_DONE };

// What is found by a search, which ends at the first token in rank where the sum of the kept ones'
// weights (for top-k: their number) passes the goal.
enum kd_sample_search { SEARCH_TOP_K, SEARCH_TOP_P, SEARCH_DRAW };

// 0 for the largest logit; a NaN does not come here, -0 is 0.
KD_INLINE uint kd_rank_key(float logit)
{
    const uint bits = as_type<uint>(logit == 0.0f ? 0.0f : logit);
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

// 2^SAMPLE_WEIGHT_BITS e^((logit - max) * inverse), as the CPU's row kernel weigh.
KD_INLINE ulong kd_weight_of(float logit, float max, float inverse)
{
    const float x = (logit - max) * inverse;
    if (!(x >= -100.0f))
        return 0;
    const float power = rint(x * 1.442695022e+00f);
    const float r = fma(x, 1.925962991e-08f, fma(x, 1.442695022e+00f, -power));
    float e = 1.559467468e-04f;
    e = fma(e, r, 1.340664381e-03f);
    e = fma(e, r, 9.617692984e-03f);
    e = fma(e, r, 5.550310551e-02f);
    e = fma(e, r, 2.402265278e-01f);
    e = fma(e, r, 6.931472150e-01f);
    e = fma(e, r, 1.0f);
    const int shift = (int)power + 40 - 23; // of a mantissa of 24 bits
    const uint bits = as_type<uint>(e), mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    const int places = shift + (int)(bits >> 23) - 127;
    if (places < -23)
        return 0;
    return places >= 0 ? (ulong)mantissa << places : (ulong)(mantissa >> -places);
}

// a * b / 2^64
KD_INLINE ulong kd_high_product(ulong a, ulong b)
{
    const ulong a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
    const ulong middle = a_high * b_low + (a_low * b_low >> 32);
    const ulong other = a_low * b_high + (middle & 0xFFFFFFFFu);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

// What a logit adds to the sums: its weight, or 1 in the search for top-k; nothing if it is cut.
KD_INLINE ulong kd_amount(float logit, uint id, uint key, thread const kd_sample_state &s,
                          float inverse)
{
    if (key > s.last_key || (key == s.last_key && (int)id > s.last_id))
        return 0;
    const ulong weight = kd_weight_of(logit, s.max, inverse);
    if (weight < s.least)
        return 0;
    return s.search == SEARCH_TOP_K ? 1 : weight;
}

KD_INLINE void kd_search(thread kd_sample_state &s, uint search, ulong goal)
{
    s.search = search;
    s.goal = goal;
    s.task = TASK_DIGIT;
    s.key = 0;
    s.shift = 32 - KD_SAMPLE_DIGIT_BITS;
}

// A cut is made, or was not asked for: the next one, or the draw.
KD_INLINE void kd_next_cut(thread kd_sample_state &s, device const kd_sample_row &row)
{
    if (s.next == SEARCH_TOP_K) {
        s.next = SEARCH_TOP_P;
        if (row.top_k > 0) {
            kd_search(s, SEARCH_TOP_K, (ulong)row.top_k - 1);
            return;
        }
    }
    s.next = s.next == SEARCH_TOP_P && row.share ? SEARCH_TOP_P : SEARCH_DRAW;
    s.search = s.next;
    s.least = s.next == SEARCH_DRAW ? row.least : 1;
    s.task = TASK_TOTAL;
}

KD_INLINE bool kd_keeps_all(device const kd_sample_row &row)
{
    return row.top_k == 0 && row.share == 0 && row.least <= 1;
}

// The sum of all that is kept is known.
KD_INLINE void kd_use_total(thread kd_sample_state &s, device const kd_sample_row &row, ulong total)
{
    if (s.next == SEARCH_TOP_P) {
        const ulong enough =
            (total >> 32) * row.share + ((total & 0xFFFFFFFFu) * row.share >> 32);
        s.next = SEARCH_DRAW;
        kd_search(s, SEARCH_TOP_P, enough > 0 ? enough - 1 : 0);
        return;
    }
    kd_search(s, SEARCH_DRAW, kd_high_product(row.number, total));
    if (kd_keeps_all(row))
        s.task = TASK_PART;
}

// The first of n sums at which their sum passes the goal, which becomes what is left of it; n if
// there is none.
KD_INLINE uint kd_pass(thread kd_sample_state &s, threadgroup const ulong *sums, uint n)
{
    for (uint i = 0; i < n; i++) {
        if (sums[i] > s.goal)
            return i;
        s.goal -= sums[i];
    }
    return n;
}

// The state after a turn in which the row's parts found `parts`. `found` is what the threadgroup has
// brought together of it: sums by digit, or by part.
KD_INLINE void kd_conclude(thread kd_sample_state &s, device const kd_sample_row &row,
                           device const kd_sample_part *parts, threadgroup const ulong *found,
                           uint n_parts)
{
    uint i;
    switch (s.task) {
    case TASK_MAX:
        s.max = -INFINITY;
        for (i = 0; i < n_parts; i++)
            if (parts[i].max > s.max) {
                s.max = parts[i].max;
                s.token = parts[i].id;
            }
        if (!(s.max > -INFINITY && s.max < INFINITY))
            s.token = -1;
        s.task = TASK_DONE;
        if (s.token >= 0 && row.inverse > 0.0f)
            kd_next_cut(s, row);
        break;
    case TASK_TOTAL:
        kd_use_total(s, row, found[0]);
        break;
    case TASK_DIGIT:
        i = kd_pass(s, found, KD_SAMPLE_BINS);
        if (i == KD_SAMPLE_BINS) { // no more than top_k tokens
            kd_next_cut(s, row);
            break;
        }
        s.key |= i << s.shift;
        if (s.shift == 0)
            s.task = TASK_PART;
        else
            s.shift -= KD_SAMPLE_DIGIT_BITS;
        break;
    case TASK_PART:
        s.part = kd_pass(s, found, n_parts);
        s.task = TASK_TOKEN;
        break;
    case TASK_TOKEN:
        i = (uint)parts[s.part].id;
        if (s.search == SEARCH_DRAW) {
            s.token = (int)i;
            s.task = TASK_DONE;
            break;
        }
        s.last_key = s.key;
        s.last_id = (int)i;
        kd_next_cut(s, row);
        break;
    default:
        break;
    }
}

// The bin of a key that counts in this turn; KD_SAMPLE_BINS if it does not.
KD_INLINE uint kd_bin(uint key, thread const kd_sample_state &s, bool keeps_all)
{
    if (s.task == TASK_TOTAL || (s.task == TASK_PART && keeps_all))
        return 0;
    if (s.task == TASK_PART)
        return key == s.key ? 0 : KD_SAMPLE_BINS;
    const uint above = s.shift + KD_SAMPLE_DIGIT_BITS;
    const bool is_inside = above == 32 || key >> above == s.key >> above;
    return is_inside ? key >> s.shift & (KD_SAMPLE_BINS - 1) : KD_SAMPLE_BINS;
}

KD_INLINE ulong kd_from_lane(ulong v, uint mask)
{
    uint2 halves = as_type<uint2>(v);
    halves.x = simd_shuffle_xor(halves.x, mask);
    halves.y = simd_shuffle_xor(halves.y, mask);
    return as_type<ulong>(halves);
}

// A lane hands half of its 2 n values over and takes the other half of its partner's.
template <uint n> KD_INLINE void kd_halve(thread ulong *v, uint lane)
{
    const bool is_upper = lane & 2 * n;
    KD_UNROLL for (uint i = 0; i < n; i++) {
        const ulong low = v[i], both = low ^ v[i + n]; // a choice of places would put v into memory
        const ulong given = low ^ (is_upper ? 0 : both);
        v[i] = (given ^ both) + kd_from_lane(given, 2 * n);
    }
}

// The sums over the simdgroup of each lane's 16 values: lane l has that of value l / 2.
KD_INLINE ulong kd_sum_bins(thread ulong *v, uint lane)
{
    kd_halve<8>(v, lane);
    kd_halve<4>(v, lane);
    kd_halve<2>(v, lane);
    kd_halve<1>(v, lane);
    return v[0] + kd_from_lane(v[0], 1);
}

KERNEL(sample, CBUF(float, logits, 0), CBUF(kd_sample_row, rows, 1), CBUF(kd_sample_state, states, 2),
       CBUF(kd_sample_part, seen, 3), BUF(kd_sample_state, new_states, 4),
       BUF(kd_sample_part, parts, 5), BUF(int, tokens, 6), PARM(kd_sample, p, 7))
{
    TG_ARRAY(ulong, found, KD_SAMPLE_MAX_PARTS);
    TG_ARRAY(ulong, sums, KD_ROW_THREADS);
    TG_ARRAY(float, maxima, KD_MAX_SIMDS);
    TG_ARRAY(int, ids, KD_MAX_SIMDS);
    const uint part = TGID.x, row_number = TGID.y;
    device const kd_sample_row &row = rows[row_number];
    device const kd_sample_part *row_seen = seen + row_number * p.n_parts;
    device kd_sample_part *mine = parts + row_number * p.n_parts + part;
    device const float *from = logits + (ulong)row_number * p.logits_stride;
    kd_sample_state s;

    if (p.is_first) {
        s.goal = 0;
        s.least = 1;
        s.max = 0.0f;
        s.task = row.token >= 0 ? TASK_DONE : TASK_MAX;
        s.next = s.search = SEARCH_TOP_K;
        s.key = s.shift = s.part = 0;
        s.last_key = 0xFFFFFFFFu;
        s.last_id = 0x7FFFFFFF;
        s.token = row.token;
    } else {
        s = states[row_number];
        if (s.task == TASK_PART && TID < p.n_parts)
            found[TID] = row_seen[TID].sums[0];
        if (s.task == TASK_TOTAL || s.task == TASK_DIGIT) {
            // All threads load, as each would wait long for what is one behind another.
            const uint n_threads = KD_ROW_THREADS, n_slices = n_threads / KD_SAMPLE_BINS;
            const uint bin = TID % KD_SAMPLE_BINS;
            ulong sum = 0;
            for (uint i = TID / KD_SAMPLE_BINS; i < p.n_parts; i += n_slices)
                sum += row_seen[i].sums[bin];
            sums[TID] = sum;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            sum = 0;
            for (uint i = 0; i < n_slices && TID < KD_SAMPLE_BINS; i++)
                sum += sums[i * KD_SAMPLE_BINS + bin];
            if (TID < KD_SAMPLE_BINS)
                found[bin] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        kd_conclude(s, row, row_seen, found, p.n_parts);
    }
    if (part == 0 && TID == 0) {
        new_states[row_number] = s;
        tokens[(ulong)row_number * p.tokens_stride] = s.token;
    }
    if (s.task == TASK_DONE)
        return;

    const uint begin = part * p.part_tokens;
    const uint end = min(begin + p.part_tokens, p.n_tokens);
    const bool keeps_all = kd_keeps_all(row);
    if (s.task == TASK_MAX) {
        float max = -INFINITY;
        int id = 0x7FFFFFFF;
        for (uint i = begin + TID; i < end; i += KD_ROW_THREADS)
            if (from[i] > max) {
                max = from[i];
                id = (int)i;
            }
        const float largest = simd_max(max);
        id = simd_min(max == largest ? id : 0x7FFFFFFF);
        if (LANE == 0) {
            maxima[SGID] = largest;
            ids[SGID] = id;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (TID > 0)
            return;
        mine->max = maxima[0];
        mine->id = ids[0];
        for (uint i = 1; i < KD_MAX_SIMDS; i++)
            if (maxima[i] > mine->max || (maxima[i] == mine->max && ids[i] < mine->id)) {
                mine->max = maxima[i];
                mine->id = ids[i];
            }
    } else if (s.task == TASK_TOKEN) {
        // Each thread has a run of ids; that in whose run the goal is passed finds the token.
        if (part != s.part)
            return;
        const uint run = (p.part_tokens + KD_ROW_THREADS - 1) / KD_ROW_THREADS;
        const uint first = min(begin + TID * run, end), last = min(first + run, end);
        ulong sum = 0, before = 0;
        for (uint i = first; i < last; i++) {
            const uint key = kd_rank_key(from[i]);
            sum += keeps_all || key == s.key ? kd_amount(from[i], i, key, s, row.inverse) : 0;
        }
        sums[TID] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < TID; i++)
            before += sums[i];
        if (before > s.goal || before + sum <= s.goal)
            return;
        uint i = first;
        for (; i < last; i++) {
            const uint key = kd_rank_key(from[i]);
            before += keeps_all || key == s.key ? kd_amount(from[i], i, key, s, row.inverse) : 0;
            if (before > s.goal)
                break;
        }
        mine->id = (int)i;
    } else {
        ulong bins[KD_SAMPLE_BINS];
        KD_UNROLL for (uint b = 0; b < KD_SAMPLE_BINS; b++) bins[b] = 0;
        for (uint i = begin + TID; i < end; i += KD_ROW_THREADS) {
            const uint key = kd_rank_key(from[i]);
            const uint bin = kd_bin(key, s, keeps_all);
            if (bin == KD_SAMPLE_BINS) // most of them, after the first digits
                continue;
            const ulong amount = kd_amount(from[i], i, key, s, row.inverse);
            KD_UNROLL for (uint b = 0; b < KD_SAMPLE_BINS; b++) bins[b] += bin == b ? amount : 0;
        }
        const ulong sum = kd_sum_bins(bins, LANE);
        if (LANE % 2 == 0)
            sums[SGID * KD_SAMPLE_BINS + LANE / 2] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (TID >= KD_SAMPLE_BINS)
            return;
        ulong all = 0;
        for (uint i = 0; i < KD_MAX_SIMDS; i++)
            all += sums[i * KD_SAMPLE_BINS + TID];
        mine->sums[TID] = all;
    }
}
