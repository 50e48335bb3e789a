/* The driver for NVIDIA GPUs: the CUDA driver API, opened at run time, so that building needs
 * neither its headers nor a GPU. One context and one stream a GPU, so that what is dispatched or
 * written runs in order; a fault is sticky, as CUDA's are. */
#include "device/gpu/cuda_api.h"

#include "base/log.h"
#include "base/system.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_CAPABILITY = 80,   /* what the kernels are written for: sm_80 */
    EARLY_CAPABILITY = 90, /* from Hopper on a kernel may be started before the last one ends */
    STAGING_BYTES = 8 << 20,
    MAX_COPY = 1 << 20 /* so that filling the staging memory and copying from it overlap */
};

enum status cuda_fail(const struct gpu *gpu, const char *call, int code, struct error *error)
{
    const char *name = NULL;
    if (gpu->cuda.cuGetErrorName)
        gpu->cuda.cuGetErrorName(code, &name);
    return error_set(error, ERROR_IO, "CUDA GPU %d: %s failed with %s", gpu->index, call,
                     name ? name : "an unknown error");
}

static enum status load_library(struct gpu *gpu, struct error *error)
{
    gpu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library)
        return error_set(error, ERROR_UNSUPPORTED,
                         "there is no NVIDIA driver on this machine (%s); use --device cpu",
                         dlerror());
#define LOAD(name, parameters)                                                                     \
    *(void **)&gpu->cuda.name = dlsym(gpu->library, #name);                                        \
    if (!gpu->cuda.name)                                                                           \
        return error_set(error, ERROR_UNSUPPORTED,                                                 \
                         "the NVIDIA driver lacks %s; a newer one is needed", #name);
    CUDA_CALLS(LOAD)
#undef LOAD
    return OK;
}

static enum status open_device(struct gpu *gpu, struct error *error)
{
    int n = 0, major = 0, minor = 0;
    CUDA_TRY(cuInit, 0);
    CUDA_TRY(cuDeviceGetCount, &n);
    if (gpu->index < 0 || gpu->index >= n)
        return error_set(error, ERROR_INVALID, "there is no CUDA GPU %d; there are %d, from 0",
                         gpu->index, n);
    CUDA_TRY(cuDeviceGet, &gpu->device, gpu->index);
    CUDA_TRY(cuDeviceGetAttribute, &major, CUDA_CAPABILITY_MAJOR, gpu->device);
    CUDA_TRY(cuDeviceGetAttribute, &minor, CUDA_CAPABILITY_MINOR, gpu->device);
    gpu->capability = 10 * major + minor;
    if (gpu->capability < MIN_CAPABILITY)
        return error_set(error, ERROR_UNSUPPORTED,
                         "CUDA GPU %d has compute capability %d.%d; %d.0 and later can be used",
                         gpu->index, major, minor, MIN_CAPABILITY / 10);
    CUDA_TRY(cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
    CUDA_TRY(cuCtxSetCurrent, gpu->context);
    CUDA_TRY(cuStreamCreate, &gpu->stream, CUDA_STREAM_NON_BLOCKING);
    CUDA_TRY(cuMemAllocHost_v2, (void **)&gpu->staging, STAGING_BYTES);
    for (int i = 0; i < CUDA_READS; i++) {
        CUDA_TRY(cuMemAllocHost_v2, (void **)&gpu->reads[i].staged, GPU_MAX_READ);
        CUDA_TRY(cuEventCreate, &gpu->reads[i].done, CUDA_EVENT_NO_TIME);
    }
    return OK;
}

static void cuda_close(struct gpu *gpu)
{
    while (gpu->kernels) {
        struct gpu_kernel *next = gpu->kernels->next;
        free(gpu->kernels);
        gpu->kernels = next;
    }
    if (gpu->stream)
        gpu->cuda.cuStreamSynchronize(gpu->stream);
    cuda_queue_done(gpu);
    for (int i = 0; i < gpu->n_modules; i++)
        gpu->cuda.cuModuleUnload(gpu->modules[i]);
    free(gpu->modules);
    if (gpu->staging)
        gpu->cuda.cuMemFreeHost(gpu->staging);
    for (int i = 0; i < CUDA_READS; i++) {
        if (gpu->reads[i].staged)
            gpu->cuda.cuMemFreeHost(gpu->reads[i].staged);
        if (gpu->reads[i].done)
            gpu->cuda.cuEventDestroy_v2(gpu->reads[i].done);
    }
    if (gpu->stream)
        gpu->cuda.cuStreamDestroy_v2(gpu->stream);
    if (gpu->context)
        gpu->cuda.cuDevicePrimaryCtxRelease_v2(gpu->device);
    if (gpu->library)
        dlclose(gpu->library);
    free(gpu);
}

static enum status cuda_open(int index, struct gpu **out, struct error *error)
{
    *out = NULL;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return error_memory(error, sizeof *gpu);
    gpu->index = index;
    double begin = system_seconds();
    enum status status = load_library(gpu, error);
    if (status == OK)
        status = open_device(gpu, error);
    double opened = system_seconds();
    if (status == OK)
        status = cuda_load_modules(gpu, error);
    if (status != OK) {
        cuda_close(gpu);
        return status;
    }
    log_info("CUDA GPU %d: the driver took %.2f s, the kernels %.2f s to load", index,
             opened - begin, system_seconds() - opened);
    *out = gpu;
    return OK;
}

static void cuda_info(const struct gpu *gpu, struct gpu_info *out)
{
    size_t free_bytes = 0, total_bytes = 0;
    int max_threads = 0, n_processors = 0, max_shared = 0;
    *out = (struct gpu_info){0};
    gpu->cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes);
    gpu->cuda.cuDeviceGetAttribute(&max_threads, CUDA_MAX_THREADS, gpu->device);
    gpu->cuda.cuDeviceGetAttribute(&n_processors, CUDA_N_PROCESSORS, gpu->device);
    gpu->cuda.cuDeviceGetAttribute(&max_shared, CUDA_MAX_SHARED, gpu->device);
    if (gpu->cuda.cuDeviceGetName(out->name, sizeof out->name, gpu->device) != CUDA_OK)
        snprintf(out->name, sizeof out->name, "CUDA GPU %d", gpu->index);
    out->memory_bytes = free_bytes;
    out->max_threads = (uint32_t)max_threads;
    out->has_int8 = true;
    out->orders_copies = true;
    out->n_processors = (uint32_t)n_processors;
    out->max_shared_bytes = (uint32_t)max_shared;
}

static void cuda_free(struct gpu *gpu, struct gpu_memory *memory)
{
    if (!memory)
        return;
    cuda_flush(gpu);
    if (memory->address)
        gpu->cuda.cuMemFree_v2(memory->address); /* waits for what still uses it */
    free(memory);
}

static enum status cuda_alloc(struct gpu *gpu, size_t bytes, struct gpu_memory **out,
                              struct error *error)
{
    *out = NULL;
    struct gpu_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return error_memory(error, sizeof *memory);
    memory->bytes = bytes;
    size_t rounded = bytes ? bytes : 1; /* CUDA has no empty memory */
    int code = gpu->cuda.cuMemAlloc_v2(&memory->address, rounded);
    const char *call = "cuMemAlloc";
    if (code == CUDA_OK) {
        call = "cuMemsetD8Async";
        code = gpu->cuda.cuMemsetD8Async(memory->address, 0, rounded, gpu->stream);
    }
    if (code != CUDA_OK) {
        cuda_free(gpu, memory);
        size_t free_bytes = 0, total_bytes = 0;
        gpu->cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes);
        if (code == CUDA_OUT_OF_MEMORY)
            return error_set(error, ERROR_LIMIT,
                             "CUDA GPU %d: %.2f GB were asked for and %.2f GB of %.2f GB are free; "
                             "lower --memory-ratio or --context-length",
                             gpu->index, (double)bytes / 1e9, (double)free_bytes / 1e9,
                             (double)total_bytes / 1e9);
        return cuda_fail(gpu, call, code, error);
    }
    *out = memory;
    return OK;
}

static void *cuda_host(const struct gpu_memory *memory)
{
    (void)memory;
    return NULL;
}

/* `bytes`, at most MAX_COPY, of the staging memory that no copy uses. What a step stages is free
 * again when its tokens were waited for (cuda_read_wait), so that steps do not wait here. */
static enum status stage(struct gpu *gpu, size_t bytes, unsigned char **out, struct error *error)
{
    size_t at = gpu->n_staged % STAGING_BYTES;
    if (at + bytes > STAGING_BYTES) { /* the rest is too short: from the begin again */
        gpu->n_staged += STAGING_BYTES - at;
        at = 0;
    }
    if (gpu->n_staged + bytes - gpu->n_unstaged > STAGING_BYTES) {
        CUDA_TRY(cuStreamSynchronize, gpu->stream);
        gpu->n_unstaged = gpu->n_staged;
    }
    *out = gpu->staging + at;
    gpu->n_staged += bytes;
    return OK;
}

static enum status cuda_write(struct gpu *gpu, const struct gpu_range *to, const void *from,
                              size_t bytes, struct error *error)
{
    enum status status = gpu_check_range(to, to->memory->bytes, bytes, error);
    cuda_flush(gpu);
    for (size_t done = 0, n; status == OK && done < bytes; done += n) {
        unsigned char *staged = NULL;
        n = bytes - done < MAX_COPY ? bytes - done : MAX_COPY;
        status = stage(gpu, n, &staged, error);
        if (status != OK)
            return status;
        memcpy(staged, (const unsigned char *)from + done, n);
        CUDA_TRY(cuMemcpyHtoDAsync_v2, to->memory->address + to->offset + done, staged, n,
                 gpu->stream);
    }
    return status;
}

static enum status cuda_read(struct gpu *gpu, const struct gpu_range *from, void *to, size_t bytes,
                             struct error *error)
{
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    cuda_flush(gpu);
    if (status == OK && gpu->fault != CUDA_OK)
        return cuda_fail(gpu, gpu->fault_call, gpu->fault, error);
    for (size_t done = 0, n; status == OK && done < bytes; done += n) {
        unsigned char *staged = NULL;
        n = bytes - done < MAX_COPY ? bytes - done : MAX_COPY;
        status = stage(gpu, n, &staged, error);
        if (status != OK)
            return status;
        CUDA_TRY(cuMemcpyDtoHAsync_v2, staged, from->memory->address + from->offset + done, n,
                 gpu->stream);
        CUDA_TRY(cuStreamSynchronize, gpu->stream);
        gpu->n_unstaged = gpu->n_staged;
        memcpy((unsigned char *)to + done, staged, n);
    }
    return status;
}

static enum status cuda_read_queue(struct gpu *gpu, const struct gpu_range *from, void *to,
                                   size_t bytes, int i, struct error *error)
{
    struct cuda_read *read = &gpu->reads[i];
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    assert(bytes <= GPU_MAX_READ);
    cuda_flush(gpu);
    if (status == OK && gpu->fault != CUDA_OK)
        return cuda_fail(gpu, gpu->fault_call, gpu->fault, error);
    if (status != OK)
        return status;
    if (bytes > 0)
        CUDA_TRY(cuMemcpyDtoHAsync_v2, read->staged, from->memory->address + from->offset, bytes,
                 gpu->stream);
    CUDA_TRY(cuEventRecordWithFlags, read->done, gpu->stream, 0);
    read->to = to;
    read->bytes = bytes;
    read->n_staged = gpu->n_staged;
    return OK;
}

static enum status cuda_read_wait(struct gpu *gpu, int i, struct error *error)
{
    const struct cuda_read *read = &gpu->reads[i];
    if (gpu->fault == CUDA_OK) {
        gpu->fault = gpu->cuda.cuEventSynchronize(read->done);
        gpu->fault_call = "cuEventSynchronize";
    }
    if (gpu->fault != CUDA_OK)
        return cuda_fail(gpu, gpu->fault_call, gpu->fault, error);
    if (read->bytes > 0)
        memcpy(read->to, read->staged, read->bytes);
    if (read->n_staged > gpu->n_unstaged)
        gpu->n_unstaged = read->n_staged;
    return OK;
}

static enum status cuda_kernel(struct gpu *gpu, const char *name, const struct gpu_kernel **out,
                               struct error *error)
{
    *out = NULL;
    char waits[64];
    cuda_handle function = NULL;
    cuda_address address = 0;
    size_t bytes = 0;
    bool is_early = false;
    snprintf(waits, sizeof waits, "kd_waits_%s", name);
    for (int i = 0; i < gpu->n_modules && !function; i++) {
        if (gpu->cuda.cuModuleGetFunction(&function, gpu->modules[i], name) != CUDA_OK)
            function = NULL;
        else
            is_early =
                gpu->capability >= EARLY_CAPABILITY &&
                gpu->cuda.cuModuleGetGlobal_v2(&address, &bytes, gpu->modules[i], waits) == CUDA_OK;
    }
    if (!function)
        return error_set(error, ERROR_UNSUPPORTED, "the program has no kernel %s", name);
    int own = 0, most = 0;
    CUDA_TRY(cuFuncGetAttribute, &own, CUDA_KERNEL_SHARED, function);
    CUDA_TRY(cuDeviceGetAttribute, &most, CUDA_MAX_SHARED, gpu->device);
    CUDA_TRY(cuFuncSetAttribute, function, CUDA_KERNEL_MAX_SHARED, most - own);
    struct gpu_kernel *kernel = malloc(sizeof *kernel);
    if (!kernel)
        return error_memory(error, sizeof *kernel);
    *kernel = (struct gpu_kernel){function, is_early, gpu->kernels};
    gpu->kernels = kernel;
    *out = kernel;
    return OK;
}

/* One stream runs in order. */
static void cuda_barrier(struct gpu *gpu)
{
    (void)gpu;
}

static enum status cuda_wait(struct gpu *gpu, struct error *error)
{
    if (gpu->fault == CUDA_OK) {
        gpu->fault = gpu->cuda.cuStreamSynchronize(gpu->stream);
        gpu->fault_call = "cuStreamSynchronize";
        gpu->n_unstaged = gpu->n_staged;
    }
    return gpu->fault == CUDA_OK ? OK : cuda_fail(gpu, gpu->fault_call, gpu->fault, error);
}

const struct gpu_driver gpu_driver_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host = cuda_host,
    .write = cuda_write,
    .read = cuda_read,
    .read_queue = cuda_read_queue,
    .read_wait = cuda_read_wait,
    .kernel = cuda_kernel,
    .dispatch = cuda_dispatch,
    .barrier = cuda_barrier,
    .commit = cuda_commit,
    .wait = cuda_wait,
    .mark = cuda_mark,
    .marked = cuda_marked,
};
