/* csgl list: the models in a hub's cache. */
#include "base/log.h"
#include "cli/commands.h"
#include "cli/model_path.h"

#include <stdio.h>

static void print_entry(void *context, const struct hub_entry *entry)
{
    int *n = context;
    char size[SIZE_TEXT];
    if ((*n)++ == 0)
        printf("%-44s %-14s %-12s %10s %6s\n", "MODEL", "REVISION", "COMMIT", "SIZE", "FILES");
    printf("%-44s %-14s %-12.12s %10s %6d", entry->repo, *entry->revision ? entry->revision : "-",
           *entry->commit ? entry->commit : "-", size_text(entry->bytes, size), entry->n_files);
    if (entry->partial_bytes)
        printf("  and %s unfinished", size_text(entry->partial_bytes, size));
    putchar('\n');
}

int command_list(int argc, char **argv)
{
    struct source_options source = {0};
    const struct option options[] = {SOURCE_OPTIONS(source)};
    struct command_line line = {
        .usage = "csgl list [options]",
        .about = "Lists the models in the Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub or\n"
                 "~/.cache/huggingface/hub) or of ModelScope ($MODELSCOPE_CACHE/csgl or\n"
                 "~/.cache/modelscope/csgl).",
        .options = options,
        .n_options = sizeof options / sizeof options[0]};
    struct hub_settings settings;
    struct error error;
    int n = 0, exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (hub_settings_init(&settings, source_of(&source), &error) != OK) {
        log_error("%s", error.message);
        return 1;
    }
    enum status status = hub_list(&settings, print_entry, &n, &error);
    if (status != OK)
        log_error("%s", error.message);
    else if (n == 0)
        log_info("no models in %s; csgl pull ORG/NAME fetches one", str_z(&settings.cache));
    hub_settings_done(&settings);
    return status == OK ? 0 : 1;
}
