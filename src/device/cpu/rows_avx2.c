#include "device/cpu/vec_avx2.h"

#include "device/cpu/rows_vec.h"

const struct row_kernels row_kernels_avx2 = {
    .rms_norm = rms_norm, .rotate = rotate, .silu_mul = silu_mul, .sigmoid_mul = sigmoid_mul};
