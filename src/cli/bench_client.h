/* What bench_serving and bench_one_batch_server share: where the server is, and the report of what
 * its answers took. */
#ifndef CSGL_CLI_BENCH_CLIENT_H
#define CSGL_CLI_BENCH_CLIENT_H

#include "bench/load.h"
#include "cli/bench_common.h"

struct client_flags {
    const char *base_url, *model, *api_key, *output_file;
    int vocab_size;
    bool is_json, uses_eos, has_profile;
    double temperature;
};

struct client_flags client_flags_default(void);

#define CLIENT_OPTIONS(c)                                                                          \
    {                                                                                              \
        "--base-url",                                                                              \
        NULL,                                                                                      \
        OPTION_STRING,                                                                             \
        &(c).base_url,                                                                             \
        "URL",                                                                                     \
        0,                                                                                         \
        0,                                                                                         \
        "an OpenAI-compatible server"},                                                            \
        {"--served-model-name",                                                                    \
         "--model",                                                                                \
         OPTION_STRING,                                                                            \
         &(c).model,                                                                               \
         "NAME",                                                                                   \
         0,                                                                                        \
         0,                                                                                        \
         "its model; without: the first that it lists"},                                           \
        {"--api-key", NULL, OPTION_STRING, &(c).api_key, "KEY", 0, 0, "sent with each request"},   \
        {"--vocab-size",                                                                           \
         NULL,                                                                                     \
         OPTION_INT,                                                                               \
         &(c).vocab_size,                                                                          \
         "N",                                                                                      \
         0,                                                                                        \
         1 << 24,                                                                                  \
         "random ids are below; 0: what the server tells, else 1000"},                             \
        {"--temperature", NULL, OPTION_NUMBER, &(c).temperature, "T", 0, 100, "of each request"},  \
        {"--disable-ignore-eos",                                                                   \
         NULL,                                                                                     \
         OPTION_FLAG,                                                                              \
         &(c).uses_eos,                                                                            \
         NULL,                                                                                     \
         0,                                                                                        \
         0,                                                                                        \
         "let answers end before their length"},                                                   \
        {"--profile", NULL, OPTION_FLAG, &(c).has_profile,                                         \
         NULL,        0,    0,           "have the server make a trace (csgl, SGLang)"},           \
        {"--output-file",       NULL, OPTION_STRING, &(c).output_file, "FILE", 0, 0,               \
         "append lines of JSON"},                                                                  \
    {                                                                                              \
        "--json", NULL, OPTION_FLAG, &(c).is_json, NULL, 0, 0, "print lines of JSON"               \
    }

/* The load options that the flags give; the rest is the caller's to fill. */
struct load_options client_load_options(const struct client_flags *flags);

/* --vocab-size, or what /get_model_info says. */
int32_t client_vocab_size(const struct client_flags *flags);

/* load_run between /start_profile and /stop_profile if that was asked for. */
enum status client_run(const struct client_flags *flags, const struct load_options *options,
                       const struct dataset *dataset, struct load_result *result,
                       struct error *error);

/* Requests, tokens, throughput, TTFT, TPOT, ITL and E2E, behind what the report already has. */
void client_report(struct report *report, const struct load_result *result);

/* Ends a run without one good answer: prints the first error and returns 1, otherwise 0. */
int client_check(const struct load_result *result);

#endif
