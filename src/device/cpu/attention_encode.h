/* How one vector becomes codes and a scale (attention_codes.h). Plain C, which each level's file
 * includes to have it compiled for its instructions; sums run in lanes and no statement has a
 * product and a sum, so that all levels make the same codes. */
#ifndef CSGL_DEVICE_CPU_ATTENTION_ENCODE_H
#define CSGL_DEVICE_CPU_ATTENTION_ENCODE_H

#include "base/half.h"
#include "device/cpu/attention_codes.h"

#include <math.h>
#include <string.h>

enum { ENCODE_LANES = 16 };

static inline float encode_as_bf16(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

static inline float encode8(const float *x, int dim, uint8_t *codes)
{
    /* Compared as integers, which orders magnitudes and puts what is not a number on top. */
    uint32_t most = 0;
    for (int d = 0; d < dim; d++) {
        uint32_t bits;
        memcpy(&bits, &x[d], sizeof bits);
        bits &= 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    float largest;
    memcpy(&largest, &most, sizeof largest);
    float scale = encode_as_bf16(largest / 127), inverse = scale > 0 ? 1 / scale : 0;
    for (int d = 0; d < dim; d++) {
        float q = x[d] * inverse;
        q = q < 127 ? q : 127;
        q = q > -127 ? q : -127;
        q = (q + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: to the nearest integer */
        codes[d] = (uint8_t)(int)q;
    }
    return scale;
}

/* The magnitude among codes_values nearest to `size`: steps at the middles between two. */
static inline float encode_nearest(float size)
{
    float value = 6;
    value += size > 12 ? 12.0f : 0.0f;
    value += size > 24.5f ? 13.0f : 0.0f;
    value += size > 37.5f ? 13.0f : 0.0f;
    value += size > 51 ? 14.0f : 0.0f;
    value += size > 66.5f ? 17.0f : 0.0f;
    value += size > 85.5f ? 21.0f : 0.0f;
    value += size > 111.5f ? 31.0f : 0.0f;
    return value;
}

/* With v the values nearest to sizes / scale: sum of sizes v, and sum of v v, over n sizes padded
 * with zeros to whole lanes. */
static inline void encode_fit(const float *sizes, float scale, int n, float *with_v, float *v_v)
{
    float products[ENCODE_LANES] = {0}, squares[ENCODE_LANES] = {0};
    float inverse = scale > 0 ? 1 / scale : 0;
    int padded = (n + ENCODE_LANES - 1) / ENCODE_LANES * ENCODE_LANES;
    for (int i = 0; i < padded; i += ENCODE_LANES)
        for (int j = 0; j < ENCODE_LANES; j++) {
            float v = encode_nearest(sizes[i + j] * inverse);
            float product = sizes[i + j] * v, square = v * v;
            products[j] += product;
            squares[j] += square;
        }
    *with_v = 0;
    *v_v = (float)(n - padded) * 36.0f; /* what the padding added */
    for (int j = 0; j < ENCODE_LANES; j++) {
        *with_v += products[j];
        *v_v += squares[j];
    }
}

/* The error of the best scale for chosen values is |x|^2 - (x v)^2 / (v v). It has many local
 * minima: values are chosen by several scales about the one that codes_values is made for, and from
 * the best of these by the scale that they give, twice. */
static inline float encode4(const float *x, int dim, uint8_t *codes)
{
    enum { TRIES = 9, STEPS = 2 };
    float sizes[ATTENTION_MAX_DIM + ENCODE_LANES], squares[ENCODE_LANES] = {0}, sum = 0;
    memset(sizes + dim, 0, ENCODE_LANES * sizeof *sizes);
    for (int d = 0; d < dim; d++)
        sizes[d] = fabsf(x[d]);
    for (int i = 0; i < dim; i += ENCODE_LANES)
        for (int j = 0; j < ENCODE_LANES; j++) {
            float square = sizes[i + j] * sizes[i + j];
            squares[j] += square;
        }
    for (int j = 0; j < ENCODE_LANES; j++)
        sum += squares[j];
    float fitting = sqrtf(sum / (float)dim) * (2.733f / 127);
    float chosen = fitting, scale = fitting, most = -1;
    for (int i = 0; i < TRIES; i++) {
        float by = fitting * (0.75f + (float)i * 0.0625f), with_v, v_v;
        encode_fit(sizes, by, dim, &with_v, &v_v);
        float best = with_v / v_v, less = with_v * best;
        if (less > most) {
            most = less;
            chosen = by;
            scale = best;
        }
    }
    for (int i = 0; i < STEPS; i++) {
        float with_v, v_v;
        chosen = scale;
        encode_fit(sizes, chosen, dim, &with_v, &v_v);
        scale = with_v / v_v;
    }
    float inverse = chosen > 0 ? 1 / chosen : 0;
    for (int d = 0; d < dim; d++) {
        float size = sizes[d] * inverse;
        int at = (size > 12) + (size > 24.5f) + (size > 37.5f) + (size > 51) + (size > 66.5f) +
                 (size > 85.5f) + (size > 111.5f);
        codes[d] = (uint8_t)(x[d] < 0 ? 7 - at : 8 + at);
    }
    return encode_as_bf16(scale);
}

/* As attention_kernels' encode. */
static inline float encode_vector(enum dtype dtype, const float *x, int dim, uint8_t *codes)
{
    return dtype == DTYPE_I8 ? encode8(x, dim, codes) : encode4(x, dim, codes);
}

#endif
