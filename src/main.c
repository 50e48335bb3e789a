/* csgl: the table of commands. */
#include "cli/commands.h"
#include "cli/version.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    command_run run;
    const char *about;
} commands[] = {
    {"serve", command_serve, "serve a model over an OpenAI-compatible API"},
    {"generate", command_generate, "continue a text or answer one message"},
    {"chat", command_chat, "talk with a model in the terminal"},
    {"bench_one_batch", command_bench_one_batch, "time prefill and decode of one batch"},
    {"bench_offline_throughput", command_bench_offline_throughput,
     "time a dataset without a server"},
    {"bench_one_batch_server", command_bench_one_batch_server, "time one batch through a server"},
    {"bench_serving", command_bench_serving, "time a server under load"},
    {"bench_ops", command_bench_ops, "time one op against what the machine can do"},
    {"check_env", command_check_env, "tell what this machine has and what will be used"},
    {"show_config", command_check_env, "the same"},
    {"plan", command_plan, "tell what memory a model takes"},
    {"quantize", command_quantize, "write a model anew with 4-bit or 8-bit weights"},
    {"pull", command_pull, "fetch a model from the Hugging Face hub"},
    {"list", command_list, "list the models that were fetched"},
    {"rm", command_rm, "delete a fetched model"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fprintf(out, "Usage: csgl COMMAND [options]\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-25s %s\n", commands[i].name, commands[i].about);
    fprintf(out, "\ncsgl COMMAND --help lists a command's options; csgl --version prints the "
                 "version.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        version_print(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "csgl: unknown command \"%s\"; csgl --help lists them\n", argv[1]);
    return 2;
}
