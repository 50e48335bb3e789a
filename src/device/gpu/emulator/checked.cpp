/* The checker of the emulator. Kernels are compiled with -fsanitize=thread for its calls before
 * every access alone; what they call is here. Every byte of device and threadgroup memory remembers
 * its last write and two reads, each with where its thread was. Two accesses race when neither the
 * barriers between them nor the order of launches puts one before the other, whatever order the
 * fibers happened to run in. */
#include "device/gpu/emulator/emulator.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace emulator
{
struct Access {
    Place place; /* launch_group 0: none */
};

struct Cell {
    Access write, reads[2];
};

/* Memory of the device with a margin around it, whose accesses are reported as this one's. */
struct Memory {
    unsigned char *data;
    size_t bytes;
    Cell *cells;
    Memory *next;
};

enum { MARGIN = 4096, GROUP_CELLS = 65536, MAX_SEGMENTS = 64 };

/* Memory that kernels only read; runs may overlap. */
struct Lent {
    const unsigned char *data;
    size_t bytes;
    Lent *next;
};

static Memory *memories;
static Lent *lent;
static Memory *last_found;
static Cell group_cells[GROUP_CELLS];
static uint32_t ordered_before = 1; /* threadgroups with smaller numbers ran before */

/* Segments of the program: constants and the static data of the runtime. */
static struct {
    uintptr_t start, end;
} segments[MAX_SEGMENTS];
static int n_segments;

void *memory_alloc(size_t bytes)
{
    unsigned char *block = (unsigned char *)aligned_alloc(64, (bytes + 2 * MARGIN + 63) / 64 * 64);
    Memory *memory = (Memory *)malloc(sizeof *memory);
    Cell *cells = (Cell *)calloc(bytes ? bytes : 1, sizeof *cells);
    if (!block || !memory || !cells) {
        free(block);
        free(memory);
        free(cells);
        return NULL;
    }
    memset(block + MARGIN, 0, bytes);
    *memory = Memory{block + MARGIN, bytes, cells, memories};
    memories = memory;
    return memory->data;
}

void memory_free(void *data)
{
    for (Memory **at = &memories; *at; at = &(*at)->next)
        if ((*at)->data == data) {
            Memory *memory = *at;
            *at = memory->next;
            last_found = NULL;
            free(memory->data - MARGIN);
            free(memory->cells);
            free(memory);
            return;
        }
}

bool memory_lend(const void *data, size_t bytes)
{
    Lent *one = (Lent *)malloc(sizeof *one);
    if (!one)
        return false;
    *one = Lent{(const unsigned char *)data, bytes, lent};
    lent = one;
    return true;
}

void memory_unlend(const void *data, size_t bytes)
{
    for (Lent **at = &lent; *at; at = &(*at)->next)
        if ((*at)->data == data && (*at)->bytes == bytes) {
            Lent *one = *at;
            *at = one->next;
            free(one);
            return;
        }
}

void order_launches()
{
    ordered_before = next_group();
}

/* --- reports ------------------------------------------------------------------------------------
 */

/* The line of the kernel that a call returned to: addr2line, from the innermost function out. */
static Site site_of(void *return_address)
{
    static char line[512];
    Dl_info info;
    if (!dladdr(return_address, &info))
        return Site{"?", 0};
    char command[512];
    snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%zx 2>/dev/null",
             (int)getpid(), (size_t)((char *)return_address - (char *)info.dli_fbase - 1));
    FILE *pipe = popen(command, "r");
    Site site = {"?", 0};
    while (pipe && fgets(line, sizeof line, pipe)) {
        char *colon = strrchr(line, ':');
        if (!colon || !strstr(line, ".metal"))
            continue;
        *colon = '\0';
        site = Site{line, atoi(colon + 1)};
        break;
    }
    if (pipe)
        pclose(pipe);
    return site;
}

/* --- order --------------------------------------------------------------------------------------
 */

/* Whether nothing orders an earlier access before this one. */
static bool is_unordered(const Place &a, const Place &now, bool is_device)
{
    if (a.launch_group != now.launch_group)
        return is_device && a.launch_group >= ordered_before;
    if (a.thread == now.thread)
        return false;
    if (is_device ? a.device_barriers != now.device_barriers
                  : a.group_barriers != now.group_barriers)
        return false;
    return a.thread / SIMD_WIDTH != now.thread / SIMD_WIDTH || a.simd_barriers == now.simd_barriers;
}

static void report_race(const Place &a, const Place &now, bool is_device, const char *what,
                        void *pc)
{
    fail(site_of(pc), "race, %s %s memory; thread %d%s did so without a barrier between", what,
         is_device ? "device" : "threadgroup", a.thread,
         a.launch_group == now.launch_group ? "" : " of another threadgroup");
}

static void check_byte(Cell *cell, bool is_write, bool is_device, void *pc)
{
    Place now = place();
    bool is_new = !is_device && cell->write.place.launch_group != now.launch_group;
    if (is_new) {
        if (!is_write)
            fail(site_of(pc), "reads threadgroup memory that nobody has written yet");
        *cell = Cell();
    }
    if (is_unordered(cell->write.place, now, is_device))
        report_race(cell->write.place, now, is_device,
                    is_write ? "two writes of" : "a read and a write of", pc);
    if (!is_write) {
        /* The one kept longer is of another simdgroup or threadgroup, if there is one. */
        bool is_free = !is_unordered(cell->reads[0].place, now, is_device);
        cell->reads[is_free ? 0 : 1].place = now;
        return;
    }
    for (const Access &read : cell->reads)
        if (is_unordered(read.place, now, is_device))
            report_race(read.place, now, is_device, "a write and a read of", pc);
    cell->write.place = now;
    cell->reads[0] = cell->reads[1] = Access();
}

/* --- where an access goes -----------------------------------------------------------------------
 */

static int add_segments(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum && n_segments < MAX_SEGMENTS; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            segments[n_segments++] = {start, start + info->dlpi_phdr[i].p_memsz};
        }
    return 0;
}

static bool is_program(const void *p)
{
    if (n_segments == 0)
        dl_iterate_phdr(add_segments, NULL);
    for (int i = 0; i < n_segments; i++)
        if ((uintptr_t)p >= segments[i].start && (uintptr_t)p < segments[i].end)
            return true;
    return false;
}

static Memory *find_memory(const unsigned char *p)
{
    if (last_found && p >= last_found->data && p < last_found->data + last_found->bytes)
        return last_found;
    for (Memory *m = memories; m; m = m->next)
        if (p >= m->data - MARGIN && p < m->data + m->bytes + MARGIN)
            return last_found = m;
    return NULL;
}

/* Whether all of these bytes were lent. */
static bool is_lent(const unsigned char *p, size_t bytes)
{
    for (const Lent *l = lent; l; l = l->next)
        if (p >= l->data && p + bytes <= l->data + l->bytes)
            return true;
    return false;
}

static void check_access(const void *pointer, size_t bytes, bool is_write, void *pc)
{
    if (!is_running() || is_stack(pointer, bytes) || is_runtime(pointer, bytes))
        return;
    const unsigned char *p = (const unsigned char *)pointer;
    const char *verb = is_write ? "writes" : "reads";
    size_t offset;
    int found = find_in_group(p, bytes, &offset);
    if (found < 0)
        fail(site_of(pc), "%s outside of its threadgroup arrays", verb);
    if (found > 0) {
        for (size_t i = 0; i < bytes; i++)
            check_byte(&group_cells[offset + i], is_write, false, pc);
        return;
    }
    if (!is_write && is_program(p))
        return;
    if (is_lent(p, bytes)) {
        if (is_write)
            fail(site_of(pc), "writes memory that kernels only read");
        return;
    }
    Memory *memory = find_memory(p);
    if (!memory)
        fail(site_of(pc), "%s memory that is nobody's", verb);
    ptrdiff_t at = p - memory->data;
    if (at < 0 || (size_t)at + bytes > memory->bytes)
        fail(site_of(pc), "%s byte %td of a buffer of %zu", verb, at, memory->bytes);
    for (size_t i = 0; i < bytes; i++)
        check_byte(&memory->cells[(size_t)at + i], is_write, true, pc);
}

static void check_aligned(const void *p, size_t bytes, bool is_write, void *pc)
{
    if (is_running() && (uintptr_t)p % bytes && !is_stack(p, bytes))
        fail(site_of(pc), "%s %zu bytes at an address that is not a multiple of them",
             is_write ? "writes" : "reads", bytes);
    check_access(p, bytes, is_write, pc);
}
} // namespace emulator

/* --- what the compiler calls --------------------------------------------------------------------
 */

#define CALLER __builtin_return_address(0)
#define ACCESSES(n)                                                                                \
    extern "C" void __tsan_read##n(void *p)                                                        \
    {                                                                                              \
        emulator::check_aligned(p, n, false, CALLER);                                              \
    }                                                                                              \
    extern "C" void __tsan_write##n(void *p)                                                       \
    {                                                                                              \
        emulator::check_aligned(p, n, true, CALLER);                                               \
    }                                                                                              \
    extern "C" void __tsan_read_write##n(void *p)                                                  \
    {                                                                                              \
        emulator::check_aligned(p, n, false, CALLER);                                              \
        emulator::check_aligned(p, n, true, CALLER);                                               \
    }                                                                                              \
    extern "C" void __tsan_unaligned_read##n(void *p)                                              \
    {                                                                                              \
        emulator::check_access(p, n, false, CALLER);                                               \
    }                                                                                              \
    extern "C" void __tsan_unaligned_write##n(void *p)                                             \
    {                                                                                              \
        emulator::check_access(p, n, true, CALLER);                                                \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" void __tsan_init()
{
}

extern "C" void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    emulator::check_access(from, bytes, false, CALLER);
    emulator::check_access(to, bytes, true, CALLER);
    return memcpy(to, from, bytes);
}

extern "C" void *__tsan_memset(void *to, int value, size_t bytes)
{
    emulator::check_access(to, bytes, true, CALLER);
    return memset(to, value, bytes);
}

extern "C" void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
    emulator::check_access(from, bytes, false, CALLER);
    emulator::check_access(to, bytes, true, CALLER);
    return memmove(to, from, bytes);
}
