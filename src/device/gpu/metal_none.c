/* In the place of the driver for Metal where it is not built. */
#include "device/gpu/driver.h"

static enum status none_open(int index, struct gpu **out, struct error *error)
{
    (void)index;
    *out = NULL;
    return error_set(error, ERROR_UNSUPPORTED,
                     "this csgl is built without Metal, which macOS alone has; use --device cpu");
}

const struct gpu_driver gpu_driver_metal = {.name = "metal", .open = none_open};
