/* The driver for Apple GPUs: Metal 3, macOS 14 and later, with automatic reference counting. The
 * kernels are compiled from the program's own text when a GPU is opened; what that makes is kept in
 * the user's caches. Memory is shared with the CPU. A command buffer's dispatches run side by side
 * where the device put no barrier between them; Metal itself orders command buffers by the memory
 * that they touch. */
#include "device/gpu/driver.h"
#include "device/gpu/metal_archive.h"
#include "device/gpu/metal_capture.h"
#include "device/gpu/metal_kernels.h"
#include "device/gpu/metal_pace.h"
#include "device/gpu/metal_text.h"

#include "base/log.h"
#include "base/size.h"
#include "base/system.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_RUNNING = 32, /* command buffers that are not known to have ended */
    MAX_ARGS = 4096,  /* bytes that setBytes takes (Metal Feature Set Tables) */
    SMALLEST = 16,    /* bytes of memory: Metal has no empty buffer */
};

/* Of the working set that Metal recommends, left for other programs and for the window server. */
#define KEPT_FREE (2ull << 30)

struct gpu_memory {
    id<MTLBuffer> buffer;
    size_t first, bytes; /* first: where it begins in a buffer of whole pages */
};

/* What a kernel handle points to. */
struct gpu_kernel {
    id<MTLComputePipelineState> pipeline;
    struct gpu_kernel *next;
    char name[64];
};

struct running {
    id<MTLCommandBuffer> buffer;
    uint64_t number;
    int n; /* its dispatches */
};

/* When command buffer `number` ended, in the GPU's seconds; known once it did. */
struct mark {
    uint64_t number;
    double seconds;
};

struct gpu {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    NSMutableArray<id<MTLLibrary>> *libraries;
    struct gpu_kernel *kernels;
    id<MTLBuffer> nothing; /* bound where a kernel has no buffer to touch */
    int index;

    struct metal_archive archive;

    id residency; /* an MTLResidencySet, where the system has them */
    bool is_residency_new;

    id<MTLCommandBuffer> buffer; /* that dispatches are added to, or nil */
    id<MTLComputeCommandEncoder> encoder;
    int n_dispatches, most_dispatches;
    bool needs_barrier;
    struct running running[MAX_RUNNING];
    int n_running;

    struct metal_capture capture;

    struct mark *marks;
    int n_marks;

    uint64_t n_committed;
    double last_end, gpu_seconds, longest_seconds;
    char fault[256]; /* the first; empty: none */
};

/* --- what went wrong -------------------------------------------------------------------------- */

static enum status fail(const struct gpu *gpu, const char *what, NSError *cause,
                        struct error *error)
{
    char text[384];
    metal_text(cause, text, sizeof text);
    return error_set(error, ERROR_IO, "Metal GPU %d: %s failed: %s", gpu->index, what, text);
}

static void keep_fault(struct gpu *gpu, const char *text)
{
    if (!gpu->fault[0])
        snprintf(gpu->fault, sizeof gpu->fault, "%s", text);
}

/* --- memory that stays on the GPU ------------------------------------------------------------- */

/* Residency sets came with macOS 15; without them Metal makes memory resident for each command
 * buffer anew. */
static void residency_open(struct gpu *gpu)
{
    if (@available(macOS 15.0, *)) {
        NSError *cause = nil;
        MTLResidencySetDescriptor *wanted = [MTLResidencySetDescriptor new];
        id<MTLResidencySet> set = [gpu->device newResidencySetWithDescriptor:wanted error:&cause];
        if (!set)
            return;
        [gpu->queue addResidencySet:set];
        gpu->residency = set;
    }
}

static void residency_add(struct gpu *gpu, id<MTLBuffer> buffer)
{
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = gpu->residency;
        [set addAllocation:buffer];
        gpu->is_residency_new = true;
    }
}

static void residency_remove(struct gpu *gpu, id<MTLBuffer> buffer)
{
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = gpu->residency;
        [set removeAllocation:buffer];
        gpu->is_residency_new = true;
    }
}

/* Before a command buffer that uses what was added. */
static void residency_commit(struct gpu *gpu)
{
    if (!gpu->is_residency_new)
        return;
    gpu->is_residency_new = false;
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = gpu->residency;
        [set commit];
        [set requestResidency];
    }
}

/* --- kernels ---------------------------------------------------------------------------------- */

static enum status compile_source(struct gpu *gpu, const struct metal_source *source,
                                  struct error *error)
{
    NSError *cause = nil;
    NSString *text = [[NSString alloc] initWithBytes:source->text
                                              length:*source->bytes
                                            encoding:NSUTF8StringEncoding];
    MTLCompileOptions *options = [MTLCompileOptions new];
    options.languageVersion = MTLLanguageVersion3_1;
    /* The kernels rely on infinities, NaN and the order of sums. The property that took this one's
     * place needs macOS 15. */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    options.fastMathEnabled = NO;
#pragma clang diagnostic pop
    id<MTLLibrary> library =
        text ? [gpu->device newLibraryWithSource:text options:options error:&cause] : nil;
    if (!library) {
        fail(gpu, "compiling kernels", cause, error);
        return error_prefix(error, "%s.metal", source->name);
    }
    [gpu->libraries addObject:library];
    return OK;
}

static id<MTLFunction> find_function(const struct gpu *gpu, const char *name)
{
    NSString *wanted = [NSString stringWithUTF8String:name];
    for (NSUInteger i = 0; i < gpu->libraries.count; i++) {
        id<MTLFunction> found = [gpu->libraries[i] newFunctionWithName:wanted];
        if (found)
            return found;
    }
    return nil;
}

static id<MTLComputePipelineState> make_pipeline(struct gpu *gpu, id<MTLFunction> function,
                                                 NSError **cause)
{
    MTLComputePipelineDescriptor *wanted = [MTLComputePipelineDescriptor new];
    wanted.label = function.name;
    wanted.computeFunction = function;
    wanted.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
    metal_archive_use(&gpu->archive, wanted);
    return [gpu->device newComputePipelineStateWithDescriptor:wanted
                                                      options:MTLPipelineOptionNone
                                                   reflection:NULL
                                                        error:cause];
}

static enum status metal_kernel(struct gpu *gpu, const char *name, const struct gpu_kernel **out,
                                struct error *error)
{
    *out = NULL;
    @autoreleasepool {
        NSError *cause = nil;
        id<MTLFunction> function = find_function(gpu, name);
        if (!function)
            return error_set(error, ERROR_UNSUPPORTED, "the program has no kernel %s", name);
        id<MTLComputePipelineState> pipeline = make_pipeline(gpu, function, &cause);
        if (!pipeline) {
            fail(gpu, "compiling a kernel for this GPU", cause, error);
            return error_prefix(error, "%s", name);
        }
        if (pipeline.threadExecutionWidth != GPU_SIMD_WIDTH)
            return error_set(error, ERROR_UNSUPPORTED,
                             "Metal GPU %d runs %lu threads in lockstep; kernels need %d",
                             gpu->index, (unsigned long)pipeline.threadExecutionWidth,
                             GPU_SIMD_WIDTH);
        struct gpu_kernel *kernel = calloc(1, sizeof *kernel);
        if (!kernel)
            return error_memory(error, sizeof *kernel);
        kernel->pipeline = pipeline;
        snprintf(kernel->name, sizeof kernel->name, "%s", name);
        kernel->next = gpu->kernels;
        gpu->kernels = kernel;
        *out = kernel;
    }
    return OK;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Waits for the oldest command buffer; learns from it how many dispatches the next ones get. */
static void finish_oldest(struct gpu *gpu)
{
    struct running *oldest = &gpu->running[0];
    id<MTLCommandBuffer> buffer = oldest->buffer;
    [buffer waitUntilCompleted];
    if (buffer.status == MTLCommandBufferStatusError) {
        char text[200];
        metal_text(buffer.error, text, sizeof text);
        keep_fault(gpu, text);
    }
    double seconds = buffer.GPUEndTime - buffer.GPUStartTime;
    gpu->most_dispatches = metal_pace(gpu->most_dispatches, oldest->n, seconds);
    gpu->last_end = buffer.GPUEndTime;
    gpu->gpu_seconds += seconds;
    if (seconds > gpu->longest_seconds)
        gpu->longest_seconds = seconds;
    for (int i = 0; i < gpu->n_marks; i++)
        if (gpu->marks[i].number == oldest->number)
            gpu->marks[i].seconds = gpu->last_end;
    gpu->n_running--;
    for (int i = 0; i < gpu->n_running; i++)
        gpu->running[i] = gpu->running[i + 1];
    gpu->running[gpu->n_running].buffer = nil;
}

static void metal_commit(struct gpu *gpu)
{
    if (!gpu->buffer)
        return;
    @autoreleasepool {
        [gpu->encoder endEncoding];
        metal_archive_keep(&gpu->archive);
        residency_commit(gpu);
        [gpu->buffer commit];
        if (gpu->n_running == MAX_RUNNING)
            finish_oldest(gpu);
        struct running *newest = &gpu->running[gpu->n_running++];
        newest->buffer = gpu->buffer;
        newest->number = ++gpu->n_committed;
        newest->n = gpu->n_dispatches;
        gpu->encoder = nil;
        gpu->buffer = nil;
        gpu->n_dispatches = 0;
    }
}

/* Opens a command buffer where there is none; false where Metal gives none. */
static bool encode(struct gpu *gpu)
{
    if (gpu->buffer)
        return true;
    if (gpu->n_running == 0)
        metal_capture_begin(&gpu->capture, gpu->queue);
    id<MTLCommandBuffer> buffer = [gpu->queue commandBuffer];
    gpu->encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    if (!gpu->encoder) {
        keep_fault(gpu, "Metal gives no command buffer");
        return false;
    }
    gpu->buffer = buffer;
    gpu->needs_barrier = false; /* Metal waits for what earlier ones write */
    return true;
}

static bool can_run(struct gpu *gpu, const struct gpu_kernel *kernel, size_t args_bytes,
                    const struct gpu_grid *grid)
{
    char text[160];
    NSUInteger most = kernel->pipeline.maxTotalThreadsPerThreadgroup;
    if (grid->n_threads <= most && args_bytes <= MAX_ARGS)
        return true;
    snprintf(text, sizeof text,
             "kernel %s: %u threads and %zu bytes of arguments; this GPU takes %lu and %d",
             kernel->name, grid->n_threads, args_bytes, (unsigned long)most, MAX_ARGS);
    keep_fault(gpu, text);
    return false;
}

static void metal_dispatch(struct gpu *gpu, const struct gpu_kernel *kernel,
                           const struct gpu_range *buffers, int n_buffers, const void *args,
                           size_t args_bytes, const struct gpu_grid *grid)
{
    assert(n_buffers < GPU_MAX_BUFFERS && grid->n_threads % GPU_SIMD_WIDTH == 0);
    if (gpu->fault[0] || !can_run(gpu, kernel, args_bytes, grid))
        return;
    @autoreleasepool {
        if (!encode(gpu))
            return;
        id<MTLComputeCommandEncoder> encoder = gpu->encoder;
        if (gpu->needs_barrier)
            [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
        gpu->needs_barrier = false;
        [encoder setComputePipelineState:kernel->pipeline];
        for (int i = 0; i < n_buffers; i++) {
            const struct gpu_memory *memory = buffers[i].memory;
            [encoder setBuffer:memory ? memory->buffer : gpu->nothing
                        offset:memory ? memory->first + buffers[i].offset : 0
                       atIndex:(NSUInteger)i];
        }
        [encoder setBytes:args length:args_bytes atIndex:(NSUInteger)n_buffers];
        MTLSize groups = MTLSizeMake(grid->groups[0], grid->groups[1], grid->groups[2]);
        [encoder dispatchThreadgroups:groups
                threadsPerThreadgroup:MTLSizeMake(grid->n_threads, 1, 1)];
        gpu->n_dispatches++;
    }
}

/* Also where a full command buffer ends: only here nothing runs beside the next dispatch. */
static void metal_barrier(struct gpu *gpu)
{
    gpu->needs_barrier = true;
    if (gpu->n_dispatches >= gpu->most_dispatches)
        metal_commit(gpu);
}

static enum status metal_wait(struct gpu *gpu, struct error *error)
{
    @autoreleasepool {
        while (gpu->n_running > 0)
            finish_oldest(gpu);
        metal_capture_end(&gpu->capture);
    }
    if (!gpu->fault[0])
        return OK;
    return error_set(error, ERROR_IO, "Metal GPU %d: %s", gpu->index, gpu->fault);
}

/* Metal tells the time of command buffers alone, so what was dispatched so far becomes one. */
static void metal_mark(struct gpu *gpu, int i)
{
    metal_commit(gpu);
    if (i >= gpu->n_marks) {
        struct mark *marks = realloc(gpu->marks, (size_t)(2 * (i + 1)) * sizeof *marks);
        if (!marks) {
            keep_fault(gpu, "there is no memory for a mark");
            return;
        }
        memset(marks + gpu->n_marks, 0, (size_t)(2 * (i + 1) - gpu->n_marks) * sizeof *marks);
        gpu->marks = marks;
        gpu->n_marks = 2 * (i + 1);
    }
    gpu->marks[i] = (struct mark){gpu->n_committed, gpu->last_end};
}

static enum status metal_marked(struct gpu *gpu, int from, int to, double *seconds,
                                struct error *error)
{
    (void)error;
    *seconds = gpu->marks[to].seconds - gpu->marks[from].seconds;
    return OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static void metal_free(struct gpu *gpu, struct gpu_memory *memory)
{
    if (!memory)
        return;
    /* Command buffers that use it hold it until they end. */
    if (memory->buffer)
        residency_remove(gpu, memory->buffer);
    memory->buffer = nil;
    free(memory);
}

static enum status check_room(const struct gpu *gpu, size_t bytes, struct error *error)
{
    uint64_t largest = gpu->device.maxBufferLength;
    uint64_t most = gpu->device.recommendedMaxWorkingSetSize;
    uint64_t used = gpu->device.currentAllocatedSize;
    if (bytes > largest)
        return error_set(error, ERROR_LIMIT,
                         "Metal GPU %d: %.2f GB were asked for in one piece and %.2f GB are "
                         "possible; take a smaller model or lower --memory-ratio",
                         gpu->index, (double)bytes / 1e9, (double)largest / 1e9);
    if (bytes <= most && used <= most - bytes)
        return OK;
    return error_set(error, ERROR_LIMIT,
                     "Metal GPU %d: %.2f GB were asked for and %.2f GB of the %.2f GB that macOS "
                     "lets a program use are taken; lower --memory-ratio or --context-length",
                     gpu->index, (double)bytes / 1e9, (double)used / 1e9, (double)most / 1e9);
}

static enum status metal_alloc(struct gpu *gpu, size_t bytes, struct gpu_memory **out,
                               struct error *error)
{
    *out = NULL;
    size_t rounded = bytes > SMALLEST ? bytes : SMALLEST;
    enum status status = check_room(gpu, rounded, error);
    if (status != OK)
        return status;
    id<MTLBuffer> buffer = [gpu->device newBufferWithLength:rounded
                                                    options:MTLResourceStorageModeShared];
    struct gpu_memory *memory = buffer ? calloc(1, sizeof *memory) : NULL;
    if (!memory)
        return error_memory(error, rounded);
    memset(buffer.contents, 0, rounded);
    residency_add(gpu, buffer);
    memory->buffer = buffer;
    memory->bytes = bytes;
    *out = memory;
    return OK;
}

/* The pages that hold the bytes become a buffer. A page may lie in several, as where one tensor of
 * a file ends and the next begins. */
static enum status metal_wrap(struct gpu *gpu, const void *data, size_t bytes,
                              struct gpu_memory **out, struct error *error)
{
    *out = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)data % page;
    size_t rounded = size_round_up(first + bytes, page);
    enum status status = check_room(gpu, rounded, error);
    if (status != OK)
        return status;
    id<MTLBuffer> buffer = [gpu->device newBufferWithBytesNoCopy:(void *)((uintptr_t)data - first)
                                                          length:rounded
                                                         options:MTLResourceStorageModeShared
                                                     deallocator:nil];
    if (!buffer)
        return fail(gpu, "reading a file's pages in place", nil, error);
    struct gpu_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return error_memory(error, sizeof *memory);
    residency_add(gpu, buffer);
    memory->buffer = buffer;
    memory->first = first;
    memory->bytes = bytes;
    *out = memory;
    return OK;
}

static void *metal_host(const struct gpu_memory *memory)
{
    return (char *)memory->buffer.contents + memory->first;
}

static enum status metal_write(struct gpu *gpu, const struct gpu_range *to, const void *from,
                               size_t bytes, struct error *error)
{
    (void)gpu;
    enum status status = gpu_check_range(to, to->memory->bytes, bytes, error);
    if (status == OK && bytes)
        memcpy((char *)metal_host(to->memory) + to->offset, from, bytes);
    return status;
}

static enum status metal_read(struct gpu *gpu, const struct gpu_range *from, void *to, size_t bytes,
                              struct error *error)
{
    (void)gpu;
    enum status status = gpu_check_range(from, from->memory->bytes, bytes, error);
    if (status == OK && bytes)
        memcpy(to, (const char *)metal_host(from->memory) + from->offset, bytes);
    return status;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void metal_info(const struct gpu *gpu, struct gpu_info *out)
{
    @autoreleasepool {
        uint64_t taken = KEPT_FREE + gpu->device.currentAllocatedSize;
        uint64_t most = gpu->device.recommendedMaxWorkingSetSize;
        uint64_t machine = system_available_memory();
        *out = (struct gpu_info){0};
        snprintf(out->name, sizeof out->name, "%s", gpu->device.name.UTF8String);
        out->memory_bytes = most > taken ? most - taken : 1; /* 0 would mean all of the machine's */
        if (machine && machine < out->memory_bytes)
            out->memory_bytes = machine;
        out->max_threads = (uint32_t)gpu->device.maxThreadsPerThreadgroup.width;
        /* M1 and later; not the GPU of a virtual machine. */
        out->has_matrices = [gpu->device supportsFamily:MTLGPUFamilyApple7];
    }
}

static enum status find_device(struct gpu *gpu, struct error *error)
{
    NSArray<id<MTLDevice>> *devices = MTLCopyAllDevices();
    if (gpu->index < 0 || (NSUInteger)gpu->index >= devices.count)
        return error_set(error, ERROR_INVALID, "there is no Metal GPU %d; there are %lu, from 0",
                         gpu->index, (unsigned long)devices.count);
    gpu->device = devices[(NSUInteger)gpu->index];
    if (!gpu->device.hasUnifiedMemory)
        return error_set(error, ERROR_UNSUPPORTED,
                         "Metal GPU %d has memory of its own; csgl uses Apple silicon's alone",
                         gpu->index);
    gpu->queue = [gpu->device newCommandQueue];
    gpu->nothing = [gpu->device newBufferWithLength:SMALLEST options:MTLResourceStorageModeShared];
    if (!gpu->queue || !gpu->nothing)
        return fail(gpu, "making a command queue", nil, error);
    return OK;
}

static enum status open_gpu(struct gpu *gpu, struct error *error)
{
    enum status status = find_device(gpu, error);
    if (status != OK)
        return status;
    gpu->most_dispatches = METAL_FIRST_DISPATCHES;
    gpu->libraries = [NSMutableArray new];
    residency_open(gpu);
    metal_archive_open(&gpu->archive, gpu->device);
    for (int i = 0; i < metal_n_sources && status == OK; i++)
        status = compile_source(gpu, &metal_sources[i], error);
    return status == OK ? metal_capture_open(&gpu->capture, error) : status;
}

/* An object is let go by its pointer's last value, so each must be nil before its struct is freed.
 */
static void metal_close(struct gpu *gpu)
{
    metal_commit(gpu);
    metal_wait(gpu, NULL);
    log_debug("Metal GPU %d ran %llu command buffers in %.3f s, the longest in %.1f ms", gpu->index,
              (unsigned long long)gpu->n_committed, gpu->gpu_seconds, gpu->longest_seconds * 1e3);
    while (gpu->kernels) {
        struct gpu_kernel *next = gpu->kernels->next;
        gpu->kernels->pipeline = nil;
        free(gpu->kernels);
        gpu->kernels = next;
    }
    metal_archive_close(&gpu->archive);
    free(gpu->marks);
    gpu->residency = nil;
    gpu->nothing = nil;
    gpu->libraries = nil;
    gpu->queue = nil;
    gpu->device = nil;
    free(gpu);
}

static enum status metal_open(int index, struct gpu **out, struct error *error)
{
    *out = NULL;
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return error_memory(error, sizeof *gpu);
    gpu->index = index;
    enum status status;
    @autoreleasepool {
        status = open_gpu(gpu, error);
    }
    if (status != OK) {
        metal_close(gpu);
        return status;
    }
    *out = gpu;
    return OK;
}

const struct gpu_driver gpu_driver_metal = {
    .name = "metal",
    .open = metal_open,
    .close = metal_close,
    .info = metal_info,
    .alloc = metal_alloc,
    .free = metal_free,
    .wrap = metal_wrap,
    .host = metal_host,
    .write = metal_write,
    .read = metal_read,
    .kernel = metal_kernel,
    .dispatch = metal_dispatch,
    .barrier = metal_barrier,
    .commit = metal_commit,
    .wait = metal_wait,
    .mark = metal_mark,
    .marked = metal_marked,
};
