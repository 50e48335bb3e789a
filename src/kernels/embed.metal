// out[t] = row ids[t] of a table in any form of a weight, as the CPU's decoder has it, to the bit.
// A threadgroup a stretch (y) of a row (x).
#include "kd.h"

#include "weight.h"

KERNEL(embed, CBUF(uchar, table, 0), CBUF(int, ids, 1), BUF(float, out, 2), PARM(kd_embed, p, 3))
{
    const uint c = TGID.y * KD_ROW_THREADS + TID;
    if (c >= p.weight.cols)
        return;
    const ulong row = (ulong)ids[(ulong)TGID.x * p.ids_stride];
    device const uchar *codes = table + row * p.weight.row_bytes;
    device float *to = out + (ulong)TGID.x * p.out_stride + c;
    if (p.weight.form == KD_FORM_FLOAT) {
        *to = kd_load(codes, c, p.weight.dtype);
        return;
    }
    const ulong level = row * p.weight.n_groups + c / p.weight.group;
    const float scale = ((device const float *)(table + p.weight.scales))[level];
    if (p.weight.form == KD_FORM_E4M3) {
        *to = scale * kd_e4m3(codes[c]);
        return;
    }
    const float code = (float)kd_code(codes, c, p.weight.bits);
    const float bias = ((device const float *)(table + p.weight.biases))[level];
    *to = p.rounds_products ? kd_product(scale, code) + bias : fma(scale, code, bias);
}
