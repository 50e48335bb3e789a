/* Norms and activations with linears behind them, queued together as a model does: a GPU may make
 * both in one kernel, and a second linear may read what was prepared for the first. */
#include "ops/linear_case.h"

enum { OUTPUTS = 40, EXTRA = 4 };

/* The same rows in a device's memory and in the twin's. */
struct pair {
    struct matrix *twin;
    struct buffer buffer;
    struct tensor tensor;
};

static struct pair new_pair(struct device *twin, struct device *device, int32_t rows, int32_t cols,
                            uint64_t *state)
{
    struct error error;
    struct pair p = {.twin = random_matrix(twin, rows, cols, EXTRA, state)};
    size_t bytes = p.twin->buffer.bytes;
    assert_int_equal(device->table->buffer_alloc(device, bytes, &p.buffer, &error), OK);
    assert_int_equal(
        device->table->buffer_write(device, &p.buffer, 0, p.twin->buffer.host, bytes, &error), OK);
    p.tensor = p.twin->tensor;
    return p;
}

static void free_pair(struct device *twin, struct device *device, struct pair *p)
{
    free_matrix(twin, p->twin);
    device->table->buffer_free(device, &p->buffer);
}

static struct matrix *read_back(struct device *twin, struct device *device, const struct pair *p)
{
    struct error error;
    struct matrix *m = new_matrix(twin, DTYPE_F32, p->tensor.rows, p->tensor.cols, EXTRA);
    assert_int_equal(device->table->buffer_read(device, &p->buffer, 0, m->buffer.host,
                                                m->buffer.bytes, &error),
                     OK);
    check_borders(m);
    return m;
}

enum { X, RESIDUAL, WEIGHT, GATE_UP, Y, KEPT, A, B, C, D, N_PAIRS };

/* Y is a norm of X, then an activation of GATE_UP; A and B are linears over the first, C and D over
 * the second. With `reads_between` each is looked up before its second linear. */
static void queue(struct device *device, struct tensor *t, const struct linear *linear,
                  const struct linear *other, const struct tensor *ids, bool has_residual,
                  bool reads_between)
{
    struct rms_norm_args norm = {
        .x = t[X], .weight = t[WEIGHT], .out = t[Y], .eps = 1e-6f, .plus_one = !has_residual};
    if (has_residual)
        norm.residual = t[RESIDUAL];
    struct gather_args kept = {t[Y], *ids, t[KEPT]};
    device_rms_norm(device, &norm);
    device_linear(device, &(struct linear_args){.linear = linear, .x = t[Y], .out = t[A]});
    if (reads_between)
        device_gather(device, &kept);
    device_linear(device, &(struct linear_args){.linear = other, .x = t[Y], .out = t[B]});
    if (!reads_between)
        device_gather(device, &kept);
    device_silu_mul(device, &(struct silu_mul_args){t[GATE_UP], t[Y]});
    device_linear(device, &(struct linear_args){.linear = linear, .x = t[Y], .out = t[C]});
    if (reads_between)
        device_gather(device, &(struct gather_args){t[X], *ids, t[X]});
    device_linear(device, &(struct linear_args){.linear = other, .x = t[Y], .out = t[D]});
}

struct behind_case {
    int32_t rows, cols;
    enum weight_encoding encoding, other;
};

static void check_linear(const struct behind_case *c, const struct weight *w, struct device *twin,
                         struct device *device, const struct matrix *x, const struct pair *out,
                         const char *name, double tolerance)
{
    struct linear_case sums = {.n_parts = 1,
                               .rows = c->rows,
                               .cols = c->cols,
                               .outputs = OUTPUTS,
                               .x = (struct matrix *)(uintptr_t)x,
                               .expected = out->twin};
    sums.slices[0] = (struct weight_slice){.weight = *w, .rows = OUTPUTS, .cols = c->cols};
    sums.bound = new_matrix(twin, DTYPE_F32, c->rows, OUTPUTS, 0);
    fill_bound(&sums);
    struct matrix *y = read_back(twin, device, out);
    check_result(&sums, y, name, 1, tolerance);
    free_matrix(twin, y);
    free_matrix(twin, sums.bound);
}

static void check_case(const struct behind_case *c, int d, enum activations mode, bool has_residual,
                       bool reads_between, uint64_t *state)
{
    struct error error;
    enum activations exact = mode == ACTIVATIONS_INT8 ? mode : ACTIVATIONS_FLOAT;
    struct device *twin = open_device(CPU_ISA_SCALAR, exact, 1), *device;
    if (is_test_gpu(d)) { /* not mirrored: what is queued stays queued */
        if (gpu_device_open(&device, test_gpu(), 0, mode, &error) != OK)
            fail_msg("%s", error.message);
    } else
        device = open_device((enum cpu_isa)d, mode, 2);
    struct weight weights[2] = {new_weight(c->encoding, OUTPUTS, c->cols, state),
                                new_weight(c->other, OUTPUTS, c->cols, state)};
    struct linear *linears[2][2]; /* the twin's, the device's */
    for (int i = 0; i < 2; i++) {
        struct linear_case l = {.n_parts = 1, .rows = c->rows};
        l.slices[0] =
            (struct weight_slice){.weight = weights[i], .rows = OUTPUTS, .cols = c->cols};
        linears[0][i] = load(twin, &l);
        linears[1][i] = load(device, &l);
    }
    struct pair pairs[N_PAIRS], ids = new_pair(twin, device, c->rows, 1, state);
    struct tensor tensors[2][N_PAIRS], places[2];
    for (int i = 0; i < N_PAIRS; i++) {
        int32_t cols = i == GATE_UP ? 2 * c->cols : i < A ? c->cols : OUTPUTS;
        pairs[i] = new_pair(twin, device, i == WEIGHT ? 1 : c->rows, cols, state);
        tensors[0][i] = tensors[1][i] = pairs[i].twin->tensor;
        tensors[1][i].buffer = &pairs[i].buffer;
    }
    for (int32_t r = 0; r < c->rows; r++)
        ints_at(ids.twin, r)[0] = r;
    assert_int_equal(device->table->buffer_write(device, &ids.buffer, 0, ids.twin->buffer.host,
                                                 ids.twin->buffer.bytes, &error),
                     OK);
    places[0] = places[1] = ids.twin->tensor;
    places[0].dtype = places[1].dtype = DTYPE_I32;
    places[1].buffer = &ids.buffer;
    queue(twin, tensors[0], linears[0][0], linears[0][1], &places[0], has_residual, reads_between);
    queue(device, tensors[1], linears[1][0], linears[1][1], &places[1], has_residual,
          reads_between);
    if (device->table->sync(device, &error) != OK)
        fail_msg("%s", error.message);

    /* The norm, of which a GPU may take the sum in another order; the activation; the sums. */
    static const int compared[] = {KEPT, Y, RESIDUAL};
    for (int i = 0; i < 3; i++) {
        struct matrix *m = read_back(twin, device, &pairs[compared[i]]);
        check_close(m, pairs[compared[i]].twin, 1e-5, 1e-30, i == 0 ? "rms_norm" : "silu_mul");
        if (compared[i] == RESIDUAL)
            assert_memory_equal(at(m, 0), at(pairs[RESIDUAL].twin, 0),
                                (size_t)c->cols * sizeof(float));
        free_matrix(twin, m);
    }
    for (int i = A; i <= D; i++)
        check_linear(c, &weights[(i - A) % 2], twin, device, pairs[i < C ? KEPT : Y].twin,
                     &pairs[i], test_device_name(d), mode == ACTIVATIONS_FLOAT ? 2e-5 : 0x1p-8);

    for (int i = 0; i < N_PAIRS; i++)
        free_pair(twin, device, &pairs[i]);
    free_pair(twin, device, &ids);
    for (int i = 0; i < 2; i++) {
        twin->table->linear_free(twin, linears[0][i]);
        device->table->linear_free(device, linears[1][i]);
        free((void *)(uintptr_t)weights[i].data);
    }
    device->table->close(device);
    twin->table->close(twin);
}

static void linears_behind_norms_and_activations_equal_the_twin(void **unused)
{
    static const struct behind_case cases[] = {
        {1, 64, WEIGHT_Q4_1, WEIGHT_Q4_1},
        {3, 96, WEIGHT_Q8_0, WEIGHT_Q4_1},
        {2, 100, WEIGHT_F16, WEIGHT_BF16}, /* not whole tiles */
        {2, 102, WEIGHT_F16, WEIGHT_F16},  /* nor whole quads */
        {5, 1024, WEIGHT_Q4_K, WEIGHT_Q4_K},
        {1, 1024, WEIGHT_Q6_K, WEIGHT_Q6_K}, /* groups of 16 */
        {1, 4096, WEIGHT_Q4_1, WEIGHT_BF16},
        {17, 4096, WEIGHT_BF16, WEIGHT_BF16},
        {2, 5000, WEIGHT_F16, WEIGHT_F16},
        {1, 12288, WEIGHT_Q4_K, WEIGHT_Q8_0},
        {200, 2048, WEIGHT_Q4_1, WEIGHT_Q4_1}, /* rows for all processors, in parts of a row */
        {150, 5120, WEIGHT_F16, WEIGHT_F16},
        {1, 16384, WEIGHT_Q4_1, WEIGHT_Q4_1}, /* as much as a threadgroup keeps, and more */
        {2, 17408, WEIGHT_Q4_1, WEIGHT_Q4_1},
    };
    uint64_t state = 1;
    (void)unused;
    for (int d = CPU_ISA_VECTOR; d < n_test_devices(); d++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (int flags = 0; flags < 4; flags++) {
                const struct behind_case *c = &cases[i];
                if (is_test_gpu(d) ? !has_real_gpu() && c->rows * c->cols > 512
                                   : c->rows * c->cols > 100000)
                    continue; /* an emulator is slow, and a CPU's ops know nothing of each other */
                check_case(c, d, ACTIVATIONS_FLOAT, flags & 1, flags & 2, &state);
                if (is_test_gpu(d)) {
                    check_case(c, d, ACTIVATIONS_AUTO, flags & 1, flags & 2, &state);
                    check_case(c, d, ACTIVATIONS_INT8, flags & 1, flags & 2, &state);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linears_behind_norms_and_activations_equal_the_twin),
    };
    return cmocka_run_group_tests(tests, hold_gpu, let_gpu_go);
}
