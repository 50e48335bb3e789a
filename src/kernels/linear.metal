// out[t, n] = x[t, :] . w[n, :] + bias[n]. A simdgroup an output: KD_DOTS of them (y) of a row (x).
#include "kd.h"

#include "weight.h"

KERNEL(linear, CBUF(uchar, memory, 0), CBUF(float, x, 1), BUF(float, out, 2), PARM(kd_linear, p, 3))
{
    const uint n = TGID.y * KD_DOTS + SGID;
    if (n >= p.weight.rows)
        return;
    device const float *from = x + (ulong)TGID.x * p.x_stride;
    const float sum = simd_sum(kd_dot(memory, p.weight, 0, n, from, LANE));
    if (LANE == 0)
        out[(ulong)TGID.x * p.out_stride + n] = sum + kd_out_bias(memory, p.weight, 0, n);
}
