#include "cli/common.h"

#include "base/log.h"
#include "base/system.h"
#include "checkpoint/checkpoint.h"
#include "cli/model_path.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

struct model_options model_options_default(void)
{
    struct csgl_config config;
    csgl_config_init(&config);
    return (struct model_options){.max_prefill_length = config.max_prefill_length,
                                  .memory_ratio = config.memory_ratio};
}

struct sampling_options sampling_options_default(void)
{
    return (struct sampling_options){.temperature = NAN,
                                     .top_k = NAN,
                                     .top_p = NAN,
                                     .min_p = NAN,
                                     .repetition_penalty = NAN,
                                     .presence_penalty = NAN,
                                     .frequency_penalty = NAN,
                                     .seed = NAN};
}

int print_error(const struct csgl_error *error)
{
    log_error("%s", error->message);
    return 1;
}

int command_line_parse(struct command_line *line, int argc, char **argv)
{
    struct error error;
    if (options_parse(line, argc, argv, &error) != OK) {
        log_error("%s", error.message);
        return 2;
    }
    if (line->wants_help) {
        options_print_help(line, stdout);
        return 0;
    }
    return -1;
}

static const char *random_encoding(const struct model_options *options)
{
    return options->quantization ? options->quantization : "bf16";
}

/* Of files: model_path_resolve has checked it. */
static int quantization_word(const struct model_options *options)
{
    return options->quantization && !options->random_weights
               ? checkpoint_quantization_word(options->quantization)
               : 0;
}

enum status options_checkpoint(const struct model_options *options, struct checkpoint **out,
                               struct error *error)
{
    if (options->random_weights)
        return checkpoint_open_random(out, options->path, random_encoding(options), error);
    enum status status = checkpoint_open(out, options->path, error);
    return status == OK ? checkpoint_quantize_as(*out, quantization_word(options), error) : status;
}

static void show_progress(void *context, double done)
{
    const char *what = context ? context : "loading";
    enum { WIDTH = 40 };
    int n = (int)(done * WIDTH);
    fprintf(stderr, "\r%s [%.*s%*s] %3d%%", what, n, "########################################",
            WIDTH - n, "", (int)(done * 100));
    if (done >= 1.0)
        fprintf(stderr, "\r%*s\r", WIDTH + 20, "");
    fflush(stderr);
}

progress_function progress_if_terminal(void)
{
    return isatty(STDERR_FILENO) ? show_progress : NULL;
}

int open_model(struct csgl_engine **engine, const struct model_options *options, double *seconds)
{
    struct model_options resolved = *options;
    if (options->is_quiet)
        log_set_level(LOG_ERROR);
    int exit_status = model_path_resolve(&resolved);
    if (exit_status) {
        model_path_done(&resolved);
        return exit_status;
    }
    struct csgl_config config;
    csgl_config_init(&config);
    config.model_path = resolved.path;
    config.random_weights = options->random_weights ? random_encoding(options) : NULL;
    config.chat_template_path = options->chat_template;
    config.device = options->device;
    config.threads = options->threads;
    config.activations = options->activations;
    config.kv_cache_dtype = options->kv_cache_dtype;
    config.quantization = quantization_word(options);
    config.context_length = options->context_length;
    config.max_prefill_length = options->max_prefill_length;
    config.memory_ratio = options->memory_ratio;
    config.kv_cache_gb = options->kv_cache_gb;
    config.num_mamba_slots = options->num_mamba_slots;
    config.mamba_cache_gb = options->mamba_cache_gb;
    config.mamba_ssm_dtype = options->mamba_ssm_dtype;
    config.on_progress = options->is_quiet ? NULL : progress_if_terminal();
    struct csgl_error error;
    double start = system_seconds();
    int status = csgl_open(engine, &config, &error);
    *seconds = system_seconds() - start;
    model_path_done(&resolved);
    return status == CSGL_OK ? 0 : print_error(&error);
}

static double or_unset(double value)
{
    return isnan(value) ? CSGL_UNSET : value;
}

int apply_sampling(struct csgl_request *r, const struct sampling_options *o,
                   struct parsed_biases *biases)
{
    r->max_tokens = o->max_tokens;
    r->temperature = or_unset(o->temperature);
    r->top_k = or_unset(o->top_k);
    r->top_p = or_unset(o->top_p);
    r->min_p = or_unset(o->min_p);
    r->repetition_penalty = or_unset(o->repetition_penalty);
    r->presence_penalty = or_unset(o->presence_penalty);
    r->frequency_penalty = or_unset(o->frequency_penalty);
    r->has_seed = !isnan(o->seed);
    r->seed = r->has_seed ? (uint64_t)o->seed : 0;
    r->ignore_eos = o->ignore_eos;
    r->stop = o->stop.items;
    r->n_stop = (size_t)o->stop.n;
    for (int i = 0; i < o->logit_bias.n; i++) {
        char *end;
        long token = strtol(o->logit_bias.items[i], &end, 10);
        bool is_right =
            end != o->logit_bias.items[i] && *end == '=' && token >= 0 && token <= INT32_MAX;
        const char *number = end + 1;
        if (is_right)
            biases->values[i] = strtod(number, &end);
        if (!is_right || end == number || *end) {
            log_error("--logit-bias takes ID=BIAS, for example 42=-100, not \"%s\"",
                      o->logit_bias.items[i]);
            return 2;
        }
        biases->tokens[i] = (int32_t)token;
    }
    r->bias_tokens = biases->tokens;
    r->biases = biases->values;
    r->n_biases = (size_t)o->logit_bias.n;
    return 0;
}
