/* What csgl serve costs a token beside the model: frontend, detokenizer and scheduler are the real
 * ones, the executor computes nothing and keeps time.
 *
 *     bench_serve_overhead CSGL MODEL [STREAMS] [STEPS_PER_SECOND] [TOKENS]
 *
 * STEPS_PER_SECOND 0 is as fast as it goes. The client is part of this program; it reads every
 * stream, checks that each token came as one event, and prints tokens a second, CPU a token of
 * csgl's processes and the gaps between events. */
#include "base/log.h"
#include "base/system.h"
#include "message/supervisor.h"
#include "scheduler/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { MAX_STREAMS = 256, CONTEXT = 16384, PAGE = 16, VOCAB = 49152 };

/* --- the executor ----------------------------------------------------------------------------- */

struct pacer {
    double interval, next;
    int64_t positions[MAX_STREAMS]; /* of the step's draws */
    int32_t n_want;
};

static enum status keep_draws(void *context, const struct batch *batch, const struct draw *draws,
                              struct error *error)
{
    struct pacer *p = context;
    (void)error;
    p->n_want = batch->n_want;
    for (int32_t i = 0; i < batch->n_want; i++)
        p->positions[i] = draws[i].position;
    return OK;
}

static enum status keep_time(void *context, struct sample *out, struct error *error)
{
    struct pacer *p = context;
    (void)error;
    if (p->interval > 0.0) {
        double now = system_seconds();
        if (p->next < now - 1.0)
            p->next = now; /* it was idle */
        p->next += p->interval;
        while ((now = system_seconds()) < p->next) {
            struct timespec wait = {0, (long)((p->next - now) * 1e9)};
            nanosleep(&wait, NULL);
        }
    }
    for (int32_t i = 0; i < p->n_want; i++)
        out[i] = (struct sample){.token = 400 + (int32_t)(p->positions[i] * 7 % 20000)};
    return OK;
}

static int run_scheduler(const char *folder, double rate)
{
    struct pacer pacer = {.interval = rate > 0.0 ? 1.0 / rate : 0.0};
    struct kv_cache cache;
    struct error error = {0};
    struct kv_cache_spec spec = {.type = KV_CACHE_RADIX,
                                 .page_size = PAGE,
                                 .n_rows = MAX_STREAMS,
                                 .max_length = CONTEXT,
                                 .n_groups = 1,
                                 .n_pages = {MAX_STREAMS * CONTEXT / PAGE}};
    if (kv_cache_init(&cache, &spec, &error) != OK)
        return 1;
    struct scheduler_process process = {
        .folder = folder,
        .life_fd = CHILD_LIFE_FD,
        .executor = {.context = &pacer, .queue = keep_draws, .take = keep_time},
        .cache = &cache,
        .options = {.policy = POLICY_MIXED,
                    .max_running = MAX_STREAMS,
                    .max_queue = MAX_STREAMS,
                    .max_prefill_length = 8192,
                    .max_step_seconds = 1.0,
                    .context_length = CONTEXT,
                    .vocab_size = VOCAB}};
    if (scheduler_process_run(&process, &error) != OK)
        fprintf(stderr, "%s\n", error.message);
    kv_cache_done(&cache);
    return 0;
}

/* --- the client ------------------------------------------------------------------------------- */

struct client_stream {
    int fd;
    size_t n_events;
    double first, last;
    char tail[16]; /* the end of what was read: an event's start may be cut */
    size_t n_tail;
    bool is_done;
};

static double cpu_seconds(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0.0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    unsigned long user = 0, system = 0;
    char *rest = strrchr(text, ')');
    if (rest)
        sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

static bool send_request(int fd, int n_tokens, bool is_stream)
{
    char body[256], request[512];
    int n = snprintf(body, sizeof body,
                     "{\"prompt\": [%d, 600, 700], \"max_tokens\": %d, \"stream\": %s, "
                     "\"ignore_eos\": true, \"temperature\": 0}",
                     500 + fd, n_tokens, is_stream ? "true" : "false");
    n = snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 n, body);
    return send(fd, request, (size_t)n, 0) == n;
}

struct gaps {
    float *items;
    size_t n, cap;
};

static void add_gap(struct gaps *gaps, double gap)
{
    if (gaps->n < gaps->cap)
        gaps->items[gaps->n++] = (float)gap;
}

/* Counts the events that begin in what is there. One that carries no token (the last, with the
 * finish reason) has an empty text and is not counted. */
static void read_stream(struct client_stream *s, struct gaps *gaps)
{
    char buffer[65536 + sizeof s->tail];
    static const char mark[] = "\"text\":\"";
    memcpy(buffer, s->tail, s->n_tail);
    ssize_t n = recv(s->fd, buffer + s->n_tail, 65536, 0);
    if (n <= 0) {
        s->is_done = true;
        return;
    }
    size_t total = s->n_tail + (size_t)n, keep = sizeof mark; /* and one byte behind */
    double now = system_seconds();
    for (char *p = buffer; (p = memmem(p, (size_t)(buffer + total - p), mark, sizeof mark - 1));) {
        p += sizeof mark - 1;
        if (p >= buffer + total)
            break; /* cut: it is seen again with the next piece */
        if (*p == '"')
            continue;
        if (s->n_events++ == 0)
            s->first = now;
        else
            add_gap(gaps, now - s->last);
        s->last = now;
    }
    if (memmem(buffer, total, "[DONE]", 6))
        s->is_done = true;
    if (keep > total)
        keep = total;
    memcpy(s->tail, buffer + total - keep + (keep == total ? 0 : 1),
           keep - (keep == total ? 0 : 1));
    s->n_tail = keep - (keep == total ? 0 : 1);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double total_cpu(const struct board *board, double each[3])
{
    double sum = 0.0;
    for (int role = 0; role < 3; role++)
        sum += each[role] = cpu_seconds(atomic_load(&board->pid[role]));
    return sum;
}

static void measure_streams(const struct board *board, int port, int n_streams, double rate,
                            int n_tokens)
{
    static struct client_stream streams[MAX_STREAMS];
    struct pollfd fds[MAX_STREAMS];
    struct gaps gaps = {.cap = (size_t)n_streams * (size_t)n_tokens};
    gaps.items = malloc(gaps.cap * sizeof *gaps.items);
    double before[3], after[3], start_cpu = total_cpu(board, before), start = system_seconds();
    for (int i = 0; i < n_streams; i++) {
        streams[i].fd = connect_to(port);
        if (streams[i].fd < 0 || !send_request(streams[i].fd, n_tokens, true)) {
            fprintf(stderr, "stream %d cannot be opened: %s\n", i, strerror(errno));
            return;
        }
        fds[i] = (struct pollfd){.fd = streams[i].fd, .events = POLLIN};
    }
    for (int n_open = n_streams; n_open > 0;) {
        poll(fds, (nfds_t)n_streams, 1000);
        for (int i = 0; i < n_streams; i++) {
            if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR)) || fds[i].fd < 0)
                continue;
            read_stream(&streams[i], &gaps);
            if (streams[i].is_done) {
                fds[i].fd = -1;
                n_open--;
            }
        }
    }
    double seconds = system_seconds() - start, cpu = total_cpu(board, after) - start_cpu;
    size_t n_events = 0;
    for (int i = 0; i < n_streams; i++)
        n_events += streams[i].n_events;
    size_t n_sent = (size_t)n_streams * (size_t)n_tokens;
    qsort(gaps.items, gaps.n, sizeof *gaps.items, by_value);
    printf(
        "%d streams, %s: %.0f tokens/s; %zu events for %zu tokens; CPU %.1f us a token (frontend "
        "%.1f, scheduler %.1f, detokenizer %.1f); gap median %.2f ms, p99 %.2f ms, max %.1f ms\n",
        n_streams, rate > 0.0 ? "paced" : "unpaced", (double)n_events / seconds, n_events, n_sent,
        cpu / (double)n_sent * 1e6, (after[0] - before[0]) / (double)n_sent * 1e6,
        (after[1] - before[1]) / (double)n_sent * 1e6,
        (after[2] - before[2]) / (double)n_sent * 1e6, (double)gaps.items[gaps.n / 2] * 1e3,
        (double)gaps.items[gaps.n * 99 / 100] * 1e3, (double)gaps.items[gaps.n - 1] * 1e3);
    free(gaps.items);
}

/* Time to the first event of lone requests, less the stub's own step. */
static void measure_ttft(int port, double rate)
{
    enum { N = 200 };
    float times[N];
    for (int i = 0; i < N; i++) {
        char buffer[4096];
        int fd = connect_to(port);
        double start = system_seconds();
        if (fd < 0 || !send_request(fd, 1, true))
            return;
        size_t n = 0;
        while (n < sizeof buffer - 1) {
            ssize_t got = recv(fd, buffer + n, sizeof buffer - 1 - n, 0);
            if (got <= 0)
                break;
            n += (size_t)got;
            if (memmem(buffer, n, "\"text\":\"", 8))
                break;
        }
        times[i] = (float)(system_seconds() - start);
        close(fd);
    }
    qsort(times, N, sizeof times[0], by_value);
    double step = rate > 0.0 ? 1.0 / rate : 0.0;
    printf("added TTFT at concurrency 1: median %.3f ms, p99 %.3f ms\n",
           ((double)times[N / 2] - step) * 1e3, ((double)times[N * 99 / 100] - step) * 1e3);
}

static int run_client(const char *folder, int port, int n_streams, double rate, int n_tokens)
{
    struct board *board;
    struct error error;
    if (board_open(&board, folder, &error) != OK)
        return 1;
    measure_ttft(port, rate);
    measure_streams(board, port, n_streams, rate, n_tokens);
    fflush(stdout);
    kill(getppid(), SIGINT);
    return 0;
}

/* --- the supervisor --------------------------------------------------------------------------- */

struct run {
    char folder[64], port[16], self[4096];
    char **argv;
    int argc;
};

static void start_client(void *context)
{
    struct run *r = context;
    char *argv[] = {r->self,
                    (char *)"client",
                    r->folder,
                    r->port,
                    r->argc > 3 ? r->argv[3] : (char *)"64",
                    r->argc > 4 ? r->argv[4] : (char *)"781",
                    r->argc > 5 ? r->argv[5] : (char *)"2000",
                    NULL};
    pid_t pid;
    if (posix_spawn(&pid, r->self, NULL, NULL, argv, environ) != 0)
        kill(getpid(), SIGINT);
}

static int open_listener(char *port_text, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t n = sizeof address;
    int low = socket(AF_INET, SOCK_STREAM, 0),
        fd = fcntl(low, F_DUPFD_CLOEXEC, CHILD_LISTEN_FD + 1);
    close(low);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1024) != 0)
        return -1;
    getsockname(fd, (struct sockaddr *)&address, &n);
    snprintf(port_text, size, "%d", ntohs(address.sin_port));
    return fd;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "scheduler") == 0)
        return run_scheduler(argv[2], atof(argv[3]));
    if (argc == 7 && strcmp(argv[1], "client") == 0)
        return run_client(argv[2], atoi(argv[3]), atoi(argv[4]), atof(argv[5]), atoi(argv[6]));
    if (argc < 3) {
        fprintf(stderr, "usage: %s CSGL MODEL [STREAMS] [STEPS_PER_SECOND] [TOKENS]\n", argv[0]);
        return 2;
    }
    struct run r = {.argv = argv, .argc = argc};
    struct error error;
    struct board *board;
    ssize_t n = readlink("/proc/self/exe", r.self, sizeof r.self - 1);
    r.self[n > 0 ? n : 0] = '\0';
    snprintf(r.folder, sizeof r.folder, "/tmp/csgl-bench-%d", (int)getpid());
    mkdir(r.folder, 0700);
    log_set_level(LOG_WARN);
    int listen_fd = open_listener(r.port, sizeof r.port);
    if (listen_fd < 0 || board_create(&board, r.folder, &error) != OK)
        return 1;
    char *scheduler[] = {r.self, (char *)"scheduler", r.folder, argc > 4 ? argv[4] : (char *)"781",
                         NULL};
    char *frontend[] = {argv[1],
                        (char *)"serve",
                        (char *)"--model-path",
                        argv[2],
                        (char *)"--max-queue",
                        (char *)"1024",
                        (char *)"--role",
                        (char *)"frontend",
                        (char *)"--run-dir",
                        r.folder,
                        NULL};
    char *detokenizer[] = {argv[1],
                           (char *)"serve",
                           (char *)"--model-path",
                           argv[2],
                           (char *)"--role",
                           (char *)"detokenizer",
                           (char *)"--run-dir",
                           r.folder,
                           (char *)"--index",
                           (char *)"0",
                           NULL};
    struct child_spec children[] = {{ROLE_SCHEDULER, scheduler, false},
                                    {ROLE_DETOKENIZER, detokenizer, false},
                                    {ROLE_FRONTEND, frontend, true}};
    struct supervisor_options options = {.board = board,
                                         .children = children,
                                         .n_children = 3,
                                         .listen_fd = listen_fd,
                                         .on_ready = start_client,
                                         .context = &r};
    if (supervisor_run(&options, &error) != OK)
        fprintf(stderr, "%s\n", error.message);
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", r.folder);
    return system(command) != 0;
}
