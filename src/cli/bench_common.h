/* What the benchmark commands share: lists of sizes, the options of datasets and of profiles, the
 * table of ops. */
#ifndef CSGL_CLI_BENCH_COMMON_H
#define CSGL_CLI_BENCH_COMMON_H

#include "base/trace.h"
#include "bench/dataset.h"
#include "bench/report.h"
#include "cli/common.h"
#include "device/cpu/measure.h"
#include "device/profile.h"

/* "1,8,16": the sizes of a sweep. */
enum { INT_LIST_MAX = 32 };
struct int_list {
    int n, values[INT_LIST_MAX];
};

/* Parses the value of the flag `name`; prints what is wrong and returns 2, otherwise 0. */
int int_list_parse(struct int_list *out, const char *name, const char *text, int min, int max);
int int_list_max(const struct int_list *list);

struct dataset_flags {
    int kind, n_prompts, input_len, output_len;
    double range_ratio, seed;
    const char *path;
    int gsp_groups, gsp_prefix, gsp_question, gsp_output;
};

struct dataset_flags dataset_flags_default(void);

/* Rows for a command's table; SGLang's names. */
#define DATASET_OPTIONS(d)                                                                           \
    {"--dataset-name",                                                                               \
     NULL,                                                                                           \
     OPTION_CHOICE,                                                                                  \
     &(d).kind,                                                                                      \
     "random|sharegpt|generated-shared-prefix",                                                      \
     0,                                                                                              \
     0,                                                                                              \
     "where the prompts come from"},                                                                 \
        {"--dataset-path",                                                                           \
         NULL,                                                                                       \
         OPTION_STRING,                                                                              \
         &(d).path,                                                                                  \
         "FILE",                                                                                     \
         0,                                                                                          \
         0,                                                                                          \
         "conversations in ShareGPT's JSON"},                                                        \
        {"--num-prompts", NULL, OPTION_INT, &(d).n_prompts, "N", 1, 1 << 20, "requests"},            \
        {"--random-input-len",   "--random-input", OPTION_INT, &(d).input_len, "TOKENS", 1, 1 << 20, \
         "longest random prompt"},                                                                   \
        {"--random-output-len",                                                                      \
         "--random-output",                                                                          \
         OPTION_INT,                                                                                 \
         &(d).output_len,                                                                            \
         "TOKENS",                                                                                   \
         1,                                                                                          \
         1 << 20,                                                                                    \
         "longest answer to a random prompt"},                                                       \
        {"--random-range-ratio",                                                                     \
         NULL,                                                                                       \
         OPTION_NUMBER,                                                                              \
         &(d).range_ratio,                                                                           \
         "SHARE",                                                                                    \
         0,                                                                                          \
         1,                                                                                          \
         "lengths are from this share of the longest to it"},                                        \
        {"--gsp-num-groups",                                                                         \
         NULL,                                                                                       \
         OPTION_INT,                                                                                 \
         &(d).gsp_groups,                                                                            \
         "N",                                                                                        \
         1,                                                                                          \
         1 << 20,                                                                                    \
         "prefixes of generated-shared-prefix"},                                                     \
        {"--gsp-system-prompt-len", NULL, OPTION_INT, &(d).gsp_prefix, "TOKENS", 1, 1 << 20,         \
         "tokens of each prefix"},                                                                   \
        {"--gsp-question-len",      NULL, OPTION_INT, &(d).gsp_question, "TOKENS", 1, 1 << 20,       \
         "tokens behind the prefix"},                                                                \
        {"--gsp-output-len", NULL, OPTION_INT, &(d).gsp_output,                                      \
         "TOKENS",           1,    1 << 20,    "tokens of each answer"},                             \
    {                                                                                                \
        "--seed", NULL, OPTION_NUMBER, &(d).seed, "N", 0, 9007199254740992.0,                        \
            "repeats prompts, lengths and arrivals"                                                  \
    }

/* The options as dataset_make takes them; vocab_size and encode are the caller's to fill. */
struct dataset_options dataset_flags_read(const struct dataset_flags *flags);

/* The word of --dataset-name. */
const char *dataset_name(const struct dataset_flags *flags);

struct profile_flags {
    bool is_on;
    int start_step, n_steps;
    const char *output;
};

#define PROFILE_OPTIONS(p)                                                                         \
    {"--profile", NULL, OPTION_FLAG, &(p).is_on, NULL, 0, 0, "record a trace of steps and ops"},   \
        {"--profile-start-step",                                                                   \
         NULL,                                                                                     \
         OPTION_INT,                                                                               \
         &(p).start_step,                                                                          \
         "N",                                                                                      \
         0,                                                                                        \
         1 << 30,                                                                                  \
         "steps before the first that is recorded"},                                               \
        {"--profile-steps",                                                                        \
         NULL,                                                                                     \
         OPTION_INT,                                                                               \
         &(p).n_steps,                                                                             \
         "N",                                                                                      \
         0,                                                                                        \
         1 << 30,                                                                                  \
         "steps that are recorded; 0: all"},                                                       \
    {                                                                                              \
        "--profile-output", NULL, OPTION_STRING, &(p).output, "FILE", 0, 0, "where the trace goes" \
    }

/* Whether step `step`, counted from 0, is one to record. */
bool profile_flags_wants(const struct profile_flags *flags, long step);

/* Prints a table of a phase's ops: calls, time, share, bytes and operations a second, and which
 * part of the shortest time that the machine's limits allow they took; `limits` NULL: without that.
 */
void print_ops(const struct profile *profile, enum trace_phase phase,
               const struct cpu_limits *limits, enum arithmetic arithmetic);

/* The part of `seconds` that reading the bytes or doing the operations must take at least. */
double limit_share(const struct cpu_limits *limits, enum arithmetic arithmetic, double bytes,
                   double operations, double seconds);

#endif
