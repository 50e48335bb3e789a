/* KV caches of codes, int8 and int4: how a head's K and V become codes and one scale each. GPUs make
 * the same of int8 (kernels/codes.h).
 *
 * Both are turned first by a Hadamard matrix, which spreads what a few dims have more of over all
 * of them (as QuaRot does, arXiv:2404.00456). q is turned too, so that the scores stay, and the
 * sums of V are turned back; both happen in the arithmetic's f32.
 *
 * An int8 code is the value over the scale. An int4 code chooses from 16 values made for a normal
 * distribution. K's codes are of what is left when a prediction from the piece's earlier tokens is
 * taken away: K of neighbours is alike. With d of each token as its codes say it, and 0 for the
 * first,
 *
 *     K[t] = d[t] + P[t],  P[t] = sum over i < t of share[i] d[i]
 *
 * so the prediction needs no memory, scores get it as a sum over scores, and a page's tokens must
 * be stored in order. Measured in docs/performance.md. */
#ifndef CSGL_DEVICE_CPU_ATTENTION_CODES_H
#define CSGL_DEVICE_CPU_ATTENTION_CODES_H

#include "device/cpu/attention.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODES_UNIT = 32,      /* int4 codes that lie together: 8 little-endian words, of which */
    CODES_UNIT_BYTES = 16 /* word w has codes w, 8 + w, 16 + w and 24 + w, the lowest bits first */
};

/* What an int4 code means, in units of its scale. */
extern const int8_t codes_values[16];

/* Of each token of a piece in the predictions behind it. */
extern const float codes_shares[ATTENTION_PIECE];

/* n codes' bytes. */
static inline size_t codes_bytes(enum dtype dtype, size_t n)
{
    return dtype == DTYPE_I8 ? n : (n + CODES_UNIT - 1) / CODES_UNIT * CODES_UNIT_BYTES;
}

/* Code i of an array, and what it means in units of the scale. */
static inline int codes_get(enum dtype dtype, const void *codes, size_t i)
{
    const uint8_t *bytes = codes;
    if (dtype == DTYPE_I8)
        return (int8_t)bytes[i];
    size_t part = i % CODES_UNIT / 8; /* which of a word's four */
    uint8_t two = bytes[i / CODES_UNIT * CODES_UNIT_BYTES + i % 8 * 2 + part / 2];
    return codes_values[part % 2 ? two >> 4 : two & 15];
}

static inline void codes_put(enum dtype dtype, void *codes, size_t i, uint8_t code)
{
    uint8_t *bytes = codes;
    if (dtype == DTYPE_I8) {
        bytes[i] = code;
        return;
    }
    size_t part = i % CODES_UNIT / 8;
    uint8_t *two = &bytes[i / CODES_UNIT * CODES_UNIT_BYTES + i % 8 * 2 + part / 2];
    *two = (uint8_t)(part % 2 ? (*two & 15) | code << 4 : (*two & 0xF0) | code);
}

/* x times a Hadamard matrix of length 1, in blocks of the largest power of two that divides dim:
 * its own inverse. */
void codes_turn(float *x, int dim);

/* K, turned, of the token at `lane` of a piece with these codes and scales (k and v by turns). */
void codes_read_k(const struct kv_view *view, const void *piece, const uint16_t *scales, int lane,
                  float *out);

/* V, turned, of the token at `lane` of a piece. */
void codes_read_v(const struct kv_view *view, const void *piece, const uint16_t *scales, int lane,
                  float *out);

/* Stores n tokens of one head that follow each other in one piece, the first at `lane`; strides in
 * floats. */
void codes_store(const struct kv_view *view, const float *k, size_t k_stride, const float *v,
                 size_t v_stride, int n, int lane, void *k_piece, void *v_piece, uint16_t *scales,
                 codes_encoder encode);

#endif
