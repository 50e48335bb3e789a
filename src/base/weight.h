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
 * The scales and biases of some encodings lie apart from the codes (struct weight_levels).
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
    X(MXFP4, 5, 32, 32, 17)                                                                        \
    X(AFFINE, 0, 0, 0, 0) /* unsigned codes; the levels of a weight say the numbers */             \
    X(E2M1, 0, 0, 0, 0)   /* 4-bit floats */                                                       \
    X(E4M3, 0, 0, 0, 0)   /* 8-bit floats */

#define WEIGHT_ENUM(name, bits, group, block, bytes) WEIGHT_##name,
enum weight_encoding { WEIGHT_ENCODINGS(WEIGHT_ENUM) N_WEIGHT_ENCODINGS };
#undef WEIGHT_ENUM

struct weight_encoding_info {
    const char *name;
    int bits, group, block, block_bytes;
};

enum weight_level_type { LEVEL_F32, LEVEL_F16, LEVEL_BF16, LEVEL_E8M0, LEVEL_E4M3 };

/* Scales and biases that lie apart from the codes: matrices [ceil(rows / group_rows)][ceil(cols /
 * group)] of one type. The codes of a row are a little-endian stream of bits: code i is bits
 * [i * bits, (i + 1) * bits) of the row's bytes. */
struct weight_levels {
    enum weight_level_type type;
    int32_t bits;              /* a code: AFFINE 2, 3, 4, 5, 6 or 8; E2M1 4; E4M3 8 */
    int32_t group, group_rows; /* columns and rows that share a level; rows are whole bytes */
    const uint8_t *scales;
    const uint8_t *biases; /* AFFINE alone; NULL: bias = -offset * scale */
    int32_t offset;
    float factor; /* of all scales */
    /* AFFINE of which codes and levels are made when they are read, as MLX quantizes: `data` holds
     * the floats of `source`, `scales` and `biases` are NULL. */
    bool is_made;
    enum weight_encoding source;
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
    struct weight_levels levels; /* of AFFINE, E2M1 and E4M3 */
    /* Column c is multiplied with input order[c]; NULL: with input c. Known once it is unpacked. */
    bool has_order;
    const int32_t *order;
    /* The shape is right, but not yet what pointers lead to: checkpoint_unpack. */
    bool is_packed;
    void *unpacked; /* the memory that this took; checkpoint_release frees it */
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

/* What is common to all weights of an encoding, or NULL. */
const struct weight_encoding_info *weight_info(enum weight_encoding encoding);

/* The same of one weight: where levels lie apart, a block is a group and its bytes are codes. */
struct weight_encoding_info weight_shape(const struct weight *w);

static inline bool weight_is_float(const struct weight *w)
{
    return w->encoding <= WEIGHT_BF16;
}

static inline bool weight_has_levels_apart(const struct weight *w)
{
    return w->encoding >= WEIGHT_AFFINE;
}

static inline size_t weight_level_bytes(enum weight_level_type type)
{
    return type == LEVEL_F32 ? 4 : type == LEVEL_F16 || type == LEVEL_BF16 ? 2 : 1;
}

/* Bytes of one row, and of the whole matrix, as stored, without levels that lie apart. */
size_t weight_row_bytes(const struct weight *w);
uint64_t weight_bytes(const struct weight *w);

/* Bytes of the scales that lie apart, and of the biases. */
uint64_t weight_levels_bytes(const struct weight *w);

/* The stored bytes of output row `row` (0 <= row < rows), RoPE order undone. */
const uint8_t *weight_row_data(const struct weight *w, int64_t row);

/* Columns [col, col + cols) of output row `row`, as a weight of one row that borrows the same
 * bytes. They begin on a block and end on one or with the row, or lie inside one group. Of a weight
 * without data, whose bytes are only counted, it has the shape. */
struct weight weight_row_piece(const struct weight *w, int64_t row, int64_t col, int64_t cols);

/* A matrix of floats, its columns whole groups, shown as MLX's affine codes, which are made when
 * they are read. */
struct weight weight_quantized(const struct weight *floats, int bits, int group);

/* A copy of one row in one run of bytes, levels and all: its size, its making, and the weight of
 * one row that it is. `row` is what weight_row_piece gives. */
size_t weight_copy_bytes(const struct weight *row);
void weight_copy_make(const struct weight *row, uint8_t *to);
struct weight weight_copy_view(const struct weight *row, const uint8_t *copy);

/* Takes output row `row` of a quantized weight apart. The codes of E2M1 are those of MXFP4; the
 * codes of E4M3 are its bytes, and there are no biases. */
void weight_row_read(const struct weight *w, int64_t row, const struct weight_row *out);

/* The value of an E4M3 byte. */
float weight_e4m3(uint8_t byte);

/* Output row `row` as f32 [cols], any encoding; equals `gguf`'s and (AFFINE, E2M1, E4M3, levels
 * cast to f32) mlx.core's dequantize bit for bit. */
void weight_row_dequantize(const struct weight *w, int64_t row, float *out);

#endif
