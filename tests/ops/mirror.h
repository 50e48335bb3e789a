/* Makes a device whose memory the CPU does not reach testable as if it did: each buffer has a
 * mirror in the test's memory, which is copied to the device before every op and back after it. */
#ifndef CSGL_TESTS_OPS_MIRROR_H
#define CSGL_TESTS_OPS_MIRROR_H

#include "device/ops.h"

/* From now on, until it is closed, the device's buffers have mirrors. One device at a time. */
void mirror_device(struct device *device);

/* A buffer of another device or of none, that the CPU reaches, becomes one of this device with its
 * memory as the mirror, until it is given back. Nothing happens to a device without mirrors. */
void mirror_lend(struct device *device, struct buffer *buffer);
void mirror_give_back(struct device *device, struct buffer *buffer);

#endif
