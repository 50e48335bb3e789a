/* What the op tests share: random matrices in device memory, devices of every level, comparisons.
 */
#ifndef CSGL_TESTS_OPS_SUPPORT_H
#define CSGL_TESTS_OPS_SUPPORT_H

#include "device/cpu/cpu.h"
#include "device/gpu/gpu.h"
#include "device/ops.h"
#include "ops/mirror.h"
#include "test_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A repeatable stream of numbers (xorshift64*, Vigna 2016). */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545F4914F6CDD1Du;
}

/* Uniform in [-1, 1). */
static inline float random_float(uint64_t *state)
{
    return (float)((double)(next_random(state) >> 40) * 0x1p-23 - 1.0);
}

static inline int32_t random_below(uint64_t *state, int32_t n)
{
    return (int32_t)(next_random(state) % (uint64_t)n);
}

/* A matrix with memory of its own; ends with free_matrix. */
struct matrix {
    struct buffer buffer;
    struct tensor tensor;
};

/* `extra` more elements between rows, so that strides matter. Elements between rows and behind the
 * last are NaN for f32: whoever reads or writes them is found out. */
static inline struct matrix *new_matrix(struct device *device, enum dtype dtype, int32_t rows,
                                        int32_t cols, int32_t extra)
{
    struct matrix *m = calloc(1, sizeof *m);
    assert_non_null(m);
    size_t n = (size_t)rows * (size_t)(cols + extra) + 16;
    struct error error;
    assert_int_equal(device->table->buffer_alloc(device, n * 4, &m->buffer, &error), OK);
    if (dtype == DTYPE_F32)
        for (size_t i = 0; i < n; i++)
            ((float *)m->buffer.host)[i] = NAN;
    m->tensor = (struct tensor){&m->buffer, 0, dtype, rows, cols, cols + extra};
    return m;
}

static inline void free_matrix(struct device *device, struct matrix *m)
{
    device->table->buffer_free(device, &m->buffer);
    free(m);
}

static inline float *at(const struct matrix *m, int32_t row)
{
    return tensor_at(&m->tensor, row);
}

static inline int32_t *ints_at(const struct matrix *m, int32_t row)
{
    return tensor_at(&m->tensor, row);
}

static inline struct matrix *random_matrix(struct device *device, int32_t rows, int32_t cols,
                                           int32_t extra, uint64_t *state)
{
    struct matrix *m = new_matrix(device, DTYPE_F32, rows, cols, extra);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            at(m, r)[c] = random_float(state);
    return m;
}

static inline void copy_matrix(struct matrix *to, const struct matrix *from)
{
    assert_int_equal(to->buffer.bytes, from->buffer.bytes);
    memcpy(to->buffer.host, from->buffer.host, from->buffer.bytes);
}

/* Elements between rows and behind the last are untouched. */
static inline void check_borders(const struct matrix *m)
{
    const float *values = m->buffer.host;
    int32_t stride = m->tensor.stride;
    for (size_t i = 0; i < m->buffer.bytes / 4; i++)
        if (i >= (size_t)m->tensor.rows * (size_t)stride ||
            i % (size_t)stride >= (size_t)m->tensor.cols)
            assert_true(isnan(values[i]));
}

/* |a - b| <= tolerance * (|b| + floor) for all; says where not. */
static inline void check_close(const struct matrix *a, const struct matrix *b, double tolerance,
                               double floor, const char *what)
{
    for (int32_t r = 0; r < b->tensor.rows; r++)
        for (int32_t c = 0; c < b->tensor.cols; c++) {
            double x = (double)at(a, r)[c], y = (double)at(b, r)[c];
            if (!(fabs(x - y) <= tolerance * (fabs(y) + floor)))
                fail_msg("%s: [%d, %d] is %.9g, not %.9g", what, r, c, x, y);
        }
}

static inline struct device *open_device(enum cpu_isa isa, enum activations activations,
                                         int n_threads)
{
    struct device *device;
    struct error error;
    struct cpu_options options = {n_threads, isa, activations};
    if (cpu_device_open(&device, &options, &error) != OK)
        fail_msg("%s", error.message);
    return device;
}

/* The devices that this machine can test: each level of the CPU, then the GPU if there is one. */
static inline int n_test_devices(void)
{
    return (int)cpu_isa_best() + (test_gpu() ? 2 : 1);
}

static inline bool is_test_gpu(int i)
{
    return i > (int)cpu_isa_best();
}

static inline const char *test_device_name(int i)
{
    return is_test_gpu(i) ? test_gpu() : cpu_isa_name((enum cpu_isa)i);
}

static inline struct device *open_test_device(int i, enum activations activations, int n_threads)
{
    struct device *device;
    struct error error;
    if (!is_test_gpu(i))
        return open_device((enum cpu_isa)i, activations, n_threads);
    if (gpu_device_open(&device, test_gpu(), 0, activations, &error) != OK)
        fail_msg("%s", error.message);
    mirror_device(device);
    return device;
}

/* A GPU of silicon, for which no shape is too large. */
static inline bool has_real_gpu(void)
{
    return test_gpu() && strcmp(test_gpu(), "emulator") != 0;
}

/* Set-up and end of a group whose tests open a GPU of silicon again and again: as long as one is
 * open, its driver keeps what makes opening slow. */
static inline int hold_gpu(void **held)
{
    struct error error;
    *held = NULL;
    if (has_real_gpu() &&
        gpu_device_open((struct device **)held, test_gpu(), 0, ACTIVATIONS_AUTO, &error) != OK)
        fail_msg("%s", error.message);
    return 0;
}

static inline int let_gpu_go(void **held)
{
    struct device *device = *held;
    if (device)
        device->table->close(device);
    return 0;
}

/* An emulator looks at every access of every thread: it gets the small shapes alone. */
static inline bool is_slow(const struct device *device)
{
    return strcmp(device->name, "emulator") == 0;
}

#endif
