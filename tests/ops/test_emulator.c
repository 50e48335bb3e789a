/* The emulator's checker: each of the bugs of emulator/bugs.metal is found, and named as what it
 * is with the line that it stands on. */
#include "device/gpu/driver.h"
#include "kernels/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 64 };

/* A thread that is not held up by a barrier reads what the others have yet to write. */
struct bug {
    const char *kernel, *report;
};

/* Runs the kernel on `n_groups` threadgroups of an emulator of its own; n_launches times, with
 * barriers between them or without. */
static enum status run_often(const char *name, uint32_t n_groups, int n_launches, bool has_barriers,
                             float *out, struct error *error)
{
    const struct gpu_driver *driver = &gpu_driver_emulator;
    struct gpu *gpu;
    struct gpu_memory *memory[2];
    const struct gpu_kernel *kernel;
    float in[N];
    for (int i = 0; i < N; i++)
        in[i] = (float)(i * 37 % N) / N;
    assert_int_equal(driver->open(0, &gpu, error), OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(driver->alloc(gpu, sizeof in, &memory[i], error), OK);
    assert_int_equal(driver->write(gpu, &(struct gpu_range){memory[0], 0}, in, sizeof in, error),
                     OK);
    assert_int_equal(driver->kernel(gpu, name, &kernel, error), OK);
    struct gpu_range buffers[] = {{memory[0], 0}, {memory[1], 0}};
    struct kd_no_args args = {0};
    struct gpu_grid grid = {{n_groups, 1, 1}, N, 0};
    for (int i = 0; i < n_launches; i++) {
        driver->dispatch(gpu, kernel, buffers, 2, &args, sizeof args, &grid);
        if (has_barriers)
            driver->barrier(gpu);
    }
    driver->commit(gpu);
    enum status status = driver->wait(gpu, error);
    struct error ignored;
    driver->read(gpu, &buffers[1], out, sizeof in, &ignored);
    for (int i = 0; i < 2; i++)
        driver->free(gpu, memory[i]);
    driver->close(gpu);
    return status;
}

static enum status run(const char *name, uint32_t n_groups, float *out, struct error *error)
{
    return run_often(name, n_groups, 1, false, out, error);
}

static void every_bug_is_found(void **test)
{
    (void)test;
    static const struct bug bugs[] = {
        {"missing_barrier", "reads threadgroup memory that nobody has written yet"},
        {"missing_barrier_before_reuse", "a read and a write of threadgroup memory"},
        {"lockstep_assumed", "reads threadgroup memory that nobody has written yet"},
        {"barrier_of_other_memory", "a read and a write of threadgroup memory"},
        {"reads_past_a_buffer", "reads byte 256 of a buffer of 256"},
        {"writes_past_an_array", "writes outside of its threadgroup arrays"},
        {"barriers_of_two_branches", "a barrier is reached while thread"},
        {"threads_end_before_a_barrier", "a barrier is reached by 60 of 64 threads, 4 have ended"},
        {"simd_function_of_some", "a simd function is reached by"},
        {"reads_what_nobody_wrote", "reads threadgroup memory that nobody has written yet"},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof bugs[0]; i++) {
        float out[N];
        struct error error;
        if (run(bugs[i].kernel, 1, out, &error) == OK)
            fail_msg("%s was not found", bugs[i].kernel);
        if (!strstr(error.message, bugs[i].report) || !strstr(error.message, "bugs.metal:") ||
            !strstr(error.message, bugs[i].kernel))
            fail_msg("%s: found as \"%s\", not as \"%s\"", bugs[i].kernel, error.message,
                     bugs[i].report);
    }
}

static void writes_of_two_threadgroups_are_found(void **test)
{
    (void)test;
    float out[N];
    struct error error;
    assert_int_equal(run("two_groups_write_one_place", 1, out, &error), OK);
    assert_int_not_equal(run("two_groups_write_one_place", 2, out, &error), OK);
    assert_non_null(strstr(error.message, "two writes of device memory"));
    assert_non_null(strstr(error.message, "of another threadgroup"));
}

static void launches_that_need_a_barrier_are_found(void **test)
{
    (void)test;
    float out[N];
    struct error error;
    assert_int_equal(run_often("none", 1, 3, true, out, &error), OK);
    assert_int_not_equal(run_often("none", 1, 3, false, out, &error), OK);
    assert_non_null(strstr(error.message, "two writes of device memory"));
}

static void a_right_kernel_passes(void **test)
{
    (void)test;
    float out[N];
    struct error error;
    if (run("none", 1, out, &error) != OK)
        fail_msg("%s", error.message);
    for (int i = 0; i < N; i++)
        assert_true(out[i] == (float)((N - 1 - i) * 37 % N) / N);
}

/* Runs the kernel with memory of the test's own in the place of buffer `which`. */
static enum status run_on_lent(const char *name, int which, size_t bytes, float *lent,
                               struct error *error)
{
    const struct gpu_driver *driver = &gpu_driver_emulator;
    struct gpu *gpu;
    struct gpu_memory *memory[2];
    const struct gpu_kernel *kernel;
    assert_int_equal(driver->open(0, &gpu, error), OK);
    assert_int_equal(driver->wrap(gpu, lent, bytes, &memory[which], error), OK);
    assert_int_equal(driver->alloc(gpu, N * sizeof(float), &memory[1 - which], error), OK);
    assert_int_equal(driver->kernel(gpu, name, &kernel, error), OK);
    struct gpu_range buffers[] = {{memory[0], 0}, {memory[1], 0}};
    struct kd_no_args args = {0};
    struct gpu_grid grid = {{1, 1, 1}, N, 0};
    driver->dispatch(gpu, kernel, buffers, 2, &args, sizeof args, &grid);
    driver->commit(gpu);
    enum status status = driver->wait(gpu, error);
    for (int i = 0; i < 2; i++)
        driver->free(gpu, memory[i]);
    driver->close(gpu);
    return status;
}

static void lent_memory_is_read_as_far_as_it_goes_and_never_written(void **test)
{
    (void)test;
    float lent[2 * N] = {0};
    struct error error;
    if (run_on_lent("none", 0, N * sizeof(float), lent, &error) != OK)
        fail_msg("%s", error.message);
    assert_int_not_equal(run_on_lent("reads_past_a_buffer", 0, N * sizeof(float), lent, &error),
                         OK);
    assert_non_null(strstr(error.message, "reads memory that is nobody's"));
    assert_int_not_equal(run_on_lent("none", 1, N * sizeof(float), lent, &error), OK);
    assert_non_null(strstr(error.message, "writes memory that kernels only read"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_kernel_passes),
        cmocka_unit_test(every_bug_is_found),
        cmocka_unit_test(writes_of_two_threadgroups_are_found),
        cmocka_unit_test(launches_that_need_a_barrier_are_found),
        cmocka_unit_test(lent_memory_is_read_as_far_as_it_goes_and_never_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
