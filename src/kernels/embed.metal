// out[t] = table[ids[t]], from rows of f32, f16 or bf16. A threadgroup a row.
#include "kd.h"

#include "load.h"

KERNEL(embed, CBUF(uchar, table, 0), CBUF(int, ids, 1), BUF(float, out, 2), PARM(kd_embed, p, 3))
{
    const ulong row = (ulong)ids[TGID.x * p.ids_stride] * p.cols;
    device float *to = out + (ulong)TGID.x * p.out_stride;
    for (uint i = TID; i < p.cols; i += KD_ROW_THREADS)
        to[i] = kd_load(table, row + i, p.dtype);
}
