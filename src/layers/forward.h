/* One forward step as the layers see it: the batch as tensors, scratch memory, the device to run
 * on. Filled by the engine, read by models and layers. */
#ifndef CSGL_LAYERS_FORWARD_H
#define CSGL_LAYERS_FORWARD_H

#include "device/comm/comm.h"
#include "device/ops.h"

#include <stdbool.h>

enum { KV_MAX_GROUPS = 4 };

/* What belongs to one group of layers that share pages (full attention, a window, ...). */
struct kv_group_view {
    struct tensor slots;      /* i32 [T, 1]: where each row's K/V goes */
    struct tensor page_table; /* i32 [n_sequences, max_pages] */
};

struct forward {
    struct device *device;
    struct comm *comm;
    int32_t n_tokens, n_sequences, n_want;
    struct tensor tokens;    /* i32 [T, 1] */
    struct tensor positions; /* i32 [T, 1] */
    struct tensor q_start;   /* i32 [n_sequences + 1, 1] */
    struct tensor kv_len;    /* i32 [n_sequences, 1], new tokens counted */
    struct tensor want;      /* i32 [n_want, 1]: rows whose logits are asked for, ascending */
    struct kv_group_view groups[KV_MAX_GROUPS];
    struct tensor state_in, state_out; /* i32 [n_sequences, 1]; in -1: zero state; out -1: not
                                        * written (verify) */
    struct tensor snapshots; /* i32 [n_snapshots, 2]: (row of the step, slot), rows ascending: the
                              * state after that row is written there too */
    struct buffer scratch;   /* one step's intermediates, handed out by forward_tensor */
    size_t scratch_used;
    struct tensor logits; /* f32 [n_want, vocabulary], filled by the model */
};

/* An uninitialised f32 tensor [rows, cols] that lives until the step ends. The engine sized the
 * scratch from the model's plan. */
struct tensor forward_tensor(struct forward *f, int32_t rows, int32_t cols);

/* Scratch bytes that forward_tensor takes for this shape. */
size_t forward_tensor_bytes(int64_t rows, int64_t cols);

#endif
