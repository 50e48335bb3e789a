#include "cli/model_path.h"

#include "base/file.h"
#include "base/log.h"
#include "base/system.h"
#include "checkpoint/checkpoint.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Set by Ctrl-C while a pull runs. */
static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    is_interrupted = 1;
}

const char *size_text(uint64_t bytes, char out[SIZE_TEXT])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024.0;
    int unit = 0;
    if (bytes < 1024) {
        snprintf(out, SIZE_TEXT, "%d B", (int)bytes);
        return out;
    }
    for (; value >= 1024.0 && unit < 3; unit++)
        value /= 1024.0;
    snprintf(out, SIZE_TEXT, "%.1f %s", value, units[unit]);
    return out;
}

/* --- the bar ---------------------------------------------------------------------------------- */

struct bar {
    bool is_shown;
    double start, drawn_at;
    uint64_t bytes_at_start; /* what was there before: it does not count for the speed */
    int width;               /* of the line that stands there */
};

static void draw(struct bar *bar, const char *file, uint64_t done, uint64_t total, double now)
{
    enum { WIDTH = 30 };
    char size[SIZE_TEXT], all[SIZE_TEXT], speed[SIZE_TEXT], line[256];
    double share = total ? (double)done / (double)total : 0.0, seconds = now - bar->start;
    int n = (int)((share < 1.0 ? share : 1.0) * WIDTH);
    uint64_t fresh = done - bar->bytes_at_start;
    snprintf(line, sizeof line, "%.32s [%.*s%*s] %3d%% %s of %s, %s/s", file, n,
             "##############################", WIDTH - n, "", (int)(share * 100.0),
             size_text(done, size), size_text(total, all),
             size_text(seconds > 0.0 ? (uint64_t)((double)fresh / seconds) : 0, speed));
    int width = (int)strlen(line);
    fprintf(stderr, "\r%s%*s", line, bar->width > width ? bar->width - width : 0, "");
    fflush(stderr);
    bar->width = width;
    bar->drawn_at = now;
}

static bool on_bytes(void *context, const char *file, uint64_t done, uint64_t total)
{
    struct bar *bar = context;
    double now = system_seconds();
    if (bar->is_shown && total && bar->start == 0.0) {
        bar->start = now;
        bar->bytes_at_start = done;
    }
    if (bar->is_shown && total && done >= bar->bytes_at_start && now - bar->drawn_at > 0.1)
        draw(bar, file, done, total, now);
    return !is_interrupted;
}

static void clear(const struct bar *bar)
{
    if (bar->width)
        fprintf(stderr, "\r%*s\r", bar->width, "");
}

/* --- pulling ---------------------------------------------------------------------------------- */

int pull_with_progress(const struct hub_settings *settings, const struct hub_reference *reference,
                       bool is_quiet, struct str *path)
{
    struct bar bar = {.is_shown = !is_quiet && isatty(STDERR_FILENO)};
    const struct hub_progress progress = {on_bytes, &bar};
    struct error error;
    struct sigaction action = {.sa_handler = on_interrupt}, old_int, old_term;
    if (!is_quiet)
        log_info("fetching %s (%s) from %s", reference->repo, reference->revision,
                 str_z(&settings->endpoint));
    is_interrupted = 0;
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
    enum status status = hub_pull(settings, reference, &progress, path, &error);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    clear(&bar);
    if (status == ERROR_CANCELLED)
        log_error("interrupted; what has arrived is kept, and the same command goes on from there");
    else if (status != OK)
        log_error("%s", error.message);
    return status == OK ? 0 : 1;
}

static int find_or_pull(const struct hub_settings *settings, const struct hub_reference *reference,
                        struct model_options *options)
{
    struct error error;
    enum status status = hub_find(settings, reference, &options->path_text, &error);
    if (status == OK)
        return 0;
    if (!settings->is_offline) {
        if (!options->is_quiet)
            log_info("%s is no file or folder here, and %s", options->model_path, error.message);
        return pull_with_progress(settings, reference, options->is_quiet, &options->path_text);
    }
    log_error("%s is no file or folder here, HF_HUB_OFFLINE is set, and %s", options->model_path,
              error.message);
    return 1;
}

enum hub_source source_of(const struct source_options *options)
{
    return options->use_modelscope ? HUB_MODELSCOPE : (enum hub_source)options->source;
}

int model_path_resolve(struct model_options *options)
{
    enum hub_source source = source_of(&options->source);
    struct hub_settings settings;
    struct hub_reference reference;
    struct error error;
    if (options->random_weights && options->model_path) {
        log_error("give --model-path or --random-weights, not both");
        return 2;
    }
    if (options->quantization && !options->random_weights &&
        checkpoint_quantization_word(options->quantization) < 0) {
        log_error("--quantization %s is for --random-weights alone; files can be quantized to "
                  "mlx_q4 or mlx_q8 while they are loaded",
                  options->quantization);
        return 2;
    }
    if (options->random_weights) {
        options->path = options->model_path = options->random_weights;
        return 0;
    }
    if (!options->model_path) {
        log_error("--model-path is missing: a model folder, a .gguf file or ORG/NAME on the hub");
        return 2;
    }
    if (options->path)
        return 0;
    options->path = options->model_path;
    if (file_exists(options->model_path) ||
        hub_reference_parse(&reference, source, options->model_path, NULL) != OK)
        return 0;
    if (hub_settings_init(&settings, source, &error) != OK) {
        log_error("%s", error.message);
        return 1;
    }
    int exit_status = find_or_pull(&settings, &reference, options);
    options->path = str_z(&options->path_text);
    hub_settings_done(&settings);
    return exit_status;
}

void model_path_done(struct model_options *options)
{
    str_done(&options->path_text);
}

/* --- commands about one repository ------------------------------------------------------------ */

int repository_parse(struct repository *repository, struct command_line *line, const char *hint,
                     int argc, char **argv)
{
    struct error error;
    line->max_positionals = 1;
    int exit_status = command_line_parse(line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (line->positionals.n != 1) {
        log_error("which model? %s", hint);
        return 2;
    }
    enum hub_source source = source_of(&repository->source);
    enum status status =
        hub_reference_parse(&repository->reference, source, line->positionals.items[0], &error);
    if (status == OK)
        status = hub_settings_init(&repository->settings, source, &error);
    if (status == OK)
        return -1;
    log_error("%s", error.message);
    return 1;
}

void repository_done(struct repository *repository)
{
    hub_settings_done(&repository->settings);
}
