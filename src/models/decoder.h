/* The pre-norm decoder that most families share:
 *
 *     h = h + O(Attention(Norm(h)));  h = h + MLP(Norm(h));  logits = Head(Norm(h))
 *
 * where the MLP of a layer is dense or a mixture of experts, and a gated delta net may stand in the
 * place of attention.
 * A family of this kind fills a decoder_config and differs in nothing else.
 */
#ifndef CSGL_MODELS_DECODER_H
#define CSGL_MODELS_DECODER_H

#include "layers/rope.h"
#include "models/delta_net.h"
#include "models/feed_forward.h"
#include "models/model.h"

enum { DECODER_MAX_LAYERS = 512 };

struct decoder_config {
    int32_t n_layers, hidden, intermediate, vocab_size, max_positions;
    int32_t n_heads, n_kv_heads, head_dim; /* of the whole model */
    float eps;
    bool has_qkv_bias, has_o_bias, has_mlp_bias, has_qk_norm;
    bool has_gate;      /* attention is multiplied by sigmoid(gate), q_proj holds both */
    bool has_raw_norms; /* norms hold w - 1, if the file is in Hugging Face's format */
    bool norm_last;     /* Hunyuan: q and k are normed after RoPE, by other names */
    enum { HEAD_TIED, HEAD_OWN, HEAD_IF_PRESENT } head;
    int32_t window; /* of the layers that slide */
    bool is_sliding[DECODER_MAX_LAYERS];
    struct rope_config rope;
    struct moe_config moe; /* of the sparse layers */
    bool is_sparse[DECODER_MAX_LAYERS];
    struct moe_sizes moe_sizes[DECODER_MAX_LAYERS]; /* where layers differ */
    struct delta_net_config delta; /* of the linear layers, which delta.n_layers counts */
    bool is_linear[DECODER_MAX_LAYERS];
    bool has_sinks;
    /* > 1: of so many layers in a row the first one's keys and values serve all (Hunyuan's CLA). */
    int32_t kv_share;
};

/* `layer_types`: full_attention and sliding_attention, one a layer. */
enum status decoder_read_layer_types(const struct json *types, struct decoder_config *out,
                                     struct error *error);

/* Fills the keys that all these families spell alike, with the defaults that they share. */
enum status decoder_config_read(const struct json *config, struct decoder_config *out,
                                struct error *error);

/* Qwen's sliding windows: with use_sliding_window, the layers that `layer_types` names, or those
 * from max_window_layers on. */
enum status decoder_read_windows(const struct json *config, struct decoder_config *out,
                                 struct error *error);

/* The rest of a struct model_family. `config` is copied. */
enum status decoder_new(const struct decoder_config *config, const struct comm *comm,
                        struct model **out, struct error *error);
enum status decoder_load(struct model *model, struct loader *loader, struct error *error);
size_t decoder_scratch_bytes(const struct model *model, int32_t max_rows, int32_t max_want);
void decoder_forward(struct model *model, struct forward *f);
void decoder_bind_pages(struct model *model, int32_t group, int32_t layer, struct kv_pages pages);
void decoder_bind_states(struct model *model, int32_t layer, struct state_slots slots);
void decoder_free(struct model *model);

#define DECODER_FAMILY_CALLS                                                                       \
    .load = decoder_load, .scratch_bytes = decoder_scratch_bytes, .forward = decoder_forward,      \
    .bind_pages = decoder_bind_pages, .bind_states = decoder_bind_states, .free = decoder_free

#endif
