#include "device/cpu/vec_avx2.h"

#include "device/cpu/gated_delta_vec.h"

const struct delta_kernels delta_kernels_avx2 = {
    .normalize = normalize, .advance = advance, .replay = replay, .convolve = convolve};
