/* macOS: from sysctl. */
#ifdef __APPLE__
#include "cli/machine.h"

#include "base/system.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysctl.h>
#include <sys/utsname.h>

static uint64_t number(const char *name)
{
    uint64_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 ? value : 0;
}

static void report_flag(struct report *r, const char *key, const char *label, const char *name)
{
    report_text(r, key, label, number(name) ? "there" : "lacking");
}

void machine_report(struct report *r)
{
    struct utsname name;
    char text[256] = "unknown";
    size_t size = sizeof text;
    if (uname(&name) == 0)
        snprintf(text, sizeof text, "%.60s %.120s %.60s", name.sysname, name.release, name.machine);
    report_text(r, "system", "system", text);
    if (sysctlbyname("machdep.cpu.brand_string", text, &size, NULL, 0) != 0)
        strcpy(text, "unknown");
    report_text(r, "processor", "processor", text);
    report_int(r, "performance_cores", "performance cores",
               (int64_t)number("hw.perflevel0.logicalcpu"));
    report_int(r, "efficiency_cores", "efficiency cores",
               (int64_t)number("hw.perflevel1.logicalcpu"));
    report_flag(r, "has_dotprod", "dot products", "hw.optional.arm.FEAT_DotProd");
    report_flag(r, "has_i8mm", "int8 matrices", "hw.optional.arm.FEAT_I8MM");
    report_flag(r, "has_bf16", "bf16", "hw.optional.arm.FEAT_BF16");
    report_int(r, "cache_l1", "cache, level 1, bytes", (int64_t)number("hw.l1dcachesize"));
    report_int(r, "cache_l2", "cache, level 2, bytes", (int64_t)number("hw.l2cachesize"));
    report_int(r, "page_bytes", "bytes of a page", (int64_t)number("hw.pagesize"));
    report_int(r, "memory_bytes", "memory, bytes", (int64_t)number("hw.memsize"));
    report_int(r, "memory_available_bytes", "memory available, bytes",
               (int64_t)system_available_memory());
    report_int(r, "gpu_wired_limit_mb", "GPU's memory limit, MiB (0: the system's)",
               (int64_t)number("iogpu.wired_limit_mb"));
}
#endif
