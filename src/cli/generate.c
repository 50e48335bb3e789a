/* csgl generate: one prompt, one answer. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/system.h"
#include "cli/commands.h"
#include "cli/common.h"

#include <signal.h>
#include <string.h>

enum { PROMPT_MAX_BYTES = 64 << 20 };

struct generate {
    struct model_options model;
    struct sampling_options sampling;
    const char *file, *system, *profile_output;
    bool is_chat, is_json, has_profile;
    int logprobs;
    struct str prompt, messages, answer, tokens;
};

/* What Ctrl-C cancels: written before the handler is installed. */
static struct csgl_engine *running_engine;
static csgl_id running_id;

static void on_interrupt(int signal)
{
    (void)signal;
    csgl_cancel(running_engine, running_id);
}

static void on_start(void *context, csgl_id id)
{
    (void)context;
    running_id = id;
    signal(SIGINT, on_interrupt);
}

static int on_text(void *context, const char *text, size_t bytes)
{
    struct generate *g = context;
    if (g->is_json) {
        str_append(&g->answer, text, bytes);
        return g->answer.failed;
    }
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) != 0; /* the reader has gone */
}

static void on_token(void *context, const struct csgl_token *token)
{
    struct generate *g = context;
    str_printf(&g->tokens, "%s{\"id\": %d", g->tokens.len ? ", " : "", (int)token->id);
    if (g->logprobs >= 0) {
        str_printf(&g->tokens, ", \"logprob\": %.6g, \"top_logprobs\": [", token->logprob);
        for (int i = 0; i < token->n_top; i++)
            str_printf(&g->tokens, "%s{\"id\": %d, \"logprob\": %.6g}", i ? ", " : "",
                       (int)token->top_ids[i], token->top_logprobs[i]);
        str_append_z(&g->tokens, "]");
    }
    str_append_z(&g->tokens, "}");
}

/* The prompt: an argument, a file, or what stdin holds. */
static int read_prompt(struct generate *g, const struct command_line *line)
{
    struct error error;
    if (line->positionals.n > 0 && g->file) {
        log_error("give the prompt as an argument or with --file, not both");
        return 2;
    }
    if (line->positionals.n > 0) {
        str_append_z(&g->prompt, line->positionals.items[0]);
        return 0;
    }
    if (file_read(g->file ? g->file : "-", PROMPT_MAX_BYTES, &g->prompt, &error) != OK) {
        log_error("%s", error.message);
        return 1;
    }
    return 0;
}

static void write_message(struct str *out, const char *role, const char *text, size_t len)
{
    str_printf(out, "%s{\"role\": \"%s\", \"content\": ", out->len > 1 ? ", " : "", role);
    json_write_string(out, text, len);
    str_append_char(out, '}');
}

static void make_request(struct generate *g, struct csgl_request *request)
{
    if (g->is_chat) {
        str_append_char(&g->messages, '[');
        if (g->system)
            write_message(&g->messages, "system", g->system, strlen(g->system));
        write_message(&g->messages, "user", str_z(&g->prompt), g->prompt.len);
        str_append_char(&g->messages, ']');
        request->messages_json = str_z(&g->messages);
    } else {
        request->prompt = str_z(&g->prompt);
    }
    request->n_logprobs = g->logprobs;
    request->on_text = on_text;
    request->on_start = on_start;
    request->on_token = g->is_json ? on_token : NULL;
    request->context = g;
}

static double rate(int n, double seconds)
{
    return seconds > 0.0 ? n / seconds : 0.0;
}

static void print_json(const struct generate *g, const struct csgl_result *r, double load_seconds)
{
    static const char *const reasons[] = {"stop", "length", "cancelled", "error"};
    struct str out = {0};
    str_append_z(&out, "{\"text\": ");
    json_write_string(&out, str_z(&g->answer), g->answer.len);
    str_printf(&out,
               ", \"finish_reason\": \"%s\", \"usage\": {\"prompt_tokens\": %d, \"cached_tokens\": "
               "%d, \"completion_tokens\": %d}, \"tokens\": [%s], \"timings\": {\"load_s\": %.4f, "
               "\"ttft_s\": %.4f, \"prefill_tokens_per_s\": %.2f, \"decode_tokens_per_s\": %.2f}, "
               "\"peak_memory_bytes\": %llu}",
               reasons[r->finish], r->prompt_tokens, r->cached_tokens, r->output_tokens,
               str_z(&g->tokens), load_seconds, r->prefill_seconds,
               rate(r->prompt_tokens - r->cached_tokens, r->prefill_seconds),
               rate(r->output_tokens - 1, r->decode_seconds),
               (unsigned long long)system_peak_memory());
    puts(str_z(&out));
    str_done(&out);
}

static void print_timings(const struct csgl_result *r, double load_seconds)
{
    log_info(
        "load %.2f s; prompt %d tokens, time to first token %.0f ms (%.0f tokens/s); decode %d "
        "tokens at %.1f tokens/s; peak memory %.0f MiB",
        load_seconds, r->prompt_tokens, r->prefill_seconds * 1e3,
        rate(r->prompt_tokens - r->cached_tokens, r->prefill_seconds), r->output_tokens,
        rate(r->output_tokens - 1, r->decode_seconds),
        (double)system_peak_memory() / (1024.0 * 1024.0));
}

static void print_result(const struct generate *g, const struct csgl_result *result,
                         double load_seconds)
{
    if (g->is_json)
        print_json(g, result, load_seconds);
    else
        putchar('\n');
    if (!g->model.is_quiet)
        print_timings(result, load_seconds);
}

static int generate(struct generate *g, struct csgl_request *request)
{
    struct csgl_engine *engine = NULL;
    struct csgl_error error;
    struct csgl_result result;
    double load_seconds;
    int exit_status = open_model(&engine, &g->model, &load_seconds);
    if (exit_status)
        return exit_status;
    running_engine = engine;
    signal(SIGPIPE, SIG_IGN);
    if (g->has_profile && csgl_profile_start(engine, &error) != CSGL_OK)
        exit_status = print_error(&error);
    else if (csgl_generate(engine, request, &result, &error) != CSGL_OK) {
        exit_status = print_error(&error);
    } else if (result.finish == CSGL_FINISH_ERROR) {
        log_error("%s", result.error);
        exit_status = 1;
    } else {
        print_result(g, &result, load_seconds);
    }
    signal(SIGINT, SIG_DFL);
    if (!exit_status && g->has_profile &&
        csgl_profile_stop(engine, g->profile_output, &error) != CSGL_OK)
        exit_status = print_error(&error);
    csgl_close(engine);
    return exit_status;
}

int command_generate(int argc, char **argv)
{
    struct generate g = {.model = model_options_default(),
                         .sampling = sampling_options_default(),
                         .profile_output = "csgl-trace.json",
                         .logprobs = -1};
    const struct option options[] = {
        MODEL_OPTIONS(g.model),
        SESSION_OPTIONS(g.model),
        {"--chat", NULL, OPTION_FLAG, &g.is_chat, NULL, 0, 0,
         "the prompt is a message: apply the chat template"},
        {"--system", NULL, OPTION_STRING, &g.system, "TEXT", 0, 0, "system message, with --chat"},
        {"--file", NULL, OPTION_STRING, &g.file, "FILE", 0, 0, "read the prompt from a file"},
        {"--json", NULL, OPTION_FLAG, &g.is_json, NULL, 0, 0, "print one JSON object"},
        {"--logprobs", NULL, OPTION_INT, &g.logprobs, "N", -1, 20,
         "alternatives a token, with --json; -1: none"},
        {"--profile", NULL, OPTION_FLAG, &g.has_profile, NULL, 0, 0,
         "record a trace of steps and ops"},
        {"--profile-output", NULL, OPTION_STRING, &g.profile_output, "FILE", 0, 0,
         "where the trace goes"},
        SAMPLING_OPTIONS(g.sampling),
    };
    struct command_line line = {
        .usage = "csgl generate --model-path PATH [options] [PROMPT]",
        .about =
            "Continues PROMPT, the text of --file or of standard input, and streams the answer.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .max_positionals = 1};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    struct csgl_request request;
    struct parsed_biases biases;
    csgl_request_init(&request);
    exit_status = apply_sampling(&request, &g.sampling, &biases);
    if (!exit_status && !g.is_chat && (g.system || g.model.chat_template)) {
        log_error("--system and --chat-template need --chat: a text to continue has no messages");
        exit_status = 2;
    }
    if (!exit_status && !g.is_json && g.logprobs >= 0) {
        log_error("--logprobs needs --json, which prints them");
        exit_status = 2;
    }
    if (!exit_status)
        exit_status = read_prompt(&g, &line);
    if (!exit_status) {
        make_request(&g, &request);
        exit_status = generate(&g, &request);
    }
    str_done(&g.prompt);
    str_done(&g.messages);
    str_done(&g.answer);
    str_done(&g.tokens);
    return exit_status;
}
