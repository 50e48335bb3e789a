/* A checkpoint without files of weights: they are made when they are asked for, from a seed and
 * their name, in one encoding, with the spread that keeps a model's activations at their size. Any
 * shape can be run without its checkpoint, and no second copy is held. */
#ifndef CSGL_CHECKPOINT_RANDOM_H
#define CSGL_CHECKPOINT_RANDOM_H

#include "base/json.h"
#include "base/weight.h"

#include <stdbool.h>

struct random_weights;

/* `encoding` is a name of base/weight.h in any case ("bf16", "q4_0"). ERROR_INVALID lists them. */
enum status random_weights_new(struct random_weights **out, const char *encoding,
                               struct error *error);
void random_weights_free(struct random_weights *r);

/* Whether a model of this configuration has such a weight besides those that it always has. */
bool random_weights_has(const struct json *config, const char *name);

/* The weight [rows, cols]. With `wants_data` its bytes as well. Vectors are f32; what the
 * encoding's blocks do not divide is bf16. */
enum status random_weights_make(struct random_weights *r, const char *name, int64_t rows,
                                int64_t cols, bool wants_data, struct weight *out,
                                struct error *error);

/* Makes the bytes of a weight without them, on all processors; they live until
 * random_weights_release or the end. The same name and form always give the same bytes. Codes that
 * would be made of floats (weight_quantized) are made themselves, with levels beside them. */
enum status random_weights_fill(struct random_weights *r, const char *name, struct weight *weight,
                                struct error *error);

/* Frees the bytes if they are of this source. */
void random_weights_release(struct random_weights *r, const uint8_t *data);

#endif
