/* The pages of layers with a window: few are planned, and those that have left it are free again.
 */
#include "models/model_case.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PAGE = 16, CHUNK = 20, LENGTH = 200, WINDOW = 37 };

static struct engine *open_engine(struct model_case *c, struct device *device)
{
    struct memory_request request = {.kv_dtype = DTYPE_F32,
                                     .page_size = PAGE,
                                     .max_running = 1,
                                     .context_length = LENGTH,
                                     .max_step_tokens = CHUNK,
                                     .max_want = 1,
                                     .memory_ratio = 0.9};
    struct engine *engine;
    struct error error = {0};
    if (engine_open(&engine, c->checkpoint, device, comm_self(), &request, NULL, NULL, &error) !=
        OK)
        fail_msg("%s", error.message);
    return engine;
}

/* gpt-oss: one full layer of three. */
static void a_window_takes_no_more_pages_than_it_needs(void **state)
{
    (void)state;
    struct model_case c;
    struct device *device;
    struct cpu_options cpu = {.n_threads = 1, .isa = cpu_isa_best()};
    assert_int_equal(cpu_device_open(&device, &cpu, NULL), OK);
    model_case_open(&c, "gpt_oss_gqa2");
    struct engine *engine = open_engine(&c, device);
    const struct memory_plan *plan = engine_plan(engine);
    int32_t most = kv_pages_needed(WINDOW, LENGTH, CHUNK, PAGE);
    assert_int_equal(plan->n_groups, 2);
    assert_int_equal(plan->n_pages[0], (LENGTH + PAGE - 1) / PAGE);
    assert_int_equal(plan->n_pages[1], most);
    assert_true(most <= (WINDOW + CHUNK) / PAGE + 2);
    assert_int_equal(plan->page_bytes[1], 2 * plan->page_bytes[0]);
    assert_int_equal(plan->kv, (uint64_t)plan->n_pages[0] * plan->page_bytes[0] +
                                   (uint64_t)plan->n_pages[1] * plan->page_bytes[1]);

    struct kv_cache *cache = engine_cache(engine);
    struct batch batch;
    assert_int_equal(engine_batch_init(engine, &batch, NULL), OK);
    int32_t row = kv_cache_open_row(cache);
    for (int32_t from = 0; from < LENGTH; from += CHUNK) {
        batch_clear(&batch);
        assert_int_equal(batch_add(&batch, cache, row, c.tokens + from, CHUNK, WANT_LAST, NULL),
                         OK);
        assert_int_equal(engine_step(engine, &batch, NULL), OK);
        assert_true(kv_cache_check(cache));
    }
    /* Nothing of the window's beginning is left in the row. */
    const int32_t *pages = kv_cache_pages(cache, 1, row);
    int32_t n_held = 0;
    for (int32_t p = 0; p < (LENGTH + PAGE - 1) / PAGE; p++)
        n_held += pages[p] >= 0;
    assert_true(pages[0] < 0 && n_held > 0 && n_held <= most);
    batch_done(&batch);
    engine_free(engine);
    model_case_done(&c);
    device->table->close(device);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_takes_no_more_pages_than_it_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
