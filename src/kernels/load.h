// Values of f32, f16 and bf16 in memory whose type is known when the kernel runs.
#ifndef CSGL_KERNELS_LOAD_H
#define CSGL_KERNELS_LOAD_H

// Element i; `dtype` is one of enum kd_dtype.
KD_INLINE float kd_load(device const uchar *from, ulong i, uint dtype)
{
    if (dtype == KD_F32)
        return ((device const float *)from)[i];
    const ushort bits = ((device const ushort *)from)[i];
    if (dtype == KD_F16)
        return (float)as_type<half>(bits);
    return as_type<float>((uint)bits << 16);
}

// The two values of a word of f16 or bf16.
KD_INLINE void kd_two_halves(uint word, bool is_f16, thread float *to)
{
    to[0] = is_f16 ? (float)as_type<half>((ushort)word) : as_type<float>(word << 16);
    to[1] =
        is_f16 ? (float)as_type<half>((ushort)(word >> 16)) : as_type<float>(word & 0xFFFF0000u);
}

// Eight values from element `at` on, which lies on 8 elements.
KD_INLINE void kd_load_eight(device const uchar *from, ulong at, uint dtype, thread float *to)
{
    if (dtype == KD_F32) {
        device const float4 *words = (device const float4 *)from + at / 4;
        const float4 a = words[0], b = words[1];
        to[0] = a.x;
        to[1] = a.y;
        to[2] = a.z;
        to[3] = a.w;
        to[4] = b.x;
        to[5] = b.y;
        to[6] = b.z;
        to[7] = b.w;
        return;
    }
    const uint4 words = ((device const uint4 *)from)[at / 8];
    kd_two_halves(words.x, dtype == KD_F16, to);
    kd_two_halves(words.y, dtype == KD_F16, to + 2);
    kd_two_halves(words.z, dtype == KD_F16, to + 4);
    kd_two_halves(words.w, dtype == KD_F16, to + 6);
}

// The nearest bf16 value, of two the even one, as base/half.h has it.
KD_INLINE float kd_bf16(float value)
{
    const uint bits = as_type<uint>(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return as_type<float>((bits | 0x400000u) & 0xFFFF0000u);
    return as_type<float>((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}

// Rounds to nearest even, as base/half.h does.
KD_INLINE void kd_store(device uchar *to, ulong i, uint dtype, float value)
{
    if (dtype == KD_F32) {
        ((device float *)to)[i] = value;
        return;
    }
    ((device ushort *)to)[i] = dtype == KD_F16 ? as_type<ushort>((half)value)
                                               : (ushort)(as_type<uint>(kd_bf16(value)) >> 16);
}

#endif
