/* Loads the kernels of a program that was built without nvcc: source, which NVRTC compiles. */
#include "base/log.h"
#include "base/system.h"
#include "device/gpu/cuda_api.h"
#include "device/gpu/nvrtc/cuda_compile.h"
#include "device/gpu/cuda_kernels.h"

#include <stdlib.h>

/* Cached code that the driver does not take is made once more. */
static enum status load(struct gpu *gpu, const struct cuda_compiler *compiler,
                        const struct cuda_module *module, int *n_compiled, struct error *error)
{
    struct str cubin = {0};
    bool is_cached;
    enum status status = cuda_compile(compiler, module, true, &cubin, &is_cached, error);
    if (status == OK && is_cached &&
        gpu->cuda.cuModuleLoadData(&gpu->modules[gpu->n_modules], cubin.data) != CUDA_OK)
        status = cuda_compile(compiler, module, false, &cubin, &is_cached, error);
    if (status == OK && !is_cached) {
        int code = gpu->cuda.cuModuleLoadData(&gpu->modules[gpu->n_modules], cubin.data);
        if (code != CUDA_OK)
            status = cuda_fail(gpu, "cuModuleLoadData", code, error);
        *n_compiled += 1;
    }
    gpu->n_modules += status == OK;
    str_done(&cubin);
    return status;
}

enum status cuda_load_modules(struct gpu *gpu, struct error *error)
{
    struct cuda_compiler *compiler;
    int driver_version = 0, n_compiled = 0;
    double begin = system_seconds();
    CUDA_TRY(cuDriverGetVersion, &driver_version);
    gpu->modules = calloc((size_t)cuda_n_sources, sizeof *gpu->modules);
    if (!gpu->modules)
        return error_memory(error, (size_t)cuda_n_sources * sizeof *gpu->modules);
    enum status status =
        cuda_compiler_open(&compiler, gpu->capability, driver_version, error);
    for (int i = 0; i < cuda_n_sources && status == OK; i++)
        status = load(gpu, compiler, &cuda_sources[i], &n_compiled, error);
    cuda_compiler_close(compiler);
    if (status == OK && n_compiled)
        log_info("%d files of kernels were compiled in %.1f s", n_compiled,
                 system_seconds() - begin);
    return status;
}
