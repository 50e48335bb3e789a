// The gated delta rule (arXiv:2412.06464), a row after another. A threadgroup is a value head (x)
// of a sequence (y), a thread a column of its state, which it keeps.
#include "kd.h"

#include "gate.h"
#include "load.h"
#include "reduce.h"
#include "states.h"

KD_INLINE void load_state(device const uchar *slots, constant kd_states &s, int slot, uint head,
                          uint column, thread float *state)
{
    for (uint k = 0; k < s.k_dim; k++)
        state[k] =
            slot < 0 ? 0.0f : kd_load(slots, kd_state_at(s, slot, head, k) + column, s.dtype);
}

KD_INLINE void store_state(device uchar *slots, constant kd_states &s, int slot, uint head,
                           uint column, thread const float *state)
{
    for (uint k = 0; k < s.k_dim; k++)
        kd_store(slots, kd_state_at(s, slot, head, k) + column, s.dtype, state[k]);
}

// log(1 + e^x).
KD_INLINE float softplus(float x)
{
    return x > 20.0f ? x : kd_log1p(kd_exp(x));
}

KERNEL(gated_delta, CBUF(float, qkv, 0), CBUF(float, a, 1), CBUF(float, b, 2), CBUF(float, rate, 3),
       CBUF(float, dt_bias, 4), BUF(float, out, 5), BUF(float, tape, 6), BUF(uchar, slots, 7),
       CBUF(int, q_start, 8), CBUF(int, state_in, 9), CBUF(int, state_out, 10),
       CBUF(int, snapshots, 11), PARM(kd_gated_delta, p, 12))
{
    TG_ARRAY(float, q, KD_MAX_STATE_DIM);
    TG_ARRAY(float, k, KD_MAX_STATE_DIM);
    TG_ARRAY(float, q_parts, KD_MAX_STATE_SIMDS);
    TG_ARRAY(float, k_parts, KD_MAX_STATE_SIMDS);
    const uint head = TGID.x, sequence = TGID.y, key = kd_key_head(p.states, head);
    const uint k_dim = p.states.k_dim, v_dim = p.states.v_dim, n_k = p.states.n_k_heads;
    const uint n_simds = (v_dim + KD_SIMD_WIDTH - 1) / KD_SIMD_WIDTH;
    const uint n_threads = n_simds * KD_SIMD_WIDTH;
    const bool is_column = TID < v_dim;
    const bool writes_key = p.states.is_tiled ? head < n_k : head % (p.states.n_v_heads / n_k) == 0;
    const int to = state_out[sequence * p.sequences.state_out_stride];
    const int first = q_start[sequence * p.sequences.q_start_stride];
    const int end = q_start[(sequence + 1) * p.sequences.q_start_stride];
    float state[KD_MAX_STATE_DIM];
    if (is_column)
        load_state(slots, p.states, state_in[sequence * p.sequences.state_in_stride], head, TID,
                   state);
    uint snapshot = 0;
    for (int row = first; row < end; row++) {
        device const float *from = qkv + (ulong)row * p.qkv_stride;
        float q_squares = 0.0f, k_squares = 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = TID; i < k_dim; i += n_threads) {
            q[i] = from[key * k_dim + i];
            k[i] = from[(n_k + key) * k_dim + i];
            q_squares += q[i] * q[i];
            k_squares += k[i] * k[i];
        }
        q_squares = kd_sum(q_squares, q_parts, n_simds, LANE, SGID);
        k_squares = kd_sum(k_squares, k_parts, n_simds, LANE, SGID);
        const float q_factor = rsqrt(q_squares + 1e-6f) * p.q_scale;
        const float k_factor = rsqrt(k_squares + 1e-6f);
        const float g = -rate[head] * softplus(a[(ulong)row * p.a_stride + head] + dt_bias[head]);
        const float decay = kd_exp(g), beta = kd_sigmoid(b[(ulong)row * p.b_stride + head]);
        device float *keep = tape + (ulong)row * p.tape_stride;
        if (is_column) {
            const float v = from[2 * n_k * k_dim + head * v_dim + TID];
            float seen = 0.0f, value = 0.0f;
            for (uint i = 0; i < k_dim; i++) {
                state[i] *= decay;
                seen += state[i] * (k[i] * k_factor);
            }
            const float delta = beta * (v - seen);
            for (uint i = 0; i < k_dim; i++) {
                state[i] += k[i] * k_factor * delta;
                value += state[i] * (q[i] * q_factor);
            }
            out[(ulong)row * p.out_stride + head * v_dim + TID] = value;
            if (p.has_tape)
                keep[head * v_dim + TID] = delta;
        }
        if (p.has_tape) {
            const uint keys = p.states.n_v_heads * v_dim;
            for (uint i = TID; i < k_dim && writes_key; i += n_threads)
                keep[keys + key * k_dim + i] = k[i] * k_factor;
            if (TID == 0)
                keep[keys + n_k * k_dim + head] = g;
        }
        for (; snapshot < p.sequences.n_snapshots; snapshot++) {
            device const int *s = snapshots + (ulong)snapshot * p.sequences.snapshots_stride;
            if (s[0] > row)
                break;
            if (s[0] == row && is_column)
                store_state(slots, p.states, s[1], head, TID, state);
        }
    }
    if (to >= 0 && is_column)
        store_state(slots, p.states, to, head, TID, state);
}

// The state past the first n_accepted rows, from what the step's tape kept.
KERNEL(gated_delta_commit, CBUF(float, tape, 0), BUF(uchar, slots, 1), CBUF(int, q_start, 2),
       CBUF(int, n_accepted, 3), CBUF(int, state_in, 4), CBUF(int, state_out, 5),
       PARM(kd_delta_commit, p, 6))
{
    const uint head = TGID.x, sequence = TGID.y, key = kd_key_head(p.states, head);
    const uint k_dim = p.states.k_dim, v_dim = p.states.v_dim;
    const uint keys = p.states.n_v_heads * v_dim;
    if (TID >= v_dim)
        return;
    float state[KD_MAX_STATE_DIM];
    load_state(slots, p.states, state_in[sequence * p.sequences.state_in_stride], head, TID, state);
    const uint first = (uint)q_start[sequence * p.sequences.q_start_stride];
    const uint n = (uint)n_accepted[sequence * p.n_accepted_stride];
    for (uint row = first; row < first + n; row++) {
        device const float *kept = tape + (ulong)row * p.tape_stride;
        device const float *k = kept + keys + key * k_dim;
        const float decay = kd_exp(kept[keys + p.states.n_k_heads * k_dim + head]);
        const float delta = kept[head * v_dim + TID];
        for (uint i = 0; i < k_dim; i++)
            state[i] = state[i] * decay + k[i] * delta;
    }
    store_state(slots, p.states, state_out[sequence * p.sequences.state_out_stride], head, TID,
                state);
}

// Slot to slot.
KERNEL(state_copy, CBUF(uint, from, 0), BUF(uint, to, 1), PARM(kd_state_copy, p, 2))
{
    const ulong word = (ulong)TGID.x * KD_ROW_THREADS + TID;
    if (word < p.words)
        to[word] = from[word];
}
