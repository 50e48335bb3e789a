/* csgl quantize: a model of floats into a folder in MLX's format. */
#include "checkpoint/quantize.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/model_path.h"

#include <stdio.h>

struct quantize_options {
    struct model_options model;
    int bits, group_size, mode;
    double shard_gb;
};

static int quantize(struct quantize_options *o, const char *out)
{
    static char word[] = "quantizing";
    struct checkpoint *checkpoint = NULL;
    struct error error;
    struct quantize_request request = {
        .out = out,
        .bits = o->bits,
        .group = o->group_size,
        .shard_bytes = (uint64_t)(o->shard_gb * 1e9),
        .n_threads = o->model.threads ? o->model.threads : thread_pool_default_size(),
        .progress = o->model.is_quiet ? NULL : progress_if_terminal(),
        .progress_context = word};
    int exit_status = model_path_resolve(&o->model);
    if (exit_status)
        return exit_status;
    enum status status = checkpoint_open(&checkpoint, o->model.path, &error);
    if (status == OK)
        status = checkpoint_write_quantized(checkpoint, &request, &error);
    checkpoint_free(checkpoint);
    if (status != OK) {
        log_error("%s", error.message);
        return 1;
    }
    puts(out);
    return 0;
}

int command_quantize(int argc, char **argv)
{
    struct quantize_options o = {
        .model = model_options_default(), .bits = 4, .group_size = 64, .shard_gb = 5};
    const struct option options[] = {
        {"--bits", "--q-bits", OPTION_INT, &o.bits, "BITS", 2, 8,
         "bits a weight: 2, 3, 4, 5, 6, 8"},
        {"--group-size", "--q-group-size", OPTION_INT, &o.group_size, "COLUMNS", 32, 128,
         "columns that share a scale and a bias: 32, 64, 128"},
        {"--mode", "--q-mode", OPTION_CHOICE, &o.mode, "affine", 0, 0, "how codes become weights"},
        {"--shard-gb", NULL, OPTION_NUMBER, &o.shard_gb, "GB", 1e-6, 1e6, "most bytes of one file"},
        {"--threads", NULL, OPTION_INT, &o.model.threads, "N", 0, 1024,
         "threads; 0: all processors"},
        {"--quiet", NULL, OPTION_FLAG, &o.model.is_quiet, NULL, 0, 0, "no progress"},
    };
    struct command_line line = {
        .usage = "csgl quantize [options] MODEL OUT",
        .about = "Writes the folder OUT with the quantized weights of MODEL (a folder with "
                 "safetensors, or\nORG/NAME on the hub) in MLX's format, for csgl and mlx-lm.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_positionals = 2};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (line.positionals.n != 2) {
        log_error("which model, and into which folder? csgl quantize MODEL OUT");
        return 2;
    }
    o.model.model_path = line.positionals.items[0];
    exit_status = quantize(&o, line.positionals.items[1]);
    model_path_done(&o.model);
    return exit_status;
}
