/* Every family gives the reference's logits, however the sequence is fed, split or quantized. */
#include "models/model_case.h"

#include "base/log.h"
#include "checkpoint/quantize.h"
#include "device/cpu/cpu_device.h"
#include "test_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The bar against transformers in float32, whose own rounding (against float64) reaches 3e-5 here.
 */
static const double reference_tolerance = 2e-4;
/* Between two ways of feeding one sequence: sums of at most a few hundred terms in another order.
 */
static const double order_tolerance = 1e-4;

static float *new_logits(const struct model_case *c)
{
    return calloc((size_t)c->n_tokens * (size_t)c->vocab_size, sizeof(float));
}

static size_t n_logits(const struct model_case *c)
{
    return (size_t)c->n_tokens * (size_t)c->vocab_size;
}

static double run_whole(const struct model_case *c, const struct case_options *options, float *out)
{
    struct case_engine e;
    case_engine_open(&e, c, options, comm_self());
    case_engine_run(&e, c, c->n_tokens, out);
    case_engine_done(&e);
    return max_difference(out, c->logits, n_logits(c));
}

typedef void (*case_test)(const struct model_case *c);

static void for_all_cases(case_test test)
{
    int n;
    char **names = model_case_list(&n);
    for (int i = 0; i < n; i++) {
        struct model_case c;
        model_case_open(&c, names[i]);
        test(&c);
        model_case_done(&c);
        free(names[i]);
    }
    free(names);
}

static void check_reference(const struct model_case *c)
{
    float *out = new_logits(c);
    for (enum cpu_isa isa = CPU_ISA_SCALAR; isa <= cpu_isa_best(); isa++) {
        struct case_options options = case_options_default();
        options.isa = isa;
        double d = run_whole(c, &options, out);
        printf("%-28s %-22s max |d logit| %.2e\n", c->name, cpu_isa_name(isa), d);
        assert_true(d <= reference_tolerance);
    }
    if (test_gpu()) {
        struct case_options options = case_options_default();
        options.device = test_gpu();
        double d = run_whole(c, &options, out);
        printf("%-28s %-22s max |d logit| %.2e\n", c->name, test_gpu(), d);
        assert_true(d <= reference_tolerance);
    }
    free(out);
}

static void float_mode_equals_the_reference(void **state)
{
    (void)state;
    for_all_cases(check_reference);
}

static void check_chunks(const struct model_case *c)
{
    static const int32_t chunks[] = {1, 7, 64};
    static const int32_t page_sizes[] = {16, 4, 64};
    float *whole = new_logits(c), *out = new_logits(c);
    struct case_options options = case_options_default();
    run_whole(c, &options, whole);
    for (int i = 0; i < 3; i++) {
        struct case_engine e;
        options.page_size = page_sizes[i];
        case_engine_open(&e, c, &options, comm_self());
        case_engine_run(&e, c, chunks[i], out);
        case_engine_done(&e);
        assert_true(max_difference(out, whole, n_logits(c)) <= order_tolerance);
    }
    free(whole);
    free(out);
}

static void chunks_and_page_sizes_change_nothing(void **state)
{
    (void)state;
    for_all_cases(check_chunks);
}

/* Lengths at and beside the borders of pages and tiles, each a step of its own. */
static void check_beginnings(const struct model_case *c)
{
    static const int32_t lengths[] = {1, 63, 64, 65};
    struct case_options options = case_options_default();
    float *out = new_logits(c);
    for (int i = 0; i < 4 && lengths[i] < c->n_tokens; i++) {
        struct model_case beginning = *c;
        beginning.n_tokens = lengths[i];
        assert_true(run_whole(&beginning, &options, out) <= reference_tolerance);
    }
    free(out);
}

static void the_beginning_of_a_sequence_has_the_same_logits(void **state)
{
    (void)state;
    for_all_cases(check_beginnings);
}

/* Three copies of the sequence, at different places of their own and in one step together: one is
 * decoded token by token, one fed in sevens, one in big chunks. */
static void check_batch(const struct model_case *c)
{
    static const int32_t steps[] = {1, 7, 40};
    struct case_options options = case_options_default();
    struct case_engine e;
    struct batch batch;
    int32_t rows[3], done[3] = {0};
    float *whole = new_logits(c);
    run_whole(c, &options, whole);
    case_engine_open(&e, c, &options, comm_self());
    struct kv_cache *cache = engine_cache(e.engine);
    assert_int_equal(engine_batch_init(e.engine, &batch, NULL), OK);
    for (int i = 0; i < 3; i++)
        rows[i] = kv_cache_open_row(cache);
    while (done[0] < c->n_tokens) {
        int32_t from[3], row = 0;
        batch_clear(&batch);
        for (int i = 0; i < 3; i++) {
            int32_t left = c->n_tokens - done[i], n = left < steps[i] ? left : steps[i];
            from[i] = done[i];
            done[i] += n;
            if (n > 0)
                assert_int_equal(
                    batch_add(&batch, cache, rows[i], c->tokens + from[i], n, WANT_ALL, NULL), OK);
        }
        assert_int_equal(engine_step(e.engine, &batch, NULL), OK);
        for (int i = 0; i < 3; i++)
            for (int32_t t = from[i]; t < done[i]; t++) {
                const float *want = whole + (size_t)t * (size_t)c->vocab_size;
                double d =
                    max_difference(engine_logits(e.engine, row++), want, (size_t)c->vocab_size);
                assert_true(d <= order_tolerance);
            }
    }
    assert_true(kv_cache_check(cache));
    batch_done(&batch);
    case_engine_done(&e);
    free(whole);
}

static void neighbours_in_the_batch_change_nothing(void **state)
{
    (void)state;
    for_all_cases(check_batch);
}

/* Wanting fewer rows takes the short way through the last layer. */
static void check_want(const struct model_case *c)
{
    struct case_options options = case_options_default();
    struct case_engine e;
    struct batch batch;
    float *whole = new_logits(c);
    run_whole(c, &options, whole);
    case_engine_open(&e, c, &options, comm_self());
    struct kv_cache *cache = engine_cache(e.engine);
    assert_int_equal(engine_batch_init(e.engine, &batch, NULL), OK);
    int32_t row = kv_cache_open_row(cache), half = c->n_tokens / 2;
    if (half > 0) {
        batch_clear(&batch);
        assert_int_equal(batch_add(&batch, cache, row, c->tokens, half, WANT_NONE, NULL), OK);
        assert_int_equal(engine_step(e.engine, &batch, NULL), OK);
    }
    batch_clear(&batch);
    assert_int_equal(
        batch_add(&batch, cache, row, c->tokens + half, c->n_tokens - half, WANT_LAST, NULL), OK);
    assert_int_equal(engine_step(e.engine, &batch, NULL), OK);
    const float *want = whole + (size_t)(c->n_tokens - 1) * (size_t)c->vocab_size;
    assert_true(max_difference(engine_logits(e.engine, 0), want, (size_t)c->vocab_size) <=
                order_tolerance);
    batch_done(&batch);
    case_engine_done(&e);
    free(whole);
}

static void unwanted_rows_change_nothing(void **state)
{
    (void)state;
    for_all_cases(check_want);
}

/* Not every width has a half of whole blocks or groups: counting the weights finds out. */
static bool can_split(const struct model_case *c)
{
    struct model *model;
    struct comm two = {.rank = 0, .n_ranks = 2};
    struct device *device;
    struct cpu_options options = {.n_threads = 1};
    struct device_bytes bytes;
    if (model_configure(c->checkpoint, &two, &model, NULL) != OK)
        return false;
    assert_int_equal(cpu_device_open(&device, &options, NULL), OK);
    bool fits = model_weight_bytes(model, c->checkpoint, device, &two, 1, &bytes, NULL) == OK;
    model_free(model);
    device->table->close(device);
    return fits;
}

static int n_split;

static void check_ranks(const struct model_case *c)
{
    if (!can_split(c))
        return;
    n_split++;
    float *out[2] = {new_logits(c), new_logits(c)};
    case_run_two_ranks(c, 50, out);
    for (int i = 0; i < 2; i++) {
        double d = max_difference(out[i], c->logits, n_logits(c));
        if (d > reference_tolerance)
            printf("%s: rank %d differs by %.2e\n", c->name, i, d);
        assert_true(d <= reference_tolerance);
        free(out[i]);
    }
}

static void two_ranks_give_the_logits_of_one(void **state)
{
    (void)state;
    for_all_cases(check_ranks);
    printf("%d cases on two ranks\n", n_split);
    assert_true(n_split >= 50);
}

static double mean_square(const float *a, const float *b, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        double d = a[i] - (b ? b[i] : 0.0f);
        sum += d * d;
    }
    return sum / (double)n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct json *text_config(const struct model_case *c)
{
    const struct json *config = checkpoint_config(c->checkpoint);
    const struct json *text = json_get(config, "text_config");
    return json_is_null(text) ? config : text;
}

static bool is_mixture(const struct model_case *c)
{
    const struct json *config = text_config(c);
    return !json_is_null(json_get(config, "num_experts_per_tok")) ||
           !json_is_null(json_get(config, "moe_topk"));
}

/* The root of the mean square of a - b over that of the reference's logits. Rounding may make
 * another expert the best where two are close: of a mixture the tenth of the rows that differ most
 * does not count. */
static double rounding_error(const struct model_case *c, const float *a, const float *b)
{
    size_t n = (size_t)c->n_tokens, cols = (size_t)c->vocab_size;
    size_t n_counted = is_mixture(c) ? n - n / 10 : n;
    double *rows = malloc(n * sizeof *rows), sum = 0.0;
    for (size_t i = 0; i < n; i++)
        rows[i] = mean_square(a + i * cols, b + i * cols, cols);
    qsort(rows, n, sizeof *rows, by_value);
    for (size_t i = 0; i < n_counted; i++)
        sum += rows[i];
    free(rows);
    return sqrt(sum / (double)n_counted / mean_square(c->logits, NULL, n * cols));
}

/* Whether there is a GPU for this one of the cases of a test: the emulator, which is slow, gets
 * each fourth. */
static bool asks_gpu(int *n_cases)
{
    bool is_emulator = test_gpu() && strcmp(test_gpu(), "emulator") == 0;
    return test_gpu() && (!is_emulator || (*n_cases)++ % 4 == 0);
}

/* On one device, against the reference and the twin. */
static void check_rounded(const struct model_case *c, const struct case_options *options,
                          const float *twin, double bound, double twin_bound)
{
    float *out = new_logits(c);
    run_whole(c, options, out);
    double error = rounding_error(c, out, c->logits), to_twin = rounding_error(c, out, twin);
    printf("%-28s %s, int8: rms error %.4f of the logits (bound %.4f), to its twin %.1e\n", c->name,
           options->device ? options->device : "cpu", error, bound, to_twin);
    assert_true(error <= bound);
    assert_true(to_twin <= twin_bound);
    free(out);
}

/* int8 activations against the reference. Each linear's input is rounded to steps of max/127 a
 * group of 32; for normally distributed values max is about 2.3 sigma, so one rounding
 * adds 2.3/127/sqrt(12) = 0.52 % noise, and 4 L + 1 linears in a row add in quadrature; hybrids
 * have 6 L + 1, since what gates attention, and what makes a state decay, are rounded too. Softmax
 * and gates can double it. The twin has the same arithmetic: only values that round the other way
 * differ, and what attention makes of them in later rows. A GPU rounds the inputs of experts and of
 * some formats less, so it may be as far from the twin as the twin is from the reference. */
static void check_int8(const struct model_case *c)
{
    static const char *const quantized[] = {"gguf_q", "gguf_iq",   "gguf_mxfp4", "gguf_split",
                                            "mlx_q",  "mlx_mxfp4", "mlx_nvfp4",  "mlx_overrides",
                                            "gptq_",  "awq_",      "ct_",        "modelopt_",
                                            "fp8_"};
    static int n_cases;
    bool is_quantized = false;
    for (size_t i = 0; i < sizeof quantized / sizeof *quantized; i++)
        is_quantized = is_quantized || strncmp(c->name, quantized[i], strlen(quantized[i])) == 0;
    if (!is_quantized)
        return;
    struct case_options options = case_options_default();
    options.activations = ACTIVATIONS_INT8;
    options.isa = CPU_ISA_SCALAR;
    float *twin = new_logits(c);
    run_whole(c, &options, twin);
    struct model *model;
    assert_int_equal(model_configure(c->checkpoint, comm_self(), &model, NULL), OK);
    double n_linears = (model->states.n_layers ? 6.0 : 4.0) * model->n_layers + 1.0;
    double bound = 2.0 * 0.0052 * sqrt(n_linears);
    model_free(model);
    options.isa = cpu_isa_best();
    if (options.isa >= CPU_ISA_INT8)
        check_rounded(c, &options, twin, bound, bound / 2.0);
    if (asks_gpu(&n_cases)) {
        options.device = test_gpu();
        check_rounded(c, &options, twin, bound, bound);
    }
    free(twin);
}

static void int8_mode_stays_within_its_bound(void **state)
{
    (void)state;
    for_all_cases(check_int8);
}

/* The folder that `csgl quantize` writes of a model computes what the model does that is quantized
 * while it is loaded. */
static void check_written(const struct model_case *c)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char out[] = "written-XXXXXX", path[64];
    struct model_case written = *c;
    struct checkpoint *floats;
    struct error error = {0};
    if (!c->bits)
        return;
    assert_non_null(mkdtemp(out)); /* for its name */
    assert_int_equal(rmdir(out), 0);
    struct quantize_request request = {
        .out = out, .bits = c->bits, .group = c->group, .shard_bytes = 1 << 30, .n_threads = 2};
    assert_int_equal(checkpoint_open(&floats, checkpoint_path(c->checkpoint), &error), OK);
    if (checkpoint_write_quantized(floats, &request, &error) != OK ||
        checkpoint_open(&written.checkpoint, out, &error) != OK)
        fail_msg("%s", error.message);
    struct case_options options = case_options_default();
    float *logits = new_logits(c);
    double d = run_whole(&written, &options, logits);
    printf("%-28s written: max |d logit| %.2e\n", c->name, d);
    assert_true(d <= reference_tolerance);
    free(logits);
    checkpoint_free(written.checkpoint);
    checkpoint_free(floats);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", out, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(out), 0);
}

static void a_written_quantization_equals_the_one_at_load(void **state)
{
    (void)state;
    for_all_cases(check_written);
}

/* bf16 and f16 KV round K and V to 8 and 11 bits: relative 2^-9 and 2^-12 each. int8 has steps of
 * max/127, 0.6 % noise where max is 2.5 sigma, and a mixture may choose other experts for it. A GPU
 * stores the same. */
static void check_narrow_kv(const struct model_case *c)
{
    static int n_cases;
    bool has_gpu = asks_gpu(&n_cases);
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_I8};
    const double bounds[] = {0.02, 0.003, is_mixture(c) ? 0.1 : 0.04};
    float *out = new_logits(c), *of_gpu = new_logits(c);
    for (int i = 0; i < 3; i++) {
        struct case_options options = case_options_default();
        options.kv_dtype = dtypes[i];
        run_whole(c, &options, out);
        double error = rounding_error(c, out, c->logits), between = 0.0;
        if (has_gpu) {
            options.device = test_gpu();
            run_whole(c, &options, of_gpu);
            between = rounding_error(c, of_gpu, out);
        }
        if (dtypes[i] == DTYPE_I8)
            printf("%-28s int8 KV: rms error %.4f of the logits, of a GPU to the CPU %.1e\n",
                   c->name, error, between);
        assert_true(error <= bounds[i] && between <= bounds[i] / 10);
    }
    free(out);
    free(of_gpu);
}

static void narrow_kv_stays_within_its_rounding(void **state)
{
    (void)state;
    for_all_cases(check_narrow_kv);
}

/* What the operations share is what the plan said before anything was loaded. */
static void check_workspace(const struct model_case *c)
{
    static const enum activations modes[] = {ACTIVATIONS_FLOAT, ACTIVATIONS_INT8};
    for (int i = 0; i < 2; i++) {
        struct case_options options = case_options_default();
        options.activations = modes[i];
        if (modes[i] == ACTIVATIONS_INT8 && cpu_isa_best() < CPU_ISA_INT8)
            continue;
        struct case_engine e;
        case_engine_open(&e, c, &options, comm_self());
        const struct memory_plan *p = engine_plan(e.engine);
        size_t logits = forward_tensor_bytes(4 * c->n_tokens, c->vocab_size);
        size_t reserved = cpu_device_of(e.device)->workspace.bytes;
        if (p->workspace != p->scratch_bytes + logits + reserved)
            fail_msg("%s: %zu bytes are planned and %zu taken", c->name,
                     (size_t)p->workspace - p->scratch_bytes - logits, reserved);
        case_engine_done(&e);
    }
}

static void the_plan_counts_what_the_device_shares(void **state)
{
    (void)state;
    for_all_cases(check_workspace);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_mode_equals_the_reference),
        cmocka_unit_test(the_beginning_of_a_sequence_has_the_same_logits),
        cmocka_unit_test(chunks_and_page_sizes_change_nothing),
        cmocka_unit_test(neighbours_in_the_batch_change_nothing),
        cmocka_unit_test(unwanted_rows_change_nothing),
        cmocka_unit_test(two_ranks_give_the_logits_of_one),
        cmocka_unit_test(int8_mode_stays_within_its_bound),
        cmocka_unit_test(a_written_quantization_equals_the_one_at_load),
        cmocka_unit_test(narrow_kv_stays_within_its_rounding),
        cmocka_unit_test(the_plan_counts_what_the_device_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
