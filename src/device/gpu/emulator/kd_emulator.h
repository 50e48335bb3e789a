// The dialect as C++ for the emulator (device/gpu/emulator): address spaces are erased, lanes are
// fibers, and a simd function or barrier passes the line it stands on, for reports.
#include "device/gpu/emulator/emulator.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;

#define KD_VEC inline __attribute__((always_inline))
#include "kernels/kd_vec.h"
using kd::as_type;
using kd::dot;
typedef kd::vec<float, 2> float2;
typedef kd::vec<float, 4> float4;
typedef kd::vec<half, 2> half2;
typedef kd::vec<half, 4> half4;
typedef kd::vec<uint, 2> uint2;
typedef kd::vec<uint, 3> uint3;
typedef kd::vec<uint, 4> uint4;

#define device
#define constant const
#define thread
#define threadgroup
#define KERNEL(name, ...)                                                                          \
    static void name(__VA_ARGS__);                                                                 \
    static void name##_run(const ::emulator::Launch &launch)                                       \
    {                                                                                              \
        ::emulator::call(name, launch);                                                            \
    }                                                                                              \
    static ::emulator::Kernel name##_kernel(#name, name##_run);                                    \
    static void name(__VA_ARGS__)
#define BUF(type, name, i) type *name
#define CBUF(type, name, i) const type *name
#define PARM(type, name, i) [[maybe_unused]] const type &name
#define TG_ARRAY(type, name, n)                                                                    \
    type(&name)[n] = *(type(*)[n])::emulator::group_array(                                         \
        [] {                                                                                       \
            static char key;                                                                       \
            return &key;                                                                           \
        }(),                                                                                       \
        sizeof(type[n]))
#define TGID (::emulator::group_id)
#define TID ((uint)::emulator::lane_index())
#define LANE (TID % 32u)
#define SGID (TID / 32u)
#define KD_INLINE inline
#define KD_UNROLL _Pragma("clang loop unroll(full)")

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
static inline constexpr mem_flags operator|(mem_flags a, mem_flags b)
{
    return (mem_flags)((int)a | (int)b);
}

static inline void threadgroup_barrier(mem_flags flags, ::emulator::Site site = ::emulator::here())
{
    ::emulator::group_barrier((int)flags & 1, (int)flags & 2, site);
}

static inline void simdgroup_barrier(mem_flags, ::emulator::Site site = ::emulator::here())
{
    ::emulator::simd_barrier(site);
}

template <class T, class F> static inline T kd_reduce(T value, F f, ::emulator::Site site)
{
    const auto *slots = ::emulator::exchange(&value, sizeof value, site);
    T values[32];
    __builtin_memcpy(values, slots->values[0], sizeof(T));
    for (int i = 0; i < 32; i++)
        __builtin_memcpy(&values[i], slots->values[i], sizeof(T));
    for (int step = 16; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            values[i] = f(values[i], values[i + step]);
    return values[0];
}

template <class T> static inline T simd_sum(T v, ::emulator::Site site = ::emulator::here())
{
    return kd_reduce(
        v, [](T a, T b) { return a + b; }, site);
}

template <class T> static inline T simd_max(T v, ::emulator::Site site = ::emulator::here())
{
    return kd_reduce(
        v, [](T a, T b) { return a < b ? b : a; }, site);
}

template <class T> static inline T simd_min(T v, ::emulator::Site site = ::emulator::here())
{
    return kd_reduce(
        v, [](T a, T b) { return b < a ? b : a; }, site);
}

template <class T>
static inline T simd_shuffle(T v, uint lane, ::emulator::Site site = ::emulator::here())
{
    const auto *slots = ::emulator::exchange(&v, sizeof v, site);
    T result;
    __builtin_memcpy(&result, slots->values[lane % 32], sizeof result);
    return result;
}

template <class T>
static inline T simd_shuffle_xor(T v, uint mask, ::emulator::Site site = ::emulator::here())
{
    return simd_shuffle(v, LANE ^ mask, site);
}

template <class T>
static inline T simd_broadcast(T v, uint lane, ::emulator::Site site = ::emulator::here())
{
    return simd_shuffle(v, lane, site);
}

#define kd_product(a, b) ((a) * (b)) // x86-64 without fused products
#define KD_MATH(name, function)                                                                    \
    static inline float name(float x)                                                              \
    {                                                                                              \
        return function(x);                                                                        \
    }
KD_MATH(kd_exp, __builtin_expf)
KD_MATH(kd_log, __builtin_logf)
KD_MATH(kd_log1p, __builtin_log1pf)
KD_MATH(kd_sin, __builtin_sinf)
KD_MATH(kd_cos, __builtin_cosf)
KD_MATH(exp2, __builtin_exp2f)
KD_MATH(sqrt, __builtin_sqrtf)
KD_MATH(rsqrt, 1.0f / __builtin_sqrtf)
KD_MATH(fabs, __builtin_fabsf)
KD_MATH(floor, __builtin_floorf)
KD_MATH(rint, __builtin_rintf)
#undef KD_MATH

static inline float fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

static inline bool isnan(float x)
{
    return x != x;
}

template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

template <class T> static inline T clamp(T x, T low, T high)
{
    return min(max(x, low), high);
}

#define INFINITY __builtin_inff()
