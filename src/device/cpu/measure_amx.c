/* The rates of AMX tiles. Their speed depends on the data, so the tiles hold numbers. */
#include "device/cpu/amx.h"
#include "device/cpu/measure_avx512.h"

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES, SUMS = 4 };

static void begin(const void *data)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < AMX_TILES; i++) {
        config.rows[i] = TILE_ROWS;
        config.row_bytes[i] = TILE_ROW_BYTES;
    }
    tiles_configure(&config);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_LOAD(4, data, TILE_ROW_BYTES);
    TILE_LOAD(5, data, TILE_ROW_BYTES);
    TILE_LOAD(6, data, TILE_ROW_BYTES);
    TILE_LOAD(7, data, TILE_ROW_BYTES);
}

static void end(float *sink)
{
    float out[TILE_BYTES / sizeof(float)];
    TILE_STORE(0, out, TILE_ROW_BYTES);
    *sink += out[0];
    TILE_STORE(3, out, TILE_ROW_BYTES);
    *sink += out[0];
    tiles_release();
}

static void measure_int8(long rounds, float *sink)
{
    uint8_t data[TILE_BYTES];
    for (int i = 0; i < TILE_BYTES; i++)
        data[i] = (uint8_t)(i * 37);
    begin(data);
    for (long round = 0; round < rounds; round++) {
        TILE_INT8(0, 4, 6);
        TILE_INT8(1, 5, 6);
        TILE_INT8(2, 4, 7);
        TILE_INT8(3, 5, 7);
    }
    end(sink);
}

static void measure_bf16(long rounds, float *sink)
{
    uint16_t data[TILE_BYTES / 2];
    for (int i = 0; i < TILE_BYTES / 2; i++)
        data[i] = (uint16_t)(0x3C00 + i * 37 % 128 + (i & 1) * 0x8000);
    begin(data);
    for (long round = 0; round < rounds; round++) {
        TILE_BF16(0, 4, 6);
        TILE_BF16(1, 5, 6);
        TILE_BF16(2, 4, 7);
        TILE_BF16(3, 5, 7);
    }
    end(sink);
}

const struct measure_kernels cpu_measure_amx = {
    .arithmetic = {[ARITHMETIC_F32] = {measure_f32, 2.0 * VEC_LANES *MEASURE_CHAINS},
                   [ARITHMETIC_BF16] = {measure_bf16, 2.0 * SUMS * 16 * 16 * 32},
                   [ARITHMETIC_INT8] = {measure_int8, 2.0 * SUMS * 16 * 16 * 64}},
    .read = measure_read_512};
