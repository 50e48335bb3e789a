/* csgl serve: its options, and what each of its processes runs. */
#ifndef CSGL_CLI_SERVE_H
#define CSGL_CLI_SERVE_H

#include "cli/common.h"
#include "device/comm/comm.h"
#include "device/device_open.h"
#include "message/board.h"
#include "scheduler/scheduler.h"

/* Rows of a step for prompts that are scored, beyond one a running request: their logits take 39 MB
 * with Qwen3's vocabulary, and a chunk of 64 rows is near the speed of longer ones. */
enum { SERVE_MAX_SCORED = 64 };

struct serve_options {
    struct model_options model;
    const char *host;
    int port, num_tokenizer, max_running, max_queue, num_pages, page_size, max_step_ms;
    int policy, cache_type, drain_seconds, max_body_mb, log_level;
    struct option_strings api_keys, served_names;
    bool has_profile;
    const char *profile_output;
    const char *api_key_file, *cors_origin, *reasoning_parser, *tool_call_parser, *default_kwargs;
    /* Of a child: */
    const char *role, *run_dir;
    int index;
};

/* What the processes of csgl serve and their tokenizers (NULL: not known) take beside the engine.
 */
void serve_memory(int num_tokenizer, const struct tokenizer *tokenizer,
                  struct memory_request *request);

/* Runs one of the processes in the run directory until the supervisor is gone; the exit status. */
int serve_frontend(const struct serve_options *options);
int serve_scheduler(const struct serve_options *options);
int serve_worker(const struct serve_options *options, bool is_detokenizer);

/* The supervisor: the exit status. argv is the command's. */
int serve_supervise(const struct serve_options *options, int argc, char **argv);

#endif
