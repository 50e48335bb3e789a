#include "layers/norm.h"

void norm_forward(struct forward *f, const struct norm_layer *layer, const struct tensor *x,
                  const struct tensor *out)
{
    device_rms_norm(f->device, &(struct rms_norm_args){.x = *x,
                                                       .weight = layer->weight,
                                                       .out = *out,
                                                       .eps = layer->eps,
                                                       .plus_one = layer->plus_one});
}

void norm_forward_add(struct forward *f, const struct norm_layer *layer, const struct tensor *x,
                      const struct tensor *residual, const struct tensor *out)
{
    device_rms_norm(f->device, &(struct rms_norm_args){.x = *x,
                                                       .residual = *residual,
                                                       .weight = layer->weight,
                                                       .out = *out,
                                                       .eps = layer->eps,
                                                       .plus_one = layer->plus_one});
}
