#include "layers/linear.h"

static void multiply(struct forward *f, const struct linear *weights, const struct tensor *x,
                     const struct tensor *out, int32_t first_out, int32_t n_out)
{
    device_linear(f->device, &(struct linear_args){.linear = weights,
                                                   .x = *x,
                                                   .out = tensor_cols(*out, first_out, n_out)});
}

void linear_forward(struct forward *f, const struct linear_layer *layer, const struct tensor *x,
                    const struct tensor *out)
{
    int32_t n_first = layer->n_others ? layer->others[0].first_out : layer->n_out;
    multiply(f, layer->weights, x, out, 0, n_first);
    for (int i = 0; i < layer->n_others; i++) {
        const struct linear_rest *rest = &layer->others[i];
        multiply(f, rest->weights, x, out, rest->first_out, rest->n_out);
    }
    if (layer->shard == SHARD_ROWS)
        comm_all_reduce(f->comm, out);
}
