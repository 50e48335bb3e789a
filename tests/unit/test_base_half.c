/* The 16-bit floats: all 65536 values there and back, and rounding against arithmetic in double. */
#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The value that a float of `fraction` stored bits and smallest exponent `lowest` rounds x to, ties
 * to even; infinite from 2^(highest + 1) on. */
static double rounded(double x, int fraction, int lowest, int highest)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent = ilogb(x) < lowest ? lowest : ilogb(x);
    double unit = ldexp(1, exponent - fraction), y = rint(x / unit) * unit;
    return fabs(y) >= ldexp(1, highest + 1) ? copysign(INFINITY, x) : y;
}

static double value_of_f16(unsigned h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void every_f16_converts_exactly_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = f32_from_f16((uint16_t)h);
        if ((h & 0x7FFF) > 0x7C00) {
            assert_true(isnan(f));
            assert_true((f16_from_f32(f) & 0x7FFF) > 0x7C00);
            continue;
        }
        if ((h & 0x7FFF) == 0x7C00)
            assert_true(isinf(f) && !signbit(f) == !(h & 0x8000));
        else
            assert_true((double)f == value_of_f16(h) && !signbit(f) == !(h & 0x8000));
        assert_int_equal(f16_from_f32(f), h);
    }
}

static void every_bf16_converts_exactly_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = f32_from_bf16((uint16_t)h);
        assert_int_equal(bits_from_f32(f), h << 16);
        if (isnan(f))
            assert_true((bf16_from_f32(f) & 0x7FFF) > 0x7F80);
        else
            assert_int_equal(bf16_from_f32(f), h);
    }
}

static void check_rounding(uint32_t bits)
{
    float f = f32_from_bits(bits);
    if (isnan(f)) {
        assert_true(isnan(f32_from_f16(f16_from_f32(f))) && isnan(f32_from_bf16(bf16_from_f32(f))));
        return;
    }
    float half = f32_from_f16(f16_from_f32(f)), brain = f32_from_bf16(bf16_from_f32(f));
    if ((double)half != rounded((double)f, 10, -14, 15) || !signbit(half) != !signbit(f))
        fail_msg("f16 of %a is %a", (double)f, (double)half);
    if ((double)brain != rounded((double)f, 7, -126, 127) || !signbit(brain) != !signbit(f))
        fail_msg("bf16 of %a is %a", (double)f, (double)brain);
}

static void f32_rounds_to_nearest_even(void **state)
{
    (void)state;
    /* Around every representable value and the ties between them, and spread over all floats. */
    for (uint32_t h = 0; h < 65536; h++)
        for (uint32_t i = 0; i < 3; i++) {
            check_rounding((h << 16) + i - 1);
            check_rounding((h << 16) + 0x8000 + i - 1);
            check_rounding(bits_from_f32(f32_from_f16((uint16_t)h)) + i - 1);
            check_rounding(bits_from_f32(f32_from_f16((uint16_t)h)) + 0x1000 + i - 1);
        }
    uint32_t bits = 1;
    for (int i = 0; i < 300000; i++) {
        bits = bits * 1664525 + 1013904223;
        check_rounding(bits);
        check_rounding((bits & 0x807FFFFF) | (100 + (bits >> 8) % 50) << 23); /* f16's range */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_converts_exactly_and_back),
        cmocka_unit_test(every_bf16_converts_exactly_and_back),
        cmocka_unit_test(f32_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
