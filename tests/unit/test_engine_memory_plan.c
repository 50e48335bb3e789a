/* How the plan divides memory between recurrent states, the KV cache and what lies beside them. */
#include "device/cpu/cpu.h"
#include "engine/batch.h"
#include "engine/memory_plan.h"
#include "engine/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "test_heap.h"

enum { MIB = 1 << 20, MAX_RUNNING = 4 };

static size_t no_scratch(const struct model *model, int32_t max_rows, int32_t max_want)
{
    (void)model;
    (void)max_rows;
    (void)max_want;
    return 0;
}

static const struct model_family family = {.name = "test", .scratch_bytes = no_scratch};

/* A slot takes 3 layers of 1 MiB and a little; a page of KV 64 KiB. */
static const struct model hybrid = {.family = &family,
                                    .vocab_size = 100,
                                    .max_positions = 4096,
                                    .n_heads = 8,
                                    .n_kv_heads = 4,
                                    .head_dim = 128,
                                    .n_kv_groups = 1,
                                    .kv_groups = {{.n_layers = 2}},
                                    .states = {.n_layers = 3,
                                               .n_v_heads = 16,
                                               .k_dim = 128,
                                               .v_dim = 128,
                                               .conv_channels = 64,
                                               .conv_rows = 3}};

static struct device *cpu(void)
{
    struct device *device;
    struct cpu_options options = {.n_threads = 1, .isa = CPU_ISA_SCALAR};
    assert_int_equal(cpu_device_open(&device, &options, NULL), OK);
    return device;
}

static struct memory_request request_of(uint64_t mib)
{
    return (struct memory_request){.kv_dtype = DTYPE_BF16,
                                   .page_size = 16,
                                   .max_running = MAX_RUNNING,
                                   .max_step_tokens = 128,
                                   .max_want = MAX_RUNNING,
                                   .memory_ratio = 1.0,
                                   .available_bytes = mib * MIB};
}

static enum status plan(struct memory_plan *p, const struct model *model,
                        const struct memory_request *request, struct error *error)
{
    struct device *device = cpu();
    struct device_bytes weights = {.own = 10 * MIB, .workspace = MIB};
    enum status status = memory_plan_make(p, model, device, &weights, request, error);
    device->table->close(device);
    if (status == OK)
        assert_true(memory_plan_bytes(p) <= p->budget);
    return status;
}

static void snapshots_take_a_quarter_at_most(void **state)
{
    (void)state;
    struct memory_plan p;
    struct memory_request r = request_of(4000);
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_int_equal(p.n_states, 8 * MAX_RUNNING + 1);
    assert_int_equal(p.context_length, 4096);
    r.available_bytes = 300 * (uint64_t)MIB;
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_true(p.n_states > MAX_RUNNING && p.states <= p.budget / 4);
    r.cache_type = KV_CACHE_NAIVE; /* has no use for snapshots */
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_int_equal(p.n_states, MAX_RUNNING + 1);
    r.available_bytes = 40 * (uint64_t)MIB; /* four states are more than fit beside the cache */
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_true(p.n_states >= 2 && p.n_states <= MAX_RUNNING && p.context_length > 0);
}

static void number_and_bytes_are_taken_as_given(void **state)
{
    (void)state;
    struct memory_plan p, narrow;
    struct memory_request r = request_of(1000);
    r.n_states = 50;
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_int_equal(p.n_states, 50);
    r.state_dtype = DTYPE_BF16;
    assert_int_equal(plan(&narrow, &hybrid, &r, NULL), OK);
    assert_true(narrow.states < p.states * 51 / 100);
    r = request_of(1000);
    r.state_bytes = 31 * MIB;
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
    assert_int_equal(p.n_states, 10);
    assert_true(p.states <= r.state_bytes);
}

static void one_sequence_has_a_page_more_than_its_context(void **state)
{
    (void)state;
    struct memory_plan p;
    struct memory_request r = request_of(1000);
    struct error error;
    r.context_length = 1024;
    r.n_pages = 64;
    assert_int_equal(plan(&p, &hybrid, &r, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "--num-pages"));
    r.n_pages = 65;
    assert_int_equal(plan(&p, &hybrid, &r, NULL), OK);
}

static void what_does_not_fit_or_has_no_use_is_refused(void **state)
{
    (void)state;
    struct memory_plan p;
    struct memory_request r = request_of(100);
    struct model dense = hybrid;
    struct error error;
    r.n_states = 1000;
    assert_int_equal(plan(&p, &hybrid, &r, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "--num-mamba-slots"));
    r.n_states = 1;
    assert_int_equal(plan(&p, &hybrid, &r, &error), ERROR_LIMIT);
    memset(&dense.states, 0, sizeof dense.states);
    r.n_states = 3;
    assert_int_equal(plan(&p, &dense, &r, &error), ERROR_INVALID);
    assert_non_null(strstr(error.message, "no recurrent layers"));
    r.n_states = 0;
    assert_int_equal(plan(&p, &dense, &r, NULL), OK);
    assert_int_equal(p.n_states, 0);
}

/* malloc rounds up and keeps a word or two of its own. */
static void assert_counted(size_t before, size_t said)
{
    size_t taken = heap_bytes() - before;
    if (taken < said || taken > said + said / 20 + 2048)
        fail_msg("%zu bytes are said to be taken; it were %zu", said, taken);
}

static void counts_of_tables_are_what_malloc_gives(void **state)
{
    (void)state;
    struct kv_cache_spec specs[] = {
        {.page_size = 16, .n_rows = 4, .max_length = 4000, .n_groups = 1, .n_pages = {1000}},
        {.page_size = 32,
         .n_rows = 8,
         .max_length = 9000,
         .n_groups = 2,
         .windows = {0, 128},
         .n_pages = {2000, 100},
         .n_states = 40},
        {.type = KV_CACHE_NAIVE,
         .page_size = 16,
         .n_rows = 2,
         .max_length = 70000,
         .n_groups = 1,
         .windows = {256},
         .n_pages = {50}}};
    if (!heap_is_counted())
        skip();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct kv_cache cache;
        struct batch batch;
        size_t before = heap_bytes();
        assert_int_equal(kv_cache_init(&cache, &specs[i], NULL), OK);
        assert_counted(before, kv_cache_bytes(&specs[i]));
        before = heap_bytes();
        assert_int_equal(batch_init(&batch, &cache, 512, specs[i].n_rows, 20, NULL), OK);
        assert_counted(before, batch_bytes(&specs[i], 512, specs[i].n_rows, 20));
        assert_int_equal(batch.memory_bytes, batch_bytes(&specs[i], 512, specs[i].n_rows, 20));
        batch_done(&batch);
        kv_cache_done(&cache);
    }
}

static void counts_of_the_sampler_are_what_malloc_gives(void **state)
{
    (void)state;
    enum { VOCABULARY = 30000, ROWS = 70 };
    struct token_history history;
    struct sampler sampler;
    if (!heap_is_counted())
        skip();
    struct device *device = cpu();
    assert_int_equal(device->table->sample_reserve(device, VOCABULARY, ROWS, NULL), OK);
    size_t before = heap_bytes();
    assert_int_equal(token_history_init(&history, VOCABULARY, NULL), OK);
    assert_counted(before, token_history_bytes(VOCABULARY));
    before = heap_bytes();
    assert_int_equal(sampler_init(&sampler, device, VOCABULARY, ROWS, NULL), OK);
    size_t on_device = sampler.memory.bytes;
    assert_int_equal(on_device, sampler_device_bytes(VOCABULARY, ROWS));
    device->table->buffer_free(device, &sampler.memory);
    assert_counted(before, sampler_host_bytes(VOCABULARY, ROWS));
    sampler_done(&sampler);
    token_history_done(&history);
    device->table->close(device);
}

/* Whatever the engine shares the memory with leaves that much less of it for the cache. */
static void what_lies_beside_the_engine_is_counted(void **state)
{
    (void)state;
    struct memory_plan alone, beside;
    struct memory_request r = request_of(300);
    struct error error;
    struct model dense = hybrid;
    memset(&dense.states, 0, sizeof dense.states);
    dense.max_positions = 1 << 20;
    r.max_running = 1;
    assert_int_equal(plan(&alone, &dense, &r, NULL), OK);
    assert_true(alone.context_length < dense.max_positions && alone.programs == 0);
    assert_true(alone.tables > 0);
    r.n_processes = 4;
    r.text_bytes = 50 * MIB;
    assert_int_equal(plan(&beside, &dense, &r, NULL), OK);
    uint64_t taken = beside.programs + beside.texts;
    assert_int_equal(beside.texts, 50 * MIB);
    assert_true(beside.programs >= 4 * MIB);
    assert_true(beside.kv + taken <= alone.kv + alone.tables);
    assert_true(alone.budget - memory_plan_bytes(&alone) < 2 * alone.page_bytes[0]);
    assert_true(beside.budget - memory_plan_bytes(&beside) < 2 * beside.page_bytes[0]);
    r.text_bytes = 400 * (uint64_t)MIB;
    assert_int_equal(plan(&beside, &dense, &r, &error), ERROR_LIMIT);
    assert_non_null(strstr(error.message, "programs"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_tables_are_what_malloc_gives),
        cmocka_unit_test(counts_of_the_sampler_are_what_malloc_gives),
        cmocka_unit_test(what_lies_beside_the_engine_is_counted),
        cmocka_unit_test(snapshots_take_a_quarter_at_most),
        cmocka_unit_test(number_and_bytes_are_taken_as_given),
        cmocka_unit_test(one_sequence_has_a_page_more_than_its_context),
        cmocka_unit_test(what_does_not_fit_or_has_no_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
