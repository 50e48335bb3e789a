/* What the commands share: the options of a model and of sampling, progress, errors. */
#ifndef CSGL_CLI_COMMON_H
#define CSGL_CLI_COMMON_H

#include "base/options.h"
#include "base/str.h"
#include "csgl.h"

/* Where a repository's name is looked for. */
struct source_options {
    int source; /* enum hub_source */
    bool use_modelscope;
};

struct model_options {
    struct source_options source;
    const char *model_path, *chat_template, *device;
    const char *random_weights, *quantization; /* a configuration in model_path's place */
    const char *path;                          /* what model_path stands for: cli/model_path.h */
    struct str path_text;                      /* its memory, when it is not model_path itself */
    int threads, activations, kv_cache_dtype, context_length, max_prefill_length;
    int num_mamba_slots, mamba_ssm_dtype;
    double memory_ratio, kv_cache_gb, mamba_cache_gb;
    bool is_quiet;
};

struct sampling_options {
    int max_tokens;
    double temperature, top_k, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    double seed; /* NaN: random */
    bool ignore_eos;
    struct option_strings stop, logit_bias;
};

struct model_options model_options_default(void);
struct sampling_options sampling_options_default(void);

/* Rows for a command's table; the structs must outlive it. */
#define SOURCE_OPTIONS(s)                                                                          \
    {"--model-source",                                                                             \
     NULL,                                                                                         \
     OPTION_CHOICE,                                                                                \
     &(s).source,                                                                                  \
     "huggingface|modelscope",                                                                     \
     0,                                                                                            \
     0,                                                                                            \
     "the hub that knows ORG/NAME"},                                                               \
    {                                                                                              \
        "--use-modelscope", NULL, OPTION_FLAG, &(s).use_modelscope, NULL, 0, 0,                    \
            "the same as --model-source modelscope"                                                \
    }

#define MODEL_OPTIONS(m)                                                                           \
    {"--model-path",                                                                               \
     "--model",                                                                                    \
     OPTION_STRING,                                                                                \
     &(m).model_path,                                                                              \
     "PATH",                                                                                       \
     0,                                                                                            \
     0,                                                                                            \
     "a model folder, a .gguf file or ORG/NAME on the hub"},                                       \
        SOURCE_OPTIONS((m).source),                                                                \
        {"--device",                                                                               \
         NULL,                                                                                     \
         OPTION_STRING,                                                                            \
         &(m).device,                                                                              \
         "DEVICE",                                                                                 \
         0,                                                                                        \
         0,                                                                                        \
         "auto, cpu, cuda, cuda:N (first or Nth NVIDIA GPU) or metal; default cpu"},               \
        {"--random-weights",                                                                       \
         "--dummy-weight",                                                                         \
         OPTION_STRING,                                                                            \
         &(m).random_weights,                                                                      \
         "CONFIG",                                                                                 \
         0,                                                                                        \
         0,                                                                                        \
         "a config.json or its folder: weights are made up"},                                      \
        {"--threads", NULL, OPTION_INT, &(m).threads, "N", 0, 1024, "threads; 0: all processors"}, \
        {"--activations",                                                                          \
         NULL,                                                                                     \
         OPTION_CHOICE,                                                                            \
         &(m).activations,                                                                         \
         "auto|float|int8",                                                                        \
         0,                                                                                        \
         0,                                                                                        \
         "arithmetic of quantized linears"},                                                       \
        {"--kv-cache-dtype",                                                                       \
         NULL,                                                                                     \
         OPTION_CHOICE,                                                                            \
         &(m).kv_cache_dtype,                                                                      \
         "auto|bf16|f16|f32|int8|int4",                                                                      \
         0,                                                                                        \
         0,                                                                                        \
         "type of cached keys and values; int4: CPU only; auto: bf16"},                                            \
        {"--quantization",                                                                         \
         NULL,                                                                                     \
         OPTION_STRING,                                                                            \
         &(m).quantization,                                                                        \
         "none|mlx_q4|mlx_q8",                                                                     \
         0,                                                                                        \
         0,                                                                                        \
         "quantize float weights while they are loaded; random ones: also bf16, Q4_0, ..."},       \
        {"--memory-ratio",                                                                         \
         NULL,                                                                                     \
         OPTION_NUMBER,                                                                            \
         &(m).memory_ratio,                                                                        \
         "SHARE",                                                                                  \
         0.01,                                                                                     \
         1,                                                                                        \
         "share of the available memory to use"},                                                  \
    {                                                                                              \
        "--quiet", NULL, OPTION_FLAG, &(m).is_quiet, NULL, 0, 0, "print the answer alone"          \
    }

#define SESSION_OPTIONS(m)                                                                         \
    {"--chat-template",                                                                            \
     NULL,                                                                                         \
     OPTION_STRING,                                                                                \
     &(m).chat_template,                                                                           \
     "FILE",                                                                                       \
     0,                                                                                            \
     0,                                                                                            \
     "a Jinja file in place of the model's own template"},                                         \
        {"--context-length",                                                                       \
         "--max-seq-len-override",                                                                 \
         OPTION_INT,                                                                               \
         &(m).context_length,                                                                      \
         "TOKENS",                                                                                 \
         0,                                                                                        \
         1 << 24,                                                                                  \
         "tokens of a sequence; 0: the model's limit or what fits"},                               \
        {"--max-prefill-length",                                                                   \
         "--max-extend-length",                                                                    \
         OPTION_INT,                                                                               \
         &(m).max_prefill_length,                                                                  \
         "TOKENS",                                                                                 \
         1,                                                                                        \
         1 << 16,                                                                                  \
         "prompt tokens of one step"},                                                             \
        {"--num-mamba-slots",                                                                      \
         "--max-mamba-cache-size",                                                                 \
         OPTION_INT,                                                                               \
         &(m).num_mamba_slots,                                                                     \
         "N",                                                                                      \
         0,                                                                                        \
         1 << 20,                                                                                  \
         "recurrent states: running ones and snapshots; 0: by memory"},                            \
        {"--mamba-cache-gb",                                                                       \
         NULL,                                                                                     \
         OPTION_NUMBER,                                                                            \
         &(m).mamba_cache_gb,                                                                      \
         "GIB",                                                                                    \
         0,                                                                                        \
         1 << 20,                                                                                  \
         "memory of the recurrent states, instead of their number"},                               \
        {"--mamba-ssm-dtype",                                                                      \
         NULL,                                                                                     \
         OPTION_CHOICE,                                                                            \
         &(m).mamba_ssm_dtype,                                                                     \
         "auto|f32|bf16",                                                                          \
         0,                                                                                        \
         0,                                                                                        \
         "type of recurrent states; auto: f32"},                                                   \
    {                                                                                              \
        "--kv-cache-gb", NULL, OPTION_NUMBER, &(m).kv_cache_gb, "GIB", 0, 1 << 20,                 \
            "size of the KV cache; 0: what the context needs"                                      \
    }

#define SAMPLING_OPTIONS(s)                                                                         \
    {"--max-tokens",                                                                                \
     NULL,                                                                                          \
     OPTION_INT,                                                                                    \
     &(s).max_tokens,                                                                               \
     "N",                                                                                           \
     0,                                                                                             \
     1 << 24,                                                                                       \
     "tokens to generate; 0: to the end of the context"},                                           \
        {"--temperature",                                                                           \
         NULL,                                                                                      \
         OPTION_NUMBER,                                                                             \
         &(s).temperature,                                                                          \
         "T",                                                                                       \
         0,                                                                                         \
         100,                                                                                       \
         "0: the most likely token; unset: the model's default"},                                   \
        {"--top-k", NULL, OPTION_NUMBER, &(s).top_k, "K", 0, 1 << 24, "0: off"},                    \
        {"--top-p", NULL, OPTION_NUMBER, &(s).top_p, "P", 1e-9, 1, "1: off"},                       \
        {"--min-p", NULL, OPTION_NUMBER, &(s).min_p, "P", 0, 1, "0: off"},                          \
        {"--repetition-penalty",                                                                    \
         NULL,                                                                                      \
         OPTION_NUMBER,                                                                             \
         &(s).repetition_penalty,                                                                   \
         "X",                                                                                       \
         1e-3,                                                                                      \
         1e3,                                                                                       \
         "1: off"},                                                                                 \
        {"--presence-penalty", NULL, OPTION_NUMBER, &(s).presence_penalty, "X", -2, 2, "0: off"},   \
        {"--frequency-penalty", NULL, OPTION_NUMBER, &(s).frequency_penalty, "X", -2, 2, "0: off"}, \
        {"--logit-bias",                                                                            \
         NULL,                                                                                      \
         OPTION_STRINGS,                                                                            \
         &(s).logit_bias,                                                                           \
         "ID=BIAS",                                                                                 \
         0,                                                                                         \
         0,                                                                                         \
         "raise a token's logit; may be repeated"},                                                 \
        {"--seed", NULL, OPTION_NUMBER,      &(s).seed,                                             \
         "N",      0,    9007199254740992.0, "makes sampling repeatable; unset: random"},           \
        {"--stop",                                                                                  \
         NULL,                                                                                      \
         OPTION_STRINGS,                                                                            \
         &(s).stop,                                                                                 \
         "TEXT",                                                                                    \
         0,                                                                                         \
         0,                                                                                         \
         "stop before this text; may be repeated"},                                                 \
    {                                                                                               \
        "--ignore-eos", NULL, OPTION_FLAG, &(s).ignore_eos, NULL, 0, 0,                             \
            "go on after the end-of-text token"                                                     \
    }

/* Parses; on --help or an error prints and returns the exit status, otherwise -1. */
int command_line_parse(struct command_line *line, int argc, char **argv);

/* The files, or the configuration, that resolved options name. */
struct checkpoint;
enum status options_checkpoint(const struct model_options *options, struct checkpoint **out,
                               struct error *error);

/* Opens the model, with a progress bar when stderr is a terminal. On an error prints it and returns
 * 1, otherwise 0; `seconds` is the time it took. */
int open_model(struct csgl_engine **engine, const struct model_options *options, double *seconds);

/* A progress bar on stderr when that is a terminal, else NULL. Its context: what is done, a word,
 * or NULL for "loading". */
typedef void (*progress_function)(void *context, double done);
progress_function progress_if_terminal(void);

/* Puts the options into a request. `biases` is memory for the request's life. */
struct parsed_biases {
    int32_t tokens[OPTION_MAX_STRINGS];
    double values[OPTION_MAX_STRINGS];
};
int apply_sampling(struct csgl_request *request, const struct sampling_options *options,
                   struct parsed_biases *biases);

/* Prints "csgl: MESSAGE" and returns 1. */
int print_error(const struct csgl_error *error);

#endif
