/* The gated delta net layers of a decoder: their configuration and weights,
 * as Hugging Face, MLX and GGUF write them. */
#ifndef CSGL_MODELS_DELTA_NET_H
#define CSGL_MODELS_DELTA_NET_H

#include "layers/gated_delta.h"
#include "models/loader.h"

struct delta_net_config {
    int32_t n_layers; /* 0: none */
    int32_t n_k_heads, n_v_heads, k_dim, v_dim, conv_kernel;
    bool is_tiled; /* GGUF's order of value heads; see state_layout */
};

/* Reads the linear_* keys. */
enum status delta_net_config_read(const struct json *config, struct delta_net_config *out,
                                  struct error *error);

/* What a sequence keeps on this rank; ERROR_UNSUPPORTED where the heads do not split evenly. */
enum status delta_net_states(const struct delta_net_config *config, const struct comm *comm,
                             struct state_layout *out, struct error *error);

/* Whether the file's other norms hold w - 1: as Hugging Face writes them, and neither MLX nor GGUF.
 * The shape of the convolution of layer `layer` tells: its last dim is the kernel in raw files. */
enum status delta_net_norms_are_raw(const struct loader *loader, int32_t layer, bool *out,
                                    struct error *error);

/* Hands the weights of model.layers.`layer`.linear_attn to the loader; out->slots is kept. */
enum status delta_net_load(struct loader *loader, const struct delta_net_config *config,
                           int32_t layer, int32_t hidden, float eps, struct gated_delta_layer *out,
                           struct error *error);

#endif
