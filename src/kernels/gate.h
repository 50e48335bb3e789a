// Activations, finite for every finite input.
#ifndef CSGL_KERNELS_GATE_H
#define CSGL_KERNELS_GATE_H

// 1 / (1 + e^-x), from e^-|x|, which does not overflow.
KD_INLINE float kd_sigmoid(float x)
{
    const float e = kd_exp(-fabs(x));
    return x < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
}

// x sigmoid(x); -0 and not NaN for -INFINITY, as its limit is.
KD_INLINE float kd_silu(float x)
{
    return x == -INFINITY ? 0.0f : x * kd_sigmoid(x);
}

// What a gated feed-forward block multiplies; `kind` as enum activation of ops.h.
KD_INLINE float kd_activate(uint kind, float gate, float up, float alpha, float limit)
{
    if (kind == 0)
        return kd_silu(gate) * up;
    const float g = min(gate, limit);
    return (clamp(up, -limit, limit) + 1.0f) * g * kd_sigmoid(alpha * g);
}

#endif
