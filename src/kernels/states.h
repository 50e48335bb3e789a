// Where recurrent states lie (args.h).
#ifndef CSGL_KERNELS_STATES_H
#define CSGL_KERNELS_STATES_H

// Element [row][0] of value head `head` of a slot, in elements of the state's type from all slots'
// start.
KD_INLINE ulong kd_state_at(constant kd_states &s, int slot, uint head, uint row)
{
    const ulong size = s.dtype == KD_F32 ? 4 : 2;
    return (ulong)slot * (s.slot_bytes / size) + ((ulong)head * s.k_dim + row) * s.v_dim;
}

// Row `row` of those before the convolution, in f32 from all slots' start.
KD_INLINE ulong kd_conv_row_at(constant kd_states &s, int slot, uint row)
{
    return ((ulong)slot * s.slot_bytes + s.rows_offset) / 4 + (ulong)row * s.channels;
}

// The key head that a value head goes with.
KD_INLINE uint kd_key_head(constant kd_states &s, uint value)
{
    return s.is_tiled ? value % s.n_k_heads : value / (s.n_v_heads / s.n_k_heads);
}

#endif
