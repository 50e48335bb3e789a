/* Attention's scalar twin: plain loops, double accumulation; it judges the other levels, and serves
 * pages too small for them. */
#include "base/half.h"
#include "device/cpu/attention_codes.h"
#include "device/cpu/attention_encode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void round_f16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = f16_from_f32(from[i]);
}

static void round_bf16(const float *from, uint16_t *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = bf16_from_f32(from[i]);
}

const struct attention_kernels attention_kernels_scalar = {.encode = encode_vector,
                                                           .round_f16 = round_f16,
                                                           .round_bf16 = round_bf16};

/* The dims of the token at `lane` of a piece of K. */
static void read_k(const struct kv_view *view, const void *piece, int lane, float *out)
{
    const float *f32 = piece;
    const uint16_t *f16 = piece;
    int dim = view->head_dim, width = view->piece;
    if (view->dtype == DTYPE_F32)
        for (int d = 0; d < dim; d++)
            out[d] = f32[d * width + lane];
    else if (view->dtype == DTYPE_F16)
        for (int d = 0; d < dim; d++)
            out[d] = f32_from_f16(f16[d * width + lane]);
    else
        for (int d = 0; d < dim; d++)
            out[d] = f32_from_bf16(f16[(d / 2 * width + lane) * 2 + d % 2]);
}

/* The dims of a row of V; in bf16 of the first or the second (`half` 1) row of a pair. */
static void read_v(const struct kv_view *view, const void *row, int half, float *out)
{
    const float *f32 = row;
    const uint16_t *f16 = row;
    int dim = view->head_dim;
    if (view->dtype == DTYPE_F32)
        for (int d = 0; d < dim; d++)
            out[d] = f32[d];
    else if (view->dtype == DTYPE_F16)
        for (int d = 0; d < dim; d++)
            out[d] = f32_from_f16(f16[d]);
    else
        for (int d = 0; d < dim; d++)
            out[d] = f32_from_bf16(f16[2 * d + half]);
}

void attention_scalar(const struct kv_view *view, const int32_t *pages, int32_t kv_head,
                      const float *q, float *out, int32_t first, int32_t end, float scale,
                      const float *sink)
{
    double acc[ATTENTION_MAX_DIM];
    double largest = sink ? (double)*sink : -INFINITY, sum = sink ? 1 : 0;
    float values[ATTENTION_MAX_DIM];
    int dim = view->head_dim;
    assert(dim <= ATTENTION_MAX_DIM);
    for (int d = 0; d < dim; d++)
        acc[d] = 0;
    float turned[ATTENTION_MAX_DIM];
    if (kv_has_codes(view)) {
        memcpy(turned, q, (size_t)dim * sizeof *q);
        codes_turn(turned, dim);
        q = turned;
    }
    for (int32_t place = first; place < end; place++) {
        char *k = kv_k_head(view, pages[place / view->page_size], kv_head);
        int32_t inside = place % view->page_size;
        int lane = inside % view->piece;
        if (kv_has_codes(view))
            codes_read_k(view, kv_k_piece(view, k, inside), kv_scales(view, k, inside), lane,
                         values);
        else
            read_k(view, kv_k_piece(view, k, inside), lane, values);
        double score = 0;
        for (int d = 0; d < dim; d++)
            score += (double)q[d] * (double)values[d];
        score *= (double)scale;
        double shrink = 1;
        if (score > largest) {
            shrink = exp(largest - score);
            largest = score;
        }
        double p = exp(score - largest);
        sum = sum * shrink + p;
        if (kv_has_codes(view))
            codes_read_v(view, kv_v_piece(view, k, inside), kv_scales(view, k, inside), lane,
                         values);
        else
            read_v(view, kv_v_row(view, k, inside), inside % view->pair, values);
        for (int d = 0; d < dim; d++)
            acc[d] = acc[d] * shrink + p * (double)values[d];
    }
    for (int d = 0; d < dim; d++)
        out[d] = (float)(acc[d] / sum);
    if (kv_has_codes(view))
        codes_turn(out, dim);
}
