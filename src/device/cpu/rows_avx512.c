#include "device/cpu/vec_avx512.h"

#include "device/cpu/rows_vec.h"

const struct row_kernels row_kernels_avx512 = ROW_KERNELS;
