/* csgl pull: a model from the Hugging Face hub into the cache. */
#include "base/log.h"
#include "cli/commands.h"
#include "cli/model_path.h"

#include <stdio.h>

static int pull(const char *text, bool is_quiet)
{
    struct hub_settings settings;
    struct hub_reference reference;
    struct error error;
    struct str path = {0};
    enum status status = hub_reference_parse(&reference, text, &error);
    if (status == OK)
        status = hub_settings_init(&settings, &error);
    if (status != OK) {
        log_error("%s", error.message);
        return 1;
    }
    int exit_status = pull_with_progress(&settings, &reference, is_quiet, &path);
    if (exit_status == 0)
        puts(str_z(&path));
    str_done(&path);
    hub_settings_done(&settings);
    return exit_status;
}

int command_pull(int argc, char **argv)
{
    bool is_quiet = false;
    const struct option options[] = {
        {"--quiet", NULL, OPTION_FLAG, &is_quiet, NULL, 0, 0, "print the path alone"},
    };
    struct command_line line = {
        .usage = "csgl pull [options] ORG/NAME[@REVISION][:FILE.gguf]",
        .about = "Fetches a model from the Hugging Face hub and prints its path. Behind the colon "
                 "may\nalso be a quantization, such as Q4_K_M. HF_TOKEN, HF_ENDPOINT, HF_HOME, "
                 "HF_HUB_CACHE and\nHF_HUB_OFFLINE mean what they mean for huggingface_hub.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_positionals = 1};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (line.positionals.n != 1) {
        log_error("which model? csgl pull ORG/NAME");
        return 2;
    }
    return pull(line.positionals.items[0], is_quiet);
}
