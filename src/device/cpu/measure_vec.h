/* The f32 rate with the vectors of a vec_*.h, included first. */
#ifndef CSGL_DEVICE_CPU_MEASURE_VEC_H
#define CSGL_DEVICE_CPU_MEASURE_VEC_H

/* Chains that hide a multiply-add's latency of four to five cycles: on two units, and on the four
 * that processors with short vectors have. */
enum { MEASURE_CHAINS = VEC_LANES == 4 ? 20 : 12 };

static void measure_f32(long rounds, float *sink)
{
    vec sums[MEASURE_CHAINS], factor = vec_set(0.9999f), term = vec_set(1e-4f);
    for (int i = 0; i < MEASURE_CHAINS; i++)
        sums[i] = vec_set((float)i);
    for (long round = 0; round < rounds; round++)
#pragma GCC unroll 20
        for (int i = 0; i < MEASURE_CHAINS; i++)
            sums[i] = vec_fma(sums[i], factor, term);
    float values[VEC_LANES];
    for (int i = 0; i < MEASURE_CHAINS; i++) {
        vec_store(values, sums[i]);
        *sink += values[0];
    }
}

#endif
