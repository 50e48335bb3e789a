/* Opening a device by the name that --device takes. */
#ifndef CSGL_DEVICE_DEVICE_OPEN_H
#define CSGL_DEVICE_DEVICE_OPEN_H

#include "device/cpu/cpu.h"
#include "device/ops.h"

/* `name`: "cpu" or NULL; "cuda", "metal" or "emulator" for the first GPU of that driver, with :N
 * behind for another; "auto": this machine's GPU, if one can be used with these activations, else
 * the CPU; the log says which and why. `cpu` describes the CPU device; its threads and levels mean
 * nothing to a GPU, whose weights all processors load. Ends with device->table->close. */
enum status device_open(struct device **out, const char *name, const struct cpu_options *cpu,
                        struct error *error);

bool device_is_cpu(const struct device *device);

/* The mode that the device computes in; AUTO is that of a GPU whose linears round their inputs to
 * 16 bits. Its name for people: "int8", "16-bit" or "float". */
enum activations device_activations(const struct device *device);
const char *device_activations_name(const struct device *device);

#endif
