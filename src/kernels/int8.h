// Products of unsigned codes and signed ones, four at once.
#ifndef CSGL_KERNELS_INT8_H
#define CSGL_KERNELS_INT8_H

// sum + the products of the bytes of `a`, unsigned, and of `b`, signed.
KD_INLINE int kd_dot4(uint a, uint b, int sum)
{
#ifdef __CUDACC__
    asm("dp4a.u32.s32 %0,%1,%2,%0;" : "+r"(sum) : "r"(a), "r"(b));
#else
    KD_UNROLL for (uint i = 0; i < 4; i++) sum +=
        (int)(a >> 8 * i & 255u) * ((int)(b << (24 - 8 * i)) >> 24);
#endif
    return sum;
}

#endif
