// Native linears for few rows of input: the weights are read once, at the memory's pace, for up to
// 16 rows of 16-bit values. A threadgroup has 16 outputs (x) for NT * 8 such rows (y); its
// simdgroups take turns along the columns.
#include "linear_tiles.h"

enum { FLAT_AHEAD = 2 }; // tiles that a simdgroup has on their way

template <int BITS, int SPANS, bool IS_WIDE> struct flat_tile {
    enum { LEVEL_BYTES = IS_WIDE ? 16 : 8 };
    tile_codes<BITS> codes;
    uint4 levels[SPANS ? SPANS : 1];

    NATIVE void load(const uint4 *from, const uint8_t *level, uint32_t k, const kd_tiles &p,
                     uint32_t lane)
    {
        load_codes(codes, from + (size_t)k * (BITS / 4 * 32));
        const uint8_t *at = level + (size_t)(k >> p.level_shift) * SPANS * 8 * LEVEL_BYTES +
                            (lane >> 2) * LEVEL_BYTES;
#pragma unroll
        for (int s = 0; s < SPANS; s++)
            if (IS_WIDE)
                levels[s] = __ldg((const uint4 *)(at + s * 8 * LEVEL_BYTES));
            else
                *(uint2 *)&levels[s] = __ldg((const uint2 *)(at + s * 8 * LEVEL_BYTES));
    }
};

// sum += the tile times 64 positions of 8 rows; x: this lane's, sums: those of its two columns.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16>
NATIVE void multiply(float (&sum)[4], const flat_tile<BITS, SPANS, IS_WIDE> &tile,
                     const uint4 (&x)[2], const float *sums, const kd_tiles &p)
{
    enum { HALF_SPANS = SPANS > 1 ? SPANS / 2 : 1 };
    float a[4] = {0}, b[4] = {0};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t f[4];
        fragment(f, tile.codes, half, false);
        if (BITS == 16) {
            native_mma<IS_BF16>(sum, f[0], f[1], f[2], f[3], x[half].x, x[half].z);
            fragment(f, tile.codes, half, true);
            native_mma<IS_BF16>(sum, f[0], f[1], f[2], f[3], x[half].y, x[half].w);
            continue;
        }
        native_mma<false>(a, f[0], f[1], f[2], f[3], x[half].x, x[half].z);
        fragment(f, tile.codes, half, true);
        native_mma<false>(b, f[0], f[1], f[2], f[3], x[half].y, x[half].w);
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
            if (SPANS == 1 ? half == 0 : s / HALF_SPANS != half)
                continue;
            const row_levels l = load_levels<IS_WIDE>(&tile.levels[s], p.is_bf16);
            const float2 inputs = *(const float2 *)(sums + (size_t)s * p.sums_stride);
            const float zero[4] = {0};
            if (SPANS < 4)
                add_group<BITS>(sum, a, b, l, inputs);
            else if (s % 2 == 0)
                add_group<BITS>(sum, a, zero, l, inputs);
            else
                add_group<BITS>(sum, zero, b, l, inputs);
        }
        if (SPANS > 1)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = b[i] = 0.0f;
    }
}

template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int NT>
NATIVE void flat(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x, const float *sums,
                 const float *factors, const float *bias, float *out, const kd_tiles &p)
{
    typedef flat_tile<BITS, SPANS, IS_WIDE> tile;
    __shared__ float parts[KD_FLAT_THREADS / 32][NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t first = blockIdx.y * NT * 8, n_columns = p.n_rows * p.n_terms;
    const uint4 *codes = (const uint4 *)tiles + (size_t)blockIdx.x * p.n_tiles * (BITS / 4 * 32) +
                         lane;
    const uint32_t n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
    const uint8_t *level = levels + (size_t)blockIdx.x * n_levels * SPANS * 8 * tile::LEVEL_BYTES;
    float sum[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[n][i] = 0.0f;
    native_let_next_start();
    tile ahead[FLAT_AHEAD];
    uint32_t k = warp;
#pragma unroll
    for (int i = 0; i < FLAT_AHEAD; i++)
        if (k + i * n_warps < p.n_tiles)
            ahead[i].load(codes, level, k + i * n_warps, p, lane);
    native_wait_for_previous();
    const uint32_t x_words = p.n_tiles * KD_TILE_COLS / 8; // a row's, of 16 bytes
    const uint4 *from = (const uint4 *)x + (size_t)(first + (lane >> 2)) * x_words + (lane & 3);
    const float *column_sums = sums + first + 2 * (lane & 3);
    while (k < p.n_tiles) {
#pragma unroll
        for (int i = 0; i < FLAT_AHEAD; i++) {
            if (k >= p.n_tiles)
                break;
            uint4 v[NT][2];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                v[n][0] = v[n][1] = make_uint4(0, 0, 0, 0);
                if (first + n * 8 + (lane >> 2) < n_columns) {
                    v[n][0] = from[(size_t)n * 8 * x_words + k * 8];
                    v[n][1] = from[(size_t)n * 8 * x_words + k * 8 + 4];
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++)
                multiply<BITS, SPANS, IS_WIDE, IS_BF16>(
                    sum[n], ahead[i], v[n],
                    column_sums + (size_t)k * SPANS * p.sums_stride + n * 8, p);
            if (k + FLAT_AHEAD * n_warps < p.n_tiles)
                ahead[i].load(codes, level, k + FLAT_AHEAD * n_warps, p, lane);
            k += n_warps;
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            parts[warp][n * 4 + i][lane] = sum[n][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < NT * 128; i += blockDim.x) {
        const uint32_t l = i & 31, e = i >> 5;
        const uint32_t column = first + (e >> 2) * 8 + (l & 3) * 2 + (e & 1);
        const uint32_t row = blockIdx.x * KD_TILE_ROWS + (e >> 1 & 1) * 8 + (l >> 2);
        if (column >= n_columns || row >= p.rows || column % p.n_terms != 0)
            continue;
        float total = 0.0f;
        for (uint32_t w = 0; w < n_warps; w++) {
            total += parts[w][e][l];
            if (p.n_terms == 2)
                total += parts[w][e + 1][l];
        }
        const uint32_t t = column / p.n_terms;
        out[(size_t)t * p.out_stride + row] = fmaf(total, factors[t], bias ? bias[row] : 0.0f);
    }
}

// As many threadgroups on a processor as hide the memory's distance: registers follow from that.
#define FLAT(name, bits, spans, is_wide, is_bf16, nt, n_groups)                                    \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(KD_FLAT_THREADS, n_groups)                        \
        name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x, const float *sums,    \
             const float *factors, const float *bias, float *out, const __grid_constant__ kd_tiles p) \
    {                                                                                              \
        flat<bits, spans, is_wide, is_bf16, nt>(tiles, levels, x, sums, factors, bias, out, p);    \
    }
#define FLAT_BOTH(form, bits, spans, is_wide, is_bf16, n_groups)                                   \
    FLAT(linear_flat_##form##_8, bits, spans, is_wide, is_bf16, 1, n_groups)                       \
    FLAT(linear_flat_##form##_16, bits, spans, is_wide, is_bf16, 2, n_groups - 1)

FLAT_BOTH(q4, 4, 1, false, false, 4)
FLAT_BOTH(q4s2, 4, 2, false, false, 4)
FLAT_BOTH(q4s2w, 4, 2, true, false, 4)
FLAT_BOTH(q4s4w, 4, 4, true, false, 4)
FLAT_BOTH(q8, 8, 1, false, false, 4)
FLAT_BOTH(q8s2, 8, 2, false, false, 4)
FLAT_BOTH(q8s2w, 8, 2, true, false, 4)
FLAT_BOTH(q8s4w, 8, 4, true, false, 3)
FLAT_BOTH(f16, 16, 0, false, false, 4)
FLAT_BOTH(bf16, 16, 0, false, true, 4)
