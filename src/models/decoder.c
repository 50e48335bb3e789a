#include "models/decoder.h"

#include "base/log.h"
#include "layers/attention.h"
#include "models/loader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct decoder_layer {
    struct norm_layer input_norm, post_attention_norm;
    struct attention_layer attention; /* of a full or sliding layer */
    struct gated_delta_layer delta;   /* of a linear one */
    struct mlp_layer mlp;             /* of a dense layer */
    struct moe_layer moe;             /* of a sparse one */
};

struct decoder_model {
    struct model model;
    struct decoder_config config;
    bool norm_plus_one; /* the file's norms hold w - 1 */
    struct embedding *embedding;
    struct rope_layer rope;
    struct norm_layer norm;
    struct linear_layer head;
    struct decoder_layer layers[];
};

static struct decoder_model *decoder_of(struct model *model)
{
    return (struct decoder_model *)(void *)model;
}

/* Whether layer i has keys and values of its own. */
static bool has_kv(const struct decoder_config *c, int32_t i)
{
    return c->kv_share <= 1 || i % c->kv_share == 0;
}

/* Full layers form the first group, sliding ones the second; a group without layers does not exist.
 * Layers without keys and values of their own have no pages. */
static void make_groups(struct decoder_model *m)
{
    const struct decoder_config *c = &m->config;
    int32_t n_sliding = 0, n_full = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        n_sliding += c->is_sliding[i] && has_kv(c, i);
        n_full += !c->is_sliding[i] && !c->is_linear[i] && has_kv(c, i);
    }
    struct model *model = &m->model;
    if (n_full)
        model->kv_groups[model->n_kv_groups++] = (struct kv_group){.n_layers = n_full};
    if (n_sliding)
        model->kv_groups[model->n_kv_groups++] =
            (struct kv_group){.window = c->window, .n_layers = n_sliding};
    for (int32_t i = 0; i < c->n_layers; i++)
        m->layers[i].attention.group = c->is_linear[i] ? -1 : c->is_sliding[i] && n_full ? 1 : 0;
}

/* The mixture of layer i. */
static struct moe_config moe_of(const struct decoder_config *c, int32_t i)
{
    struct moe_config moe = c->moe;
    const struct moe_sizes *own = &c->moe_sizes[i];
    moe.n_experts = own->n_experts ? own->n_experts : moe.n_experts;
    moe.top_k = own->top_k ? own->top_k : moe.top_k;
    moe.intermediate = own->intermediate ? own->intermediate : moe.intermediate;
    if (own->shared_intermediate)
        moe.shared_intermediate = own->shared_intermediate;
    return moe;
}

/* The widest intermediate of a dense block, of the whole model: of dense layers and of shared
 * experts. */
static int32_t mlp_width(const struct decoder_config *c)
{
    int32_t width = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        int32_t n = c->is_sparse[i] ? moe_of(c, i).shared_intermediate : c->intermediate;
        width = n > width ? n : width;
    }
    return width;
}

static enum status check_shape(const struct decoder_config *c, const struct comm *comm,
                               struct error *error)
{
    int n = comm->n_ranks;
    bool kv_fits = c->n_kv_heads % n == 0 || n % c->n_kv_heads == 0;
    bool is_even = c->n_heads % n == 0 && kv_fits;
    int32_t dense = c->intermediate, sparse = 0;
    for (int32_t i = 0; i < c->n_layers && is_even; i++) {
        if (!c->is_sparse[i] && c->intermediate == 0)
            return error_set(error, ERROR_INVALID,
                             "the configuration lacks \"intermediate_size\", which layer %d needs",
                             (int)i);
        struct moe_config moe = moe_of(c, i);
        dense = c->is_sparse[i] ? moe.shared_intermediate : c->intermediate;
        sparse = c->is_sparse[i] ? moe.intermediate : 0;
        is_even = dense % n == 0 && sparse % n == 0;
    }
    if (!is_even)
        return error_set(
            error, ERROR_UNSUPPORTED,
            "%d query heads, %d key-value heads and intermediates of %d columns (%d of "
            "an expert) cannot be split over %d ranks evenly",
            c->n_heads, c->n_kv_heads, dense, sparse, n);
    return OK;
}

enum status decoder_new(const struct decoder_config *c, const struct comm *comm, struct model **out,
                        struct error *error)
{
    struct state_layout states;
    enum status status = check_shape(c, comm, error);
    if (status == OK)
        status = delta_net_states(&c->delta, comm, &states, error);
    if (status != OK)
        return status;
    size_t bytes =
        sizeof(struct decoder_model) + (size_t)c->n_layers * sizeof(struct decoder_layer);
    struct decoder_model *m = calloc(1, bytes);
    if (!m)
        return error_memory(error, bytes);
    m->config = *c;
    int32_t first;
    struct model *model = &m->model;
    model->n_layers = c->n_layers;
    model->hidden = c->hidden;
    model->vocab_size = c->vocab_size;
    model->max_positions = c->max_positions;
    model->n_ranks = comm->n_ranks;
    model->head_dim = c->head_dim;
    loader_share(comm, c->n_heads, 1, &first, &model->n_heads);
    loader_share(comm, c->n_kv_heads, 1, &first, &model->n_kv_heads);
    make_groups(m);
    model->states = states;
    *out = model;
    return OK;
}

void decoder_free(struct model *model)
{
    free(decoder_of(model));
}

/* "model.layers.I.SUFFIX" */
struct name {
    char text[96];
};

static struct name layer_name(int32_t layer, const char *suffix)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "model.layers.%d.%s", (int)layer, suffix);
    return name;
}

/* Layers that share keys and values have norms of their own for them: there the shared keys are
 * normed without weights, and the queries take the weights of both. */
static enum status load_qk_norms(struct decoder_model *m, struct loader *l, int32_t i,
                                 struct error *error)
{
    const struct decoder_config *c = &m->config;
    struct attention_layer *a = &m->layers[i].attention;
    int32_t d = c->head_dim;
    const char *q = c->norm_last ? "self_attn.query_layernorm.weight" : "self_attn.q_norm.weight";
    const char *k = c->norm_last ? "self_attn.key_layernorm.weight" : "self_attn.k_norm.weight";
    float *of_q = calloc((size_t)d * 2, sizeof *of_q), *of_k = of_q + d;
    if (!of_q)
        return error_memory(error, (size_t)d * 2 * sizeof *of_q);
    enum status status = loader_read_vector(l, layer_name(i, q).text, d, of_q, error);
    if (status == OK)
        status = loader_read_vector(l, layer_name(i, k).text, d, of_k, error);
    for (int32_t at = 0; at < d && c->kv_share > 1; at++) {
        of_q[at] *= of_k[at];
        of_k[at] = 1;
    }
    if (status == OK)
        status = loader_constant(l, of_q, d, &a->q_norm, error);
    if (status == OK)
        status = loader_constant(l, of_k, d, &a->k_norm, error);
    free(of_q);
    return status;
}

/* One a query head: this rank's part. */
static enum status load_sinks(struct decoder_model *m, struct loader *l, int32_t i,
                              struct error *error)
{
    struct attention_layer *a = &m->layers[i].attention;
    int32_t n = m->config.n_heads, first, count;
    enum status status =
        loader_vector(l, layer_name(i, "self_attn.sinks").text, n, &a->sinks, error);
    loader_share(l->comm, n, 1, &first, &count);
    a->sinks = tensor_cols(a->sinks, first, count);
    return status;
}

/* Hunyuan's older files: for each key-value head the rows of its query heads, its keys, its values.
 */
static enum status load_fused_qkv(struct decoder_model *m, struct loader *l, int32_t i,
                                  struct error *error)
{
    const struct decoder_config *c = &m->config;
    int32_t d = c->head_dim, q_out = c->n_heads * d, kv_out = c->n_kv_heads * d;
    int32_t group = c->n_heads / c->n_kv_heads * d, all = q_out + 2 * kv_out;
    struct name name = layer_name(i, "self_attn.qkv_proj");
    struct linear_part parts[] = {{name.text, q_out, c->hidden, c->has_qkv_bias, d},
                                  {name.text, kv_out, c->hidden, c->has_qkv_bias, d},
                                  {name.text, kv_out, c->hidden, c->has_qkv_bias, d}};
    struct stored_rows stored[] = {{all, {0, group, group + 2 * d}},
                                   {all, {group, d, group + 2 * d}},
                                   {all, {group + d, d, group + 2 * d}}};
    return loader_linear_rows(l, parts, stored, 3, SHARD_COLUMNS, &m->layers[i].attention.qkv,
                              error);
}

static enum status load_attention(struct decoder_model *m, struct loader *l, int32_t i,
                                  struct error *error)
{
    const struct decoder_config *c = &m->config;
    struct attention_layer *a = &m->layers[i].attention;
    int32_t d = c->head_dim, q_out = c->n_heads * d, kv_out = c->n_kv_heads * d;
    struct name q = layer_name(i, "self_attn.q_proj"), k = layer_name(i, "self_attn.k_proj"),
                v = layer_name(i, "self_attn.v_proj"), o = layer_name(i, "self_attn.o_proj");
    struct linear_part qkv[] = {{q.text, q_out, c->hidden, c->has_qkv_bias, d},
                                {q.text, q_out, c->hidden, c->has_qkv_bias, d},
                                {k.text, kv_out, c->hidden, c->has_qkv_bias, d},
                                {v.text, kv_out, c->hidden, c->has_qkv_bias, d}};
    /* With a gate, each head's rows of q_proj are those of q and then those of its gate. */
    struct stored_rows stored[] = {{2 * q_out, {0, d, 2 * d}},
                                   {2 * q_out, {d, d, 2 * d}},
                                   {kv_out, {0, 0, 0}},
                                   {kv_out, {0, 0, 0}}};
    struct linear_part out = {o.text, c->hidden, q_out, c->has_o_bias, d};
    a->shares_kv = !has_kv(c, i);
    enum status status;
    if (loader_is_fused(l, q.text, layer_name(i, "self_attn.qkv_proj").text))
        status = load_fused_qkv(m, l, i, error);
    else if (c->has_gate)
        status = loader_linear_rows(l, qkv, stored, 4, SHARD_COLUMNS, &a->qkv, error);
    else
        status = loader_linear(l, qkv + 1, a->shares_kv ? 1 : 3, SHARD_COLUMNS, &a->qkv, error);
    if (status == OK)
        status = loader_linear(l, &out, 1, SHARD_ROWS, &a->o, error);
    if (status == OK && c->has_qk_norm)
        status = load_qk_norms(m, l, i, error);
    if (status == OK && c->has_sinks)
        status = load_sinks(m, l, i, error);
    a->eps = c->eps;
    a->norm_last = c->norm_last;
    a->norm_plus_one = m->norm_plus_one;
    a->has_gate = c->has_gate;
    a->n_heads = m->model.n_heads;
    a->n_kv_heads = m->model.n_kv_heads;
    a->head_dim = d;
    a->window = c->is_sliding[i] ? c->window : 0;
    a->scale = 1.0f / sqrtf((float)d);
    return status;
}

static enum status load_layer(struct decoder_model *m, struct loader *l, int32_t i,
                              struct error *error)
{
    const struct decoder_config *c = &m->config;
    struct decoder_layer *layer = &m->layers[i];
    struct name mlp = layer_name(i, "mlp");
    enum status status = loader_norm(l, layer_name(i, "input_layernorm.weight").text, c->hidden,
                                     c->eps, &layer->input_norm, error);
    if (status == OK)
        status = loader_norm(l, layer_name(i, "post_attention_layernorm.weight").text, c->hidden,
                             c->eps, &layer->post_attention_norm, error);
    layer->input_norm.plus_one = layer->post_attention_norm.plus_one = m->norm_plus_one;
    if (status == OK)
        status = c->is_linear[i]
                     ? delta_net_load(l, &c->delta, i, c->hidden, c->eps, &layer->delta, error)
                     : load_attention(m, l, i, error);
    if (status != OK)
        return status;
    struct moe_config moe = moe_of(c, i);
    return c->is_sparse[i] ? moe_load(l, mlp.text, c->hidden, &moe, &layer->moe, error)
                           : mlp_load(l, mlp.text, c->hidden, c->intermediate, c->has_mlp_bias,
                                      &layer->mlp, error);
}

static enum status load_rope(struct decoder_model *m, struct loader *l, struct error *error)
{
    int32_t n = m->config.rope.dim / 2;
    float *inv_freq = malloc((size_t)n * 2 * sizeof *inv_freq), *divisors = inv_freq + n;
    if (!inv_freq)
        return error_memory(error, (size_t)n * 2 * sizeof *inv_freq);
    rope_frequencies(&m->config.rope, inv_freq, &m->rope.scale);
    /* GGUF carries llama3's scaling as divisors of the frequencies. */
    struct weight w;
    enum status status = OK;
    if (checkpoint_has(l->checkpoint, "rope_freqs.weight"))
        status = checkpoint_weight(l->checkpoint, "rope_freqs.weight", &w, error);
    else
        w.rows = 0;
    if (status == OK && w.rows) {
        if (w.rows != 1 || w.cols != n)
            status = error_set(error, ERROR_INVALID, "%s: rope_freqs.weight must have %d values",
                               checkpoint_path(l->checkpoint), (int)n);
        else
            weight_row_dequantize(&w, 0, divisors);
        for (int32_t i = 0; status == OK && i < n; i++)
            inv_freq[i] /= divisors[i];
    }
    if (status == OK)
        status = loader_constant(l, inv_freq, n, &m->rope.inv_freq, error);
    free(inv_freq);
    return status;
}

/* What has to be known before the layers: how the norms are stored, and room for their work. */
static enum status prepare_linear_layers(struct decoder_model *m, struct loader *l,
                                         struct error *error)
{
    const struct decoder_config *c = &m->config;
    int32_t first = 0;
    if (c->delta.n_layers == 0)
        return OK;
    while (!c->is_linear[first])
        first++;
    bool is_raw;
    enum status status = delta_net_norms_are_raw(l, first, &is_raw, error);
    if (status != OK || l->is_counting)
        return status;
    m->norm_plus_one = c->has_raw_norms && is_raw;
    log_info("norms hold %s, as the shape of the convolutions tells",
             m->norm_plus_one ? "w - 1" : "w");
    return l->device->table->gated_delta_reserve(l->device, &m->model.states, error);
}

enum status decoder_load(struct model *model, struct loader *l, struct error *error)
{
    struct decoder_model *m = decoder_of(model);
    const struct decoder_config *c = &m->config;
    bool is_tied = c->head == HEAD_TIED ||
                   (c->head == HEAD_IF_PRESENT && !checkpoint_has(l->checkpoint, "lm_head.weight"));
    /* A head whose rows do not split evenly stays whole on every rank. */
    enum shard shard = c->vocab_size % l->comm->n_ranks ? SHARD_WHOLE : SHARD_COLUMNS;
    struct linear_part head = {is_tied ? "model.embed_tokens" : "lm_head", c->vocab_size, c->hidden,
                               false, 0};
    enum status status = loader_embedding(l, "model.embed_tokens.weight", c->vocab_size, c->hidden,
                                          &m->embedding, error);
    /* The largest weight comes first: while it is copied its file's pages are in memory too. */
    if (status == OK)
        status = loader_linear(l, &head, 1, shard, &m->head, error);
    if (status == OK)
        status = load_rope(m, l, error);
    if (status == OK)
        status = prepare_linear_layers(m, l, error);
    for (int32_t i = 0; i < c->n_layers && status == OK; i++)
        status = load_layer(m, l, i, error);
    if (status == OK)
        status = loader_norm(l, "model.norm.weight", c->hidden, c->eps, &m->norm, error);
    m->norm.plus_one = m->norm_plus_one;
    return status;
}

void decoder_bind_pages(struct model *model, int32_t group, int32_t layer, struct kv_pages pages)
{
    struct decoder_model *m = decoder_of(model);
    for (int32_t i = 0; i < m->config.n_layers; i++)
        if (m->layers[i].attention.group == group) {
            layer -= has_kv(&m->config, i);
            if (layer == -1)
                m->layers[i].attention.pages = pages;
        }
}

void decoder_bind_states(struct model *model, int32_t layer, struct state_slots slots)
{
    struct decoder_model *m = decoder_of(model);
    for (int32_t i = 0; i < m->config.n_layers; i++)
        if (m->config.is_linear[i] && layer-- == 0)
            m->layers[i].delta.slots = slots;
}

/* Widths of the intermediates on this rank. */
static int32_t qkv_cols(const struct decoder_model *m)
{
    const struct model *model = &m->model;
    int32_t n_q = m->config.has_gate ? 2 * model->n_heads : model->n_heads;
    return (n_q + 2 * model->n_kv_heads) * model->head_dim;
}

/* What a layer hands to its output projection. */
static int32_t mixed_cols(const struct decoder_model *m, int32_t layer)
{
    const struct state_layout *states = &m->model.states;
    return m->config.is_linear[layer] ? states->n_v_heads * states->v_dim
                                      : m->model.n_heads * m->model.head_dim;
}

static int32_t widest_mixed_cols(const struct decoder_model *m)
{
    int32_t width = 0;
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        int32_t n = mixed_cols(m, i);
        width = n > width ? n : width;
    }
    return width;
}

static int32_t mlp_cols(const struct decoder_model *m)
{
    return mlp_width(&m->config) / m->model.n_ranks;
}

/* The widest of all sparse layers; nothing where there is none. */
static struct moe_shape moe_shape(const struct decoder_model *m)
{
    const struct decoder_config *c = &m->config;
    struct moe_shape widest = {0};
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct moe_config moe = moe_of(c, i);
        struct moe_shape shape = moe_shape_of(&moe, c->hidden);
        if (!c->is_sparse[i])
            continue;
        if (widest.n_experts > shape.n_experts)
            shape.n_experts = widest.n_experts;
        shape.top_k = shape.top_k > widest.top_k ? shape.top_k : widest.top_k;
        shape.has_shared |= widest.has_shared;
        widest = shape;
    }
    return widest;
}

size_t decoder_scratch_bytes(const struct model *model, int32_t max_rows, int32_t max_want)
{
    const struct decoder_model *m = (const struct decoder_model *)(const void *)model;
    int64_t mixed = widest_mixed_cols(m);
    int64_t row_cols[] = {
        model->hidden, model->hidden,           qkv_cols(m), mixed, m->config.rope.dim,
        mlp_cols(m),   2 * (int64_t)mlp_cols(m)};
    /* The wanted rows of the last layer, and this rank's part of the logits. */
    int64_t want_cols[] = {mixed, model->hidden, model->n_ranks > 1 ? model->vocab_size : 0};
    struct moe_shape moe = moe_shape(m);
    size_t bytes =
        moe_scratch_bytes(&moe, max_rows) + gated_delta_scratch_bytes(&model->states, max_rows);
    for (size_t i = 0; i < sizeof row_cols / sizeof row_cols[0]; i++)
        bytes += forward_tensor_bytes(max_rows, row_cols[i]);
    for (size_t i = 0; i < sizeof want_cols / sizeof want_cols[0]; i++)
        bytes += forward_tensor_bytes(max_want, want_cols[i]);
    return bytes;
}

static struct tensor wanted_rows(struct forward *f, const struct tensor *x)
{
    struct tensor out = forward_tensor(f, f->n_want, x->cols);
    device_gather(f->device, &(struct gather_args){.x = *x, .rows = f->want, .out = out});
    return out;
}

static void head_forward(struct decoder_model *m, struct forward *f, const struct tensor *x)
{
    if (m->head.shard == SHARD_WHOLE || f->comm->n_ranks == 1) {
        linear_forward(f, &m->head, x, &f->logits);
        return;
    }
    struct tensor part = forward_tensor(f, x->rows, m->head.n_out);
    linear_forward(f, &m->head, x, &part);
    f->comm->table->all_gather(f->comm, &part, &f->logits);
}

void decoder_forward(struct model *model, struct forward *f)
{
    struct decoder_model *m = decoder_of(model);
    int32_t rows = f->n_tokens, n_layers = m->config.n_layers;
    struct tensor h = forward_tensor(f, rows, model->hidden);
    struct tensor x = forward_tensor(f, rows, model->hidden);
    struct tensor qkv = forward_tensor(f, rows, qkv_cols(m));
    struct tensor mixed_by_all = forward_tensor(f, rows, widest_mixed_cols(m));
    struct gated_delta_scratch delta = gated_delta_scratch_make(f, &model->states);
    struct mlp_scratch mlp = {.gate_up = forward_tensor(f, rows, 2 * mlp_cols(m)),
                              .act = forward_tensor(f, rows, mlp_cols(m))};
    struct moe_shape shape = moe_shape(m);
    struct moe_scratch moe = moe_scratch_make(f, &shape, rows);
    struct tensor angles = rope_forward(f, &m->rope);

    device_embed(f->device, &(struct embed_args){m->embedding, f->tokens, h});
    norm_forward(f, &m->layers[0].input_norm, &h, &x);
    for (int32_t i = 0; i < n_layers; i++) {
        const struct decoder_layer *layer = &m->layers[i];
        struct tensor mixed = tensor_cols(mixed_by_all, 0, mixed_cols(m, i));
        if (m->config.is_linear[i])
            gated_delta_forward(f, &layer->delta, &delta, &x, &mixed);
        else
            attention_forward(f, &layer->attention, &angles, &x, &qkv, &mixed);
        if (i == n_layers - 1 && f->n_want < rows) {
            /* Only wanted rows go beyond the last layer's keys, values and states. */
            if (f->n_want == 0)
                return;
            mixed = wanted_rows(f, &mixed);
            h = wanted_rows(f, &h);
            x = tensor_rows(x, 0, f->n_want);
        }
        linear_forward(f, m->config.is_linear[i] ? &layer->delta.out : &layer->attention.o, &mixed,
                       &x);
        norm_forward_add(f, &layer->post_attention_norm, &x, &h, &x);
        if (m->config.is_sparse[i])
            moe_forward(f, &layer->moe, &moe, &mlp, &x, &x);
        else
            mlp_forward(f, &layer->mlp, &mlp, &x, &x);
        const struct norm_layer *next = i + 1 < n_layers ? &layer[1].input_norm : &m->norm;
        norm_forward_add(f, next, &x, &h, &x);
    }
    head_forward(m, f, &x);
}
