/* What a GGUF says about its model, in Hugging Face's words: names, configuration, vocabulary. */
#ifndef CSGL_CHECKPOINT_GGUF_MODEL_H
#define CSGL_CHECKPOINT_GGUF_MODEL_H

#include "base/str.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"

/* "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight" in `out` (cleared first), as a
 * model of this model_type calls it; a name that is in no table stays as it is
 * ("rope_freqs.weight"). */
void gguf_huggingface_name(struct str *out, const char *model_type, const char *name);

/* general.architecture in `out`; ERROR_INVALID if it is missing or no name. */
enum status gguf_architecture(const struct gguf *gguf, struct str *out, struct error *error);

/* Marks the query and key weights of architectures that store them in interleaved RoPE order
 * (tensor.rope_head_dim), and replaces their biases by copies in Hugging Face's order. */
enum status gguf_set_rope_order(const struct gguf *gguf, struct tensor_list *list,
                                struct error *error);

/* config.json and generation_config.json as text, appended. */
enum status gguf_config(const struct gguf *gguf, const struct tensor_list *list, struct str *out,
                        struct error *error);
enum status gguf_generation_config(const struct gguf *gguf, struct str *out, struct error *error);

/* The id under this key, -1 when it is absent; an id outside the vocabulary is an error. */
enum status gguf_token_id(const struct gguf *gguf, const char *key, int32_t *out,
                          struct error *error);

/* The vocabulary, copied into `arena`; out->tokens is NULL if the file has none. */
enum status gguf_vocab(const struct gguf *gguf, struct arena *arena, struct vocab *out,
                       struct error *error);

#endif
