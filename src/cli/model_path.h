/* What --model-path means: a path, or a repository of a hub. */
#ifndef CSGL_CLI_MODEL_PATH_H
#define CSGL_CLI_MODEL_PATH_H

#include "checkpoint/hub.h"
#include "cli/common.h"

/* Sets `options->path`, which lives until model_path_done: the path itself if it exists or is no
 * ORG/NAME, else the cached snapshot, which is fetched when it is not there. On an error prints it
 * and returns the exit status, otherwise 0. */
int model_path_resolve(struct model_options *options);
void model_path_done(struct model_options *options);

/* The hub that was asked for. */
enum hub_source source_of(const struct source_options *options);

/* hub_pull with a progress bar; Ctrl-C ends it and keeps what has arrived. On an error prints it
 * and returns 1, otherwise 0. */
int pull_with_progress(const struct hub_settings *settings, const struct hub_reference *reference,
                       bool is_quiet, struct str *path);

/* "1.5 GiB" into `out`. */
enum { SIZE_TEXT = 24 };
const char *size_text(uint64_t bytes, char out[SIZE_TEXT]);

/* The command line of a command about one repository: ORG/NAME and what `line` has besides. */
struct repository {
    struct source_options source;
    struct hub_settings settings;
    struct hub_reference reference;
};

/* Parses, and reads the settings. Otherwise prints why not and returns the exit status; -1: go on,
 * and repository_done in the end. `hint` says where names come from. */
int repository_parse(struct repository *repository, struct command_line *line, const char *hint,
                     int argc, char **argv);
void repository_done(struct repository *repository);

#endif
