// Rotary positions: the angles of each row, and heads that turn by them.
#include "kd.h"

#include "reduce.h"

// out[t, 2i], out[t, 2i+1] = scale * cos(a), scale * sin(a), a = position[t] * inv_freq[i].
KERNEL(rope_angles, CBUF(int, positions, 0), CBUF(float, inv_freq, 1), BUF(float, out, 2),
       PARM(kd_rope_angles, p, 3))
{
    const float position = (float)positions[(ulong)TGID.x * p.positions_stride];
    device float *to = out + (ulong)TGID.x * p.out_stride;
    for (uint i = TID; i < p.pairs; i += KD_ROW_THREADS) {
        const float angle = position * inv_freq[i];
        to[2 * i] = kd_cos(angle) * p.scale;
        to[2 * i + 1] = kd_sin(angle) * p.scale;
    }
}

// (x[i], x[i + R/2]) turned by angle i.
KD_INLINE void rotate(device float *head, device const float *angles, uint rotated, uint tid)
{
    const uint half_dims = rotated / 2;
    for (uint i = tid; i < half_dims; i += KD_ROW_THREADS) {
        const float c = angles[2 * i], s = angles[2 * i + 1];
        const float a = head[i], b = head[i + half_dims];
        head[i] = a * c - b * s;
        head[i + half_dims] = b * c + a * s;
    }
}

// In place on the heads of q or of k: norm and rotation in either order. A threadgroup a row (x)
// and head (y).
KERNEL(norm_rope, BUF(float, x, 0), CBUF(float, angles, 1), CBUF(float, weight, 2),
       PARM(kd_norm_rope, p, 3))
{
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    device float *head = x + (ulong)TGID.x * p.stride + (ulong)TGID.y * p.head_dim;
    device const float *turn = angles + (ulong)TGID.x * p.angles_stride;
    if (p.is_norm_last) {
        rotate(head, turn, p.rotated, TID);
        threadgroup_barrier(mem_flags::mem_device);
    }
    if (p.has_norm) {
        float squares = 0.0f;
        for (uint i = TID; i < p.head_dim; i += KD_ROW_THREADS)
            squares += head[i] * head[i];
        squares = kd_sum(squares, parts, KD_MAX_SIMDS, LANE, SGID);
        const float factor = rsqrt(squares / (float)p.head_dim + p.eps);
        for (uint i = TID; i < p.head_dim; i += KD_ROW_THREADS)
            head[i] = head[i] * factor * (weight[i] + p.plus);
    }
    if (!p.is_norm_last) {
        threadgroup_barrier(mem_flags::mem_device);
        rotate(head, turn, p.rotated, TID);
    }
}
