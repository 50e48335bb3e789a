/* What every device asks of a KV layout. */
#ifndef CSGL_DEVICE_KV_LAYOUT_H
#define CSGL_DEVICE_KV_LAYOUT_H

#include "device/ops.h"

#include <stdbool.h>

/* Float types, I8 and, if has_int4, I4, heads of an even size up to max_dim, pages of a power of
 * two, and n_q_heads that share the KV heads evenly; else an error that names `device` ("CPU",
 * "GPU"). */
enum status kv_layout_check(const struct kv_layout *layout, int32_t n_q_heads, int32_t max_dim,
                            bool has_int4, const char *device, struct error *error);

#endif
