#include "device/gpu/metal_capture.h"
#include "device/gpu/metal_text.h"

#include "base/log.h"
#include "base/options.h"

#include <stdlib.h>

enum { FIRST = 2 /* by default: the first work is a prompt, the second a token */ };

enum status metal_capture_open(struct metal_capture *c, struct error *error)
{
    const char *at = options_environment("CSGL_METAL_CAPTURE_AT");
    c->file = options_environment("CSGL_METAL_CAPTURE");
    c->at = at ? strtol(at, NULL, 10) : FIRST;
    if (!c->file)
        return OK;
    if (c->at < 1)
        return error_set(error, ERROR_INVALID,
                         "CSGL_METAL_CAPTURE_AT is %s; it must be 1 for the first work, or more",
                         at);
    if (![[MTLCaptureManager sharedCaptureManager]
            supportsDestination:MTLCaptureDestinationGPUTraceDocument])
        return error_set(error, ERROR_UNSUPPORTED,
                         "macOS writes no traces of this program for CSGL_METAL_CAPTURE; set "
                         "MTL_CAPTURE_ENABLED=1 as well");
    return OK;
}

void metal_capture_begin(struct metal_capture *c, id<MTLCommandQueue> queue)
{
    NSError *cause = nil;
    c->n_works++;
    if (!c->file || c->n_works != c->at)
        return;
    MTLCaptureDescriptor *wanted = [MTLCaptureDescriptor new];
    wanted.captureObject = queue;
    wanted.destination = MTLCaptureDestinationGPUTraceDocument;
    wanted.outputURL = metal_url(c->file);
    c->is_running = [[MTLCaptureManager sharedCaptureManager] startCaptureWithDescriptor:wanted
                                                                                   error:&cause];
    if (!c->is_running) {
        char text[256];
        metal_text(cause, text, sizeof text);
        log_warn("%s is not written: %s", c->file, text);
    }
}

void metal_capture_end(struct metal_capture *c)
{
    if (!c->is_running)
        return;
    c->is_running = false;
    [[MTLCaptureManager sharedCaptureManager] stopCapture];
    log_info("the GPU's work number %ld is in %s", c->n_works, c->file);
}
