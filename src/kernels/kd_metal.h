// The dialect for Apple GPUs.
#include <metal_stdlib>
using namespace metal;

#define KERNEL(name, ...) kernel void name(__VA_ARGS__)
#define BUF(type, name, i) device type *name [[buffer(i)]]
#define CBUF(type, name, i) device const type *name [[buffer(i)]]
#define PARM(type, name, i)                                                                        \
    constant type &name [[buffer(i)]], uint3 kd_group [[threadgroup_position_in_grid]],            \
        uint kd_thread [[thread_index_in_threadgroup]],                                            \
        uint kd_lane [[thread_index_in_simdgroup]],                                                \
        uint kd_simd [[simdgroup_index_in_threadgroup]]
#define TG_ARRAY(type, name, n) threadgroup type name[n]
#define TGID kd_group
#define TID kd_thread
#define LANE kd_lane
#define SGID kd_simd
#define KD_INLINE inline
#define KD_UNROLL _Pragma("clang loop unroll(full)")
#define kd_exp metal::precise::exp
#define kd_log metal::precise::log
#define kd_sin metal::precise::sin
#define kd_cos metal::precise::cos
KD_INLINE float kd_product(float a, float b)
{
#pragma clang fp contract(off)
    return a * b;
}
KD_INLINE float kd_log1p(float x) // Kahan's, as Metal has none
{
    const float u = 1.0f + x;
    return u == 1.0f ? x : metal::precise::log(u) * x / (u - 1.0f);
}
