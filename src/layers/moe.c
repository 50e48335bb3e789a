#include "layers/moe.h"

static int32_t shared_cols(const struct moe_shape *shape)
{
    return shape->has_shared ? shape->hidden : 0;
}

size_t moe_scratch_bytes(const struct moe_shape *shape, int32_t max_rows)
{
    if (shape->n_experts == 0)
        return 0;
    return forward_tensor_bytes(max_rows, shape->n_experts + 1) +
           2 * forward_tensor_bytes(max_rows, shape->top_k) +
           forward_tensor_bytes(max_rows, shared_cols(shape));
}

struct moe_scratch moe_scratch_make(struct forward *f, const struct moe_shape *shape, int32_t rows)
{
    if (shape->n_experts == 0)
        return (struct moe_scratch){0};
    struct moe_scratch scratch = {.logits = forward_tensor(f, rows, shape->n_experts + 1),
                                  .experts = forward_tensor(f, rows, shape->top_k),
                                  .weights = forward_tensor(f, rows, shape->top_k),
                                  .shared = forward_tensor(f, rows, shared_cols(shape))};
    scratch.experts.dtype = DTYPE_I32;
    return scratch;
}

static struct tensor part_of(const struct tensor *t, int32_t rows, int32_t cols)
{
    return tensor_cols(tensor_rows(*t, 0, rows), 0, cols);
}

void moe_forward(struct forward *f, const struct moe_layer *layer,
                 const struct moe_scratch *scratch, const struct mlp_scratch *mlp,
                 const struct tensor *x, const struct tensor *out)
{
    int32_t rows = x->rows, n = layer->n_experts;
    struct tensor logits = part_of(&scratch->logits, rows, layer->router.n_out);
    struct tensor experts = part_of(&scratch->experts, rows, layer->top_k);
    struct tensor weights = part_of(&scratch->weights, rows, layer->top_k);
    struct moe_ffn_args args = {.stack = layer->experts,
                                .x = *x,
                                .experts = experts,
                                .weights = weights,
                                .out = *out,
                                .activation = layer->activation,
                                .alpha = layer->alpha,
                                .limit = layer->limit};
    linear_forward(f, &layer->router, x, &logits);
    device_moe_route(f->device, &(struct moe_route_args){.logits = tensor_cols(logits, 0, n),
                                                         .experts = experts,
                                                         .weights = weights,
                                                         .is_normalised = layer->is_normalised});
    if (layer->has_shared) {
        args.shared = part_of(&scratch->shared, rows, x->cols);
        if (layer->has_shared_gate)
            args.shared_gate = tensor_cols(logits, n, 1);
        mlp_forward_part(f, &layer->shared, mlp, x, &args.shared);
    }
    device_moe_ffn(f->device, &args);
    comm_all_reduce(f->comm, out); /* of the experts and the shared one together */
}
