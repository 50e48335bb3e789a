/* The rates of AVX2. */
#include "device/cpu/measure.h"
#include "device/cpu/vec_avx2.h"

#include "device/cpu/measure_vec.h"

/* u8 x s8 in pairs, then pairs of pairs, then the sum: three instructions for 32 products. */
static void measure_int8(long rounds, float *sink)
{
    __m256i sums[MEASURE_CHAINS], ones = _mm256_set1_epi16(1);
    __m256i left = _mm256_set1_epi8(3), right = _mm256_set1_epi8(-2);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = _mm256_set1_epi32(i);
    for (long round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int i = 0; i < MEASURE_CHAINS; i++) {
            __asm__ volatile("" : "+x"(left)); /* or the products leave the loop */
            __m256i pairs = _mm256_maddubs_epi16(left, right);
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
        }
    for (int i = 0; i < MEASURE_CHAINS; i++)
        *sink += (float)_mm256_extract_epi32(sums[i], 0);
}

static uint64_t measure_read(const uint64_t *words, size_t n)
{
    __m256i sums[4] = {0};
    for (size_t i = 0; i < n; i += 16)
        for (size_t k = 0; k < 4; k++)
            sums[k] = _mm256_xor_si256(
                sums[k], _mm256_load_si256((const __m256i *)(const void *)(words + i + 4 * k)));
    __m256i sum =
        _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
    return (uint64_t)_mm256_extract_epi64(sum, 0);
}

const struct measure_kernels cpu_measure_avx2 = {
    .arithmetic = {[ARITHMETIC_F32] = {measure_f32, 2.0 * VEC_LANES *MEASURE_CHAINS},
                   [ARITHMETIC_INT8] = {measure_int8, 2.0 * 32 * MEASURE_CHAINS}},
    .read = measure_read};
