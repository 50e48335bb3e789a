/* csgl rm: deletes a model from the cache. */
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

static enum status remove_model(const struct repository *repository, const char *text, bool is_sure,
                                struct error *error)
{
    const char *repo = repository->reference.repo;
    struct sum sum = {.repo = repo};
    if (strcmp(repo, text) != 0)
        return error_set(error, ERROR_INVALID, "csgl rm deletes whole models: csgl rm %s", repo);
    if (!is_sure) {
        enum status status = hub_list(&repository->settings, add_entry, &sum, error);
        if (status != OK)
            return status;
        if (sum.is_found && !is_confirmed(&sum))
            return error_set(error, ERROR_CANCELLED, "nothing was deleted");
    }
    return hub_remove(&repository->settings, repo, error);
}

int command_rm(int argc, char **argv)
{
    struct repository repository = {0};
    struct error error;
    bool is_sure = false;
    const struct option options[] = {
        SOURCE_OPTIONS(repository.source),
        {"--yes", "-y", OPTION_FLAG, &is_sure, NULL, 0, 0, "do not ask"},
    };
    struct command_line line = {.usage = "csgl rm [options] ORG/NAME",
                                .about = "Deletes a model from the cache.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = repository_parse(&repository, &line, "csgl list names them", argc, argv);
    if (exit_status >= 0)
        return exit_status;
    enum status status = remove_model(&repository, line.positionals.items[0], is_sure, &error);
    if (status != OK)
        log_error("%s", error.message);
    repository_done(&repository);
    return status == OK ? 0 : 1;
}
