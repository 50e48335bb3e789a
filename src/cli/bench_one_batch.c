/* csgl bench_one_batch: prefill and decode speed of one batch of random tokens, without scheduler,
 * tokenizer, sampling or text: what the engine itself does. */
#include "base/log.h"
#include "base/system.h"
#include "bench/rng.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench_common.h"
#include "cli/commands.h"
#include "cli/model_path.h"
#include "device/comm/comm.h"
#include "device/device_open.h"
#include "engine/engine.h"

#include <stdlib.h>

enum { MAX_RUNS = 100 };

/* One point of the sweep. */
struct shape {
    int batch_size, input_len, output_len;
};

struct bench {
    struct model_options model;
    const char *batch_sizes, *input_lens, *output_lens, *output_file;
    struct int_list batch_list, input_list, output_list;
    int runs;
    double seed;
    bool is_json;
    struct profile_flags profile;
    struct checkpoint *checkpoint;
    struct device *device;
    struct engine *engine;
    struct batch batch;
    int32_t *rows, *tokens;
    uint64_t random;
    /* While a profile is made: */
    struct trace *trace;
    struct profile *ops;
    long step;
};

static enum status open_engine(struct bench *b, struct error *error)
{
    int batch_size = int_list_max(&b->batch_list), input_len = int_list_max(&b->input_list);
    int32_t length = input_len + int_list_max(&b->output_list);
    struct cpu_options cpu = {.n_threads = b->model.threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)b->model.activations};
    struct memory_request request = {.kv_dtype = kv_dtype_of_word(b->model.kv_cache_dtype),
                                     .page_size = 16,
                                     .max_running = batch_size,
                                     .context_length = length,
                                     .max_step_tokens =
                                         input_len > batch_size ? input_len : batch_size,
                                     .max_want = batch_size,
                                     .memory_ratio = b->model.memory_ratio,
                                     .n_processes = 1};
    enum status status = options_checkpoint(&b->model, &b->checkpoint, error);
    if (status == OK)
        status = device_open(&b->device, b->model.device, &cpu, error);
    if (status == OK)
        status = engine_open(&b->engine, b->checkpoint, b->device, comm_self(), &request,
                             b->is_json ? NULL : progress_if_terminal(), NULL, error);
    if (status == OK)
        status = engine_batch_init(b->engine, &b->batch, error);
    b->rows = calloc((size_t)batch_size, sizeof *b->rows);
    b->tokens = calloc((size_t)length, sizeof *b->tokens);
    return status == OK && (!b->rows || !b->tokens)
               ? error_memory(error, (unsigned long long)length)
               : status;
}

static void close_engine(struct bench *b)
{
    batch_done(&b->batch);
    engine_free(b->engine);
    if (b->device)
        b->device->table->close(b->device);
    checkpoint_free(b->checkpoint);
    free(b->rows);
    free(b->tokens);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void draw_tokens(struct bench *b, int32_t n)
{
    int32_t last = engine_model(b->engine)->vocab_size - 1;
    for (int32_t i = 0; i < n; i++)
        b->tokens[i] = rng_int(&b->random, 0, last);
}

static enum status run_step(struct bench *b, struct error *error)
{
    if (!b->ops)
        return engine_step(b->engine, &b->batch, error);
    bool is_wanted = profile_flags_wants(&b->profile, b->step++);
    const struct batch *batch = &b->batch;
    bool is_prefill = batch->n_tokens > batch->n_sequences;
    engine_profile(b->engine, is_wanted ? b->ops : NULL);
    double begin = system_seconds();
    enum status status = engine_step(b->engine, batch, error);
    if (is_wanted)
        trace_record(b->trace,
                     &(struct trace_event){.kind = TRACE_STEP,
                                           .phase = is_prefill ? TRACE_PREFILL : TRACE_DECODE,
                                           .name = is_prefill ? "prefill" : "decode",
                                           .begin = begin,
                                           .end = system_seconds(),
                                           .values = {batch->n_tokens, batch->n_sequences}});
    return status;
}

/* Feeds each row its prompt, one row a step. */
static enum status prefill(struct bench *b, const struct shape *s, struct error *error)
{
    for (int i = 0; i < s->batch_size; i++) {
        draw_tokens(b, s->input_len);
        batch_clear(&b->batch);
        enum status status = batch_add(&b->batch, engine_cache(b->engine), b->rows[i], b->tokens,
                                       s->input_len, WANT_LAST, error);
        if (status == OK)
            status = run_step(b, error);
        if (status != OK)
            return status;
    }
    return OK;
}

/* One token for every row. */
static enum status decode(struct bench *b, const struct shape *s, struct error *error)
{
    batch_clear(&b->batch);
    for (int i = 0; i < s->batch_size; i++) {
        draw_tokens(b, 1);
        enum status status = batch_add(&b->batch, engine_cache(b->engine), b->rows[i], b->tokens, 1,
                                       WANT_LAST, error);
        if (status != OK)
            return status;
    }
    return run_step(b, error);
}

/* Seconds of the parts of one run. */
struct timing {
    double prefill, decode;
};

static enum status run_once(struct bench *b, const struct shape *s, struct timing *out,
                            struct samples *gaps, struct error *error)
{
    struct kv_cache *cache = engine_cache(b->engine);
    for (int i = 0; i < s->batch_size; i++)
        b->rows[i] = kv_cache_open_row(cache);
    double start = system_seconds();
    enum status status = prefill(b, s, error);
    double middle = system_seconds(), before = middle;
    for (int n = 0; n < s->output_len && status == OK; n++) {
        status = decode(b, s, error);
        double now = system_seconds();
        samples_add(gaps, now - before);
        before = now;
    }
    *out = (struct timing){middle - start, before - middle};
    for (int i = 0; i < s->batch_size; i++)
        kv_cache_close_row(cache, b->rows[i]);
    return status;
}

/* --- one shape -------------------------------------------------------------------------------- */

static enum status write_report(struct bench *b, const struct shape *s, struct samples *prefills,
                                struct samples *decodes, struct samples *gaps, struct error *error)
{
    struct report r = {0};
    double prefill_s = samples_summary(prefills).median, decode_s = samples_summary(decodes).median;
    report_text(&r, "benchmark", NULL, "one_batch");
    report_text(&r, "model", NULL, b->model.model_path);
    report_int(&r, "batch_size", "batch size", s->batch_size);
    report_int(&r, "input_len", "input tokens of each", s->input_len);
    report_int(&r, "output_len", "output tokens of each", s->output_len);
    report_int(&r, "runs", "runs (medians)", b->runs);
    report_number(&r, "prefill_tokens_per_s", "prefill, tokens/s",
                  s->batch_size * s->input_len / prefill_s);
    report_number(&r, "decode_tokens_per_s", "decode, tokens/s",
                  s->batch_size * s->output_len / decode_s);
    report_number(&r, "total_latency_s", "latency, s", prefill_s + decode_s);
    report_times(&r, "ttft", "prefill of the batch, ms", prefills);
    report_times(&r, "itl", "decode step, ms", gaps);
    enum status status = report_finish(&r, b->is_json, b->output_file, error);
    report_done(&r);
    return status;
}

static enum status measure(struct bench *b, const struct shape *s, struct error *error)
{
    struct samples prefills = {0}, decodes = {0}, gaps = {0}, warm_up = {0};
    struct timing t;
    enum status status = run_once(b, s, &t, &warm_up, error);
    for (int run = 0; run < b->runs && status == OK; run++) {
        status = run_once(b, s, &t, &gaps, error);
        samples_add(&prefills, t.prefill);
        samples_add(&decodes, t.decode);
    }
    if (status == OK)
        status = prefills.failed || decodes.failed || gaps.failed
                     ? error_memory(error, sizeof t)
                     : write_report(b, s, &prefills, &decodes, &gaps, error);
    samples_done(&prefills);
    samples_done(&decodes);
    samples_done(&gaps);
    samples_done(&warm_up);
    return status;
}

/* The CPU's limits are measured beside. */
static enum status print_profile(struct bench *b, struct error *error)
{
    enum arithmetic arithmetic =
        device_activations(b->device) == ACTIVATIONS_INT8 ? ARITHMETIC_INT8 : ARITHMETIC_F32;
    bool is_cpu = device_is_cpu(b->device);
    struct cpu_limits limits;
    enum status status =
        is_cpu ? cpu_measure(&limits, b->model.threads, cpu_isa_best(), error) : OK;
    if (status != OK)
        return status;
    print_ops(b->ops, TRACE_PREFILL, is_cpu ? &limits : NULL, arithmetic);
    print_ops(b->ops, TRACE_DECODE, is_cpu ? &limits : NULL, arithmetic);
    if (is_cpu)
        printf("limits: %.1f GB/s read from memory, %.0f GOP/s %s; ",
               limits.bytes_per_s[PAGES_HUGE][1] * 1e-9,
               limits.operations_per_s[arithmetic][1] * 1e-9,
               arithmetic == ARITHMETIC_INT8 ? "int8" : "f32");
    printf("the trace is in %s\n", b->profile.output);
    return OK;
}

/* One more run of the shape under the profiler, so that the timed ones are not disturbed. */
static enum status profile_shape(struct bench *b, const struct shape *s, struct error *error)
{
    struct samples gaps = {0};
    struct timing t;
    b->step = 0;
    enum status status = trace_new(&b->trace, NULL, "csgl", 1, TRACE_DEFAULT_EVENTS, error);
    if (status == OK)
        status = profile_new(&b->ops, b->device, error);
    if (status == OK) {
        profile_trace(b->ops, b->trace);
        status = run_once(b, s, &t, &gaps, error);
        engine_profile(b->engine, NULL);
    }
    if (status == OK)
        status = trace_write(b->profile.output, &b->trace, 1, error);
    if (status == OK && !b->is_json)
        status = print_profile(b, error);
    profile_free(b->ops);
    b->ops = NULL;
    trace_free(b->trace);
    b->trace = NULL;
    samples_done(&gaps);
    return status;
}

static int run(struct bench *b)
{
    struct error error;
    struct shape last = {0};
    enum status status = open_engine(b, &error);
    for (int i = 0; i < b->batch_list.n; i++)
        for (int k = 0; k < b->input_list.n; k++)
            for (int m = 0; m < b->output_list.n && status == OK; m++) {
                last = (struct shape){b->batch_list.values[i], b->input_list.values[k],
                                      b->output_list.values[m]};
                status = measure(b, &last, &error);
            }
    if (status == OK && b->profile.is_on)
        status = profile_shape(b, &last, &error);
    if (status != OK)
        log_error("%s", error.message);
    close_engine(b);
    return status == OK ? 0 : 1;
}

static int parse_lists(struct bench *b)
{
    int exit_status = int_list_parse(&b->batch_list, "--batch-size", b->batch_sizes, 1, 1024);
    if (!exit_status)
        exit_status = int_list_parse(&b->input_list, "--input-len", b->input_lens, 1, 1 << 16);
    if (!exit_status)
        exit_status = int_list_parse(&b->output_list, "--output-len", b->output_lens, 1, 1 << 16);
    return exit_status;
}

int command_bench_one_batch(int argc, char **argv)
{
    struct bench b = {.model = model_options_default(),
                      .batch_sizes = "1",
                      .input_lens = "512",
                      .output_lens = "128",
                      .seed = 1,
                      .profile.output = "csgl-trace.json",
                      .runs = 5};
    const struct option options[] = {
        MODEL_OPTIONS(b.model),
        {"--batch-size", "--batch", OPTION_STRING, &b.batch_sizes, "N,...", 0, 0,
         "sequences at once; several make a sweep"},
        {"--input-len", NULL, OPTION_STRING, &b.input_lens, "TOKENS,...", 0, 0,
         "prompt tokens of each sequence"},
        {"--output-len", NULL, OPTION_STRING, &b.output_lens, "TOKENS,...", 0, 0, "decode steps"},
        {"--runs", NULL, OPTION_INT, &b.runs, "N", 1, MAX_RUNS, "runs; the median is reported"},
        {"--seed", NULL, OPTION_NUMBER, &b.seed, "N", 0, 9007199254740992.0, "of the tokens"},
        PROFILE_OPTIONS(b.profile),
        {"--output-file", NULL, OPTION_STRING, &b.output_file, "FILE", 0, 0,
         "append a line of JSON for each shape"},
        {"--json", NULL, OPTION_FLAG, &b.is_json, NULL, 0, 0, "print lines of JSON"},
    };
    struct command_line line = {.usage = "csgl bench_one_batch --model-path PATH [options]",
                                .about = "Times prefill and decode of one batch of random tokens.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    exit_status = parse_lists(&b);
    if (exit_status)
        return exit_status;
    b.random = (uint64_t)b.seed;
    if (b.model.is_quiet || b.is_json)
        log_set_level(LOG_WARN);
    exit_status = model_path_resolve(&b.model);
    if (!exit_status)
        exit_status = run(&b);
    model_path_done(&b.model);
    return exit_status;
}
