/* Attention by the shared kernel that reads K and V once for several query heads, over several
 * threadgroups a row where there are few rows. */
#ifndef CSGL_DEVICE_GPU_GPU_SPLIT_H
#define CSGL_DEVICE_GPU_GPU_SPLIT_H

#include "device/gpu/gpu_device.h"

/* Takes the memory for the parts of a step's rows, once a device; gpu_split_done gives it back. */
enum status gpu_split_reserve(struct gpu_device *gpu, struct error *error);
size_t gpu_split_bytes(void); /* what that takes */
void gpu_split_done(struct gpu_device *gpu);

/* `buffers` and `shape` are those of the kernel paged_attention; may_split: these rows alone are
 * the step's. False, and nothing is queued, where head size, page size or places in memory are not
 * what the kernel reads. */
bool gpu_split_attention(struct gpu_device *gpu, const struct paged_attention_args *args,
                         const struct gpu_range buffers[7], const struct kd_attention *shape,
                         bool may_split);

#endif
