#include "layers/mlp.h"

void mlp_forward(struct forward *f, const struct mlp_layer *layer,
                 const struct mlp_scratch *scratch, const struct tensor *x,
                 const struct tensor *out)
{
    struct tensor gate_up = tensor_rows(scratch->gate_up, 0, x->rows);
    struct tensor act = tensor_rows(scratch->act, 0, x->rows);
    linear_forward(f, &layer->gate_up, x, &gate_up);
    device_silu_mul(f->device, &(struct silu_mul_args){.gate_up = gate_up, .out = act});
    linear_forward(f, &layer->down, &act, out);
}
