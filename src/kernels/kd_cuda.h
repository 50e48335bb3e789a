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
#endif
typedef unsigned char uchar;
#include <cuda_fp16.h>

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
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define BUF(type, name, i) type *__restrict__ name
#define CBUF(type, name, i) const type *__restrict__ name
#define PARM(type, name, i) const __grid_constant__ type name
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

#define kd_exp expf
#define kd_log logf
#define kd_log1p log1pf
#define kd_sin sinf
#define kd_cos cosf
