// What the kernels for NVIDIA GPUs alone share: matrix instructions, asynchronous copies, orders.
// Unlike the dialect's (kd.h) these files are plain CUDA, for compute capability 8.0 and later. The
// layouts of fragments are those of the PTX ISA, "Warp-level matrix instructions": of a warp, lane
// 4 g + t has rows g and g + 8 of A and C, columns 2 t, 2 t + 1 of C, and column g of B.
#ifndef CSGL_KERNELS_CUDA_NATIVE_H
#define CSGL_KERNELS_CUDA_NATIVE_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#endif
#define KD_KERNELS 1 // args.h needs no more than these types
#include "../args.h"

#define NATIVE __device__ __forceinline__
#define EVERY_LANE 0xFFFFFFFFu

// Tells the driver that kernel `name` waits for what it reads, as the dialect's do (../kd_cuda.h):
// it may be started while the dispatch before it still runs. All its threads must wait.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KD_WAITS(name)                                                                             \
    extern "C" {                                                                                   \
    __device__ uint8_t kd_waits_##name = 1;                                                        \
    }
#else
#define KD_WAITS(name)
#endif

// The dispatch behind this one may start; what it reads of ours it waits for.
NATIVE void native_let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What earlier dispatches wrote can be read, with ordinary loads, from here on.
NATIVE void native_wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// c += a b of 16 x 16 and 16 x 8 values, f16 or bf16.
template <bool IS_BF16>
NATIVE void native_mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                       uint32_t b0, uint32_t b1)
{
    if (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d = a b of codes of 8 bits, 16 x 32 unsigned and 32 x 8 signed, or half as many of either.
// Of each the lane has four that follow each other: from 4 t on in a0 (row g), a1 (row g + 8) and
// b0, from 16 + 4 t on in a2, a3 and b1.
NATIVE void native_mma_int8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                            uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

NATIVE void native_mma_int8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(0));
}

// Two values rounded to f16 or bf16, the first in the low half.
template <bool IS_BF16> NATIVE uint32_t native_pack(float low, float high)
{
    uint32_t word;
    if (IS_BF16)
        asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

template <bool IS_BF16> NATIVE float2 native_unpack(uint32_t word)
{
    if (IS_BF16)
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
    float2 pair;
    asm("{.reg .f16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h;}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
}

// 16 bytes that are read once and never written: they pass the L1 cache by.
NATIVE uint4 native_stream(const void *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// A word of the threadgroup's memory, four, and two.
NATIVE uint32_t native_shared_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

NATIVE uint4 native_shared_load4(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

NATIVE void native_shared_store(uint32_t at, uint32_t first, uint32_t second)
{
    asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(at), "r"(first), "r"(second) : "memory");
}

NATIVE uint32_t native_shared(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

// Starts a copy of 16 bytes into the threadgroup's memory.
NATIVE void native_copy(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}

// The same, of zeros unless is_there.
NATIVE void native_copy_if(uint32_t to, const void *from, bool is_there)
{
    const uint32_t bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// What was started since the last such call is one group; at most N younger groups stay open.
NATIVE void native_copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> NATIVE void native_copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
