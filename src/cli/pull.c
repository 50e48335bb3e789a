/* csgl pull: a model from a hub into the cache. */
#include "cli/commands.h"
#include "cli/model_path.h"

#include <stdio.h>

int command_pull(int argc, char **argv)
{
    struct repository repository = {0};
    bool is_quiet = false;
    const struct option options[] = {
        SOURCE_OPTIONS(repository.source),
        {"--quiet", NULL, OPTION_FLAG, &is_quiet, NULL, 0, 0, "print the path alone"},
    };
    struct command_line line = {
        .usage = "csgl pull [options] ORG/NAME[@REVISION][:FILE.gguf]",
        .about = "Fetches a model from the Hugging Face hub or ModelScope and prints its path. "
                 "Behind the\ncolon may also be a quantization, such as Q4_K_M. HF_TOKEN, "
                 "HF_ENDPOINT, HF_HOME, HF_HUB_CACHE,\nHF_HUB_OFFLINE, MODELSCOPE_API_TOKEN and "
                 "MODELSCOPE_DOMAIN mean what they mean for the hubs' own\nclients; models of "
                 "ModelScope are kept in $MODELSCOPE_CACHE/csgl.",
        .options = options,
        .n_options = sizeof options / sizeof options[0]};
    int exit_status = repository_parse(&repository, &line, "csgl pull ORG/NAME", argc, argv);
    if (exit_status >= 0)
        return exit_status;
    struct str path = {0};
    exit_status = pull_with_progress(&repository.settings, &repository.reference, is_quiet, &path);
    if (exit_status == 0)
        puts(str_z(&path));
    str_done(&path);
    repository_done(&repository);
    return exit_status;
}
