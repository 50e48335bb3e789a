/* gpt-oss's experts as its authors published them: X_blocks U8 [..., cols/32, 16], the codes of 32
 * columns, and X_scales U8 [..., cols/32]. Row by row these are the bytes of MLX's mxfp4. */
#include "checkpoint/mxfp4.h"

#include <string.h>

enum { GROUP = 32, GROUP_BYTES = 16 };

enum status mxfp4_weight(const struct tensor *blocks, const struct tensor *scales,
                         struct weight *out, struct error *error)
{
    if (strcmp(blocks->dtype, "U8") != 0 || strcmp(scales->dtype, "U8") != 0 ||
        blocks->cols != GROUP_BYTES || blocks->bytes / GROUP_BYTES != scales->bytes ||
        scales->rows < 1 || scales->cols < 1)
        return error_set(error, ERROR_INVALID,
                         "tensors %.200s and %.200s must be U8 with %d bytes and one scale for "
                         "every %d columns",
                         blocks->name, scales->name, GROUP_BYTES, GROUP);
    *out = (struct weight){.encoding = WEIGHT_E2M1,
                           .rows = scales->rows,
                           .cols = scales->cols * GROUP,
                           .data = blocks->data,
                           .levels = {.type = LEVEL_E8M0,
                                      .bits = 4,
                                      .group = GROUP,
                                      .group_rows = 1,
                                      .scales = scales->data,
                                      .factor = 1}};
    return OK;
}
