/* In the place of the emulator where it is not built. */
#include "device/gpu/driver.h"

static enum status none_open(int index, struct gpu **out, struct error *error)
{
    (void)index;
    *out = NULL;
    return error_set(error, ERROR_UNSUPPORTED,
                     "this csgl has no emulator; build it with -DCSGL_EMULATOR=ON");
}

const struct gpu_driver gpu_driver_emulator = {.name = "emulator", .open = none_open};
