/* The levels of the processor that csgl runs on. */
#include "device/cpu/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)

static const char *const names[] = {"scalar", "AVX2", "AVX-512 (VNNI, BF16)", "AVX-512 and AMX"};

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* CPUID leaf 7: AMX-BF16, AMX-TILE and AMX-INT8 are EDX bits 22, 24, 25 (Intel SDM vol. 2A). The
 * kernel hands out the tile registers on request only: ARCH_REQ_XCOMP_PERM, XTILEDATA = 18
 * (Documentation/arch/x86/xstate.rst). */
static bool has_amx(void)
{
    unsigned a = 7, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return (d & wanted) == wanted && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static bool has_amx(void)
{
    return false;
}
#endif

enum cpu_isa cpu_isa_best(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return CPU_ISA_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vnni") ||
        !__builtin_cpu_supports("avx512bf16"))
        return CPU_ISA_AVX2;
    return has_amx() ? CPU_ISA_AMX : CPU_ISA_AVX512;
}

#elif defined(__aarch64__)

static const char *const names[] = {"scalar", "NEON", "NEON with dotprod",
                                    "NEON with dotprod and i8mm"};

#if defined(__APPLE__)
#include <sys/sysctl.h>

static bool has(const char *feature)
{
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value != 0;
}

static bool has_dotprod(void)
{
    return has("hw.optional.arm.FEAT_DotProd");
}

static bool has_i8mm(void)
{
    return has("hw.optional.arm.FEAT_I8MM");
}
#else
#include <sys/auxv.h>

/* Bits of AT_HWCAP and AT_HWCAP2 (Documentation/arch/arm64/elf_hwcaps.rst). */
static bool has_dotprod(void)
{
    enum { ASIMDDP = 1 << 20 };
    return getauxval(AT_HWCAP) & ASIMDDP;
}

static bool has_i8mm(void)
{
    enum { I8MM = 1 << 13 };
    return getauxval(AT_HWCAP2) & I8MM;
}
#endif

enum cpu_isa cpu_isa_best(void)
{
    if (!has_dotprod())
        return CPU_ISA_NEON;
    return has_i8mm() ? CPU_ISA_I8MM : CPU_ISA_DOTPROD;
}

#else

static const char *const names[] = {"scalar"};

enum cpu_isa cpu_isa_best(void)
{
    return CPU_ISA_SCALAR;
}

#endif

enum cpu_isa cpu_isa_built(void)
{
    return (enum cpu_isa)(sizeof names / sizeof names[0] - 1);
}

const char *cpu_isa_name(enum cpu_isa isa)
{
    return isa <= cpu_isa_built() ? names[isa] : "an unknown level";
}
