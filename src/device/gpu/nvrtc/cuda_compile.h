/* Compiles CUDA source with NVRTC, which is opened when it is needed, and keeps the machine code
 * among the user's cached files. Needs no GPU. */
#ifndef CSGL_DEVICE_GPU_CUDA_COMPILE_H
#define CSGL_DEVICE_GPU_CUDA_COMPILE_H

#include "base/error.h"
#include "base/str.h"
#include "device/gpu/cuda_kernels.h"

#include <stdbool.h>

struct cuda_compiler;

/* For GPUs of `capability` (90: 9.0) under this driver. ERROR_UNSUPPORTED where there is no NVRTC;
 * *out is NULL then. */
enum status cuda_compiler_open(struct cuda_compiler **out, int capability, int driver_version,
                               struct error *error);
void cuda_compiler_close(struct cuda_compiler *compiler);

/* The machine code of a module that is source, into `out` (cleared first). A cached file of the
 * same source, options, compiler and driver is taken instead if may_be_cached and nobody else may
 * write to it; what is compiled is cached, if that is possible. */
enum status cuda_compile(const struct cuda_compiler *compiler, const struct cuda_module *module,
                         bool may_be_cached, struct str *out, bool *is_cached,
                         struct error *error);

#endif
