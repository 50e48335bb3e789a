// KV of int8 codes (device/cpu/attention_codes.h): K, V and q are turned by a Hadamard matrix, and
// the sums of V are turned back. Codes of K are of what is left when the shares of the tokens
// before in its piece are taken away, so that those tokens' scores have shares in a token's score.
#ifndef CSGL_KERNELS_CODES_H
#define CSGL_KERNELS_CODES_H

// 1 / sqrt(width) of a power of two, as the CPU's division has it.
KD_INLINE float kd_turn_factor(uint width)
{
    float factor = 1.0f;
    for (; width >= 4; width /= 4)
        factor *= 0.5f;
    return width == 2 ? factor * 0.70710677f : factor;
}

// Turns a head of `dim` values in blocks of the largest power of two that divides dim; a lane has
// every 32nd of them, and zeros behind the last. Products are rounded by themselves, as the CPU's
// are.
KD_INLINE void kd_turn(thread float *x, uint dim, uint lane)
{
    const uint width = dim & (0u - dim), n_parts = (dim + KD_SIMD_WIDTH - 1) / KD_SIMD_WIDTH;
    for (uint step = 1; step < width && step < KD_SIMD_WIDTH; step *= 2) {
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            if (i >= n_parts)
                continue;
            const float other = simd_shuffle_xor(x[i], step);
            x[i] = (lane & step) != 0 ? other - x[i] : x[i] + other;
        }
    }
    KD_UNROLL for (uint step = 1; step < KD_MAX_HEAD_PARTS; step *= 2)
    {
        if (step * KD_SIMD_WIDTH >= width)
            continue;
        KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++)
        {
            if ((i & step) != 0)
                continue;
            const float a = x[i], b = x[i + step];
            x[i] = a + b;
            x[i + step] = a - b;
        }
    }
    const float factor = kd_turn_factor(width);
    KD_UNROLL for (uint i = 0; i < KD_MAX_HEAD_PARTS; i++) x[i] = kd_product(x[i], factor);
}

// Turns a head of 8 LPT values, of which lane `sub` of LPT that follow each other has 8.
template <uint LPT> KD_INLINE void kd_turn_eights(thread float *x, uint sub)
{
    KD_UNROLL for (uint step = 1; step < 8; step *= 2)
    {
        KD_UNROLL for (uint i = 0; i < 8; i++)
        {
            if ((i & step) != 0)
                continue;
            const float a = x[i], b = x[i + step];
            x[i] = a + b;
            x[i + step] = a - b;
        }
    }
    KD_UNROLL for (uint step = 1; step < LPT; step *= 2)
    {
        KD_UNROLL for (uint i = 0; i < 8; i++)
        {
            const float other = simd_shuffle_xor(x[i], step);
            x[i] = (sub & step) != 0 ? other - x[i] : x[i] + other;
        }
    }
    KD_UNROLL for (uint i = 0; i < 8; i++) x[i] *= kd_turn_factor(LPT * 8);
}

// Tokens of a piece, which begins at a multiple of so many places.
KD_INLINE uint kd_piece(uint page_size)
{
    return min(page_size, (uint)KD_PIECE);
}

// The share of token `i` of a piece in those behind it.
KD_INLINE float kd_piece_share(uint i)
{
    return i == 0 ? 1.0f : i == 1 ? 0.5f : 0.4f;
}

// What byte `i` of a word of codes means.
KD_INLINE float kd_code(uint word, uint i)
{
    return (float)((int)(word << (24 - 8 * i)) >> 24);
}

// The eight codes from byte `at` on, which lies on 8 bytes.
KD_INLINE void kd_code_eight(device const uchar *from, ulong at, thread float *to)
{
    const uint2 words = ((device const uint2 *)from)[at / 8];
    KD_UNROLL for (uint i = 0; i < 4; i++)
    {
        to[i] = kd_code(words.x, i);
        to[4 + i] = kd_code(words.y, i);
    }
}

// Of the two scales of a token.
KD_INLINE float kd_k_scale(uint both)
{
    return as_type<float>(both << 16);
}

KD_INLINE float kd_v_scale(uint both)
{
    return as_type<float>(both & 0xFFFF0000u);
}

#endif
