// What native linears read in place of their inputs (args.h, struct kd_inputs). A threadgroup a
// row; a thread has pairs of positions.
#include "native.h"

enum { PAIRS_AT_ONCE = 9 }; // loads on their way: 18432 positions for the largest threadgroup

// The column at a position of a tile whose groups are of 16: those of product A or B of a half are
// 16 columns in a row (linear_tiles.h).
NATIVE uint32_t column_of_16(uint32_t position)
{
    const uint32_t product = (position >> 4 & 2u) + (position >> 2 & 1u);
    return 16 * product + 4 * (position >> 3 & 3u) + (position & 3u);
}

struct row {
    const float *x;
    const int32_t *order; // NULL: none
    uint32_t cols, span, positions;

    // The values at positions `at` and at + 1.
    NATIVE float2 pair(uint32_t at) const
    {
        const uint32_t tile = at & ~(uint32_t)(KD_TILE_COLS - 1), within = at - tile;
        const uint32_t c = tile + (span == 16 ? column_of_16(within) : within);
        float2 v = make_float2(0.0f, 0.0f);
        if (c < cols)
            v.x = x[order ? order[c] : c];
        if (c + 1 < cols)
            v.y = x[order ? order[c + 1] : c + 1];
        return v;
    }

    NATIVE void load(float2 (&v)[PAIRS_AT_ONCE], uint32_t first) const
    {
#pragma unroll
        for (int i = 0; i < PAIRS_AT_ONCE; i++) {
            const uint32_t at = first + 2 * i * blockDim.x;
            v[i] = at < positions ? pair(at) : make_float2(0.0f, 0.0f);
        }
    }
};

// The power of two by which a row whose largest value has these bits is brought to 2^14 .. 2^15,
// and its inverse.
NATIVE float2 range_factors(uint32_t bits)
{
    const uint32_t exponent = min(max(bits >> 23, 15u), 254u);
    return make_float2(__uint_as_float((268u - exponent) << 23),
                       __uint_as_float((exponent - 14u) << 23));
}

// The largest of all threads' values.
NATIVE float largest_of(float value, float *parts)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
    value = lane < blockDim.x / 32 ? parts[lane] : 0.0f;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, step));
    return value;
}

// Where a row's terms and sums go.
struct row_out {
    uint32_t *values;
    float *sums;
};

template <bool IS_BF16>
NATIVE void write_pair(const row_out &to, float2 v, uint32_t at, const kd_inputs &p)
{
    // Lanes that differ in these bits have positions of one group.
    const uint32_t mask = p.span == 64 ? 31u : p.span == 32 ? 15u : 13u;
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t term = 0; term < p.n_terms; term++) {
        const uint32_t word = native_pack<IS_BF16>(v.x, v.y);
        const float2 rounded = native_unpack<IS_BF16>(word);
        to.values[((size_t)term * p.term_stride * p.positions + at) / 2] = word;
        v.x -= rounded.x;
        v.y -= rounded.y;
        if (p.span == 0)
            continue;
        float sum = rounded.x + rounded.y;
#pragma unroll
        for (uint32_t step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(EVERY_LANE, sum, step);
            sum += mask & step ? other : 0.0f;
        }
        const uint32_t group = p.span == 16 ? at / 64 * 4 + (lane >> 4) * 2 + (lane >> 1 & 1)
                                            : at / p.span;
        if ((lane & mask) == 0)
            to.sums[((size_t)group * p.n_terms + term) * p.term_stride] = sum * 0x1p-24f;
    }
}

template <bool IS_BF16> NATIVE void write_row(const row &r, const row_out &to, const kd_inputs &p,
                                              float *factor_out, float *parts)
{
    const uint32_t step = 2 * PAIRS_AT_ONCE * blockDim.x;
    float2 v[PAIRS_AT_ONCE];
    float2 factor = make_float2(1.0f, 1.0f);
    r.load(v, 2 * threadIdx.x);
    if (!IS_BF16) {
        float largest = 0.0f;
        for (uint32_t first = 2 * threadIdx.x;;) {
#pragma unroll
            for (int i = 0; i < PAIRS_AT_ONCE; i++)
                largest = fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
            first += step;
            if (first >= p.positions)
                break;
            r.load(v, first);
        }
        factor = range_factors(__float_as_uint(largest_of(largest, parts)));
        if (step < p.positions)
            r.load(v, 2 * threadIdx.x);
    }
    for (uint32_t first = 2 * threadIdx.x; first < p.positions; first += step) {
        if (first >= step)
            r.load(v, first);
#pragma unroll
        for (int i = 0; i < PAIRS_AT_ONCE; i++) {
            const uint32_t at = first + 2 * i * blockDim.x;
            if (at < p.positions) // for all lanes of a simdgroup or none
                write_pair<IS_BF16>(to, make_float2(v[i].x * factor.x, v[i].y * factor.x), at, p);
        }
    }
    if (threadIdx.x == 0)
        *factor_out = p.span ? factor.y * 0x1p24f : factor.y;
}

extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    linear_inputs(const float *x, const int32_t *order, uint32_t *values, float *sums,
                  float *factors, const __grid_constant__ kd_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    const row r = {x + (size_t)blockIdx.x * p.x_stride, p.has_order ? order : nullptr, p.cols,
                   p.span, p.positions};
    const row_out to = {values + (size_t)blockIdx.x * (p.positions / 2), sums + blockIdx.x};
    if (p.is_bf16)
        write_row<true>(r, to, p, factors + blockIdx.x, parts);
    else
        write_row<false>(r, to, p, factors + blockIdx.x, parts);
}
