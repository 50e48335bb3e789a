/* AMX tile instructions in assembly of our own: gcc 12's intrinsics do not say that they read
 * memory, and the stores that fill a configuration or an operand are dropped or moved. Tiles are
 * numbers 0 to 7; strides are bytes. Only *_amx.c may include this. */
#ifndef CSGL_DEVICE_CPU_AMX_H
#define CSGL_DEVICE_CPU_AMX_H

#include <stdint.h>

enum { AMX_TILES = 8 };

#define TILE_NUMBER(n) "%%tmm" #n
#define TILE_NAME(n) TILE_NUMBER(n)

#define TILE_LOAD(tile, from, stride)                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), " TILE_NAME(tile)::"r"(from), "r"((long)(stride))       \
                     : "memory")
#define TILE_STORE(tile, to, stride)                                                               \
    __asm__ volatile("tilestored " TILE_NAME(tile) ", (%0,%1,1)" ::"r"(to), "r"((long)(stride))    \
                     : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero " TILE_NAME(tile)::)

/* sum += left x right; operands are named sum, left, right. */
#define TILE_INT8(sum, left, right)                                                                \
    __asm__ volatile("tdpbssd " TILE_NAME(right) ", " TILE_NAME(left) ", " TILE_NAME(sum)::)
/* The same with right unsigned. */
#define TILE_INT8_UINT8(sum, left, right)                                                          \
    __asm__ volatile("tdpbsud " TILE_NAME(right) ", " TILE_NAME(left) ", " TILE_NAME(sum)::)
#define TILE_BF16(sum, left, right)                                                                \
    __asm__ volatile("tdpbf16ps " TILE_NAME(right) ", " TILE_NAME(left) ", " TILE_NAME(sum)::)

/* Palette 1: tiles of up to 16 rows of 64 bytes (Intel SDM vol. 1, ch. 18). */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_configure(const struct tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*config) : "memory");
}

static inline void tiles_release(void)
{
    __asm__ volatile("tilerelease" ::);
}

#endif
