/* The profiling device: the real one's results, and sums of what it took. */
#include "device/cpu/cpu.h"
#include "device/cpu/measure.h"
#include "device/gpu/gpu.h"
#include "device/profile.h"
#include "test_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 64, COLS = 2048 };

struct fixture {
    struct device *device;
    struct profile *profile;
    struct buffer in, out;
    struct silu_mul_args args;
};

static struct fixture open_fixture(void)
{
    struct fixture f = {0};
    struct cpu_options options = {.n_threads = 2, .isa = cpu_isa_best()};
    assert_int_equal(cpu_device_open(&f.device, &options, NULL), OK);
    assert_int_equal(profile_new(&f.profile, f.device, NULL), OK);
    const struct device_table *t = f.device->table;
    assert_int_equal(t->buffer_alloc(f.device, ROWS * COLS * 2 * sizeof(float), &f.in, NULL), OK);
    assert_int_equal(t->buffer_alloc(f.device, ROWS * COLS * sizeof(float), &f.out, NULL), OK);
    for (int i = 0; i < ROWS * COLS * 2; i++)
        ((float *)f.in.host)[i] = (float)(i % 17) * 0.1f;
    return f;
}

/* The tensors point into the fixture, so it must have come to rest. */
static void bind(struct fixture *f)
{
    f->args.gate_up = (struct tensor){.buffer = &f->in, .rows = ROWS, .cols = 2 * COLS};
    f->args.gate_up.stride = 2 * COLS;
    f->args.out = (struct tensor){.buffer = &f->out, .rows = ROWS, .cols = COLS, .stride = COLS};
}

static void close_fixture(struct fixture *f)
{
    profile_free(f->profile);
    f->device->table->buffer_free(f->device, &f->in);
    f->device->table->buffer_free(f->device, &f->out);
    f->device->table->close(f->device);
}

static const struct profile_entry *entry(const struct profile *p, enum trace_phase phase,
                                         const char *name)
{
    int n;
    const struct profile_entry *entries = profile_entries(p, phase, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

static void results_are_the_real_devices_and_costs_add_up(void **state)
{
    (void)state;
    static float plain[ROWS * COLS];
    struct fixture f = open_fixture();
    bind(&f);
    device_silu_mul(f.device, &f.args);
    memcpy(plain, f.out.host, sizeof plain);
    memset(f.out.host, 0, sizeof plain);
    profile_phase(f.profile, TRACE_DECODE);
    for (int i = 0; i < 3; i++)
        device_silu_mul(profile_device(f.profile), &f.args);
    assert_memory_equal(plain, f.out.host, sizeof plain);
    const struct profile_entry *e = entry(f.profile, TRACE_DECODE, "silu_mul");
    assert_int_equal(e->calls, 3);
    assert_true(e->seconds > 0.0);
    assert_true(e->bytes == 3.0 * 3.0 * ROWS * COLS * sizeof(float));
    assert_int_equal(entry(f.profile, TRACE_PREFILL, "silu_mul")->calls, 0);
    profile_reset(f.profile);
    assert_int_equal(entry(f.profile, TRACE_DECODE, "silu_mul")->calls, 0);
    close_fixture(&f);
}

static void ops_are_recorded_only_while_a_trace_is_set(void **state)
{
    (void)state;
    struct trace *trace;
    struct fixture f = open_fixture();
    bind(&f);
    assert_int_equal(trace_new(&trace, NULL, "csgl", 1, 1024, NULL), OK);
    device_silu_mul(profile_device(f.profile), &f.args);
    assert_int_equal(trace_count(trace), 0);
    profile_trace(f.profile, trace);
    for (int i = 0; i < 50; i++)
        device_silu_mul(profile_device(f.profile), &f.args);
    uint64_t n = trace_count(trace);
    assert_true(n >= 50 && n <= 100); /* the other thread may come late to a run */
    profile_trace(f.profile, NULL);
    device_silu_mul(profile_device(f.profile), &f.args);
    assert_int_equal(trace_count(trace), n);
    close_fixture(&f);
    trace_free(trace);
}

static void ops_of_a_gpu_are_timed_by_its_marks(void **state)
{
    (void)state;
    static float values[ROWS * 2 * COLS];
    struct fixture f = {0};
    if (!test_gpu())
        skip();
    assert_int_equal(gpu_device_open(&f.device, test_gpu(), 0, ACTIVATIONS_FLOAT, NULL), OK);
    assert_int_equal(profile_new(&f.profile, f.device, NULL), OK);
    const struct device_table *t = f.device->table;
    assert_int_equal(t->buffer_alloc(f.device, sizeof values, &f.in, NULL), OK);
    assert_int_equal(t->buffer_alloc(f.device, sizeof values / 2, &f.out, NULL), OK);
    assert_int_equal(t->buffer_write(f.device, &f.in, 0, values, sizeof values, NULL), OK);
    bind(&f);
    f.args.gate_up.rows = f.args.out.rows = 1;
    profile_phase(f.profile, TRACE_DECODE);
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < 2; i++)
            device_silu_mul(profile_device(f.profile), &f.args);
        assert_int_equal(entry(f.profile, TRACE_DECODE, "silu_mul")->calls, 2 * (step - 1));
        assert_int_equal(t->sync(f.device, NULL), OK);
        assert_int_equal(profile_collect(f.profile, NULL), OK);
        const struct profile_entry *e = entry(f.profile, TRACE_DECODE, "silu_mul");
        assert_int_equal(e->calls, 2 * step);
        assert_true(e->seconds > 0.0 && e->seconds < 10.0);
        assert_true(e->bytes == (double)e->calls * 3.0 * COLS * sizeof(float));
    }
    close_fixture(&f);
}

static void the_cost_of_attention_is_what_its_rows_see(void **state)
{
    (void)state;
    struct fixture f = open_fixture();
    int32_t q_start[] = {0, 1, 5}, kv_len[] = {100, 4};
    struct buffer starts = {.host = q_start, .bytes = sizeof q_start};
    struct buffer lengths = {.host = kv_len, .bytes = sizeof kv_len};
    struct paged_attention_args a = {
        .pages.layout = {.page_size = 16, .n_heads = 2, .head_dim = 8, .dtype = DTYPE_BF16},
        .q_start = {.buffer = &starts, .dtype = DTYPE_I32, .rows = 3, .cols = 1, .stride = 1},
        .kv_len = {.buffer = &lengths, .dtype = DTYPE_I32, .rows = 2, .cols = 1, .stride = 1},
        .n_sequences = 2,
        .n_q_heads = 4};
    struct op_cost cost = profile_cost_paged_attention(f.device, &a);
    /* One row sees 100 tokens; four see 1, 2, 3 and 4. */
    assert_true(cost.operations == 4.0 * (100 + 10) * 4 * 8);
    assert_true(cost.bytes == (100 + 4) * 2.0 * 2 * 8 * 2);
    a.window = 20;
    cost = profile_cost_paged_attention(f.device, &a);
    assert_true(cost.operations == 4.0 * (20 + 10) * 4 * 8);
    close_fixture(&f);
}

static void the_cost_of_every_op_is_known(void **state)
{
    (void)state;
    int n;
    struct fixture f = open_fixture();
    const struct profile_entry *entries = profile_entries(f.profile, TRACE_DECODE, &n);
    for (int i = 0; i < n; i++)
        if (!profile_knows(i))
            fail_msg("device/profile.c does not know what %s costs", entries[i].name);
    close_fixture(&f);
}

static void limits_are_measured_at_every_level(void **state)
{
    (void)state;
    for (int isa = 0; isa <= (int)cpu_isa_best(); isa++) {
        const struct measure_kernels *k = cpu_measure_kernels((enum cpu_isa)isa);
        static _Alignas(64) uint64_t words[64];
        float sink = 0.0f;
        k->read(words, 64);
        for (int i = 0; i < N_ARITHMETICS; i++)
            if (k->arithmetic[i].run)
                k->arithmetic[i].run(100, &sink);
        assert_true(k->arithmetic[ARITHMETIC_F32].run != NULL);
    }
    struct cpu_limits limits;
    assert_int_equal(cpu_measure(&limits, 2, cpu_isa_best(), NULL), OK);
    assert_true(limits.bytes_per_s[PAGES_4K][0] > 1e8);
    assert_true(limits.operations_per_s[ARITHMETIC_F32][1] > 1e8);
    assert_true(limits.round_trip_s > 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_the_real_devices_and_costs_add_up),
        cmocka_unit_test(ops_are_recorded_only_while_a_trace_is_set),
        cmocka_unit_test(ops_of_a_gpu_are_timed_by_its_marks),
        cmocka_unit_test(the_cost_of_attention_is_what_its_rows_see),
        cmocka_unit_test(the_cost_of_every_op_is_known),
        cmocka_unit_test(limits_are_measured_at_every_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
