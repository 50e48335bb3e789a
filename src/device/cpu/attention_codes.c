#include "device/cpu/attention_codes.h"

#include "base/half.h"

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
    /* The first two steps at once: the loops below are too short there for vectors. */
    int half = width >= 4 ? 4 : 1;
    for (int i = 0; half == 4 && i < dim; i += 4) {
        float a = x[i] + x[i + 1], b = x[i] - x[i + 1];
        float c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
        x[i] = a + c;
        x[i + 1] = b + d;
        x[i + 2] = a - c;
        x[i + 3] = b - d;
    }
    for (; half < width; half *= 2)
        for (int i = 0; i < dim; i += 2 * half)
            for (int d = i; d < i + half; d++) {
                float a = x[d], b = x[d + half];
                x[d] = a + b;
                x[d + half] = a - b;
            }
    for (int d = 0; d < dim; d++)
        x[d] *= scale;
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

/* One token's int8 codes: pairs of dims `stride` bytes apart, or all in every second byte. */
static void put_pairs(uint8_t *at, size_t stride, const uint8_t *codes, int dim)
{
    for (int d = 0; d < dim; d += 2, at += stride) {
        at[0] = codes[d];
        at[1] = codes[d + 1];
    }
}

static void put_seconds(uint8_t *at, const uint8_t *codes, int dim)
{
    for (int d = 0; d < dim; d++)
        at[2 * d] = codes[d];
}

/* One token's codes of K. Where a unit is two dims of all tokens of a piece, each lies at the same
 * place of its unit. */
static void put_k(const struct kv_view *view, void *piece, int lane, const uint8_t *codes)
{
    int dim = view->head_dim;
    if (view->dtype == DTYPE_I8) {
        put_pairs((uint8_t *)piece + 2 * lane, 2 * (size_t)view->piece, codes, dim);
        return;
    }
    if (2 * view->piece != CODES_UNIT) {
        for (int d = 0; d < dim; d++)
            codes_put(view->dtype, piece, k_index(view, lane, d), codes[d]);
        return;
    }
    int shift = lane / 4 % 2 * 4;
    uint8_t keep = (uint8_t)(0xF0 >> shift), *at = (uint8_t *)piece + lane % 4 * 4 + lane / 8;
    for (int d = 0; d < dim; d += 2, at += CODES_UNIT_BYTES) {
        at[0] = (uint8_t)((at[0] & keep) | codes[d] << shift);
        at[2] = (uint8_t)((at[2] & keep) | codes[d + 1] << shift);
    }
}

/* One token's codes of V. Where a unit is 16 dims of two tokens, a byte's two codes are the same
 * token's. */
static void put_v(const struct kv_view *view, void *piece, int lane, const uint8_t *codes)
{
    int dim = view->head_dim;
    if (view->dtype == DTYPE_I8) {
        put_seconds((uint8_t *)piece + lane / 2 * 2 * dim + lane % 2, codes, dim);
        return;
    }
    if (2 * dim % CODES_UNIT) {
        for (int d = 0; d < dim; d++)
            codes_put(view->dtype, piece, v_index(view, lane, d), codes[d]);
        return;
    }
    uint8_t *at = (uint8_t *)piece + lane / 2 * dim + lane % 2 * 2;
    for (int d = 0; d < dim; d += CODES_UNIT / 2, at += CODES_UNIT_BYTES)
        for (int i = 0; i < 4; i++) {
            at[4 * i] = (uint8_t)(codes[d + i] | codes[d + 4 + i] << 4);
            at[4 * i + 1] = (uint8_t)(codes[d + 8 + i] | codes[d + 12 + i] << 4);
        }
}

void codes_store(const struct kv_view *view, const float *k, size_t k_stride, const float *v,
                 size_t v_stride, int n, int lane, void *k_piece, void *v_piece, uint16_t *scales,
                 codes_encoder encode)
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
        float scale = encode(view->dtype, x, dim, codes);
        scales[2 * lane] = bf16_from_f32(scale);
        put_k(view, k_piece, lane, codes);
        if (n > 1) {
            for (int d = 0; d < dim; d++)
                values[d] = view->dtype == DTYPE_I8 ? (int8_t)codes[d] : codes_values[codes[d]];
            add_share(prediction, lane, scale, values, dim);
        }
        memcpy(x, v, (size_t)dim * sizeof *x);
        codes_turn(x, dim);
        scales[2 * lane + 1] = bf16_from_f32(encode(view->dtype, x, dim, codes));
        put_v(view, v_piece, lane, codes);
    }
}
