/* The one form in which a checkpoint hands a weight matrix to a device: bytes as they lie in the
 * file, and a decoder that shows any encoding as codes, scales and biases, exactly.
 *
 *     w[r][c] = scale[r][c / group] * code[r][c] + bias[r][c / group]        (quantized)
 *     w[r][c] = the f32, f16 or bf16 value                                   (float)
 *
 * Encodings whose stored codes are indices into a table of values (IQ4_NL, MXFP4) take the same
 * form: their code is the value plus an offset that makes it unsigned, and the bias takes the
 * offset back.
 *
 * Knows no file format beyond its block layouts and no device. */
#ifndef CSGL_BASE_WEIGHT_H
#define CSGL_BASE_WEIGHT_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, bits a code (0: float), columns a group, columns a block, bytes a block.
 * Block layouts of GGUF types: docs of the GGUF format, `gguf` package. */
#define WEIGHT_ENCODINGS(X)                                                                        \
    X(F32, 0, 1, 1, 4)                                                                             \
    X(F16, 0, 1, 1, 2)                                                                             \
    X(BF16, 0, 1, 1, 2)                                                                            \
    X(Q4_0, 4, 32, 32, 18)                                                                         \
    X(Q4_1, 4, 32, 32, 20)                                                                         \
    X(Q5_0, 5, 32, 32, 22)                                                                         \
    X(Q5_1, 5, 32, 32, 24)                                                                         \
    X(Q8_0, 8, 32, 32, 34)                                                                         \
    X(Q2_K, 2, 16, 256, 84)                                                                        \
    X(Q3_K, 3, 16, 256, 110)                                                                       \
    X(Q4_K, 4, 32, 256, 144)                                                                       \
    X(Q5_K, 5, 32, 256, 176)                                                                       \
    X(Q6_K, 6, 16, 256, 210)                                                                       \
    X(IQ4_NL, 8, 32, 32, 18)                                                                       \
    X(MXFP4, 5, 32, 32, 17)

#define WEIGHT_ENUM(name, bits, group, block, bytes) WEIGHT_##name,
enum weight_encoding { WEIGHT_ENCODINGS(WEIGHT_ENUM) N_WEIGHT_ENCODINGS };
#undef WEIGHT_ENUM

struct weight_encoding_info {
    const char *name;
    int bits, group, block, block_bytes;
};

/* A matrix [rows, cols], row-major, of whole blocks along the columns. `data` is borrowed from the
 * checkpoint. Vectors have rows == 1. */
struct weight {
    enum weight_encoding encoding;
    int64_t rows, cols;
    const uint8_t *data;
    /* > 0: within each run of this many rows (one head), row 2i is output i and row 2i+1 is output
     * i + rope_head_dim/2: GGUF's llama order for interleaved RoPE. weight_row_* undo it. */
    int32_t rope_head_dim;
};

/* One row of a quantized weight, taken apart. Arrays are the caller's: codes[cols], the others
 * [cols / group], super_* [cols / block]. Pointers that are NULL are not filled. For two-level
 * encodings (block > group)  scale = f16(super_scale) * sub_scale,
 * bias = -f16(super_bias) * sub_bias (Q2_K, Q4_K, Q5_K) or -offset * scale (Q3_K: 4, Q6_K: 32),
 * where super_biases and sub_biases are not filled. */
struct weight_row {
    uint8_t *codes;
    float *scales, *biases;
    uint16_t *super_scales, *super_biases; /* f16 bits */
    int8_t *sub_scales, *sub_biases;
};

/* The codes that the 16 stored indices stand for: value + 128 of IQ4_NL, 2 * value + 16 of MXFP4's
 * E2M1, where the indices 0 and 8 are both zero. */
extern const uint8_t weight_table_iq4_nl[16], weight_table_mxfp4[16];

const struct weight_encoding_info *weight_info(enum weight_encoding encoding);
static inline bool weight_is_float(const struct weight *w)
{
    return w->encoding <= WEIGHT_BF16;
}

/* Bytes of one row, and of the whole matrix, as stored. */
size_t weight_row_bytes(const struct weight *w);
uint64_t weight_bytes(const struct weight *w);

/* The stored bytes of output row `row` (0 <= row < rows), RoPE order undone. */
const uint8_t *weight_row_data(const struct weight *w, int64_t row);

/* Takes output row `row` of a quantized weight apart. */
void weight_row_read(const struct weight *w, int64_t row, const struct weight_row *out);

/* Output row `row` as f32 [cols], any encoding; equals the `gguf` package's dequantize bit for bit.
 */
void weight_row_dequantize(const struct weight *w, int64_t row, float *out);

#endif
