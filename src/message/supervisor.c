#include "message/supervisor.h"

#include "base/log.h"
#include "base/system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Waits between restarts: doubled at each death, back to the first after a quiet minute. */
static const double first_delay = 0.1, longest_delay = 10.0, quiet_seconds = 60.0;

/* A scheduler that has not finished a step for so long is wedged. A step is cut to a fraction of a
 * second; the first of a cold model may take longer. */
static const double wedged_seconds = 120.0;

enum { TICK_MS = 100 };

struct child {
    const struct child_spec *spec;
    pid_t pid; /* 0: not running */
    double started, restart_at, delay;
};

struct supervisor {
    const struct supervisor_options *options;
    struct child *children;
    int life_pipe[2];
    bool was_ready;
    int n_signals;
};

/* Signals arrive as bytes: 'c' a child ended, 's' stop. Written before the handlers are installed.
 */
static int signal_pipe[2];

static void on_signal(int signal)
{
    int saved = errno;
    char byte = signal == SIGCHLD ? 'c' : 's';
    ssize_t n = write(signal_pipe[1], &byte, 1);
    (void)n; /* full: the supervisor is about to look anyway */
    errno = saved;
}

/* Close-on-exec, and above the numbers that children find their descriptors at: a dup2 onto itself
 * would keep close-on-exec, and one onto another's number would lose that one. */
static enum status make_pipe(int fds[2], bool non_blocking, struct error *error)
{
    int low[2];
    if (pipe(low) != 0)
        return error_set(error, ERROR_IO, "a pipe cannot be made: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fds[i] = fcntl(low[i], F_DUPFD_CLOEXEC, CHILD_LISTEN_FD + 1);
        close(low[i]);
        if (fds[i] < 0)
            return error_set(error, ERROR_IO, "a pipe cannot be made: %s", strerror(errno));
        if (non_blocking)
            fcntl(fds[i], F_SETFL, O_NONBLOCK);
    }
    return OK;
}

/* --- children --------------------------------------------------------------------------------- */

static enum status spawn(struct supervisor *s, struct child *child, struct error *error)
{
    const struct supervisor_options *o = s->options;
    struct board *board = o->board;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGCHLD);
    sigaddset(&defaults, SIGTERM);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    /* A group of its own: Ctrl-C in the terminal reaches the supervisor alone. */
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&actions);
    int failed = posix_spawn_file_actions_adddup2(&actions, s->life_pipe[0], CHILD_LIFE_FD);
    if (!failed && child->spec->needs_listen_fd)
        failed = posix_spawn_file_actions_adddup2(&actions, o->listen_fd, CHILD_LISTEN_FD);
    uint32_t generation = atomic_fetch_add(&board->generation, 1) + 1;
    atomic_store(&board->started_at[child->spec->role], generation);
    atomic_store(&board->state[child->spec->role], PROCESS_STARTING);
    if (!failed)
        failed = posix_spawn(&child->pid, child->spec->argv[0], &actions, &attributes,
                             child->spec->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed) {
        child->pid = 0;
        return error_set(error, ERROR_IO, "%s cannot be started: %s", child->spec->argv[0],
                         strerror(failed));
    }
    child->started = system_seconds();
    atomic_store(&board->pid[child->spec->role], (int32_t)child->pid);
    return OK;
}

static struct child *find_child(struct supervisor *s, pid_t pid)
{
    for (int i = 0; i < s->options->n_children; i++)
        if (s->children[i].pid == pid)
            return &s->children[i];
    return NULL;
}

static const char *role_name(enum board_role role)
{
    static const char *const names[] = {"frontend", "scheduler", "detokenizer"};
    return role < ROLE_TOKENIZER ? names[role] : "tokenizer";
}

/* Notes the deaths. False if one happened before everything was ready once. */
static bool reap(struct supervisor *s)
{
    int how;
    pid_t pid;
    bool is_fine = true;
    while ((pid = waitpid(-1, &how, WNOHANG)) > 0) {
        struct child *child = find_child(s, pid);
        if (!child)
            continue;
        double now = system_seconds();
        enum board_role role = child->spec->role;
        atomic_store(&s->options->board->state[role], PROCESS_DOWN);
        child->pid = 0;
        if (!s->was_ready) {
            is_fine = false;
            if (WIFSIGNALED(how))
                log_error("the %s was ended by signal %d", role_name(role), WTERMSIG(how));
            continue;
        }
        bool was_quiet = now - child->started > quiet_seconds;
        child->delay = was_quiet || child->delay == 0.0 ? first_delay : child->delay * 2.0;
        if (child->delay > longest_delay)
            child->delay = longest_delay;
        child->restart_at = now + child->delay;
        atomic_fetch_add(&s->options->board->n_restarts[role], 1);
        log_error("the %s ended (%s %d); it starts again in %.1f s", role_name(role),
                  WIFSIGNALED(how) ? "signal" : "status",
                  WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), child->delay);
    }
    return is_fine;
}

static void restart_due(struct supervisor *s)
{
    double now = system_seconds();
    struct error error;
    for (int i = 0; i < s->options->n_children; i++) {
        struct child *child = &s->children[i];
        if (child->pid != 0 || now < child->restart_at)
            continue;
        if (spawn(s, child, &error) != OK) {
            log_error("%s", error.message);
            child->restart_at = now + longest_delay;
        }
    }
}

/* Ends a scheduler whose step does not end. */
static void check_heartbeat(struct supervisor *s)
{
    struct board *board = s->options->board;
    double beat = (double)atomic_load(&board->scheduler_heartbeat) * 1e-9;
    if (atomic_load(&board->state[ROLE_SCHEDULER]) != PROCESS_READY ||
        system_seconds() - beat < wedged_seconds)
        return;
    for (int i = 0; i < s->options->n_children; i++) {
        struct child *child = &s->children[i];
        if (child->spec->role == ROLE_SCHEDULER && child->pid != 0) {
            log_error("the scheduler has not finished a step for %.0f s and is ended",
                      wedged_seconds);
            kill(child->pid, SIGKILL);
        }
    }
}

static void end_children(struct supervisor *s, int signal)
{
    for (int i = 0; i < s->options->n_children; i++)
        if (s->children[i].pid != 0)
            kill(s->children[i].pid, signal);
}

/* SIGTERM, two seconds, SIGKILL. */
static void stop_children(struct supervisor *s)
{
    end_children(s, SIGTERM);
    for (int waited_ms = 0;; waited_ms += 10) {
        bool has_any = false;
        int how;
        for (int i = 0; i < s->options->n_children; i++) {
            struct child *child = &s->children[i];
            if (child->pid != 0 && waitpid(child->pid, &how, WNOHANG) != 0)
                child->pid = 0;
            has_any |= child->pid != 0;
        }
        if (!has_any)
            return;
        if (waited_ms == 2000)
            end_children(s, SIGKILL);
        poll(NULL, 0, 10);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Waits for a signal or a tick; false if a child died too early. */
static bool wait_for_signals(struct supervisor *s)
{
    struct pollfd fd = {.fd = signal_pipe[0], .events = POLLIN};
    char bytes[64];
    bool is_fine = true;
    if (poll(&fd, 1, TICK_MS) > 0) {
        ssize_t n = read(signal_pipe[0], bytes, sizeof bytes);
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == 's')
                s->n_signals++;
            else
                is_fine = reap(s) && is_fine;
        }
    }
    return is_fine;
}

static bool has_requests(const struct board *board)
{
    return atomic_load(&board->running) + atomic_load(&board->waiting) > 0;
}

/* No new requests; those that run may end. */
static void drain(struct supervisor *s)
{
    struct board *board = s->options->board;
    atomic_store(&board->is_draining, 1);
    if (has_requests(board))
        log_info("stopping; %d s for the running requests, Ctrl-C again stops at once",
                 s->options->drain_seconds);
    double end = system_seconds() + s->options->drain_seconds;
    while (s->n_signals < 2 && has_requests(board) && system_seconds() < end)
        wait_for_signals(s);
}

static enum status loop(struct supervisor *s, struct error *error)
{
    while (s->n_signals == 0) {
        if (!wait_for_signals(s))
            return error_set(error, ERROR_IO, "csgl could not start");
        if (!s->was_ready && board_is_ready(s->options->board)) {
            s->was_ready = true;
            s->options->on_ready(s->options->context);
        }
        if (s->was_ready) {
            restart_due(s);
            check_heartbeat(s);
        }
    }
    if (s->was_ready)
        drain(s);
    return OK;
}

static void install_signals(bool are_ours)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGCHLD};
    struct sigaction action = {.sa_handler = are_ours ? on_signal : SIG_DFL,
                               .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
}

enum status supervisor_run(const struct supervisor_options *options, struct error *error)
{
    struct supervisor s = {.options = options, .life_pipe = {-1, -1}};
    s.children = calloc((size_t)options->n_children, sizeof *s.children);
    if (!s.children)
        return error_memory(error, (size_t)options->n_children * sizeof *s.children);
    enum status status = make_pipe(s.life_pipe, false, error);
    if (status == OK)
        status = make_pipe(signal_pipe, true, error);
    if (status == OK)
        install_signals(true);
    for (int i = 0; i < options->n_children && status == OK; i++) {
        s.children[i].spec = &options->children[i];
        status = spawn(&s, &s.children[i], error);
    }
    if (status == OK)
        status = loop(&s, error);
    for (int i = 0; i < options->n_children; i++)
        if (!s.children[i].spec)
            s.children[i].spec = &options->children[i];
    stop_children(&s);
    install_signals(false);
    close(s.life_pipe[0]);
    close(s.life_pipe[1]);
    free(s.children);
    return status;
}
