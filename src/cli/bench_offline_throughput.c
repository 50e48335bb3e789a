/* csgl bench_offline_throughput: a dataset through scheduler and engine in one process, all
 * requests at once: the most tokens a second that serving can reach. */
#include "base/log.h"
#include "base/system.h"
#include "bench/progress.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench_common.h"
#include "cli/bench_encode.h"
#include "cli/commands.h"
#include "cli/model_path.h"
#include "device/comm/comm.h"
#include "device/device_open.h"
#include "scheduler/scheduler.h"

#include <stdlib.h>

struct bench {
    struct model_options model;
    struct dataset_flags dataset_flags;
    struct profile_flags profile;
    const char *output_file;
    int max_running, page_size;
    bool is_naive, is_json;
    struct checkpoint *checkpoint;
    struct text_model text;
    struct bench_encoder encoder;
    struct dataset dataset;
    struct device *device;
    struct engine *engine;
    struct engine_executor executor;
    struct scheduler *scheduler;
    struct trace *trace;
    /* What came of it: */
    double start;
    int n_done;
    int64_t n_input, n_cached, n_output;
    struct samples first, end; /* seconds from the start */
    char failure[256];
};

static enum status open_model_parts(struct bench *b, struct error *error)
{
    struct cpu_options cpu = {.n_threads = b->model.threads,
                              .isa = cpu_isa_best(),
                              .activations = (enum activations)b->model.activations};
    struct memory_request request = {
        .kv_dtype = kv_dtype_of_word(b->model.kv_cache_dtype),
        .cache_type = b->is_naive ? KV_CACHE_NAIVE : KV_CACHE_RADIX,
        .page_size = b->page_size,
        .max_running = b->max_running,
        .context_length = b->model.context_length,
        .max_step_tokens = b->model.max_prefill_length + b->max_running,
        .max_want = b->max_running,
        .memory_ratio = b->model.memory_ratio,
        .kv_cache_bytes = (uint64_t)(b->model.kv_cache_gb * 1024.0 * 1024.0 * 1024.0)};
    enum status status = options_checkpoint(&b->model, &b->checkpoint, error);
    if (status == OK)
        status = text_model_open(&b->text, b->checkpoint, NULL, error);
    if (status == OK)
        status = bench_encoder_init(&b->encoder, &b->text, error);
    if (status == OK)
        status = device_open(&b->device, b->model.device, &cpu, error);
    if (status == OK) {
        request.n_processes = 1;
        request.text_bytes = tokenizer_memory(b->text.tokenizer) + ENCODER_DEFAULT_CACHE_BYTES;
    }
    if (status == OK)
        status = engine_open(&b->engine, b->checkpoint, b->device, comm_self(), &request,
                             b->is_json ? NULL : progress_if_terminal(), NULL, error);
    if (status == OK)
        status =
            engine_executor_init(&b->executor, b->engine, tokenizer_size(b->text.tokenizer), error);
    return status;
}

static void on_event(void *context, const struct token_event *e)
{
    struct bench *b = context;
    double now = system_seconds() - b->start;
    if (e->finish == FINISH_NONE)
        return;
    if (e->finish == FINISH_ERROR)
        snprintf(b->failure, sizeof b->failure, "%s", e->error);
    samples_add(&b->first, e->queue_seconds + e->prefill_seconds);
    samples_add(&b->end, now);
    b->n_input += e->n_prompt;
    b->n_cached += e->n_cached;
    b->n_output += e->n_output;
    b->n_done++;
}

static enum status open_scheduler(struct bench *b, struct error *error)
{
    struct dataset_options data = dataset_flags_read(&b->dataset_flags);
    data.vocab_size = tokenizer_size(b->text.tokenizer);
    if (data.vocab_size > engine_model(b->engine)->vocab_size)
        data.vocab_size = engine_model(b->engine)->vocab_size;
    data.encode = bench_encode;
    data.encode_context = &b->encoder;
    enum status status = dataset_make(&b->dataset, &data, error);
    struct scheduler_options options = {.policy = POLICY_PREFILL_FIRST,
                                        .max_running = b->max_running,
                                        .max_queue = b->dataset.n ? b->dataset.n : 1,
                                        .max_prefill_length = b->model.max_prefill_length,
                                        .max_step_seconds = 1e9, /* nobody waits for an answer */
                                        .context_length = engine_plan(b->engine)->context_length,
                                        .vocab_size = engine_model(b->engine)->vocab_size,
                                        .tokenizer = b->text.tokenizer};
    return status == OK ? scheduler_new(&b->scheduler, engine_executor_table(&b->executor),
                                        engine_cache(b->engine), &options, on_event, b, error)
                        : status;
}

static enum status submit_all(struct bench *b, struct error *error)
{
    for (int i = 0; i < b->dataset.n; i++) {
        const struct bench_prompt *p = &b->dataset.prompts[i];
        struct request_options o = {.uid = (uint64_t)i + 1,
                                    .ids = p->ids,
                                    .n_ids = p->n_ids,
                                    .params = sampling_params_default(),
                                    .max_tokens = p->output_len,
                                    .ignore_eos = true,
                                    .submitted = b->start};
        o.params.n_logprobs = -1;
        enum status status = scheduler_submit(b->scheduler, &o, error);
        if (status != OK)
            return error_prefix(error, "prompt %d", i);
    }
    return OK;
}

static enum status run_all(struct bench *b, struct error *error)
{
    struct progress progress = {0};
    b->start = system_seconds();
    enum status status = submit_all(b, error);
    if (!b->is_json && !b->model.is_quiet)
        progress_begin(&progress, b->dataset.n);
    for (long step = 0; status == OK && scheduler_has_work(b->scheduler); step++) {
        bool is_wanted = b->trace && profile_flags_wants(&b->profile, step);
        if (b->trace)
            scheduler_trace(b->scheduler, is_wanted ? b->trace : NULL);
        status = scheduler_step(b->scheduler, error);
        progress_show(&progress, b->n_done);
    }
    progress_end(&progress);
    if (status == OK && b->failure[0])
        status = error_set(error, ERROR_INVALID, "%s", b->failure);
    return status;
}

static enum status write_report(struct bench *b, double seconds, struct error *error)
{
    struct report r = {0};
    struct scheduler_figures f = scheduler_figures(b->scheduler);
    double n_input = (double)b->n_input, n_output = (double)b->n_output;
    report_text(&r, "benchmark", NULL, "offline_throughput");
    report_text(&r, "model", NULL, b->model.model_path);
    report_text(&r, "dataset", "dataset", dataset_name(&b->dataset_flags));
    report_int(&r, "completed", "requests", b->n_done);
    report_number(&r, "duration_s", "duration, s", seconds);
    report_int(&r, "total_input_tokens", "input tokens", b->n_input);
    report_int(&r, "cached_tokens", "of them from the prefix cache", b->n_cached);
    report_int(&r, "total_output_tokens", "output tokens", b->n_output);
    report_int(&r, "steps", "steps", (int64_t)f.steps);
    report_int(&r, "preemptions", "preemptions", (int64_t)f.preemptions);
    report_number(&r, "request_throughput", "requests/s", b->n_done / seconds);
    report_number(&r, "input_throughput", "input tokens/s", n_input / seconds);
    report_number(&r, "output_throughput", "output tokens/s", n_output / seconds);
    report_number(&r, "total_throughput", "all tokens/s", (n_input + n_output) / seconds);
    report_times(&r, "ttft", "time to first token, ms", &b->first);
    report_times(&r, "e2e", "end to end, ms", &b->end);
    report_int(&r, "peak_memory_bytes", NULL, (int64_t)system_peak_memory());
    enum status status = report_finish(&r, b->is_json, b->output_file, error);
    report_done(&r);
    return status;
}

static int run(struct bench *b)
{
    struct error error;
    enum status status = open_model_parts(b, &error);
    if (status == OK)
        status = open_scheduler(b, &error);
    if (status == OK && b->profile.is_on)
        status = trace_new(&b->trace, NULL, "csgl", 1, TRACE_DEFAULT_EVENTS, &error);
    if (status == OK)
        status = run_all(b, &error);
    if (status == OK)
        status = write_report(b, system_seconds() - b->start, &error);
    if (status == OK && b->trace) {
        scheduler_trace(b->scheduler, NULL);
        status = trace_write(b->profile.output, &b->trace, 1, &error);
    }
    if (status != OK)
        log_error("%s", error.message);
    scheduler_free(b->scheduler);
    engine_executor_done(&b->executor);
    engine_free(b->engine);
    if (b->device)
        b->device->table->close(b->device);
    trace_free(b->trace);
    dataset_done(&b->dataset);
    bench_encoder_done(&b->encoder);
    text_model_done(&b->text);
    checkpoint_free(b->checkpoint);
    samples_done(&b->first);
    samples_done(&b->end);
    return status == OK ? 0 : 1;
}

int command_bench_offline_throughput(int argc, char **argv)
{
    struct bench b = {.model = model_options_default(),
                      .dataset_flags = dataset_flags_default(),
                      .profile.output = "csgl-trace.json",
                      .page_size = 16,
                      .max_running = 16};
    const struct option options[] = {
        MODEL_OPTIONS(b.model),
        {"--context-length", NULL, OPTION_INT, &b.model.context_length, "TOKENS", 0, 1 << 24,
         "tokens of a sequence; 0: the model's limit or what fits"},
        {"--max-prefill-length", NULL, OPTION_INT, &b.model.max_prefill_length, "TOKENS", 1,
         1 << 16, "prompt tokens of one step"},
        {"--kv-cache-gb", NULL, OPTION_NUMBER, &b.model.kv_cache_gb, "GIB", 0, 1 << 20,
         "size of the KV cache; 0: what the context needs"},
        {"--max-running-requests", NULL, OPTION_INT, &b.max_running, "N", 1, 1024,
         "sequences computed at once"},
        {"--disable-radix-cache", NULL, OPTION_FLAG, &b.is_naive, NULL, 0, 0,
         "share and keep no prefixes"},
        DATASET_OPTIONS(b.dataset_flags),
        PROFILE_OPTIONS(b.profile),
        {"--output-file", NULL, OPTION_STRING, &b.output_file, "FILE", 0, 0,
         "append a line of JSON"},
        {"--json", NULL, OPTION_FLAG, &b.is_json, NULL, 0, 0, "print a line of JSON"},
    };
    struct command_line line = {
        .usage = "csgl bench_offline_throughput --model-path PATH [options]",
        .about = "Times a dataset through scheduler and engine, without a server.",
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
