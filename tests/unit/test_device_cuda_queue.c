/* The queue of a CUDA GPU over a driver that writes down what it is told: which lists of dispatches
 * run as graphs, and that none runs as another one's. */
#include "device/gpu/cuda_api.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What was called: L launch (with the argument's value), [ and ] capture, I a graph made, G run and
 * D destroyed, E an event. */
static char calls[1 << 16];
static int launch_result, instantiate_result;
static bool was_early;

static void note(const char *text)
{
    strncat(calls, text, sizeof calls - strlen(calls) - 1);
}

static int launch(const struct cuda_launch *how, cuda_handle function, void **parameters,
                  void **extra)
{
    char text[32];
    int value;
    (void)function;
    (void)extra;
    memcpy(&value, parameters[1], sizeof value);
    snprintf(text, sizeof text, "L%d", value);
    note(text);
    was_early = how->n_attributes == 1;
    return launch_result;
}

static int begin_capture(cuda_handle stream, int mode)
{
    (void)stream;
    (void)mode;
    note("[");
    return CUDA_OK;
}

static int end_capture(cuda_handle stream, cuda_handle *graph)
{
    (void)stream;
    *graph = calls;
    note("]");
    return CUDA_OK;
}

static int instantiate(cuda_handle *graph, cuda_handle captured, unsigned long long flags)
{
    (void)flags;
    *graph = captured;
    note("I");
    return instantiate_result;
}

static int run_graph(cuda_handle graph, cuda_handle stream)
{
    (void)graph;
    (void)stream;
    note("G");
    return CUDA_OK;
}

static int destroy_graph(cuda_handle graph)
{
    (void)graph;
    note("D");
    return CUDA_OK;
}

static int destroy_captured(cuda_handle graph)
{
    (void)graph;
    return CUDA_OK;
}

static int create_event(cuda_handle *event, unsigned flags)
{
    (void)flags;
    *event = calls;
    return CUDA_OK;
}

static int destroy_event(cuda_handle event)
{
    (void)event;
    return CUDA_OK;
}

static int record_event(cuda_handle event, cuda_handle stream, unsigned flags)
{
    (void)event;
    (void)stream;
    note(flags == CUDA_EVENT_RECORD_EXTERNAL ? "E" : "e");
    return CUDA_OK;
}

static struct gpu *open_gpu(void)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);
    assert_non_null(gpu);
    gpu->cuda.cuLaunchKernelEx = launch;
    gpu->cuda.cuStreamBeginCapture_v2 = begin_capture;
    gpu->cuda.cuStreamEndCapture = end_capture;
    gpu->cuda.cuGraphInstantiateWithFlags = instantiate;
    gpu->cuda.cuGraphLaunch = run_graph;
    gpu->cuda.cuGraphExecDestroy = destroy_graph;
    gpu->cuda.cuGraphDestroy = destroy_captured;
    gpu->cuda.cuEventCreate = create_event;
    gpu->cuda.cuEventDestroy_v2 = destroy_event;
    gpu->cuda.cuEventRecordWithFlags = record_event;
    launch_result = instantiate_result = CUDA_OK;
    calls[0] = '\0';
    return gpu;
}

static void close_gpu(struct gpu *gpu)
{
    cuda_queue_done(gpu);
    free(gpu);
}

static void dispatch(struct gpu *gpu, int value)
{
    static const struct gpu_memory memory = {4096, 64};
    const struct gpu_kernel kernel = {.function = gpu, .waits = true};
    const struct gpu_range range = {&memory, 16};
    const struct gpu_grid grid = {.groups = {1, 1, 1}, .n_threads = 32};
    cuda_dispatch(gpu, &kernel, &range, 1, &value, sizeof value, &grid);
}

/* A step of two dispatches; what the driver was told. */
static const char *step(struct gpu *gpu, int first, int second)
{
    calls[0] = '\0';
    dispatch(gpu, first);
    dispatch(gpu, second);
    assert_string_equal(calls, ""); /* nothing before it is committed */
    cuda_commit(gpu);
    return calls;
}

static void a_step_runs_as_a_graph_from_the_second_time_on(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    assert_string_equal(step(gpu, 1, 2), "L1L2");
    assert_true(was_early);
    assert_string_equal(step(gpu, 1, 2), "[L1L2]IG");
    assert_string_equal(step(gpu, 1, 2), "G");
    close_gpu(gpu);
}

static void a_step_that_differs_in_an_argument_is_another_one(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    step(gpu, 1, 2);
    step(gpu, 1, 2);
    assert_string_equal(step(gpu, 1, 3), "L1L3");
    assert_string_equal(step(gpu, 2, 1), "L2L1");
    assert_string_equal(step(gpu, 1, 2), "G");
    assert_string_equal(step(gpu, 1, 3), "[L1L3]IG");
    close_gpu(gpu);
}

static void a_long_step_begins_before_it_is_committed(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    for (int turn = 0; turn < 3; turn++) {
        calls[0] = '\0';
        for (int i = 0; i < 16; i++)
            dispatch(gpu, i);
        assert_true(turn < 2 ? strncmp(calls + turn, "L0L1", 4) == 0 : strcmp(calls, "G") == 0);
        calls[0] = '\0';
        for (int i = 0; i < 63; i++)
            dispatch(gpu, i);
        assert_string_equal(calls, "");
        cuda_commit(gpu);
        assert_true(calls[0] != '\0');
    }
    close_gpu(gpu);
}

static void marks_are_in_a_graph_at_once(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    for (int i = 0; i < 2; i++) {
        calls[0] = '\0';
        cuda_mark(gpu, 0);
        dispatch(gpu, 7);
        cuda_mark(gpu, 1);
        cuda_commit(gpu);
        assert_string_equal(calls, i == 0 ? "[EL7E]IG" : "G");
    }
    close_gpu(gpu);
}

static void without_memory_for_a_graph_a_step_runs_without(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    step(gpu, 1, 2);
    instantiate_result = CUDA_OUT_OF_MEMORY;
    assert_string_equal(step(gpu, 1, 2), "[L1L2]IL1L2");
    assert_int_equal(gpu->fault, CUDA_OK);
    close_gpu(gpu);
}

static void the_first_fault_stays_and_nothing_runs_after_it(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    launch_result = 700; /* CUDA_ERROR_ILLEGAL_ADDRESS */
    step(gpu, 1, 2);
    assert_int_equal(gpu->fault, 700);
    assert_string_equal(gpu->fault_call, "cuLaunchKernelEx");
    launch_result = CUDA_OK;
    assert_string_equal(step(gpu, 1, 2), "");
    assert_int_equal(gpu->fault, 700);
    close_gpu(gpu);
}

static void of_too_many_lists_the_one_not_used_for_longest_goes(void **state)
{
    (void)state;
    struct gpu *gpu = open_gpu();
    step(gpu, -1, -1);
    step(gpu, -1, -1);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        step(gpu, i, i);
        if (i == CUDA_MAX_GRAPHS / 2)
            assert_string_equal(step(gpu, -1, -1), "G");
    }
    assert_string_equal(step(gpu, -1, -1), "G");
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        step(gpu, -2, i);
    assert_string_equal(step(gpu, -1, -1), "L-1L-1");
    close_gpu(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_runs_as_a_graph_from_the_second_time_on),
        cmocka_unit_test(a_step_that_differs_in_an_argument_is_another_one),
        cmocka_unit_test(a_long_step_begins_before_it_is_committed),
        cmocka_unit_test(marks_are_in_a_graph_at_once),
        cmocka_unit_test(without_memory_for_a_graph_a_step_runs_without),
        cmocka_unit_test(the_first_fault_stays_and_nothing_runs_after_it),
        cmocka_unit_test(of_too_many_lists_the_one_not_used_for_longest_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
