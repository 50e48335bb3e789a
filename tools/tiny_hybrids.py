"""The tiny models of make_tiny_models.py that have gated delta nets: Qwen3-Next, Qwen3.5 and its mixtures.

A module of make_tiny_models.py; it has no command of its own. Options beside those of the other models:
    "wrapper"  the vision-language class around the text model: nested configuration, vision weights, an mtp head
    "mlx"      the file as mlx-lm's sanitiser leaves it: conv1d [C, kernel, 1], norms that hold 1 + w; mlx-lm computes
               its logits too, which must be transformers'
"""

import json

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (Qwen3_5Config, Qwen3_5MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig)

TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

LINEAR, FULL = "linear_attention", "full_attention"
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
MROPE = {"rope_parameters": {**ROPE["rope_parameters"], "mrope_section": [2, 1, 1], "mrope_interleaved": True}}

# Value heads as many as key heads.
EVEN = {
    "vocab_size": 64, "hidden_size": 48, "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4,
}
# Three value heads for each key head.
THRICE = {**EVEN, "linear_num_value_heads": 6, "linear_key_head_dim": 24, "linear_value_head_dim": 16}
MIXTURE = {"intermediate_size": 48, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}


def layers(*kinds):
    return {"num_hidden_layers": len(kinds), "layer_types": list(kinds)}


def interval(types):
    """What files say in place of layer_types: every so many layers there is full attention."""
    return types.index(FULL) + 1


WRAPPERS = {
    "qwen3_5_text": (Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe_text": (Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration),
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "patch_size": 4,
          "num_position_embeddings": 16, "out_hidden_size": 48}

MODELS = {
    "qwen3_5_even_tied": (Qwen3_5TextConfig, {
        **EVEN, **MROPE, **layers(LINEAR, FULL), "tie_word_embeddings": True,
    }, "bf16", {}),
    "qwen3_5_thrice_wrapped": (Qwen3_5TextConfig, {**THRICE, **MROPE, **layers(LINEAR, FULL, LINEAR)}, "bf16", {
        "wrapper": True,
    }),
    "qwen3_5_kernel2": (Qwen3_5TextConfig, {
        **THRICE, **ROPE, **layers(FULL, LINEAR), "linear_conv_kernel_dim": 2, "linear_key_head_dim": 40,
        "attention_bias": True, "num_attention_heads": 4,
    }, "bf16", {}),
    "qwen3_5_mlx": (Qwen3_5TextConfig, {
        **THRICE, **MROPE, **layers(LINEAR, FULL), "tie_word_embeddings": True,
        # mlx-lm's head dims: whole simd groups of 32
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_value_heads": 4,
    }, "bf16", {"mlx": True}),
    "qwen3_5_moe_top1_tied": (Qwen3_5MoeTextConfig, {
        **EVEN, **MROPE, **MIXTURE, **layers(LINEAR, FULL), "num_experts": 3, "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
    }, "bf16", {"experts": "single"}),
    "qwen3_5_moe_top4_wrapped": (Qwen3_5MoeTextConfig, {
        **THRICE, **MROPE, **MIXTURE, **layers(LINEAR, FULL), "num_experts": 9, "num_experts_per_tok": 4,
    }, "bf16", {"experts": "single", "wrapper": True}),
    "qwen3_5_moe_top10": (Qwen3_5MoeTextConfig, {
        **THRICE, **MROPE, **MIXTURE, **layers(FULL, LINEAR), "num_experts": 11, "num_experts_per_tok": 10,
    }, "bf16", {"experts": "single"}),
    "qwen3_next_top1_tied": (Qwen3NextConfig, {
        **EVEN, **ROPE, **MIXTURE, **layers(LINEAR, FULL), "num_experts": 5, "num_experts_per_tok": 1,
        "tie_word_embeddings": True,
    }, "bf16", {"experts": "single"}),
    "qwen3_next_top4": (Qwen3NextConfig, {
        **THRICE, **ROPE, **MIXTURE, **layers(LINEAR, LINEAR, FULL), "num_experts": 7, "num_experts_per_tok": 4,
        "mlp_only_layers": [1],
    }, "bf16", {"experts": "single"}),
    "qwen3_next_top10": (Qwen3NextConfig, {
        **THRICE, **ROPE, **MIXTURE, **layers(LINEAR, FULL), "num_experts": 13, "num_experts_per_tok": 10,
        "norm_topk_prob": False,
    }, "bf16", {"experts": "single", "old_config": True}),
}


def deviation(name, parameter):
    """(mean, standard deviation) of a weight that only these models have or spread otherwise; None for the others."""
    module, kind = name.split(".")[-2:]
    if ".visual." in name:
        return 0.0, 0.1
    if kind in ("A_log", "dt_bias"):
        return 0.0, 1.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.3
    if module in ("q_norm", "k_norm"):
        return 0.4, 0.3
    if kind == "weight" and parameter.dim() == 1:
        return 0.0, 0.3
    return None


def wrap(config):
    """(configuration, class) of the vision-language model around a text configuration."""
    config_class, model_class = WRAPPERS[config.model_type]
    return config_class(text_config=config.to_dict(), vision_config=VISION,
                        tie_word_embeddings=config.tie_word_embeddings), model_class


def add_mtp(path):
    """What a text server drops: weights of a head for drafts."""
    state = load_file(path)
    state["mtp.fc.weight"] = torch.zeros(4, 8, dtype=torch.bfloat16)
    save_file(state, path, metadata={"format": "pt"})


def zero_centred(name):
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def round_norms(model):
    """Norms such that 1 + w is a bf16 number."""
    for name, parameter in model.named_parameters():
        if zero_centred(name):
            parameter.data = (1 + parameter.data).bfloat16().float() - 1


def write_mlx(folder, model):
    """The folder as mlx-lm's sanitiser and save leave it."""
    state = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("conv1d.weight"):
            values = values.movedim(2, 1).contiguous()
        if zero_centred(name):
            values = values + 1
        state[f"language_model.{name}"] = values.bfloat16().clone()
    save_file(state, folder / "model.safetensors", metadata={"format": "mlx"})
    text = {**model.config.to_dict(), "full_attention_interval": interval(model.config.layer_types)}
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": model.config.tie_word_embeddings}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def undo_mlx(name, values):
    """What mlx-lm's sanitiser does to a weight, undone."""
    if name.endswith("conv1d.weight"):
        return values.movedim(2, 1)
    return values - 1 if zero_centred(name) else values


def check_mlx(folder, tokens, logits):
    """mlx-lm computes the same from this folder."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    theirs = torch.from_numpy(np.array(model(mx.array([tokens]))[0]))
    difference = float((theirs - logits).abs().max())
    print(f"{folder.name}: mlx-lm differs from transformers by {difference:.1e}")
    if difference > 5e-3:
        raise ValueError(f"{folder.name}: mlx-lm computes other logits")
