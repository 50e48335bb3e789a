// Native linears for few rows of 16-bit values: linear_flat.h.
#include "linear_flat.h"

// A lane's share of 8 rows of 16-bit values, and of the sums of its two columns.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16> struct half_rows {
    enum { MOST_AHEAD = 5 };
    struct memory {
        const uint16_t *values;
        const float *sums, *factors;
    };
    struct part {
        uint4 x[2];
        float2 sums[SPANS ? SPANS : 1];
    };
    const uint4 *x;
    const float *column_sums;
    bool is_there;

    NATIVE void open(const memory &from, const kd_tiles &p, uint32_t n, uint32_t per_term,
                     uint32_t first, uint32_t end)
    {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const uint32_t g = lane >> 2, t = lane & 3;
        const uint32_t term = (n * 8 + g) / per_term, row = first + (n * 8 + g) % per_term;
        const uint32_t c = n * 8 + 2 * t, stride = p.n_terms * p.term_stride;
        is_there = row < end;
        x = (const uint4 *)from.values +
            ((size_t)(term * p.term_stride + row) * p.n_tiles + warp) * 8 + t;
        column_sums = from.sums + (size_t)warp * SPANS * stride + c / per_term * p.term_stride +
                      first + c % per_term;
    }

    NATIVE void next(part &to, const memory &, const kd_tiles &p, uint32_t n_warps)
    {
        const uint32_t stride = p.n_terms * p.term_stride;
        to.x[0] = to.x[1] = make_uint4(0, 0, 0, 0);
        if (is_there) {
            to.x[0] = x[0];
            to.x[1] = x[4];
        }
#pragma unroll
        for (int s = 0; s < SPANS; s++)
            to.sums[s] = *(const float2 *)(column_sums + s * stride);
        x += n_warps * 8;
        column_sums += n_warps * SPANS * stride;
    }

    // sum += the tile times the rows.
    NATIVE static void multiply(float (&sum)[4], const tile_ahead<BITS, SPANS, IS_WIDE> &tile,
                                const part &in, bool is_bf16_level)
    {
        enum { HALF_SPANS = SPANS > 1 ? SPANS / 2 : 1 };
        const float zero[4] = {0};
        float a[4] = {0}, b[4] = {0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t fa[4], fb[4];
            const uint4 v = in.x[half];
            fragment(fa, tile.codes, half, false);
            fragment(fb, tile.codes, half, true);
            native_mma<IS_BF16>(BITS == 16 ? sum : a, fa[0], fa[1], fa[2], fa[3], v.x, v.y);
            native_mma<IS_BF16>(BITS == 16 ? sum : b, fb[0], fb[1], fb[2], fb[3], v.z, v.w);
            if (SPANS == 1 && half == 0)
                continue;
#pragma unroll
            for (int s = 0; s < (SPANS ? HALF_SPANS : 0); s++) {
                const int span = SPANS > 1 ? half * HALF_SPANS + s : 0;
                const row_levels l = load_levels<BITS, IS_WIDE>(&tile.levels[span], is_bf16_level);
                add_group<BITS>(sum, HALF_SPANS == 2 && s == 1 ? zero : a,
                                HALF_SPANS == 2 && s == 0 ? zero : b, l, in.sums[span]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = b[i] = 0.0f;
        }
    }

    NATIVE static float factor(const memory &from, uint32_t m)
    {
        return from.factors[m];
    }
};

#define FLAT(name, bits, spans, is_wide, is_bf16, rt, nt, n_threads, n_groups)                     \
    KD_WAITS(linear_flat_##name)                                                                   \
    extern "C" __global__ void __launch_bounds__(n_threads, n_groups)                              \
        linear_flat_##name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,         \
                           const float *sums, const float *factors, const float *bias, float *out, \
                           const __grid_constant__ kd_tiles p)                                     \
    {                                                                                              \
        flat<half_rows<bits, spans, is_wide, is_bf16>, bits, spans, is_wide, rt, nt, false>(       \
            tiles, levels, {x, sums, factors}, bias, out, p, blockIdx.y * (nt * 8 / p.n_terms),    \
            p.n_rows);                                                                             \
    }                                                                                              \
    KD_WAITS(expert_flat_##name)                                                                   \
    extern "C" __global__ void __launch_bounds__(n_threads, n_groups)                              \
        expert_flat_##name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,         \
                           const float *sums, const float *factors, const float *bias, float *out, \
                           const kd_expert_slot *slots, const __grid_constant__ kd_expert_tiles p) \
    {                                                                                              \
        native_let_next_start();                                                                   \
        native_wait_for_previous();                                                                \
        const kd_expert_slot slot = slots[blockIdx.y];                                             \
        if (slot.n_places == 0)                                                                    \
            return;                                                                                \
        const size_t at = slot.expert * p.matrix_bytes;                                            \
        flat<half_rows<bits, spans, is_wide, is_bf16>, bits, spans, is_wide, rt, nt, true>(        \
            tiles + at, levels + at, {x, sums, factors}, expert_bias(bias, at), out, p.tiles,      \
            slot.first, slot.first + slot.n_places);                                               \
    }
// Registers follow from how many threadgroups a processor is to hold.
#define FLAT_8_16(form, bits, spans, is_wide, is_bf16)                                             \
    FLAT(form##_8, bits, spans, is_wide, is_bf16, 1, 1, 512, spans == 4 ? 1 : 2)                   \
    FLAT(form##_16, bits, spans, is_wide, is_bf16, 1, 2, 512, 1)
#define FLAT_ALL(form, bits, spans, is_wide, is_bf16)                                              \
    FLAT_8_16(form, bits, spans, is_wide, is_bf16)                                                 \
    FLAT(form##_8x2, bits, spans, is_wide, is_bf16, 2, 1, 512, 1)

FLAT_8_16(q4, 4, 1, false, false)
FLAT(q4_8x2, 4, 1, false, false, 2, 1, 128, 6)
TILE_FORMS_BUT_Q4(FLAT_ALL)
