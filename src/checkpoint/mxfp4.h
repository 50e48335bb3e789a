/* Weights of quant_method mxfp4: X_blocks and X_scales together are the weight X. */
#ifndef CSGL_CHECKPOINT_MXFP4_H
#define CSGL_CHECKPOINT_MXFP4_H

#include "checkpoint/tensors.h"

#define MXFP4_BLOCKS "_blocks"
#define MXFP4_SCALES "_scales"

/* Leading dimensions are folded into rows. ERROR_INVALID where types or shapes do not agree. */
enum status mxfp4_weight(const struct tensor *blocks, const struct tensor *scales,
                         struct weight *out, struct error *error);

#endif
