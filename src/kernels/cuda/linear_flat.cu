// Native linears for few rows of input: the weights are read once, at the memory's pace, for up to
// 16 rows of 16-bit values. A threadgroup has 16 RT outputs (x) for 8 NT such rows (y), of n_terms
// terms each; its simdgroups take turns along the columns. The same for experts: the rows are those
// of a slot (y), the weights those of its expert (args.h, struct kd_expert_slot).
#include "linear_tiles.h"

// A lane's part of 64 positions of 8 rows, and the sums of its two columns.
template <int SPANS> struct flat_inputs {
    uint4 x[2];
    float2 sums[SPANS ? SPANS : 1];
};

// sum += the tile times the inputs.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16>
NATIVE void multiply(float (&sum)[4], const tile_ahead<BITS, SPANS, IS_WIDE> &tile,
                     const flat_inputs<SPANS> &in, bool is_bf16_level)
{
    enum { HALF_SPANS = SPANS > 1 ? SPANS / 2 : 1 };
    const float zero[4] = {0};
    float a[4] = {0}, b[4] = {0};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t fa[4], fb[4];
        const uint4 x = in.x[half];
        fragment(fa, tile.codes, half, false);
        fragment(fb, tile.codes, half, true);
        native_mma<IS_BF16>(BITS == 16 ? sum : a, fa[0], fa[1], fa[2], fa[3], x.x, x.y);
        native_mma<IS_BF16>(BITS == 16 ? sum : b, fb[0], fb[1], fb[2], fb[3], x.z, x.w);
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

// Rows first .. end - 1 of the input, at most 8 NT / n_terms. HAS_WAITED: what earlier dispatches
// wrote can be read; else the weights are on their way before that.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int NT, bool HAS_WAITED>
NATIVE void flat(const uint8_t *tiles, const uint8_t *levels, const uint16_t *values,
                 const float *sums, const float *factors, const float *bias, float *out,
                 const kd_tiles &p, uint32_t first, uint32_t end)
{
    typedef tile_ahead<BITS, SPANS, IS_WIDE> tile;
    enum {
        // Places along the columns that are on their way: what registers allow.
        FEW = RT == 2 && SPANS == 4 ? 1 : 2,
        AHEAD = RT == 1 && BITS / 4 == 1 && !IS_WIDE ? 5 - SPANS : FEW,
        TILE_WORDS = BITS / 4 * 32,
        LEVEL_BYTES = SPANS * 8 * tile::LEVEL_BYTES
    };
    __shared__ float parts[KD_FLAT_THREADS / 32][RT * NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t g = lane >> 2, t = lane & 3;
    const uint32_t n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
    const uint4 *codes = (const uint4 *)tiles +
                         ((size_t)blockIdx.x * RT * p.n_tiles + warp) * TILE_WORDS + lane;
    const uint8_t *level = levels + (size_t)blockIdx.x * RT * n_levels * LEVEL_BYTES +
                           g * tile::LEVEL_BYTES;
    float sum[RT][NT][4];
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++)
        (&sum[0][0][0])[i] = 0.0f;
    if (!HAS_WAITED)
        native_let_next_start();
    tile ahead[AHEAD][RT];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const uint32_t k = warp + i * n_warps;
#pragma unroll
        for (int r = 0; r < RT; r++)
            if (k < p.n_tiles)
                ahead[i][r].load(codes + r * p.n_tiles * TILE_WORDS,
                                 level + (r * n_levels + (k >> p.level_shift)) * LEVEL_BYTES);
        codes += n_warps * TILE_WORDS;
    }
    if (!HAS_WAITED)
        native_wait_for_previous();
    // Columns are the rows of term 0, then those of term 1.
    const uint32_t per_term = NT * 8 / p.n_terms;
    const uint4 *x[NT];
    const float *column_sums[NT];
    bool is_there[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t term = (n * 8 + g) / per_term, row = first + (n * 8 + g) % per_term;
        const uint32_t c = n * 8 + 2 * t, stride = p.n_terms * p.term_stride;
        is_there[n] = row < end;
        x[n] = (const uint4 *)values +
               ((size_t)(term * p.term_stride + row) * p.n_tiles + warp) * 8 + t;
        column_sums[n] = sums + (size_t)warp * SPANS * stride + c / per_term * p.term_stride +
                         first + c % per_term;
    }
    const uint32_t sums_stride = p.n_terms * p.term_stride;
    for (uint32_t k = warp; k < p.n_tiles;) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (k >= p.n_tiles)
                break;
            flat_inputs<SPANS> in[NT];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                in[n].x[0] = in[n].x[1] = make_uint4(0, 0, 0, 0);
                if (is_there[n]) {
                    in[n].x[0] = x[n][0];
                    in[n].x[1] = x[n][4];
                }
#pragma unroll
                for (int s = 0; s < SPANS; s++)
                    in[n].sums[s] = *(const float2 *)(column_sums[n] + s * sums_stride);
                x[n] += n_warps * 8;
                column_sums[n] += n_warps * SPANS * sums_stride;
            }
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    multiply<BITS, SPANS, IS_WIDE, IS_BF16>(sum[r][n], ahead[i][r], in[n],
                                                            p.is_bf16);
            const uint32_t next = k + AHEAD * n_warps;
            if (next < p.n_tiles)
#pragma unroll
                for (int r = 0; r < RT; r++)
                    ahead[i][r].load(codes + r * p.n_tiles * TILE_WORDS,
                                     level +
                                         (r * n_levels + (next >> p.level_shift)) * LEVEL_BYTES);
            codes += n_warps * TILE_WORDS;
            k += n_warps;
        }
    }
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                parts[warp][(r * NT + n) * 4 + i][lane] = sum[r][n][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < RT * NT * 128; i += blockDim.x) {
        const uint32_t l = i & 31, e = i >> 5, r = e / (NT * 4);
        const uint32_t column = (e >> 2) % NT * 8 + (l & 3) * 2 + (e & 1), m = first + column;
        const uint32_t row = (blockIdx.x * RT + r) * KD_TILE_ROWS + (e >> 1 & 1) * 8 + (l >> 2);
        if (column >= per_term || m >= end || row >= p.rows)
            continue;
        float total = 0.0f;
        for (uint32_t w = 0; w < n_warps; w++) {
            total += parts[w][e][l];
            if (p.n_terms == 2) // per_term columns further on
                total += NT == 1 ? parts[w][e][l + 2] : parts[w][e + 2 * NT][l];
        }
        out[(size_t)m * p.out_stride + row] = fmaf(total, factors[m], bias ? bias[row] : 0.0f);
    }
}

#define FLAT(name, bits, spans, is_wide, is_bf16, rt, nt, n_threads, n_groups)                     \
    KD_WAITS(linear_flat_##name)                                                                   \
    extern "C" __global__ void __launch_bounds__(n_threads, n_groups)                              \
        linear_flat_##name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,         \
                           const float *sums, const float *factors, const float *bias, float *out, \
                           const __grid_constant__ kd_tiles p)                                     \
    {                                                                                              \
        flat<bits, spans, is_wide, is_bf16, rt, nt, false>(tiles, levels, x, sums, factors, bias,  \
                                                           out, p,                                 \
                                                           blockIdx.y * (nt * 8 / p.n_terms),      \
                                                           p.n_rows);                              \
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
        flat<bits, spans, is_wide, is_bf16, rt, nt, true>(                                         \
            tiles + at, levels + at, x, sums, factors, expert_bias(bias, at), out, p.tiles,        \
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
