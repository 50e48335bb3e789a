#include "device/cpu/attention_codes.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The 16 means of the least square error for a normal distribution (Max 1960, table 1: 0.1284 ..
 * 2.733), the largest as 127. */
const int8_t codes_values[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                 6,    18,  31,  44,  58,  75,  96,  127};

/* A running mean that forgets: token t's share is max(1 / (t + 1), 0.4). On the default model's K,
 * 0.3 to 0.4 leave the least error. */
const float codes_shares[ATTENTION_PIECE] = {1.0f, 0.5f, 0.4f, 0.4f, 0.4f, 0.4f, 0.4f, 0.4f,
                                             0.4f, 0.4f, 0.4f, 0.4f, 0.4f, 0.4f, 0.4f, 0.4f};

void codes_turn(float *x, int dim)
{
    int width = dim & -dim;
    float scale = 1 / sqrtf((float)width);
    for (int half = 1; half < width; half *= 2)
        for (int i = 0; i < dim; i += 2 * half)
            for (int d = i; d < i + half; d++) {
                float a = x[d], b = x[d + half];
                x[d] = a + b;
                x[d + half] = a - b;
            }
    for (int d = 0; d < dim; d++)
        x[d] *= scale;
}

/* Sums run in so many lanes, so that every compiler adds in the same order and may use vectors. */
enum { LANES = 16 };

static float sum_lanes(const float *lanes)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* sum of a b */
static float dot(const float *a, const float *b, int n)
{
    float lanes[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        lanes[i % LANES] += a[i] * b[i];
    return sum_lanes(lanes);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float as_bf16(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

static float encode8(const float *x, int dim, uint8_t *codes)
{
    /* Compared as integers, which orders magnitudes and puts what is not a number on top. */
    uint32_t most = 0;
    for (int d = 0; d < dim; d++) {
        uint32_t bits = bits_of(x[d]) & 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    float largest;
    memcpy(&largest, &most, sizeof largest);
    float scale = as_bf16(largest / 127), inverse = scale > 0 ? 1 / scale : 0;
    for (int d = 0; d < dim; d++) {
        float q = x[d] * inverse;
        q = q < 127 ? q : 127;
        q = q > -127 ? q : -127;
        q = (q + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: to the nearest integer */
        codes[d] = (uint8_t)(int)q;
    }
    return scale;
}

/* The nearest of codes_values for x / scale, as a code and as a value. */
static void choose4(const float *x, float scale, int dim, uint8_t *codes, float *values)
{
    static const float borders[] = {12, 24.5f, 37.5f, 51, 66.5f, 85.5f, 111.5f};
    float inverse = scale > 0 ? 1 / scale : 0;
    for (int d = 0; d < dim; d++) {
        float q = x[d] * inverse, size = fabsf(q);
        int at = 0;
        for (int i = 0; i < 7; i++)
            at += size > borders[i];
        codes[d] = (uint8_t)(q < 0 ? 7 - at : 8 + at);
    }
    for (int d = 0; d < dim; d++)
        values[d] = codes_values[codes[d]];
}

/* From the scale that the table is made for to the one with the least error for the codes chosen,
 * twice. */
static float encode4(const float *x, int dim, uint8_t *codes)
{
    float values[ATTENTION_MAX_DIM];
    float scale = sqrtf(dot(x, x, dim) / (float)dim) * (2.733f / 127);
    for (int i = 0; i < 2; i++) {
        choose4(x, scale, dim, codes, values);
        scale = dot(x, values, dim) / dot(values, values, dim);
    }
    return as_bf16(scale);
}

float codes_encode(enum dtype dtype, const float *x, int dim, uint8_t *codes)
{
    assert(dim <= ATTENTION_MAX_DIM);
    return dtype == DTYPE_I8 ? encode8(x, dim, codes) : encode4(x, dim, codes);
}

/* Where dim d of a token lies: two dims of K, two tokens of V side by side, as in bf16. */
static size_t k_index(const struct kv_view *view, int lane, int d)
{
    return ((size_t)(d / 2) * (size_t)view->piece + (size_t)lane) * 2 + (size_t)d % 2;
}

static size_t v_index(const struct kv_view *view, int lane, int d)
{
    return ((size_t)(lane / 2) * (size_t)view->head_dim + (size_t)d) * 2 + (size_t)lane % 2;
}

/* Adds the share of token `lane`, whose d is scale * value[d], to the prediction. */
static void add_share(float *prediction, int lane, float scale, const float *values, int dim)
{
    float factor = codes_shares[lane] * scale;
    for (int d = 0; d < dim; d++)
        prediction[d] += factor * values[d];
}

static void read_k_codes(const struct kv_view *view, const void *piece, int lane, float *values)
{
    for (int d = 0; d < view->head_dim; d++)
        values[d] = (float)codes_get(view->dtype, piece, k_index(view, lane, d));
}

/* The prediction for the token at `lane`. */
static void predict(const struct kv_view *view, const void *piece, const uint16_t *scales, int lane,
                    float *prediction)
{
    float values[ATTENTION_MAX_DIM];
    memset(prediction, 0, (size_t)view->head_dim * sizeof *prediction);
    for (int i = 0; i < lane; i++) {
        read_k_codes(view, piece, i, values);
        add_share(prediction, i, f32_from_bf16(scales[2 * i]), values, view->head_dim);
    }
}

void codes_read_k(const struct kv_view *view, const void *piece, const uint16_t *scales, int lane,
                  float *out)
{
    float prediction[ATTENTION_MAX_DIM];
    predict(view, piece, scales, lane, prediction);
    read_k_codes(view, piece, lane, out);
    for (int d = 0; d < view->head_dim; d++)
        out[d] = f32_from_bf16(scales[2 * lane]) * out[d] + prediction[d];
}

void codes_read_v(const struct kv_view *view, const void *piece, const uint16_t *scales, int lane,
                  float *out)
{
    for (int d = 0; d < view->head_dim; d++)
        out[d] = f32_from_bf16(scales[2 * lane + 1]) *
                 (float)codes_get(view->dtype, piece, v_index(view, lane, d));
}

void codes_store(const struct kv_view *view, const float *k, size_t k_stride, const float *v,
                 size_t v_stride, int n, int lane, void *k_piece, void *v_piece, uint16_t *scales)
{
    int dim = view->head_dim;
    float prediction[ATTENTION_MAX_DIM], x[ATTENTION_MAX_DIM], values[ATTENTION_MAX_DIM];
    uint8_t codes[ATTENTION_MAX_DIM];
    predict(view, k_piece, scales, lane, prediction);
    for (; n > 0; n--, lane++, k += k_stride, v += v_stride) {
        memcpy(x, k, (size_t)dim * sizeof *x);
        codes_turn(x, dim);
        for (int d = 0; d < dim; d++)
            x[d] -= prediction[d];
        float scale = codes_encode(view->dtype, x, dim, codes);
        scales[2 * lane] = bf16_from_f32(scale);
        for (int d = 0; d < dim; d++)
            codes_put(view->dtype, k_piece, k_index(view, lane, d), codes[d]);
        if (n > 1) {
            for (int d = 0; d < dim; d++)
                values[d] = view->dtype == DTYPE_I8 ? (int8_t)codes[d] : codes_values[codes[d]];
            add_share(prediction, lane, scale, values, dim);
        }
        memcpy(x, v, (size_t)dim * sizeof *x);
        codes_turn(x, dim);
        scales[2 * lane + 1] = bf16_from_f32(codes_encode(view->dtype, x, dim, codes));
        for (int d = 0; d < dim; d++)
            codes_put(view->dtype, v_piece, v_index(view, lane, d), codes[d]);
    }
}
