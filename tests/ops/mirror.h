/* Makes a device whose memory the CPU does not reach testable as if it did: each buffer has a
 * mirror in the test's memory, which is copied to the device before every op and back after it. */
#ifndef CSGL_TESTS_OPS_MIRROR_H
#define CSGL_TESTS_OPS_MIRROR_H

#include "device/ops.h"

/* From now on, until it is closed, the device's buffers have mirrors. One device at a time. */
void mirror_device(struct device *device);

#endif
