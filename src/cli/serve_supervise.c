/* The supervisor of csgl serve: the listening socket, the run directory, the children's command
 * lines. */
#include "base/log.h"
#include "base/system.h"
#include "cli/serve.h"
#include "message/process_trace.h"
#include "message/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,
    MAX_RUN_DIR = 60, /* leaves room for a socket's name in sun_path */
    MAX_ARGUMENTS = 256,
    MAX_CHILDREN = 3 + BOARD_MAX_TOKENIZERS
};

struct serve {
    const struct serve_options *options;
    char run_dir[MAX_RUN_DIR + 1];
    char lock_path[128];
    char program[4096];
    int listen_fd, port;
    struct board *board;
    struct child_spec children[MAX_CHILDREN];
    char *arguments[MAX_CHILDREN][MAX_ARGUMENTS];
    char indices[MAX_CHILDREN][12];
    int n_children;
};

static const char *runtime_folder(void)
{
    const char *folder = options_environment("XDG_RUNTIME_DIR");
    if (!folder)
        folder = options_environment("TMPDIR");
    /* Room for "/csgl-" and a process id. */
    return folder && strlen(folder) + 17 <= MAX_RUN_DIR ? folder : "/tmp";
}

/* --- the listening socket --------------------------------------------------------------------- */

/* A file beside the run directories says which process serves a port. */
static void make_lock_path(struct serve *s, int port)
{
    snprintf(s->lock_path, sizeof s->lock_path, "%s/csgl-%d-port-%d", runtime_folder(),
             (int)getuid(), port);
}

static void write_lock(struct serve *s)
{
    make_lock_path(s, s->port);
    FILE *file = fopen(s->lock_path, "we");
    if (!file)
        return; /* it only makes a message better */
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
}

static enum status explain_bind(struct serve *s, int reason, struct error *error)
{
    const struct serve_options *o = s->options;
    int pid = 0;
    if (reason == EADDRINUSE) {
        make_lock_path(s, o->port);
        FILE *file = fopen(s->lock_path, "re");
        s->lock_path[0] = '\0';
        if (file && fscanf(file, "%d", &pid) != 1)
            pid = 0;
        if (file)
            fclose(file);
    }
    if (pid)
        return error_set(
            error, ERROR_IO,
            "port %d is in use by the csgl process %d; stop it or choose another --port", o->port,
            pid);
    return error_set(error, ERROR_IO, "%s port %d cannot be listened on: %s; choose another --port",
                     o->host, o->port, strerror(reason));
}

static enum status listen_on(struct serve *s, const struct addrinfo *address, struct error *error)
{
    int yes = 1, low = socket(address->ai_family, SOCK_STREAM, 0);
    if (low < 0)
        return error_set(error, ERROR_IO, "a socket cannot be made: %s", strerror(errno));
    s->listen_fd = fcntl(low, F_DUPFD_CLOEXEC, CHILD_LISTEN_FD + 1);
    close(low);
    setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(s->listen_fd, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(s->listen_fd, BACKLOG) != 0)
        return explain_bind(s, errno, error);
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    getsockname(s->listen_fd, (struct sockaddr *)&bound, &n);
    s->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    write_lock(s);
    return OK;
}

static enum status open_listener(struct serve *s, struct error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *addresses;
    char port[8];
    snprintf(port, sizeof port, "%d", s->options->port);
    int failed = getaddrinfo(s->options->host, port, &hints, &addresses);
    if (failed)
        return error_set(error, ERROR_INVALID, "--host %s is no address: %s", s->options->host,
                         gai_strerror(failed));
    enum status status = listen_on(s, addresses, error);
    freeaddrinfo(addresses);
    return status;
}

/* --- the run directory ------------------------------------------------------------------------ */

static enum status make_run_dir(struct serve *s, struct error *error)
{
    snprintf(s->run_dir, sizeof s->run_dir, "%s/csgl-%d", runtime_folder(), (int)getpid());
    if (mkdir(s->run_dir, 0700) != 0) {
        enum status status =
            error_set(error, ERROR_IO, "%s cannot be made: %s", s->run_dir, strerror(errno));
        s->run_dir[0] = '\0';
        return status;
    }
    return board_create(&s->board, s->run_dir, error);
}

static void remove_file(const struct serve *s, const char *name)
{
    char path[MAX_RUN_DIR + 64];
    snprintf(path, sizeof path, "%s/%s", s->run_dir, name);
    unlink(path);
}

static void remove_run_dir(const struct serve *s)
{
    char name[32];
    if (!s->run_dir[0])
        return;
    remove_file(s, "board");
    remove_file(s, "frontend");
    remove_file(s, "scheduler");
    remove_file(s, "detokenizer");
    remove_file(s, "trace.frontend");
    remove_file(s, "trace.scheduler");
    remove_file(s, "trace.detokenizer");
    for (int i = 0; i < BOARD_MAX_TOKENIZERS; i++) {
        snprintf(name, sizeof name, "tokenizer.%d", i);
        remove_file(s, name);
        snprintf(name, sizeof name, "trace.tokenizer.%d", i);
        remove_file(s, name);
    }
    rmdir(s->run_dir);
}

/* --- children --------------------------------------------------------------------------------- */

static enum status find_program(struct serve *s, struct error *error)
{
    if (!system_program(s->program, sizeof s->program))
        return error_set(error, ERROR_NOT_FOUND, "csgl cannot find its own program file");
    return OK;
}

static enum status add_child(struct serve *s, const char *role_name, enum board_role role,
                             int index, int argc, char **argv, struct error *error)
{
    char **a = s->arguments[s->n_children];
    char *number = s->indices[s->n_children];
    int n = 0;
    if (argc + 11 > MAX_ARGUMENTS)
        return error_set(error, ERROR_LIMIT, "%d arguments are too many", argc);
    snprintf(number, sizeof s->indices[0], "%d", index);
    a[n++] = s->program;
    a[n++] = (char *)"serve";
    for (int i = 0; i < argc; i++)
        a[n++] = argv[i];
    a[n++] = (char *)"--role";
    a[n++] = (char *)(uintptr_t)role_name;
    /* Also after a restart, when the hub may have another commit. */
    a[n++] = (char *)"--resolved-path";
    a[n++] = (char *)(uintptr_t)s->options->model.path;
    a[n++] = (char *)"--run-dir";
    a[n++] = s->run_dir;
    a[n++] = (char *)"--index";
    a[n++] = number;
    a[n] = NULL;
    s->children[s->n_children++] =
        (struct child_spec){.role = role, .argv = a, .needs_listen_fd = role == ROLE_FRONTEND};
    return OK;
}

static enum status add_children(struct serve *s, int argc, char **argv, struct error *error)
{
    int n_tokenizers = s->options->num_tokenizer;
    /* Without tokenizers of their own, the detokenizer is tokenizer 0 too. */
    int shared_index = n_tokenizers ? -1 : 0;
    enum status status = add_child(s, "scheduler", ROLE_SCHEDULER, -1, argc, argv, error);
    if (status == OK)
        status = add_child(s, "detokenizer", ROLE_DETOKENIZER, shared_index, argc, argv, error);
    for (int i = 0; i < n_tokenizers && status == OK; i++)
        status =
            add_child(s, "tokenizer", (enum board_role)(ROLE_TOKENIZER + i), i, argc, argv, error);
    if (status == OK)
        status = add_child(s, "frontend", ROLE_FRONTEND, -1, argc, argv, error);
    return status;
}

static void say_ready(void *context)
{
    const struct serve *s = context;
    log_info("ready on http://%s:%d", s->options->host, s->port);
}

int serve_supervise(const struct serve_options *options, int argc, char **argv)
{
    struct serve *s = calloc(1, sizeof *s);
    struct error error = {0};
    if (!s) {
        log_error("out of memory");
        return 1;
    }
    s->options = options;
    s->listen_fd = -1;
    enum status status = OK;
    if (options->page_size & (options->page_size - 1))
        status = error_set(&error, ERROR_INVALID, "--page-size %d is not a power of two",
                           options->page_size);
    if (status == OK)
        status = find_program(s, &error);
    if (status == OK)
        status = open_listener(s, &error);
    if (status == OK)
        status = make_run_dir(s, &error);
    if (status == OK)
        status = add_children(s, argc, argv, &error);
    if (status == OK && options->has_profile)
        profile_start(s->board, 0, 0);
    if (status == OK) {
        log_info("loading %s", options->model.model_path);
        struct supervisor_options supervisor = {.board = s->board,
                                                .children = s->children,
                                                .n_children = s->n_children,
                                                .listen_fd = s->listen_fd,
                                                .drain_seconds = options->drain_seconds,
                                                .on_ready = say_ready,
                                                .context = s};
        status = supervisor_run(&supervisor, &error);
    }
    if (status != OK)
        log_error("%s", error.message);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->lock_path[0])
        unlink(s->lock_path);
    board_close(s->board);
    remove_run_dir(s);
    free(s);
    return status == OK ? 0 : 1;
}
