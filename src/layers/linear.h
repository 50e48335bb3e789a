/* A linear layer and its place in tensor parallelism. */
#ifndef CSGL_LAYERS_LINEAR_H
#define CSGL_LAYERS_LINEAR_H

#include "layers/forward.h"

/* How a weight [out, in] is split over ranks: not, by outputs, or by inputs. A ROWS layer's result
 * is a partial sum on each rank, so linear_forward ends it with all_reduce. */
enum shard { SHARD_WHOLE, SHARD_COLUMNS, SHARD_ROWS };

struct linear_rest {
    struct linear *weights;
    int32_t first_out, n_out;
};

struct linear_layer {
    struct linear *weights;
    enum shard shard;
    int32_t n_out; /* outputs on this rank, all parts together */
    /* Parts behind those of `weights` that take their inputs in other orders. */
    int n_others;
    struct linear_rest others[LINEAR_MAX_PARTS - 1];
};

/* out[T, n_out] = x W^T + bias, complete on every rank when the shard is WHOLE or ROWS. */
void linear_forward(struct forward *f, const struct linear_layer *layer, const struct tensor *x,
                    const struct tensor *out);

#endif
