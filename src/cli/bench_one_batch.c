/* csgl bench_one_batch: prefill and decode speed of one batch of random tokens, without tokenizer,
 * sampling or text: what the engine itself does. */
#include "base/log.h"
#include "base/system.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/model_path.h"
#include "device/comm/comm.h"
#include "device/cpu/cpu.h"
#include "engine/engine.h"

#include <stdlib.h>

struct bench {
    struct model_options model;
    int batch_size, input_len, output_len, runs;
    bool is_json;
    struct checkpoint *checkpoint;
    struct device *device;
    struct engine *engine;
    struct batch batch;
    int32_t *rows, *tokens;
};

static enum status open_engine(struct bench *b, struct error *error)
{
    int32_t length = b->input_len + b->output_len;
    struct cpu_options cpu = {.n_threads = b->model.threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)b->model.activations};
    struct memory_request request = {
        .kv_dtype = kv_dtype_of_word(b->model.kv_cache_dtype),
        .page_size = 16,
        .max_running = b->batch_size,
        .context_length = length,
        .max_step_tokens = b->input_len > b->batch_size ? b->input_len : b->batch_size,
        .max_want = b->batch_size,
        .memory_ratio = b->model.memory_ratio};
    enum status status = checkpoint_open(&b->checkpoint, b->model.path, error);
    if (status == OK)
        status = checkpoint_quantize_as(b->checkpoint, b->model.quantization, error);
    if (status == OK)
        status = cpu_device_open(&b->device, &cpu, error);
    if (status == OK)
        status = engine_open(&b->engine, b->checkpoint, b->device, comm_self(), &request, NULL,
                             NULL, error);
    if (status == OK)
        status = engine_batch_init(b->engine, &b->batch, error);
    b->rows = calloc((size_t)b->batch_size, sizeof *b->rows);
    b->tokens = calloc((size_t)length, sizeof *b->tokens);
    return status == OK && (!b->rows || !b->tokens)
               ? error_memory(error, (unsigned long long)length)
               : status;
}

static void fill_tokens(struct bench *b, uint32_t *state, int32_t n)
{
    uint32_t vocab_size = (uint32_t)engine_model(b->engine)->vocab_size;
    for (int32_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u; /* Numerical Recipes' LCG: any tokens will do */
        b->tokens[i] = (int32_t)((*state >> 8) % vocab_size);
    }
}

/* Feeds n tokens to each row, one row a step (prefill) or all in one (decode). */
static enum status prefill(struct bench *b, uint32_t *state, struct error *error)
{
    struct kv_cache *cache = engine_cache(b->engine);
    for (int i = 0; i < b->batch_size; i++) {
        fill_tokens(b, state, b->input_len);
        batch_clear(&b->batch);
        enum status status =
            batch_add(&b->batch, cache, b->rows[i], b->tokens, b->input_len, WANT_LAST, error);
        if (status == OK)
            status = engine_step(b->engine, &b->batch, error);
        if (status != OK)
            return status;
    }
    return OK;
}

static enum status decode(struct bench *b, uint32_t *state, struct error *error)
{
    struct kv_cache *cache = engine_cache(b->engine);
    for (int n = 0; n < b->output_len; n++) {
        batch_clear(&b->batch);
        for (int i = 0; i < b->batch_size; i++) {
            fill_tokens(b, state, 1);
            enum status status =
                batch_add(&b->batch, cache, b->rows[i], b->tokens, 1, WANT_LAST, error);
            if (status != OK)
                return status;
        }
        enum status status = engine_step(b->engine, &b->batch, error);
        if (status != OK)
            return status;
    }
    return OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

enum { MAX_RUNS = 100 };

static enum status measure(struct bench *b, double *prefill_rate, double *decode_rate,
                           struct error *error)
{
    double prefill_rates[MAX_RUNS], decode_rates[MAX_RUNS];
    struct kv_cache *cache = engine_cache(b->engine);
    uint32_t state = 1;
    for (int run = -1; run < b->runs; run++) { /* the first warms up and is not counted */
        for (int i = 0; i < b->batch_size; i++)
            b->rows[i] = kv_cache_open_row(cache);
        double start = system_seconds();
        enum status status = prefill(b, &state, error);
        double middle = system_seconds();
        if (status == OK)
            status = decode(b, &state, error);
        double end = system_seconds();
        if (status != OK)
            return status;
        for (int i = 0; i < b->batch_size; i++)
            kv_cache_close_row(cache, b->rows[i]);
        if (run >= 0) {
            prefill_rates[run] = b->batch_size * b->input_len / (middle - start);
            decode_rates[run] = b->batch_size * b->output_len / (end - middle);
        }
    }
    *prefill_rate = median(prefill_rates, b->runs);
    *decode_rate = median(decode_rates, b->runs);
    return OK;
}

static int run(struct bench *b)
{
    struct error error;
    double prefill_rate = 0.0, decode_rate = 0.0;
    enum status status = open_engine(b, &error);
    if (status == OK)
        status = measure(b, &prefill_rate, &decode_rate, &error);
    if (status != OK)
        log_error("%s", error.message);
    else if (b->is_json)
        printf("{\"batch_size\": %d, \"input_len\": %d, \"output_len\": %d, "
               "\"prefill_tokens_per_s\": %.2f, \"decode_tokens_per_s\": %.2f}\n",
               b->batch_size, b->input_len, b->output_len, prefill_rate, decode_rate);
    else
        printf("batch %d, input %d, output %d: prefill %.1f tokens/s, decode %.1f tokens/s "
               "(median of %d)\n",
               b->batch_size, b->input_len, b->output_len, prefill_rate, decode_rate, b->runs);
    batch_done(&b->batch);
    engine_free(b->engine);
    if (b->device)
        b->device->table->close(b->device);
    checkpoint_free(b->checkpoint);
    free(b->rows);
    free(b->tokens);
    return status == OK ? 0 : 1;
}

int command_bench_one_batch(int argc, char **argv)
{
    struct bench b = {.model = model_options_default(),
                      .batch_size = 1,
                      .input_len = 512,
                      .output_len = 128,
                      .runs = 5};
    const struct option options[] = {
        MODEL_OPTIONS(b.model),
        {"--batch-size", "--batch", OPTION_INT, &b.batch_size, "N", 1, 1024, "sequences at once"},
        {"--input-len", NULL, OPTION_INT, &b.input_len, "TOKENS", 1, 1 << 16,
         "prompt tokens of each sequence"},
        {"--output-len", NULL, OPTION_INT, &b.output_len, "TOKENS", 1, 1 << 16, "decode steps"},
        {"--runs", NULL, OPTION_INT, &b.runs, "N", 1, MAX_RUNS, "runs; the median is reported"},
        {"--json", NULL, OPTION_FLAG, &b.is_json, NULL, 0, 0, "print one JSON object"},
    };
    struct command_line line = {.usage = "csgl bench_one_batch --model-path PATH [options]",
                                .about = "Times prefill and decode of one batch of random tokens.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (b.model.is_quiet || b.is_json)
        log_set_level(LOG_WARN);
    exit_status = model_path_resolve(&b.model);
    if (!exit_status)
        exit_status = run(&b);
    model_path_done(&b.model);
    return exit_status;
}
