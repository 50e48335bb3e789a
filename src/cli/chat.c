/* csgl chat: a conversation in the terminal. The prefix tree keeps what earlier turns computed. */
#include "base/json.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat {
    struct model_options model;
    struct sampling_options sampling;
    const char *system;
    struct csgl_engine *engine;
    struct str messages; /* a JSON array without its closing bracket */
    struct str answer;
};

/* What Ctrl-C cancels while an answer is being written: written before the handler is installed,
 * and the id 0 at the prompt, which csgl_cancel passes over. */
static struct csgl_engine *answering_engine;
static _Atomic csgl_id answering_id;

static void on_interrupt(int signal)
{
    (void)signal;
    csgl_cancel(answering_engine, answering_id);
}

static void on_start(void *context, csgl_id id)
{
    (void)context;
    answering_id = id;
}

static void add_message(struct chat *chat, const char *role, const char *text, size_t len)
{
    str_printf(&chat->messages,
               "%s{\"role\": \"%s\", \"content\": ", chat->messages.len > 1 ? ", " : "", role);
    json_write_string(&chat->messages, text, len);
    str_append_char(&chat->messages, '}');
}

static void reset(struct chat *chat)
{
    str_clear(&chat->messages);
    str_append_char(&chat->messages, '[');
    if (chat->system)
        add_message(chat, "system", chat->system, strlen(chat->system));
}

static int on_text(void *context, const char *text, size_t bytes)
{
    struct chat *chat = context;
    str_append(&chat->answer, text, bytes);
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) != 0 || chat->answer.failed;
}

/* Answers one message; a failed turn is taken back so that the next one can go on. */
static void answer(struct chat *chat, const char *text, size_t len)
{
    struct csgl_request request;
    struct csgl_result result;
    struct csgl_error error;
    struct parsed_biases biases;
    size_t length_before = chat->messages.len;
    csgl_request_init(&request);
    apply_sampling(&request, &chat->sampling, &biases);
    add_message(chat, "user", text, len);
    size_t length = chat->messages.len;
    str_append_char(&chat->messages, ']');
    request.messages_json = str_z(&chat->messages);
    request.on_text = on_text;
    request.on_start = on_start;
    request.context = chat;
    str_clear(&chat->answer);
    int status = csgl_generate(chat->engine, &request, &result, &error);
    answering_id = 0;
    putchar('\n');
    chat->messages.len = status == CSGL_OK ? length : length_before;
    chat->messages.data[chat->messages.len] = '\0';
    if (status != CSGL_OK) {
        print_error(&error);
        return;
    }
    add_message(chat, "assistant", str_z(&chat->answer), chat->answer.len);
    if (result.finish == CSGL_FINISH_ERROR)
        log_error("%s", result.error);
    if (result.finish == CSGL_FINISH_LENGTH)
        log_info("the answer ends at its limit of tokens; /reset makes room");
}

/* Reads lines until the end of input or /exit. */
static void converse(struct chat *chat)
{
    bool is_terminal = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t capacity = 0;
    if (is_terminal && !chat->model.is_quiet)
        log_info("/reset forgets the conversation, /exit ends; Ctrl-C stops an answer");
    for (;;) {
        if (is_terminal)
            fputs("> ", stdout);
        fflush(stdout);
        errno = 0;
        ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0 && errno == EINTR) { /* Ctrl-C at the prompt clears the line */
            clearerr(stdin);
            putchar('\n');
            continue;
        }
        if (n < 0)
            break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = '\0';
        if (strcmp(line, "/exit") == 0)
            break;
        if (strcmp(line, "/reset") == 0)
            reset(chat);
        else if (n > 0)
            answer(chat, line, (size_t)n);
    }
    free(line);
}

static int run(struct chat *chat)
{
    double load_seconds;
    int exit_status = open_model(&chat->engine, &chat->model, &load_seconds);
    if (exit_status)
        return exit_status;
    struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: getline returns */
    answering_engine = chat->engine;
    sigaction(SIGINT, &action, NULL);
    reset(chat);
    converse(chat);
    signal(SIGINT, SIG_DFL);
    csgl_close(chat->engine);
    return 0;
}

int command_chat(int argc, char **argv)
{
    struct chat chat = {.model = model_options_default(), .sampling = sampling_options_default()};
    const struct option options[] = {
        MODEL_OPTIONS(chat.model),
        SESSION_OPTIONS(chat.model),
        {"--system", NULL, OPTION_STRING, &chat.system, "TEXT", 0, 0, "system message"},
        SAMPLING_OPTIONS(chat.sampling),
    };
    struct command_line line = {.usage = "csgl chat --model-path PATH [options]",
                                .about = "Talks with a model, line by line.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    struct csgl_request unused;
    struct parsed_biases biases;
    csgl_request_init(&unused);
    exit_status = apply_sampling(&unused, &chat.sampling, &biases);
    if (!exit_status)
        exit_status = run(&chat);
    str_done(&chat.messages);
    str_done(&chat.answer);
    return exit_status;
}
