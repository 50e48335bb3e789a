/* Which kernels the GPU device queues for norms, activations and the native linears over what they
 * make. The GPU is one that only notes what it is asked for; it stands in the place of Metal's. */
#include "ops/linear_case.h"

#include "device/gpu/gpu_device.h"

/* --- the GPU ---------------------------------------------------------------------------------- */

struct gpu_memory {
    size_t bytes;
};

static struct {
    char text[1024]; /* what was asked for, one word each */
    struct kd_inputs form;
    struct gpu_range values, last; /* of the last kernel that wrote inputs */
    uint32_t n_threads;
    bool has_int8; /* what the GPU says of itself */
} noted;

static void note(const char *word)
{
    size_t n = strlen(noted.text);
    assert_true(n + strlen(word) + 2 < sizeof noted.text);
    snprintf(noted.text + n, sizeof noted.text - n, "%s%s", n ? " " : "", word);
}

static enum status noting_open(int index, struct gpu **out, struct error *error)
{
    (void)index;
    (void)error;
    *out = NULL;
    return OK;
}

static void noting_close(struct gpu *gpu)
{
    (void)gpu;
}

static void noting_info(const struct gpu *gpu, struct gpu_info *out)
{
    (void)gpu;
    *out = (struct gpu_info){.name = "noting",
                             .memory_bytes = 1 << 30,
                             .max_threads = 1024,
                             .has_int8 = noted.has_int8,
                             .orders_copies = true,
                             .n_processors = 132,
                             .max_shared_bytes = 200 << 10};
}

static enum status noting_alloc(struct gpu *gpu, size_t bytes, struct gpu_memory **out,
                                struct error *error)
{
    (void)gpu;
    (void)error;
    *out = malloc(sizeof **out);
    assert_non_null(*out);
    (*out)->bytes = bytes;
    return OK;
}

static void noting_free(struct gpu *gpu, struct gpu_memory *memory)
{
    (void)gpu;
    free(memory);
}

static void *noting_host(const struct gpu_memory *memory)
{
    (void)memory;
    return NULL;
}

static enum status noting_write(struct gpu *gpu, const struct gpu_range *to, const void *from,
                                size_t bytes, struct error *error)
{
    (void)gpu;
    (void)from;
    return gpu_check_range(to, to->memory->bytes, bytes, error);
}

static enum status noting_read(struct gpu *gpu, const struct gpu_range *from, void *to,
                               size_t bytes, struct error *error)
{
    (void)gpu;
    memset(to, 0, bytes);
    note("read");
    return gpu_check_range(from, from->memory->bytes, bytes, error);
}

/* A kernel is its name. */
static enum status noting_kernel(struct gpu *gpu, const char *name, const struct gpu_kernel **out,
                                 struct error *error)
{
    (void)gpu;
    (void)error;
    *out = (const struct gpu_kernel *)(const void *)name;
    return OK;
}

static void noting_dispatch(struct gpu *gpu, const struct gpu_kernel *kernel,
                            const struct gpu_range *buffers, int n_buffers, const void *args,
                            size_t args_bytes, const struct gpu_grid *grid)
{
    const char *name = (const char *)(const void *)kernel;
    (void)gpu;
    if (strncmp(name, "linear_flat_", 12) == 0 || strncmp(name, "linear_wide_", 12) == 0) {
        note("product");
        return;
    }
    note(name);
    /* kd_inputs ends the arguments; values, sums, factors the buffers. */
    if (strstr(name, "_inputs")) {
        memcpy(&noted.form, (const char *)args + args_bytes - sizeof noted.form, sizeof noted.form);
        noted.values = buffers[n_buffers - 3];
        noted.last = buffers[n_buffers - 1];
        noted.n_threads = grid->n_threads;
        assert_true(grid->n_threads % 32 == 0 && grid->n_threads <= KD_INPUT_THREADS);
    }
}

static void noting_barrier(struct gpu *gpu)
{
    (void)gpu;
}

static void noting_commit(struct gpu *gpu)
{
    (void)gpu;
    note("commit");
}

static enum status noting_wait(struct gpu *gpu, struct error *error)
{
    (void)gpu;
    (void)error;
    return OK;
}

static void noting_mark(struct gpu *gpu, int i)
{
    (void)gpu;
    (void)i;
    note("mark");
}

static enum status noting_marked(struct gpu *gpu, int from, int to, double *seconds,
                                 struct error *error)
{
    (void)gpu;
    (void)from;
    (void)to;
    (void)error;
    *seconds = 0;
    return OK;
}

const struct gpu_driver gpu_driver_metal = {.name = "metal",
                                            .open = noting_open,
                                            .close = noting_close,
                                            .info = noting_info,
                                            .alloc = noting_alloc,
                                            .free = noting_free,
                                            .host = noting_host,
                                            .write = noting_write,
                                            .read = noting_read,
                                            .kernel = noting_kernel,
                                            .dispatch = noting_dispatch,
                                            .barrier = noting_barrier,
                                            .commit = noting_commit,
                                            .wait = noting_wait,
                                            .mark = noting_mark,
                                            .marked = noting_marked};

/* --- what the tests queue --------------------------------------------------------------------- */

enum {
    ROWS = 3,
    MANY = 200, /* rows for all processors */
    COLS = 512,
    MOST = 16384, /* columns that the threads of a kernel keep */
    WIDE = 17408
};

static struct device *device;
static struct buffer buffers[9];
static struct tensor x, residual, weight, y, z, gate_up, half;
static struct linear *q4, *also_q4, *bf16, *f32, *ordered;

static struct tensor new_tensor(int i, int32_t rows, int32_t cols)
{
    struct error error;
    assert_int_equal(device->table->buffer_alloc(device, (size_t)rows * (size_t)cols * 4,
                                                 &buffers[i], &error),
                     OK);
    return (struct tensor){&buffers[i], 0, DTYPE_F32, rows, cols, cols};
}

static struct linear *new_linear(enum weight_encoding encoding, int64_t cols, const int32_t *order)
{
    uint64_t state = 1;
    struct weight w = new_weight(encoding, COLS, cols, &state);
    struct linear_case c = {.n_parts = 1, .rows = MANY};
    w.order = order;
    w.has_order = order != NULL;
    c.slices[0] = (struct weight_slice){.weight = w, .rows = COLS, .cols = cols};
    struct linear *linear = load(device, &c);
    free((void *)(uintptr_t)w.data);
    return linear;
}

static int set_up_in(enum activations mode)
{
    int32_t order[COLS];
    struct error error;
    for (int32_t i = 0; i < COLS; i++)
        order[i] = COLS - 1 - i;
    assert_int_equal(gpu_device_open(&device, "metal", 0, mode, &error), OK);
    x = new_tensor(0, ROWS, COLS);
    residual = new_tensor(1, ROWS, COLS);
    weight = new_tensor(2, 1, COLS);
    y = new_tensor(3, ROWS, COLS);
    z = new_tensor(4, ROWS, COLS);
    gate_up = new_tensor(5, ROWS, 2 * COLS);
    half = tensor_cols(gate_up, 0, COLS);
    q4 = new_linear(WEIGHT_Q4_1, COLS, NULL);
    also_q4 = new_linear(WEIGHT_Q4_1, COLS, NULL);
    bf16 = new_linear(WEIGHT_BF16, COLS, NULL);
    f32 = new_linear(WEIGHT_F32, COLS, NULL);
    ordered = new_linear(WEIGHT_Q4_1, COLS, order);
    noted.text[0] = '\0';
    return 0;
}

static int set_up(void **unused)
{
    (void)unused;
    return set_up_in(ACTIVATIONS_AUTO);
}

static int set_up_int8(void **unused)
{
    (void)unused;
    noted.has_int8 = true;
    return set_up_in(ACTIVATIONS_INT8);
}

static int tear_down(void **unused)
{
    struct linear *all[] = {q4, also_q4, bf16, f32, ordered};
    (void)unused;
    for (int i = 0; i < 5; i++)
        device->table->linear_free(device, all[i]);
    for (int i = 0; i < 9; i++)
        device->table->buffer_free(device, &buffers[i]);
    device->table->close(device);
    return 0;
}

static void norm(const struct tensor *out)
{
    device_rms_norm(device, &(struct rms_norm_args){
                                .x = x, .residual = residual, .weight = weight, .out = *out});
}

static void silu(const struct tensor *out)
{
    device_silu_mul(device, &(struct silu_mul_args){gate_up, *out});
}

static void linear(const struct linear *l, const struct tensor *from, const struct tensor *out)
{
    device_linear(device, &(struct linear_args){.linear = l, .x = *from, .out = *out});
}

static void expect(const char *text)
{
    assert_string_equal(noted.text, text);
    noted.text[0] = '\0';
}

/* --- tests ------------------------------------------------------------------------------------ */

static void a_norm_or_activation_writes_the_inputs_of_the_linears_behind_it(void **unused)
{
    (void)unused;
    norm(&y);
    expect("");
    linear(q4, &y, &z);
    linear(also_q4, &y, &z);
    expect("rms_norm_inputs product product");
    struct kd_inputs form = noted.form;
    struct gpu_range values = noted.values;
    silu(&y);
    linear(q4, &y, &z);
    linear(also_q4, &y, &z);
    expect("silu_mul_inputs product product");
    assert_memory_equal(&noted.form, &form, sizeof form);
    device->table->sync(device, NULL);
    expect("commit");
    linear(q4, &y, &z);
    expect("linear_inputs product");
    assert_memory_equal(&noted.form, &form, sizeof form);
    assert_true(noted.values.memory == values.memory && noted.values.offset == values.offset);
}

static void inputs_in_another_form_are_written_anew(void **unused)
{
    (void)unused;
    norm(&y);
    linear(q4, &y, &z);
    linear(bf16, &y, &z);
    linear(bf16, &y, &z);
    linear(q4, &y, &z);
    expect("rms_norm_inputs product linear_inputs product product linear_inputs product");
    norm(&y);
    linear(ordered, &y, &z);
    linear(ordered, &y, &z);
    expect("rms_norm linear_inputs product linear_inputs product");
}

static void what_no_native_linear_reads_is_queued_as_it_is(void **unused)
{
    struct tensor first = tensor_rows(y, 0, 1), to = tensor_rows(z, 0, 1);
    struct tensor beside = tensor_cols(y, 2, COLS - 2);
    (void)unused;
    norm(&y);
    linear(f32, &y, &z);
    expect("rms_norm linear");
    norm(&y);
    linear(q4, &first, &to);
    expect("rms_norm linear_inputs product");
    silu(&y);
    linear(q4, &x, &z);
    expect("silu_mul linear_inputs product");
    norm(&y);
    silu(&z);
    norm(&y);
    linear(q4, &z, &x);
    expect("rms_norm silu_mul rms_norm linear_inputs product");
    device_rms_norm(device, &(struct rms_norm_args){.x = x, .residual = residual});
    expect("rms_norm");
    device_rms_norm(device, &(struct rms_norm_args){.x = tensor_cols(x, 2, COLS - 2),
                                                    .weight = tensor_cols(weight, 2, COLS - 2),
                                                    .out = beside});
    expect("rms_norm"); /* it does not lie on 16 bytes */
    silu(&half);
    expect("silu_mul"); /* it writes over what it reads */
}

static void nothing_waits_for_a_copy_a_mark_or_the_end(void **unused)
{
    float value;
    struct error error;
    (void)unused;
    norm(&y);
    assert_int_equal(device->table->buffer_read(device, &buffers[3], 0, &value, 4, &error), OK);
    expect("rms_norm commit read");
    silu(&y);
    assert_int_equal(device->table->buffer_write(device, &buffers[5], 0, &value, 4, &error), OK);
    expect("silu_mul commit");
    norm(&y);
    device->table->mark(device, 0);
    linear(q4, &y, &z);
    device->table->mark(device, 1);
    linear(q4, &y, &z);
    expect("rms_norm mark linear_inputs product mark product");
    norm(&y);
    assert_int_equal(device->table->sync(device, &error), OK);
    expect("rms_norm commit");
    norm(&y);
    device->table->buffer_free(device, &buffers[0]);
    expect("rms_norm");
}

static void inputs_are_forgotten_when_their_rows_may_have_changed(void **unused)
{
    struct error error;
    float value = 0;
    struct tensor ids = tensor_cols(z, 0, 1);
    (void)unused;
    ids.dtype = DTYPE_I32;
    linear(q4, &y, &z);
    linear(q4, &z, &y);
    linear(q4, &y, &z);
    expect("linear_inputs product linear_inputs product linear_inputs product");
    linear(q4, &y, &x);
    linear(q4, &x, &y);
    linear(q4, &x, &y);
    expect("product linear_inputs product product");
    device_gather(device, &(struct gather_args){x, ids, y});
    linear(q4, &x, &y);
    expect("gather linear_inputs product");
    assert_int_equal(device->table->buffer_write(device, &buffers[0], 0, &value, 4, &error), OK);
    linear(q4, &x, &y);
    expect("commit linear_inputs product");
    struct linear *wide = new_linear(WEIGHT_Q4_1, 2 * COLS, NULL); /* inputs move */
    linear(q4, &x, &y);
    expect("linear_inputs product");
    device->table->linear_free(device, wide);
    device->table->buffer_free(device, &buffers[1]);
    linear(q4, &x, &y);
    expect("linear_inputs product");
}

/* A row of a norm is kept in registers, one of an activation where it can be. */
static void rows_wider_than_a_threadgroup_keeps(void **unused)
{
    static const int32_t rows[] = {1, MANY};
    (void)unused;
    struct tensor from = new_tensor(6, MANY, 2 * WIDE), to = new_tensor(7, MANY, WIDE);
    struct tensor w = new_tensor(8, 1, WIDE);
    for (int i = 0; i < 4; i++) {
        int32_t cols = i & 1 ? MOST : WIDE, n = rows[i / 2];
        struct linear *l = new_linear(WEIGHT_Q4_1, cols, NULL);
        struct tensor in = tensor_cols(tensor_rows(to, 0, n), 0, cols), by = tensor_cols(w, 0, cols);
        struct tensor both = tensor_cols(tensor_rows(from, 0, n), 0, 2 * cols);
        struct tensor out = tensor_cols(tensor_rows(from, 0, n), 0, COLS);
        noted.text[0] = '\0';
        device_rms_norm(device, &(struct rms_norm_args){.x = in, .weight = by, .out = in});
        linear(l, &in, &out);
        expect(cols > MOST ? "rms_norm linear_inputs product" : "rms_norm_inputs product");
        if (cols == MOST)
            assert_int_equal(4 * KD_KEPT_QUADS * noted.n_threads, cols);
        device_silu_mul(device, &(struct silu_mul_args){both, in});
        linear(l, &in, &out);
        expect("silu_mul_inputs product");
        assert_int_equal(noted.n_threads, KD_INPUT_THREADS);
        device->table->linear_free(device, l);
    }
}

/* Codes for few rows, with their scales in the memory of values; for many what they stand for. */
static void weights_of_codes_take_int8_inputs(void **unused)
{
    (void)unused;
    struct tensor from = new_tensor(6, MANY, COLS), to = new_tensor(7, MANY, COLS);
    norm(&y);
    linear(q4, &y, &z);
    expect("rms_norm_inputs product");
    assert_int_equal(noted.form.rounding, KD_ROUND_INT8);
    size_t codes = (size_t)noted.form.term_stride * noted.form.positions;
    assert_true(noted.last.memory == noted.values.memory && noted.last.offset == codes);
    linear(ordered, &y, &z);
    expect("linear_inputs product");
    assert_int_equal(noted.form.rounding, KD_ROUND_INT8);
    linear(bf16, &y, &z);
    expect("linear_inputs product");
    assert_int_equal(noted.form.rounding, KD_ROUND_16);
    assert_true(noted.last.offset > codes);
    linear(q4, &from, &to);
    expect("linear_inputs product");
    assert_int_equal(noted.form.rounding, KD_ROUND_INT8_16);
    linear(f32, &y, &z);
    expect("linear");
}

static void a_gpu_without_int8_refuses_it(void **unused)
{
    struct device *none;
    struct error error;
    (void)unused;
    noted.has_int8 = false;
    assert_int_equal(gpu_device_open(&none, "metal", 0, ACTIVATIONS_INT8, &error),
                     ERROR_UNSUPPORTED);
    assert_string_equal(error.message, "--activations int8: there are no kernels for it on noting "
                                       "(metal); auto and float are possible there");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_norm_or_activation_writes_the_inputs_of_the_linears_behind_it),
        TEST(inputs_in_another_form_are_written_anew),
        TEST(what_no_native_linear_reads_is_queued_as_it_is),
        TEST(nothing_waits_for_a_copy_a_mark_or_the_end),
        TEST(inputs_are_forgotten_when_their_rows_may_have_changed),
        TEST(rows_wider_than_a_threadgroup_keeps),
        cmocka_unit_test_setup_teardown(weights_of_codes_take_int8_inputs, set_up_int8, tear_down),
        cmocka_unit_test(a_gpu_without_int8_refuses_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
