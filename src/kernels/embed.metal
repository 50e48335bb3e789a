// out[t] = table[ids[t]], from rows of f32, f16 or bf16. A threadgroup a stretch (y) of a row (x).
#include "kd.h"

#include "load.h"

KERNEL(embed, CBUF(uchar, table, 0), CBUF(int, ids, 1), BUF(float, out, 2), PARM(kd_embed, p, 3))
{
    const uint i = TGID.y * KD_ROW_THREADS + TID;
    const ulong row = (ulong)ids[(ulong)TGID.x * p.ids_stride] * p.cols;
    if (i < p.cols)
        out[(ulong)TGID.x * p.out_stride + i] = kd_load(table, row + i, p.dtype);
}
