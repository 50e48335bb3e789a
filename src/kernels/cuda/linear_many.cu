// Native linears for many rows of input: tiles of outputs and of rows go through the threadgroup's
// memory in a ring of asynchronous copies, weights as they lie in the GPU's memory. A threadgroup
// of 8 simdgroups has 64 RT outputs (y) for 16 NT rows (x); a simdgroup 16 RT for 8 NT.
#include "linear_tiles.h"

enum { MANY_ROW_SIMDS = 4, TILE_ROW_BYTES = KD_TILE_COLS * 2 };

// Where the parts of a stage lie: codes, levels, then the sums and the values of each term.
template <int BITS, int SPANS, bool IS_WIDE, int RT, int NT> struct stage {
    enum {
        ROW_TILES = MANY_ROW_SIMDS * RT,
        COLUMNS = 2 * 8 * NT,
        CODE_BYTES = BITS / 4 * 512, // a tile's
        ROW_LEVEL_BYTES = IS_WIDE ? 16 : 8,
        LEVEL_BYTES = SPANS * 8 * ROW_LEVEL_BYTES,
        LEVELS = ROW_TILES * CODE_BYTES,
        SUMS = LEVELS + ROW_TILES * LEVEL_BYTES,
        SUM_BYTES = SPANS * COLUMNS * 4, // for each term
        VALUE_BYTES = COLUMNS * TILE_ROW_BYTES
    };
};

struct many_inputs {
    const uint8_t *tiles, *levels;
    const uint16_t *x;
    const float *sums;
};

// Starts the copies of tile k. Rows of 128 bytes of the input lie so that the lanes of a load of
// 16 bytes meet different banks: the halves of odd rows are swapped.
template <class at, int SPANS>
NATIVE void copy_stage(uint32_t to, const many_inputs &in, uint32_t k, const kd_tiles &p)
{
    const uint32_t n_row_tiles = (p.rows + KD_TILE_ROWS - 1) / KD_TILE_ROWS;
    const uint32_t first_tile = blockIdx.y * at::ROW_TILES, first_row = blockIdx.x * at::COLUMNS;
    const uint32_t n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
    const uint32_t level = k >> p.level_shift;
    for (uint32_t i = threadIdx.x; i < at::LEVELS / 16; i += KD_MANY_THREADS) {
        const uint32_t tile = min(first_tile + i / (at::CODE_BYTES / 16), n_row_tiles - 1);
        const uint32_t place = i % (at::CODE_BYTES / 16) * 16;
        native_copy(to + i * 16,
                    in.tiles + ((size_t)tile * p.n_tiles + k) * at::CODE_BYTES + place, true);
    }
    if (SPANS > 0) {
        const uint32_t words = at::LEVEL_BYTES / 16 + (SPANS == 0);
        for (uint32_t i = threadIdx.x; i < at::ROW_TILES * words; i += KD_MANY_THREADS) {
            const uint32_t tile = min(first_tile + i / words, n_row_tiles - 1);
            const uint32_t place = i % words * 16;
            native_copy(to + at::LEVELS + i * 16,
                        in.levels + ((size_t)tile * n_levels + level) * at::LEVEL_BYTES + place,
                        true);
        }
        const uint32_t quads = at::COLUMNS / 4 * p.n_terms; // a span's sums, 4 by 4
        for (uint32_t i = threadIdx.x; i < SPANS * quads; i += KD_MANY_THREADS) {
            const size_t span = (size_t)k * SPANS + i / quads;
            native_copy(to + at::SUMS + i * 16,
                        in.sums + span * p.sums_stride + first_row * p.n_terms + i % quads * 4,
                        true);
        }
    }
    const uint32_t values = to + at::SUMS + at::SUM_BYTES * p.n_terms;
    for (uint32_t i = threadIdx.x; i < at::COLUMNS * 8 * p.n_terms; i += KD_MANY_THREADS) {
        const uint32_t chunk = i & 7, r = i >> 3 & (at::COLUMNS - 1), term = i / (at::COLUMNS * 8);
        const uint32_t row = first_row + r;
        const size_t from = (size_t)min(row, p.n_rows - 1) * p.n_terms + term;
        native_copy(values + term * at::VALUE_BYTES + r * TILE_ROW_BYTES +
                        (chunk ^ (r & 1) << 2) * 16,
                    in.x + (from * p.n_tiles + k) * KD_TILE_COLS + chunk * 8, row < p.n_rows);
    }
}

// The inputs' sums over a span, of the lane's two columns.
NATIVE float2 sums_of(const float *sums, uint32_t column, uint32_t n_terms)
{
    if (n_terms == 1)
        return *(const float2 *)(sums + column);
    const float4 v = *(const float4 *)(sums + 2 * column);
    return make_float2(v.x + v.y, v.z + v.w);
}

// sum[r][n] += tile r times rows n of the stage.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int NT>
NATIVE void multiply_stage(float (&sum)[RT][NT][4], const uint8_t *from, uint32_t row_tile,
                           uint32_t column, uint32_t lane, const kd_tiles &p)
{
    typedef stage<BITS, SPANS, IS_WIDE, RT, NT> at;
    // Halves of the tile that share their levels are multiplied together.
    enum { HALVES = SPANS == 1 ? 2 : 1, HALF_SPANS = SPANS > 1 ? SPANS / 2 : 1 };
    const uint32_t g = lane >> 2, t = lane & 3;
    const float *sums = (const float *)(from + at::SUMS);
    const uint8_t *values = from + at::SUMS + at::SUM_BYTES * p.n_terms;
#pragma unroll
    for (int part = 0; part < 2 / HALVES; part++) {
        uint32_t a[RT][HALVES][2][4];
        row_levels levels[RT][HALF_SPANS];
#pragma unroll
        for (int r = 0; r < RT; r++) {
            tile_codes<BITS> codes;
#pragma unroll
            for (int i = 0; i < BITS / 4; i++)
                codes.words[i] = ((const uint4 *)(from + (row_tile + r) * at::CODE_BYTES))[i * 32 + lane];
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                fragment(a[r][h][0], codes, part + h, false);
                fragment(a[r][h][1], codes, part + h, true);
            }
            if (SPANS > 0)
#pragma unroll
                for (int s = 0; s < HALF_SPANS; s++)
                    levels[r][s] = load_levels<IS_WIDE>(
                        from + at::LEVELS + (row_tile + r) * at::LEVEL_BYTES +
                            ((part * HALF_SPANS + s) * 8 + g) * at::ROW_LEVEL_BYTES,
                        p.is_bf16);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t first = column + n * 8;
            float products[RT][2][4];
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    products[r][0][i] = products[r][1][i] = 0.0f;
            for (uint32_t term = 0; term < p.n_terms; term++) {
                const uint8_t *row = values + term * at::VALUE_BYTES + (first + g) * TILE_ROW_BYTES;
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    const uint32_t chunk = (part + h) * 4 + t;
                    const uint4 x = *(const uint4 *)(row + (chunk ^ (g & 1) << 2) * 16);
#pragma unroll
                    for (int r = 0; r < RT; r++) {
                        const uint32_t(&fa)[4] = a[r][h][0], (&fb)[4] = a[r][h][1];
                        native_mma<IS_BF16>(BITS == 16 ? sum[r][n] : products[r][0], fa[0], fa[1],
                                            fa[2], fa[3], x.x, x.z);
                        native_mma<IS_BF16>(BITS == 16 ? sum[r][n] : products[r][1], fb[0], fb[1],
                                            fb[2], fb[3], x.y, x.w);
                    }
                }
            }
            if (SPANS == 0)
                continue;
            const float zero[4] = {0};
#pragma unroll
            for (int s = 0; s < HALF_SPANS; s++) {
                const float2 inputs =
                    sums_of(sums + (part * HALF_SPANS + s) * at::COLUMNS * p.n_terms, first + 2 * t,
                            p.n_terms);
#pragma unroll
                for (int r = 0; r < RT; r++)
                    add_group<BITS>(sum[r][n], HALF_SPANS == 2 && s == 1 ? zero : products[r][0],
                                    HALF_SPANS == 2 && s == 0 ? zero : products[r][1],
                                    levels[r][s], inputs);
            }
        }
    }
}

template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int NT>
NATIVE void many(const many_inputs &in, const float *factors, const float *bias, float *out,
                 const kd_tiles &p)
{
    typedef stage<BITS, SPANS, IS_WIDE, RT, NT> at;
    extern __shared__ __align__(128) uint8_t stages[];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t row_tile = warp / 2 * RT, column = warp % 2 * 8 * NT;
    const uint32_t bytes = at::SUMS + (at::SUM_BYTES + at::VALUE_BYTES) * p.n_terms;
    const uint32_t shared = native_shared(stages);
    float sum[RT][NT][4];
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++)
        (&sum[0][0][0])[i] = 0.0f;
    native_let_next_start();
    native_wait_for_previous();
#pragma unroll
    for (uint32_t k = 0; k < KD_MANY_STAGES - 1; k++) {
        if (k < p.n_tiles)
            copy_stage<at, SPANS>(shared + k * bytes, in, k, p);
        native_copies_end();
    }
    uint32_t now = 0, next = KD_MANY_STAGES - 1; // places in the ring
    for (uint32_t k = 0; k < p.n_tiles; k++) {
        native_copies_wait<KD_MANY_STAGES - 2>();
        __syncthreads(); // tile k is there for all, and all are done with tile k - 1
        if (k + KD_MANY_STAGES - 1 < p.n_tiles)
            copy_stage<at, SPANS>(shared + next * bytes, in, k + KD_MANY_STAGES - 1, p);
        native_copies_end();
        multiply_stage<BITS, SPANS, IS_WIDE, IS_BF16, RT, NT>(sum, stages + now * bytes, row_tile,
                                                              column, lane, p);
        now = now + 1 == KD_MANY_STAGES ? 0 : now + 1;
        next = next + 1 == KD_MANY_STAGES ? 0 : next + 1;
    }
#pragma unroll
    for (int r = 0; r < RT; r++) {
        const uint32_t row = (blockIdx.y * at::ROW_TILES + row_tile + r) * KD_TILE_ROWS + (lane >> 2);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (row + 8 * e >= p.rows)
                continue;
            const float b = bias ? bias[row + 8 * e] : 0.0f;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t x = blockIdx.x * at::COLUMNS + column + n * 8 + (lane & 3) * 2 + i;
                    if (x < p.n_rows)
                        out[(size_t)x * p.out_stride + row + 8 * e] =
                            fmaf(sum[r][n][2 * e + i], factors[x], b);
                }
        }
    }
}

#define MANY(name, bits, spans, is_wide, is_bf16, rt, nt, n_groups)                                \
    KD_WAITS(name)                                                                                 \
    extern "C" __global__ void __launch_bounds__(KD_MANY_THREADS, n_groups)                        \
        name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x, const float *sums,    \
             const float *factors, const float *bias, float *out, const __grid_constant__ kd_tiles p) \
    {                                                                                              \
        many<bits, spans, is_wide, is_bf16, rt, nt>(many_inputs{tiles, levels, x, sums}, factors,  \
                                                    bias, out, p);                                 \
    }
// Of 128 outputs and 64 rows, two on a processor, and of 256 and 128, one.
#define MANY_BOTH(form, bits, spans, is_wide, is_bf16)                                             \
    MANY(linear_many_##form##_64, bits, spans, is_wide, is_bf16, 2, 4, 2)                          \
    MANY(linear_many_##form##_128, bits, spans, is_wide, is_bf16, 4, 8, 1)

MANY_BOTH(q4, 4, 1, false, false)
MANY_BOTH(q4s2, 4, 2, false, false)
MANY_BOTH(q4s2w, 4, 2, true, false)
MANY_BOTH(q4s4w, 4, 4, true, false)
MANY_BOTH(q8, 8, 1, false, false)
MANY_BOTH(q8s2, 8, 2, false, false)
MANY_BOTH(q8s2w, 8, 2, true, false)
MANY_BOTH(q8s4w, 8, 4, true, false)
MANY_BOTH(f16, 16, 0, false, false)
MANY_BOTH(bf16, 16, 0, false, true)
