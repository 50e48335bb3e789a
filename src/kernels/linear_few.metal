// Linears of few rows, whose time is that of reading the weights: each is read once for up to 8
// rows, packed and 16 columns a lane at a time. out[t, n] = x[t, :] . w[n, :] + bias[n].
//
// A threadgroup makes KD_FEW_OUTPUTS outputs (y) of M rows (x); its simdgroups share the columns,
// 512 each in turn, and add up what they have at the end. A row's sum is the same in any batch.
#include "kd.h"

#include "load.h"

// 16 columns of a row as they lie: 8 bytes of codes of 4 bits, 16 of 8, 32 of floats.
struct few_packed {
    uint4 words[2];
};

template <uint BITS> KD_INLINE few_packed few_read(device const uchar *from)
{
    few_packed q;
    if (BITS == 4) {
        const uint2 two = *(device const uint2 *)from;
        q.words[0].x = two.x;
        q.words[0].y = two.y;
    } else {
        q.words[0] = *(device const uint4 *)from;
    }
    if (BITS == 16)
        q.words[1] = *(device const uint4 *)(from + 16);
    return q;
}

// Columns 4 PART to 4 PART + 3.
template <uint BITS, uint PART>
KD_INLINE void few_values(few_packed q, bool is_f16, float scale, float bias, thread float *to)
{
    const uint4 words = BITS == 16 && PART >= 2 ? q.words[1] : q.words[0];
    if (BITS == 4) {
        const uint codes = (PART < 2 ? words.x : words.y) >> PART % 2 * 16;
        KD_UNROLL for (uint i = 0; i < 4; i++) to[i] =
            fma(scale, (float)(codes >> 4 * i & 15u), bias);
    } else if (BITS == 8) {
        const uint codes = PART == 0   ? words.x
                           : PART == 1 ? words.y
                           : PART == 2 ? words.z
                                       : words.w;
        KD_UNROLL for (uint i = 0; i < 4; i++) to[i] =
            fma(scale, (float)(codes >> 8 * i & 255u), bias);
    } else {
        kd_two_halves(PART % 2 ? words.z : words.x, is_f16, to);
        kd_two_halves(PART % 2 ? words.w : words.y, is_f16, to + 2);
    }
}

// Adds 4 columns of each output to the sums of each row; `x` is the first row's first column.
template <uint BITS, uint M, uint PART>
KD_INLINE void few_add(thread const few_packed *q, thread const float *scales,
                       thread const float *biases, bool is_f16, device const float *x,
                       thread const uint *rows, uint stride, thread float *sums)
{
    float w[KD_FEW_OUTPUTS][4];
    KD_UNROLL for (uint r = 0; r < KD_FEW_OUTPUTS; r++)
        few_values<BITS, PART>(q[r], is_f16, scales[r], biases[r], w[r]);
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
    const bool is_f16 = p.weight.dtype == KD_F16;
    const uint step = p.n_simds * KD_SIMD_WIDTH * KD_FEW_COLS;
    for (uint c = (simd * KD_SIMD_WIDTH + lane) * KD_FEW_COLS; c < p.weight.cols; c += step) {
        few_packed q[KD_FEW_OUTPUTS];
        float scales[KD_FEW_OUTPUTS], biases[KD_FEW_OUTPUTS];
        KD_UNROLL for (uint r = 0; r < KD_FEW_OUTPUTS; r++)
        {
            const ulong n = min(first_output + r, p.weight.rows - 1u);
            q[r] = few_read<BITS>(memory + n * p.weight.row_bytes + c * BITS / 8u);
            scales[r] = 1.0f;
            biases[r] = 0.0f;
            if (BITS < 16) {
                const ulong level = n * p.weight.n_groups + c / p.weight.group;
                scales[r] = ((device const float *)(memory + p.weight.scales))[level];
                biases[r] = ((device const float *)(memory + p.weight.biases))[level];
            }
        }
        few_add<BITS, M, 0>(q, scales, biases, is_f16, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 1>(q, scales, biases, is_f16, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 2>(q, scales, biases, is_f16, x + c, rows, p.x_stride, sums);
        few_add<BITS, M, 3>(q, scales, biases, is_f16, x + c, rows, p.x_stride, sums);
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
    float sum = p.weight.out_bias ? ((device const float *)(memory + p.weight.out_bias))[n] : 0.0f;
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
