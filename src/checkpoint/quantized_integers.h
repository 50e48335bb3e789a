/* Integer codes as GPTQ, AWQ and compressed-tensors pack them, turned into rows of codes with their
 * levels. */
#ifndef CSGL_CHECKPOINT_QUANTIZED_INTEGERS_H
#define CSGL_CHECKPOINT_QUANTIZED_INTEGERS_H

#include "checkpoint/quantized.h"

/* Code (row, col) of b bits, E = 32 / b of them in a little-endian word:
 *
 *   GPTQ   words [cols / E][rows], place col % E
 *   AWQ    words [cols][rows / 8], row 8 i + {0, 2, 4, 6, 1, 3, 5, 7}[j] at place j
 *   ROWS   words [rows][cols / E], place col % E
 *   BYTES  i8 [rows][cols], 128 below the code
 *
 * Scales are [groups][rows], of ROWS and BYTES [rows][groups]; zero points are packed along the
 * rows: words [groups][rows / E] (AWQ: in its order), of ROWS [rows / E][groups]. A module without
 * zero points has 2^(b - 1) everywhere. */
enum integer_layout { INTEGERS_GPTQ, INTEGERS_AWQ, INTEGERS_ROWS, INTEGERS_BYTES };

struct integers {
    enum integer_layout layout;
    const struct quantized_parts *parts;
    int64_t rows, cols;
    int32_t bits;
    int32_t group;  /* columns; 0: what the scales say */
    bool zero_step; /* zero points are stored one less, modulo 2^b */
    enum weight_level_type scale_type;
    int64_t n_groups; /* filled by integers_describe */
    bool has_zeros;   /* zero points other than 2^(b - 1) */
    bool is_ordered;  /* columns of a group lie apart */
};

/* Checks the shapes and gives the weight that integers_unpack will give, marked as packed; where
 * the file's bytes are rows of codes and levels already, it is that weight and not packed. */
enum status integers_describe(struct integers *integers, const char *path, struct weight *out,
                              struct error *error);

enum status integers_unpack(const struct integers *integers, const char *path, struct weight *out,
                            struct error *error);

#endif
