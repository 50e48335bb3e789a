/* Linux: from /proc and /sys. */
#ifdef __linux__
#include "cli/machine.h"

#include "base/file.h"
#include "base/system.h"
#include "cli/model_path.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

enum { FILE_MAX = 1 << 20, MAX_CACHES = 8 };

/* The file's first line into `out`; false if there is none. */
static bool read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    out[0] = '\0';
    if (!file)
        return false;
    bool is_read = fgets(out, (int)size, file) != NULL;
    fclose(file);
    out[strcspn(out, "\n")] = '\0';
    return is_read;
}

/* The value behind "KEY :" in text of such lines; "" if there is none. */
static void find_value(const char *text, const char *key, char *out, size_t size)
{
    size_t n = strlen(key);
    out[0] = '\0';
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) != 0 || !strchr(": \t", line[n]))
            continue;
        const char *value = line + n + strspn(line + n, ": \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        return;
    }
}

/* --- processor -------------------------------------------------------------------------------- */

/* The flags of /proc/cpuinfo that each level of kernels needs. */
static const struct {
    const char *name, *key, *flags;
} levels[] = {
#if defined(__x86_64__)
    {"AVX2", "avx2", "avx2 fma f16c bmi2"},
    {"AVX-512", "avx512", "avx512f avx512bw avx512vl avx512dq avx512vbmi avx512_vnni avx512_bf16"},
    {"AMX", "amx", "amx_tile amx_int8 amx_bf16"},
#else
    {"NEON", "neon", "asimd"},
    {"dot products", "dotprod", "asimddp"},
    {"int8 matrices", "i8mm", "i8mm"},
    {"bf16", "bf16", "bf16"},
#endif
};

static bool has_word(const char *text, const char *word, size_t n)
{
    for (const char *at = text; (at = strstr(at, word)); at += n)
        if ((at == text || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

static void report_levels(struct report *r, const char *flags)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        struct str missing = {0};
        char word[32], key[48];
        for (const char *at = levels[i].flags; *at;) {
            size_t n = strcspn(at, " ");
            snprintf(word, sizeof word, "%.*s", (int)n, at);
            if (!has_word(flags, word, n))
                str_printf(&missing, " %s", word);
            at += n + (at[n] == ' ');
        }
        snprintf(key, sizeof key, "has_%s", levels[i].key);
        str_printf(&missing, missing.len ? " lacking" : "there");
        report_text(r, key, levels[i].name, str_z(&missing) + (str_z(&missing)[0] == ' '));
        str_done(&missing);
    }
}

static void report_processor(struct report *r)
{
    struct str text = {0};
    char model[128], node[64];
    static char flags[8192];
    if (file_read("/proc/cpuinfo", FILE_MAX << 4, &text, NULL) != OK)
        str_append_z(&text, "");
    find_value(str_z(&text), "model name", model, sizeof model);
    find_value(str_z(&text), "flags", flags, sizeof flags);
    if (!flags[0])
        find_value(str_z(&text), "Features", flags, sizeof flags);
    report_text(r, "processor", "processor", model[0] ? model : "unknown");
    int n_nodes = 0;
    for (; n_nodes < 64; n_nodes++) {
        snprintf(node, sizeof node, "/sys/devices/system/node/node%d", n_nodes);
        if (!file_is_directory(node))
            break;
    }
    report_int(r, "numa_nodes", "NUMA nodes", n_nodes);
    report_levels(r, flags);
    str_done(&text);
}

static void report_caches(struct report *r)
{
    char path[128], level[16], type[32], size[32], shared[128], label[48], key[48], text[256];
    for (int i = 0; i < MAX_CACHES; i++) {
        static const char folder[] = "/sys/devices/system/cpu/cpu0/cache/index";
        snprintf(path, sizeof path, "%s%d/level", folder, i);
        if (!read_line(path, level, sizeof level))
            return;
        snprintf(path, sizeof path, "%s%d/type", folder, i);
        read_line(path, type, sizeof type);
        if (strcmp(type, "Instruction") == 0)
            continue;
        snprintf(path, sizeof path, "%s%d/size", folder, i);
        read_line(path, size, sizeof size);
        snprintf(path, sizeof path, "%s%d/shared_cpu_list", folder, i);
        read_line(path, shared, sizeof shared);
        snprintf(label, sizeof label, "cache, level %s", level);
        snprintf(key, sizeof key, "cache_l%s", level);
        snprintf(text, sizeof text, "%s, of processors %s", size, shared);
        report_text(r, key, label, text);
    }
}

/* --- memory and limits ------------------------------------------------------------------------ */

static void report_bytes(struct report *r, const char *key, const char *label, uint64_t bytes)
{
    char text[SIZE_TEXT], with_label[96];
    report_int(r, key, NULL, (int64_t)bytes);
    snprintf(with_label, sizeof with_label, "%-34s %s\n", label, size_text(bytes, text));
    str_append_z(&r->table, with_label);
}

static void report_memory(struct report *r)
{
    struct str text = {0};
    char value[64], line[128];
    if (file_read("/proc/meminfo", FILE_MAX, &text, NULL) != OK)
        str_append_z(&text, "");
    find_value(str_z(&text), "MemTotal", value, sizeof value);
    report_bytes(r, "memory_bytes", "memory", strtoull(value, NULL, 10) << 10);
    report_bytes(r, "memory_available_bytes", "memory available", system_available_memory());
    find_value(str_z(&text), "HugePages_Total", value, sizeof value);
    report_text(r, "huge_pages_reserved", "huge pages reserved", value);
    read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
    report_text(r, "transparent_huge_pages", "transparent huge pages",
                line[0] ? line : "not offered by this kernel");
    str_done(&text);
}

static void report_limits(struct report *r)
{
    char line[128];
    struct rlimit limit;
    if (!read_line("/sys/fs/cgroup/memory.max", line, sizeof line))
        read_line("/sys/fs/cgroup/memory/memory.limit_in_bytes", line, sizeof line);
    /* "max" in the second version, a number that no machine has in the first. */
    unsigned long long cgroup_bytes = strtoull(line, NULL, 10);
    if (cgroup_bytes && cgroup_bytes < 1ull << 50)
        report_bytes(r, "cgroup_memory_bytes", "memory limit of the cgroup", cgroup_bytes);
    else
        report_text(r, "cgroup_memory_bytes", "memory limit of the cgroup", "none");
    read_line("/sys/fs/cgroup/cpu.max", line, sizeof line);
    report_text(r, "cgroup_cpu", "processor limit of the cgroup", line[0] ? line : "none");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        report_bytes(r, "locked_memory_limit", "memory that may be locked", limit.rlim_cur);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        report_int(r, "open_files_limit", "files that may be open", (int64_t)limit.rlim_cur);
}

/* --- accelerators ----------------------------------------------------------------------------- */

static void report_gpus(struct report *r)
{
    static const char folder[] = "/proc/driver/nvidia/gpus";
    struct str text = {0};
    char version[256], path[512], name[128], key[32];
    int n = 0;
    read_line("/proc/driver/nvidia/version", version, sizeof version);
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s/information", folder, entry->d_name);
        str_clear(&text);
        if (file_read(path, FILE_MAX, &text, NULL) != OK)
            continue;
        find_value(str_z(&text), "Model", name, sizeof name);
        snprintf(key, sizeof key, "gpu_%d", n++);
        report_text(r, key, "NVIDIA GPU", name);
    }
    if (list)
        closedir(list);
    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    report_text(r, "nvidia_driver", "NVIDIA driver",
                version[0] ? version
                : cuda     ? "libcuda.so.1 is there, the kernel's driver is not"
                           : "none");
    if (version[0] && !cuda)
        report_text(r, "libcuda", "libcuda.so.1", "cannot be opened");
    if (cuda)
        dlclose(cuda);
    str_done(&text);
}

void machine_report(struct report *r)
{
    struct utsname name;
    char system[256] = "unknown";
    if (uname(&name) == 0)
        snprintf(system, sizeof system, "%.60s %.120s %.60s", name.sysname, name.release,
                 name.machine);
    report_text(r, "system", "system", system);
    report_processor(r);
    report_caches(r);
    report_memory(r);
    report_limits(r);
    report_gpus(r);
}
#endif
