#include "device/cpu/measure_neon.h"

const struct measure_kernels cpu_measure_dotprod = MEASURE_KERNELS;
