/* Inside the driver for CUDA: the driver API as far as it is used, and the state of a GPU. */
#ifndef CSGL_DEVICE_GPU_CUDA_API_H
#define CSGL_DEVICE_GPU_CUDA_API_H

#include "device/gpu/driver.h"

/* Types and values of cuda.h. */
typedef unsigned long long cuda_address;
typedef void *cuda_handle;

enum {
    CUDA_OK = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_MAX_THREADS = 1, /* CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK */
    CUDA_N_PROCESSORS = 16,
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_CAPABILITY_MINOR = 76,
    CUDA_MAX_SHARED = 97,   /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    CUDA_KERNEL_SHARED = 1, /* CU_FUNC_ATTRIBUTE_: what it names itself, what it may be given */
    CUDA_KERNEL_MAX_SHARED = 8,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIME = 2,         /* CU_EVENT_DISABLE_TIMING */
    CUDA_CAPTURE_RELAXED = 2,       /* CU_STREAM_CAPTURE_MODE_RELAXED */
    CUDA_EVENT_RECORD_EXTERNAL = 1, /* an event of a graph that is read outside it */
    CUDA_LAUNCH_PROGRAMMATIC = 6    /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
};

struct cuda_attribute {
    int id, unused;
    union {
        int is_allowed;
        char bytes[64];
    } value;
};

struct cuda_launch {
    unsigned groups[3], threads[3], shared_bytes;
    cuda_handle stream;
    struct cuda_attribute *attributes;
    unsigned n_attributes;
};

/* name, parameters; versioned names are those that cuda.h maps the plain ones to. */
#define CUDA_CALLS(X)                                                                              \
    X(cuInit, (unsigned))                                                                          \
    X(cuDriverGetVersion, (int *))                                                                 \
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
    X(cuMemAllocHost_v2, (void **, size_t))                                                        \
    X(cuMemFreeHost, (void *))                                                                     \
    X(cuMemsetD8Async, (cuda_address, unsigned char, size_t, cuda_handle))                         \
    X(cuMemcpyHtoDAsync_v2, (cuda_address, const void *, size_t, cuda_handle))                     \
    X(cuMemcpyDtoHAsync_v2, (void *, cuda_address, size_t, cuda_handle))                           \
    X(cuModuleLoadData, (cuda_handle *, const void *))                                             \
    X(cuModuleUnload, (cuda_handle))                                                               \
    X(cuModuleGetFunction, (cuda_handle *, cuda_handle, const char *))                             \
    X(cuModuleGetGlobal_v2, (cuda_address *, size_t *, cuda_handle, const char *))                 \
    X(cuFuncGetAttribute, (int *, int, cuda_handle))                                               \
    X(cuFuncSetAttribute, (cuda_handle, int, int))                                                 \
    X(cuStreamCreate, (cuda_handle *, unsigned))                                                   \
    X(cuStreamDestroy_v2, (cuda_handle))                                                           \
    X(cuStreamSynchronize, (cuda_handle))                                                          \
    X(cuStreamBeginCapture_v2, (cuda_handle, int))                                                 \
    X(cuStreamEndCapture, (cuda_handle, cuda_handle *))                                            \
    X(cuGraphInstantiateWithFlags, (cuda_handle *, cuda_handle, unsigned long long))               \
    X(cuGraphDestroy, (cuda_handle))                                                               \
    X(cuGraphLaunch, (cuda_handle, cuda_handle))                                                   \
    X(cuGraphExecDestroy, (cuda_handle))                                                           \
    X(cuEventCreate, (cuda_handle *, unsigned))                                                    \
    X(cuEventDestroy_v2, (cuda_handle))                                                            \
    X(cuEventRecordWithFlags, (cuda_handle, cuda_handle, unsigned))                                \
    X(cuEventSynchronize, (cuda_handle))                                                           \
    X(cuEventElapsedTime, (float *, cuda_handle, cuda_handle))                                     \
    X(cuLaunchKernelEx, (const struct cuda_launch *, cuda_handle, void **, void **))               \
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
    bool waits; /* for what it reads, so that it may be started early (kernels/kd_cuda.h) */
    struct gpu_kernel *next;
};

/* Dispatches that were not handed to the GPU yet: one record behind another. */
struct cuda_list {
    unsigned char *records;
    size_t bytes, capacity;
    int n_launches;
    bool has_marks;
};

/* A list that was seen before, and the graph that runs it from the second time on. */
struct cuda_graph {
    uint64_t hash;
    unsigned char *records;
    size_t bytes;
    cuda_handle graph; /* NULL: not made yet */
    uint64_t last_use;
};

enum { CUDA_MAX_GRAPHS = 1024 };

struct cuda_queue {
    struct cuda_list list;
    int n_flushed; /* lists since the last commit */
    struct cuda_graph graphs[CUDA_MAX_GRAPHS];
    int n_graphs;
    uint64_t n_uses;
    cuda_handle *events; /* one a mark */
    int n_events;
};

/* A copy to the CPU that somebody will wait for. */
struct cuda_read {
    unsigned char *staged; /* [GPU_MAX_READ] page-locked */
    cuda_handle done;      /* an event */
    void *to;
    size_t bytes;
    uint64_t n_staged; /* of the staging memory when it was queued */
};

enum { CUDA_READS = 2 };

struct gpu {
    struct cuda_calls cuda;
    void *library;
    int index, device, capability; /* 90: 9.0 */
    cuda_handle context, stream;
    cuda_handle *modules;
    int n_modules;
    struct gpu_kernel *kernels;
    /* Page-locked memory that copies pass through, round and round: bytes ever taken, and those of
     * them that no copy uses any more. */
    unsigned char *staging;
    uint64_t n_staged, n_unstaged;
    struct cuda_read reads[CUDA_READS];
    struct cuda_queue queue;
    int fault; /* the first of a dispatch; CUDA_OK: none */
    const char *fault_call;
};

/* Says which call failed, and returns ERROR_IO. */
enum status cuda_fail(const struct gpu *gpu, const char *call, int code, struct error *error);

/* In functions with `gpu` and `error`: returns from them when the call fails. */
#define CUDA_TRY(call, ...)                                                                        \
    do {                                                                                           \
        int code_ = gpu->cuda.call(__VA_ARGS__);                                                   \
        if (code_ != CUDA_OK)                                                                      \
            return cuda_fail(gpu, #call, code_, error);                                            \
    } while (0)

/* cuda_queue.c: the driver's calls of these names, and its end. */
void cuda_dispatch(struct gpu *gpu, const struct gpu_kernel *kernel,
                   const struct gpu_range *buffers, int n_buffers, const void *args,
                   size_t args_bytes, const struct gpu_grid *grid);
void cuda_mark(struct gpu *gpu, int i);
enum status cuda_marked(struct gpu *gpu, int from, int to, double *seconds, struct error *error);
void cuda_commit(struct gpu *gpu);
/* Hands over what was dispatched so far. */
void cuda_flush(struct gpu *gpu);
void cuda_queue_done(struct gpu *gpu);

/* cuda_modules.c: loads the kernels, which modules[0 .. n_modules) are then. */
enum status cuda_load_modules(struct gpu *gpu, struct error *error);

#endif
