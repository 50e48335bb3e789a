// Products with a row of a weight in any of its forms (args.h).
#ifndef CSGL_KERNELS_WEIGHT_H
#define CSGL_KERNELS_WEIGHT_H

#include "load.h"

// The value of an E4M3 byte: exponents of 1 to 15 over 2^7, no infinity, NaN where all bits are
// set.
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

// This lane's part of a row of codes: every 32nd run of 32 columns, which are BITS words. Groups
// are of 16 n columns.
template <uint BITS>
KD_INLINE float kd_dot_codes(device const uint *codes, device const float *scales,
                             device const float *biases, constant kd_weight &w,
                             device const float *x, uint lane)
{
    float sum = 0.0f;
    for (uint c = lane * 32u; c < w.cols; c += KD_SIMD_WIDTH * 32u) {
        uint words[BITS + 1];
        KD_UNROLL for (uint i = 0; i < BITS; i++) words[i] = codes[c / 32 * BITS + i];
        words[BITS] = 0;
        KD_UNROLL for (uint part = 0; part < 2; part++)
        {
            const uint group = (c + part * 16u) / w.group;
            const float scale = scales[group];
            const float bias = w.form == KD_FORM_CODES ? biases[group] : 0.0f;
            KD_UNROLL for (uint i = part * 16; i < part * 16 + 16; i++)
            {
                const uint at = i * BITS / 32, shift = i * BITS % 32;
                uint code = words[at] >> shift;
                if (shift + BITS > 32)
                    code |= words[at + 1] << (32 - shift);
                code &= (1u << BITS) - 1u;
                const float value =
                    BITS == 8 && w.form == KD_FORM_E4M3 ? kd_e4m3(code) : (float)code;
                sum = fma(fma(scale, value, bias), x[c + i], sum);
            }
        }
    }
    return sum;
}

// Likewise of f16 and bf16.
KD_INLINE float kd_dot_halves(device const uint4 *values, constant kd_weight &w,
                              device const float *x, uint lane)
{
    float sum = 0.0f;
    for (uint c = lane * 8u; c < w.cols; c += KD_SIMD_WIDTH * 8u) {
        const uint4 words = values[c / 8];
        float v[8];
        kd_two_halves(words.x, w.dtype == KD_F16, v);
        kd_two_halves(words.y, w.dtype == KD_F16, v + 2);
        kd_two_halves(words.z, w.dtype == KD_F16, v + 4);
        kd_two_halves(words.w, w.dtype == KD_F16, v + 6);
        KD_UNROLL for (uint i = 0; i < 8; i++) sum = fma(v[i], x[c + i], sum);
    }
    return sum;
}

// This lane's part of a row in any form and order: every 32nd column.
KD_INLINE float kd_dot_any(device const uchar *codes, device const float *scales,
                           device const float *biases, device const int *order,
                           constant kd_weight &w, device const float *x, uint lane)
{
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

// This lane's part of the product of row `row` of matrix `matrix` and x. All of the row is the
// simdgroup's sum.
KD_INLINE float kd_dot(device const uchar *memory, constant kd_weight &w, ulong matrix, uint row,
                       device const float *x, uint lane)
{
    device const uchar *base = memory + matrix * w.matrix_bytes;
    device const uchar *codes = base + (ulong)row * w.row_bytes;
    device const uint *words = (device const uint *)codes;
    device const float *scales = (device const float *)(base + w.scales) + (ulong)row * w.n_groups;
    device const float *biases = (device const float *)(base + w.biases) + (ulong)row * w.n_groups;
    const bool is_float = w.form == KD_FORM_FLOAT;
    if (w.order == 0 && w.cols % 32u == 0 && (is_float || w.group % 16u == 0)) {
        if (is_float && w.dtype != KD_F32)
            return kd_dot_halves((device const uint4 *)codes, w, x, lane);
        if (w.bits == 2)
            return kd_dot_codes<2>(words, scales, biases, w, x, lane);
        if (w.bits == 3)
            return kd_dot_codes<3>(words, scales, biases, w, x, lane);
        if (w.bits == 4)
            return kd_dot_codes<4>(words, scales, biases, w, x, lane);
        if (w.bits == 5)
            return kd_dot_codes<5>(words, scales, biases, w, x, lane);
        if (w.bits == 6)
            return kd_dot_codes<6>(words, scales, biases, w, x, lane);
        if (w.bits == 8)
            return kd_dot_codes<8>(words, scales, biases, w, x, lane);
    }
    return kd_dot_any(codes, scales, biases, (device const int *)(base + w.order), w, x, lane);
}

// The bias of output `row`.
KD_INLINE float kd_out_bias(device const uchar *memory, constant kd_weight &w, ulong matrix,
                            uint row)
{
    device const uchar *base = memory + matrix * w.matrix_bytes;
    return w.out_bias ? ((device const float *)(base + w.out_bias))[row] : 0.0f;
}

#endif
