// With a residual: residual += x, then out = norm(residual); otherwise out = norm(x).
// norm(v) = v / sqrt(mean(v^2) + eps) * (w + plus). A threadgroup of KD_ROW_THREADS a row.
#include "kd.h"

#include "reduce.h"

KERNEL(rms_norm, CBUF(float, x, 0), BUF(float, residual, 1), CBUF(float, weight, 2),
       BUF(float, out, 3), PARM(kd_rms_norm, p, 4))
{
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    device const float *from = x + (ulong)TGID.x * p.x_stride;
    device float *sum = residual + (ulong)TGID.x * p.residual_stride;
    device float *to = out + (ulong)TGID.x * p.out_stride;
    float squares = 0.0f;
    for (uint i = TID; i < p.cols; i += KD_ROW_THREADS) {
        float v = from[i];
        if (p.has_residual) {
            v += sum[i];
            sum[i] = v;
        }
        squares += v * v;
    }
    squares = kd_sum(squares, parts, KD_MAX_SIMDS, LANE, SGID);
    if (!p.has_out)
        return;
    const float factor = rsqrt(squares / (float)p.cols + p.eps);
    for (uint i = TID; i < p.cols; i += KD_ROW_THREADS) {
        const float v = p.has_residual ? sum[i] : from[i];
        to[i] = v * factor * (weight[i] + p.plus);
    }
}
