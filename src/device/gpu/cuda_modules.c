/* Loads the kernels of a program that was built with nvcc: fat binaries, which hold machine code
 * for some architectures and PTX, which the driver compiles for the others. */
#include "device/gpu/cuda_api.h"
#include "device/gpu/cuda_kernels.h"

#include <stdlib.h>

enum status cuda_load_modules(struct gpu *gpu, struct error *error)
{
    gpu->modules = calloc((size_t)cuda_n_binaries, sizeof *gpu->modules);
    if (!gpu->modules)
        return error_memory(error, (size_t)cuda_n_binaries * sizeof *gpu->modules);
    for (; gpu->n_modules < cuda_n_binaries; gpu->n_modules++)
        CUDA_TRY(cuModuleLoadData, &gpu->modules[gpu->n_modules],
                 cuda_binaries[gpu->n_modules].data);
    return OK;
}
