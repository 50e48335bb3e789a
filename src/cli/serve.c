/* csgl serve: the command line. The supervisor starts the same command again for each of its
 * processes, with --role, --resolved-path and --run-dir behind. */
#include "cli/serve.h"

#include "base/log.h"
#include "cli/commands.h"
#include "cli/model_path.h"

#include <string.h>

static int run(struct serve_options *o, int argc, char **argv)
{
    log_set_level((enum log_level)o->log_level);
    int exit_status = model_path_resolve(&o->model);
    if (exit_status)
        return exit_status;
    if (!o->role)
        return serve_supervise(o, argc, argv);
    if (!o->run_dir) {
        log_error("--role is for csgl's own processes");
        return 2;
    }
    if (strcmp(o->role, "frontend") == 0)
        return serve_frontend(o);
    if (strcmp(o->role, "scheduler") == 0)
        return serve_scheduler(o);
    if (strcmp(o->role, "detokenizer") == 0)
        return serve_worker(o, true);
    if (strcmp(o->role, "tokenizer") == 0)
        return serve_worker(o, false);
    log_error("--role %s is none of csgl's", o->role);
    return 2;
}

int command_serve(int argc, char **argv)
{
    struct serve_options o = {.model = model_options_default(),
                              .host = "127.0.0.1",
                              .port = 1919,
                              .max_running = 16,
                              .max_queue = 256,
                              .page_size = 16,
                              .max_step_ms = 250,
                              .drain_seconds = 30,
                              .max_body_mb = 32,
                              .log_level = LOG_INFO,
                              .reasoning_parser = "auto",
                              .tool_call_parser = "auto",
                              .profile_output = "csgl-trace.json",
                              .index = -1};
    static const char no_parallel[] = "one rank serves a model in this version";
    static const char no_speculation[] = "speculative decoding is not in this version";
    static const char no_gpu[] = "this version runs on CPUs";
    const struct option options[] = {
        MODEL_OPTIONS(o.model),
        SESSION_OPTIONS(o.model),
        {"--host", NULL, OPTION_STRING, &o.host, "ADDRESS", 0, 0, "where to listen"},
        {"--port", NULL, OPTION_INT, &o.port, "PORT", 0, 65535, "0: any free one"},
        {"--max-running-requests", NULL, OPTION_INT, &o.max_running, "N", 1, 1024,
         "sequences computed at once"},
        {"--max-queue", NULL, OPTION_INT, &o.max_queue, "N", 1, 1 << 16,
         "requests that may wait; more get 503"},
        {"--schedule-policy", NULL, OPTION_CHOICE, &o.policy, "prefill-first|mixed", 0, 0,
         "prompts before answers, or beside them"},
        {"--max-step-ms", NULL, OPTION_INT, &o.max_step_ms, "MS", 1, 60000,
         "a step's prompt tokens are cut to this time"},
        {"--cache-type", NULL, OPTION_CHOICE, &o.cache_type, "radix|naive", 0, 0,
         "share and keep prefixes, or not"},
        {"--page-size", NULL, OPTION_INT, &o.page_size, "TOKENS", 1, 1024,
         "tokens of a KV page, a power of two"},
        {"--num-pages", NULL, OPTION_INT, &o.num_pages, "N", 0, 1 << 26,
         "pages of the KV cache; 0: by memory"},
        {"--num-tokenizer", "--tokenizer-count", OPTION_INT, &o.num_tokenizer, "N", 0,
         BOARD_MAX_TOKENIZERS, "tokenizer processes; 0: the detokenizer's own"},
        {"--served-model-name", NULL, OPTION_STRINGS, &o.served_names, "NAME", 0, 0,
         "name in the API; more are aliases"},
        {"--api-key", NULL, OPTION_STRINGS, &o.api_keys, "KEY", 0, 0,
         "required of clients; may be repeated"},
        {"--api-key-file", NULL, OPTION_STRING, &o.api_key_file, "FILE", 0, 0, "one key a line"},
        {"--cors-origin", NULL, OPTION_STRING, &o.cors_origin, "ORIGIN", 0, 0,
         "allow pages of this origin, or *"},
        {"--max-body-mb", NULL, OPTION_INT, &o.max_body_mb, "MIB", 1, 1024, "longest request body"},
        {"--reasoning-parser", NULL, OPTION_STRING, &o.reasoning_parser, "NAME", 0, 0,
         "how answers mark reasoning"},
        {"--tool-call-parser", NULL, OPTION_STRING, &o.tool_call_parser, "NAME", 0, 0,
         "how answers mark tool calls"},
        {"--default-chat-template-kwargs", NULL, OPTION_STRING, &o.default_kwargs, "JSON", 0, 0,
         "template variables of every request"},
        {"--drain-seconds", NULL, OPTION_INT, &o.drain_seconds, "S", 0, 86400,
         "for running requests at Ctrl-C"},
        {"--log-level", NULL, OPTION_CHOICE, &o.log_level, "error|warn|info|debug", 0, 0,
         "what is written to stderr"},
        {"--profile", NULL, OPTION_FLAG, &o.has_profile, NULL, 0, 0,
         "record a trace from the start until /stop_profile or the end"},
        {"--profile-output", NULL, OPTION_STRING, &o.profile_output, "FILE", 0, 0,
         "where traces go; of later ones FILE-2 and so on"},
        {"--role", NULL, OPTION_STRING, &o.role, "", 0, 0, NULL},
        {"--resolved-path", NULL, OPTION_STRING, &o.model.path, "", 0, 0, NULL},
        {"--run-dir", NULL, OPTION_STRING, &o.run_dir, "", 0, 0, NULL},
        {"--index", NULL, OPTION_INT, &o.index, "", -1, BOARD_MAX_TOKENIZERS, NULL},
        /* The reference's other flags. */
        {"--tensor-parallel-size", "--tp-size", OPTION_REFUSED, NULL, "1", 0, 0, no_parallel},
        {"--dtype", NULL, OPTION_REFUSED, NULL, "auto", 0, 0,
         "activations are f32 on a CPU and weights keep the file's type"},
        {"--attention-backend", "--attn", OPTION_REFUSED, NULL, "auto", 0, 0,
         "attention is csgl's own"},
        {"--moe-backend", NULL, OPTION_REFUSED, NULL, "auto", 0, 0,
         "there are no sparse models yet"},
        {"--spec-algo", NULL, OPTION_REFUSED, NULL, "none", 0, 0, no_speculation},
        {"--draft-path", NULL, OPTION_REFUSED, NULL, NULL, 0, 0, no_speculation},
        {"--num-draft-tokens", NULL, OPTION_REFUSED, NULL, "0", 0, 0, no_speculation},
        {"--cuda-graph-max-bs", "--graph", OPTION_REFUSED, NULL, "0", 0, 0, no_gpu},
        {"--disable-pynccl", NULL, OPTION_REFUSED, NULL, NULL, 0, 0, no_gpu},
        {"--shell-mode", NULL, OPTION_REFUSED, NULL, NULL, 0, 0, "use csgl chat"},
    };
    struct command_line line = {
        .usage = "csgl serve --model-path PATH [options]",
        .about = "Serves a model over an OpenAI-compatible HTTP API until Ctrl-C.",
        .options = options,
        .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    exit_status = run(&o, argc, argv);
    model_path_done(&o.model);
    return exit_status;
}
