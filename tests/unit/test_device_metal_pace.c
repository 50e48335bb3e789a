/* How long the command buffers for Metal get. */
#include "device/gpu/metal_pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void quick_dispatches_fill_ever_longer_buffers(void **state)
{
    (void)state;
    int n = METAL_FIRST_DISPATCHES;
    for (int i = 0; i < 10; i++) {
        int next = metal_pace(n, n, n * 1e-6);
        assert_true(next >= n && next <= 2 * n);
        n = next;
    }
    assert_int_equal(n, METAL_MAX_DISPATCHES);
}

static void a_buffer_that_took_too_long_is_cut_at_once(void **state)
{
    (void)state;
    assert_int_equal(metal_pace(1024, 1024, 1.024), 50);
    assert_int_equal(metal_pace(64, 10, 0.5), 1);
    assert_int_equal(metal_pace(64, 1, 3.0), 1);
}

static void no_measured_time_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(metal_pace(64, 64, 0.0), 64);
    assert_int_equal(metal_pace(64, 64, -1.0), 64);
    assert_int_equal(metal_pace(64, 0, 1.0), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quick_dispatches_fill_ever_longer_buffers),
        cmocka_unit_test(a_buffer_that_took_too_long_is_cut_at_once),
        cmocka_unit_test(no_measured_time_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
