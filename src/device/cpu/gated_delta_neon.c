#include "device/cpu/vec_neon.h"

#include "device/cpu/gated_delta_vec.h"

const struct delta_kernels delta_kernels_neon = {
    .normalize = normalize, .advance = advance, .replay = replay, .convolve = convolve};
