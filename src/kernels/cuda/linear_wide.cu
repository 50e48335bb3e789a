// Native linears for many rows of input on Hopper, whose matrix unit multiplies for four simdgroups
// at once (wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"): weights from their
// registers, rows from the threadgroup's memory, while the next weights are made. Codes become f16
// values here, scale * code + bias rounded once: sums of groups could not be scaled as fast as the
// unit makes them. A power of two for each output keeps the values in the range of f16.
//
// A threadgroup has 64 RT OUTS outputs (y) for N rows (x), and OUTS KS warpgroups of 128 threads;
// those of KS > 1 take turns along the columns and add up their sums at the end. Rows lie in memory
// as the unit wants them (linear_inputs.cu), so that a tile of them is one copy of the copy engine,
// into a ring of stages.
#include "linear_tiles.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { WARPGROUP = 128, ROW_BYTES = KD_TILE_COLS * 2, SLICES = KD_TILE_COLS / 16 };

// --- the matrix unit ---------------------------------------------------------------------------

// The operands written so far are seen by the products started next; those belong to one group.
template <int R> NATIVE void wide_begin(uint32_t (&values)[R][SLICES][4])
{
#pragma unroll
    for (int i = 0; i < R * SLICES * 4; i++) // or the compiler makes some of them between products
        asm volatile("" : "+r"((&values[0][0][0])[i])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

NATIVE void wide_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

NATIVE void wide_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Describes rows of 128 bytes, 16 columns of which begin at `at`: the 16-byte pieces of a row lie
// where their number, exclusive or the row's last three bits, says ("128-Byte swizzling mode").
NATIVE uint64_t wide_rows(uint32_t at)
{
    const uint64_t eight_rows = 8 * ROW_BYTES / 16, swizzle = 1;
    return swizzle << 62 | eight_rows << 32 | 1ull << 16 | (at & 0x3FFFFu) >> 4;
}

// d += a b: 64 outputs, 16 columns, N rows, half as many sums a thread.
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define WGMMA_64(type)                                                                             \
    asm volatile("{.reg .pred p; setp.eq.u32 p,1,1;"                                               \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                       \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                        \
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"               \
                 "{%32,%33,%34,%35},%36,p,1,1,0;}"                                                 \
                 : D16(0), D16(16)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_128(type)                                                                            \
    asm volatile("{.reg .pred p; setp.eq.u32 p,1,1;"                                               \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                      \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                        \
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                \
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                \
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"               \
                 "{%64,%65,%66,%67},%68,p,1,1,0;}"                                                 \
                 : D16(0), D16(16), D16(32), D16(48)                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

template <bool IS_BF16>
NATIVE void wide_multiply(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    if (IS_BF16)
        WGMMA_64("bf16");
    else
        WGMMA_64("f16");
}

template <bool IS_BF16>
NATIVE void wide_multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
    if (IS_BF16)
        WGMMA_128("bf16");
    else
        WGMMA_128("f16");
}

// --- the ring of stages ------------------------------------------------------------------------

// A barrier is passed each time `count` threads have arrived and all bytes that they said to expect
// are there (PTX ISA, "mbarrier").
NATIVE void barrier_init(uint32_t at, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(at), "r"(count) : "memory");
}

NATIVE void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(at) : "memory");
}

NATIVE void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(bytes)
                 : "memory");
}

// Waits for the passing that ends an even (parity 0) or odd phase.
NATIVE void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;"
                 "@!p bra AGAIN;}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

// One thread starts a copy that arrives at the barrier as so many bytes.
NATIVE void barrier_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,"
                 "[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// Stages with a barrier each that says that rows are there, and one that they were read.
template <int N, int OUTS, int KS> struct wide_ring {
    enum {
        TILE_BYTES = N * ROW_BYTES,
        STAGE_BYTES = KS * TILE_BYTES,
        STAGES = KD_WIDE_STAGES,
        BARRIER_BYTES = 1024 // behind which stages lie as the unit wants them
    };
    uint32_t barriers, stages, n_tiles;
    const uint8_t *rows;

    NATIVE uint32_t stage(uint32_t step) const
    {
        return stages + step % STAGES * STAGE_BYTES;
    }

    NATIVE uint32_t is_full(uint32_t step) const
    {
        return barriers + step % STAGES * 8;
    }

    NATIVE uint32_t is_read(uint32_t step) const
    {
        return barriers + (STAGES + step % STAGES) * 8;
    }

    // All threads. blockIdx.x-th rows of x, in blocks of KD_INPUT_STACK.
    NATIVE void open(const void *memory, const void *x, uint32_t all_tiles)
    {
        const uint32_t first = blockIdx.x * N;
        barriers = (native_shared(memory) + 1023u) & ~1023u;
        stages = barriers + BARRIER_BYTES;
        n_tiles = all_tiles;
        rows = (const uint8_t *)x +
               ((size_t)(first / KD_INPUT_STACK) * n_tiles * KD_INPUT_STACK +
                first % KD_INPUT_STACK) * ROW_BYTES;
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < STAGES; i++) {
                barrier_init(is_full(i), 1);
                barrier_init(is_read(i), 4 * OUTS * KS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }

    // One thread starts the copies of a step, of the tiles of columns from step KS on.
    NATIVE void fill(uint32_t step) const
    {
        const uint32_t k = step * KS, n = min(n_tiles - k, (uint32_t)KS);
        barrier_expect(is_full(step), n * TILE_BYTES);
        for (uint32_t i = 0; i < n; i++)
            barrier_copy(stage(step) + i * TILE_BYTES,
                         rows + (size_t)(k + i) * KD_INPUT_STACK * ROW_BYTES, TILE_BYTES,
                         is_full(step));
    }

    NATIVE void wait_full(uint32_t step) const
    {
        barrier_wait(is_full(step), step / STAGES & 1);
    }

    NATIVE void let_refill(uint32_t step) const
    {
        if ((threadIdx.x & 31) == 0)
            barrier_arrive(is_read(step));
    }

    // One thread fills the stage of a step again once all have read it.
    NATIVE void refill(uint32_t step, uint32_t n_steps) const
    {
        if (step + STAGES >= n_steps)
            return;
        barrier_wait(is_read(step), step / STAGES & 1);
        fill(step + STAGES);
    }
};

// --- weights -----------------------------------------------------------------------------------

// Scale and bias of rows g and g + 8 as pairs of f16, each twice.
struct wide_levels {
    uint32_t scale, bias, scale8, bias8;
};

NATIVE wide_levels pair_levels(const row_levels &l, float factor, float factor8)
{
    return {native_pack<false>(l.scale * factor, l.scale * factor),
            native_pack<false>(l.bias * factor, l.bias * factor),
            native_pack<false>(l.scale8 * factor8, l.scale8 * factor8),
            native_pack<false>(l.bias8 * factor8, l.bias8 * factor8)};
}

// Codes in the low bits of an f16 pair -> scale * code + bias. Below 1024 an integer is what is
// added to the bits of 1024.0.
NATIVE uint32_t value_pair(uint32_t codes, uint32_t scale, uint32_t bias)
{
    uint32_t value;
    asm("{.reg .b32 t; or.b32 t,%1,0x64006400; sub.f16x2 t,t,%4; fma.rn.f16x2 %0,t,%2,%3;}"
        : "=r"(value)
        : "r"(codes), "r"(scale), "r"(bias), "r"(0x64006400u));
    return value;
}

// A sixteenth: the codes of product B of 4 bits lie 4 bits higher.
NATIVE uint32_t sixteenth(uint32_t pair)
{
    uint32_t value;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(value) : "r"(pair), "r"(0x2C002C00u));
    return value;
}

// E2M1 as f16 times 2^-14 -> scale * value.
NATIVE uint32_t value_pair(uint32_t values, uint32_t scale)
{
    uint32_t value;
    asm("{.reg .b32 t; mul.rn.f16x2 t,%1,%3; mul.rn.f16x2 %0,t,%2;}"
        : "=r"(value)
        : "r"(values), "r"(scale), "r"(0x74007400u));
    return value;
}

// A simdgroup's tile as the unit's first operand, for each 16 columns.
template <int BITS, int SPANS, bool IS_WIDE>
NATIVE void make_values(uint32_t (&a)[SLICES][4], const tile_ahead<BITS, SPANS, IS_WIDE> &tile,
                        float factor, float factor8, bool is_bf16_level)
{
    wide_levels l;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        fragment(a[s], tile.codes, s / 2, s % 2 == 1);
        if (SPANS == 0)
            continue;
        if (s * SPANS % SLICES == 0)
            l = pair_levels(
                load_levels<BITS, IS_WIDE>(&tile.levels[s * SPANS / SLICES], is_bf16_level),
                BITS == TILE_E2M1 ? factor * 0x1p10f : factor,
                BITS == TILE_E2M1 ? factor8 * 0x1p10f : factor8);
        if (BITS == TILE_E2M1) {
            a[s][0] = value_pair(a[s][0], l.scale);
            a[s][1] = value_pair(a[s][1], l.scale8);
            a[s][2] = value_pair(a[s][2], l.scale);
            a[s][3] = value_pair(a[s][3], l.scale8);
            continue;
        }
        const bool is_high = BITS == 4 && s % 2 == 1;
        const uint32_t scale = is_high ? sixteenth(l.scale) : l.scale;
        const uint32_t scale8 = is_high ? sixteenth(l.scale8) : l.scale8;
        a[s][0] = value_pair(a[s][0], scale, l.bias);
        a[s][1] = value_pair(a[s][1], scale8, l.bias8);
        a[s][2] = value_pair(a[s][2], scale, l.bias);
        a[s][3] = value_pair(a[s][3], scale8, l.bias8);
    }
}

// --- the product -------------------------------------------------------------------------------

template <int RT, int N> struct wide_out {
    const float *factors, *row_factors, *bias;
    float *out;

    NATIVE void write(const float (&sum)[RT][N / 2], uint32_t first_tile, const kd_tiles &p) const
    {
        const uint32_t g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t m = blockIdx.x * N + n * 8 + 2 * t + i;
                if (m >= p.n_rows)
                    continue;
                const float factor = factors[m];
#pragma unroll
                for (int r = 0; r < RT; r++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const uint32_t row = (first_tile + 4 * r) * KD_TILE_ROWS + g + 8 * e;
                        if (row >= p.rows)
                            continue;
                        const float down = row_factors ? 1.0f / row_factors[row] : 1.0f;
                        out[(size_t)m * p.out_stride + row] = fmaf(
                            sum[r][n * 4 + 2 * e + i] * factor, down, bias ? bias[row] : 0.0f);
                    }
            }
    }
};

template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int N, int OUTS, int KS>
NATIVE void wide(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,
                 const float *row_factors, const wide_out<RT, N> &to, const kd_tiles &p)
{
    typedef tile_ahead<BITS, SPANS, IS_WIDE> tile;
    enum {
        ROW_TILES = 4 * RT * OUTS, // of 16 outputs
        TILE_WORDS = BITS / 4 * 32,
        LEVEL_BYTES = SPANS * 8 * tile::LEVEL_BYTES,
        // Steps whose weights are on their way: what registers allow, and more for a few rows.
        WEIGHTS_AHEAD = (KS > 1 ? 2 : 1) * (BITS / 4 == 1 && SPANS == 1 ? 2 : 1),
        UNROLLED = WEIGHTS_AHEAD > 2 ? WEIGHTS_AHEAD : 2
    };
    extern __shared__ __align__(16) uint8_t memory[];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    const uint32_t group = threadIdx.x / WARPGROUP, out_group = group % OUTS, turn = group / OUTS;
    const uint32_t first_tile = blockIdx.y * ROW_TILES + out_group * 4 * RT + warp;
    const uint32_t n_steps = (p.n_tiles + KS - 1) / KS;
    const uint32_t n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
    const uint4 *codes = (const uint4 *)tiles + (size_t)first_tile * p.n_tiles * TILE_WORDS + lane;
    const uint8_t *level =
        levels + (size_t)first_tile * n_levels * LEVEL_BYTES + (lane >> 2) * tile::LEVEL_BYTES;
    const auto load = [&](tile(&ahead)[RT], uint32_t k) {
#pragma unroll
        for (int r = 0; r < RT; r++)
            if (k < p.n_tiles)
                ahead[r].load(codes + ((size_t)4 * r * p.n_tiles + k) * TILE_WORDS,
                              level + ((size_t)4 * r * n_levels + (k >> p.level_shift)) *
                                          LEVEL_BYTES);
    };

    tile ahead[WEIGHTS_AHEAD][RT];
    float factor[RT][2], sum[RT][N / 2];
    native_let_next_start();
#pragma unroll
    for (int i = 0; i < WEIGHTS_AHEAD; i++)
        load(ahead[i], i * KS + turn);
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            factor[r][e] = SPANS ? row_factors[(first_tile + 4 * r) * KD_TILE_ROWS + (lane >> 2) +
                                               8 * e]
                                 : 1.0f;
#pragma unroll
    for (int i = 0; i < RT * N / 2; i++)
        (&sum[0][0])[i] = 0.0f;
    wide_ring<N, OUTS, KS> ring;
    ring.open(memory, x, p.n_tiles);
    native_wait_for_previous();
    if (threadIdx.x == 0)
        for (uint32_t step = 0; step < KD_WIDE_STAGES && step < n_steps; step++)
            ring.fill(step);
    uint32_t values[2][RT][SLICES][4];
    const auto make = [&](uint32_t(&to)[RT][SLICES][4], const tile(&from)[RT]) {
#pragma unroll
        for (int r = 0; r < RT; r++)
            make_values<BITS, SPANS, IS_WIDE>(to[r], from[r], factor[r][0], factor[r][1],
                                              p.is_bf16);
    };
    make(values[0], ahead[0]);
    load(ahead[0], WEIGHTS_AHEAD * KS + turn);
    for (uint32_t first = 0; first < n_steps; first += UNROLLED)
#pragma unroll
        for (int i = 0; i < UNROLLED; i++) {
            const uint32_t step = first + i;
            if (step >= n_steps)
                break;
            if (KS == 1 || step * KS + turn < p.n_tiles) {
                const uint32_t rows = ring.stage(step) + turn * ring.TILE_BYTES;
                ring.wait_full(step);
                wide_begin(values[i % 2]);
#pragma unroll
                for (int s = 0; s < SLICES; s++)
#pragma unroll
                    for (int r = 0; r < RT; r++)
                        wide_multiply<IS_BF16>(sum[r], values[i % 2][r][s],
                                               wide_rows(rows + s * 32));
                wide_end();
                make(values[(i + 1) % 2], ahead[(i + 1) % WEIGHTS_AHEAD]);
                load(ahead[(i + 1) % WEIGHTS_AHEAD], (step + 1 + WEIGHTS_AHEAD) * KS + turn);
                wide_wait();
            }
            ring.let_refill(step);
            if (threadIdx.x == 0 && step > 0) // of the step before: others may be behind
                ring.refill(step - 1, n_steps);
        }
    if (KS > 1) {
        float *parts = (float *)(memory + KD_WIDE_REST_BYTES) + (threadIdx.x % WARPGROUP);
        __syncthreads(); // the rows are no longer read
        if (turn > 0)
#pragma unroll
            for (int i = 0; i < RT * N / 2; i++)
                parts[(((turn - 1) * OUTS + out_group) * (RT * N / 2) + i) * WARPGROUP] =
                    (&sum[0][0])[i];
        __syncthreads();
        if (turn > 0)
            return;
        for (int other = 0; other < KS - 1; other++)
#pragma unroll
            for (int i = 0; i < RT * N / 2; i++)
                (&sum[0][0])[i] +=
                    parts[((other * OUTS + out_group) * (RT * N / 2) + i) * WARPGROUP];
    }
    to.write(sum, first_tile, p);
}

#define WIDE(name, bits, spans, is_wide, is_bf16, rt, n, outs, ks, n_groups)                       \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(WARPGROUP *outs *ks, n_groups)                    \
        name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,                       \
             const float *row_factors, const float *factors, const float *bias, float *out,        \
             const __grid_constant__ kd_tiles p)                                                   \
    {                                                                                              \
        wide<bits, spans, is_wide, is_bf16, rt, n, outs, ks>(                                      \
            tiles, levels, x, row_factors, wide_out<rt, n>{factors, row_factors, bias, out}, p);   \
    }
// For 64 rows 64 outputs, or 256; for 128 rows 128, two threadgroups on a processor, or 256.
#define WIDE_ALL(form, bits, spans, is_wide, is_bf16)                                              \
    WIDE(linear_wide_##form##_64, bits, spans, is_wide, is_bf16, 1, 64, 1, 4, 1)                   \
    WIDE(linear_wide_##form##_64x4, bits, spans, is_wide, is_bf16, 1, 64, 4, 1, 1)                 \
    WIDE(linear_wide_##form##_128, bits, spans, is_wide, is_bf16, 1, 128, 2, 1, 2)                 \
    WIDE(linear_wide_##form##_128x2, bits, spans, is_wide, is_bf16, 2, 128, 2, 1, 1)

TILE_FORMS(WIDE_ALL)
#endif
