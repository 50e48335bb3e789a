/* The border between the GPU device and what makes a GPU run: memory, kernels by name, dispatches
 * in order. One driver a kind of GPU; a driver knows no op, the device no GPU. Handles belong to
 * the driver that gave them. */
#ifndef CSGL_DEVICE_GPU_DRIVER_H
#define CSGL_DEVICE_GPU_DRIVER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;        /* one GPU, opened */
struct gpu_memory; /* a run of its memory */
struct gpu_kernel;

enum { GPU_SIMD_WIDTH = 32, GPU_MAX_BUFFERS = 31, GPU_MAX_READ = 1 << 20 /* of read_queue */ };

struct gpu_info {
    char name[64];
    uint64_t memory_bytes;     /* free for us; 0: the machine's own memory */
    uint32_t max_threads;      /* of a threadgroup */
    bool has_matrices;         /* simdgroups multiply matrices of 8 x 8: kernels/frag.h */
    bool has_int8;             /* dot products of int8, four at once: kernels/int8.h */
    bool orders_copies;        /* reads and writes keep their places among the dispatches */
    uint32_t n_processors;     /* each runs threadgroups of its own; 0: not known */
    uint32_t max_shared_bytes; /* of gpu_grid; 0: only what a kernel itself names */
};

/* Memory from `offset` on, as a kernel gets it. */
struct gpu_range {
    const struct gpu_memory *memory;
    size_t offset;
};

/* For drivers: ERROR_INVALID unless `bytes` from the range on lie in its memory of `size` bytes. */
static inline enum status gpu_check_range(const struct gpu_range *range, size_t size, size_t bytes,
                                          struct error *error)
{
    if (range->offset <= size && bytes <= size - range->offset)
        return OK;
    return error_set(error, ERROR_INVALID, "%zu bytes at %zu do not lie in memory of %zu bytes",
                     bytes, range->offset, size);
}

/* `groups` threadgroups of n_threads, a multiple of GPU_SIMD_WIDTH, with shared_bytes of memory of
 * its own each beside what the kernel names. */
struct gpu_grid {
    uint32_t groups[3];
    uint32_t n_threads, shared_bytes;
};

struct gpu_driver {
    const char *name; /* "cuda", "metal", "emulator": what --device calls it */

    enum status (*open)(int index, struct gpu **out, struct error *error);
    void (*close)(struct gpu *gpu);
    void (*info)(const struct gpu *gpu, struct gpu_info *out);

    /* Zeroed memory, aligned to at least 64 bytes. */
    enum status (*alloc)(struct gpu *gpu, size_t bytes, struct gpu_memory **out,
                         struct error *error);
    void (*free)(struct gpu *gpu, struct gpu_memory *memory);
    /* The `bytes` from `data` on as memory that kernels only read, without a copy. They belong to
     * the caller, who keeps them as they are until this memory is freed. NULL: the GPU does not
     * read the CPU's memory. */
    enum status (*wrap)(struct gpu *gpu, const void *data, size_t bytes, struct gpu_memory **out,
                        struct error *error);
    /* The memory's address for the CPU, or NULL where the CPU does not reach it. */
    void *(*host)(const struct gpu_memory *memory);
    /* Copies between memory and the caller's, which is the caller's again afterwards. Nothing that
     * was dispatched is still running, unless the driver orders_copies; then a read waits for what
     * was dispatched and tells its fault, and a write waits for nothing. */
    enum status (*write)(struct gpu *gpu, const struct gpu_range *to, const void *from,
                         size_t bytes, struct error *error);
    enum status (*read)(struct gpu *gpu, const struct gpu_range *from, void *to, size_t bytes,
                        struct error *error);

    /* Of a driver that orders_copies, else NULL: device/ops.h, of the same names. */
    enum status (*read_queue)(struct gpu *gpu, const struct gpu_range *from, void *to, size_t bytes,
                              int i, struct error *error);
    enum status (*read_wait)(struct gpu *gpu, int i, struct error *error);

    /* The kernel `name` of src/kernels; kept by the driver until close. */
    enum status (*kernel)(struct gpu *gpu, const char *name, const struct gpu_kernel **out,
                          struct error *error);

    /* Adds one run of a kernel to the work that the next commit starts. Buffers are bound in order,
     * `args` (copied) behind them. What cannot run is reported by wait. */
    void (*dispatch)(struct gpu *gpu, const struct gpu_kernel *kernel,
                     const struct gpu_range *buffers, int n_buffers, const void *args,
                     size_t args_bytes, const struct gpu_grid *grid);
    /* What is dispatched from now on sees what was dispatched before. */
    void (*barrier)(struct gpu *gpu);
    /* Starts what was dispatched and does not wait. */
    void (*commit)(struct gpu *gpu);
    /* Waits for all that was committed; the first fault since the GPU was opened. */
    enum status (*wait)(struct gpu *gpu, struct error *error);

    /* Notes, as mark `i`, the time at which the GPU has done what was dispatched so far; a mark
     * holds until it is noted again. Both NULL: the driver knows no times. */
    void (*mark)(struct gpu *gpu, int i);
    /* After a wait: the seconds from mark `from` to mark `to`. */
    enum status (*marked)(struct gpu *gpu, int from, int to, double *seconds, struct error *error);
};

/* Each in a file of its own; where it cannot be built, a file in its place says so on open. */
extern const struct gpu_driver gpu_driver_cuda, gpu_driver_metal, gpu_driver_emulator;

#endif
