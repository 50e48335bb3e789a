/* The fat binaries of src/kernels, one a file; the array is made by cmake/cuda.cmake. */
#ifndef CSGL_DEVICE_GPU_CUDA_KERNELS_H
#define CSGL_DEVICE_GPU_CUDA_KERNELS_H

#include <stddef.h>

enum { CUDA_MAX_MODULES = 64 };

extern const unsigned char *const cuda_modules[];
extern const int cuda_n_modules;

#endif
