/* The rates of a NEON level, compiled once for each like linear_int8_neon.h. */
#ifndef CSGL_DEVICE_CPU_MEASURE_NEON_H
#define CSGL_DEVICE_CPU_MEASURE_NEON_H

#include "device/cpu/measure.h"
#include "device/cpu/vec_neon.h"

#include "device/cpu/measure_vec.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { INT8_PRODUCTS = 32 }; /* an instruction: 2 x 8 with 8 x 2 */
static inline int32x4_t add_products(int32x4_t sum, int8x16_t left, int8x16_t right)
{
    return vmmlaq_s32(sum, left, right);
}
#elif defined(__ARM_FEATURE_DOTPROD)
enum { INT8_PRODUCTS = 16 };
static inline int32x4_t add_products(int32x4_t sum, int8x16_t left, int8x16_t right)
{
    return vdotq_s32(sum, left, right);
}
#else
enum { INT8_PRODUCTS = 16 }; /* two halves, added in pairs to i16, then to i32 */
static inline int32x4_t add_products(int32x4_t sum, int8x16_t left, int8x16_t right)
{
    int16x8_t products = vmull_s8(vget_low_s8(left), vget_low_s8(right));
    return vpadalq_s16(sum, vmlal_s8(products, vget_high_s8(left), vget_high_s8(right)));
}
#endif

static void measure_int8(long rounds, float *sink)
{
    int32x4_t sums[MEASURE_CHAINS];
    int8x16_t left = vdupq_n_s8(3), right = vdupq_n_s8(-2);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = vdupq_n_s32(i);
    for (long round = 0; round < rounds; round++)
#pragma GCC unroll 20
        for (int i = 0; i < MEASURE_CHAINS; i++) {
            __asm__ volatile("" : "+w"(left)); /* or the products leave the loop */
            sums[i] = add_products(sums[i], left, right);
        }
    for (int i = 0; i < MEASURE_CHAINS; i++)
        *sink += (float)vgetq_lane_s32(sums[i], 0);
}

static uint64_t measure_read(const uint64_t *words, size_t n)
{
    uint64x2_t sums[4] = {vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u64(0)};
    for (size_t i = 0; i < n; i += 8)
        for (size_t k = 0; k < 4; k++)
            sums[k] = veorq_u64(sums[k], vld1q_u64(words + i + 2 * k));
    uint64x2_t sum = veorq_u64(veorq_u64(sums[0], sums[1]), veorq_u64(sums[2], sums[3]));
    return vgetq_lane_u64(sum, 0) ^ vgetq_lane_u64(sum, 1);
}

#define MEASURE_KERNELS                                                                            \
    {                                                                                              \
        .arithmetic = {[ARITHMETIC_F32] = {measure_f32, 2.0 * VEC_LANES * MEASURE_CHAINS},         \
                       [ARITHMETIC_INT8] = {measure_int8, 2.0 * INT8_PRODUCTS * MEASURE_CHAINS}},  \
        .read = measure_read                                                                       \
    }

#endif
