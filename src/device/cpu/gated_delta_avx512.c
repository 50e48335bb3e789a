#include "device/cpu/vec_avx512.h"

#include "device/cpu/gated_delta_vec.h"

const struct delta_kernels delta_kernels_avx512 = {
    .normalize = normalize, .advance = advance, .replay = replay, .convolve = convolve};
