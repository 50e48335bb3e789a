// Linears with int8 inputs, of weights of codes of up to 8 bits: the arithmetic of int8 mode
// (device/cpu/linear_scalar.c), sums in f32.
#include "kd.h"

#include "int8.h"
#include "weight.h"

// Rows into units of 32 codes, the last one filled up with zeros, and for each its scale, then the
// sums of its first and last 16 codes times that. A simdgroup a unit: KD_DOTS of them (y) of a row
// (x).
KERNEL(int8_inputs, CBUF(float, x, 0), CBUF(int, order, 1), BUF(uchar, codes, 2),
       BUF(float, levels, 3), PARM(kd_int8_inputs, p, 4))
{
    const uint unit = TGID.y * KD_DOTS + SGID, c = unit * 32u + LANE;
    if (unit >= p.n_units)
        return;
    float v = 0.0f;
    if (c < p.cols)
        v = x[(ulong)TGID.x * p.x_stride + (p.has_order ? (uint)order[c] : c)];
    const uint most = simd_max(as_type<uint>(v) & 0x7FFFFFFFu);
    const float largest = as_type<float>(most);
    const bool is_finite = most < 0x7F800000u, is_zero = largest < 0x1p-100f;
    // Of infinity and NaN the scale alone makes the results NaN.
    const int code = is_zero || !is_finite ? 0 : (int)rint(kd_product(v, 127.0f / largest));
    const float scale = is_zero ? 0.0f : largest / 127.0f;
    const int first = simd_sum(LANE < 16u ? code : 0), last = simd_sum(LANE < 16u ? 0 : code);
    const ulong at = (ulong)TGID.x * p.n_units + unit;
    codes[at * 32 + LANE] = (uchar)code;
    if (LANE == 0) {
        levels[at * 3] = scale;
        levels[at * 3 + 1] = scale * (float)first;
        levels[at * 3 + 2] = scale * (float)last;
    }
}

// This lane's part of a row of codes of BITS bits: every 32nd unit of 32 columns, which are BITS
// words. Of the last unit these may end in what lies behind the row, scales and biases at least; it
// meets inputs that are 0.
template <uint BITS>
KD_INLINE float int8_dot(device const uint *codes, device const float *scales,
                         device const float *biases, uint group, uint n_groups,
                         device const uint *x, device const float *levels, uint n_units, uint lane)
{
    float sum = 0.0f;
    for (uint unit = lane; unit < n_units; unit += KD_SIMD_WIDTH) {
        uint words[BITS + 1];
        KD_UNROLL for (uint i = 0; i < BITS; i++) words[i] = codes[unit * BITS + i];
        words[BITS] = 0u;
        KD_UNROLL for (uint part = 0; part < 2; part++)
        {
            int products = 0;
            KD_UNROLL for (uint four = part * 4; four < part * 4 + 4; four++)
            {
                uint bytes = 0u;
                KD_UNROLL for (uint i = 0; i < 4; i++)
                {
                    const uint at = (four * 4 + i) * BITS / 32, shift = (four * 4 + i) * BITS % 32;
                    uint code = words[at] >> shift;
                    if (shift + BITS > 32)
                        code |= words[at + 1] << (32 - shift);
                    bytes |= (code & ((1u << BITS) - 1u)) << 8 * i;
                }
                products = kd_dot4(bytes, x[unit * 8 + four], products);
            }
            const uint g = min((unit * 32 + part * 16) / group, n_groups - 1);
            sum = fma(biases[g], levels[unit * 3 + 1 + part], sum);
            sum = fma(scales[g], levels[unit * 3] * (float)products, sum);
        }
    }
    return sum;
}

// out[t, n] = x[t, :] . w[n, :] + bias[n]. A simdgroup an output: KD_DOTS of them (y) of a row (x).
KERNEL(linear_int8, CBUF(uchar, memory, 0), CBUF(uint, codes, 1), CBUF(float, levels, 2),
       BUF(float, out, 3), PARM(kd_linear_int8, p, 4))
{
    const uint n = TGID.y * KD_DOTS + SGID;
    if (n >= p.weight.rows)
        return;
    const ulong level = (ulong)n * p.weight.n_groups, row = (ulong)TGID.x * p.n_units;
    device const uint *from = (device const uint *)(memory + (ulong)n * p.weight.row_bytes);
    device const float *scales = (device const float *)(memory + p.weight.scales) + level;
    device const float *biases = (device const float *)(memory + p.weight.biases) + level;
    device const uint *x = codes + row * 8;
    device const float *x_levels = levels + row * 3;
    const uint group = p.weight.group, n_groups = p.weight.n_groups, n_units = p.n_units;
    const uint lane = LANE;
    float sum;
#define DOT(bits) int8_dot<bits>(from, scales, biases, group, n_groups, x, x_levels, n_units, lane)
    if (p.weight.bits == 2)
        sum = DOT(2);
    else if (p.weight.bits == 3)
        sum = DOT(3);
    else if (p.weight.bits == 4)
        sum = DOT(4);
    else if (p.weight.bits == 5)
        sum = DOT(5);
    else if (p.weight.bits == 6)
        sum = DOT(6);
    else
        sum = DOT(8);
#undef DOT
    sum = simd_sum(sum);
    if (LANE == 0)
        out[(ulong)TGID.x * p.out_stride + n] = sum + kd_out_bias(memory, p.weight, 0, n);
}
