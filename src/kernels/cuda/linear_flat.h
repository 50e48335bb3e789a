// Native linears for few rows of input: the weights are read once, at the memory's pace, for up to
// 16 rows of prepared values. A threadgroup has 16 RT outputs (x) for 8 NT such rows (y), of
// n_terms terms each; its simdgroups take turns along the columns. The same for experts: the rows
// are those of a slot (y), the weights those of its expert (args.h, struct kd_expert_slot).
//
// `rows` is how a lane reads 8 rows and multiplies a tile with them: half_rows of linear_flat.cu,
// int8_rows of linear_flat_int8.cu. It has a struct `part`, 64 positions, and
//
//   open(from, ...)     finds a threadgroup's n-th 8 rows in a struct `memory`
//   next(part, from, ...) has the part where the lane's simdgroup is, and goes on to its next
//   multiply(sum, tile, part, ...)
//   factor(from, m)     what undoes the factor of row m
//   MOST_AHEAD          see AHEAD
#ifndef CSGL_KERNELS_CUDA_LINEAR_FLAT_H
#define CSGL_KERNELS_CUDA_LINEAR_FLAT_H

#include "linear_tiles.h"

// Rows first .. end - 1 of the input, at most 8 NT / n_terms. HAS_WAITED: what earlier dispatches
// wrote can be read; else the weights are on their way before that.
template <class rows, int BITS, int SPANS, bool IS_WIDE, int RT, int NT, bool HAS_WAITED>
NATIVE void flat(const uint8_t *tiles, const uint8_t *levels, const typename rows::memory &from,
                 const float *bias, float *out, const kd_tiles &p, uint32_t first, uint32_t end)
{
    typedef tile_ahead<BITS, SPANS, IS_WIDE> tile;
    enum {
        // Places along the columns that are on their way: what registers allow.
        FEW = RT == 2 && SPANS == 4 ? 1 : 2,
        AHEAD = RT == 1 && BITS / 4 == 1 && !IS_WIDE ? rows::MOST_AHEAD - SPANS : FEW,
        TILE_WORDS = BITS / 4 * 32,
        LEVEL_BYTES = SPANS * 8 * tile::LEVEL_BYTES
    };
    __shared__ float parts[KD_FLAT_THREADS / 32][RT * NT * 4][32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const uint32_t g = lane >> 2;
    const uint32_t n_levels = (p.n_tiles + (1u << p.level_shift) - 1) >> p.level_shift;
    const uint4 *codes =
        (const uint4 *)tiles + ((size_t)blockIdx.x * RT * p.n_tiles + warp) * TILE_WORDS + lane;
    const uint8_t *level =
        levels + (size_t)blockIdx.x * RT * n_levels * LEVEL_BYTES + g * tile::LEVEL_BYTES;
    float sum[RT][NT][4];
#pragma unroll
    for (int i = 0; i < RT * NT * 4; i++)
        (&sum[0][0][0])[i] = 0.0f;
    if (!HAS_WAITED)
        native_let_next_start();
    tile ahead[AHEAD][RT];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const uint32_t k = warp + i * n_warps;
#pragma unroll
        for (int r = 0; r < RT; r++)
            if (k < p.n_tiles)
                ahead[i][r].load(codes + r * p.n_tiles * TILE_WORDS,
                                 level + (r * n_levels + (k >> p.level_shift)) * LEVEL_BYTES);
        codes += n_warps * TILE_WORDS;
    }
    if (!HAS_WAITED)
        native_wait_for_previous();
    // Columns of the products are the rows of term 0, then those of term 1.
    const uint32_t per_term = NT * 8 / p.n_terms;
    rows eight[NT];
#pragma unroll
    for (int n = 0; n < NT; n++)
        eight[n].open(from, p, n, per_term, first, end);
    for (uint32_t k = warp; k < p.n_tiles;) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (k >= p.n_tiles)
                break;
            typename rows::part in[NT];
#pragma unroll
            for (int n = 0; n < NT; n++)
                eight[n].next(in[n], from, p, n_warps);
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    rows::multiply(sum[r][n], ahead[i][r], in[n], p.is_bf16);
            const uint32_t next = k + AHEAD * n_warps;
            if (next < p.n_tiles)
#pragma unroll
                for (int r = 0; r < RT; r++)
                    ahead[i][r].load(codes + r * p.n_tiles * TILE_WORDS,
                                     level +
                                         (r * n_levels + (next >> p.level_shift)) * LEVEL_BYTES);
            codes += n_warps * TILE_WORDS;
            k += n_warps;
        }
    }
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                parts[warp][(r * NT + n) * 4 + i][lane] = sum[r][n][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < RT * NT * 128; i += blockDim.x) {
        const uint32_t l = i & 31, e = i >> 5, r = e / (NT * 4);
        const uint32_t column = (e >> 2) % NT * 8 + (l & 3) * 2 + (e & 1), m = first + column;
        const uint32_t row = (blockIdx.x * RT + r) * KD_TILE_ROWS + (e >> 1 & 1) * 8 + (l >> 2);
        if (column >= per_term || m >= end || row >= p.rows)
            continue;
        float total = 0.0f;
        for (uint32_t w = 0; w < n_warps; w++) {
            total += parts[w][e][l];
            if (p.n_terms == 2) // per_term columns further on
                total += NT == 1 ? parts[w][e][l + 2] : parts[w][e + 2 * NT][l];
        }
        out[(size_t)m * p.out_stride + row] =
            fmaf(total, rows::factor(from, m), bias ? bias[row] : 0.0f);
    }
}

#endif
