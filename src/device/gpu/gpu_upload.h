/* Memory of the GPU that the CPU fills: all processors make one piece of it while the piece before
 * is copied. */
#ifndef CSGL_DEVICE_GPU_GPU_UPLOAD_H
#define CSGL_DEVICE_GPU_GPU_UPLOAD_H

#include "device/gpu/gpu_device.h"

enum { GPU_UPLOAD_SECTIONS = 3 };

/* An array of items, from an offset on. */
struct gpu_section {
    size_t at, item_bytes; /* 0 bytes: there is none */
};

/* Item i of each section is made by one call, on any thread. It fills to[s] [item_bytes]; scratch
 * [scratch_bytes] is the thread's own and aligned to 64 bytes. Both hold anything before. */
typedef void (*gpu_make_item)(void *context, int64_t i, uint8_t *scratch,
                              uint8_t *const to[GPU_UPLOAD_SECTIONS]);

struct gpu_upload {
    struct gpu_range to;
    struct gpu_section sections[GPU_UPLOAD_SECTIONS];
    int64_t n_items;
    size_t scratch_bytes;
    gpu_make_item make;
    void *context;
};

/* Returns when the last piece is copied. */
enum status gpu_upload(struct gpu_device *gpu, const struct gpu_upload *upload,
                       struct error *error);

/* Ends the threads, if there are any. */
void gpu_upload_done(struct gpu_device *gpu);

#endif
