/* Opening the CPU device: memory, threads, the table of ops. */
#include "device/cpu/cpu_device.h"

#include "base/size.h"
#include "base/system.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Large buffers are mapped: the kernel zeroes a page when it is first touched, so that a big KV
 * pool costs nothing at start, and huge pages spare TLB misses. Small ones come from the heap. */
enum { MAPPED_FROM = 1 << 20 };

static void *memory_new(size_t bytes)
{
    if (bytes >= MAPPED_FROM) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
#ifdef MADV_HUGEPAGE
        madvise(p, bytes, MADV_HUGEPAGE);
#endif
        return p;
    }
    void *p = NULL;
    size_t rounded = size_round_up(bytes ? bytes : 1, 64);
    return posix_memalign(&p, 64, rounded) == 0 ? memset(p, 0, rounded) : NULL;
}

static void memory_free(void *p, size_t bytes)
{
    if (bytes >= MAPPED_FROM)
        munmap(p, bytes);
    else
        free(p);
}

static enum status cpu_buffer_alloc(struct device *device, size_t bytes, struct buffer *out,
                                    struct error *error)
{
    (void)device;
    *out = (struct buffer){.host = memory_new(bytes), .bytes = bytes};
    return out->host ? OK : error_memory(error, bytes);
}

static void cpu_buffer_free(struct device *device, struct buffer *buffer)
{
    (void)device;
    if (buffer->host)
        memory_free(buffer->host, buffer->bytes);
    *buffer = (struct buffer){0};
}

static enum status cpu_buffer_write(struct device *device, const struct buffer *to, size_t offset,
                                    const void *from, size_t bytes, struct error *error)
{
    (void)device;
    (void)error;
    assert(offset <= to->bytes && bytes <= to->bytes - offset);
    memcpy((char *)to->host + offset, from, bytes);
    return OK;
}

static enum status cpu_buffer_read(struct device *device, const struct buffer *from, size_t offset,
                                   void *to, size_t bytes, struct error *error)
{
    (void)device;
    (void)error;
    assert(offset <= from->bytes && bytes <= from->bytes - offset);
    memcpy(to, (const char *)from->host + offset, bytes);
    return OK;
}

static enum status cpu_read_queue(struct device *device, const struct buffer *from, size_t offset,
                                  void *to, size_t bytes, int i, struct error *error)
{
    (void)i;
    return cpu_buffer_read(device, from, offset, to, bytes, error);
}

static enum status cpu_read_wait(struct device *device, int i, struct error *error)
{
    (void)device;
    (void)i;
    (void)error;
    return OK; /* read_queue has copied */
}

static void cpu_observe(struct device *device, const struct thread_observer *observer)
{
    thread_pool_observe(cpu_device_of(device)->pool, observer);
}

static uint64_t cpu_memory_available(const struct device *device)
{
    (void)device;
    return system_available_memory();
}

static enum status cpu_sync(struct device *device, struct error *error)
{
    (void)device;
    (void)error;
    return OK; /* every op has ended when it returns */
}

static void cpu_close(struct device *device)
{
    struct cpu_device *cpu = cpu_device_of(device);
    thread_pool_free(cpu->pool);
    cpu_buffer_free(device, &cpu->workspace);
    free(cpu);
}

enum status cpu_workspace_reserve(struct cpu_device *cpu, size_t bytes, struct error *error)
{
    if (bytes <= cpu->workspace.bytes)
        return OK;
    struct buffer grown;
    enum status status = cpu_buffer_alloc(&cpu->device, bytes, &grown, error);
    if (status != OK)
        return status;
    cpu_buffer_free(&cpu->device, &cpu->workspace);
    cpu->workspace = grown;
    return OK;
}

#define TABLE_ENTRY(name) .name = cpu_##name,
static const struct device_table cpu_table = {
    DEVICE_OPS(TABLE_ENTRY).buffer_alloc = cpu_buffer_alloc,
    .buffer_free = cpu_buffer_free,
    .buffer_write = cpu_buffer_write,
    .buffer_read = cpu_buffer_read,
    .read_queue = cpu_read_queue,
    .read_wait = cpu_read_wait,
    .memory_available = cpu_memory_available,
    .linear_load = cpu_linear_load,
    .linear_free = cpu_linear_free,
    .linear_bytes = cpu_linear_bytes,
    .linear_size = cpu_linear_size,
    .experts_load = cpu_experts_load,
    .experts_free = cpu_experts_free,
    .experts_bytes = cpu_experts_bytes,
    .expert_size = cpu_expert_size,
    .embedding_load = cpu_embedding_load,
    .embedding_free = cpu_embedding_free,
    .embedding_bytes = cpu_embedding_bytes,
    .kv_page_bytes = cpu_kv_page_bytes,
    .attention_reserve = cpu_attention_reserve,
    .attention_workspace = cpu_attention_workspace,
    .shares_workspace = true,
    .observe = cpu_observe,
    .gated_delta_reserve = cpu_gated_delta_reserve,
    .gated_delta_workspace = cpu_gated_delta_workspace,
    .state_slot_bytes = cpu_state_slot_bytes,
    .sample_reserve = cpu_sample_reserve,
    .sample_workspace = cpu_sample_workspace,
    .sync = cpu_sync,
    .close = cpu_close,
};
#undef TABLE_ENTRY

enum status cpu_device_open(struct device **out, const struct cpu_options *options,
                            struct error *error)
{
    *out = NULL;
    if (options->isa > cpu_isa_best())
        return error_set(error, ERROR_UNSUPPORTED, "this machine lacks %s; the best it has is %s",
                         cpu_isa_name(options->isa), cpu_isa_name(cpu_isa_best()));
    struct cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return error_memory(error, sizeof *cpu);
    int n_threads = options->n_threads ? options->n_threads : thread_pool_default_size();
    enum status status = thread_pool_new(&cpu->pool, n_threads, error);
    if (status != OK) {
        free(cpu);
        return status;
    }
    cpu->device = (struct device){.table = &cpu_table, .name = "cpu"};
    cpu->isa = options->isa;
    cpu->is_int8 = options->activations == ACTIVATIONS_INT8 ||
                   (options->activations == ACTIVATIONS_AUTO && options->isa >= CPU_ISA_INT8);
    cpu->rows = cpu_row_kernels(cpu->isa);
    cpu->linears = cpu_linear_kernels(cpu->isa);
    cpu->attention = cpu_attention_kernels(cpu->isa);
    cpu->delta = cpu_delta_kernels(cpu->isa);
    *out = &cpu->device;
    return OK;
}

enum activations cpu_device_activations(const struct device *device)
{
    const struct cpu_device *cpu = (const struct cpu_device *)(const void *)device;
    return cpu->is_int8 ? ACTIVATIONS_INT8 : ACTIVATIONS_FLOAT;
}
