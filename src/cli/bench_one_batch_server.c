/* csgl bench_one_batch_server: one batch of equal requests through a running server, over HTTP. */
#include "base/log.h"
#include "cli/bench_client.h"
#include "cli/commands.h"

struct bench {
    struct client_flags client;
    const char *batch_sizes, *input_lens, *output_lens;
    struct int_list batch_list, input_list, output_list;
    double seed;
    int32_t vocab_size;
};

static enum status write_report(struct bench *b, const struct dataset_options *shape,
                                const struct load_result *result, struct error *error)
{
    struct report r = {0};
    report_text(&r, "benchmark", NULL, "one_batch_server");
    report_text(&r, "base_url", NULL, b->client.base_url);
    report_int(&r, "batch_size", "batch size", shape->n_prompts);
    report_int(&r, "input_len", "input tokens of each", shape->input_len);
    report_int(&r, "output_len", "output tokens of each", shape->output_len);
    client_report(&r, result);
    enum status status = report_finish(&r, b->client.is_json, b->client.output_file, error);
    report_done(&r);
    return status;
}

/* 0, or the exit status after what went wrong was printed. */
static int measure(struct bench *b, int batch_size, int input_len, int output_len)
{
    struct error error;
    struct dataset dataset = {0};
    struct load_result result = {0};
    struct load_options options = client_load_options(&b->client);
    struct dataset_options shape = {.kind = DATASET_RANDOM,
                                    .n_prompts = batch_size,
                                    .seed = (uint64_t)b->seed++, /* no prompt is in the cache */
                                    .vocab_size = b->vocab_size,
                                    .input_len = input_len,
                                    .output_len = output_len,
                                    .range_ratio = 1.0};
    options.shows_progress = false;
    enum status status = dataset_make(&dataset, &shape, &error);
    if (status == OK)
        status = client_run(&b->client, &options, &dataset, &result, &error);
    int exit_status = status == OK ? client_check(&result) : 1;
    if (!exit_status)
        status = write_report(b, &shape, &result, &error);
    if (status != OK)
        log_error("%s", error.message);
    exit_status |= status != OK;
    load_result_done(&result);
    dataset_done(&dataset);
    return exit_status;
}

int command_bench_one_batch_server(int argc, char **argv)
{
    struct bench b = {.client = client_flags_default(),
                      .batch_sizes = "1",
                      .input_lens = "512",
                      .output_lens = "16",
                      .seed = 1};
    const struct option options[] = {
        CLIENT_OPTIONS(b.client),
        {"--batch-size", "--batch", OPTION_STRING, &b.batch_sizes, "N,...", 0, 0,
         "requests at once; several make a sweep"},
        {"--input-len", NULL, OPTION_STRING, &b.input_lens, "TOKENS,...", 0, 0,
         "tokens of each prompt"},
        {"--output-len", NULL, OPTION_STRING, &b.output_lens, "TOKENS,...", 0, 0,
         "tokens of each answer"},
        {"--seed", NULL, OPTION_NUMBER, &b.seed, "N", 0, 9007199254740992.0, "of the prompts"},
    };
    struct command_line line = {.usage = "csgl bench_one_batch_server --base-url URL [options]",
                                .about =
                                    "Times one batch of random prompts through a running server.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    exit_status = int_list_parse(&b.batch_list, "--batch-size", b.batch_sizes, 1, 1 << 16);
    if (!exit_status)
        exit_status = int_list_parse(&b.input_list, "--input-len", b.input_lens, 1, 1 << 20);
    if (!exit_status)
        exit_status = int_list_parse(&b.output_list, "--output-len", b.output_lens, 1, 1 << 20);
    if (!exit_status)
        b.vocab_size = client_vocab_size(&b.client);
    for (int i = 0; i < b.batch_list.n; i++)
        for (int k = 0; k < b.input_list.n; k++)
            for (int m = 0; m < b.output_list.n && !exit_status; m++)
                exit_status = measure(&b, b.batch_list.values[i], b.input_list.values[k],
                                      b.output_list.values[m]);
    return exit_status;
}
