// In which order int8 products take a tile of 64 positions (gpu_tiles.c): codes of 4 and 8 bits as
// they lie, and rows of the input whose bytes go to the same places. No more than what
// tests/ops/test_gpu_int8.c compiles as C.
//
// A product of 32 takes a half of a tile: the lane's j = 0 .. 7 of either operand. Bytes of a first
// word are of j = 0, 2, 1, 3, of a second one 4, 6, 5, 7: so two masks unpack codes of 4 bits.
#ifndef CSGL_KERNELS_CUDA_INT8_ORDER_H
#define CSGL_KERNELS_CUDA_INT8_ORDER_H

// The first operand (native_mma_int8) of a half, from its words of rows g and g + 8.
NATIVE void int8_codes_of_4_bits(uint32_t *a, uint32_t w, uint32_t w8)
{
    a[0] = w & 0x0F0F0F0Fu;
    a[1] = w8 & 0x0F0F0F0Fu;
    a[2] = w >> 4 & 0x0F0F0F0Fu;
    a[3] = w8 >> 4 & 0x0F0F0F0Fu;
}

// Likewise of 8 bits, two words a row: bytes of j = 0, 4, 1, 5 and 2, 6, 3, 7.
NATIVE void int8_codes_of_8_bits(uint32_t *a, uint4 w)
{
    a[0] = __byte_perm(w.x, w.y, 0x6240);
    a[1] = __byte_perm(w.z, w.w, 0x6240);
    a[2] = __byte_perm(w.x, w.y, 0x7351);
    a[3] = __byte_perm(w.z, w.w, 0x7351);
}

// Codes of the input: where in its row, in words, the four from position `first` on lie. Lane
// 4 g + t reads the words 4 t to 4 t + 3 of a tile at once: two a half.
NATIVE uint32_t int8_word_at(uint32_t first)
{
    return first / 64 * 16 + first / 8 % 4 * 4 + first / 32 % 2 * 2 + first / 4 % 2;
}

// These four as that word.
NATIVE uint32_t int8_word(int32_t a, int32_t b, int32_t c, int32_t d)
{
    return ((uint32_t)a & 255u) | ((uint32_t)c & 255u) << 8 | ((uint32_t)b & 255u) << 16 |
           (uint32_t)d << 24;
}

// Their scales, one for each 32 columns and so for each half of a tile: where that of `row` lies,
// of rows that are filled up to n_rows. A lane reads those of two rows and both halves at once.
NATIVE size_t int8_scale_at(uint32_t first, uint32_t row, uint32_t n_rows)
{
    return (size_t)(first / 64) * 2 * n_rows + row / 2 * 4 + first / 32 % 2 * 2 + row % 2;
}

#endif
