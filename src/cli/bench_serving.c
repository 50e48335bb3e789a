/* csgl bench_serving: a running server under load, as its clients see it. */
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench_client.h"
#include "cli/bench_encode.h"
#include "cli/commands.h"

struct bench {
    struct client_flags client;
    struct dataset_flags dataset_flags;
    const char *tokenizer;
    double request_rate;
    int max_concurrency, api;
    struct checkpoint *checkpoint;
    struct text_model text;
    struct bench_encoder encoder;
    struct dataset dataset;
    struct load_result result;
};

/* ShareGPT's lengths are counted with a model's tokenizer if one was named. */
static enum status open_tokenizer(struct bench *b, struct dataset_options *data,
                                  struct error *error)
{
    if (!b->tokenizer)
        return OK;
    enum status status = checkpoint_open(&b->checkpoint, b->tokenizer, error);
    if (status == OK)
        status = text_model_open(&b->text, b->checkpoint, NULL, error);
    if (status == OK)
        status = bench_encoder_init(&b->encoder, &b->text, error);
    data->encode = bench_encode;
    data->encode_context = &b->encoder;
    return status;
}

static enum status make_dataset(struct bench *b, struct error *error)
{
    struct dataset_options data = dataset_flags_read(&b->dataset_flags);
    enum status status = open_tokenizer(b, &data, error);
    if (data.kind != DATASET_SHAREGPT)
        data.vocab_size = client_vocab_size(&b->client);
    return status == OK ? dataset_make(&b->dataset, &data, error) : status;
}

static enum status write_report(struct bench *b, struct error *error)
{
    struct report r = {0};
    report_text(&r, "benchmark", NULL, "serving");
    report_text(&r, "base_url", "server", b->client.base_url);
    report_text(&r, "dataset", "dataset", dataset_name(&b->dataset_flags));
    report_number(&r, "request_rate", b->request_rate > 0.0 ? "requests/s wanted" : NULL,
                  b->request_rate);
    report_int(&r, "max_concurrency", b->max_concurrency ? "concurrency limit" : NULL,
               b->max_concurrency);
    client_report(&r, &b->result);
    enum status status = report_finish(&r, b->client.is_json, b->client.output_file, error);
    report_done(&r);
    return status;
}

static int run(struct bench *b)
{
    struct error error;
    struct load_options options = client_load_options(&b->client);
    options.api = (enum load_api)b->api;
    options.request_rate = b->request_rate;
    options.max_concurrency = b->max_concurrency;
    options.seed = (uint64_t)b->dataset_flags.seed;
    enum status status = make_dataset(b, &error);
    if (status == OK)
        status = client_run(&b->client, &options, &b->dataset, &b->result, &error);
    int exit_status = status == OK ? client_check(&b->result) : 1;
    if (!exit_status)
        status = write_report(b, &error);
    if (status != OK)
        log_error("%s", error.message);
    exit_status |= status != OK;
    load_result_done(&b->result);
    dataset_done(&b->dataset);
    bench_encoder_done(&b->encoder);
    text_model_done(&b->text);
    checkpoint_free(b->checkpoint);
    return exit_status;
}

int command_bench_serving(int argc, char **argv)
{
    struct bench b = {.client = client_flags_default(), .dataset_flags = dataset_flags_default()};
    const struct option options[] = {
        CLIENT_OPTIONS(b.client),
        {"--api", NULL, OPTION_CHOICE, &b.api, "completions|chat", 0, 0,
         "the endpoint; a chat needs prompts of text"},
        {"--request-rate", NULL, OPTION_NUMBER, &b.request_rate, "N", 0, 1e6,
         "requests a second, Poisson; 0: all at once"},
        {"--max-concurrency", NULL, OPTION_INT, &b.max_concurrency, "N", 0, 1 << 16,
         "answers at once; 0: no limit"},
        {"--tokenizer", NULL, OPTION_STRING, &b.tokenizer, "PATH", 0, 0,
         "a model whose tokenizer makes ids of ShareGPT's text"},
        DATASET_OPTIONS(b.dataset_flags),
    };
    struct command_line line = {.usage = "csgl bench_serving --base-url URL [options]",
                                .about = "Sends a dataset to a running server and times answers.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    return exit_status >= 0 ? exit_status : run(&b);
}
