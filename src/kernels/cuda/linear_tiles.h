// Products with weights in tiles (args.h, struct kd_tiles): what linear_flat.cu, for few rows, and
// linear_many.cu, for many, have in common. The weights' rows are the 16 rows of the matrix unit's
// first operand, the rows of the input are columns of its second.
//
// Codes are multiplied as they are: an integer of up to 8 bits in the low bits of an f16 is the
// subnormal code * 2^-24, exactly. So no code is ever converted, and scale and bias are applied in
// f32 to the sum of a group: scale * sum(code x) + bias * sum(x). Floats of 4 bits (E2M1) have the
// bits of an f16 that is the value * 2^-14, and no bias.
#ifndef CSGL_KERNELS_CUDA_LINEAR_TILES_H
#define CSGL_KERNELS_CUDA_LINEAR_TILES_H

#include "native.h"

// In the place of a number of bits: the floats of 4 bits, of which a word has as many.
enum { TILE_E2M1 = 5 };

// X(form, bits, spans, is_wide, is_bf16) of each form in which weights lie, codes first:
// GPU_TILE_FORMS of device/gpu/gpu_tiles.h.
#define TILE_FORMS(X)                                                                              \
    X(q4, 4, 1, false, false)                                                                      \
    TILE_FORMS_BUT_Q4(X)
#define TILE_FORMS_BUT_Q4(X)                                                                       \
    CODE_FORMS_BUT_Q4(X)                                                                           \
    X(e2m1, TILE_E2M1, 2, false, false)                                                            \
    X(f16, 16, 0, false, false)                                                                    \
    X(bf16, 16, 0, false, true)
#define CODE_FORMS_BUT_Q4(X)                                                                       \
    X(q4s2, 4, 2, false, false)                                                                    \
    X(q4s2w, 4, 2, true, false)                                                                    \
    X(q4s4w, 4, 4, true, false)                                                                    \
    X(q8, 8, 1, false, false)                                                                      \
    X(q8s2, 8, 2, false, false)                                                                    \
    X(q8s2w, 8, 2, true, false)                                                                    \
    X(q8s4w, 8, 4, true, false)

// Scales and biases of rows g and g + 8.
struct row_levels {
    float scale, bias, scale8, bias8;
};

// A lane's part of a tile of 16 rows and 64 columns. Its columns are numbered j = 0 .. 15: those of
// input positions 8 t .. 8 t + 7 and 32 + 8 t .. 32 + 8 t + 7. A product A takes j = 0 .. 3 of each
// half, a product B j = 4 .. 7: see gpu_tiles.c, which lays the codes.
template <int BITS> struct tile_codes {
    uint4 words[BITS / 4];
};

template <int BITS> NATIVE void load_codes(tile_codes<BITS> &to, const uint4 *from)
{
#pragma unroll
    for (int i = 0; i < BITS / 4; i++)
        to.words[i] = native_stream(from + i * 32);
}

// The matrix unit's first operand of product A (is_b false) or B of a half.
template <int BITS>
NATIVE void fragment(uint32_t (&a)[4], const tile_codes<BITS> &codes, int half, bool is_b)
{
    if (BITS == 4) {
        const uint32_t mask = is_b ? 0x00F000F0u : 0x000F000Fu;
        const uint32_t w = half ? codes.words[0].y : codes.words[0].x;
        const uint32_t w8 = half ? codes.words[0].w : codes.words[0].z;
        a[0] = w & mask;
        a[1] = w8 & mask;
        a[2] = w >> 8 & mask;
        a[3] = w8 >> 8 & mask;
    } else if (BITS == TILE_E2M1) { // sign and magnitude where an f16 has them, after a shift
        const uint32_t w = half ? codes.words[0].y : codes.words[0].x;
        const uint32_t w8 = half ? codes.words[0].w : codes.words[0].z;
        const uint32_t sign = 0x80008000u, magnitude = 0x0E000E00u;
        a[0] = is_b ? (w << 1 & sign) | (w << 6 & magnitude) : w & (sign | magnitude);
        a[1] = is_b ? (w8 << 1 & sign) | (w8 << 6 & magnitude) : w8 & (sign | magnitude);
        a[2] = is_b ? (w << 2 & sign) | (w << 9 & magnitude) : w << 3 & (sign | magnitude);
        a[3] = is_b ? (w8 << 2 & sign) | (w8 << 9 & magnitude) : w8 << 3 & (sign | magnitude);
    } else if (BITS == 8) {
        const uint4 w = codes.words[half];
        const int shift = is_b ? 8 : 0;
        a[0] = w.x >> shift & 0x00FF00FFu;
        a[1] = w.z >> shift & 0x00FF00FFu;
        a[2] = w.y >> shift & 0x00FF00FFu;
        a[3] = w.w >> shift & 0x00FF00FFu;
    } else {
        const uint4 w = codes.words[2 * half + is_b];
        a[0] = w.x;
        a[1] = w.y;
        a[2] = w.z;
        a[3] = w.w;
    }
}

// IS_WIDE: levels of f32, else of f16 or bf16. Those of E2M1 are scales of bf16, times what makes
// their products those of codes.
template <int BITS, bool IS_WIDE> NATIVE row_levels load_levels(const void *from, bool is_bf16)
{
    row_levels l;
    if (BITS == TILE_E2M1) {
        const float2 a = native_unpack<true>(*(const uint32_t *)from);
        l = {a.x * 0x1p-10f, 0.0f, a.y * 0x1p-10f, 0.0f};
    } else if (IS_WIDE) {
        const float4 v = *(const float4 *)from;
        l = {v.x, v.y, v.z, v.w};
    } else {
        const uint2 v = *(const uint2 *)from;
        const float2 a = is_bf16 ? native_unpack<true>(v.x) : native_unpack<false>(v.x);
        const float2 b = is_bf16 ? native_unpack<true>(v.y) : native_unpack<false>(v.y);
        l = {a.x, a.y, b.x, b.y};
    }
    return l;
}

// Bytes of the levels of rows g and g + 8.
template <int BITS, bool IS_WIDE> struct tile_levels {
    enum { BYTES = BITS == TILE_E2M1 ? 4 : IS_WIDE ? 16 : 8 };
};

// A tile on its way from memory.
template <int BITS, int SPANS, bool IS_WIDE> struct tile_ahead {
    enum { LEVEL_BYTES = tile_levels<BITS, IS_WIDE>::BYTES };
    tile_codes<BITS> codes;
    uint4 levels[SPANS ? SPANS : 1];

    NATIVE void load(const uint4 *from, const uint8_t *level)
    {
        load_codes(codes, from);
#pragma unroll
        for (int s = 0; s < SPANS; s++)
            if (BITS == TILE_E2M1)
                levels[s].x = __ldg((const uint32_t *)(level + s * 8 * LEVEL_BYTES));
            else if (IS_WIDE)
                levels[s] = __ldg((const uint4 *)(level + s * 8 * LEVEL_BYTES));
            else
                *(uint2 *)&levels[s] = __ldg((const uint2 *)(level + s * 8 * LEVEL_BYTES));
    }
};

// sum += scale * t + bias * inputs.
template <int BITS>
NATIVE void add_scaled(float (&sum)[4], const float (&t)[4], const row_levels &l, float2 inputs)
{
    if (BITS != TILE_E2M1) {
        sum[0] = fmaf(l.bias, inputs.x, sum[0]);
        sum[1] = fmaf(l.bias, inputs.y, sum[1]);
        sum[2] = fmaf(l.bias8, inputs.x, sum[2]);
        sum[3] = fmaf(l.bias8, inputs.y, sum[3]);
    }
    sum[0] = fmaf(l.scale, t[0], sum[0]);
    sum[1] = fmaf(l.scale, t[1], sum[1]);
    sum[2] = fmaf(l.scale8, t[2], sum[2]);
    sum[3] = fmaf(l.scale8, t[3], sum[3]);
}

// The same with t = a + b; the codes of product B lie 4 bits higher if BITS is 4.
template <int BITS>
NATIVE void add_group(float (&sum)[4], const float *a, const float *b, const row_levels &l,
                      float2 inputs)
{
    float t[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = BITS == 4 ? fmaf(b[i], 0.0625f, a[i]) : a[i] + b[i];
    add_scaled<BITS>(sum, t, l, inputs);
}

// The biases of an expert's outputs, `bytes` behind those of the first one; NULL: none.
NATIVE const float *expert_bias(const float *bias, size_t bytes)
{
    return bias ? (const float *)((const uint8_t *)bias + bytes) : nullptr;
}

#endif
