#include "base/trace.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRACE_MAGIC = 0x43525431, TRACE_EVENTS_MAX = 1 << 24 };

/* An event at rest. */
struct record {
    double begin, end;
    uint64_t id;
    int64_t values[2];
    uint16_t thread;
    uint8_t kind, phase;
    char name[TRACE_NAME_MAX + 1];
};

enum { RECORD_WORDS = sizeof(struct record) / sizeof(uint64_t) };
_Static_assert(sizeof(struct record) % sizeof(uint64_t) == 0, "a record is whole words");

/* `number` is the event's place in the order of recording plus 1, written last: a reader takes the
 * slot only if the number is the one that belongs there before and after its copy. While a thread
 * writes it is SLOT_BUSY, and who comes a whole round later then drops its event. The words are
 * atomic because a reader may copy them meanwhile. */
#define SLOT_BUSY UINT64_MAX
struct slot {
    _Atomic uint64_t number;
    _Atomic uint64_t words[RECORD_WORDS];
};

struct ring {
    uint32_t magic, capacity, session, pid;
    char process[TRACE_NAME_MAX + 1];
    _Atomic uint64_t count;
    struct slot slots[];
};

struct trace {
    struct ring *ring;
    size_t bytes;
};

static size_t ring_bytes(uint32_t capacity)
{
    return sizeof(struct ring) + (size_t)capacity * sizeof(struct slot);
}

static void copy_name(char out[TRACE_NAME_MAX + 1], const char *name)
{
    size_t n = strnlen(name, TRACE_NAME_MAX);
    memcpy(out, name, n);
    out[n] = '\0';
}

/* Maps `bytes` of the file, or of nothing when fd < 0. */
static enum status map_ring(struct trace **out, int fd, size_t bytes, bool is_writable,
                            struct error *error)
{
    struct trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return error_memory(error, sizeof *trace);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p = mmap(NULL, bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, flags, fd, 0);
    if (p == MAP_FAILED) {
        free(trace);
        return error_memory(error, bytes);
    }
    *trace = (struct trace){.ring = p, .bytes = bytes};
    *out = trace;
    return OK;
}

enum status trace_new(struct trace **out, const char *path, const char *process, uint32_t session,
                      uint32_t capacity, struct error *error)
{
    *out = NULL;
    if (capacity < 1 || capacity > TRACE_EVENTS_MAX)
        return error_set(error, ERROR_INVALID, "a trace of %u events; 1 to %d are possible",
                         capacity, TRACE_EVENTS_MAX);
    int fd = -1;
    if (path) {
        unlink(path); /* readers of the ring before keep theirs */
        fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)ring_bytes(capacity)) != 0) {
            int reason = errno;
            if (fd >= 0)
                close(fd);
            return error_set(error, ERROR_IO, "%s cannot be made: %s", path, strerror(reason));
        }
    }
    enum status status = map_ring(out, fd, ring_bytes(capacity), true, error);
    if (fd >= 0)
        close(fd);
    if (status != OK)
        return status;
    struct ring *ring = (*out)->ring;
    ring->capacity = capacity;
    ring->session = session;
    ring->pid = (uint32_t)getpid();
    copy_name(ring->process, process);
    ring->magic = TRACE_MAGIC;
    return OK;
}

enum status trace_open(struct trace **out, const char *path, struct error *error)
{
    *out = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(error, ERROR_NOT_FOUND, "%s cannot be opened: %s", path, strerror(errno));
    enum status status = OK;
    if (fstat(fd, &info) != 0 || info.st_size < (off_t)sizeof(struct ring))
        status = error_set(error, ERROR_INVALID, "%s is not a trace", path);
    if (status == OK)
        status = map_ring(out, fd, (size_t)info.st_size, false, error);
    close(fd);
    if (status != OK)
        return status;
    const struct ring *ring = (*out)->ring;
    if (ring->magic == TRACE_MAGIC && ring->capacity >= 1 && ring->capacity <= TRACE_EVENTS_MAX &&
        ring_bytes(ring->capacity) == (*out)->bytes)
        return OK;
    trace_free(*out);
    *out = NULL;
    return error_set(error, ERROR_INVALID, "%s is not a trace of this version", path);
}

void trace_free(struct trace *trace)
{
    if (!trace)
        return;
    munmap(trace->ring, trace->bytes);
    free(trace);
}

uint32_t trace_session(const struct trace *trace)
{
    return trace->ring->session;
}

uint64_t trace_count(const struct trace *trace)
{
    return atomic_load(&trace->ring->count);
}

uint64_t trace_dropped(const struct trace *trace)
{
    uint64_t count = trace_count(trace), capacity = trace->ring->capacity;
    return count > capacity ? count - capacity : 0;
}

void trace_record(struct trace *trace, const struct trace_event *event)
{
    if (!trace)
        return;
    struct ring *ring = trace->ring;
    uint64_t number = atomic_fetch_add(&ring->count, 1);
    struct slot *slot = &ring->slots[number % ring->capacity];
    struct record record = {.begin = event->begin,
                            .end = event->end,
                            .id = event->id,
                            .values = {event->values[0], event->values[1]},
                            .thread = (uint16_t)event->thread,
                            .kind = (uint8_t)event->kind,
                            .phase = (uint8_t)event->phase};
    copy_name(record.name, event->name);
    uint64_t words[RECORD_WORDS];
    memcpy(words, &record, sizeof record);
    uint64_t old = atomic_load_explicit(&slot->number, memory_order_relaxed);
    if (old == SLOT_BUSY || !atomic_compare_exchange_strong(&slot->number, &old, SLOT_BUSY))
        return;
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < RECORD_WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&slot->number, number + 1, memory_order_release);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Copies event `number`; false if it is not whole or is gone. */
static bool read_slot(const struct ring *ring, uint64_t number, struct record *out)
{
    const struct slot *slot = &ring->slots[number % ring->capacity];
    uint64_t words[RECORD_WORDS];
    if (atomic_load_explicit(&slot->number, memory_order_acquire) != number + 1)
        return false;
    for (int i = 0; i < RECORD_WORDS; i++)
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    memcpy(out, words, sizeof *out);
    out->name[TRACE_NAME_MAX] = '\0';
    return atomic_load_explicit(&slot->number, memory_order_relaxed) == number + 1;
}

/* Names are csgl's own words; what could end the string is left out all the same. */
static void clean(char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || (unsigned char)*name > 0x7E || *name == '"' ||
            *name == '\\')
            *name = '?';
}

struct writer {
    FILE *file;
    int pid;
    bool has_any;
};

static void separate(struct writer *w)
{
    fputs(w->has_any ? ",\n" : "\n", w->file);
    w->has_any = true;
}

static void write_name(struct writer *w, const char *what, int thread, const char *name)
{
    separate(w);
    fprintf(w->file,
            "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}",
            w->pid, thread, what, name);
}

/* Spans of a thread are complete events; the stages of requests overlap and are asynchronous ones.
 */
static void write_event(struct writer *w, struct record *e)
{
    static const char *const kinds[N_TRACE_KINDS] = {"step", "op", "request", "task"};
    static const char *const keys[N_TRACE_KINDS][2] = {
        {"tokens", "sequences"}, {"bytes", "operations"}, {"tokens", NULL}, {"size", NULL}};
    static const char *const phases[N_TRACE_PHASES] = {",prefill", ",decode", ""};
    if (e->kind >= N_TRACE_KINDS || e->phase >= N_TRACE_PHASES)
        return;
    clean(e->name);
    char head[160], arguments[96];
    snprintf(head, sizeof head, "\"pid\":%d,\"tid\":%d,\"cat\":\"%s%s\",\"name\":\"%s\"", w->pid,
             e->thread, kinds[e->kind], phases[e->phase], e->name);
    int n = snprintf(arguments, sizeof arguments, "{\"%s\":%lld", keys[e->kind][0],
                     (long long)e->values[0]);
    if (keys[e->kind][1])
        n += snprintf(arguments + n, sizeof arguments - (size_t)n, ",\"%s\":%lld", keys[e->kind][1],
                      (long long)e->values[1]);
    snprintf(arguments + n, sizeof arguments - (size_t)n, "}");
    double begin = e->begin * 1e6, end = e->end * 1e6;
    separate(w);
    if (e->kind == TRACE_REQUEST) {
        fprintf(w->file, "{\"ph\":\"b\",\"id\":\"%llx\",%s,\"ts\":%.3f,\"args\":%s},\n",
                (unsigned long long)e->id, head, begin, arguments);
        fprintf(w->file, "{\"ph\":\"e\",\"id\":\"%llx\",%s,\"ts\":%.3f}", (unsigned long long)e->id,
                head, end);
    } else {
        fprintf(w->file, "{\"ph\":\"X\",%s,\"ts\":%.3f,\"dur\":%.3f,\"args\":%s}", head, begin,
                end - begin, arguments);
    }
}

static void write_process(struct writer *w, const struct ring *ring)
{
    uint64_t count = atomic_load(&ring->count);
    uint64_t first = count > ring->capacity ? count - ring->capacity : 0;
    char process[TRACE_NAME_MAX + 1], thread_name[32];
    int n_threads = 1;
    struct record record;
    copy_name(process, ring->process);
    clean(process);
    write_name(w, "process_name", 0, process);
    for (uint64_t i = first; i < count; i++) {
        if (!read_slot(ring, i, &record))
            continue;
        if (record.thread >= n_threads)
            n_threads = record.thread + 1;
        write_event(w, &record);
    }
    for (int i = 0; i < n_threads; i++) {
        snprintf(thread_name, sizeof thread_name, i ? "worker %d" : "main", i);
        write_name(w, "thread_name", i, thread_name);
    }
}

enum status trace_write(const char *path, struct trace *const *traces, int n, struct error *error)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return error_set(error, ERROR_IO, "%s cannot be written: %s", path, strerror(errno));
    struct writer w = {.file = file};
    uint64_t recorded = 0, dropped = 0;
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file);
    for (int i = 0; i < n; i++) {
        w.pid = i + 1;
        write_process(&w, traces[i]->ring);
        recorded += trace_count(traces[i]);
        dropped += trace_dropped(traces[i]);
    }
    fprintf(file,
            "\n],\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"recorded_events\":%llu,"
            "\"dropped_events\":%llu}}\n",
            (unsigned long long)recorded, (unsigned long long)dropped);
    bool is_bad = ferror(file) != 0;
    if (fclose(file) != 0 || is_bad)
        return error_set(error, ERROR_IO, "%s could not be written whole; is the disk full?", path);
    return OK;
}
