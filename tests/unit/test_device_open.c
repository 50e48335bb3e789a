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

/* On the CPU, on the GPU that auto finds and on the emulator, where there are such. */
static void a_device_says_how_it_computes(void **state)
{
    static const char *const devices[] = {"cpu", "auto", "emulator"};
    static const struct {
        enum activations asked;
        const char *name;
    } modes[] = {{ACTIVATIONS_FLOAT, "float"}, {ACTIVATIONS_INT8, "int8"}};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < 2; m++) {
            struct device *device;
            struct cpu_options options = {1, cpu_isa_best(), modes[m].asked};
            if (device_open(&device, devices[i], &options, NULL) != OK) {
                assert_string_equal(devices[i], "emulator");
                continue;
            }
            assert_int_equal(device_activations(device), modes[m].asked);
            assert_string_equal(device_activations_name(device), modes[m].name);
            device->table->close(device);
        }
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
        cmocka_unit_test(a_device_says_how_it_computes),
        cmocka_unit_test(what_is_no_device_is_refused_with_those_that_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
