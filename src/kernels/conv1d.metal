// The convolution before the gated delta rule. A thread is a channel (x) of a sequence (y), walks
// over its rows and keeps the rows before in registers.
#include "kd.h"

#include "gate.h"
#include "states.h"

// The rows before the next one, the newest last; places below `none` have no row. All places are
// constants, so that they are registers.
enum { NEWEST = KD_MAX_CONV_ROWS };

KD_INLINE void store_rows(device float *slots, constant kd_states &s, int slot, uint channel,
                          thread const float *rows)
{
    const uint none = KD_MAX_CONV_ROWS - s.conv_rows;
    KD_UNROLL for (uint j = 0; j < KD_MAX_CONV_ROWS; j++)
    {
        if (j >= none)
            slots[kd_conv_row_at(s, slot, j - none) + channel] = rows[j];
    }
}

KERNEL(conv1d_update, CBUF(float, x, 0), CBUF(float, weight, 1), BUF(float, out, 2),
       BUF(float, slots, 3), CBUF(int, q_start, 4), CBUF(int, state_in, 5), CBUF(int, state_out, 6),
       CBUF(int, snapshots, 7), PARM(kd_conv1d, p, 8))
{
    const uint channel = TGID.x * KD_ROW_THREADS + TID, sequence = TGID.y;
    if (channel >= p.states.channels)
        return;
    const int in = state_in[sequence * p.sequences.state_in_stride];
    const int to = state_out[sequence * p.sequences.state_out_stride];
    const int first = q_start[sequence * p.sequences.q_start_stride];
    const int end = q_start[(sequence + 1) * p.sequences.q_start_stride];
    const uint none = KD_MAX_CONV_ROWS - p.states.conv_rows;
    float rows[KD_MAX_CONV_ROWS + 1], weights[KD_MAX_CONV_ROWS + 1];
    KD_UNROLL for (uint j = 0; j <= NEWEST; j++)
    {
        const bool is_before = j >= none && j < NEWEST && in >= 0;
        weights[j] = j >= none ? weight[(ulong)(j - none) * p.weight_stride + channel] : 0.0f;
        rows[j] = is_before ? slots[kd_conv_row_at(p.states, in, j - none) + channel] : 0.0f;
    }
    uint snapshot = 0;
    for (int row = first; row < end; row++) {
        rows[NEWEST] = x[(ulong)row * p.x_stride + channel];
        float sum = 0.0f;
        KD_UNROLL for (uint j = 0; j <= NEWEST; j++) sum += weights[j] * rows[j];
        out[(ulong)row * p.out_stride + channel] = kd_silu(sum);
        KD_UNROLL for (uint j = 0; j < NEWEST; j++) rows[j] = rows[j + 1];
        for (; snapshot < p.sequences.n_snapshots; snapshot++) {
            device const int *s = snapshots + (ulong)snapshot * p.sequences.snapshots_stride;
            if (s[0] > row)
                break;
            if (s[0] == row)
                store_rows(slots, p.states, s[1], channel, rows);
        }
    }
    if (to >= 0)
        store_rows(slots, p.states, to, channel, rows);
}

// The rows before the first n_accepted rows of a sequence and these, the last conv_rows of them.
KERNEL(conv1d_commit, CBUF(float, x, 0), BUF(float, slots, 1), CBUF(int, q_start, 2),
       CBUF(int, n_accepted, 3), CBUF(int, state_in, 4), CBUF(int, state_out, 5),
       PARM(kd_delta_commit, p, 6))
{
    const uint channel = TGID.x * KD_ROW_THREADS + TID, sequence = TGID.y;
    const uint n = p.states.conv_rows;
    if (channel >= p.states.channels)
        return;
    const int in = state_in[sequence * p.sequences.state_in_stride];
    const uint accepted = (uint)n_accepted[sequence * p.n_accepted_stride];
    const uint first = (uint)q_start[sequence * p.sequences.q_start_stride];
    const uint none = KD_MAX_CONV_ROWS - n;
    float rows[KD_MAX_CONV_ROWS];
    KD_UNROLL for (uint j = 0; j < KD_MAX_CONV_ROWS; j++)
    {
        const uint at = j - none + accepted; // counted in the rows before and then the step's
        rows[j] = 0.0f;
        if (j >= none && at >= n)
            rows[j] = x[(ulong)(first + at - n) * p.x_stride + channel];
        else if (j >= none && in >= 0)
            rows[j] = slots[kd_conv_row_at(p.states, in, at) + channel];
    }
    store_rows(slots, p.states, state_out[sequence * p.sequences.state_out_stride], channel, rows);
}
