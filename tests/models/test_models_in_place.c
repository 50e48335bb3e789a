/* Loading a model on a GPU that reads the checkpoint's own bytes: what is counted is what is taken
 * and what is read in place, each byte once. */
#include "models/model.h"
#include "models/model_case.h"
#include "test_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct device *open_gpu(void)
{
    struct device *device;
    struct cpu_options cpu = {.n_threads = 1};
    assert_int_equal(device_open(&device, "emulator", &cpu, NULL), OK);
    return device;
}

static void a_files_bytes_are_counted_once_and_not_taken(void **state)
{
    (void)state;
    /* Floats on 16 bytes; of one of them the head is the embedding. */
    static const char *const names[] = {"gguf_bf16", "qwen3_gqa3_head128_tied"};
    const char *gpu = test_gpu();
    if (!gpu || strcmp(gpu, "emulator") != 0)
        skip();
    setenv("CSGL_EMULATOR_MEMORY", "1000000000", 1);
    for (int i = 0; i < 2; i++) {
        struct model_case c;
        struct comm one = {.n_ranks = 1};
        struct model *model;
        struct device_bytes bytes;
        model_case_open(&c, names[i]);
        struct device *device = open_gpu();
        assert_int_equal(model_configure(c.checkpoint, &one, &model, NULL), OK);
        assert_int_equal(model_weight_bytes(model, c.checkpoint, device, &one, 8, &bytes, NULL),
                         OK);
        uint64_t before = device->table->memory_available(device);
        assert_int_equal(model_load(model, c.checkpoint, device, &one, 8, NULL, NULL, NULL), OK);
        uint64_t taken = before - device->table->memory_available(device);
        uint64_t in_place = bytes.own - taken, all = checkpoint_bytes(c.checkpoint);
        if (taken > all / 4 || in_place > all || in_place + taken < all * 3 / 4)
            fail_msg("%s: %llu bytes, of which %llu are counted and %llu are taken", names[i],
                     (unsigned long long)all, (unsigned long long)bytes.own,
                     (unsigned long long)taken);
        model_free(model);
        device->table->close(device);
        model_case_done(&c);
    }
    unsetenv("CSGL_EMULATOR_MEMORY");
}

/* Memory of the program's, which others would get if it were given back. */
static void random_weights_stay_as_long_as_they_are_read(void **state)
{
    (void)state;
    const char *gpu = test_gpu();
    if (!gpu || strcmp(gpu, "emulator") != 0)
        skip();
    struct model_case c;
    struct comm one = {.n_ranks = 1};
    struct error error;
    float *out[2];
    model_case_open(&c, "llama_f16");
    checkpoint_free(c.checkpoint);
    if (checkpoint_open_random(&c.checkpoint, SOURCE_DIR "/tests/models/llama_f16", "bf16",
                               &error) != OK)
        fail_msg("%s", error.message);
    for (int i = 0; i < 2; i++) {
        struct case_engine e;
        struct case_options options = case_options_default();
        options.device = i ? gpu : "cpu";
        out[i] = malloc((size_t)c.n_tokens * (size_t)c.vocab_size * sizeof **out);
        assert_non_null(out[i]);
        case_engine_open(&e, &c, &options, &one);
        case_engine_run(&e, &c, c.n_tokens, out[i]);
        case_engine_done(&e);
    }
    assert_true(max_difference(out[0], out[1], (size_t)c.n_tokens * (size_t)c.vocab_size) < 1e-4);
    free(out[0]);
    free(out[1]);
    model_case_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_files_bytes_are_counted_once_and_not_taken),
        cmocka_unit_test(random_weights_stay_as_long_as_they_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
