/* SmolLM2-135M-Instruct's own weights: greedy text and perplexity are transformers' on the
 * dequantized file (recorded by tools/make_smollm2_reference.py). Skipped when CSGL_TEST_MODEL
 * names no file. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/options.h"
#include "device/cpu/cpu.h"
#include "device/device_open.h"
#include "engine/engine.h"
#include "test_gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER SOURCE_DIR "/tests/models/smollm2/"

/* Logits of the real model differ from float32 transformers by at most this; a near-tie is a
 * position whose two best differ by less than four times as much (architecture, Numerics). */
static const double logit_tolerance = 2e-3;

enum { CHUNK = 256, MAX_TOKENS = 2048 };

struct reference {
    struct str text;
    struct arena arena;
    struct json root;
};

struct real_engine {
    struct checkpoint *checkpoint;
    struct device *device;
    struct engine *engine;
    struct batch batch;
};

static void expect_ok(enum status status, const struct error *error)
{
    if (status != OK)
        fail_msg("%s", error->message);
}

static void reference_open(struct reference *r)
{
    struct error error;
    *r = (struct reference){0};
    expect_ok(file_read(FOLDER "reference.json", 4 << 20, &r->text, &error), &error);
    expect_ok(json_parse(&r->arena, r->text.data, r->text.len, &r->root, &error), &error);
}

static void reference_done(struct reference *r)
{
    str_done(&r->text);
    arena_done(&r->arena);
}

static void real_engine_open(struct real_engine *e, const char *device,
                             enum activations activations, enum dtype kv_dtype)
{
    struct error error = {0};
    struct cpu_options cpu = {.n_threads = 2, .isa = cpu_isa_best(), .activations = activations};
    struct memory_request request = {.kv_dtype = kv_dtype,
                                     .page_size = 16,
                                     .max_running = 1,
                                     .context_length = MAX_TOKENS,
                                     .max_step_tokens = CHUNK,
                                     .max_want = CHUNK,
                                     .memory_ratio = 0.9};
    *e = (struct real_engine){0};
    expect_ok(checkpoint_open(&e->checkpoint, options_environment("CSGL_TEST_MODEL"), &error),
              &error);
    expect_ok(device_open(&e->device, device, &cpu, &error), &error);
    expect_ok(engine_open(&e->engine, e->checkpoint, e->device, comm_self(), &request, NULL, NULL,
                          &error),
              &error);
    expect_ok(engine_batch_init(e->engine, &e->batch, &error), &error);
}

static void real_engine_done(struct real_engine *e)
{
    batch_done(&e->batch);
    engine_free(e->engine);
    e->device->table->close(e->device);
    checkpoint_free(e->checkpoint);
}

static int32_t read_tokens(const struct json *list, int32_t *out)
{
    assert_non_null(list);
    assert_true(list->n <= MAX_TOKENS);
    for (size_t i = 0; i < list->n; i++)
        out[i] = (int32_t)json_number(&list->items[i], -1);
    return (int32_t)list->n;
}

static void feed(struct real_engine *e, int32_t row, const int32_t *tokens, int32_t n,
                 enum batch_want want)
{
    struct error error;
    batch_clear(&e->batch);
    expect_ok(batch_add(&e->batch, engine_cache(e->engine), row, tokens, n, want, &error), &error);
    expect_ok(engine_step(e->engine, &e->batch, &error), &error);
}

static int32_t argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Continues greedily; returns the first position that differs, or n if none does. */
static int32_t first_difference(struct real_engine *e, const struct json *prompt,
                                const struct json *answer)
{
    static int32_t tokens[MAX_TOKENS], want[MAX_TOKENS];
    int32_t n_prompt = read_tokens(prompt, tokens), n = read_tokens(answer, want), i = 0;
    int32_t vocab_size = engine_model(e->engine)->vocab_size;
    int32_t row = kv_cache_open_row(engine_cache(e->engine));
    feed(e, row, tokens, n_prompt, WANT_LAST);
    for (; i < n && argmax(engine_logits(e->engine, 0), vocab_size) == want[i]; i++)
        feed(e, row, &want[i], 1, WANT_LAST);
    kv_cache_close_row(engine_cache(e->engine), row);
    return i;
}

static void expect_greedy_reference(const struct reference *r, const char *device)
{
    struct real_engine e;
    int n_diverged = 0;
    real_engine_open(&e, device, ACTIVATIONS_FLOAT, DTYPE_F32);
    const struct json *prompts = json_get(&r->root, "prompts");
    for (size_t i = 0; i < prompts->n; i++) {
        const struct json *p = &prompts->items[i];
        const struct json *gaps = json_get(p, "gaps");
        const struct json *continuation = json_get(p, "continuation");
        int32_t at = first_difference(&e, json_get(p, "tokens"), continuation);
        if ((size_t)at == continuation->n)
            continue;
        double gap = json_number(&gaps->items[at], INFINITY);
        printf("prompt %zu leaves the reference at token %d, where its two best differ by %.5f\n",
               i, (int)at, gap);
        assert_true(gap < 4 * logit_tolerance);
        n_diverged++;
    }
    printf("%s: %d of %zu prompts left the reference at a near-tie\n", device ? device : "cpu",
           n_diverged, prompts->n);
    assert_true(n_diverged * 10 <= (int)prompts->n);
    const struct json *chat = json_get(&r->root, "chat");
    assert_int_equal(first_difference(&e, json_get(chat, "tokens"), json_get(chat, "answer")),
                     json_get(chat, "answer")->n);
    real_engine_done(&e);
}

/* A GPU of silicon; an emulator takes too long. */
static const char *silicon_gpu(void)
{
    return test_gpu() && strcmp(test_gpu(), "emulator") != 0 ? test_gpu() : NULL;
}

static void greedy_text_is_the_reference(void **state)
{
    (void)state;
    struct reference r;
    reference_open(&r);
    expect_greedy_reference(&r, NULL);
    if (silicon_gpu())
        expect_greedy_reference(&r, silicon_gpu());
    reference_done(&r);
}

static double negative_log_likelihood(const float *logits, int32_t n, int32_t token)
{
    double max = logits[argmax(logits, n)], sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    return max + log(sum) - logits[token];
}

static double perplexity(const struct reference *r, const char *device,
                         enum activations activations, enum dtype kv_dtype)
{
    static int32_t tokens[MAX_TOKENS];
    struct real_engine e;
    const struct json *p = json_get(&r->root, "perplexity");
    int32_t n = read_tokens(json_get(p, "tokens"), tokens);
    double sum = 0.0;
    real_engine_open(&e, device, activations, kv_dtype);
    int32_t vocab_size = engine_model(e.engine)->vocab_size;
    int32_t row = kv_cache_open_row(engine_cache(e.engine));
    for (int32_t from = 0; from + 1 < n; from += CHUNK) {
        int32_t chunk = n - 1 - from < CHUNK ? n - 1 - from : CHUNK;
        feed(&e, row, tokens + from, chunk, WANT_ALL);
        for (int32_t i = 0; i < chunk; i++)
            sum += negative_log_likelihood(engine_logits(e.engine, i), vocab_size,
                                           tokens[from + i + 1]);
    }
    real_engine_done(&e);
    return exp(sum / (n - 1));
}

/* A cache's types are judged by what they add to the same arithmetic's perplexity with the wider
 * one before them, arithmetic by the reference. Of so short a text, rounding alone moves the
 * perplexity of int4 by half a percent between two kinds of processors. */
static void perplexity_is_the_reference(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum activations activations;
        enum dtype kv_dtype;
        int base; /* of these modes; -1: the reference */
        double bound;
        bool is_gpu;
    } modes[] = {
        {"float, f32 KV", ACTIVATIONS_FLOAT, DTYPE_F32, -1, 0.0005, false},
        {"float, bf16 KV", ACTIVATIONS_FLOAT, DTYPE_BF16, -1, 0.005, false},
        {"float, int8 KV", ACTIVATIONS_FLOAT, DTYPE_I8, 0, 0.001, false},
        {"float, int4 KV", ACTIVATIONS_FLOAT, DTYPE_I4, 0, 0.02, false},
        {"auto, bf16 KV", ACTIVATIONS_AUTO, DTYPE_BF16, -1, 0.005, false},
        {"auto, int8 KV", ACTIVATIONS_AUTO, DTYPE_I8, 4, 0.002, false},
        {"auto, int4 KV", ACTIVATIONS_AUTO, DTYPE_I4, 4, 0.02, false},
        {"GPU, float, int8 KV", ACTIVATIONS_FLOAT, DTYPE_I8, 0, 0.001, true},
        {"GPU, bf16 KV", ACTIVATIONS_AUTO, DTYPE_BF16, -1, 0.005, true},
        {"GPU, int8 KV", ACTIVATIONS_AUTO, DTYPE_I8, 8, 0.002, true},
    };
    enum { N_MODES = sizeof modes / sizeof modes[0] };
    double got[N_MODES];
    struct reference r;
    reference_open(&r);
    double reference = json_number(json_get(json_get(&r.root, "perplexity"), "perplexity"), NAN);
    for (int i = 0; i < N_MODES; i++) {
        if (modes[i].is_gpu && !silicon_gpu())
            continue;
        int base = modes[i].base;
        double want = base < 0 ? reference : got[base];
        got[i] = perplexity(&r, modes[i].is_gpu ? silicon_gpu() : NULL, modes[i].activations,
                            modes[i].kv_dtype);
        printf("%-19s perplexity %.5f, %s %.5f: %+.4f %%\n", modes[i].name, got[i],
               base < 0 ? "reference" : modes[base].name, want, 100.0 * (got[i] / want - 1.0));
        assert_true(fabs(got[i] / want - 1.0) <= modes[i].bound);
    }
    reference_done(&r);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const char *model = options_environment("CSGL_TEST_MODEL");
    if (!model || !file_exists(model)) {
        printf(
            "skipped: CSGL_TEST_MODEL names no file; scripts/fetch-model.sh fetches the model\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_the_reference),
        cmocka_unit_test(perplexity_is_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
