/* The emulator as a driver: kernels are the program's own, and run when they are dispatched. Memory
 * is kept from the CPU as on a card of its own, so that tests find who reaches for it. In the
 * environment CSGL_EMULATOR_MEMORY is the size of its memory in bytes, and CSGL_EMULATOR_FAULT the
 * number of a dispatch that fails, from 1 on: for tests of what happens then. */
extern "C" {
#include "base/options.h"
#include "base/system.h"
#include "device/gpu/driver.h"
}

#include "device/gpu/emulator/emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct copy {
    unsigned char *data;
    void *to;
    size_t bytes;
};

struct gpu {
    uint64_t memory_bytes; /* of the whole GPU; 0: the machine's own */
    uint64_t used_bytes;
    uint64_t n_dispatches, fault_at; /* the dispatch that fails; 0: none */
    double *marks;                   /* system_seconds() */
    int n_marks;
    struct copy copies[2];              /* of read_queue */
    char fault[sizeof emulator::fault]; /* the first; empty: none */
};

struct gpu_memory {
    unsigned char *data;
    size_t bytes;
    bool is_lent; /* the caller's, and only read */
};

static uint64_t number_of(const char *variable)
{
    const char *text = options_environment(variable);
    return text ? strtoull(text, NULL, 10) : 0;
}

static enum status emulator_open(int index, struct gpu **out, struct error *error)
{
    *out = NULL;
    if (index != 0)
        return error_set(error, ERROR_INVALID, "there is no emulator %d; there is one, 0", index);
    *out = (struct gpu *)calloc(1, sizeof **out);
    if (!*out)
        return error_memory(error, sizeof **out);
    (*out)->memory_bytes = number_of("CSGL_EMULATOR_MEMORY");
    (*out)->fault_at = number_of("CSGL_EMULATOR_FAULT");
    return OK;
}

static void emulator_close(struct gpu *gpu)
{
    free(gpu->marks);
    for (const struct copy &copy : gpu->copies)
        free(copy.data);
    free(gpu);
}

static void emulator_info(const struct gpu *gpu, struct gpu_info *out)
{
    *out = gpu_info();
    if (gpu->memory_bytes)
        out->memory_bytes = gpu->memory_bytes - gpu->used_bytes;
    snprintf(out->name, sizeof out->name, "emulator");
    out->max_threads = emulator::MAX_THREADS;
    out->has_matrices = true;
    out->has_int8 = true;
    out->orders_copies = true; /* each is done when its call returns */
}

static enum status emulator_alloc(struct gpu *gpu, size_t bytes, struct gpu_memory **out,
                                  struct error *error)
{
    *out = NULL;
    if (gpu->memory_bytes && bytes > gpu->memory_bytes - gpu->used_bytes)
        return error_set(error, ERROR_LIMIT,
                         "the emulator: %.2f MB were asked for and %.2f MB of %.2f MB are free",
                         (double)bytes / 1e6, (double)(gpu->memory_bytes - gpu->used_bytes) / 1e6,
                         (double)gpu->memory_bytes / 1e6);
    *out = (struct gpu_memory *)malloc(sizeof **out);
    unsigned char *data = (unsigned char *)emulator::memory_alloc(bytes);
    if (!*out || !data) {
        if (data)
            emulator::memory_free(data);
        free(*out);
        *out = NULL;
        return error_memory(error, bytes);
    }
    **out = gpu_memory{data, bytes, false};
    gpu->used_bytes += bytes;
    return OK;
}

static enum status emulator_wrap(struct gpu *, const void *data, size_t bytes,
                                 struct gpu_memory **out, struct error *error)
{
    *out = (struct gpu_memory *)malloc(sizeof **out);
    if (!*out || !emulator::memory_lend(data, bytes)) {
        free(*out);
        *out = NULL;
        return error_memory(error, sizeof **out);
    }
    **out = gpu_memory{(unsigned char *)(uintptr_t)data, bytes, true};
    return OK;
}

static void emulator_free(struct gpu *gpu, struct gpu_memory *memory)
{
    if (!memory)
        return;
    if (memory->is_lent) {
        emulator::memory_unlend(memory->data, memory->bytes);
    } else {
        gpu->used_bytes -= memory->bytes;
        emulator::memory_free(memory->data);
    }
    free(memory);
}

static void *emulator_host(const struct gpu_memory *)
{
    return NULL;
}

static enum status emulator_write(struct gpu *, const struct gpu_range *to, const void *from,
                                  size_t bytes, struct error *error)
{
    enum status status = gpu_check_range(to, to->memory->bytes, bytes, error);
    if (status == OK && bytes)
        memcpy(to->memory->data + to->offset, from, bytes);
    return status;
}

static enum status emulator_read(struct gpu *gpu, const struct gpu_range *from, void *to,
                                 size_t bytes, struct error *error)
{
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    if (status == OK && gpu->fault[0])
        status = error_set(error, ERROR_IO, "%s", gpu->fault);
    if (status == OK && bytes)
        memcpy(to, from->memory->data + from->offset, bytes);
    return status;
}

/* The memory is filled when somebody waits for it, as on a GPU: `copies` keep the bytes. */
static enum status emulator_read_queue(struct gpu *gpu, const struct gpu_range *from, void *to,
                                       size_t bytes, int i, struct error *error)
{
    struct copy *copy = &gpu->copies[i];
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    unsigned char *data = (unsigned char *)(status == OK ? malloc(bytes + 1) : NULL);
    if (status == OK && !data)
        status = error_memory(error, bytes);
    if (status != OK)
        return status;
    memcpy(data, from->memory->data + from->offset, bytes);
    free(copy->data);
    *copy = (struct copy){data, to, bytes};
    return OK;
}

static enum status emulator_read_wait(struct gpu *gpu, int i, struct error *error)
{
    struct copy *copy = &gpu->copies[i];
    if (gpu->fault[0])
        return error_set(error, ERROR_IO, "%s", gpu->fault);
    if (copy->bytes)
        memcpy(copy->to, copy->data, copy->bytes);
    return OK;
}

static enum status emulator_kernel(struct gpu *, const char *name, const struct gpu_kernel **out,
                                   struct error *error)
{
    *out = (const struct gpu_kernel *)emulator::find_kernel(name);
    if (*out)
        return OK;
    return error_set(error, ERROR_UNSUPPORTED, "the program has no kernel %s", name);
}

static void keep_fault(struct gpu *gpu, const char *text)
{
    if (!gpu->fault[0])
        snprintf(gpu->fault, sizeof gpu->fault, "%s", text);
}

static void emulator_dispatch(struct gpu *gpu, const struct gpu_kernel *handle,
                              const struct gpu_range *buffers, int n_buffers, const void *args,
                              size_t args_bytes, const struct gpu_grid *grid)
{
    const emulator::Kernel *kernel = (const emulator::Kernel *)handle;
    static emulator::Launch launch;
    if (gpu->fault[0])
        return;
    if (++gpu->n_dispatches == gpu->fault_at) {
        char text[160];
        snprintf(text, sizeof text, "kernel %s: dispatch %llu was to fail", kernel->name,
                 (unsigned long long)gpu->fault_at);
        keep_fault(gpu, text);
        return;
    }
    if (grid->n_threads == 0 || grid->n_threads % GPU_SIMD_WIDTH ||
        grid->n_threads > emulator::MAX_THREADS || args_bytes > emulator::MAX_ARGS ||
        n_buffers > emulator::MAX_BUFFERS) {
        char text[160];
        snprintf(text, sizeof text,
                 "kernel %s: %u threads, %d buffers and %zu bytes of arguments cannot be launched",
                 kernel->name, grid->n_threads, n_buffers, args_bytes);
        keep_fault(gpu, text);
        return;
    }
    for (int i = 0; i < n_buffers; i++)
        launch.buffers[i] = buffers[i].memory ? buffers[i].memory->data + buffers[i].offset : NULL;
    launch.n_buffers = n_buffers;
    memcpy(launch.args, args, args_bytes);
    if (!emulator::run(kernel, launch, grid->groups, grid->n_threads))
        keep_fault(gpu, emulator::fault);
}

static void emulator_barrier(struct gpu *)
{
    emulator::order_launches();
}

static void emulator_commit(struct gpu *)
{
    emulator::order_launches();
}

static enum status emulator_wait(struct gpu *gpu, struct error *error)
{
    return gpu->fault[0] ? error_set(error, ERROR_IO, "%s", gpu->fault) : OK;
}

/* What was dispatched has run already. */
static void emulator_mark(struct gpu *gpu, int i)
{
    if (i >= gpu->n_marks) {
        double *marks = (double *)realloc(gpu->marks, (size_t)(2 * (i + 1)) * sizeof *marks);
        if (!marks) {
            keep_fault(gpu, "there is no memory for a mark");
            return;
        }
        gpu->marks = marks;
        gpu->n_marks = 2 * (i + 1);
    }
    gpu->marks[i] = system_seconds();
}

static enum status emulator_marked(struct gpu *gpu, int from, int to, double *seconds,
                                   struct error *)
{
    *seconds = gpu->marks[to] - gpu->marks[from];
    return OK;
}

extern "C" const struct gpu_driver gpu_driver_emulator = {
    .name = "emulator",
    .open = emulator_open,
    .close = emulator_close,
    .info = emulator_info,
    .alloc = emulator_alloc,
    .free = emulator_free,
    .wrap = emulator_wrap,
    .host = emulator_host,
    .write = emulator_write,
    .read = emulator_read,
    .read_queue = emulator_read_queue,
    .read_wait = emulator_read_wait,
    .kernel = emulator_kernel,
    .dispatch = emulator_dispatch,
    .barrier = emulator_barrier,
    .commit = emulator_commit,
    .wait = emulator_wait,
    .mark = emulator_mark,
    .marked = emulator_marked,
};
