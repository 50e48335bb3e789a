/* Traces for Xcode: CSGL_METAL_CAPTURE=FILE.gputrace writes the GPU's work between two waits, the
 * second, or the one whose number CSGL_METAL_CAPTURE_AT says. */
#ifndef CSGL_DEVICE_GPU_METAL_CAPTURE_H
#define CSGL_DEVICE_GPU_METAL_CAPTURE_H

#include "base/error.h"

#include <stdbool.h>

#import <Metal/Metal.h>

struct metal_capture {
    const char *file; /* to write, or NULL */
    long at, n_works;
    bool is_running;
};

enum status metal_capture_open(struct metal_capture *capture, struct error *error);
/* Before the first command buffer of some work, and when all of it has ended. */
void metal_capture_begin(struct metal_capture *capture, id<MTLCommandQueue> queue);
void metal_capture_end(struct metal_capture *capture);

#endif
