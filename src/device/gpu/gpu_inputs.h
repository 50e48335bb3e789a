/* The prepared inputs of native linears, and the norms and activations that may write them. */
#ifndef CSGL_DEVICE_GPU_GPU_INPUTS_H
#define CSGL_DEVICE_GPU_GPU_INPUTS_H

#include "device/gpu/gpu_device.h"

/* For native linears, before anything else of theirs is queued: whether gpu->inputs will have x in
 * the form p. Otherwise the caller queues what writes it. */
bool gpu_has_inputs(struct gpu_device *gpu, const struct tensor *x, const struct kd_inputs *p);

/* Where they lie, in the form p: values or codes, sums, factors or scales. */
void gpu_input_ranges(const struct gpu_device *gpu, const struct kd_inputs *p,
                      struct gpu_range to[3]);

#endif
