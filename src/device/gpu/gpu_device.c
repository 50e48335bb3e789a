/* Opening the GPU device: memory, kernels, the queue. */
#include "device/gpu/gpu_device.h"
#include "device/gpu/gpu_split.h"
#include "device/gpu/gpu_upload.h"

#include "base/system.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void commit(struct gpu_device *gpu)
{
    gpu_settle(gpu);
    if (gpu->is_queued)
        gpu->driver->commit(gpu->gpu);
    gpu->is_queued = false;
}

static enum status wait(struct gpu_device *gpu, struct error *error)
{
    commit(gpu);
    return gpu->driver->wait(gpu->gpu, error);
}

/* Before a copy. */
static enum status wait_for_copy(struct gpu_device *gpu, struct error *error)
{
    if (!gpu->info.orders_copies)
        return wait(gpu, error);
    commit(gpu);
    return OK;
}

static enum status gpu_buffer_alloc(struct device *device, size_t bytes, struct buffer *out,
                                    struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    struct gpu_memory *memory;
    *out = (struct buffer){0};
    enum status status = gpu->driver->alloc(gpu->gpu, bytes, &memory, error);
    if (status == OK)
        *out = (struct buffer){gpu->driver->host(memory), memory, bytes};
    return status;
}

static void gpu_buffer_free(struct device *device, struct buffer *buffer)
{
    struct gpu_device *gpu = gpu_device_of(device);
    gpu_settle(gpu);
    if (buffer->handle)
        gpu->driver->free(gpu->gpu, buffer->handle);
    *buffer = (struct buffer){0};
}

static enum status gpu_buffer_write(struct device *device, const struct buffer *to, size_t offset,
                                    const void *from, size_t bytes, struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    enum status status = wait_for_copy(gpu, error);
    if (status != OK)
        return status;
    return gpu->driver->write(gpu->gpu, &(struct gpu_range){to->handle, offset}, from, bytes,
                              error);
}

static enum status gpu_buffer_read(struct device *device, const struct buffer *from, size_t offset,
                                   void *to, size_t bytes, struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    enum status status = wait_for_copy(gpu, error);
    if (status != OK)
        return status;
    return gpu->driver->read(gpu->gpu, &(struct gpu_range){from->handle, offset}, to, bytes, error);
}

static_assert((int)GPU_MAX_READ == (int)DEVICE_MAX_READ, "reads are handed on as they are");

/* Where copies do not take their places by themselves the copy is made now. */
static enum status gpu_read_queue(struct device *device, const struct buffer *from, size_t offset,
                                  void *to, size_t bytes, int i, struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    if (!gpu->info.orders_copies)
        return gpu_buffer_read(device, from, offset, to, bytes, error);
    commit(gpu);
    return gpu->driver->read_queue(gpu->gpu, &(struct gpu_range){from->handle, offset}, to, bytes,
                                   i, error);
}

static enum status gpu_read_wait(struct device *device, int i, struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    return gpu->info.orders_copies ? gpu->driver->read_wait(gpu->gpu, i, error) : OK;
}

void gpu_dispatch(struct gpu_device *gpu, enum gpu_kernel_name kernel,
                  const struct gpu_range *buffers, int n_buffers, const void *args,
                  size_t args_bytes, struct gpu_groups groups, uint32_t n_threads,
                  uint32_t shared_bytes)
{
    assert(groups.x <= INT32_MAX && groups.y <= UINT16_MAX && groups.z <= UINT16_MAX);
    if (groups.x == 0 || groups.y == 0 || groups.z == 0)
        return;
    struct gpu_grid grid = {
        {(uint32_t)groups.x, (uint32_t)groups.y, (uint32_t)groups.z}, n_threads, shared_bytes};
    gpu->driver->dispatch(gpu->gpu, gpu->kernels[kernel], buffers, n_buffers, args, args_bytes,
                          &grid);
    if (!gpu->is_beside)
        gpu->driver->barrier(gpu->gpu);
    gpu->is_queued = true;
}

void gpu_run_shared(struct gpu_device *gpu, enum gpu_kernel_name kernel,
                    const struct gpu_range *buffers, int n_buffers, const void *args,
                    size_t args_bytes, struct gpu_groups groups, uint32_t n_threads,
                    uint32_t shared_bytes)
{
    gpu_settle(gpu);
    gpu_dispatch(gpu, kernel, buffers, n_buffers, args, args_bytes, groups, n_threads,
                 shared_bytes);
}

void gpu_run(struct gpu_device *gpu, enum gpu_kernel_name kernel, const struct gpu_range *buffers,
             int n_buffers, const void *args, size_t args_bytes, struct gpu_groups groups,
             uint32_t n_threads)
{
    gpu_run_shared(gpu, kernel, buffers, n_buffers, args, args_bytes, groups, n_threads, 0);
}

void gpu_beside_begin(struct gpu_device *gpu)
{
    assert(!gpu->is_beside);
    gpu->is_beside = true;
}

void gpu_beside_end(struct gpu_device *gpu)
{
    gpu->is_beside = false;
    gpu->driver->barrier(gpu->gpu);
}

/* The GPU has no threads of this process. */
static void gpu_observe(struct device *device, const struct thread_observer *observer)
{
    (void)device;
    (void)observer;
}

static uint64_t gpu_memory_available(const struct device *device)
{
    const struct gpu_device *gpu = (const struct gpu_device *)(const void *)device;
    struct gpu_info info;
    gpu->driver->info(gpu->gpu, &info);
    return info.memory_bytes ? info.memory_bytes : system_available_memory();
}

static void gpu_mark(struct device *device, int i)
{
    struct gpu_device *gpu = gpu_device_of(device);
    gpu_release(gpu);
    gpu->driver->mark(gpu->gpu, i);
    gpu->is_queued = true;
}

static enum status gpu_marked(struct device *device, int from, int to, double *seconds,
                              struct error *error)
{
    struct gpu_device *gpu = gpu_device_of(device);
    return gpu->driver->marked(gpu->gpu, from, to, seconds, error);
}

static enum status gpu_sync(struct device *device, struct error *error)
{
    return wait(gpu_device_of(device), error);
}

static void gpu_close(struct device *device)
{
    struct gpu_device *gpu = gpu_device_of(device);
    struct gpu_memory *own[] = {gpu->inputs.memory, gpu->splits.parts, gpu->splits.levels,
                                gpu->splits.counters, gpu->sampling};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (own[i])
            gpu->driver->free(gpu->gpu, own[i]);
    gpu_split_done(gpu);
    gpu_upload_done(gpu);
    gpu->driver->close(gpu->gpu);
    free(gpu);
}

#define TABLE_ENTRY(name) .name = gpu_##name,
static const struct device_table gpu_table = {
    DEVICE_OPS(TABLE_ENTRY).buffer_alloc = gpu_buffer_alloc,
    .buffer_free = gpu_buffer_free,
    .buffer_write = gpu_buffer_write,
    .buffer_read = gpu_buffer_read,
    .read_queue = gpu_read_queue,
    .read_wait = gpu_read_wait,
    .memory_available = gpu_memory_available,
    .linear_load = gpu_linear_load,
    .linear_free = gpu_linear_free,
    .linear_bytes = gpu_linear_bytes,
    .reads_in_place = gpu_reads_in_place,
    .linear_size = gpu_linear_size,
    .experts_load = gpu_experts_load,
    .experts_free = gpu_experts_free,
    .experts_bytes = gpu_experts_bytes,
    .expert_size = gpu_expert_size,
    .embedding_load = gpu_embedding_load,
    .embedding_free = gpu_embedding_free,
    .embedding_bytes = gpu_embedding_bytes,
    .kv_page_bytes = gpu_kv_page_bytes,
    .attention_reserve = gpu_attention_reserve,
    .attention_workspace = gpu_attention_workspace,
    .state_slot_bytes = gpu_state_slot_bytes,
    .gated_delta_reserve = gpu_gated_delta_reserve,
    .gated_delta_workspace = gpu_gated_delta_workspace,
    .sample_reserve = gpu_sample_reserve,
    .sample_workspace = gpu_sample_workspace,
    .observe = gpu_observe,
    .mark = gpu_mark,
    .marked = gpu_marked,
    .sync = gpu_sync,
    .close = gpu_close,
};
#undef TABLE_ENTRY

static enum status load_range(struct gpu_device *gpu, int first, int end, struct error *error)
{
#define KERNEL_NAME(name) #name,
    static const char *const names[] = {
        GPU_KERNELS(KERNEL_NAME) GPU_MATRIX_KERNELS(KERNEL_NAME) GPU_INT8_KERNELS(KERNEL_NAME)
            GPU_NATIVE_KERNELS(KERNEL_NAME) GPU_WIDE_KERNELS(KERNEL_NAME)};
#undef KERNEL_NAME
    enum status status = OK;
    for (int i = first; i < end && status == OK; i++)
        status = gpu->driver->kernel(gpu->gpu, names[i], &gpu->kernels[i], error);
    return status;
}

static enum status load_kernels(struct gpu_device *gpu, struct error *error)
{
    enum status status = load_range(gpu, 0, N_GPU_SHARED_KERNELS, error);
    if (status == OK && gpu->info.has_matrices)
        status = load_range(gpu, N_GPU_SHARED_KERNELS, FIRST_INT8_GPU_KERNEL, error);
    if (status == OK && gpu->is_int8)
        status = load_range(gpu, FIRST_INT8_GPU_KERNEL, FIRST_NATIVE_GPU_KERNEL, error);
    if (status != OK)
        return status;
    gpu->has_native = load_range(gpu, FIRST_NATIVE_GPU_KERNEL, FIRST_WIDE_GPU_KERNEL, NULL) == OK;
    gpu->has_wide =
        gpu->has_native && load_range(gpu, FIRST_WIDE_GPU_KERNEL, N_GPU_KERNELS, NULL) == OK;
    return OK;
}

static const struct gpu_driver *find_driver(const char *name)
{
    static const struct gpu_driver *const drivers[] = {&gpu_driver_cuda, &gpu_driver_metal,
                                                       &gpu_driver_emulator};
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++)
        if (strcmp(drivers[i]->name, name) == 0)
            return drivers[i];
    return NULL;
}

enum status gpu_device_open(struct device **out, const char *name, int index,
                            enum activations activations, struct error *error)
{
    *out = NULL;
    const struct gpu_driver *driver = find_driver(name);
    if (!driver)
        return error_set(error, ERROR_INVALID,
                         "there is no driver %s for a GPU; there are cuda, metal and emulator",
                         name);
    struct gpu_device *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return error_memory(error, sizeof *gpu);
    gpu->driver = driver;
    gpu->table = gpu_table;
    if (!driver->mark)
        gpu->table.mark = NULL;
    enum status status = driver->open(index, &gpu->gpu, error);
    if (status != OK) {
        free(gpu);
        return status;
    }
    gpu->n_terms = activations == ACTIVATIONS_FLOAT ? 2 : 1;
    gpu->is_int8 = activations == ACTIVATIONS_INT8;
    driver->info(gpu->gpu, &gpu->info);
    gpu->table.has_queue = gpu->info.orders_copies;
    snprintf(gpu->name, sizeof gpu->name, "%s", gpu->info.name);
    gpu->device = (struct device){.table = &gpu->table, .name = gpu->name};
    if (gpu->info.max_threads < KD_ROW_THREADS)
        status = error_set(error, ERROR_UNSUPPORTED, "%s runs %u threads together; %d are needed",
                           gpu->name, gpu->info.max_threads, KD_ROW_THREADS);
    else if (gpu->is_int8 && !gpu->info.has_int8)
        status = error_set(error, ERROR_UNSUPPORTED,
                           "--activations int8: there are no kernels for it on %s (%s); auto and "
                           "float are possible there",
                           gpu->name, driver->name);
    if (status == OK)
        status = load_kernels(gpu, error);
    if (status != OK) {
        gpu_close(&gpu->device);
        return status;
    }
    *out = &gpu->device;
    return OK;
}

enum activations gpu_device_activations(const struct device *device)
{
    const struct gpu_device *gpu = (const struct gpu_device *)(const void *)device;
    if (gpu->is_int8)
        return ACTIVATIONS_INT8;
    return gpu->has_native && gpu->n_terms == 1 ? ACTIVATIONS_AUTO : ACTIVATIONS_FLOAT;
}
