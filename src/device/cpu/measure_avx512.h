/* Rates of AVX-512 that measure_amx.c shares. */
#ifndef CSGL_DEVICE_CPU_MEASURE_AVX512_H
#define CSGL_DEVICE_CPU_MEASURE_AVX512_H

#include "device/cpu/measure.h"
#include "device/cpu/vec_avx512.h"

#include "device/cpu/measure_vec.h"

static inline uint64_t measure_read_512(const uint64_t *words, size_t n)
{
    __m512i sums[4] = {0};
    for (size_t i = 0; i < n; i += 32)
        for (size_t k = 0; k < 4; k++)
            sums[k] = _mm512_xor_si512(sums[k], _mm512_load_si512(words + i + 8 * k));
    __m512i sum =
        _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    return (uint64_t)_mm512_reduce_add_epi64(sum);
}

#endif
