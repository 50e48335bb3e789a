// Native linears for many rows of input on Hopper, whose matrix unit multiplies for four simdgroups
// at once (wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"): weights from their
// registers, rows from the threadgroup's memory, while the next weights are made. Codes become f16
// values here, scale * code + bias rounded once: sums of groups could not be scaled as fast as the
// unit makes them. A power of two for each output keeps the values in the range of f16.
//
// A threadgroup has 64 RT OUTS outputs (y) for N rows (x): OUTS KS warpgroups of 128 threads that
// multiply, those of KS > 1 take turns along the columns and add up their sums at the end, and one
// more that has the copy engine bring weights and rows into a ring of stages, DEPTH tiles of columns
// for each turn at once. Rows lie in memory as the unit wants them (linear_inputs.cu).
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

// Describes rows of 128 bytes, 16 columns of which begin at `at`, WIDE_SLICE more the next 16: the 16-byte pieces of a row lie
// where their number, exclusive or the row's last three bits, says ("128-Byte swizzling mode").
enum { WIDE_SLICE = 16 * 2 / 16 };

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

// A thread starts a copy that arrives at the barrier as so many bytes.
NATIVE void barrier_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,"
                 "[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// All threads of a warpgroup give registers away, or take what others gave.
template <int N> NATIVE void wide_fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> NATIVE void wide_more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// True in one lane.
NATIVE bool wide_elect()
{
    uint32_t is_one;
    asm volatile("{.reg .pred p; elect.sync _|p,0xFFFFFFFF; selp.u32 %0,1,0,p;}" : "=r"(is_one));
    return is_one;
}

// Threads that multiply wait for each other, not for those that copy.
template <int N_THREADS> NATIVE void wide_meet()
{
    asm volatile("bar.sync 1,%0;" ::"n"(N_THREADS) : "memory");
}

// Where a step is in the ring: its stage, and whether the ring's turn is odd.
struct wide_place {
    uint32_t slot, parity;
};

// Stages with a barrier each that says that a step's tiles are there, and one that they were read:
// of TILES columns of tiles, first the rows, then row by row of tiles the codes, then the levels.
template <int BITS, int SPANS, bool IS_WIDE, int N, int ROW_TILES, int TILES, int WARPS>
struct wide_ring {
    enum {
        INPUT_BYTES = N * ROW_BYTES,
        CODE_BYTES = BITS / 4 * 512,
        LEVEL_BYTES = SPANS * 8 * tile_levels<BITS, IS_WIDE>::BYTES,
        CODES_AT = TILES * INPUT_BYTES,
        LEVELS_AT = CODES_AT + ROW_TILES * TILES * CODE_BYTES,
        STAGE_BYTES = (LEVELS_AT + ROW_TILES * TILES * LEVEL_BYTES + 1023) & ~1023,
        STAGES = (KD_WIDE_BYTES - KD_WIDE_REST_BYTES) / STAGE_BYTES,
        COPIERS = KD_WIDE_COPIERS / 32, // of which each fills a part
        BARRIER_BYTES = 1024            // behind which stages lie as the unit wants them
    };
    uint32_t barriers, stages, n_tiles, n_steps, level_shift, n_levels;
    const uint8_t *rows, *codes, *levels;

    NATIVE uint32_t stage(wide_place at) const
    {
        return stages + at.slot * STAGE_BYTES;
    }

    NATIVE uint32_t is_full(wide_place at) const
    {
        return barriers + at.slot * 8;
    }

    NATIVE uint32_t is_read(wide_place at) const
    {
        return barriers + (STAGES + at.slot) * 8;
    }

    NATIVE wide_place after(wide_place at) const
    {
        const bool is_last = at.slot == STAGES - 1;
        return {is_last ? 0 : at.slot + 1, at.parity ^ is_last};
    }

    // All threads. blockIdx.x-th rows of x, in blocks of KD_INPUT_STACK, blockIdx.y-th rows of tiles.
    NATIVE void open(const void *memory, const void *x, const uint8_t *all_codes,
                     const uint8_t *all_levels, const kd_tiles &p)
    {
        const uint32_t first = blockIdx.x * N;
        barriers = (native_shared(memory) + 1023u) & ~1023u;
        stages = barriers + BARRIER_BYTES;
        n_tiles = p.n_tiles;
        n_steps = (n_tiles + TILES - 1) / TILES;
        level_shift = p.level_shift;
        n_levels = (n_tiles + (1u << level_shift) - 1) >> level_shift;
        rows = (const uint8_t *)x +
               ((size_t)(first / KD_INPUT_STACK) * n_tiles * KD_INPUT_STACK +
                first % KD_INPUT_STACK) * ROW_BYTES;
        codes = all_codes + (size_t)blockIdx.y * ROW_TILES * n_tiles * CODE_BYTES;
        levels = all_levels + (size_t)blockIdx.y * ROW_TILES * n_levels * LEVEL_BYTES;
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < STAGES; i++) {
                barrier_init(is_full({i, 0}), COPIERS);
                barrier_init(is_read({i, 0}), WARPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }

    // Tiles of a step, and levels from the one of its first tile on.
    NATIVE uint32_t tiles_of(uint32_t step) const
    {
        return min(n_tiles - step * TILES, (uint32_t)TILES);
    }

    NATIVE uint32_t levels_of(uint32_t step) const
    {
        const uint32_t first = step * TILES, last = first + tiles_of(step) - 1;
        return (last >> level_shift) - (first >> level_shift) + 1;
    }

    // A thread of each of COPIERS simdgroups starts a part of a step's copies. First those of
    // weights, which nothing has to be waited for.
    NATIVE void fill_weights(uint32_t step, wide_place at, uint32_t part) const
    {
        const uint32_t k = step * TILES, n = tiles_of(step);
        const uint32_t level_bytes = levels_of(step) * LEVEL_BYTES;
        const uint32_t n_rows = (n + COPIERS - 1 - part) / COPIERS;
        const uint8_t *code = codes + ((size_t)part * n_tiles + k) * CODE_BYTES;
        const uint8_t *level =
            levels + ((size_t)part * n_levels + (k >> level_shift)) * LEVEL_BYTES;
        barrier_expect(is_full(at), n_rows * INPUT_BYTES +
                                          ROW_TILES / COPIERS * (n * CODE_BYTES + level_bytes));
#pragma unroll
        for (int i = 0; i < ROW_TILES / COPIERS; i++) {
            const uint32_t row_tile = part + i * COPIERS;
            barrier_copy(stage(at) + CODES_AT + row_tile * TILES * CODE_BYTES,
                         code + (size_t)i * COPIERS * n_tiles * CODE_BYTES, n * CODE_BYTES,
                         is_full(at));
            if (SPANS > 0)
                barrier_copy(stage(at) + LEVELS_AT + row_tile * TILES * LEVEL_BYTES,
                             level + (size_t)i * COPIERS * n_levels * LEVEL_BYTES, level_bytes,
                             is_full(at));
        }
    }

    NATIVE void fill_rows(uint32_t step, wide_place at, uint32_t part) const
    {
        const uint32_t k = step * TILES;
        for (uint32_t i = part; i < tiles_of(step); i += COPIERS)
            barrier_copy(stage(at) + i * INPUT_BYTES,
                         rows + (size_t)(k + i) * KD_INPUT_STACK * ROW_BYTES, INPUT_BYTES,
                         is_full(at));
    }

    // What the simdgroups do that fill stages as they are read. The part is the same in all lanes,
    // which the shuffle lets the compiler know.
    NATIVE void keep_full(uint32_t part) const
    {
        const uint32_t n_first = min(n_steps, (uint32_t)STAGES);
        const bool is_one = wide_elect();
        part = __shfl_sync(EVERY_LANE, part, 0);
        if (is_one)
            for (uint32_t step = 0; step < n_first; step++)
                fill_weights(step, {step, 0}, part);
        native_wait_for_previous();
        if (!is_one)
            return;
        for (uint32_t step = 0; step < n_first; step++)
            fill_rows(step, {step, 0}, part);
        wide_place at = {0, 0};
        for (uint32_t step = n_first; step < n_steps; step++) {
            barrier_wait(is_read(at), at.parity);
            fill_weights(step, at, part);
            fill_rows(step, at, part);
            at = after(at);
        }
    }

    NATIVE void wait_full(wide_place at) const
    {
        barrier_wait(is_full(at), at.parity);
    }

    NATIVE void let_refill(wide_place at) const
    {
        if ((threadIdx.x & 31) == 0)
            barrier_arrive(is_read(at));
    }

    // A lane's part of a tile of a step that is there.
    NATIVE void load(tile_codes<BITS> &to, uint4 (&level)[SPANS ? SPANS : 1], uint32_t step,
                     wide_place at, uint32_t row_tile, uint32_t tile) const
    {
        const uint32_t lane = threadIdx.x & 31;
        const uint32_t code = stage(at) + CODES_AT + (row_tile * TILES + tile) * CODE_BYTES;
#pragma unroll
        for (int i = 0; i < BITS / 4; i++)
            to.words[i] = native_shared_load4(code + (i * 32 + lane) * 16);
        const uint32_t first = step * TILES;
        const uint32_t place = ((first + tile) >> level_shift) - (first >> level_shift);
        const uint32_t from = stage(at) + LEVELS_AT + (row_tile * TILES + place) * LEVEL_BYTES +
                              (lane >> 2) * tile_levels<BITS, IS_WIDE>::BYTES;
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
            const uint32_t span = from + s * 8 * tile_levels<BITS, IS_WIDE>::BYTES;
            if (BITS == TILE_E2M1) {
                level[s].x = native_shared_word(span);
            } else if (IS_WIDE) {
                level[s] = native_shared_load4(span);
            } else {
                level[s].x = native_shared_word(span);
                level[s].y = native_shared_word(span + 4);
            }
        }
    }
};

// --- weights -----------------------------------------------------------------------------------

// Scale and bias of rows g and g + 8 as pairs of f16, each twice.
struct wide_levels {
    uint32_t scale, bias, scale8, bias8;
};

// Factors are such that scales stay below 2^-9, of E2M1 below 2 (gpu_tiles.c); those of E2M1 come
// divided by 2^10 from load_levels.
template <int BITS> NATIVE wide_levels pair_levels(const row_levels &l, float factor, float factor8)
{
    const float up = factor * 0x1p24f, up8 = factor8 * 0x1p24f;
    return {native_pack<false>(l.scale * up, l.scale * up),
            BITS == TILE_E2M1 ? 0 : native_pack<false>(l.bias * factor, l.bias * factor),
            native_pack<false>(l.scale8 * up8, l.scale8 * up8),
            BITS == TILE_E2M1 ? 0 : native_pack<false>(l.bias8 * factor8, l.bias8 * factor8)};
}

// Codes as subnormal f16 pairs, code * 2^-24 -> scale * code + bias; scales come times 2^24.
NATIVE uint32_t value_pair(uint32_t codes, uint32_t scale, uint32_t bias)
{
    uint32_t value;
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(value) : "r"(codes), "r"(scale), "r"(bias));
    return value;
}

// A sixteenth: the codes of product B of 4 bits lie 4 bits higher.
NATIVE uint32_t sixteenth(uint32_t pair)
{
    uint32_t value;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(value) : "r"(pair), "r"(0x2C002C00u));
    return value;
}

// E2M1 as f16 times 2^-14 -> scale * value; scales come times 2^14.
NATIVE uint32_t value_pair(uint32_t values, uint32_t scale)
{
    uint32_t value;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(value) : "r"(values), "r"(scale));
    return value;
}

// A simdgroup's tile as the unit's first operand, for each 16 columns.
template <int BITS, int SPANS, bool IS_WIDE>
NATIVE void make_values(uint32_t (&a)[SLICES][4], const tile_codes<BITS> &codes,
                        const uint4 (&levels)[SPANS ? SPANS : 1], float factor, float factor8,
                        bool is_bf16_level)
{
    wide_levels l;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        fragment(a[s], codes, s / 2, s % 2 == 1);
        if (SPANS == 0)
            continue;
        if (s * SPANS % SLICES == 0)
            l = pair_levels<BITS>(
                load_levels<BITS, IS_WIDE>(&levels[s * SPANS / SLICES], is_bf16_level), factor,
                factor8);
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
        const uint32_t first_row = blockIdx.x * N + 2 * t;
        float down[RT][2], plus[RT][2];
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t row = (first_tile + 4 * r) * KD_TILE_ROWS + g + 8 * e;
                const bool is_there = row < p.rows;
                down[r][e] = row_factors && is_there ? 1.0f / row_factors[row] : 1.0f;
                plus[r][e] = bias && is_there ? bias[row] : 0.0f;
            }
        float *at = out + (size_t)first_row * p.out_stride + first_tile * KD_TILE_ROWS + g;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (first_row + n * 8 + i >= p.n_rows)
                    continue;
                const float factor = factors[first_row + n * 8 + i];
#pragma unroll
                for (int r = 0; r < RT; r++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if ((first_tile + 4 * r) * KD_TILE_ROWS + g + 8 * e < p.rows)
                            at[(size_t)(n * 8 + i) * p.out_stride + 4 * r * KD_TILE_ROWS + 8 * e] =
                                fmaf(sum[r][n * 4 + 2 * e + i] * factor, down[r][e], plus[r][e]);
            }
    }
};

template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int N, int OUTS, int KS>
NATIVE void wide(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,
                 const float *row_factors, const wide_out<RT, N> &to, const kd_tiles &p)
{
    enum {
        WORKERS = WARPGROUP * OUTS * KS,
        ROW_TILES = 4 * RT * OUTS, // of 16 outputs
        DEPTH = KS > 1 || BITS == 16 ? 1 : 2,
        // Of a thread that multiplies, where those of the launch do not hold its sums and values.
        REGISTERS = RT == 2 ? 240 : 0
    };
    extern __shared__ __align__(16) uint8_t memory[];
    wide_ring<BITS, SPANS, IS_WIDE, N, ROW_TILES, KS * DEPTH, WORKERS / 32> ring;
    native_let_next_start();
    ring.open(memory, x, tiles, levels, p);
    if (threadIdx.x >= WORKERS) {
        if (REGISTERS > 0)
            wide_fewer_registers<24>();
        ring.keep_full((threadIdx.x - WORKERS) / 32);
        return;
    }
    if (REGISTERS > 0)
        wide_more_registers<REGISTERS>();
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    const uint32_t group = threadIdx.x / WARPGROUP, out_group = group % OUTS, turn = group / OUTS;
    const uint32_t first_tile = out_group * 4 * RT + warp; // of the threadgroup's
    float factor[RT][2], sum[RT][N / 2];
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            factor[r][e] = SPANS ? row_factors[(blockIdx.y * ROW_TILES + first_tile + 4 * r) *
                                                   KD_TILE_ROWS +
                                               (lane >> 2) + 8 * e]
                                 : 1.0f;
#pragma unroll
    for (int i = 0; i < RT * N / 2; i++)
        (&sum[0][0])[i] = 0.0f;
    native_wait_for_previous();

    uint32_t values[2][RT][SLICES][4];
    const auto make = [&](uint32_t(&a)[RT][SLICES][4], uint32_t step, wide_place at,
                          uint32_t tile) {
#pragma unroll
        for (int r = 0; r < RT; r++) {
            tile_codes<BITS> codes;
            uint4 level[SPANS ? SPANS : 1];
            ring.load(codes, level, step, at, first_tile + 4 * r, tile);
            make_values<BITS, SPANS, IS_WIDE>(a[r], codes, level, factor[r][0], factor[r][1],
                                              p.is_bf16);
        }
    };
    wide_place at = {0, 0};
    ring.wait_full(at);
    make(values[0], 0, at, turn * DEPTH);
    const uint32_t n_turns = ring.n_steps * DEPTH;
    for (uint32_t first = 0; first < n_turns; first += 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t step = (first + i) / DEPTH, tile = turn * DEPTH + (first + i) % DEPTH;
            const uint32_t next = (first + i + 1) / DEPTH;
            const bool is_last = (first + i + 1) % DEPTH == 0; // of its stage
            const wide_place next_at = is_last ? ring.after(at) : at;
            if (DEPTH == 1 && first + i >= n_turns)
                break;
            if (step * KS * DEPTH + tile < p.n_tiles) {
                const uint64_t rows = wide_rows(ring.stage(at) + tile * ring.INPUT_BYTES);
                wide_begin(values[i]);
#pragma unroll
                for (int s = 0; s < SLICES; s++)
#pragma unroll
                    for (int r = 0; r < RT; r++)
                        wide_multiply<IS_BF16>(sum[r], values[i][r][s], rows + s * WIDE_SLICE);
                wide_end();
                if (!is_last || next < ring.n_steps) {
                    if (is_last)
                        ring.wait_full(next_at);
                    make(values[1 - i], next, next_at, turn * DEPTH + (first + i + 1) % DEPTH);
                }
                wide_wait();
            }
            if (is_last)
                ring.let_refill(at);
            at = next_at;
        }
    if (KS > 1) {
        float *parts = (float *)(memory + KD_WIDE_REST_BYTES) + (threadIdx.x % WARPGROUP);
        wide_meet<WORKERS>(); // the stages are no longer read
        if (turn > 0)
#pragma unroll
            for (int i = 0; i < RT * N / 2; i++)
                parts[(((turn - 1) * OUTS + out_group) * (RT * N / 2) + i) * WARPGROUP] =
                    (&sum[0][0])[i];
        wide_meet<WORKERS>();
        if (turn > 0)
            return;
        for (int other = 0; other < KS - 1; other++)
#pragma unroll
            for (int i = 0; i < RT * N / 2; i++)
                (&sum[0][0])[i] +=
                    parts[((other * OUTS + out_group) * (RT * N / 2) + i) * WARPGROUP];
    }
    to.write(sum, blockIdx.y * ROW_TILES + first_tile, p);
}

#define WIDE(name, bits, spans, is_wide, is_bf16, rt, n, outs, ks)                                 \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(WARPGROUP *outs *ks + KD_WIDE_COPIERS, 1)         \
        name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,                       \
             const float *row_factors, const float *factors, const float *bias, float *out,        \
             const __grid_constant__ kd_tiles p)                                                   \
    {                                                                                              \
        wide<bits, spans, is_wide, is_bf16, rt, n, outs, ks>(                                      \
            tiles, levels, x, row_factors, wide_out<rt, n>{factors, row_factors, bias, out}, p);   \
    }
// For 64 rows 64 outputs, or 256; for 128 rows 128, or 256.
#define WIDE_ALL(form, bits, spans, is_wide, is_bf16)                                              \
    WIDE(linear_wide_##form##_64, bits, spans, is_wide, is_bf16, 1, 64, 1, 4)                      \
    WIDE(linear_wide_##form##_64x4, bits, spans, is_wide, is_bf16, 1, 64, 4, 1)                    \
    WIDE(linear_wide_##form##_128, bits, spans, is_wide, is_bf16, 1, 128, 2, 1)                    \
    WIDE(linear_wide_##form##_128x2, bits, spans, is_wide, is_bf16, 2, 128, 2, 1)

TILE_FORMS(WIDE_ALL)
#endif
