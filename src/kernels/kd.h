// The kernel dialect: MSL and about a dozen macros, so that one source is Metal, CUDA, C++ for the
// emulator and OpenCL C++ for a check of address spaces. docs/kernels.md says how to write in it.
//
//   KERNEL(name, ...)        a kernel; its arguments, in this order:
//   BUF(type, name, i)         memory that it writes (and may read), bound at index i = 0, 1, ...
//   CBUF(type, name, i)        memory that it only reads
//   PARM(struct, name, i)      a struct of args.h, always there and always last
//   TG_ARRAY(type, name, n)  memory that the threadgroup shares
//   TGID.x/.y/.z, TID        the threadgroup's place in the grid, the thread's in the threadgroup
//   LANE, SGID               the thread's place in its simdgroup of 32, the simdgroup's number
//   KD_INLINE, KD_UNROLL     a function of the dialect; before a loop of constant length
//
//   kd_product(a, b)         a b, rounded before something is added to it
//   kd_exp, kd_log, kd_log1p, kd_sin, kd_cos   exact to a few units in the last place; exp2 need not
//   be
//
// All else is MSL: address spaces on every pointer, simd_sum, threadgroup_barrier, as_type.
#ifndef CSGL_KERNELS_KD_H
#define CSGL_KERNELS_KD_H

#define KD_KERNELS 1
#if defined(__METAL_VERSION__)
#include "kd_metal.h"
#elif defined(__CUDACC__)
#include "kd_cuda.h"
#elif defined(__OPENCL_CPP_VERSION__)
#include "kd_opencl.h"
#else
#include "kd_emulator.h"
#endif
#include "args.h"

#endif
