/* Linears with random weights, every device against the scalar twin. */
#ifndef CSGL_TESTS_LINEAR_CASE_H
#define CSGL_TESTS_LINEAR_CASE_H

#include "ops/ops_support.h"

#include "base/half.h"

/* --- weights from random bytes ---------------------------------------------------------------- */

static inline void put_f16(uint8_t *to, float value)
{
    uint16_t bits = f16_from_f32(value);
    memcpy(to, &bits, sizeof bits);
}

/* Random codes with scales that keep weights near 1. */
static inline void fill_block(enum weight_encoding encoding, uint8_t *block, uint64_t *state)
{
    float scale = 0.05f + 0.05f * random_float(state);
    switch (encoding) {
    case WEIGHT_F32: {
        float value = random_float(state);
        memcpy(block, &value, sizeof value);
        break;
    }
    case WEIGHT_F16:
        put_f16(block, random_float(state));
        break;
    case WEIGHT_BF16: {
        uint16_t bits = bf16_from_f32(random_float(state));
        memcpy(block, &bits, sizeof bits);
        break;
    }
    case WEIGHT_Q4_1:
    case WEIGHT_Q5_1:
        put_f16(block, scale);
        put_f16(block + 2, random_float(state));
        break;
    case WEIGHT_Q2_K:
        put_f16(block + 80, scale / 4);
        put_f16(block + 82, scale / 4);
        break;
    case WEIGHT_Q3_K:
        put_f16(block + 108, random_float(state) / 64);
        break;
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        put_f16(block, scale / 32);
        put_f16(block + 2, scale / 8);
        break;
    case WEIGHT_Q6_K:
        put_f16(block + 208, random_float(state) / 1024);
        break;
    case WEIGHT_MXFP4: /* 2^-3 .. 2^0, and now and then a scale below the normal f32 */
        block[0] = block[1] % 32 ? 124 + (block[0] & 3) : block[0] & 3;
        break;
    case WEIGHT_Q8_0:
    case WEIGHT_IQ4_NL:
        put_f16(block, random_float(state) / 64);
        break;
    default:
        put_f16(block, random_float(state) / 4);
        break;
    }
}

static inline struct weight new_weight(enum weight_encoding encoding, int64_t rows, int64_t cols,
                                       uint64_t *state)
{
    struct weight w = {.encoding = encoding, .rows = rows, .cols = cols};
    const struct weight_encoding_info *info = weight_info(encoding);
    size_t bytes = (size_t)weight_bytes(&w);
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(next_random(state) >> 33);
    for (size_t at = 0; at < bytes; at += (size_t)info->block_bytes)
        fill_block(encoding, data + at, state);
    w.data = data;
    return w;
}

/* --- one comparison --------------------------------------------------------------------------- */

enum { MAX_PARTS = 3 };

/* A linear to be tried, with what the twin makes of it. */
struct linear_case {
    struct weight_slice slices[MAX_PARTS];
    int n_parts;
    int32_t rows, cols, outputs;
    struct matrix *x, *expected, *bound;
    enum activations activations;
};

static inline struct linear *load(struct device *device, const struct linear_case *c)
{
    struct linear *linear;
    struct error error;
    if (device->table->linear_load(device, c->slices, c->n_parts, c->rows, &linear, &error) != OK)
        fail_msg("%s", error.message);
    return linear;
}

/* bound[t][n] = sum |x w| + |bias|. */
static inline void fill_bound(struct linear_case *c)
{
    int32_t n = 0;
    for (int p = 0; p < c->n_parts; p++) {
        const struct weight_slice *slice = &c->slices[p];
        float *values = malloc((size_t)slice->weight.cols * sizeof *values);
        for (int64_t row = 0; row < slice->rows; row++, n++) {
            weight_row_dequantize(&slice->weight, slice->row + row, values);
            for (int32_t t = 0; t < c->rows; t++) {
                double sum = slice->bias ? fabs((double)slice->bias[row]) : 0;
                for (int32_t k = 0; k < c->cols; k++)
                    sum += fabs((double)at(c->x, t)[k] * (double)values[slice->col + k]);
                at(c->bound, t)[n] = (float)sum;
            }
        }
        free(values);
    }
}

static inline void run(struct device *device, const struct linear *linear, struct matrix *x,
                       struct matrix *out)
{
    struct linear_args args = {.linear = linear, .x = x->tensor, .out = out->tensor};
    device_linear(device, &args);
}

static inline void check_result(const struct linear_case *c, const struct matrix *out,
                                const char *device, int n_threads, double tolerance)
{
    for (int32_t t = 0; t < c->rows; t++)
        for (int32_t n = 0; n < c->outputs; n++) {
            double y = (double)at(out, t)[n], z = (double)at(c->expected, t)[n];
            if (!(fabs(y - z) <= tolerance * (double)at(c->bound, t)[n] + 1e-30))
                fail_msg("%s, %d threads, %s, %s %d x %d of %d parts: [%d of %d, %d] is %.9g, "
                         "not %.9g (bound %.3g)",
                         device, n_threads, c->activations == ACTIVATIONS_INT8 ? "int8" : "float",
                         weight_info(c->slices[0].weight.encoding)->name, c->outputs, c->cols,
                         c->n_parts, t, c->rows, n, y, z, (double)at(c->bound, t)[n]);
        }
    check_borders(out);
}

/* The emulator looks at every access: small cases are its share. */
static inline bool is_for_device(const struct linear_case *c, int device)
{
    return !is_test_gpu(device) || has_real_gpu() ||
           (int64_t)c->rows * c->outputs * c->cols < 1 << 16;
}

/* In int8 mode a GPU rounds inputs to 16 bits where weights are floats, also those of 4 bits, and
 * of more rows than its kernels for codes take what the codes stand for; the twin rounds them to
 * bf16 for bf16 weights. */
static inline double tolerance_on(const struct linear_case *c, int device)
{
    bool is_rounded = is_test_gpu(device) && has_real_gpu() && c->rows > 16;
    for (int i = 0; i < c->n_parts; i++) {
        const struct weight *w = &c->slices[i].weight;
        is_rounded |=
            weight_is_float(w) || w->encoding == WEIGHT_E4M3 ||
            (has_real_gpu() && (w->encoding == WEIGHT_E2M1 || w->encoding == WEIGHT_MXFP4));
    }
    return is_test_gpu(device) && c->activations == ACTIVATIONS_INT8 && is_rounded ? 0x1p-8 : 1e-5;
}

/* On device d in a mode, within `tolerance` of the twin's. */
static inline void compare_device(const struct linear_case *c, struct device *twin, int d,
                                  enum activations mode, int n_threads, double tolerance)
{
    struct device *device = open_test_device(d, mode, n_threads);
    struct matrix *out = new_matrix(twin, DTYPE_F32, c->rows, c->outputs, 5);
    struct linear *linear = load(device, c);
    mirror_lend(device, &c->x->buffer);
    mirror_lend(device, &out->buffer);
    run(device, linear, c->x, out);
    mirror_give_back(device, &c->x->buffer);
    mirror_give_back(device, &out->buffer);
    check_result(c, out, test_device_name(d), n_threads, tolerance);
    device->table->linear_free(device, linear);
    free_matrix(twin, out);
    device->table->close(device);
}

static inline void compare_devices(struct linear_case *c)
{
    struct device *twin = open_device(CPU_ISA_SCALAR, c->activations, 2);
    struct linear *linear = load(twin, c);
    run(twin, linear, c->x, c->expected);
    twin->table->linear_free(twin, linear);
    fill_bound(c);
    for (int d = CPU_ISA_VECTOR; d < n_test_devices(); d++)
        for (int n_threads = 1; n_threads <= (is_test_gpu(d) ? 1 : 3); n_threads++) {
            if (!is_for_device(c, d))
                continue;
            compare_device(c, twin, d, c->activations, n_threads, tolerance_on(c, d));
            if (is_test_gpu(d) && c->activations == ACTIVATIONS_FLOAT) /* AUTO may round to bf16 */
                compare_device(c, twin, d, ACTIVATIONS_AUTO, n_threads, 0x1p-8);
        }
    twin->table->close(twin);
}

/* The weights' rows but `around` at each end, and their `cols` columns in the middle, as parts of
 * one linear; frees the weights. */
static inline void try_weights(const struct weight *weights, int n_parts, int32_t around,
                               int32_t cols, int32_t rows, bool has_bias, uint64_t *state)
{
    struct device *owner = open_device(CPU_ISA_SCALAR, ACTIVATIONS_FLOAT, 1);
    struct linear_case c = {.n_parts = n_parts, .rows = rows, .cols = cols};
    float *biases[MAX_PARTS] = {0};
    for (int i = 0; i < n_parts; i++) {
        int32_t outputs = (int32_t)weights[i].rows - 2 * around;
        c.outputs += outputs;
        c.slices[i] = (struct weight_slice){.row = around,
                                            .rows = outputs,
                                            .col = ((int32_t)weights[i].cols - cols) / 2,
                                            .cols = cols,
                                            .weight = weights[i]};
        if (has_bias) {
            biases[i] = malloc((size_t)outputs * sizeof(float));
            for (int32_t n = 0; n < outputs; n++)
                biases[i][n] = random_float(state);
            c.slices[i].bias = biases[i];
        }
    }
    /* Rows that lie on 16 bytes, which some kernels need, and rows that do not. */
    c.x = random_matrix(owner, rows, cols, rows % 2 ? 4 : 3, state);
    if (rows > 2) /* a whole row, and a group of another, of zeros */
        memset(at(c.x, 1), 0, (size_t)cols * sizeof(float));
    for (int32_t k = 0; k < 32 && k < cols; k++)
        at(c.x, rows - 1)[k] = 0;
    c.expected = new_matrix(owner, DTYPE_F32, rows, c.outputs, 0);
    c.bound = new_matrix(owner, DTYPE_F32, rows, c.outputs, 0);
    for (int mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
        c.activations = (enum activations)mode;
        compare_devices(&c);
    }
    for (int i = 0; i < n_parts; i++) {
        free((void *)(uintptr_t)c.slices[i].weight.data);
        free(biases[i]);
    }
    free_matrix(owner, c.x);
    free_matrix(owner, c.expected);
    free_matrix(owner, c.bound);
    owner->table->close(owner);
}

/* --- the twin itself -------------------------------------------------------------------------- */

/* Row n's sum: weights as the decoder gives them, activations quantized as ops.h says. */
static inline double expected_sum(const struct weight *w, int64_t n, const float *x, bool is_int8)
{
    float values[1024]; /* the widest weight it is asked for */
    double sum = 0;
    weight_row_dequantize(w, n, values);
    for (int32_t k = 0; k < w->cols; k += 32) {
        float max = 0;
        for (int i = 0; i < 32; i++)
            max = fmaxf(max, fabsf(x[k + i]));
        for (int i = 0; i < 32; i++) {
            double value = (double)x[k + i];
            if (is_int8)
                value = (double)(max / 127) * (double)rintf(x[k + i] * (127 / max));
            sum += value * (double)values[k + i];
        }
    }
    return sum;
}

/* The twin's results of a weight of 512 columns in both modes are the written-out sums. */
static inline void check_twin(const struct weight *w, uint64_t *state)
{
    enum { ROWS = 18, COLS = 512 };
    assert_int_equal(w->cols, COLS);
    for (int mode = ACTIVATIONS_FLOAT; mode <= ACTIVATIONS_INT8; mode++) {
        struct device *twin = open_device(CPU_ISA_SCALAR, (enum activations)mode, 1);
        struct linear_case c = {
            .n_parts = 1, .rows = ROWS, .slices = {{.weight = *w, .rows = w->rows, .cols = COLS}}};
        struct linear *linear = load(twin, &c);
        struct matrix *x = random_matrix(twin, ROWS, COLS, 0, state);
        struct matrix *out = new_matrix(twin, DTYPE_F32, ROWS, (int32_t)w->rows, 0);
        run(twin, linear, x, out);
        for (int32_t t = 0; t < ROWS; t++)
            for (int64_t n = 0; n < w->rows; n++) {
                double y = expected_sum(w, n, at(x, t), mode == ACTIVATIONS_INT8);
                assert_true(fabs(y - (double)at(out, t)[n]) <= 1e-5 * (fabs(y) + 10));
            }
        free_matrix(twin, x);
        free_matrix(twin, out);
        twin->table->linear_free(twin, linear);
        twin->table->close(twin);
    }
}

/* A value that is not finite, in column 40 of one of 20 rows, makes that row's results not finite,
 * and no others, at every level of the processor. The weight has 16 rows. */
static inline void check_broken_row(const struct weight *w, uint64_t *state)
{
    enum { ROWS = 20, OUTPUTS = 16, BROKEN_ROW = 3 };
    static const float broken[] = {NAN, INFINITY, -INFINITY};
    int32_t cols = (int32_t)w->cols;
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++)
        for (int i = 0; i < 3; i++) {
            struct device *device = open_device(isa, ACTIVATIONS_INT8, 1);
            struct linear_case c = {.n_parts = 1,
                                    .rows = ROWS,
                                    .slices = {{.weight = *w, .rows = OUTPUTS, .cols = cols}}};
            struct linear *linear = load(device, &c);
            struct matrix *x = random_matrix(device, ROWS, cols, 0, state);
            struct matrix *out = new_matrix(device, DTYPE_F32, ROWS, OUTPUTS, 0);
            at(x, BROKEN_ROW)[40] = broken[i];
            run(device, linear, x, out);
            for (int32_t t = 0; t < ROWS; t++)
                for (int32_t n = 0; n < OUTPUTS; n++)
                    assert_int_equal(isfinite(at(out, t)[n]) != 0, t != BROKEN_ROW);
            free_matrix(device, x);
            free_matrix(device, out);
            device->table->linear_free(device, linear);
            device->table->close(device);
        }
}

#endif
