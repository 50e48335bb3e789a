// Native linears for many rows of input: tiles of outputs and of rows go through the threadgroup's
// memory in a ring of asynchronous copies, weights as they lie in the GPU's memory. A threadgroup
// of 8 simdgroups has 64 RT outputs (y) for 16 NT rows (x); a simdgroup 16 RT for 8 NT. The second
// term of the inputs, if there is one, is so many more columns, with the same weights. The same for
// experts: the rows are those of a slot (y), the weights those of its expert (args.h, struct
// kd_expert_slot), the outputs x.
#include "linear_tiles.h"

enum {
    MANY_ROW_SIMDS = 4, // of the 8 simdgroups along the outputs; 2 along the rows
    TILE_ROW_BYTES = KD_TILE_COLS * 2
};

// Where the parts of a stage lie.
template <int BITS, int SPANS, bool IS_WIDE, int RT, int NT> struct stage {
    enum {
        ROW_TILES = MANY_ROW_SIMDS * RT,
        COLUMNS = 2 * 8 * NT,
        CODE_BYTES = BITS / 4 * 512, // a tile's
        ROW_LEVEL_BYTES = BITS == TILE_E2M1 ? 4 : IS_WIDE ? 16 : 8,
        LEVEL_BYTES = SPANS * 8 * ROW_LEVEL_BYTES,
        VALUES = ROW_TILES * CODE_BYTES,
        LEVELS = VALUES + COLUMNS * TILE_ROW_BYTES,
        SUMS = LEVELS + ROW_TILES * LEVEL_BYTES,
        BYTES = SUMS + SPANS * COLUMNS * 4
    };
};

// A thread's share of the copies: what it reads, for place 0, and where that goes in a stage. Rows
// of 128 bytes of the input lie so that the lanes of a load of 16 bytes meet different banks: the
// halves of odd rows are swapped.
template <class at, int SPANS> struct copier {
    enum {
        CODES = at::VALUES / 16, // pieces of 16 bytes, also of the levels
        LEVELS = at::ROW_TILES * at::LEVEL_BYTES / 16,
        CODE_TILES = KD_MANY_THREADS * 16 / at::CODE_BYTES, // that all threads copy at once
        VALUES = at::COLUMNS * TILE_ROW_BYTES / 16 / KD_MANY_THREADS,
        VALUE_ROWS = KD_MANY_THREADS / 8
    };
    const uint8_t *codes, *levels;
    const uint16_t *values;
    const float *sums;
    size_t codes_step, values_step, term_step; // bytes, values, values
    uint32_t value_at, n_levels;

    NATIVE void open(const uint8_t *tiles, const uint8_t *all_levels, const uint16_t *x,
                     const float *all_sums, const kd_tiles &p, uint32_t first_tile,
                     uint32_t first_row)
    {
        const uint32_t i = threadIdx.x;
        const uint32_t tile = i / (at::CODE_BYTES / 16), row = i / 8;
        codes = tiles + (size_t)(first_tile + tile) * p.n_tiles * at::CODE_BYTES +
                i % (at::CODE_BYTES / 16) * 16;
        codes_step = (size_t)CODE_TILES * p.n_tiles * at::CODE_BYTES;
        values = x + (size_t)(first_row + row) * p.n_tiles * KD_TILE_COLS + i % 8 * 8;
        values_step = (size_t)VALUE_ROWS * p.n_tiles * KD_TILE_COLS;
        term_step = (size_t)p.term_stride * p.n_tiles * KD_TILE_COLS;
        value_at = at::VALUES + row * TILE_ROW_BYTES + (i % 8 ^ (row & 1) << 2) * 16;
        n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
        if (SPANS == 0)
            return;
        const uint32_t pieces = at::LEVEL_BYTES / 16 + (SPANS == 0); // a tile's
        levels = all_levels + (size_t)(first_tile + i / pieces) * n_levels * at::LEVEL_BYTES +
                 i % pieces * 16;
        const uint32_t quads = at::COLUMNS / 4;
        sums = all_sums + (size_t)(i / quads) * p.n_terms * p.term_stride + first_row +
               i % quads * 4;
    }

    // Starts the copies of place k, of a term, into the stage at `to`.
    NATIVE void copy(uint32_t to, uint32_t k, uint32_t term, const kd_tiles &p) const
    {
        const uint32_t i = threadIdx.x;
        const uint8_t *c = codes + (size_t)k * at::CODE_BYTES;
        const uint16_t *v = values + term * term_step + (size_t)k * KD_TILE_COLS;
#pragma unroll
        for (int n = 0; n * KD_MANY_THREADS < CODES; n++)
            if (n * KD_MANY_THREADS + (int)i < CODES)
                native_copy(to + (n * KD_MANY_THREADS + i) * 16, c + n * codes_step);
#pragma unroll
        for (int n = 0; n < VALUES; n++)
            native_copy(to + value_at + n * VALUE_ROWS * TILE_ROW_BYTES, v + n * values_step);
#pragma unroll
        for (int n = 0; n * KD_MANY_THREADS < LEVELS; n++)
            if (n * KD_MANY_THREADS + (int)i < LEVELS)
                native_copy(to + at::LEVELS + (n * KD_MANY_THREADS + i) * 16,
                            levels + (k >> p.level_shift) * at::LEVEL_BYTES +
                                (size_t)n * (KD_MANY_THREADS * 16) * n_levels);
        if ((int)i < SPANS * at::COLUMNS / 4)
            native_copy(to + at::SUMS + i * 16,
                        sums + ((size_t)k * SPANS * p.n_terms + term) * p.term_stride);
    }
};

// sum[r][n] += tile r times rows n of the stage.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int NT>
NATIVE void multiply_stage(float (&sum)[RT][NT][4], const uint8_t *from, uint32_t row_tile,
                           uint32_t column, uint32_t lane, bool is_bf16_level)
{
    typedef stage<BITS, SPANS, IS_WIDE, RT, NT> at;
    // Halves of the tile that share their levels are multiplied together.
    enum { HALVES = SPANS == 1 ? 2 : 1, HALF_SPANS = SPANS > 1 ? SPANS / 2 : 1 };
    const uint32_t g = lane >> 2, t = lane & 3;
    const float *sums = (const float *)(from + at::SUMS) + column + 2 * t;
    const uint8_t *rows = from + at::VALUES + (column + g) * TILE_ROW_BYTES;
    const float zero[4] = {0};
#pragma unroll
    for (int part = 0; part < 2 / HALVES; part++) {
        uint32_t a[RT][HALVES][2][4];
        row_levels levels[RT][HALF_SPANS];
#pragma unroll
        for (int r = 0; r < RT; r++) {
            const uint4 *words = (const uint4 *)(from + (row_tile + r) * at::CODE_BYTES) + lane;
            tile_codes<BITS> codes;
#pragma unroll
            for (int i = 0; i < BITS / 4; i++)
                codes.words[i] = words[i * 32];
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                fragment(a[r][h][0], codes, part + h, false);
                fragment(a[r][h][1], codes, part + h, true);
            }
#pragma unroll
            for (int s = 0; s < (SPANS ? HALF_SPANS : 0); s++)
                levels[r][s] = load_levels<BITS, IS_WIDE>(
                    from + at::LEVELS + (row_tile + r) * at::LEVEL_BYTES +
                        ((part * HALF_SPANS + s) * 8 + g) * at::ROW_LEVEL_BYTES,
                    is_bf16_level);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 x[HALVES];
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                const uint32_t piece = (part + h) * 4 + t;
                x[h] = *(const uint4 *)(rows + n * 8 * TILE_ROW_BYTES +
                                        (piece ^ (g & 1) << 2) * 16);
            }
            float2 inputs[HALF_SPANS];
#pragma unroll
            for (int s = 0; s < (SPANS ? HALF_SPANS : 0); s++)
                inputs[s] = *(const float2 *)(sums + (part * HALF_SPANS + s) * at::COLUMNS + n * 8);
#pragma unroll
            for (int r = 0; r < RT; r++) {
                float pa[4] = {0}, pb[4] = {0};
#pragma unroll
                for (int h = 0; h < HALVES; h++) {
                    const uint32_t(&fa)[4] = a[r][h][0], (&fb)[4] = a[r][h][1];
                    native_mma<IS_BF16>(BITS == 16 ? sum[r][n] : pa, fa[0], fa[1], fa[2], fa[3],
                                        x[h].x, x[h].y);
                    native_mma<IS_BF16>(BITS == 16 ? sum[r][n] : pb, fb[0], fb[1], fb[2], fb[3],
                                        x[h].z, x[h].w);
                }
#pragma unroll
                for (int s = 0; s < (SPANS ? HALF_SPANS : 0); s++)
                    add_group<BITS>(sum[r][n], HALF_SPANS == 2 && s == 1 ? zero : pa,
                                    HALF_SPANS == 2 && s == 0 ? zero : pb, levels[r][s],
                                    inputs[s]);
            }
        }
    }
}

// Tiles of outputs from first_tile and rows from first_row on, those before `end`; HAS_WAITED: what
// earlier dispatches wrote can be read.
template <int BITS, int SPANS, bool IS_WIDE, bool IS_BF16, int RT, int NT, bool HAS_WAITED>
NATIVE void many(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x, const float *sums,
                 const float *factors, const float *bias, float *out, const kd_tiles &p,
                 uint32_t first_tile, uint32_t first_row, uint32_t end)
{
    typedef stage<BITS, SPANS, IS_WIDE, RT, NT> at;
    extern __shared__ __align__(128) uint8_t stages[];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t row_tile = warp / 2 * RT, column = warp % 2 * 8 * NT;
    const uint32_t shared = native_shared(stages), n_steps = p.n_tiles * p.n_terms;
    copier<at, SPANS> copies;
    float sum[RT][NT][4];
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++)
        (&sum[0][0][0])[i] = 0.0f;
    copies.open(tiles, levels, x, sums, p, first_tile, first_row);
    if (!HAS_WAITED) {
        native_let_next_start();
        native_wait_for_previous();
    }
    // Of the step to be copied next: the place along the columns, the term, the stage.
    uint32_t k = 0, term = 0, to = 0, from = 0;
    for (uint32_t step = 0; step < n_steps + KD_MANY_STAGES - 1; step++) {
        if (step >= KD_MANY_STAGES - 1) {
            native_copies_wait<KD_MANY_STAGES - 2>();
            __syncthreads(); // this step is there for all, and all are done with the one before
        }
        if (step < n_steps) {
            copies.copy(shared + to * at::BYTES, k, term, p);
            to = to + 1 == KD_MANY_STAGES ? 0 : to + 1;
            term++;
            if (term == p.n_terms) {
                term = 0;
                k++;
            }
        }
        native_copies_end();
        if (step < KD_MANY_STAGES - 1)
            continue;
        multiply_stage<BITS, SPANS, IS_WIDE, IS_BF16, RT, NT>(sum, stages + from * at::BYTES,
                                                              row_tile, column, lane, p.is_bf16);
        from = from + 1 == KD_MANY_STAGES ? 0 : from + 1;
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t m = first_row + column + n * 8 + (lane & 3) * 2 + i;
            if (m >= end)
                continue;
            const float factor = factors[m];
            float *to_row = out + (size_t)m * p.out_stride;
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t row = (first_tile + row_tile + r) * KD_TILE_ROWS + (lane >> 2) +
                                         8 * e;
                    if (row < p.rows)
                        to_row[row] = fmaf(sum[r][n][2 * e + i], factor, bias ? bias[row] : 0.0f);
                }
        }
}

#define MANY(name, bits, spans, is_wide, is_bf16, rt, nt, n_groups)                                \
    KD_WAITS(linear_many_##name)                                                                   \
    extern "C" __global__ void __launch_bounds__(KD_MANY_THREADS, n_groups)                        \
        linear_many_##name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,         \
                           const float *sums, const float *factors, const float *bias, float *out, \
                           const __grid_constant__ kd_tiles p)                                     \
    {                                                                                              \
        many<bits, spans, is_wide, is_bf16, rt, nt, false>(                                        \
            tiles, levels, x, sums, factors, bias, out, p, blockIdx.y * (MANY_ROW_SIMDS * rt),     \
            blockIdx.x * (16 * nt), p.n_rows);                                                     \
    }                                                                                              \
    KD_WAITS(expert_many_##name)                                                                   \
    extern "C" __global__ void __launch_bounds__(KD_MANY_THREADS, n_groups)                        \
        expert_many_##name(const uint8_t *tiles, const uint8_t *levels, const uint16_t *x,         \
                           const float *sums, const float *factors, const float *bias, float *out, \
                           const kd_expert_slot *slots, const __grid_constant__ kd_expert_tiles p) \
    {                                                                                              \
        native_let_next_start();                                                                   \
        native_wait_for_previous();                                                                \
        const kd_expert_slot slot = slots[blockIdx.y];                                             \
        if (slot.n_places == 0)                                                                    \
            return;                                                                                \
        const size_t at = slot.expert * p.matrix_bytes;                                            \
        many<bits, spans, is_wide, is_bf16, rt, nt, true>(                                         \
            tiles + at, levels + at, x, sums, factors, expert_bias(bias, at), out, p.tiles,        \
            blockIdx.x * (MANY_ROW_SIMDS * rt), slot.first, slot.first + slot.n_places);           \
    }
// Of 64 outputs and 64 rows, several on a processor, and of 256 and 128, one.
#define MANY_BOTH(form, bits, spans, is_wide, is_bf16)                                             \
    MANY(form##_64, bits, spans, is_wide, is_bf16, 1, 4, 3)                                        \
    MANY(form##_128, bits, spans, is_wide, is_bf16, 4, 8, 1)

TILE_FORMS(MANY_BOTH)
