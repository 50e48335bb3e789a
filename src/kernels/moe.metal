// Mixture of experts: each token row has top_k experts, small gated feed-forward blocks.
#include "kd.h"

#include "gate.h"
#include "weight.h"

// act[pair, i] = act(gate_e x, up_e x) for each pair of a row and one of its experts. A simdgroup a
// value: KD_DOTS of them (y) of a pair (x).
KERNEL(moe_inner, CBUF(uchar, gate, 0), CBUF(uchar, up, 1), CBUF(float, x, 2), CBUF(int, experts, 3),
       BUF(float, act, 4), PARM(kd_moe_inner, p, 5))
{
    const uint i = TGID.y * KD_DOTS + SGID, row = TGID.x / p.top_k;
    if (i >= p.gate.rows)
        return;
    const ulong expert = (ulong)experts[(ulong)row * p.experts_stride + TGID.x % p.top_k];
    device const float *from = x + (ulong)row * p.x_stride;
    float g = simd_sum(kd_dot(gate, p.gate, expert, i, from, LANE));
    float u = simd_sum(kd_dot(up, p.up, expert, i, from, LANE));
    g += kd_out_bias(gate, p.gate, expert, i);
    u += kd_out_bias(up, p.up, expert, i);
    if (LANE == 0)
        act[(ulong)TGID.x * p.gate.rows + i] = kd_activate(p.activation, g, u, p.alpha, p.limit);
}

// out[t] = shared's part + sum of weight * (down_e act), in the order of the experts' numbers. A
// simdgroup a value: KD_DOTS of them (y) of a row (x).
KERNEL(moe_outer, CBUF(uchar, down, 0), CBUF(float, act, 1), CBUF(int, experts, 2),
       CBUF(float, weights, 3), BUF(float, shared, 4), CBUF(float, shared_gate, 5),
       BUF(float, out, 6), PARM(kd_moe_outer, p, 7))
{
    const uint n = TGID.y * KD_DOTS + SGID;
    const ulong row = TGID.x;
    if (n >= p.down.rows)
        return;
    float sum = 0.0f;
    if (p.has_shared) {
        const float s = p.has_shared_gate ? kd_sigmoid(shared_gate[row * p.shared_gate_stride])
                                          : 1.0f;
        sum = s * shared[row * p.shared_stride + n];
    }
    int last = -1;
    for (uint k = 0; k < p.top_k; k++) {
        uint place = 0;
        int next = 0x7FFFFFFF;
        for (uint j = 0; j < p.top_k; j++) {
            const int expert = experts[row * p.experts_stride + j];
            if (expert > last && expert < next) {
                next = expert;
                place = j;
            }
        }
        last = next;
        device const float *from = act + (row * p.top_k + place) * p.down.cols;
        const float product = simd_sum(kd_dot(down, p.down, (ulong)next, n, from, LANE)) +
                              kd_out_bias(down, p.down, (ulong)next, n);
        sum += weights[row * p.weights_stride + place] * product;
    }
    if (LANE == 0)
        out[row * p.out_stride + n] = sum;
}

// Where each row's chosen experts have their places, and the slots (args.h, struct kd_expert_slot).
// A threadgroup an expert (x): its threads look through all that was chosen, each through its rows.
KERNEL(expert_sort, CBUF(int, experts, 0), BUF(int, places, 1), BUF(kd_expert_slot, slots, 2),
       PARM(kd_expert_sort, p, 3))
{
    TG_ARRAY(uint, lower_of, KD_MAX_SIMDS);
    TG_ARRAY(uint, own_of, KD_MAX_SIMDS);
    const uint expert = TGID.x, n_pairs = p.n_rows * p.n_chosen, c = p.slot_places;
    uint lower = 0, own = 0;
    for (uint row = TID; row < p.n_rows; row += p.n_threads)
        for (uint k = 0; k < p.n_chosen; k++) {
            const uint e = (uint)experts[(ulong)row * p.experts_stride + k];
            lower += e < expert ? 1u : 0u;
            own += e == expert ? 1u : 0u;
        }
    uint before = own; // of this simdgroup's threads up to this one, then of all before this one
    KD_UNROLL for (uint step = 1; step < KD_SIMD_WIDTH; step *= 2)
    {
        const uint other = simd_shuffle(before, LANE < step ? LANE : LANE - step);
        before += LANE < step ? 0u : other;
    }
    const uint simd_lower = simd_sum(lower), simd_own = simd_sum(own);
    if (LANE == 0) {
        lower_of[SGID] = simd_lower;
        own_of[SGID] = simd_own;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    before -= own;
    uint n = 0;
    lower = 0;
    for (uint i = 0; i < p.n_threads / KD_SIMD_WIDTH; i++) {
        before += i < SGID ? own_of[i] : 0u;
        n += own_of[i];
        lower += lower_of[i];
    }
    const uint align = KD_PLACE_ALIGN;
    const uint first = (lower + expert * (align - 1) + align - 1) / align * align;
    for (uint row = TID; row < p.n_rows && own > 0; row += p.n_threads)
        for (uint k = 0; k < p.n_chosen; k++)
            if ((uint)experts[(ulong)row * p.experts_stride + k] == expert)
                places[(ulong)row * p.n_chosen + k] = (int)(first + before++);
    const bool is_few = n_pairs <= p.n_experts;
    const uint slot = is_few ? lower : expert + lower / c;
    const uint n_slots = is_few ? n : 1 + (lower + n) / c - lower / c;
    for (uint i = TID; i < n_slots; i += p.n_threads) {
        const uint at = is_few ? i : i * c; // of the expert's places
        const bool is_used = at < n && at % c == 0;
        device kd_expert_slot *to = slots + slot + i;
        to->expert = expert;
        to->first = first + at;
        to->n_places = is_used ? min(c, n - at) : 0u;
        to->unused = 0;
    }
}

// out[t] = shared's part + sum of weight * what the expert made, in the order of the experts'
// numbers, which is that of their places. A row (x), KD_ROW_THREADS of its columns (y).
KERNEL(expert_sum, CBUF(float, parts, 0), CBUF(int, places, 1), CBUF(float, weights, 2),
       BUF(float, shared, 3), CBUF(float, shared_gate, 4), BUF(float, out, 5),
       PARM(kd_expert_sum, p, 6))
{
    TG_ARRAY(uint, from, KD_MAX_CHOSEN);
    TG_ARRAY(float, weight, KD_MAX_CHOSEN);
    const ulong row = TGID.x;
    if (TID < p.n_chosen) {
        device const int *of_row = places + row * p.n_chosen;
        const int own = of_row[TID];
        uint rank = 0;
        for (uint j = 0; j < p.n_chosen; j++)
            rank += of_row[j] < own ? 1u : 0u;
        from[rank] = (uint)own;
        weight[rank] = weights[row * p.weights_stride + TID];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = TGID.y * KD_ROW_THREADS + TID;
    if (n >= p.cols)
        return;
    float sum = 0.0f;
    if (p.has_shared) {
        const float s = p.has_shared_gate ? kd_sigmoid(shared_gate[row * p.shared_gate_stride])
                                          : 1.0f;
        sum = s * shared[row * p.shared_stride + n];
    }
    for (uint k = 0; k < p.n_chosen; k++)
        sum += weight[k] * parts[(ulong)from[k] * p.parts_stride + n];
    out[row * p.out_stride + n] = sum;
}
