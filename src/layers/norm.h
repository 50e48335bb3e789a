/* RMSNorm with the residual addition that precedes it. */
#ifndef CSGL_LAYERS_NORM_H
#define CSGL_LAYERS_NORM_H

#include "layers/forward.h"

struct norm_layer {
    struct tensor weight; /* [1, H] */
    float eps;
    bool plus_one; /* the file holds w - 1 */
};

/* out = norm(x). */
void norm_forward(struct forward *f, const struct norm_layer *layer, const struct tensor *x,
                  const struct tensor *out);

/* residual += x; out = norm(residual). */
void norm_forward_add(struct forward *f, const struct norm_layer *layer, const struct tensor *x,
                      const struct tensor *residual, const struct tensor *out);

#endif
