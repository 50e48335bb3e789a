// What native linears read in place of their inputs (args.h, struct kd_inputs), and native experts
// (struct kd_expert_inputs). A threadgroup a row; a thread has positions four by four.
#include "native.h"

// What gate.h takes from the dialect.
#define KD_INLINE NATIVE
#define kd_exp expf
#ifndef INFINITY
#define INFINITY __int_as_float(0x7F800000)
#endif
typedef unsigned int uint;

NATIVE float clamp(float x, float low, float high)
{
    return fminf(fmaxf(x, low), high);
}

#include "../gate.h"

enum { QUADS_AT_ONCE = 5 }; // loads on their way: 20480 positions for the largest threadgroup

// The column at a position, a multiple of 4, of a tile whose groups are of 16: those of product A
// or B of a half are 16 columns in a row (linear_tiles.h).
NATIVE uint32_t column_of_16(uint32_t position)
{
    const uint32_t product = (position >> 4 & 2u) + (position >> 2 & 1u);
    return 16 * product + 4 * (position >> 3 & 3u);
}

// A row of a linear's input; `quad` has its columns c .. c + 3, zeros behind the last.
struct plain_row {
    const float *x;
    const int32_t *order; // NULL: none
    uint32_t cols;
    bool is_aligned; // whole quads of columns lie on 16 bytes

    NATIVE float at(uint32_t c) const
    {
        return c < cols ? x[order ? order[c] : c] : 0.0f;
    }

    NATIVE float4 quad(uint32_t c) const
    {
        if (is_aligned)
            return c < cols ? *(const float4 *)(x + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
    }
};

// Likewise of what an expert has inside; quads lie on 16 bytes, and columns are whole quads.
struct gated_row {
    const float *gate, *up;
    uint32_t cols, activation;
    float alpha, limit;

    NATIVE float4 quad(uint32_t c) const
    {
        if (c >= cols)
            return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 g = *(const float4 *)(gate + c), u = *(const float4 *)(up + c);
        return make_float4(kd_activate(activation, g.x, u.x, alpha, limit),
                           kd_activate(activation, g.y, u.y, alpha, limit),
                           kd_activate(activation, g.z, u.z, alpha, limit),
                           kd_activate(activation, g.w, u.w, alpha, limit));
    }
};

// The values at positions first .. first + 3.
template <class row> NATIVE float4 values_at(const row &r, uint32_t first, const kd_inputs &p)
{
    const uint32_t tile = first & ~(uint32_t)(KD_TILE_COLS - 1), within = first - tile;
    return r.quad(tile + (p.span == 16 ? column_of_16(within) : within));
}

template <class row>
NATIVE void load(float4 (&v)[QUADS_AT_ONCE], const row &r, uint32_t first, const kd_inputs &p)
{
#pragma unroll
    for (int i = 0; i < QUADS_AT_ONCE; i++) {
        const uint32_t place = first + 4 * i * blockDim.x;
        v[i] = place < p.positions ? values_at(r, place, p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

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
    uint2 *values;
    float *sums;
};

// All lanes of a simdgroup together: also those that lie behind the last position.
template <bool IS_BF16>
NATIVE void write_quad(const row_out &to, float4 v, uint32_t first, const kd_inputs &p)
{
    // Lanes that differ in these bits alone have positions of one group.
    const uint32_t mask = p.span == 64 ? 15u : p.span == 32 ? 7u : 6u;
    const uint32_t lane = threadIdx.x & 31, quad = lane & 15;
    const bool is_there = first < p.positions;
    for (uint32_t term = 0; term < p.n_terms; term++) {
        const uint2 word = make_uint2(native_pack<IS_BF16>(v.x, v.y),
                                      native_pack<IS_BF16>(v.z, v.w));
        const float2 a = native_unpack<IS_BF16>(word.x), b = native_unpack<IS_BF16>(word.y);
        if (is_there)
            to.values[((size_t)term * p.term_stride * p.positions + first) / 4] = word;
        v = make_float4(v.x - a.x, v.y - a.y, v.z - b.x, v.w - b.y);
        if (p.span == 0)
            continue;
        float sum = (a.x + a.y) + (b.x + b.y);
#pragma unroll
        for (uint32_t step = 8; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(EVERY_LANE, sum, step);
            sum += mask & step ? other : 0.0f;
        }
        const uint32_t group = p.span == 16 ? first / 64 * 4 + (quad >> 3) * 2 + (quad & 1)
                                            : first / p.span;
        if (is_there && (lane & mask) == 0)
            to.sums[((size_t)group * p.n_terms + term) * p.term_stride] = sum * 0x1p-24f;
    }
}

NATIVE float largest_of(float4 v)
{
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

template <bool IS_BF16, class row>
NATIVE void write_row(const row &r, const row_out &to, const kd_inputs &p, float *factor_out,
                      float *parts)
{
    const uint32_t step = 4 * QUADS_AT_ONCE * blockDim.x;
    float4 v[QUADS_AT_ONCE];
    float2 factor = make_float2(1.0f, 1.0f);
    load(v, r, 4 * threadIdx.x, p);
    if (!IS_BF16) {
        float largest = 0.0f;
        for (uint32_t first = 4 * threadIdx.x;;) {
#pragma unroll
            for (int i = 0; i < QUADS_AT_ONCE; i++)
                largest = fmaxf(largest, largest_of(v[i]));
            first += step;
            if (first >= p.positions)
                break;
            load(v, r, first, p);
        }
        factor = range_factors(__float_as_uint(largest_of(largest, parts)));
        if (step < p.positions)
            load(v, r, 4 * threadIdx.x, p);
    }
    for (uint32_t base = 0; base < p.positions; base += step) {
        if (base > 0)
            load(v, r, base + 4 * threadIdx.x, p);
#pragma unroll
        for (int i = 0; i < QUADS_AT_ONCE; i++) {
            const uint32_t group = base + 4 * i * blockDim.x; // of the first thread
            if (group >= p.positions)
                break;
            const float f = factor.x;
            write_quad<IS_BF16>(to, make_float4(v[i].x * f, v[i].y * f, v[i].z * f, v[i].w * f),
                                group + 4 * threadIdx.x, p);
        }
    }
    if (threadIdx.x == 0)
        *factor_out = p.span ? factor.y * 0x1p24f : factor.y;
}

// Row `to_row` of what is written.
template <class row>
NATIVE void write(const row &r, uint2 *values, float *sums, float *factors, size_t to_row,
                  const kd_inputs &p, float *parts)
{
    const row_out to = {values + to_row * (p.positions / 4), sums + to_row};
    if (p.is_bf16)
        write_row<true>(r, to, p, factors + to_row, parts);
    else
        write_row<false>(r, to, p, factors + to_row, parts);
}

NATIVE plain_row row_of(const float *x, const int32_t *order, uint32_t row, const kd_inputs &p)
{
    const bool is_aligned = !p.has_order && p.cols % 4 == 0 && p.x_stride % 4 == 0 &&
                            (size_t)x % sizeof(float4) == 0;
    return {x + (size_t)row * p.x_stride, p.has_order ? order : nullptr, p.cols, is_aligned};
}

KD_WAITS(linear_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    linear_inputs(const float *x, const int32_t *order, uint2 *values, float *sums, float *factors,
                  const __grid_constant__ kd_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    write(row_of(x, order, blockIdx.x, p), values, sums, factors, blockIdx.x, p, parts);
}

// A threadgroup for each expert that a row has chosen: the row, at its place there.
KD_WAITS(expert_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    expert_inputs(const float *x, const int32_t *places, uint2 *values, float *sums, float *factors,
                  const __grid_constant__ kd_expert_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    write(row_of(x, nullptr, blockIdx.x / p.n_chosen, p.inputs), values, sums, factors,
          (size_t)places[blockIdx.x], p.inputs, parts);
}

// Likewise, what the expert has inside for it.
KD_WAITS(expert_inner_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    expert_inner_inputs(const float *gate_up, const int32_t *places, uint2 *values, float *sums,
                        float *factors, const __grid_constant__ kd_expert_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    const size_t place = (size_t)places[blockIdx.x];
    const float *gate = gate_up + place * p.inputs.x_stride;
    const gated_row r = {gate, gate + p.inputs.cols, p.inputs.cols, p.activation, p.alpha, p.limit};
    write(r, values, sums, factors, place, p.inputs, parts);
}
