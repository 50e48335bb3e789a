/* Runs kernels of the dialect on the CPU, to test them: each thread of a threadgroup is a fiber,
 * and waits at barriers and simd functions for the others, as a GPU's does. Built twice: plain, and
 * checked, which also finds races, accesses out of bounds and reads of memory that was never
 * written. Strict where GPUs differ: a simd function or barrier is reached by all of its threads,
 * at one place in the source.
 *
 * A fault ends the launch at once; the first one's message is kept. One launch runs at a time, on
 * the calling thread. Knows no op. */
#ifndef CSGL_DEVICE_GPU_EMULATOR_H
#define CSGL_DEVICE_GPU_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

namespace emulator
{
enum {
    SIMD_WIDTH = 32,
    MAX_THREADS = 1024,
    MAX_BUFFERS = 31,
    MAX_ARGS = 512,          /* bytes of a kernel's struct */
    GROUP_MEMORY = 32768,    /* bytes of threadgroup arrays, Metal's limit */
    MAX_EXCHANGE = 16,       /* bytes of a simd function's value */
    STACK_BYTES = 64 * 1024, /* of a fiber */
    GROUP_GAP = 64,          /* bytes between threadgroup arrays, to notice overruns */
    MAX_ARRAYS = 32
};

/* A place in a kernel's source. */
struct Site {
    const char *file;
    int line;
};

static inline Site here(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    return Site{file, line};
}

/* --- what kernels use, through kd_emulator.h ---------------------------------------------------
 */

struct GroupId {
    uint32_t x, y, z;
};
extern GroupId group_id;

struct Exchange {
    unsigned char values[SIMD_WIDTH][MAX_EXCHANGE];
};

uint32_t lane_index(); /* in the threadgroup */
/* Waits until all lanes of the simdgroup have given their value; they are all there until the
 * lane's next exchange. */
const Exchange *exchange(const void *value, size_t bytes, Site site);
void simd_barrier(Site site);
void group_barrier(bool orders_device, bool orders_group, Site site);
/* The threadgroup's array for `key`, made when the first thread asks. */
void *group_array(const void *key, size_t bytes);

struct Launch {
    void *buffers[MAX_BUFFERS];
    alignas(16) unsigned char args[MAX_ARGS];
    int n_buffers;
};

/* The kernels of the program, a list made before main. */
struct Kernel {
    const char *name;
    void (*run)(const Launch &);
    Kernel *next;
    static Kernel *first;
    Kernel(const char *kernel_name, void (*function)(const Launch &))
        : name(kernel_name), run(function), next(first)
    {
        first = this;
    }
};

template <class T> struct Argument;
template <class T> struct Argument<T *> {
    static T *get(const Launch &launch, int i)
    {
        return (T *)launch.buffers[i];
    }
};
template <class T> struct Argument<const T &> {
    static const T &get(const Launch &launch, int)
    {
        static_assert(sizeof(T) <= MAX_ARGS, "a larger MAX_ARGS is needed");
        return *(const T *)launch.args;
    }
};

template <int... I> struct Indices {
};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {
};
template <int... I> struct Count<0, I...> {
    typedef Indices<I...> type;
};

template <class... P, int... I>
static inline void call_with(void (*kernel)(P...), const Launch &launch, Indices<I...>)
{
    kernel(Argument<P>::get(launch, I)...);
}

template <class... P> static inline void call(void (*kernel)(P...), const Launch &launch)
{
    call_with(kernel, launch, typename Count<sizeof...(P)>::type());
}

/* --- what the driver uses ----------------------------------------------------------------------
 */

const Kernel *find_kernel(const char *name);
/* False after a fault, whose message is in `fault`. */
bool run(const Kernel *kernel, const Launch &launch, const uint32_t groups[3], uint32_t n_threads);
extern char fault[512];

/* Memory of the device; zeroed. */
void *memory_alloc(size_t bytes);
void memory_free(void *memory);
/* Memory of the caller's that kernels may read until memory_unlend; false: there is no memory for
 * the note of it. */
bool memory_lend(const void *data, size_t bytes);
void memory_unlend(const void *data, size_t bytes);
/* What is launched from now on runs after all that was launched before. */
void order_launches();

/* --- between fibers.cpp and the checker --------------------------------------------------------
 */

/* Where a thread is: accesses of two threads of a group are ordered if a barrier for that kind of
 * memory lies between them, of one simdgroup also if a simdgroup_barrier does. */
struct Place {
    uint32_t launch_group; /* number of the running threadgroup since the program began */
    uint16_t thread;
    uint16_t device_barriers, group_barriers, simd_barriers;
};
Place place();
bool is_running();
bool is_stack(const void *p, size_t bytes);
bool is_runtime(const void *p, size_t bytes);
/* The threadgroup array that holds [p, p + bytes): 1; no array, but their memory: -1; else 0. The
 * byte's offset in all arrays. */
int find_in_group(const void *p, size_t bytes, size_t *offset);
/* The number the next threadgroup gets. */
uint32_t next_group();
/* Ends the launch; does not return. */
[[noreturn]] void fail(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
} // namespace emulator

#endif
