#include "layers/mlp.h"

void mlp_forward_part(struct forward *f, const struct mlp_layer *layer,
                      const struct mlp_scratch *scratch, const struct tensor *x,
                      const struct tensor *out)
{
    int32_t cols = layer->gate_up.n_out;
    struct tensor gate_up = tensor_cols(tensor_rows(scratch->gate_up, 0, x->rows), 0, cols);
    struct tensor act = tensor_cols(tensor_rows(scratch->act, 0, x->rows), 0, cols / 2);
    linear_forward(f, &layer->gate_up, x, &gate_up);
    device_silu_mul(f->device, &(struct silu_mul_args){.gate_up = gate_up, .out = act});
    device_linear(f->device,
                  &(struct linear_args){.linear = layer->down.weights, .x = act, .out = *out});
}

void mlp_forward(struct forward *f, const struct mlp_layer *layer,
                 const struct mlp_scratch *scratch, const struct tensor *x,
                 const struct tensor *out)
{
    mlp_forward_part(f, layer, scratch, x, out);
    comm_all_reduce(f->comm, out);
}
