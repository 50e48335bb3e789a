/* What --device may name. */
#include "device/device_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct cpu_options cpu = {1, CPU_ISA_SCALAR, ACTIVATIONS_FLOAT};

static void auto_always_opens_something(void **state)
{
    (void)state;
    struct device *device;
    struct error error;
    assert_int_equal(device_open(&device, "auto", &cpu, &error), OK);
    assert_non_null(device);
    device->table->close(device);
}

static void int8_activations_make_auto_the_cpu(void **state)
{
    (void)state;
    struct device *device;
    struct error error;
    struct cpu_options int8 = {1, cpu_isa_best(), ACTIVATIONS_INT8};
    if (int8.isa < CPU_ISA_INT8)
        skip();
    assert_int_equal(device_open(&device, "auto", &int8, &error), OK);
    assert_true(device_is_cpu(device));
    assert_int_equal(device_activations(device), ACTIVATIONS_INT8);
    device->table->close(device);
    assert_int_equal(device_open(&device, "cuda", &int8, &error), ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "int8 is the CPU's"));
}

static void what_is_no_device_is_refused_with_those_that_are(void **state)
{
    (void)state;
    static const char *const names[] = {"",       "gpu",        "auto:1",
                                        "cpu:0",  "cuda:",      "cuda:1024",
                                        "cuda:x", "cuda:00001", "a-name-that-is-far-too-long"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct device *device;
        struct error error;
        assert_int_equal(device_open(&device, names[i], &cpu, &error), ERROR_INVALID);
        assert_null(device);
        assert_non_null(strstr(error.message, "there are "));
        assert_non_null(strstr(error.message, "metal and emulator"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_always_opens_something),
        cmocka_unit_test(int8_activations_make_auto_the_cpu),
        cmocka_unit_test(what_is_no_device_is_refused_with_those_that_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
