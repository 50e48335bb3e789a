// What native linears read in place of their inputs (args.h, struct kd_inputs). A threadgroup a
// row; a thread has positions four by four.
#include "native.h"

enum { QUADS_AT_ONCE = 5 }; // loads on their way: 20480 positions for the largest threadgroup

// The column at a position, a multiple of 4, of a tile whose groups are of 16: those of product A
// or B of a half are 16 columns in a row (linear_tiles.h).
NATIVE uint32_t column_of_16(uint32_t position)
{
    const uint32_t product = (position >> 4 & 2u) + (position >> 2 & 1u);
    return 16 * product + 4 * (position >> 3 & 3u);
}

struct row {
    const float *x;
    const int32_t *order; // NULL: none
    uint32_t cols, span, positions;
    bool is_aligned; // whole quads of columns lie on 16 bytes

    NATIVE float at(uint32_t c) const
    {
        return c < cols ? x[order ? order[c] : c] : 0.0f;
    }

    // The values at positions first .. first + 3.
    NATIVE float4 quad(uint32_t first) const
    {
        const uint32_t tile = first & ~(uint32_t)(KD_TILE_COLS - 1), within = first - tile;
        const uint32_t c = tile + (span == 16 ? column_of_16(within) : within);
        if (is_aligned)
            return c < cols ? *(const float4 *)(x + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
    }

    NATIVE void load(float4 (&v)[QUADS_AT_ONCE], uint32_t first) const
    {
#pragma unroll
        for (int i = 0; i < QUADS_AT_ONCE; i++) {
            const uint32_t place = first + 4 * i * blockDim.x;
            v[i] = place < positions ? quad(place) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
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
    uint2 *values;
    float *sums;
};

// For linear_wide: where the pairs of the quad at position `first` of a row lie, in words, the second
// 16 bytes behind the first but for the swizzle. Tiles of KD_INPUT_STACK rows and 64 columns follow
// each other, in a tile rows of 128 bytes, in a row the pairs as the matrix unit wants them: columns
// 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of the 16 of a product; pieces of 16 bytes lie where their
// number, exclusive or the row's last three bits, says.
struct paired_place {
    uint32_t *row;
    uint32_t piece, word, row_bits;

    NATIVE paired_place(uint2 *values, uint32_t row_number, uint32_t first, uint32_t n_tiles)
    {
        const uint32_t product = (first >> 4 & 2u) + (first >> 2 & 1u);
        const uint32_t block = row_number / KD_INPUT_STACK, within = row_number % KD_INPUT_STACK;
        row = (uint32_t *)values + (((size_t)block * n_tiles + first / KD_TILE_COLS) *
                                        KD_INPUT_STACK + within) * (KD_TILE_COLS / 2);
        piece = product * 2;
        word = first >> 3 & 3u;
        row_bits = within & 7u;
    }

    NATIVE void write(uint2 pairs) const
    {
        row[(piece ^ row_bits) * 4 + word] = pairs.x;
        row[((piece + 1) ^ row_bits) * 4 + word] = pairs.y;
    }
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
        if (is_there && p.is_paired)
            paired_place(to.values, blockIdx.x, first, p.positions / KD_TILE_COLS).write(word);
        else if (is_there)
            to.values[((size_t)term * p.term_stride + blockIdx.x) * (p.positions / 4) +
                      first / 4] = word;
        v = make_float4(v.x - a.x, v.y - a.y, v.z - b.x, v.w - b.y);
        if (p.span == 0 || p.is_paired)
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

template <bool IS_BF16>
NATIVE void write_row(const row &r, const row_out &to, const kd_inputs &p, float *factor_out,
                      float *parts)
{
    const uint32_t step = 4 * QUADS_AT_ONCE * blockDim.x;
    float4 v[QUADS_AT_ONCE];
    float2 factor = make_float2(1.0f, 1.0f);
    r.load(v, 4 * threadIdx.x);
    if (!IS_BF16) {
        float largest = 0.0f;
        for (uint32_t first = 4 * threadIdx.x;;) {
#pragma unroll
            for (int i = 0; i < QUADS_AT_ONCE; i++)
                largest = fmaxf(largest, largest_of(v[i]));
            first += step;
            if (first >= p.positions)
                break;
            r.load(v, first);
        }
        factor = range_factors(__float_as_uint(largest_of(largest, parts)));
        if (step < p.positions)
            r.load(v, 4 * threadIdx.x);
    }
    for (uint32_t base = 0; base < p.positions; base += step) {
        if (base > 0)
            r.load(v, base + 4 * threadIdx.x);
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
        *factor_out = p.span && !p.is_paired ? factor.y * 0x1p24f : factor.y;
}

KD_WAITS(linear_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    linear_inputs(const float *x, const int32_t *order, uint2 *values, float *sums, float *factors,
                  const __grid_constant__ kd_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    const bool is_aligned = !p.has_order && p.cols % 4 == 0 && p.x_stride % 4 == 0 &&
                            (size_t)x % sizeof(float4) == 0;
    const row r = {x + (size_t)blockIdx.x * p.x_stride, p.has_order ? order : nullptr, p.cols,
                   p.span, p.positions, is_aligned};
    const row_out to = {values, sums + blockIdx.x};
    if (p.is_bf16)
        write_row<true>(r, to, p, factors + blockIdx.x, parts);
    else
        write_row<false>(r, to, p, factors + blockIdx.x, parts);
}
