"""Reads a GGUF file into a transformers model in float32, as the judge of csgl's own loader.

Every tensor is dequantized by the public `gguf` package, renamed to its Hugging Face name, and loaded
into the transformers class of its architecture without any further rounding. Architecture `llama` keeps
the rows of q and k permuted for interleaved RoPE; they are put back here.

This is a module of make_tiny_models.py and make_smollm2_reference.py. On its own it prints what a file holds:

    python tools/gguf_reference.py FILE.gguf
"""

import argparse

import gguf
import numpy as np
import torch
from transformers import (AutoModelForCausalLM, HunYuanDenseV1Config, HunYuanMoEV1Config, LlamaConfig, Qwen2Config,
                          Qwen2MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig,
                          Qwen3NextConfig)

import gguf_hunyuan
import gguf_hybrids

CONFIG_CLASSES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config,
                  "qwen2moe": Qwen2MoeConfig, "qwen3moe": Qwen3MoeConfig, "qwen35": Qwen3_5TextConfig,
                  "qwen35moe": Qwen3_5MoeTextConfig, "qwen3next": Qwen3NextConfig,
                  "hunyuan-dense": HunYuanDenseV1Config, "hunyuan-moe": HunYuanMoEV1Config}

GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# Stacks [experts, out, in]; transformers holds gate and up in one, and so may a file.
EXPERT_NAMES = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
FUSED_NAME = "ffn_gate_up_exps"


def layer_names(architecture):
    return LAYER_NAMES | (gguf_hunyuan.LAYER_NAMES if architecture in gguf_hunyuan.ARCHITECTURES else {})


def huggingface_name(name, architecture):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    _, layer, module, kind = name.split(".")
    return f"model.layers.{layer}.{layer_names(architecture)[module]}.{kind}"


def permute_rows(rows, n_heads):
    """Half-split RoPE rows (Hugging Face) -> interleaved rows (GGUF `llama`): pair (i, i + D/2) -> (2i, 2i + 1)."""
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(rows.shape)


def unpermute_rows(rows, n_heads):
    """The inverse of permute_rows."""
    pairs = rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


class Metadata:
    """The keys of a GGUF file; `model(key)` reads `<architecture>.key`."""

    def __init__(self, reader):
        self.reader = reader
        self.architecture = self.get("general.architecture")

    def get(self, key, default=None):
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def model(self, key, default=None):
        return self.get(f"{self.architecture}.{key}", default)


def dequantize(tensor):
    """One tensor of the reader as a float32 numpy array in row-major order."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    return np.array(values, dtype=np.float32).reshape(tuple(reversed(tensor.shape.tolist())))


def rope_parameters(metadata, tensors, head_dim):
    """transformers' rope_parameters from the rope.* keys and the `rope_freqs` divisors."""
    parameters = {"rope_type": "default", "rope_theta": float(metadata.model("rope.freq_base", 10000.0))}
    kind = metadata.model("rope.scaling.type", "none")
    if kind != "none":
        parameters["rope_type"] = kind
        parameters["factor"] = float(metadata.model("rope.scaling.factor"))
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = int(
            metadata.model("rope.scaling.original_context_length"))
    if "rope_freqs.weight" in tensors and tensors["rope_freqs.weight"].size != head_dim // 2:
        raise ValueError(f"rope_freqs has {tensors['rope_freqs.weight'].size} entries, want {head_dim // 2}")
    return parameters


def model_config(metadata, tensors):
    """The transformers configuration that the keys of the file describe."""
    hidden = int(metadata.model("embedding_length"))
    n_heads = int(metadata.model("attention.head_count"))
    head_dim = int(metadata.model("attention.key_length", hidden // n_heads))
    config = {
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": int(metadata.model("feed_forward_length")),
        "num_hidden_layers": int(metadata.model("block_count")),
        "num_attention_heads": n_heads,
        "num_key_value_heads": int(metadata.model("attention.head_count_kv", n_heads)),
        "head_dim": head_dim,
        "rms_norm_eps": float(metadata.model("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": int(metadata.model("context_length")),
        "rope_parameters": rope_parameters(metadata, tensors, head_dim),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    if metadata.architecture in gguf_hunyuan.ARCHITECTURES:
        config |= gguf_hunyuan.configuration(metadata)
    elif metadata.model("expert_count") is not None:
        config |= {
            "num_experts": int(metadata.model("expert_count")),
            "num_experts_per_tok": int(metadata.model("expert_used_count")),
            "moe_intermediate_size": int(metadata.model("expert_feed_forward_length")),
            "norm_topk_prob": metadata.architecture.startswith("qwen3"),
        }
    if metadata.model("expert_shared_feed_forward_length") is not None:
        config["shared_expert_intermediate_size"] = int(metadata.model("expert_shared_feed_forward_length"))
    if metadata.architecture in gguf_hybrids.ARCHITECTURES:
        config |= gguf_hybrids.configuration(metadata)
        rotated = int(metadata.model("rope.dimension_count"))
        config["rope_parameters"]["partial_rotary_factor"] = rotated / head_dim
    # qwen2 always has biases on q, k and v and has no key for them
    if not metadata.architecture.startswith("qwen2"):
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if metadata.architecture == "llama":
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    return CONFIG_CLASSES[metadata.architecture](**config)


def state_dict(metadata, tensors, config):
    """Hugging Face names and row order; tied heads get the embedding."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for name, values in tensors.items():
        if name == "rope_freqs.weight":
            continue
        module = name.split(".")[-2]
        if metadata.architecture in gguf_hybrids.ARCHITECTURES:
            theirs, values = gguf_hybrids.from_gguf(name, values, config)
            if theirs:
                state[theirs] = torch.from_numpy(np.ascontiguousarray(values))
                continue
        if metadata.architecture == "llama" and module in heads:
            values = unpermute_rows(values, heads[module])
        if module in (*EXPERT_NAMES, FUSED_NAME):
            continue
        if module == "ffn_gate_inp_shexp":
            values = values[None]
        state[huggingface_name(name, metadata.architecture)] = torch.from_numpy(np.ascontiguousarray(values))
    for name in [name for name in state if metadata.architecture == "qwen3next" and name.endswith("in_proj_qkv.weight")]:
        qkv, z = (state.pop(other).numpy() for other in (name, name.replace("in_proj_qkv", "in_proj_z")))
        state[name.replace("in_proj_qkv", "in_proj_qkvz")] = torch.from_numpy(gguf_hybrids.join_qkvz(qkv, z, config))
    for name in tensors:
        if "ffn_down_exps" in name:
            layer = name.split(".")[1]
            gate, up, fused = (tensors.get(f"blk.{layer}.{part}.weight") for part in (*EXPERT_NAMES[:2], FUSED_NAME))
            fused = np.concatenate([gate, up], axis=1) if fused is None else fused
            state[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.from_numpy(fused)
            state[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.from_numpy(tensors[name])
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def load_model(path, *more):
    """Returns (metadata, transformers model in float32, in evaluation mode, eager attention). A split model is given
    by all of its files, the first one first."""
    readers = [gguf.GGUFReader(file) for file in (path, *more)]
    metadata = Metadata(readers[0])
    tensors = {tensor.name: dequantize(tensor) for reader in readers for tensor in reader.tensors}
    config = model_config(metadata, tensors)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager",
                                             dtype=torch.float32)
    model.load_state_dict(state_dict(metadata, tensors, config), strict=True)
    if "rope_freqs.weight" in tensors:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(tensors["rope_freqs.weight"])
    return metadata, model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    reader = gguf.GGUFReader(parser.parse_args().file)
    for name, field in reader.fields.items():
        print(f"{name} = {str(field.contents())[:100]}")
    for tensor in reader.tensors:
        print(f"{tensor.name}  {tensor.tensor_type.name}  {list(reversed(tensor.shape.tolist()))}")


if __name__ == "__main__":
    main()
