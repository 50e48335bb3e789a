#include "message/process_trace.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static void make_path(char *out, size_t size, const char *folder, const char *process)
{
    snprintf(out, size, "%s/trace.%s", folder, process);
}

enum { PATH_SIZE = 512 };

void process_trace_init(struct process_trace *t, struct board *board, const char *folder,
                        const char *process)
{
    *t = (struct process_trace){.board = board, .folder = folder, .process = process};
}

/* The ring's file stays, for the frontend to read; the supervisor removes it. */
void process_trace_done(struct process_trace *t)
{
    trace_free(t->trace);
    t->trace = NULL;
    t->session = 0;
}

bool process_trace_follow(struct process_trace *t)
{
    uint32_t session = atomic_load_explicit(&t->board->profile_session, memory_order_acquire);
    char path[PATH_SIZE];
    struct error error;
    if (session == t->session)
        return false;
    process_trace_done(t);
    t->session = session;
    if (!session)
        return true;
    make_path(path, sizeof path, t->folder, t->process);
    if (trace_new(&t->trace, path, t->process, session, TRACE_DEFAULT_EVENTS, &error) != OK)
        log_error("the %s records nothing: %s", t->process, error.message);
    return true;
}

bool profile_start(struct board *board, uint32_t start_step, uint32_t n_steps)
{
    if (atomic_load(&board->profile_session))
        return false;
    atomic_store(&board->profile_start_step, start_step);
    atomic_store(&board->profile_steps, n_steps);
    atomic_store(&board->profile_session, atomic_fetch_add(&board->n_profiles, 1) + 1);
    return true;
}

uint32_t profile_stop(struct board *board)
{
    return atomic_exchange(&board->profile_session, 0);
}

static void add_trace(const char *folder, const char *process, uint32_t session,
                      struct trace **traces, int *n)
{
    char path[PATH_SIZE];
    struct trace *trace;
    make_path(path, sizeof path, folder, process);
    if (trace_open(&trace, path, NULL) != OK)
        return;
    if (trace_session(trace) == session)
        traces[(*n)++] = trace;
    else
        trace_free(trace);
}

enum status profile_write(const char *folder, uint32_t session, const char *path,
                          struct error *error)
{
    static const char *const processes[] = {"frontend", "detokenizer", "scheduler"};
    enum { N_PROCESSES = sizeof processes / sizeof processes[0] };
    struct trace *traces[N_PROCESSES + BOARD_MAX_TOKENIZERS];
    int n = 0;
    for (int i = 0; i < N_PROCESSES; i++)
        add_trace(folder, processes[i], session, traces, &n);
    for (int i = 0; i < BOARD_MAX_TOKENIZERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "tokenizer.%d", i);
        add_trace(folder, name, session, traces, &n);
    }
    enum status status = trace_write(path, traces, n, error);
    for (int i = 0; i < n; i++)
        trace_free(traces[i]);
    return status;
}
