// Values times an activation of others.
#include "kd.h"

#include "gate.h"
#include "reduce.h"

// out = silu(gate) * up, from one row [gate | up]. A threadgroup a stretch (x) of a row (y).
KERNEL(silu_mul, CBUF(float, gate_up, 0), BUF(float, out, 1), PARM(kd_silu_mul, p, 2))
{
    const uint i = TGID.y * KD_ROW_THREADS + TID;
    device const float *from = gate_up + (ulong)TGID.x * p.gate_up_stride;
    if (i < p.cols)
        out[(ulong)TGID.x * p.out_stride + i] = kd_silu(from[i]) * from[p.cols + i];
}

// out = x * sigmoid(gate).
KERNEL(sigmoid_mul, CBUF(float, x, 0), CBUF(float, gate, 1), BUF(float, out, 2),
       PARM(kd_sigmoid_mul, p, 3))
{
    const uint i = TGID.y * KD_ROW_THREADS + TID;
    if (i < p.cols)
        out[(ulong)TGID.x * p.out_stride + i] =
            x[(ulong)TGID.x * p.x_stride + i] * kd_sigmoid(gate[(ulong)TGID.x * p.gate_stride + i]);
}

// Each head for itself: out = norm(x) * silu(z). A threadgroup a row (x) and head (y).
KERNEL(gated_norm, CBUF(float, x, 0), CBUF(float, z, 1), CBUF(float, weight, 2), BUF(float, out, 3),
       PARM(kd_gated_norm, p, 4))
{
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    const ulong head = (ulong)TGID.y * p.head_dim;
    device const float *from = x + (ulong)TGID.x * p.x_stride + head;
    device const float *gate = z + (ulong)TGID.x * p.z_stride + head;
    device float *to = out + (ulong)TGID.x * p.out_stride + head;
    // All is loaded before the sum is waited for; few heads have more columns than threads.
    const bool is_there = TID < p.head_dim;
    const float v = is_there ? from[TID] : 0.0f, w = is_there ? weight[TID] : 0.0f;
    const float g = is_there ? gate[TID] : 0.0f;
    float squares = v * v;
    for (uint i = TID + KD_ROW_THREADS; i < p.head_dim; i += KD_ROW_THREADS)
        squares += from[i] * from[i];
    squares = kd_sum(squares, parts, KD_MAX_SIMDS, LANE, SGID);
    const float factor = rsqrt(squares / (float)p.head_dim + p.eps);
    if (is_there)
        to[TID] = v * factor * w * kd_silu(g);
    for (uint i = TID + KD_ROW_THREADS; i < p.head_dim; i += KD_ROW_THREADS)
        to[i] = from[i] * factor * weight[i] * kd_silu(gate[i]);
}
