#include "device/device_open.h"

#include "base/log.h"
#include "device/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX = 1023, MAX_NAME = 16 };

/* "DRIVER" or "DRIVER:N"; false if it is neither. */
static bool split_name(const char *name, char driver[MAX_NAME], int *index)
{
    size_t n = strcspn(name, ":");
    if (n == 0 || n >= MAX_NAME)
        return false;
    memcpy(driver, name, n);
    driver[n] = '\0';
    *index = 0;
    if (name[n] == '\0')
        return true;
    const char *digits = name + n + 1;
    size_t n_digits = strspn(digits, "0123456789");
    if (n_digits == 0 || n_digits > 4 || digits[n_digits] != '\0')
        return false;
    *index = atoi(digits);
    return *index <= MAX_INDEX;
}

/* The drivers that "auto" tries, the likeliest first. */
static const char *const auto_drivers[] = {
#ifdef __APPLE__
    "metal",
#endif
    "cuda",
};

static enum status open_auto(struct device **out, const struct cpu_options *cpu,
                             struct error *error)
{
    struct error reason;
    for (size_t i = 0; i < sizeof auto_drivers / sizeof auto_drivers[0]; i++) {
        if (gpu_device_open(out, auto_drivers[i], 0, cpu->activations, &reason) == OK) {
            log_info("--device auto: %s %s", auto_drivers[i], (*out)->name);
            return OK;
        }
        log_info("--device auto: not %s, as %s", auto_drivers[i], reason.message);
    }
    log_info("--device auto: the CPU");
    return cpu_device_open(out, cpu, error);
}

enum status device_open(struct device **out, const char *name, const struct cpu_options *cpu,
                        struct error *error)
{
    char driver[MAX_NAME];
    int index;
    *out = NULL;
    if (!name || strcmp(name, "cpu") == 0)
        return cpu_device_open(out, cpu, error);
    if (strcmp(name, "auto") == 0)
        return open_auto(out, cpu, error);
    if (!split_name(name, driver, &index))
        return error_set(
            error, ERROR_INVALID,
            "--device %s is no device; there are auto, cpu, cuda, cuda:N, metal and emulator",
            name);
    return gpu_device_open(out, driver, index, cpu->activations, error);
}

bool device_is_cpu(const struct device *device)
{
    return strcmp(device->name, "cpu") == 0;
}

enum activations device_activations(const struct device *device)
{
    return device_is_cpu(device) ? cpu_device_activations(device) : gpu_device_activations(device);
}

const char *device_activations_name(const struct device *device)
{
    static const char *const names[] = {
        [ACTIVATIONS_AUTO] = "16-bit", [ACTIVATIONS_FLOAT] = "float", [ACTIVATIONS_INT8] = "int8"};
    return names[device_activations(device)];
}
