#include "device/cpu/linear_int8_neon.h"

const struct linear_kernels linear_kernels_dotprod = {
    .tile_rows = tile_rows,
    .pass_bytes = LINEAR_PASS_BYTES,
    .prepare = linear_prepare_neon,
    .scratch_bytes = scratch_bytes,
    .multiply = multiply,
};
