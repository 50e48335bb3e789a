/* How a recurrent state lies in its slot on the CPU:
 *
 *     state  [n_v_heads][k_dim][v_dim]  f32 or bf16
 *     rows   [conv_rows][conv_channels] f32, oldest first; they begin on a multiple of 64 bytes */
#ifndef CSGL_DEVICE_CPU_STATES_H
#define CSGL_DEVICE_CPU_STATES_H

#include "device/ops.h"

enum { STATE_MAX_CONV_ROWS = 15 };

/* Element [row, col] of an i32 tensor: the batch's indices. */
static inline int32_t value_at(const struct tensor *t, int32_t row, int32_t col)
{
    return ((const int32_t *)tensor_at(t, row))[col];
}

/* Value head `head` of the state in `slot`. */
void *state_head(const struct state_slots *slots, int32_t slot, int32_t head);

/* The pre-conv rows in `slot`. */
float *state_rows(const struct state_slots *slots, int32_t slot);

/* conv1d.c: the rows' part of gated_delta_commit. */
void conv_commit(const struct gated_delta_commit_args *args, int32_t sequence);

#endif
