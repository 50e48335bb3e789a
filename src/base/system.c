#include "base/system.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/random.h>
#else
#include <sys/random.h>
#endif

#ifdef __APPLE__
uint64_t system_available_memory(void)
{
    vm_statistics64_data_t stats;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&stats, &count) !=
        KERN_SUCCESS)
        return 0;
    uint64_t pages = (uint64_t)stats.free_count + stats.inactive_count + stats.purgeable_count;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool system_program(char *path, size_t size)
{
    uint32_t n = (uint32_t)size;
    return _NSGetExecutablePath(path, &n) == 0;
}
#else
/* The number in a file of one number; `otherwise` if there is none ("max" of a cgroup). */
static uint64_t read_number(const char *path, uint64_t otherwise)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return otherwise;
    unsigned long long value;
    if (fscanf(file, "%llu", &value) != 1)
        value = otherwise;
    fclose(file);
    return value;
}

static uint64_t mem_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return 0;
    char line[128];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

uint64_t system_available_memory(void)
{
    uint64_t available = mem_available();
    /* cgroup v2, then v1, as a container sees its own. File pages count as used but can go. */
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", UINT64_MAX);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", 0);
    if (limit == UINT64_MAX) {
        limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", UINT64_MAX);
        used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", 0);
    }
    if (limit != UINT64_MAX && limit > used && limit - used < available)
        available = limit - used;
    return available;
}

bool system_program(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size);
    if (n <= 0 || (size_t)n >= size)
        return false;
    path[n] = '\0';
    return true;
}
#endif

uint64_t system_peak_memory(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

double system_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t system_random(void)
{
    uint64_t bits;
    if (getentropy(&bits, sizeof bits) == 0)
        return bits;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 32;
}
