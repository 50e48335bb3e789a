// With a residual: residual += x, then out = norm(residual); otherwise out = norm(x).
// norm(v) = v / sqrt(mean(v^2) + eps) * (w + plus). A threadgroup of KD_ROW_THREADS a row.
#include "kd.h"

#include "columns.h"
#include "reduce.h"

enum { NORM_COLUMNS = 16 }; // that a thread holds

KERNEL(rms_norm, CBUF(float, x, 0), BUF(float, residual, 1), CBUF(float, weight, 2),
       BUF(float, out, 3), PARM(kd_rms_norm, p, 4))
{
    TG_ARRAY(float, parts, KD_MAX_SIMDS);
    device const float *from = x + (ulong)TGID.x * p.x_stride;
    device float *sum = residual + (ulong)TGID.x * p.residual_stride;
    device float *to = out + (ulong)TGID.x * p.out_stride;
    const uint stretch = (uint)NORM_COLUMNS * KD_ROW_THREADS;
    float v[NORM_COLUMNS], w[NORM_COLUMNS], before[NORM_COLUMNS], squares = 0.0f;
    if (p.has_out)
        kd_load_columns(w, NORM_COLUMNS, weight, 0, p.cols, TID);
    // From the last stretch to the first, whose values are still there when the factor is known.
    for (uint first = (p.cols - 1) / stretch * stretch;; first -= stretch) {
        kd_load_columns(v, NORM_COLUMNS, from, first, p.cols, TID);
        if (p.has_residual) {
            kd_load_columns(before, NORM_COLUMNS, sum, first, p.cols, TID);
            KD_UNROLL for (uint k = 0; k < NORM_COLUMNS; k++) v[k] += before[k];
            kd_store_columns(v, NORM_COLUMNS, sum, first, p.cols, TID);
        }
        squares += kd_squares(v, NORM_COLUMNS);
        if (first == 0)
            break;
    }
    squares = kd_sum(squares, parts, KD_MAX_SIMDS, LANE, SGID);
    if (!p.has_out)
        return;
    const float factor = rsqrt(squares / (float)p.cols + p.eps);
    for (uint first = 0; first < p.cols; first += stretch) {
        if (first > 0) {
            kd_load_columns(w, NORM_COLUMNS, weight, first, p.cols, TID);
            if (p.has_residual)
                kd_load_columns(v, NORM_COLUMNS, sum, first, p.cols, TID);
            else
                kd_load_columns(v, NORM_COLUMNS, from, first, p.cols, TID);
        }
        KD_UNROLL for (uint k = 0; k < NORM_COLUMNS; k++) v[k] = v[k] * factor * (w[k] + p.plus);
        kd_store_columns(v, NORM_COLUMNS, to, first, p.cols, TID);
    }
}
