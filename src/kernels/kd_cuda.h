// The dialect for CUDA, nvcc or NVRTC, sm_80 and later. Loads of half vectors are slow there: load
// uint2 or uint4 and use as_type.
#ifndef __CUDACC_RTC__
#include <stdint.h>
#include <sys/types.h> // ushort, uint, ulong
#else
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long uint64_t;
#define __builtin_memcpy memcpy // which NVRTC does know
#endif
typedef unsigned char uchar;

// What the dialect does with half values; cuda_fp16.h is not among NVRTC's own headers.
struct half {
    ushort bits;
    half() = default;
    __device__ __forceinline__ explicit half(float value)
    {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    __device__ __forceinline__ operator float() const
    {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

#define KD_VEC __device__ __forceinline__
#include "kd_vec.h"
using kd::as_type;
using kd::dot;
#define float2 kd::vec<float, 2>
#define float4 kd::vec<float, 4>
#define half2 kd::vec<half, 2>
#define half4 kd::vec<half, 4>
#define uint2 kd::vec<uint, 2>
#define uint4 kd::vec<uint, 4>

// CUDA spells __device__ with an attribute called device, which the qualifier below would erase.
#undef __device__
#define KD_INLINE __attribute__((__device__)) inline __attribute__((always_inline))
#define device
#define constant const
#define thread
#define threadgroup
// A kernel may be started while the one before it still runs (programmatic dependent launch): it
// lets the next one start likewise, and waits until all before it are done. Its body is a function
// of its own, so that no load of what they write is moved before the wait: a parameter of a kernel
// that is __restrict__ may be read at any time. kd_waits_NAME tells the driver so.
KD_INLINE void kd_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KD_WAITS(name) extern "C" { __attribute__((__device__)) uchar kd_waits_##name = 1; }
#else
#define KD_WAITS(name)
#endif
#define KERNEL(name, ...)                                                                          \
    KD_WAITS(name)                                                                                 \
    KD_INLINE void kd_body_##name(KD_EACH(KD_OF_BODY_, __VA_ARGS__));                              \
    extern "C" __global__ void name(KD_EACH(KD_OF_KERNEL_, __VA_ARGS__))                           \
    {                                                                                              \
        kd_wait();                                                                                 \
        kd_body_##name(KD_EACH(KD_NAME_OF_, __VA_ARGS__));                                         \
    }                                                                                              \
    KD_INLINE void kd_body_##name(KD_EACH(KD_OF_BODY_, __VA_ARGS__))
#define KD_OF_BODY_BUF(type, name, i) type *__restrict__ name
#define KD_OF_BODY_CBUF(type, name, i) const type *name
#define KD_OF_BODY_PARM(type, name, i) const type &name
#define KD_OF_KERNEL_BUF(type, name, i) type *name
#define KD_OF_KERNEL_CBUF(type, name, i) const type *name
#define KD_OF_KERNEL_PARM(type, name, i) const __grid_constant__ type name
#define KD_NAME_OF_BUF(type, name, i) name
#define KD_NAME_OF_CBUF(type, name, i) name
#define KD_NAME_OF_PARM(type, name, i) name
// KD_EACH(P, BUF(...), PARM(...)) is P##BUF(...), P##PARM(...): up to 16 arguments. BUF, CBUF and
// PARM themselves are no macros, or they would be expanded first.
#define KD_EACH(p, ...)                                                                            \
    KD_PICK(__VA_ARGS__, KD_E16, KD_E15, KD_E14, KD_E13, KD_E12, KD_E11, KD_E10, KD_E9, KD_E8,     \
            KD_E7, KD_E6, KD_E5, KD_E4, KD_E3, KD_E2, KD_E1)(p, __VA_ARGS__)
#define KD_PICK(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, q, name, ...) name
#define KD_E1(p, a) p##a
#define KD_E2(p, a, ...) p##a, KD_E1(p, __VA_ARGS__)
#define KD_E3(p, a, ...) p##a, KD_E2(p, __VA_ARGS__)
#define KD_E4(p, a, ...) p##a, KD_E3(p, __VA_ARGS__)
#define KD_E5(p, a, ...) p##a, KD_E4(p, __VA_ARGS__)
#define KD_E6(p, a, ...) p##a, KD_E5(p, __VA_ARGS__)
#define KD_E7(p, a, ...) p##a, KD_E6(p, __VA_ARGS__)
#define KD_E8(p, a, ...) p##a, KD_E7(p, __VA_ARGS__)
#define KD_E9(p, a, ...) p##a, KD_E8(p, __VA_ARGS__)
#define KD_E10(p, a, ...) p##a, KD_E9(p, __VA_ARGS__)
#define KD_E11(p, a, ...) p##a, KD_E10(p, __VA_ARGS__)
#define KD_E12(p, a, ...) p##a, KD_E11(p, __VA_ARGS__)
#define KD_E13(p, a, ...) p##a, KD_E12(p, __VA_ARGS__)
#define KD_E14(p, a, ...) p##a, KD_E13(p, __VA_ARGS__)
#define KD_E15(p, a, ...) p##a, KD_E14(p, __VA_ARGS__)
#define KD_E16(p, a, ...) p##a, KD_E15(p, __VA_ARGS__)
#define TG_ARRAY(type, name, n) __shared__ __align__(16) type name[n]
#define TGID blockIdx
#define TID threadIdx.x
#define LANE (threadIdx.x & 31u)
#define SGID (threadIdx.x >> 5)
#define KD_UNROLL _Pragma("unroll")

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
KD_INLINE mem_flags operator|(mem_flags a, mem_flags b)
{
    return (mem_flags)((int)a | (int)b);
}

KD_INLINE void threadgroup_barrier(mem_flags)
{
    __syncthreads();
}

KD_INLINE void simdgroup_barrier(mem_flags)
{
    __syncwarp();
}

template <class T> KD_INLINE T simd_shuffle(T v, uint lane)
{
    return __shfl_sync(0xFFFFFFFFu, v, lane);
}

template <class T> KD_INLINE T simd_shuffle_xor(T v, uint mask)
{
    return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}

template <class T> KD_INLINE T simd_broadcast(T v, uint lane)
{
    return simd_shuffle(v, lane);
}

template <class T> KD_INLINE T simd_sum(T v)
{
    KD_UNROLL for (uint step = 16; step > 0; step /= 2) v += simd_shuffle_xor(v, step);
    return v;
}

template <class T> KD_INLINE T simd_max(T v)
{
    KD_UNROLL for (uint step = 16; step > 0; step /= 2) v = max(v, simd_shuffle_xor(v, step));
    return v;
}

template <class T> KD_INLINE T simd_min(T v)
{
    KD_UNROLL for (uint step = 16; step > 0; step /= 2) v = min(v, simd_shuffle_xor(v, step));
    return v;
}

template <class T> KD_INLINE T clamp(T x, T low, T high)
{
    return min(max(x, low), high);
}

#ifndef INFINITY
#define INFINITY __int_as_float(0x7F800000)
#endif

#define kd_product __fmul_rn
#define kd_exp expf
#define kd_log logf
#define kd_log1p log1pf
#define kd_sin sinf
#define kd_cos cosf
