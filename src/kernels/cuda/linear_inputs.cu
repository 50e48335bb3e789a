// What native linears read in place of their inputs (args.h, struct kd_inputs), alone or together
// with the norm or activation whose output these are, and what native experts do (struct
// kd_expert_inputs). A threadgroup a row; a thread has positions four by four.
#include "native.h"

#include "int8_order.h"

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

// The column at a position, a multiple of 4, of a tile whose groups are of 16: those of product A
// or B of a half are 16 columns in a row (linear_tiles.h).
NATIVE uint32_t column_of_16(uint32_t position)
{
    const uint32_t product = (position >> 4 & 2u) + (position >> 2 & 1u);
    return 16 * product + 4 * (position >> 3 & 3u);
}

// The first of the four columns at positions first .. first + 3.
NATIVE uint32_t column_at(uint32_t first, const kd_inputs &p)
{
    const uint32_t tile = first & ~(uint32_t)(KD_TILE_COLS - 1), within = first - tile;
    return tile + (p.span == 16 ? column_of_16(within) : within);
}

NATIVE float4 no_quad()
{
    return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Rows: `load` has the thread's values at positions `first` and so on, zeros behind the last.
// AT_ONCE quads are on their way, as many as there are registers for.
struct plain_row {
    enum { AT_ONCE = 5 }; // 20480 positions for the largest threadgroup
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
            return c < cols ? *(const float4 *)(x + c) : no_quad();
        return make_float4(at(c), at(c + 1), at(c + 2), at(c + 3));
    }

    NATIVE void load(float4 (&v)[AT_ONCE], uint32_t first, const kd_inputs &p) const
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t place = first + 4 * i * blockDim.x;
            v[i] = place < p.positions ? quad(column_at(place, p)) : no_quad();
        }
    }
};

// silu(gate) * up, which it also writes. Columns are whole quads, on 16 bytes.
struct silu_row {
    enum { AT_ONCE = KD_KEPT_QUADS };
    const float *gate;
    float *out;
    uint32_t cols;

    NATIVE void load(float4 (&v)[AT_ONCE], uint32_t first, const kd_inputs &p) const
    {
        float4 up[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t c = column_at(first + 4 * i * blockDim.x, p);
            v[i] = c < cols ? *(const float4 *)(gate + c) : no_quad();
            up[i] = c < cols ? *(const float4 *)(gate + cols + c) : no_quad();
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t c = column_at(first + 4 * i * blockDim.x, p);
            v[i] = make_float4(kd_silu(v[i].x) * up[i].x, kd_silu(v[i].y) * up[i].y,
                               kd_silu(v[i].z) * up[i].z, kd_silu(v[i].w) * up[i].w);
            if (c < cols)
                *(float4 *)(out + c) = v[i];
        }
    }
};

// What an expert has inside, from its gate and up. Columns are whole quads, on 16 bytes.
struct gated_row {
    enum { AT_ONCE = KD_KEPT_QUADS };
    const float *gate, *up;
    uint32_t cols, activation;
    float alpha, limit;

    NATIVE float of(float g, float u) const
    {
        return kd_activate(activation, g, u, alpha, limit);
    }

    NATIVE void load(float4 (&v)[AT_ONCE], uint32_t first, const kd_inputs &p) const
    {
        float4 u[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t c = column_at(first + 4 * i * blockDim.x, p);
            v[i] = c < cols ? *(const float4 *)(gate + c) : no_quad();
            u[i] = c < cols ? *(const float4 *)(up + c) : no_quad();
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (column_at(first + 4 * i * blockDim.x, p) < cols)
                v[i] = make_float4(of(v[i].x, u[i].x), of(v[i].y, u[i].y), of(v[i].z, u[i].z),
                                   of(v[i].w, u[i].w));
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

// Where the terms and sums of row `row` go, and its factor or scales.
struct row_out {
    uint2 *values;
    float *sums, *factors;
    uint32_t row;
};

// For linear_wide: where the pairs of the quad at position `first` of a row lie. Tiles of
// KD_INPUT_STACK rows and 64 columns follow each other, in a tile rows of 128 bytes, in a row the
// pairs as the matrix unit wants them: columns 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of the 16 of a
// product; pieces of 16 bytes lie where their number, exclusive or the row's last three bits, says.
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

// Adds up what lanes with positions of one group have, and writes it times `factor`.
NATIVE void write_sum(const row_out &to, float sum, float factor, uint32_t first, uint32_t term,
                      const kd_inputs &p)
{
    // Lanes that differ in these bits alone have positions of one group.
    const uint32_t mask = p.span == 64 ? 15u : p.span == 32 ? 7u : 6u;
    const uint32_t lane = threadIdx.x & 31, quad = lane & 15;
#pragma unroll
    for (uint32_t step = 8; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(EVERY_LANE, sum, step);
        sum += mask & step ? other : 0.0f;
    }
    const uint32_t group = p.span == 16 ? first / 64 * 4 + (quad >> 3) * 2 + (quad & 1)
                                        : first / p.span;
    if (first < p.positions && (lane & mask) == 0)
        to.sums[((size_t)group * p.n_terms + term) * p.term_stride + to.row] = sum * factor;
}

// Four values as int8 codes: those of eight lanes, 32 columns, have one scale. As quantize_unit of
// device/cpu/linear_scalar.c.
struct int8_quad {
    int32_t x, y, z, w;
    float scale;

    NATIVE int8_quad(float4 v)
    {
        uint32_t most = max(max(__float_as_uint(v.x) & 0x7FFFFFFFu, __float_as_uint(v.y) & 0x7FFFFFFFu),
                            max(__float_as_uint(v.z) & 0x7FFFFFFFu, __float_as_uint(v.w) & 0x7FFFFFFFu));
#pragma unroll
        for (int step = 4; step > 0; step /= 2)
            most = max(most, __shfl_xor_sync(EVERY_LANE, most, step));
        const float largest = __uint_as_float(most);
        // Of infinity and NaN the codes are 0 and the scale alone makes the results NaN.
        const float inverse = most < 0x7F800000u && largest >= 0x1p-100f ? 127.0f / largest : 0.0f;
        scale = largest >= 0x1p-100f || most >= 0x7F800000u ? largest / 127.0f : 0.0f;
        x = inverse > 0.0f ? __float2int_rn(v.x * inverse) : 0;
        y = inverse > 0.0f ? __float2int_rn(v.y * inverse) : 0;
        z = inverse > 0.0f ? __float2int_rn(v.z * inverse) : 0;
        w = inverse > 0.0f ? __float2int_rn(v.w * inverse) : 0;
    }

    NATIVE float4 values() const
    {
        return make_float4((float)x * scale, (float)y * scale, (float)z * scale, (float)w * scale);
    }
};

NATIVE void write_codes(const row_out &to, const int8_quad &q, uint32_t first, const kd_inputs &p)
{
    if (first < p.positions)
        ((uint32_t *)to.values)[(size_t)to.row * (p.positions / 4) + int8_word_at(first)] =
            int8_word(q.x, q.y, q.z, q.w);
    if (first < p.positions && first % 32 == 0)
        to.factors[int8_scale_at(first, to.row, p.term_stride)] = q.scale;
    write_sum(to, (float)(q.x + q.y + q.z + q.w) * q.scale, 1.0f, first, 0, p);
}

// The four values at `first` times the row's factor. All lanes of a simdgroup together: also those
// that lie behind the last position.
template <bool IS_BF16>
NATIVE void write_quad(const row_out &to, float4 v, float factor, uint32_t first,
                       const kd_inputs &p)
{
    const bool is_there = first < p.positions;
    if (!IS_BF16 && p.rounding != KD_ROUND_16) {
        const int8_quad q(v);
        if (p.rounding == KD_ROUND_INT8) {
            write_codes(to, q, first, p);
            return;
        }
        v = q.values();
    }
    v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    for (uint32_t term = 0; term < p.n_terms; term++) {
        const uint2 word = make_uint2(native_pack<IS_BF16>(v.x, v.y),
                                      native_pack<IS_BF16>(v.z, v.w));
        const float2 a = native_unpack<IS_BF16>(word.x), b = native_unpack<IS_BF16>(word.y);
        if (is_there && p.is_paired)
            paired_place(to.values, to.row, first, p.positions / KD_TILE_COLS).write(word);
        else if (is_there)
            to.values[((size_t)term * p.term_stride + to.row) * (p.positions / 4) + first / 4] =
                word;
        v = make_float4(v.x - a.x, v.y - a.y, v.z - b.x, v.w - b.y);
        if (p.span && !p.is_paired)
            write_sum(to, (a.x + a.y) + (b.x + b.y), 0x1p-24f, first, term, p);
    }
}

NATIVE float largest_of(float4 v)
{
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

template <bool IS_BF16, class row>
NATIVE void write_row(const row &r, const row_out &to, const kd_inputs &p, float *parts)
{
    const uint32_t step = 4 * row::AT_ONCE * blockDim.x;
    const bool has_factor = p.rounding != KD_ROUND_INT8;
    float4 v[row::AT_ONCE];
    float2 factor = make_float2(1.0f, 1.0f);
    r.load(v, 4 * threadIdx.x, p);
    if (!IS_BF16 && has_factor) {
        float largest = 0.0f;
        for (uint32_t first = 4 * threadIdx.x;;) {
#pragma unroll
            for (int i = 0; i < row::AT_ONCE; i++)
                largest = fmaxf(largest, largest_of(v[i]));
            first += step;
            if (first >= p.positions)
                break;
            r.load(v, first, p);
        }
        factor = range_factors(__float_as_uint(largest_of(largest, parts)));
        if (step < p.positions)
            r.load(v, 4 * threadIdx.x, p);
    }
    for (uint32_t base = 0; base < p.positions; base += step) {
        if (base > 0)
            r.load(v, base + 4 * threadIdx.x, p);
#pragma unroll
        for (int i = 0; i < row::AT_ONCE; i++) {
            const uint32_t group = base + 4 * i * blockDim.x; // of the first thread
            if (group >= p.positions)
                break;
            write_quad<IS_BF16>(to, v[i], factor.x, group + 4 * threadIdx.x, p);
        }
    }
    if (threadIdx.x == 0 && has_factor)
        to.factors[to.row] = p.span && !p.is_paired ? factor.y * 0x1p24f : factor.y;
}

// Row `to_row` of what is written.
template <class row>
NATIVE void write(const row &r, uint2 *values, float *sums, float *factors, uint32_t to_row,
                  const kd_inputs &p, float *parts)
{
    const row_out to = {values, sums, factors, to_row};
    if (p.is_bf16)
        write_row<true>(r, to, p, parts);
    else
        write_row<false>(r, to, p, parts);
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
          (uint32_t)places[blockIdx.x], p.inputs, parts);
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
    const uint32_t place = (uint32_t)places[blockIdx.x];
    const float *gate = gate_up + (size_t)place * p.inputs.x_stride;
    const gated_row r = {gate, gate + p.inputs.cols, p.inputs.cols, p.activation, p.alpha, p.limit};
    write(r, values, sums, factors, place, p.inputs, parts);
}

KD_WAITS(silu_mul_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    silu_mul_inputs(const float *gate_up, float *out, uint2 *values, float *sums, float *factors,
                    const __grid_constant__ kd_silu_inputs p)
{
    __shared__ float parts[KD_INPUT_THREADS / 32];
    native_let_next_start();
    native_wait_for_previous();
    const silu_row r = {gate_up + (size_t)blockIdx.x * p.silu.gate_up_stride,
                        out + (size_t)blockIdx.x * p.silu.out_stride, p.silu.cols};
    write(r, values, sums, factors, blockIdx.x, p.inputs, parts);
}

// --- rms_norm ------------------------------------------------------------------------------------

NATIVE float4 operator+(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

NATIVE float4 operator*(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

NATIVE float4 all_four(float v)
{
    return make_float4(v, v, v, v);
}

// A thread's quads of a row of `cols`, a multiple of 4, whose first has this position.
NATIVE void load_quads(float4 (&v)[KD_KEPT_QUADS], const float *from, const kd_inputs &p)
{
#pragma unroll
    for (int i = 0; i < KD_KEPT_QUADS; i++) {
        const uint32_t c = column_at(4 * (threadIdx.x + i * blockDim.x), p);
        v[i] = c < p.cols ? *(const float4 *)(from + c) : no_quad();
    }
}

NATIVE void store_quad(float *to, float4 v, uint32_t first, const kd_inputs &p)
{
    const uint32_t c = column_at(first, p);
    if (c < p.cols)
        *(float4 *)(to + c) = v;
}

// The sum of all threads' x and the largest of their y.
NATIVE float2 sum_and_largest(float2 v, float2 *parts)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v.x += __shfl_xor_sync(EVERY_LANE, v.x, step);
        v.y = fmaxf(v.y, __shfl_xor_sync(EVERY_LANE, v.y, step));
    }
    if (lane == 0)
        parts[warp] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? parts[lane] : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v.x += __shfl_xor_sync(EVERY_LANE, v.x, step);
        v.y = fmaxf(v.y, __shfl_xor_sync(EVERY_LANE, v.y, step));
    }
    return v;
}

// As rms_norm.metal. Weights, which no kernel writes, are on their way before the input is there.
KD_WAITS(rms_norm_inputs)
extern "C" __global__ void __launch_bounds__(KD_INPUT_THREADS)
    rms_norm_inputs(const float *x, float *residual, const float *weight, float *out, uint2 *values,
                    float *sums, float *factors, const __grid_constant__ kd_norm_inputs p)
{
    __shared__ float2 parts[KD_INPUT_THREADS / 32];
    const kd_inputs &in = p.inputs;
    const size_t row = blockIdx.x;
    float *const sum = residual + row * p.norm.residual_stride;
    const row_out to = {values, sums, factors, blockIdx.x};
    float4 v[KD_KEPT_QUADS], w[KD_KEPT_QUADS], before[KD_KEPT_QUADS];
    native_let_next_start();
    load_quads(w, weight, in);
    native_wait_for_previous();
    load_quads(v, x + row * p.norm.x_stride, in);
    if (p.norm.has_residual)
        load_quads(before, sum, in);
    float2 found = make_float2(0.0f, 0.0f); // squares, and the largest of v (w + plus)
#pragma unroll
    for (int i = 0; i < KD_KEPT_QUADS; i++) {
        if (p.norm.has_residual) {
            v[i] = v[i] + before[i];
            store_quad(sum, v[i], 4 * (threadIdx.x + i * blockDim.x), in);
        }
        w[i] = w[i] + all_four(p.norm.plus);
        const float4 squares = v[i] * v[i];
        found.x += (squares.x + squares.y) + (squares.z + squares.w);
        found.y = fmaxf(found.y, largest_of(v[i] * w[i]));
    }
    found = sum_and_largest(found, parts);
    const float factor = rsqrtf(found.x / (float)in.cols + p.norm.eps);
    // Of products below the normal numbers nothing is known but that they are no larger.
    const float largest = fmaxf(found.y, 0x1p-126f) * factor;
    const float2 range = in.is_bf16 ? make_float2(1.0f, 1.0f)
                                    : range_factors(__float_as_uint(largest));
#pragma unroll
    for (int i = 0; i < KD_KEPT_QUADS; i++)
        v[i] = v[i] * all_four(factor) * w[i];
#pragma unroll
    for (int i = 0; i < KD_KEPT_QUADS; i++) {
        if (4 * i * blockDim.x >= in.positions)
            break;
        const uint32_t first = 4 * (threadIdx.x + i * blockDim.x);
        store_quad(out + row * p.norm.out_stride, v[i], first, in);
        if (in.is_bf16)
            write_quad<true>(to, v[i], 1.0f, first, in);
        else
            write_quad<false>(to, v[i], range.x, first, in);
    }
    if (threadIdx.x == 0 && in.rounding != KD_ROUND_INT8)
        factors[row] = in.span && !in.is_paired ? range.y * 0x1p24f : range.y;
}
