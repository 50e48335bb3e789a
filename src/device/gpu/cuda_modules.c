/* The kernels of a CUDA GPU: the fat binaries that cmake/cuda.cmake had nvcc make of src/kernels,
 * machine code for some architectures and PTX, which the driver compiles for the others. */
#include "device/gpu/cuda_api.h"
#include "device/gpu/cuda_kernels.h"

#include <stdlib.h>

enum status cuda_load_modules(struct gpu *gpu, struct error *error)
{
    gpu->modules = calloc((size_t)cuda_n_modules, sizeof *gpu->modules);
    if (!gpu->modules)
        return error_memory(error, (size_t)cuda_n_modules * sizeof *gpu->modules);
    for (; gpu->n_modules < cuda_n_modules; gpu->n_modules++)
        CUDA_TRY(cuModuleLoadData, &gpu->modules[gpu->n_modules], cuda_modules[gpu->n_modules]);
    return OK;
}
