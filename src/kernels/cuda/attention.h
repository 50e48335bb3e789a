// What both native attentions share: scores are kept in base 2.
#ifndef CSGL_KERNELS_CUDA_ATTENTION_H
#define CSGL_KERNELS_CUDA_ATTENTION_H

#include "native.h"

#define NO_SCORE (-1.0e30f)
#define LOG2_E 1.44269504f

NATIVE float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}

#endif
