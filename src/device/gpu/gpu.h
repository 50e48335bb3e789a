/* The GPU device: every op as a dispatch of a kernel of src/kernels, for any driver. What the rest
 * of csgl may know of it. */
#ifndef CSGL_DEVICE_GPU_GPU_H
#define CSGL_DEVICE_GPU_GPU_H

#include "base/error.h"
#include "device/ops.h"

struct gpu_driver;

/* Opens GPU `index` of the driver called `name` ("cuda", "metal", "emulator"); ends with
 * device->table->close. */
enum status gpu_device_open(struct device **out, const char *name, int index,
                            enum activations activations, struct error *error);

/* The mode in force; AUTO: linears round their inputs to 16 bits. */
enum activations gpu_device_activations(const struct device *device);

#endif
