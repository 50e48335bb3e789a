/* The commands of csgl: one file each, listed in main.c. */
#ifndef CSGL_CLI_COMMANDS_H
#define CSGL_CLI_COMMANDS_H

/* argv[0] is the first argument behind the command's name. The result is the exit status: 0, 1 for
 * an error that was printed, 2 for a wrong command line. */
typedef int (*command_run)(int argc, char **argv);

int command_serve(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_bench_one_batch(int argc, char **argv);
int command_bench_offline_throughput(int argc, char **argv);
int command_bench_one_batch_server(int argc, char **argv);
int command_bench_serving(int argc, char **argv);
int command_bench_ops(int argc, char **argv);
int command_check_env(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_pull(int argc, char **argv);
int command_list(int argc, char **argv);
int command_quantize(int argc, char **argv);
int command_rm(int argc, char **argv);

#endif
