/* The dense pre-norm decoder that llama, qwen2 and qwen3 share:
 *
 *     h = h + O(Attention(Norm(h)));  h = h + MLP(Norm(h));  logits = Head(Norm(h))
 *
 * A family of this kind fills a dense_config and differs in nothing else (models.md section 1). */
#ifndef CSGL_MODELS_DENSE_H
#define CSGL_MODELS_DENSE_H

#include "layers/rope.h"
#include "models/model.h"

enum { DENSE_MAX_LAYERS = 512 };

struct dense_config {
    int32_t n_layers, hidden, intermediate, vocab_size, max_positions;
    int32_t n_heads, n_kv_heads, head_dim; /* of the whole model */
    float eps;
    bool has_qkv_bias, has_o_bias, has_mlp_bias, has_qk_norm;
    bool norm_last; /* Hunyuan: q and k are normed after RoPE, by other names */
    enum { HEAD_TIED, HEAD_OWN, HEAD_IF_PRESENT } head;
    int32_t window; /* of the layers that slide */
    bool is_sliding[DENSE_MAX_LAYERS];
    struct rope_config rope;
};

/* Fills the keys that all these families spell alike, with the defaults that they share. */
enum status dense_config_read(const struct json *config, struct dense_config *out,
                              struct error *error);

/* Qwen's sliding windows: with use_sliding_window, the layers that `layer_types` names, or those
 * from max_window_layers on. */
enum status dense_read_windows(const struct json *config, struct dense_config *out,
                               struct error *error);

/* The rest of a struct model_family. `config` is copied. */
enum status dense_new(const struct dense_config *config, const struct comm *comm,
                      struct model **out, struct error *error);
enum status dense_load(struct model *model, struct loader *loader, struct error *error);
size_t dense_scratch_bytes(const struct model *model, int32_t max_rows, int32_t max_want);
void dense_forward(struct model *model, struct forward *f);
void dense_bind_pages(struct model *model, int32_t group, int32_t layer, struct kv_pages pages);
void dense_free(struct model *model);

#define DENSE_FAMILY_CALLS                                                                         \
    .load = dense_load, .scratch_bytes = dense_scratch_bytes, .forward = dense_forward,            \
    .bind_pages = dense_bind_pages, .free = dense_free

#endif
