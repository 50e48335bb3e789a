// Sixteen columns of a row of weights as they lie: 8 bytes of codes of 4 bits, 16 of 8, 32 of
// floats of 16.
#ifndef CSGL_KERNELS_PACKED_H
#define CSGL_KERNELS_PACKED_H

#include "load.h"

struct kd_packed {
    uint4 words[2];
    float scale, bias;
    bool is_f16;
};

// Columns c to c + 15 of row n of a weight of codes of BITS bits in groups of 16 n, or of floats.
template <uint BITS>
KD_INLINE kd_packed kd_read_packed(device const uchar *memory, constant kd_weight &w, ulong n,
                                   uint c)
{
    kd_packed q;
    device const uchar *from = memory + n * w.row_bytes + c * BITS / 8u;
    q.is_f16 = w.dtype == KD_F16;
    q.scale = 1.0f;
    q.bias = 0.0f;
    if (BITS == 4) {
        const uint2 two = *(device const uint2 *)from;
        q.words[0].x = two.x;
        q.words[0].y = two.y;
    } else {
        q.words[0] = *(device const uint4 *)from;
    }
    if (BITS == 16) {
        q.words[1] = *(device const uint4 *)(from + 16);
    } else {
        const ulong level = n * w.n_groups + c / w.group;
        q.scale = ((device const float *)(memory + w.scales))[level];
        q.bias = ((device const float *)(memory + w.biases))[level];
    }
    return q;
}

// The values of columns 4 PART to 4 PART + 3.
template <uint BITS, uint PART>
KD_INLINE void kd_unpack(thread const kd_packed &q, thread float *to)
{
    const uint4 words = BITS == 16 && PART >= 2 ? q.words[1] : q.words[0];
    if (BITS == 4) {
        const uint codes = (PART < 2 ? words.x : words.y) >> PART % 2 * 16;
        KD_UNROLL for (uint i = 0; i < 4; i++) to[i] =
            fma(q.scale, (float)(codes >> 4 * i & 15u), q.bias);
    } else if (BITS == 8) {
        const uint codes = PART == 0   ? words.x
                           : PART == 1 ? words.y
                           : PART == 2 ? words.z
                                       : words.w;
        KD_UNROLL for (uint i = 0; i < 4; i++) to[i] =
            fma(q.scale, (float)(codes >> 8 * i & 255u), q.bias);
    } else {
        kd_two_halves(PART % 2 ? words.z : words.x, q.is_f16, to);
        kd_two_halves(PART % 2 ? words.w : words.y, q.is_f16, to + 2);
    }
}

// The bias of output n, or 0.
KD_INLINE float kd_packed_out_bias(device const uchar *memory, constant kd_weight &w, uint n)
{
    return w.out_bias ? ((device const float *)(memory + w.out_bias))[n] : 0.0f;
}

#endif
