/* The queue of a CUDA GPU. Dispatches are written to a list; a list that was seen before is run as
 * one graph, which starts a kernel in 0.5 us instead of 3.5 us. What changes from step to step lies
 * in the GPU's memory, so the steps of a batch of one size have equal lists, byte by byte, and a
 * list that differs in anything is run as it is: nobody has to say what may be repeated. */
#include "device/gpu/cuda_api.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Launches after which the list is handed over, first, second and so on: the GPU begins while the
 * rest of a step is still being listed, and a step takes few graphs. */
enum { N_LIMITS = 4 };
static const int limits[N_LIMITS] = {16, 64, 256, 1024};

/* One launch, or a mark when `function` is NULL. Addresses and arguments follow. */
struct record {
    cuda_handle function;
    uint32_t groups[3], n_threads;
    uint32_t n_buffers, args_bytes, shared_bytes;
    int32_t mark;
    uint32_t waits, unused; /* no gap: records are compared byte by byte */
};

static void fault(struct gpu *gpu, const char *call, int code)
{
    if (gpu->fault != CUDA_OK || code == CUDA_OK)
        return;
    gpu->fault = code;
    gpu->fault_call = call;
}

static size_t record_bytes(const struct record *r)
{
    return sizeof *r + r->n_buffers * sizeof(cuda_address) + (r->args_bytes + 7u) / 8u * 8u;
}

/* Room for a record at the list's end, zeroed; NULL without memory. */
static unsigned char *add_record(struct gpu *gpu, const struct record *record)
{
    struct cuda_list *list = &gpu->queue.list;
    size_t bytes = record_bytes(record);
    if (list->bytes + bytes > list->capacity) {
        size_t capacity = 2 * (list->bytes + bytes);
        unsigned char *records = realloc(list->records, capacity);
        if (!records) {
            fault(gpu, "a launch", CUDA_OUT_OF_MEMORY);
            return NULL;
        }
        list->records = records;
        list->capacity = capacity;
    }
    unsigned char *to = list->records + list->bytes;
    memset(to, 0, bytes);
    memcpy(to, record, sizeof *record);
    list->bytes += bytes;
    return to + sizeof *record;
}

/* --- running a list --------------------------------------------------------------------------- */

static int launch(struct gpu *gpu, const struct record *r, unsigned char *values)
{
    void *parameters[GPU_MAX_BUFFERS + 1];
    struct cuda_attribute early = {.id = CUDA_LAUNCH_PROGRAMMATIC, .value.is_allowed = 1};
    struct cuda_launch how = {.groups = {r->groups[0], r->groups[1], r->groups[2]},
                              .threads = {r->n_threads, 1, 1},
                              .shared_bytes = r->shared_bytes,
                              .stream = gpu->stream,
                              .attributes = &early,
                              .n_attributes = r->waits ? 1 : 0};
    for (uint32_t i = 0; i <= r->n_buffers; i++)
        parameters[i] = values + i * sizeof(cuda_address);
    return gpu->cuda.cuLaunchKernelEx(&how, r->function, parameters, NULL);
}

/* Every record in turn, to the GPU or into the graph that is being captured. */
static void run_records(struct gpu *gpu, bool is_captured)
{
    struct cuda_list *list = &gpu->queue.list;
    for (size_t at = 0; at < list->bytes && gpu->fault == CUDA_OK;) {
        struct record r;
        memcpy(&r, list->records + at, sizeof r);
        if (r.function)
            fault(gpu, "cuLaunchKernelEx", launch(gpu, &r, list->records + at + sizeof r));
        else
            fault(gpu, "cuEventRecordWithFlags",
                  gpu->cuda.cuEventRecordWithFlags(gpu->queue.events[r.mark], gpu->stream,
                                                   is_captured ? CUDA_EVENT_RECORD_EXTERNAL : 0));
        at += record_bytes(&r);
    }
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* FNV-1a (Fowler, Noll, Vo) over words; four chains, as one would wait for its multiplications. */
static uint64_t hash_of(const unsigned char *bytes, size_t n)
{
    const uint64_t prime = 0x100000001B3u;
    uint64_t chains[4] = {0xCBF29CE484222325u, 1, 2, 3}, hash = n;
    for (size_t at = 0; at < n; at += 8) { /* records are whole words */
        uint64_t word;
        memcpy(&word, bytes + at, sizeof word);
        chains[at / 8 % 4] = (chains[at / 8 % 4] ^ word) * prime;
    }
    for (int i = 0; i < 4; i++)
        hash = (hash ^ chains[i] ^ chains[i] >> 32) * prime;
    return hash;
}

static void forget(struct gpu *gpu, struct cuda_graph *graph)
{
    if (graph->graph)
        gpu->cuda.cuGraphExecDestroy(graph->graph);
    free(graph->records);
    *graph = (struct cuda_graph){0};
}

/* A place for one more list: that of the one not used for longest, if all are taken. */
static struct cuda_graph *take_place(struct gpu *gpu)
{
    struct cuda_queue *q = &gpu->queue;
    if (q->n_graphs < CUDA_MAX_GRAPHS)
        return &q->graphs[q->n_graphs++];
    struct cuda_graph *oldest = &q->graphs[0];
    for (int i = 1; i < CUDA_MAX_GRAPHS; i++)
        if (q->graphs[i].last_use < oldest->last_use)
            oldest = &q->graphs[i];
    forget(gpu, oldest);
    return oldest;
}

/* The list's graph if it was seen before; otherwise it is remembered. NULL without memory. */
static struct cuda_graph *find_graph(struct gpu *gpu, bool *is_new)
{
    struct cuda_queue *q = &gpu->queue;
    const struct cuda_list *list = &q->list;
    uint64_t hash = hash_of(list->records, list->bytes);
    *is_new = false;
    for (int i = 0; i < q->n_graphs; i++) {
        struct cuda_graph *g = &q->graphs[i];
        if (g->hash == hash && g->bytes == list->bytes &&
            memcmp(g->records, list->records, list->bytes) == 0)
            return g;
    }
    unsigned char *records = malloc(list->bytes);
    if (!records)
        return NULL;
    memcpy(records, list->records, list->bytes);
    struct cuda_graph *g = take_place(gpu);
    *g = (struct cuda_graph){.hash = hash, .records = records, .bytes = list->bytes};
    *is_new = true;
    return g;
}

/* Leaves g->graph NULL when there is no memory for it. */
static void make_graph(struct gpu *gpu, struct cuda_graph *g)
{
    cuda_handle captured = NULL;
    fault(gpu, "cuStreamBeginCapture",
          gpu->cuda.cuStreamBeginCapture_v2(gpu->stream, CUDA_CAPTURE_RELAXED));
    if (gpu->fault != CUDA_OK)
        return;
    run_records(gpu, true);
    int code = gpu->cuda.cuStreamEndCapture(gpu->stream, &captured);
    fault(gpu, "cuStreamEndCapture", code);
    if (gpu->fault == CUDA_OK) {
        code = gpu->cuda.cuGraphInstantiateWithFlags(&g->graph, captured, 0);
        if (code != CUDA_OK)
            g->graph = NULL;
        if (code != CUDA_OUT_OF_MEMORY)
            fault(gpu, "cuGraphInstantiate", code);
    }
    if (captured)
        gpu->cuda.cuGraphDestroy(captured);
}

void cuda_flush(struct gpu *gpu)
{
    struct cuda_queue *q = &gpu->queue;
    struct cuda_list *list = &q->list;
    if (list->bytes > 0 && gpu->fault == CUDA_OK) {
        bool is_new;
        struct cuda_graph *g = find_graph(gpu, &is_new);
        /* Kernels are loaded when they first run, and that outside a capture. Marks are exact only
         * in a graph, where nothing waits for this thread. */
        if (g && !g->graph && (!is_new || list->has_marks))
            make_graph(gpu, g);
        if (g)
            g->last_use = ++q->n_uses;
        if (g && g->graph && gpu->fault == CUDA_OK)
            fault(gpu, "cuGraphLaunch", gpu->cuda.cuGraphLaunch(g->graph, gpu->stream));
        else
            run_records(gpu, false);
    }
    list->bytes = 0;
    list->n_launches = 0;
    list->has_marks = false;
}

/* --- the driver's calls ----------------------------------------------------------------------- */

void cuda_dispatch(struct gpu *gpu, const struct gpu_kernel *kernel,
                   const struct gpu_range *buffers, int n_buffers, const void *args,
                   size_t args_bytes, const struct gpu_grid *grid)
{
    struct cuda_queue *q = &gpu->queue;
    assert(n_buffers <= GPU_MAX_BUFFERS);
    if (gpu->fault != CUDA_OK)
        return;
    struct record r = {.function = kernel->function,
                       .groups = {grid->groups[0], grid->groups[1], grid->groups[2]},
                       .n_threads = grid->n_threads,
                       .n_buffers = (uint32_t)n_buffers,
                       .args_bytes = (uint32_t)args_bytes,
                       .shared_bytes = grid->shared_bytes,
                       .waits = kernel->waits};
    unsigned char *to = add_record(gpu, &r);
    if (!to)
        return;
    for (int i = 0; i < n_buffers; i++) {
        cuda_address address =
            buffers[i].memory ? buffers[i].memory->address + buffers[i].offset : 0;
        memcpy(to + (size_t)i * sizeof address, &address, sizeof address);
    }
    memcpy(to + (size_t)n_buffers * sizeof(cuda_address), args, args_bytes);
    if (++q->list.n_launches >= limits[q->n_flushed] && !q->list.has_marks) {
        cuda_flush(gpu);
        q->n_flushed += q->n_flushed < N_LIMITS - 1;
    }
}

void cuda_mark(struct gpu *gpu, int i)
{
    struct cuda_queue *q = &gpu->queue;
    if (i >= q->n_events) {
        int n = 2 * (i + 1);
        cuda_handle *events = realloc(q->events, (size_t)n * sizeof(cuda_handle));
        if (!events) {
            fault(gpu, "a mark", CUDA_OUT_OF_MEMORY);
            return;
        }
        q->events = events;
        for (; q->n_events < n && gpu->fault == CUDA_OK; q->n_events += gpu->fault == CUDA_OK)
            fault(gpu, "cuEventCreate", gpu->cuda.cuEventCreate(&events[q->n_events], 0));
    }
    if (gpu->fault == CUDA_OK && add_record(gpu, &(struct record){.mark = i}))
        q->list.has_marks = true;
}

enum status cuda_marked(struct gpu *gpu, int from, int to, double *seconds, struct error *error)
{
    float milliseconds = 0.0f;
    assert(from < gpu->queue.n_events && to < gpu->queue.n_events);
    CUDA_TRY(cuEventElapsedTime, &milliseconds, gpu->queue.events[from], gpu->queue.events[to]);
    *seconds = (double)milliseconds * 1e-3;
    return OK;
}

void cuda_commit(struct gpu *gpu)
{
    cuda_flush(gpu);
    gpu->queue.n_flushed = 0;
}

void cuda_queue_done(struct gpu *gpu)
{
    struct cuda_queue *q = &gpu->queue;
    for (int i = 0; i < q->n_graphs; i++)
        forget(gpu, &q->graphs[i]);
    for (int i = 0; i < q->n_events; i++)
        gpu->cuda.cuEventDestroy_v2(q->events[i]);
    free(q->events);
    free(q->list.records);
}
