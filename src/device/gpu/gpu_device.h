/* Inside the GPU device: its state, and how an op becomes a dispatch. */
#ifndef CSGL_DEVICE_GPU_GPU_DEVICE_H
#define CSGL_DEVICE_GPU_GPU_DEVICE_H

#include "device/gpu/driver.h"
#include "device/gpu/gpu.h"
#include "kernels/args.h"

/* The kernels by name. */
#define GPU_KERNELS(X)                                                                             \
    X(embed)                                                                                       \
    X(rms_norm)                                                                                    \
    X(rope_angles)                                                                                 \
    X(norm_rope)                                                                                   \
    X(silu_mul)                                                                                    \
    X(sigmoid_mul)                                                                                 \
    X(gated_norm)                                                                                  \
    X(gather)                                                                                      \
    X(moe_route)

#define GPU_KERNEL_ENUM(name) GPU_KERNEL_##name,
enum gpu_kernel_name { GPU_KERNELS(GPU_KERNEL_ENUM) N_GPU_KERNELS };
#undef GPU_KERNEL_ENUM

struct gpu_device {
    struct device device; /* first, so that a struct device * is one of these */
    const struct gpu_driver *driver;
    struct gpu *gpu;
    char name[64];
    const struct gpu_kernel *kernels[N_GPU_KERNELS];
    bool is_queued; /* something was dispatched since the last wait */
};

static inline struct gpu_device *gpu_device_of(struct device *device)
{
    return (struct gpu_device *)(void *)device;
}

/* A tensor's memory from its first element on; none: a buffer that the kernel does not touch. */
static inline struct gpu_range gpu_tensor(const struct tensor *t)
{
    if (!t->buffer)
        return (struct gpu_range){0};
    return (struct gpu_range){t->buffer->handle, t->offset};
}

/* Queues `groups` (x, y, z) threadgroups of n_threads; nothing if one of them is 0. What is queued
 * runs in order. `args` is the kernel's struct. */
struct gpu_groups {
    int64_t x, y, z;
};
void gpu_run(struct gpu_device *gpu, enum gpu_kernel_name kernel, const struct gpu_range *buffers,
             int n_buffers, const void *args, size_t args_bytes, struct gpu_groups groups,
             uint32_t n_threads);

/* Memory of the device with `bytes` of the caller's in it. */
enum status gpu_upload(struct gpu_device *gpu, const void *from, size_t bytes,
                       struct gpu_memory **out, struct error *error);

/* gpu_rows.c */
void gpu_embed(struct device *device, const struct embed_args *args);
void gpu_rms_norm(struct device *device, const struct rms_norm_args *args);
void gpu_rope_angles(struct device *device, const struct rope_angles_args *args);
void gpu_qk_norm_rope(struct device *device, const struct qk_norm_rope_args *args);
void gpu_silu_mul(struct device *device, const struct silu_mul_args *args);
void gpu_sigmoid_mul(struct device *device, const struct sigmoid_mul_args *args);
void gpu_gated_norm(struct device *device, const struct gated_norm_args *args);
void gpu_gather(struct device *device, const struct gather_args *args);
void gpu_moe_route(struct device *device, const struct moe_route_args *args);
enum status gpu_embedding_load(struct device *device, const struct weight *weight,
                               struct embedding **out, struct error *error);
void gpu_embedding_free(struct device *device, struct embedding *embedding);

#endif
