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
