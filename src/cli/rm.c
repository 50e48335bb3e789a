/* csgl rm: deletes a model from the Hugging Face cache. */
#include "base/log.h"
#include "cli/commands.h"
#include "cli/model_path.h"

#include <stdio.h>
#include <string.h>

struct sum {
    const char *repo;
    uint64_t bytes;
    bool is_found;
};

static void add_entry(void *context, const struct hub_entry *entry)
{
    struct sum *sum = context;
    if (strcmp(entry->repo, sum->repo) != 0)
        return;
    sum->bytes += entry->bytes + (sum->is_found ? 0 : entry->partial_bytes);
    sum->is_found = true;
}

static bool is_confirmed(const struct sum *sum)
{
    char size[SIZE_TEXT], answer[8] = "";
    fprintf(stderr, "delete %s (%s)? [y/N] ", sum->repo, size_text(sum->bytes, size));
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int remove_model(const char *text, bool is_sure)
{
    struct hub_settings settings;
    struct hub_reference reference;
    struct error error;
    enum status status = hub_reference_parse(&reference, text, &error);
    if (status == OK && strcmp(reference.repo, text) != 0)
        status = error_set(&error, ERROR_INVALID, "csgl rm deletes whole models: csgl rm %s",
                           reference.repo);
    if (status == OK)
        status = hub_settings_init(&settings, &error);
    if (status != OK) {
        log_error("%s", error.message);
        return 1;
    }
    struct sum sum = {.repo = reference.repo};
    if (!is_sure) {
        status = hub_list(&settings, add_entry, &sum, &error);
        is_sure = status == OK && (!sum.is_found || is_confirmed(&sum));
        if (status == OK && !is_sure)
            status = error_set(&error, ERROR_CANCELLED, "nothing was deleted");
    }
    if (is_sure)
        status = hub_remove(&settings, reference.repo, &error);
    if (status != OK)
        log_error("%s", error.message);
    hub_settings_done(&settings);
    return status == OK ? 0 : 1;
}

int command_rm(int argc, char **argv)
{
    bool is_sure = false;
    const struct option options[] = {
        {"--yes", "-y", OPTION_FLAG, &is_sure, NULL, 0, 0, "do not ask"},
    };
    struct command_line line = {.usage = "csgl rm [options] ORG/NAME",
                                .about = "Deletes a model from the Hugging Face cache.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0],
                                .max_positionals = 1};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    if (line.positionals.n != 1) {
        log_error("which model? csgl list names them");
        return 2;
    }
    return remove_model(line.positionals.items[0], is_sure);
}
