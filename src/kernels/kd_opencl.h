// The dialect as C++ for OpenCL, which is never run: its compiler checks address spaces as strictly
// as Apple's. Vectors are OpenCL's own.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define KERNEL(name, ...) __kernel void name(__VA_ARGS__)
#define BUF(type, name, i) __global type *name
#define CBUF(type, name, i) __global const type *name
#define PARM(type, name, i) __constant type &name
#define TG_ARRAY(type, name, n) __local type name[n]
uint3 kd_group();
uint kd_index();
#define TGID kd_group()
#define TID kd_index()
#define LANE kd_index()
#define SGID kd_index()
#define KD_INLINE inline
#define KD_UNROLL

typedef uint uint32_t;
typedef int int32_t;
typedef ulong uint64_t;

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
template <class T> T simd_sum(T);
template <class T> T simd_max(T);
template <class T> T simd_min(T);
template <class T> T simd_shuffle(T, uint);
template <class T> T simd_shuffle_xor(T, uint);
template <class T> T simd_broadcast(T, uint);
template <class To, class From> To as_type(From from)
{
    return __builtin_astype(from, To);
}
#define float2(...) convert_float2(__VA_ARGS__)
#define float4(...) convert_float4(__VA_ARGS__)
#define kd_product(a, b) ((a) * (b))
#define kd_exp exp
#define kd_log log
#define kd_log1p log1p
#define kd_sin sin
#define kd_cos cos
