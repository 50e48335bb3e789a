/* The rates of AVX-512 with VNNI and BF16. */
#include "device/cpu/measure_avx512.h"

static void measure_int8(long rounds, float *sink)
{
    __m512i sums[MEASURE_CHAINS];
    __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(-2);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = _mm512_set1_epi32(i);
    for (long round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int i = 0; i < MEASURE_CHAINS; i++)
            sums[i] = _mm512_dpbusd_epi32(sums[i], left, right);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        *sink += (float)_mm512_reduce_add_epi32(sums[i]);
}

static void measure_bf16(long rounds, float *sink)
{
    __m512 sums[MEASURE_CHAINS];
    __m512bh left = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.01f), _mm512_set1_ps(0.02f));
    __m512bh right = _mm512_cvtne2ps_pbh(_mm512_set1_ps(-0.01f), _mm512_set1_ps(0.01f));
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (long round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int i = 0; i < MEASURE_CHAINS; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], left, right);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        *sink += _mm512_reduce_add_ps(sums[i]);
}

const struct measure_kernels cpu_measure_avx512 = {
    .arithmetic = {[ARITHMETIC_F32] = {measure_f32, 2.0 * VEC_LANES *MEASURE_CHAINS},
                   [ARITHMETIC_BF16] = {measure_bf16, 2.0 * 32 * MEASURE_CHAINS},
                   [ARITHMETIC_INT8] = {measure_int8, 2.0 * 64 * MEASURE_CHAINS}},
    .read = measure_read_512};
