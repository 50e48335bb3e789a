/* The kernels as Metal source, one a file of src/kernels with its headers in it; the array is made
 * by cmake/metal.cmake. */
#ifndef CSGL_DEVICE_GPU_METAL_KERNELS_H
#define CSGL_DEVICE_GPU_METAL_KERNELS_H

#include <stddef.h>

struct metal_source {
    const char *name; /* of the file, without its ending */
    const unsigned char *text;
    const size_t *bytes;
};

extern const struct metal_source metal_sources[];
extern const int metal_n_sources;

#endif
