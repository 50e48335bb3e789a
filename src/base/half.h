/* Conversions between f32 and the 16-bit floats, exact towards f32 and round-to-nearest-even back.
 */
#ifndef CSGL_BASE_HALF_H
#define CSGL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t bits = bits_from_f32(f);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet NaN */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1F, mantissa = h & 0x3FF;
    if (exponent == 0x1F)
        return f32_from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent != 0)
        return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* zero and subnormals: exact */
    return f32_from_bits(sign | bits_from_f32(magnitude));
}

static inline uint16_t f16_from_f32(float f)
{
    uint32_t bits = bits_from_f32(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude >= 0x7F800000)
        return (uint16_t)(sign | 0x7C00 | (magnitude > 0x7F800000 ? 0x200 : 0));
    if (magnitude >= 0x477FF000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) {
        /* Subnormal in f16: adding 0.5 aligns the mantissa and lets the FPU round. */
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_from_f32(shifted) - 0x3F000000));
    }
    uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

#endif
