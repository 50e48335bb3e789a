/* How a recurrent state lies in its slot on the CPU:
 *
 *     state  [n_v_heads][k_dim][v_dim]  f32 or bf16
 *     rows   [conv_rows][conv_channels] f32, oldest first; they begin on a multiple of 64 bytes */
#ifndef CSGL_DEVICE_CPU_STATES_H
#define CSGL_DEVICE_CPU_STATES_H

#include "device/ops.h"

/* Value head `head` of the state in `slot`. */
void *state_head(const struct state_slots *slots, int32_t slot, int32_t head);

/* The pre-conv rows in `slot`. */
float *state_rows(const struct state_slots *slots, int32_t slot);

#endif
