// Columns of a row that a threadgroup of KD_ROW_THREADS shares: a thread holds up to n of them, a
// constant, and asks for all before it needs the first, since each load takes as long as hundreds
// of additions.
#ifndef CSGL_KERNELS_COLUMNS_H
#define CSGL_KERNELS_COLUMNS_H

// Column k of the thread, of those from `first` on.
KD_INLINE uint kd_column(uint first, uint k, uint tid)
{
    return first + k * KD_ROW_THREADS + tid;
}

// Zeros behind the last.
KD_INLINE void kd_load_columns(thread float *v, uint n, device const float *from, uint first,
                               uint cols, uint tid)
{
    KD_UNROLL for (uint k = 0; k < n; k++)
    {
        const uint i = kd_column(first, k, tid);
        v[k] = i < cols ? from[i] : 0.0f;
    }
}

KD_INLINE void kd_store_columns(thread const float *v, uint n, device float *to, uint first,
                                uint cols, uint tid)
{
    KD_UNROLL for (uint k = 0; k < n; k++)
    {
        const uint i = kd_column(first, k, tid);
        if (i < cols)
            to[i] = v[k];
    }
}

// The sum of their squares.
KD_INLINE float kd_squares(thread const float *v, uint n)
{
    float sum = 0.0f;
    KD_UNROLL for (uint k = 0; k < n; k++) sum += v[k] * v[k];
    return sum;
}

#endif
