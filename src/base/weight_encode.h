/* Floats into unsigned codes with a scale and a bias a group, as MLX's affine quantization makes
 * them, bit for bit. */
#ifndef CSGL_BASE_WEIGHT_ENCODE_H
#define CSGL_BASE_WEIGHT_ENCODE_H

#include "base/weight.h"

/* One group of n values (a multiple of 8): codes [n] of `bits` bits, and levels in f32, not yet
 * rounded. */
void weight_encode_group(const float *values, int n, int bits, uint8_t *codes, float *scale,
                         float *bias);

/* n codes into a little-endian stream of 2, 3, 4, 5, 6 or 8 bits each; what is left of its last
 * byte is 0. */
void weight_pack_stream(const uint8_t *codes, size_t n, int bits, uint8_t *to);

/* n levels rounded to a float type, as they lie in a file. */
void weight_pack_levels(enum weight_level_type type, const float *values, size_t n, uint8_t *to);

#endif
