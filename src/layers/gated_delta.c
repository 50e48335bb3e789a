#include "layers/gated_delta.h"

static int32_t z_cols(const struct state_layout *layout)
{
    return layout->n_v_heads * layout->v_dim;
}

size_t gated_delta_scratch_bytes(const struct state_layout *layout, int32_t max_rows)
{
    if (layout->n_layers == 0)
        return 0;
    return forward_tensor_bytes(max_rows, layout->conv_channels + z_cols(layout)) +
           forward_tensor_bytes(max_rows, layout->conv_channels) +
           forward_tensor_bytes(max_rows, 2 * layout->n_v_heads);
}

struct gated_delta_scratch gated_delta_scratch_make(struct forward *f,
                                                    const struct state_layout *layout)
{
    if (layout->n_layers == 0)
        return (struct gated_delta_scratch){0};
    int32_t rows = f->n_tokens, channels = layout->conv_channels;
    return (struct gated_delta_scratch){.qkvz = forward_tensor(f, rows, channels + z_cols(layout)),
                                        .conv = forward_tensor(f, rows, channels),
                                        .gates = forward_tensor(f, rows, 2 * layout->n_v_heads)};
}

void gated_delta_forward(struct forward *f, const struct gated_delta_layer *layer,
                         const struct gated_delta_scratch *scratch, const struct tensor *x,
                         const struct tensor *out)
{
    const struct state_layout *layout = &layer->slots.layout;
    int32_t channels = layout->conv_channels, n_heads = layout->n_v_heads;

    linear_forward(f, &layer->qkvz, x, &scratch->qkvz);
    linear_forward(f, &layer->gates, x, &scratch->gates);
    device_conv1d_update(f->device,
                         &(struct conv1d_update_args){.slots = layer->slots,
                                                      .x = tensor_cols(scratch->qkvz, 0, channels),
                                                      .weight = layer->conv,
                                                      .out = scratch->conv,
                                                      .q_start = f->q_start,
                                                      .state_in = f->state_in,
                                                      .state_out = f->state_out,
                                                      .snapshots = f->snapshots});
    device_gated_delta(
        f->device, &(struct gated_delta_args){.slots = layer->slots,
                                              .qkv = scratch->conv,
                                              .b = tensor_cols(scratch->gates, 0, n_heads),
                                              .a = tensor_cols(scratch->gates, n_heads, n_heads),
                                              .rate = layer->rate,
                                              .dt_bias = layer->dt_bias,
                                              .out = *out,
                                              .q_start = f->q_start,
                                              .state_in = f->state_in,
                                              .state_out = f->state_out,
                                              .snapshots = f->snapshots});
    device_gated_norm(f->device, &(struct gated_norm_args){
                                     .x = *out,
                                     .z = tensor_cols(scratch->qkvz, channels, z_cols(layout)),
                                     .weight = layer->norm,
                                     .out = *out,
                                     .eps = layer->eps});
}
