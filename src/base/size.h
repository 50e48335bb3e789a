/* Sizes multiply and add through these, so that hostile counts cannot wrap. */
#ifndef CSGL_BASE_SIZE_H
#define CSGL_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False if the result does not fit; `out` is then unspecified. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool u64_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool u64_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Rounds up to a multiple of `unit` (> 0). The caller knows that the sum fits. */
static inline size_t size_round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
