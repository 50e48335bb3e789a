#include "models/delta_net.h"

#include "models/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_HEADS = 4096, MAX_DIM = 1024, MAX_KERNEL = 16, MIN_KERNEL = 2 };

enum status delta_net_config_read(const struct json *config, struct delta_net_config *c,
                                  struct error *error)
{
    struct {
        const char *key;
        int32_t max;
        int32_t *out;
    } counts[] = {
        {"linear_num_key_heads", MAX_HEADS, &c->n_k_heads},
        {"linear_num_value_heads", MAX_HEADS, &c->n_v_heads},
        {"linear_key_head_dim", MAX_DIM, &c->k_dim},
        {"linear_value_head_dim", MAX_DIM, &c->v_dim},
        {"linear_conv_kernel_dim", MAX_KERNEL, &c->conv_kernel},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        enum status status =
            config_count(config, counts[i].key, counts[i].max, 0, counts[i].out, error);
        if (status != OK)
            return status;
    }
    if (c->n_v_heads % c->n_k_heads)
        return error_set(error, ERROR_INVALID,
                         "%d linear value heads are not a multiple of %d linear key heads",
                         (int)c->n_v_heads, (int)c->n_k_heads);
    if (c->conv_kernel < MIN_KERNEL)
        return error_set(
            error, ERROR_UNSUPPORTED,
            "the configuration's \"linear_conv_kernel_dim\" is %d; %d to %d can be run",
            (int)c->conv_kernel, MIN_KERNEL, MAX_KERNEL);
    return OK;
}

/* Value heads that share a key head; they stay together on a rank. */
static int32_t heads_per_key(const struct delta_net_config *c)
{
    return c->n_v_heads / c->n_k_heads;
}

enum status delta_net_states(const struct delta_net_config *c, const struct comm *comm,
                             struct state_layout *out, struct error *error)
{
    int n = comm->n_ranks;
    *out = (struct state_layout){.n_layers = c->n_layers};
    if (c->n_layers == 0)
        return OK;
    if (c->n_k_heads % n)
        return error_set(error, ERROR_UNSUPPORTED,
                         "%d linear key heads cannot be split over %d ranks evenly",
                         (int)c->n_k_heads, n);
    if (c->is_tiled && heads_per_key(c) > 1 && n > 1)
        return error_set(error, ERROR_UNSUPPORTED,
                         "a GGUF's order of %d value heads cannot be split over %d ranks; use one "
                         "rank or the safetensors",
                         (int)c->n_v_heads, n);
    out->n_v_heads = c->n_v_heads / n;
    out->k_dim = c->k_dim;
    out->v_dim = c->v_dim;
    out->conv_channels = (2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim) / n;
    out->conv_rows = c->conv_kernel - 1;
    out->is_tiled = c->is_tiled;
    return OK;
}

/* --- weights ---------------------------------------------------------------------------------- */

/* "model.layers.I.linear_attn.SUFFIX" */
struct name {
    char text[96];
};

static struct name name_of(int32_t layer, const char *suffix)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "model.layers.%d.linear_attn.%s", (int)layer, suffix);
    return name;
}

static bool has(const struct loader *l, int32_t layer, const char *suffix)
{
    return checkpoint_has(l->checkpoint, name_of(layer, suffix).text);
}

enum status delta_net_norms_are_raw(const struct loader *l, int32_t layer, bool *out,
                                    struct error *error)
{
    struct weight w;
    struct name name = name_of(layer, "conv1d.weight");
    *out = false;
    if (checkpoint_is_random(l->checkpoint))
        return OK;
    enum status status = checkpoint_weight(l->checkpoint, name.text, &w, error);
    *out = status == OK && !checkpoint_is_gguf(l->checkpoint) && w.cols > 1;
    return status;
}

/* Qwen3.5 stores q, k and v one after the other and z apart; Qwen3-Next a fused weight in which
 * each key head's q, k, v and z follow each other. */
static enum status load_qkvz(struct loader *l, const struct delta_net_config *c, int32_t layer,
                             int32_t hidden, struct linear_layer *out, struct error *error)
{
    int32_t per_key = heads_per_key(c) * c->v_dim, dk = c->k_dim;
    int32_t keys = c->n_k_heads * dk, values = c->n_v_heads * c->v_dim;
    bool is_fused = has(l, layer, "in_proj_qkvz.weight");
    struct name qkv = name_of(layer, is_fused ? "in_proj_qkvz" : "in_proj_qkv");
    struct name z = name_of(layer, is_fused ? "in_proj_qkvz" : "in_proj_z");
    struct linear_part parts[] = {{qkv.text, keys, hidden, false, dk},
                                  {qkv.text, keys, hidden, false, dk},
                                  {qkv.text, values, hidden, false, per_key},
                                  {z.text, values, hidden, false, per_key}};
    int32_t all = 2 * keys + 2 * values, stride = 2 * dk + 2 * per_key, most = 2 * keys + values;
    struct stored_rows fused[] = {{all, {0, dk, stride}},
                                  {all, {dk, dk, stride}},
                                  {all, {2 * dk, per_key, stride}},
                                  {all, {2 * dk + per_key, per_key, stride}}};
    struct stored_rows apart[] = {{most, {0, keys, 0}},
                                  {most, {keys, keys, 0}},
                                  {most, {2 * keys, values, 0}},
                                  {values, {0, 0, 0}}};
    return loader_linear_rows(l, parts, is_fused ? fused : apart, 4, SHARD_COLUMNS, out, error);
}

/* b and a, apart or fused with those of a key head together. */
static enum status load_gates(struct loader *l, const struct delta_net_config *c, int32_t layer,
                              int32_t hidden, struct linear_layer *out, struct error *error)
{
    int32_t n = c->n_v_heads, per_key = heads_per_key(c);
    bool is_fused = has(l, layer, "in_proj_ba.weight");
    struct name b = name_of(layer, is_fused ? "in_proj_ba" : "in_proj_b");
    struct name a = name_of(layer, is_fused ? "in_proj_ba" : "in_proj_a");
    struct linear_part parts[] = {{b.text, n, hidden, false, per_key},
                                  {a.text, n, hidden, false, per_key}};
    struct stored_rows fused[] = {{2 * n, {0, per_key, 2 * per_key}},
                                  {2 * n, {per_key, per_key, 2 * per_key}}};
    struct stored_rows apart[] = {{n, {0, 0, 0}}, {n, {0, 0, 0}}};
    return loader_linear_rows(l, parts, is_fused ? fused : apart, 2, SHARD_COLUMNS, out, error);
}

/* A value for each value head of this rank, of the vector NAME. */
static enum status load_head_values(struct loader *l, const struct delta_net_config *c,
                                    const char *name, float (*map)(float), struct tensor *out,
                                    struct error *error)
{
    int32_t first, n;
    loader_share(l->comm, c->n_v_heads, heads_per_key(c), &first, &n);
    float *values = calloc((size_t)c->n_v_heads, sizeof *values);
    if (!values)
        return error_memory(error, (size_t)c->n_v_heads * sizeof *values);
    enum status status = loader_read_vector(l, name, c->n_v_heads, values, error);
    for (int32_t i = 0; status == OK && map && i < c->n_v_heads; i++)
        values[i] = map(values[i]);
    if (status == OK)
        status = loader_constant(l, values + first, n, out, error);
    free(values);
    return status;
}

static float negative(float x)
{
    return -x;
}

/* The channels of this rank from [C, kernel] (a row a channel, or a value a row) to [kernel, C]. */
static void turn_channels(const struct loader *l, const struct delta_net_config *c,
                          const float *stored, float *out)
{
    int32_t keys = c->n_k_heads * c->k_dim, values = c->n_v_heads * c->v_dim, at = 0;
    int32_t channels = (2 * keys + values) / l->comm->n_ranks;
    struct {
        int32_t first, n, unit;
    } parts[] = {{0, keys, c->k_dim},
                 {keys, keys, c->k_dim},
                 {2 * keys, values, heads_per_key(c) * c->v_dim}};
    for (int i = 0; i < 3; i++) {
        int32_t first, n;
        loader_share(l->comm, parts[i].n, parts[i].unit, &first, &n);
        for (int32_t channel = 0; channel < n; channel++, at++)
            for (int32_t j = 0; j < c->conv_kernel; j++)
                out[j * channels + at] =
                    stored[(parts[i].first + first + channel) * c->conv_kernel + j];
    }
}

static enum status load_conv(struct loader *l, const struct delta_net_config *c, int32_t layer,
                             struct tensor *out, struct error *error)
{
    struct name name = name_of(layer, "conv1d.weight");
    int32_t channels = 2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim;
    int32_t n = channels / l->comm->n_ranks * c->conv_kernel;
    struct weight w;
    enum status status = checkpoint_is_random(l->checkpoint)
                             ? checkpoint_weight_of(l->checkpoint, name.text, channels,
                                                    c->conv_kernel, !l->is_counting, &w, error)
                             : checkpoint_weight(l->checkpoint, name.text, &w, error);
    if (status != OK)
        return status;
    if (w.rows * w.cols != (int64_t)channels * c->conv_kernel ||
        (w.cols != 1 && w.cols != c->conv_kernel))
        return error_set(error, ERROR_INVALID,
                         "%s: weight %s is [%lld, %lld]; the configuration makes it [%d, %d]",
                         checkpoint_path(l->checkpoint), name.text, (long long)w.rows,
                         (long long)w.cols, (int)channels, (int)c->conv_kernel);
    if (l->is_counting)
        return loader_constant(l, NULL, n, out, error);
    float *stored = malloc((size_t)channels * (size_t)c->conv_kernel * sizeof *stored);
    float *turned = malloc((size_t)n * sizeof *turned);
    if (!stored || !turned) {
        status = error_memory(error, (size_t)channels * (size_t)c->conv_kernel * sizeof *stored);
    } else {
        for (int64_t row = 0; row < w.rows; row++)
            weight_row_dequantize(&w, row, stored + row * w.cols);
        checkpoint_release(l->checkpoint, &w);
        turn_channels(l, c, stored, turned);
        status = loader_constant(l, turned, n, out, error);
    }
    free(stored);
    free(turned);
    out->rows = c->conv_kernel;
    out->cols = out->stride = channels / l->comm->n_ranks;
    return status;
}

enum status delta_net_load(struct loader *l, const struct delta_net_config *c, int32_t layer,
                           int32_t hidden, float eps, struct gated_delta_layer *out,
                           struct error *error)
{
    struct name o = name_of(layer, "out_proj");
    struct linear_part part = {o.text, hidden, c->n_v_heads * c->v_dim, false,
                               heads_per_key(c) * c->v_dim};
    /* A GGUF holds -e^A_log. */
    bool has_rate = has(l, layer, "A");
    enum status status = load_qkvz(l, c, layer, hidden, &out->qkvz, error);
    if (status == OK)
        status = load_gates(l, c, layer, hidden, &out->gates, error);
    if (status == OK)
        status = load_conv(l, c, layer, &out->conv, error);
    if (status == OK)
        status = load_head_values(l, c, name_of(layer, has_rate ? "A" : "A_log").text,
                                  has_rate ? negative : expf, &out->rate, error);
    if (status == OK)
        status = load_head_values(l, c, name_of(layer, "dt_bias").text, NULL, &out->dt_bias, error);
    if (status == OK)
        status = loader_vector(l, name_of(layer, "norm.weight").text, c->v_dim, &out->norm, error);
    if (status == OK)
        status = loader_linear(l, &part, 1, SHARD_ROWS, &out->out, error);
    out->eps = eps;
    return status;
}
