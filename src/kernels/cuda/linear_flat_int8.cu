// Native linears for few rows of int8 codes: linear_flat.h. A code of the weights times one of the
// input is exact, and so are their sums over a group of 32, or of 16.
#include "linear_flat.h"

#include "int8_order.h"

// A lane's share of 8 rows of codes, and of the scales and sums of its two columns.
template <int BITS, int SPANS, bool IS_WIDE> struct int8_rows {
    enum { MOST_AHEAD = 4 };
    struct memory {
        const uint8_t *codes;
        const float *sums, *scales;
    };
    struct part {
        uint4 x;       // two words a half
        float4 scales; // of both columns in the first half, then in the second
        float2 sums[SPANS];
    };
    uint32_t x, scales, sums; // the next ones, from the begin of each on
    bool is_there;

    NATIVE void open(const memory &, const kd_tiles &p, uint32_t n, uint32_t, uint32_t first,
                     uint32_t end)
    {
        const uint32_t lane = threadIdx.x & 31, k = threadIdx.x >> 5;
        const uint32_t row = first + n * 8 + (lane >> 2), column = first + n * 8 + 2 * (lane & 3);
        is_there = row < end;
        x = (row * p.n_tiles + k) * 4 + (lane & 3);
        scales = int8_scale_at(k * KD_TILE_COLS, column, p.term_stride) / 4;
        sums = (k * SPANS * p.term_stride + column) / 2;
    }

    NATIVE void next(part &to, const memory &from, const kd_tiles &p, uint32_t n_warps)
    {
        to.x = is_there ? ((const uint4 *)from.codes)[x] : make_uint4(0, 0, 0, 0);
        to.scales = ((const float4 *)from.scales)[scales];
#pragma unroll
        for (int s = 0; s < SPANS; s++)
            to.sums[s] = ((const float2 *)from.sums)[sums + s * p.term_stride / 2];
        x += n_warps * 4;
        scales += n_warps * p.term_stride / 2;
        sums += n_warps * SPANS * p.term_stride / 2;
    }

    // t = the sums of a product times the columns' scales, behind what t is if is_more.
    NATIVE static void scale_sums(float (&t)[4], const int32_t (&d)[4], float2 scale, bool is_more)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float sum = (float)d[i], by = i % 2 ? scale.y : scale.x;
            t[i] = is_more ? fmaf(sum, by, t[i]) : sum * by;
        }
    }

    // sum += the tile times the rows.
    NATIVE static void multiply(float (&sum)[4], const tile_ahead<BITS, SPANS, IS_WIDE> &tile,
                                const part &in, bool is_bf16_level)
    {
        enum { PER_HALF = SPANS == 4 ? 2 : 1 }; // products
        float t[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 w = tile.codes.words[half * (BITS == 8)];
            const uint32_t b[2] = {half ? in.x.z : in.x.x, half ? in.x.w : in.x.y};
            const float2 scale = half ? make_float2(in.scales.z, in.scales.w)
                                      : make_float2(in.scales.x, in.scales.y);
            uint32_t a[4];
            int32_t d[PER_HALF][4];
            if (BITS == 8)
                int8_codes_of_8_bits(a, w);
            else
                int8_codes_of_4_bits(a, half ? w.y : w.x, half ? w.w : w.z);
            if (PER_HALF == 1)
                native_mma_int8(d[0], a[0], a[1], a[2], a[3], b[0], b[1]);
#pragma unroll
            for (int i = 0; i < PER_HALF; i++) {
                const int span = SPANS == 1 ? 0 : half * PER_HALF + i;
                if (PER_HALF == 2)
                    native_mma_int8(d[i], a[2 * i], a[2 * i + 1], b[i]);
                scale_sums(t, d[i], scale, SPANS == 1 && half == 1);
                if (SPANS > 1 || half == 1)
                    add_scaled<BITS>(sum, t,
                                     load_levels<BITS, IS_WIDE>(&tile.levels[span], is_bf16_level),
                                     in.sums[span]);
            }
        }
    }

    NATIVE static float factor(const memory &, uint32_t)
    {
        return 1.0f;
    }
};

#define FLAT(form, bits, spans, is_wide, columns, rt, nt, n_threads, n_groups)                     \
    KD_WAITS(linear_flat_int8_##form##_##columns)                                                  \
    extern "C" __global__ void __launch_bounds__(n_threads, n_groups)                              \
        linear_flat_int8_##form##_##columns(                                                       \
            const uint8_t *tiles, const uint8_t *levels, const uint8_t *codes, const float *sums,  \
            const float *scales, const float *bias, float *out,                                    \
            const __grid_constant__ kd_tiles p)                                                    \
    {                                                                                              \
        flat<int8_rows<bits, spans, is_wide>, bits, spans, is_wide, rt, nt, false>(                \
            tiles, levels, {codes, sums, scales}, bias, out, p, blockIdx.y * (nt * 8), p.n_rows);  \
    }
// Registers follow from how many threadgroups a processor is to hold.
#define FLAT_8_16(form, bits, spans, is_wide, is_bf16)                                             \
    FLAT(form, bits, spans, is_wide, 8, 1, 1, 512, spans == 4 ? 1 : 2)                             \
    FLAT(form, bits, spans, is_wide, 16, 1, 2, 512, 1)
#define FLAT_ALL(form, bits, spans, is_wide, is_bf16)                                              \
    FLAT_8_16(form, bits, spans, is_wide, is_bf16)                                                 \
    FLAT(form, bits, spans, is_wide, 8x2, 2, 1, 512, 1)

FLAT_8_16(q4, 4, 1, false, false)
FLAT(q4, 4, 1, false, 8x2, 2, 1, 128, 6)
CODE_FORMS_BUT_Q4(FLAT_ALL)
