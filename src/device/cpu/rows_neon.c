#include "device/cpu/vec_neon.h"

#include "device/cpu/rows_vec.h"

const struct row_kernels row_kernels_neon = ROW_KERNELS;
