/* What weight.c needs of the encodings whose levels lie apart from the codes. */
#ifndef CSGL_BASE_WEIGHT_APART_H
#define CSGL_BASE_WEIGHT_APART_H

#include "base/weight.h"

/* Each is the function of weight.h whose name it ends in, for these encodings alone. */
struct weight_encoding_info weight_apart_shape(const struct weight *w);
size_t weight_apart_row_bytes(const struct weight *w);
struct weight weight_apart_piece(const struct weight *w, int64_t row, int64_t col, int64_t cols);
void weight_apart_read(const struct weight *w, int64_t row, const struct weight_row *out);
void weight_apart_dequantize(const struct weight *w, int64_t row, float *out);

/* The levels of a weight of one row: their bytes, a copy of them in one run, and pointers to it. */
size_t weight_apart_bytes(const struct weight *row);
void weight_apart_copy(const struct weight *row, uint8_t *to);
void weight_apart_point(struct weight *row, const uint8_t *copy);

#endif
