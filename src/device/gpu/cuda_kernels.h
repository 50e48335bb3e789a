/* The kernels of src/kernels in the program, one file each: fat binaries where nvcc was there when
 * it was built, else CUDA source with its headers in it. The arrays are made by cmake/cuda.cmake. */
#ifndef CSGL_DEVICE_GPU_CUDA_KERNELS_H
#define CSGL_DEVICE_GPU_CUDA_KERNELS_H

#include <stddef.h>

struct cuda_module {
    const char *name; /* of the file */
    const unsigned char *data;
    const size_t *bytes;
};

extern const struct cuda_module cuda_binaries[], cuda_sources[];
extern const int cuda_n_binaries, cuda_n_sources;

#endif
