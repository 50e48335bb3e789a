/* The threads of a threadgroup as fibers: switching, barriers, exchanges, threadgroup memory. */
#include "device/gpu/emulator/emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emulator
{
enum State : uint8_t { READY, AT_EXCHANGE, AT_SIMD_BARRIER, AT_GROUP_BARRIER, DONE };

struct Lane {
    void *stack_pointer;
    State state;
    bool orders_device, orders_group;
    uint16_t index;
    uint16_t device_barriers, group_barriers, simd_barriers;
    Site site;
};

struct Simd {
    Exchange slots[2]; /* of even and odd exchanges, so that a fast lane does not overwrite */
    int n_waiting, n_done;
    bool is_odd;
};

struct Array {
    const void *key;
    size_t offset, bytes;
};

/* The one threadgroup that runs. */
static struct {
    Lane lanes[MAX_THREADS];
    Simd simds[MAX_THREADS / SIMD_WIDTH];
    uint16_t ready[MAX_THREADS]; /* a ring */
    int first_ready, n_ready;
    int n_threads, n_done, n_in_barrier;
    Lane *lane; /* that runs; NULL: none */
    void *host_stack_pointer;
    const Kernel *kernel;
    const Launch *launch;
    uint32_t number;
    bool has_failed;
    Array arrays[MAX_ARRAYS];
    int n_arrays;
    size_t array_bytes, array_end;
    unsigned char *memory; /* of arrays */
    char *stacks;
} group;

Kernel *Kernel::first;
GroupId group_id;
char fault[512];

enum { ARRAYS_END = GROUP_MEMORY + (MAX_ARRAYS + 1) * GROUP_GAP };

/* Saves the registers that a call keeps on the running stack, its pointer in *save, and goes on
 * from `to`. */
extern "C" void emulator_switch(void **save, void *to);
#if !defined(__x86_64__)
#error "the emulator's switch of fibers is written for x86-64"
#endif
__asm__(".text\n"
        ".globl emulator_switch\n"
        ".hidden emulator_switch\n"
        ".type emulator_switch,@function\n"
        "emulator_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n");

void fail(Site site, const char *format, ...)
{
    if (!group.has_failed) {
        char text[256];
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        const char *slash = site.file ? strrchr(site.file, '/') : NULL;
        snprintf(fault, sizeof fault, "kernel %s, %s:%d, thread %d of threadgroup (%u, %u, %u): %s",
                 group.kernel->name,
                 slash       ? slash + 1
                 : site.file ? site.file
                             : "?",
                 site.line, group.lane ? group.lane->index : -1, group_id.x, group_id.y, group_id.z,
                 text);
    }
    group.has_failed = true;
    void *abandoned;
    group.lane = NULL;
    emulator_switch(&abandoned, group.host_stack_pointer);
    abort(); /* nobody returns to an abandoned fiber */
}

/* --- scheduling ---------------------------------------------------------------------------------
 */

static void make_ready(Lane *lane)
{
    lane->state = READY;
    group.ready[(group.first_ready + group.n_ready++) % MAX_THREADS] = lane->index;
}

static Simd *simd_of(const Lane *lane)
{
    return &group.simds[lane->index / SIMD_WIDTH];
}

/* Nothing can run: says who waits for whom. */
static void report_deadlock()
{
    for (int i = 0; i < group.n_threads; i++) {
        Lane *lane = &group.lanes[i];
        if (lane->state == AT_EXCHANGE || lane->state == AT_SIMD_BARRIER) {
            group.lane = lane;
            fail(lane->site, "a simd function is reached by %d of the simdgroup's 32 threads",
                 simd_of(lane)->n_waiting);
        }
    }
    for (int i = 0; i < group.n_threads; i++)
        if (group.lanes[i].state == AT_GROUP_BARRIER) {
            group.lane = &group.lanes[i];
            fail(group.lane->site, "a barrier is reached by %d of %d threads, %d have ended",
                 group.n_in_barrier, group.n_threads, group.n_done);
        }
    abort();
}

/* Runs another lane, or returns to the host when all have ended. */
static void switch_away(Lane *from)
{
    if (group.n_ready == 0 && group.n_done == group.n_threads) {
        group.lane = NULL;
        emulator_switch(&from->stack_pointer, group.host_stack_pointer);
    }
    if (group.n_ready == 0)
        report_deadlock();
    Lane *to = &group.lanes[group.ready[group.first_ready]];
    group.first_ready = (group.first_ready + 1) % MAX_THREADS;
    group.n_ready--;
    group.lane = to;
    if (to != from)
        emulator_switch(&from->stack_pointer, to->stack_pointer);
}

static void lane_main()
{
    group.kernel->run(*group.launch);
    Lane *lane = group.lane;
    lane->state = DONE;
    group.n_done++;
    simd_of(lane)->n_done++;
    switch_away(lane);
    abort(); /* nobody returns to an ended fiber */
}

static void start_lane(int i)
{
    Lane *lane = &group.lanes[i];
    *lane = Lane();
    lane->index = (uint16_t)i;
    void **top = (void **)(void *)(group.stacks + (size_t)(i + 1) * STACK_BYTES);
    *--top = NULL; /* keeps the stack as a call would leave it */
    *--top = (void *)lane_main;
    for (int r = 0; r < 6; r++)
        *--top = NULL;
    lane->stack_pointer = top;
    make_ready(lane);
}

static void run_group()
{
    group.n_done = group.n_in_barrier = group.n_ready = group.first_ready = 0;
    group.n_arrays = 0;
    group.array_bytes = group.array_end = 0;
    group.number++;
    memset(group.memory, 0xFF, ARRAYS_END); /* NaN, so that reads of it show in the results */
    for (int i = 0; i < group.n_threads / SIMD_WIDTH; i++) {
        group.simds[i].n_waiting = group.simds[i].n_done = 0;
        group.simds[i].is_odd = false;
    }
    for (int i = 0; i < group.n_threads; i++)
        start_lane(i);
    Lane *first = &group.lanes[0];
    group.first_ready = 1;
    group.n_ready--;
    group.lane = first;
    emulator_switch(&group.host_stack_pointer, first->stack_pointer);
}

bool run(const Kernel *kernel, const Launch &launch, const uint32_t groups[3], uint32_t n_threads)
{
    if (!group.stacks) {
        size_t bytes = (size_t)MAX_THREADS * STACK_BYTES;
        void *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        group.memory = (unsigned char *)aligned_alloc(64, ARRAYS_END);
        if (stacks == MAP_FAILED || !group.memory) {
            snprintf(fault, sizeof fault, "no memory for the emulator's %zu bytes of stacks",
                     bytes);
            return false;
        }
        group.stacks = (char *)stacks;
    }
    group.kernel = kernel;
    group.launch = &launch;
    group.n_threads = (int)n_threads;
    group.has_failed = false;
    for (uint32_t z = 0; z < groups[2]; z++)
        for (uint32_t y = 0; y < groups[1]; y++)
            for (uint32_t x = 0; x < groups[0] && !group.has_failed; x++) {
                group_id = GroupId{x, y, z};
                run_group();
            }
    return !group.has_failed;
}

const Kernel *find_kernel(const char *name)
{
    for (const Kernel *kernel = Kernel::first; kernel; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}

/* --- what kernels call --------------------------------------------------------------------------
 */

uint32_t lane_index()
{
    return group.lane->index;
}

/* Waits for the simdgroup's 32 lanes at one place. */
static void wait_for_simd(State state, Site site)
{
    Lane *lane = group.lane;
    Simd *simd = simd_of(lane);
    lane->state = state;
    lane->site = site;
    if (++simd->n_waiting < SIMD_WIDTH) {
        switch_away(lane);
        return;
    }
    Lane *lanes = &group.lanes[lane->index / SIMD_WIDTH * SIMD_WIDTH];
    for (int i = 0; i < SIMD_WIDTH; i++)
        if (lanes[i].state != state || lanes[i].site.line != site.line ||
            strcmp(lanes[i].site.file, site.file) != 0)
            fail(site, "a simd function is reached while thread %d is at line %d", lanes[i].index,
                 lanes[i].site.line);
    simd->n_waiting = 0;
    simd->is_odd = !simd->is_odd;
    for (int i = 0; i < SIMD_WIDTH; i++) {
        lanes[i].simd_barriers += state == AT_SIMD_BARRIER;
        if (&lanes[i] != lane)
            make_ready(&lanes[i]);
    }
    lane->state = READY;
}

const Exchange *exchange(const void *value, size_t bytes, Site site)
{
    if (bytes > MAX_EXCHANGE)
        fail(site, "a simd function takes %zu bytes; %d at most", bytes, MAX_EXCHANGE);
    Lane *lane = group.lane;
    Simd *simd = simd_of(lane);
    Exchange *slots = &simd->slots[simd->is_odd];
    memcpy(slots->values[lane->index % SIMD_WIDTH], value, bytes);
    wait_for_simd(AT_EXCHANGE, site);
    return slots;
}

void simd_barrier(Site site)
{
    wait_for_simd(AT_SIMD_BARRIER, site);
}

void group_barrier(bool orders_device, bool orders_group, Site site)
{
    Lane *lane = group.lane;
    lane->state = AT_GROUP_BARRIER;
    lane->site = site;
    lane->orders_device = orders_device;
    lane->orders_group = orders_group;
    if (++group.n_in_barrier < group.n_threads) {
        switch_away(lane);
        return;
    }
    for (int i = 0; i < group.n_threads; i++)
        if (group.lanes[i].site.line != site.line || strcmp(group.lanes[i].site.file, site.file))
            fail(site, "a barrier is reached while thread %d is at the barrier of line %d", i,
                 group.lanes[i].site.line);
    group.n_in_barrier = 0;
    for (int i = 0; i < group.n_threads; i++) {
        group.lanes[i].device_barriers += group.lanes[i].orders_device;
        group.lanes[i].group_barriers += group.lanes[i].orders_group;
        if (i != lane->index)
            make_ready(&group.lanes[i]);
    }
    lane->state = READY;
}

void *group_array(const void *key, size_t bytes)
{
    for (int i = 0; i < group.n_arrays; i++)
        if (group.arrays[i].key == key)
            return group.memory + group.arrays[i].offset;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (group.n_arrays == MAX_ARRAYS || group.array_bytes + rounded > GROUP_MEMORY)
        fail(Site{}, "threadgroup arrays of %zu bytes; %d at most", group.array_bytes + rounded,
             GROUP_MEMORY);
    size_t offset = group.array_end + GROUP_GAP;
    group.arrays[group.n_arrays++] = Array{key, offset, bytes};
    group.array_bytes += rounded;
    group.array_end = offset + rounded;
    return group.memory + offset;
}

/* --- what the checker asks ----------------------------------------------------------------------
 */

Place place()
{
    const Lane *lane = group.lane;
    return Place{group.number, lane->index, lane->device_barriers, lane->group_barriers,
                 lane->simd_barriers};
}

bool is_running()
{
    return group.lane != NULL;
}

uint32_t next_group()
{
    return group.number + 1;
}

static bool is_inside(const void *p, size_t bytes, const void *start, size_t size)
{
    const char *a = (const char *)p, *b = (const char *)start;
    return a >= b && a + bytes <= b + size;
}

bool is_stack(const void *p, size_t bytes)
{
    return is_inside(p, bytes, group.stacks, (size_t)MAX_THREADS * STACK_BYTES);
}

bool is_runtime(const void *p, size_t bytes)
{
    return is_inside(p, bytes, &group, sizeof group) ||
           is_inside(p, bytes, group.launch, sizeof *group.launch) ||
           is_inside(p, bytes, &group_id, sizeof group_id);
}

int find_in_group(const void *p, size_t bytes, size_t *offset)
{
    if (!is_inside(p, 1, group.memory, ARRAYS_END))
        return 0;
    *offset = (size_t)((const unsigned char *)p - group.memory);
    for (int i = 0; i < group.n_arrays; i++)
        if (is_inside(p, bytes, group.memory + group.arrays[i].offset, group.arrays[i].bytes))
            return 1;
    return -1;
}
} // namespace emulator
