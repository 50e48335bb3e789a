/* Random numbers that a seed repeats: splitmix64. */
#ifndef CSGL_BENCH_RNG_H
#define CSGL_BENCH_RNG_H

#include <stdint.h>

static inline uint64_t rng_bits(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* In [0, 1). */
static inline double rng_uniform(uint64_t *state)
{
    return (double)(rng_bits(state) >> 11) * 0x1p-53;
}

/* In [low, high]; high >= low. */
static inline int32_t rng_int(uint64_t *state, int32_t low, int32_t high)
{
    return low + (int32_t)(rng_bits(state) % (uint64_t)((int64_t)high - low + 1));
}

#endif
