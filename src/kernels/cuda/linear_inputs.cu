// What native linears read in place of their inputs (args.h, struct kd_inputs). A threadgroup a row.
#include "native.h"

// The column at a position of a tile whose groups are of 16: those of product A or B of a half are
// 16 columns in a row (linear_tiles.h).
NATIVE uint32_t column_of_16(uint32_t position)
{
    const uint32_t product = (position >> 4 & 2u) + (position >> 1 & 1u);
    return 16 * product + 4 * (position >> 3 & 3u) + 2 * (position >> 2 & 1u) + (position & 1u);
}

struct row {
    const float *x;
    const int32_t *order; // NULL: none
    uint32_t cols, span;
};

// The values at two positions that follow each other.
NATIVE float2 load_pair(const row &r, uint32_t position)
{
    const uint32_t tile = position & ~(uint32_t)(KD_TILE_COLS - 1);
    const uint32_t within = position & (KD_TILE_COLS - 1);
    const uint32_t c = tile + (r.span == 16 ? column_of_16(within) : within);
    float2 pair = make_float2(0.0f, 0.0f);
    if (c < r.cols)
        pair.x = r.x[r.order ? r.order[c] : c];
    if (c + 1 < r.cols)
        pair.y = r.x[r.order ? r.order[c + 1] : c + 1];
    return pair;
}

// The power of two by which a row whose largest value has these bits is brought to 2^14 .. 2^15,
// and its inverse.
NATIVE float2 range_factors(uint32_t bits)
{
    const uint32_t exponent = min(max(bits >> 23, 15u), 254u);
    return make_float2(__uint_as_float((268u - exponent) << 23),
                       __uint_as_float((exponent - 14u) << 23));
}

NATIVE float largest_of(const row &r, uint32_t positions, float *parts)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float largest = 0.0f;
    for (uint32_t p = 2 * threadIdx.x; p < positions; p += 2 * KD_INPUT_THREADS) {
        const float2 v = load_pair(r, p);
        largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y)));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, step));
    if (lane == 0)
        parts[warp] = largest;
    __syncthreads();
    largest = parts[lane % (KD_INPUT_THREADS / 32)];
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, step));
    return largest;
}

template <bool IS_BF16>
NATIVE void write_row(const row &r, float factor, uint32_t *out, float *sums, const kd_inputs &p)
{
    // Lanes that differ in these bits have positions of one group.
    const uint32_t mask = p.span == 64 ? 31u : p.span == 32 ? 15u : 14u;
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t at = 2 * threadIdx.x; at < p.positions; at += 2 * KD_INPUT_THREADS) {
        float2 v = load_pair(r, at);
        v.x *= factor;
        v.y *= factor;
        for (uint32_t term = 0; term < p.n_terms; term++) {
            const uint32_t word = native_pack<IS_BF16>(v.x, v.y);
            const float2 rounded = native_unpack<IS_BF16>(word);
            out[(term * p.positions + at) / 2] = word;
            v.x -= rounded.x;
            v.y -= rounded.y;
            if (p.span == 0)
                continue;
            float sum = rounded.x + rounded.y;
            for (uint32_t step = 16; step > 0; step /= 2)
                if (mask & step)
                    sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            // Of a group of 16 that is product A (bit 0 clear) or B of its half.
            const uint32_t group = p.span == 16 ? at / 64 * 4 + (lane >> 4) * 2 + (lane & 1)
                                                : at / p.span;
            if ((lane & mask) == 0)
                sums[(size_t)group * p.sums_stride + term] = sum * 0x1p-24f;
        }
    }
}

KD_WAITS(linear_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    linear_inputs(const float *x, const int32_t *order, uint32_t *out, float *sums, float *factors,
                  const __grid_constant__ kd_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    const row r = {x + (size_t)blockIdx.x * p.x_stride, p.has_order ? order : nullptr, p.cols,
                   p.span};
    uint32_t *to = out + (size_t)blockIdx.x * p.n_terms * (p.positions / 2);
    float *row_sums = sums + blockIdx.x * p.n_terms;
    float2 factor = make_float2(1.0f, 1.0f);
    if (!p.is_bf16)
        factor = range_factors(__float_as_uint(largest_of(r, p.positions, parts)));
    if (p.is_bf16)
        write_row<true>(r, factor.x, to, row_sums, p);
    else
        write_row<false>(r, factor.x, to, row_sums, p);
    if (threadIdx.x == 0)
        factors[blockIdx.x] = p.span ? factor.y * 0x1p24f : factor.y;
}
