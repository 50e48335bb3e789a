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

// A unit of a thread: a pair of dims that turn together, i and i + R/2, or one of those behind R.
struct kd_dims {
    float a, b;
};

// By the pair's angle; (1, 0) for one that does not turn.
KD_INLINE kd_dims turned(kd_dims x, kd_dims angle)
{
    kd_dims y;
    y.a = x.a * angle.a - x.b * angle.b;
    y.b = x.b * angle.a + x.a * angle.b;
    return y;
}

// In place on the heads of q and behind them those of k: norm and rotation in either order. A
// threadgroup a row (x) and head (y).
KERNEL(norm_rope, BUF(float, q, 0), BUF(float, k, 1), CBUF(float, angles, 2),
       CBUF(float, q_norm, 3), CBUF(float, k_norm, 4), PARM(kd_norm_rope, p, 5))
{
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    const bool is_k = TGID.y >= p.n_q_heads;
    const uint n_pairs = p.rotated / 2, n_units = n_pairs + p.head_dim - p.rotated;
    device float *head =
        is_k ? k + (ulong)TGID.x * p.k_stride + (ulong)(TGID.y - p.n_q_heads) * p.head_dim
             : q + (ulong)TGID.x * p.q_stride + (ulong)TGID.y * p.head_dim;
    device const float *angle = angles + (ulong)TGID.x * p.angles_stride;
    device const float *weight = is_k ? k_norm : q_norm;
    const bool has_norm = is_k ? p.has_k_norm : p.has_q_norm;
    kd_dims x[KD_MAX_HEAD_UNITS], w[KD_MAX_HEAD_UNITS], turn[KD_MAX_HEAD_UNITS];
    float squares = 0.0f;
    KD_UNROLL for (uint n = 0; n < KD_MAX_HEAD_UNITS; n++)
    {
        const uint u = n * KD_ROW_THREADS + TID, first = u < n_pairs ? u : u + n_pairs;
        x[n].a = u < n_units ? head[first] : 0.0f;
        x[n].b = u < n_pairs ? head[u + n_pairs] : 0.0f;
        w[n].a = has_norm && u < n_units ? weight[first] + p.plus : 0.0f;
        w[n].b = has_norm && u < n_pairs ? weight[u + n_pairs] + p.plus : 0.0f;
        turn[n].a = u < n_pairs ? angle[2 * u] : 1.0f;
        turn[n].b = u < n_pairs ? angle[2 * u + 1] : 0.0f;
    }
    KD_UNROLL for (uint n = 0; n < KD_MAX_HEAD_UNITS; n++)
    {
        if (p.is_norm_last)
            x[n] = turned(x[n], turn[n]);
        squares += x[n].a * x[n].a + x[n].b * x[n].b;
    }
    if (has_norm) {
        squares = kd_sum(squares, parts, p.n_simds, LANE, SGID);
        const float factor = rsqrt(squares / (float)p.head_dim + p.eps);
        KD_UNROLL for (uint n = 0; n < KD_MAX_HEAD_UNITS; n++)
        {
            x[n].a = x[n].a * factor * w[n].a;
            x[n].b = x[n].b * factor * w[n].b;
        }
    }
    KD_UNROLL for (uint n = 0; n < KD_MAX_HEAD_UNITS; n++)
    {
        const uint u = n * KD_ROW_THREADS + TID, first = u < n_pairs ? u : u + n_pairs;
        if (!p.is_norm_last)
            x[n] = turned(x[n], turn[n]);
        if (u < n_units)
            head[first] = x[n].a;
        if (u < n_pairs)
            head[u + n_pairs] = x[n].b;
    }
}
