// Linears of many rows, on the GPU's matrix units: out[t, n] = x[t, :] . w[n, :] + bias[n].
//
// A threadgroup makes KD_MATRIX_OUTPUTS outputs (y) of KD_MATRIX_ROWS rows (x), from 32 columns at
// a time that it unpacks into its memory. Each of its four simdgroups has half of the rows and half
// of the outputs, in 2 x 4 matrices.
#include "kd.h"

#include "frag.h"
#include "packed.h"

// Columns c to c + 31 of the rows and of the outputs; those beyond the last are the last again.
template <uint BITS>
KD_INLINE void matrix_read(device const uchar *memory, device const float *x,
                           constant kd_linear_few &p, uint first_row, uint first_output, uint c,
                           threadgroup float *xs, threadgroup float *ws, uint thread_index)
{
    const uint x_row = thread_index / 4u, x_col = thread_index % 4u * 8u;
    const ulong row = min(first_row + x_row, p.n_rows - 1u);
    device const float4 *from = (device const float4 *)(x + row * p.x_stride + c + x_col);
    threadgroup float4 *to = (threadgroup float4 *)(xs + x_row * KD_MATRIX_STRIDE + x_col);
    to[0] = from[0];
    to[1] = from[1];
    const uint w_row = thread_index / 2u, w_col = thread_index % 2u * 16u;
    const ulong n = min(first_output + w_row, p.weight.rows - 1u);
    const kd_packed q = kd_read_packed<BITS>(memory, p.weight, n, c + w_col);
    float w[16];
    kd_unpack<BITS, 0>(q, w);
    kd_unpack<BITS, 1>(q, w + 4);
    kd_unpack<BITS, 2>(q, w + 8);
    kd_unpack<BITS, 3>(q, w + 12);
    KD_UNROLL for (uint i = 0; i < 16; i++) ws[w_row * KD_MATRIX_STRIDE + w_col + i] = w[i];
}

// `tile` [(KD_MATRIX_ROWS + KD_MATRIX_OUTPUTS) * KD_MATRIX_STRIDE].
template <uint BITS>
KD_INLINE void matrix_product(device const uchar *memory, device const float *x, device float *out,
                              constant kd_linear_few &p, threadgroup float *tile, uint group_x,
                              uint group_y, uint thread_index, uint lane, uint simd)
{
    const uint first_row = group_x * KD_MATRIX_ROWS, first_output = group_y * KD_MATRIX_OUTPUTS;
    const uint own_row = simd / 2u * 16u, own_output = simd % 2u * 32u;
    threadgroup float *xs = tile, *ws = tile + KD_MATRIX_ROWS * KD_MATRIX_STRIDE;
    kd_frag sums[2][4];
    KD_UNROLL for (uint i = 0; i < 2; i++)
    {
        KD_UNROLL for (uint j = 0; j < 4; j++) kd_frag_zero(sums[i][j]);
    }
    for (uint c = 0; c < p.weight.cols; c += KD_MATRIX_COLS) {
        matrix_read<BITS>(memory, x, p, first_row, first_output, c, xs, ws, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        KD_UNROLL for (uint k = 0; k < KD_MATRIX_COLS; k += 8)
        {
            kd_frag a[2], b[4];
            KD_UNROLL for (uint i = 0; i < 2; i++) kd_frag_load(
                a[i], xs + (own_row + i * 8u) * KD_MATRIX_STRIDE + k, KD_MATRIX_STRIDE, lane);
            KD_UNROLL for (uint j = 0; j < 4; j++) kd_frag_load_turned(
                b[j], ws + (own_output + j * 8u) * KD_MATRIX_STRIDE + k, KD_MATRIX_STRIDE, lane);
            KD_UNROLL for (uint i = 0; i < 2; i++)
            {
                KD_UNROLL for (uint j = 0; j < 4; j++)
                    kd_frag_add_product(sums[i][j], a[i], b[j], lane);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    KD_UNROLL for (uint i = 0; i < 2; i++)
    {
        KD_UNROLL for (uint j = 0; j < 4; j++) kd_frag_store(
            sums[i][j], tile + (own_row + i * 8u) * KD_MATRIX_OUTPUTS + own_output + j * 8u,
            KD_MATRIX_OUTPUTS, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = first_output + thread_index % KD_MATRIX_OUTPUTS;
    if (n >= p.weight.rows)
        return;
    const float bias = kd_packed_out_bias(memory, p.weight, n);
    for (uint i = thread_index; i < KD_MATRIX_ROWS * KD_MATRIX_OUTPUTS; i += KD_MATRIX_GROUP) {
        const uint row = first_row + i / KD_MATRIX_OUTPUTS;
        if (row < p.n_rows)
            out[(ulong)row * p.out_stride + n] = tile[i] + bias;
    }
}

#define LINEAR_MATRIX(name, bits)                                                                  \
    KERNEL(name, CBUF(uchar, memory, 0), CBUF(float, x, 1), BUF(float, out, 2),                    \
           PARM(kd_linear_few, p, 3))                                                              \
    {                                                                                              \
        TG_ARRAY(float, tile, KD_MATRIX_TILE);                                                     \
        matrix_product<bits>(memory, x, out, p, tile, TGID.x, TGID.y, TID, LANE, SGID);            \
    }
LINEAR_MATRIX(linear_matrix_q4, 4)
LINEAR_MATRIX(linear_matrix_q8, 8)
LINEAR_MATRIX(linear_matrix_f16, 16)
