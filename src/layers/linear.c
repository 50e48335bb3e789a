#include "layers/linear.h"

void linear_forward(struct forward *f, const struct linear_layer *layer, const struct tensor *x,
                    const struct tensor *out)
{
    device_linear(f->device, &(struct linear_args){.linear = layer->weights, .x = *x, .out = *out});
    if (layer->shard == SHARD_ROWS)
        comm_all_reduce(f->comm, out);
}
