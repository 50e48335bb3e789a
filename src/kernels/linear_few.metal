// Linears of few rows, whose time is that of reading the weights: each is read once for up to 8
// rows, packed and 16 columns a lane at a time. out[t, n] = x[t, :] . w[n, :] + bias[n].
//
// A threadgroup makes KD_FEW_OUTPUTS outputs (y) of M rows (x); its simdgroups share the columns,
// 512 each in turn, and add up what they have at the end. A row's sum is the same in any batch.
#include "kd.h"

#include "packed.h"

// Adds 4 columns of each output to the sums of each row; `x` is the first row's first column.
template <uint BITS, uint M, uint PART>
KD_INLINE void few_add(thread const kd_packed *q, device const float *x, thread const uint *rows,
                       uint stride, thread float *sums)
{
    float w[KD_FEW_OUTPUTS][4];
    KD_UNROLL for (uint r = 0; r < KD_FEW_OUTPUTS; r++) kd_unpack<BITS, PART>(q[r], w[r]);
    KD_UNROLL for (uint m = 0; m < M; m++)
    {
        const float4 v = *(device const float4 *)(x + (ulong)rows[m] * stride + PART * 4u);
        KD_UNROLL for (uint r = 0; r < KD_FEW_OUTPUTS; r++)
        {
            float s = fma(w[r][0], v.x, sums[r * M + m]);
            s = fma(w[r][1], v.y, s);
            s = fma(w[r][2], v.z, s);
            sums[r * M + m] = fma(w[r][3], v.w, s);
        }
    }
}

// `parts` [KD_FEW_SIMDS * KD_FEW_OUTPUTS * M].
template <uint BITS, uint M>
KD_INLINE void few(device const uchar *memory, device const float *x, device float *out,
                   constant kd_linear_few &p, threadgroup float *parts, uint group_x, uint group_y,
                   uint thread_index, uint lane, uint simd)
{
    const uint first_row = group_x * M, first_output = group_y * KD_FEW_OUTPUTS;
    float sums[KD_FEW_OUTPUTS * M];
    uint rows[M];
    KD_UNROLL for (uint i = 0; i < KD_FEW_OUTPUTS * M; i++) sums[i] = 0.0f;
    KD_UNROLL for (uint m = 0; m < M; m++) rows[m] = min(first_row + m, p.n_rows - 1u);
    const uint step = p.n_simds * KD_SIMD_WIDTH * KD_FEW_COLS;
    for (uint c = (simd * KD_SIMD_WIDTH + lane) * KD_FEW_COLS; c < p.weight.cols; c += step) {
        kd_packed q[KD_FEW_OUTPUTS];
        KD_UNROLL for (uint r = 0; r < KD_FEW_OUTPUTS; r++)
        {
            const ulong n = min(first_output + r, p.weight.rows - 1u);
            q[r] = kd_read_packed<BITS>(memory, p.weight, n, c);
        }
        few_add<BITS, M, 0>(q, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 1>(q, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 2>(q, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 3>(q, x + c, rows, p.x_stride, sums);
    }
    KD_UNROLL for (uint i = 0; i < KD_FEW_OUTPUTS * M; i++)
    {
        const float sum = simd_sum(sums[i]);
        if (lane == 0)
            parts[simd * (KD_FEW_OUTPUTS * M) + i] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint row = first_row + thread_index % M, n = first_output + thread_index / M;
    if (thread_index >= KD_FEW_OUTPUTS * M || row >= p.n_rows || n >= p.weight.rows)
        return;
    float sum = kd_packed_out_bias(memory, p.weight, n);
    for (uint s = 0; s < p.n_simds; s++)
        sum += parts[s * (KD_FEW_OUTPUTS * M) + thread_index];
    out[(ulong)row * p.out_stride + n] = sum;
}

#define LINEAR_FEW(name, bits, m)                                                                  \
    KERNEL(name, CBUF(uchar, memory, 0), CBUF(float, x, 1), BUF(float, out, 2),                    \
           PARM(kd_linear_few, p, 3))                                                              \
    {                                                                                              \
        TG_ARRAY(float, parts, KD_FEW_SIMDS *KD_FEW_OUTPUTS *m);                                   \
        few<bits, m>(memory, x, out, p, parts, TGID.x, TGID.y, TID, LANE, SGID);                   \
    }
LINEAR_FEW(linear_few_q4_1, 4, 1)
LINEAR_FEW(linear_few_q4_4, 4, 4)
LINEAR_FEW(linear_few_q4_8, 4, 8)
LINEAR_FEW(linear_few_q8_1, 8, 1)
LINEAR_FEW(linear_few_q8_4, 8, 4)
LINEAR_FEW(linear_few_q8_8, 8, 8)
LINEAR_FEW(linear_few_f16_1, 16, 1)
LINEAR_FEW(linear_few_f16_4, 16, 4)
LINEAR_FEW(linear_few_f16_8, 16, 8)
