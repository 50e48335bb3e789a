/* The driver for NVIDIA GPUs: the CUDA driver API, opened at run time, so that building needs
 * neither its headers nor a GPU. Kernels are the fat binaries that cmake/cuda.cmake had nvcc make
 * of src/kernels: machine code for some architectures and PTX, which the driver compiles for the
 * others. One context and one stream a GPU; a fault is sticky, as CUDA's are. */
#include "device/gpu/cuda_kernels.h"
#include "device/gpu/driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Types and values of cuda.h that this file uses. */
typedef unsigned long long cuda_address;
typedef void *cuda_handle;
enum {
    CUDA_OK = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_MAX_THREADS = 1, /* CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
    CUDA_N_PROCESSORS = 16,
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_MAX_SHARED = 97,   /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    CUDA_KERNEL_SHARED = 1, /* CU_FUNC_ATTRIBUTE_: what it names itself, what it may be given */
    CUDA_KERNEL_MAX_SHARED = 8,
    CUDA_STREAM_NON_BLOCKING = 1,
    MIN_CAPABILITY = 8 /* what the kernels are written for: sm_80 */
};

/* name, parameters; versioned names are those that cuda.h maps the plain ones to. */
#define CUDA_CALLS(X)                                                                              \
    X(cuInit, (unsigned))                                                                          \
    X(cuDeviceGetCount, (int *))                                                                   \
    X(cuDeviceGet, (int *, int))                                                                   \
    X(cuDeviceGetName, (char *, int, int))                                                         \
    X(cuDeviceGetAttribute, (int *, int, int))                                                     \
    X(cuDevicePrimaryCtxRetain, (cuda_handle *, int))                                              \
    X(cuDevicePrimaryCtxRelease_v2, (int))                                                         \
    X(cuCtxSetCurrent, (cuda_handle))                                                              \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                       \
    X(cuMemAlloc_v2, (cuda_address *, size_t))                                                     \
    X(cuMemFree_v2, (cuda_address))                                                                \
    X(cuMemsetD8Async, (cuda_address, unsigned char, size_t, cuda_handle))                         \
    X(cuMemcpyHtoDAsync_v2, (cuda_address, const void *, size_t, cuda_handle))                     \
    X(cuMemcpyDtoHAsync_v2, (void *, cuda_address, size_t, cuda_handle))                           \
    X(cuModuleLoadData, (cuda_handle *, const void *))                                             \
    X(cuModuleUnload, (cuda_handle))                                                               \
    X(cuModuleGetFunction, (cuda_handle *, cuda_handle, const char *))                             \
    X(cuFuncGetAttribute, (int *, int, cuda_handle))                                               \
    X(cuFuncSetAttribute, (cuda_handle, int, int))                                                 \
    X(cuStreamCreate, (cuda_handle *, unsigned))                                                   \
    X(cuStreamDestroy_v2, (cuda_handle))                                                           \
    X(cuStreamSynchronize, (cuda_handle))                                                          \
    X(cuLaunchKernel, (cuda_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,    \
                       unsigned, cuda_handle, void **, void **))                                   \
    X(cuGetErrorName, (int, const char **))

#define CUDA_POINTER(name, parameters) int(*name) parameters;
struct cuda_calls {
    CUDA_CALLS(CUDA_POINTER)
};
#undef CUDA_POINTER

struct gpu_memory {
    cuda_address address;
    size_t bytes;
};

/* What a kernel handle points to. */
struct gpu_kernel {
    cuda_handle function;
    struct gpu_kernel *next;
};

struct gpu {
    struct cuda_calls cuda;
    void *library;
    int index, device;
    cuda_handle context, stream;
    cuda_handle modules[CUDA_MAX_MODULES];
    struct gpu_kernel *kernels;
    int fault; /* the first of a dispatch; CUDA_OK: none */
    const char *fault_call;
};

static enum status fail(const struct gpu *gpu, const char *call, int code, struct error *error)
{
    const char *name = NULL;
    if (gpu->cuda.cuGetErrorName)
        gpu->cuda.cuGetErrorName(code, &name);
    return error_set(error, ERROR_IO, "CUDA GPU %d: %s failed with %s", gpu->index, call,
                     name ? name : "an unknown error");
}

/* In functions with `gpu` and `error`: returns from them when the call fails. */
#define TRY(call, ...)                                                                             \
    do {                                                                                           \
        int code_ = gpu->cuda.call(__VA_ARGS__);                                                   \
        if (code_ != CUDA_OK)                                                                      \
            return fail(gpu, #call, code_, error);                                                 \
    } while (0)

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
    int n = 0, capability = 0;
    TRY(cuInit, 0);
    TRY(cuDeviceGetCount, &n);
    if (gpu->index < 0 || gpu->index >= n)
        return error_set(error, ERROR_INVALID, "there is no CUDA GPU %d; there are %d, from 0",
                         gpu->index, n);
    TRY(cuDeviceGet, &gpu->device, gpu->index);
    TRY(cuDeviceGetAttribute, &capability, CUDA_CAPABILITY_MAJOR, gpu->device);
    if (capability < MIN_CAPABILITY)
        return error_set(error, ERROR_UNSUPPORTED,
                         "CUDA GPU %d has compute capability %d; %d and later can be used",
                         gpu->index, capability, MIN_CAPABILITY);
    TRY(cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
    TRY(cuCtxSetCurrent, gpu->context);
    TRY(cuStreamCreate, &gpu->stream, CUDA_STREAM_NON_BLOCKING);
    assert(cuda_n_modules <= CUDA_MAX_MODULES);
    for (int i = 0; i < cuda_n_modules; i++)
        TRY(cuModuleLoadData, &gpu->modules[i], cuda_modules[i]);
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
    for (int i = 0; i < CUDA_MAX_MODULES; i++)
        if (gpu->modules[i])
            gpu->cuda.cuModuleUnload(gpu->modules[i]);
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
    enum status status = load_library(gpu, error);
    if (status == OK)
        status = open_device(gpu, error);
    if (status != OK) {
        cuda_close(gpu);
        return status;
    }
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
    out->n_processors = (uint32_t)n_processors;
    out->max_shared_bytes = (uint32_t)max_shared;
}

static void cuda_free(struct gpu *gpu, struct gpu_memory *memory)
{
    if (!memory)
        return;
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
        return fail(gpu, call, code, error);
    }
    *out = memory;
    return OK;
}

static void *cuda_host(const struct gpu_memory *memory)
{
    (void)memory;
    return NULL;
}

static enum status cuda_write(struct gpu *gpu, const struct gpu_range *to, const void *from,
                              size_t bytes, struct error *error)
{
    enum status status = gpu_check_range(to, to->memory->bytes, bytes, error);
    if (status != OK || bytes == 0)
        return status;
    TRY(cuMemcpyHtoDAsync_v2, to->memory->address + to->offset, from, bytes, gpu->stream);
    TRY(cuStreamSynchronize, gpu->stream);
    return OK;
}

static enum status cuda_read(struct gpu *gpu, const struct gpu_range *from, void *to, size_t bytes,
                             struct error *error)
{
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    if (status != OK || bytes == 0)
        return status;
    TRY(cuMemcpyDtoHAsync_v2, to, from->memory->address + from->offset, bytes, gpu->stream);
    TRY(cuStreamSynchronize, gpu->stream);
    return OK;
}

static enum status cuda_kernel(struct gpu *gpu, const char *name, const struct gpu_kernel **out,
                               struct error *error)
{
    *out = NULL;
    cuda_handle function = NULL;
    for (int i = 0; i < cuda_n_modules && !function; i++)
        if (gpu->cuda.cuModuleGetFunction(&function, gpu->modules[i], name) != CUDA_OK)
            function = NULL;
    if (!function)
        return error_set(error, ERROR_UNSUPPORTED, "the program has no kernel %s", name);
    int own = 0, most = 0;
    TRY(cuFuncGetAttribute, &own, CUDA_KERNEL_SHARED, function);
    TRY(cuDeviceGetAttribute, &most, CUDA_MAX_SHARED, gpu->device);
    TRY(cuFuncSetAttribute, function, CUDA_KERNEL_MAX_SHARED, most - own);
    struct gpu_kernel *kernel = malloc(sizeof *kernel);
    if (!kernel)
        return error_memory(error, sizeof *kernel);
    *kernel = (struct gpu_kernel){function, gpu->kernels};
    gpu->kernels = kernel;
    *out = kernel;
    return OK;
}

static void cuda_dispatch(struct gpu *gpu, const struct gpu_kernel *kernel,
                          const struct gpu_range *buffers, int n_buffers, const void *args,
                          size_t args_bytes, const struct gpu_grid *grid)
{
    cuda_address addresses[GPU_MAX_BUFFERS] = {0};
    void *parameters[GPU_MAX_BUFFERS + 1];
    (void)args_bytes; /* the driver knows each parameter's size from the kernel */
    assert(n_buffers <= GPU_MAX_BUFFERS);
    if (gpu->fault != CUDA_OK)
        return;
    for (int i = 0; i < n_buffers; i++) {
        if (buffers[i].memory)
            addresses[i] = buffers[i].memory->address + buffers[i].offset;
        parameters[i] = &addresses[i];
    }
    /* cuLaunchKernel copies the arguments and does not write to them. */
    memcpy(&parameters[n_buffers], &args, sizeof args);
    gpu->fault = gpu->cuda.cuLaunchKernel(kernel->function, grid->groups[0], grid->groups[1],
                                          grid->groups[2], grid->n_threads, 1, 1,
                                          grid->shared_bytes, gpu->stream, parameters, NULL);
    gpu->fault_call = "cuLaunchKernel";
}

/* One stream runs in order, and starts at once. */
static void cuda_barrier(struct gpu *gpu)
{
    (void)gpu;
}

static void cuda_commit(struct gpu *gpu)
{
    (void)gpu;
}

static enum status cuda_wait(struct gpu *gpu, struct error *error)
{
    if (gpu->fault == CUDA_OK) {
        gpu->fault = gpu->cuda.cuStreamSynchronize(gpu->stream);
        gpu->fault_call = "cuStreamSynchronize";
    }
    return gpu->fault == CUDA_OK ? OK : fail(gpu, gpu->fault_call, gpu->fault, error);
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
    .kernel = cuda_kernel,
    .dispatch = cuda_dispatch,
    .barrier = cuda_barrier,
    .commit = cuda_commit,
    .wait = cuda_wait,
};
