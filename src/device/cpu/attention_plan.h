/* How one call of paged_attention is cut into tasks, and where each finds its memory in the
 * workspace. A unit is a KV head of a sequence with up to ATTENTION_TILE query vectors (rows x
 * heads of the group) that read it together; of few vectors it has as many KV heads as fit, which
 * lie side by side in a page. A unit that would keep one thread busy for long is split along the
 * tokens into parts, whose results are merged by the last to end. */
#ifndef CSGL_DEVICE_CPU_ATTENTION_PLAN_H
#define CSGL_DEVICE_CPU_ATTENTION_PLAN_H

#include "device/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct attention_task {
    int32_t sequence, kv_head, n_kv_heads;
    int32_t first_head,
        n_heads; /* query heads of the first KV head, counted from the model's first */
    int32_t first_row, n_rows; /* rows of q */
    int32_t place;             /* of the first row in its sequence */
    int32_t begin, end;        /* places of K and V; begin on a piece border */
    int32_t part, n_parts;
    int32_t slot; /* of part 0 among the partial results; -1: one part */
};

/* What decides the sizes. */
struct attention_shape {
    int32_t n_kv_heads, n_q_heads, head_dim;
    int32_t n_rows, n_sequences;
    int32_t n_threads;
    int32_t few; /* vectors of a KV head up to which a unit may have several heads */
};

/* Offsets into the workspace, for at most the rows and sequences of a shape. */
struct attention_space {
    size_t tasks, order, done, scratch, partials;
    size_t scratch_bytes, partial_bytes; /* of one worker, of one part */
    int32_t most_tasks, n_slots;
    size_t bytes;
};

/* False if the sizes do not fit into size_t. */
bool attention_space_of(const struct attention_shape *shape, struct attention_space *space);

/* Fills tasks and `order` (indices of tasks, each thread's together and its dearest first; the
 * array has room for twice as many); returns their number. `work` is what they cost in all: 1 is
 * about one token of one KV head for one query vector of 64 dims. */
int32_t attention_plan(const struct paged_attention_args *args, const struct attention_shape *shape,
                       const struct attention_space *space, struct attention_task *tasks,
                       int32_t *order, int64_t *work);

#endif
