// Products with a row of a weight in any of its forms (args.h).
#ifndef CSGL_KERNELS_WEIGHT_H
#define CSGL_KERNELS_WEIGHT_H

#include "load.h"

// The value of an E4M3 byte: exponents of 1 to 15 over 2^7, no infinity, NaN where all bits are set.
KD_INLINE float kd_e4m3(uint byte)
{
    const uint exponent = byte >> 3 & 15u, mantissa = byte & 7u;
    const float sign = byte & 0x80u ? -1.0f : 1.0f;
    if ((byte & 0x7Fu) == 0x7Fu)
        return as_type<float>(0x7FC00000u);
    if (exponent == 0)
        return sign * (float)mantissa * (1.0f / 512.0f);
    return sign * as_type<float>((exponent + 120u) << 23 | mantissa << 20);
}

// Code c of a row's stream of codes of `bits` <= 8 bits.
KD_INLINE uint kd_code(device const uchar *codes, uint c, uint bits)
{
    const ulong at = (ulong)c * bits;
    device const uchar *from = codes + (at >> 3);
    const uint shift = (uint)(at & 7u);
    uint word = from[0];
    if (shift + bits > 8)
        word |= (uint)from[1] << 8;
    return word >> shift & ((1u << bits) - 1u);
}

// This lane's part of the product of row `row` of matrix `matrix` and x: every 32nd column. All of
// the row is the simdgroup's sum.
KD_INLINE float kd_dot(device const uchar *memory, constant kd_weight &w, ulong matrix, uint row,
                       device const float *x, uint lane)
{
    device const uchar *base = memory + matrix * w.matrix_bytes;
    device const uchar *codes = base + (ulong)row * w.row_bytes;
    device const float *scales = (device const float *)(base + w.scales) + (ulong)row * w.n_groups;
    device const float *biases = (device const float *)(base + w.biases) + (ulong)row * w.n_groups;
    device const int *order = (device const int *)(base + w.order);
    float sum = 0.0f;
    for (uint c = lane; c < w.cols; c += KD_SIMD_WIDTH) {
        float value;
        if (w.form == KD_FORM_FLOAT)
            value = kd_load(codes, c, w.dtype);
        else if (w.form == KD_FORM_CODES)
            value = scales[c / w.group] * (float)kd_code(codes, c, w.bits) + biases[c / w.group];
        else
            value = scales[c / w.group] * kd_e4m3(codes[c]);
        sum += x[w.order ? (uint)order[c] : c] * value;
    }
    return sum;
}

// The bias of output `row`.
KD_INLINE float kd_out_bias(device const uchar *memory, constant kd_weight &w, ulong matrix,
                            uint row)
{
    device const uchar *base = memory + matrix * w.matrix_bytes;
    return w.out_bias ? ((device const float *)(base + w.out_bias))[row] : 0.0f;
}

#endif
