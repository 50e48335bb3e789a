/* In the place of the driver for CUDA where it is not built. */
#include "device/gpu/driver.h"

static enum status none_open(int index, struct gpu **out, struct error *error)
{
    (void)index;
    *out = NULL;
    return error_set(error, ERROR_UNSUPPORTED, "this csgl is built without CUDA; use --device cpu");
}

const struct gpu_driver gpu_driver_cuda = {.name = "cuda", .open = none_open};
