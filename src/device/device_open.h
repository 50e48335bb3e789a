/* Opening a device by the name that --device takes. */
#ifndef CSGL_DEVICE_DEVICE_OPEN_H
#define CSGL_DEVICE_DEVICE_OPEN_H

#include "device/cpu/cpu.h"
#include "device/ops.h"

/* `name`: "cpu" or NULL; "cuda", "metal" or "emulator" for the first GPU of that driver, with :N
 * behind for another; "auto": this machine's GPU, if one can be used and int8 activations are not
 * asked for, else the CPU; the log says which and why. `cpu` describes the CPU device; int8
 * activations are refused for a GPU, and its threads and levels mean nothing there: all processors
 * load a GPU's weights. Ends with device->table->close. */
enum status device_open(struct device **out, const char *name, const struct cpu_options *cpu,
                        struct error *error);

bool device_is_cpu(const struct device *device);

/* The mode that the device computes in, never AUTO. */
enum activations device_activations(const struct device *device);

#endif
