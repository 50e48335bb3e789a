/* What the linears with AMX tiles share. Included by linear_*amx.c only. */
#ifndef CSGL_DEVICE_CPU_LINEAR_AMX_H
#define CSGL_DEVICE_CPU_LINEAR_AMX_H

#include "device/cpu/amx.h"
#include "device/cpu/linear_avx512.h"

enum { TILE_BYTES = 1024, TILE_VALUES = TILE_ROWS_MAX * BLOCK_ROWS };

/* The tile registers: sums, activations, weights. */
#define SUM_0 0
#define SUM_1 1
#define SUM_2 2
#define SUM_3 3
#define LEFT_0 4
#define LEFT_1 5
#define RIGHT_0 6
#define RIGHT_1 7

/* Products of `rows` x `bytes` (at most 64) of activations. */
static inline void tiles_begin(int rows, int bytes)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < AMX_TILES; i++) {
        bool is_left = i == 4 || i == 5, is_right = i > 5;
        config.row_bytes[i] = (uint16_t)(is_left ? bytes : 64);
        config.rows[i] = (uint8_t)(is_right ? bytes / 4 : rows);
    }
    tiles_configure(&config);
}

/* linear_fp8_amx.c: PACKING_F8 with bf16 activations. */
size_t linear_amx_fp8_scratch(const struct linear_part *part);
void linear_amx_fp8(const struct linear_part *part, const struct linear_input *in,
                    struct linear_range blocks, struct linear_range rows,
                    const struct linear_output *output, void *scratch);

#endif
