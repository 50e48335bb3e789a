#include "device/cpu/vec_avx2.h"

#include "device/cpu/rows_vec.h"

const struct row_kernels row_kernels_avx2 = ROW_KERNELS;
