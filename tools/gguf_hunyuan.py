"""How llama.cpp's converter writes Hunyuan's models, dense and mixtures, and the way back.

    names of its own; the base of the rotation is raised by alpha in the file, and no scaling is named.

A module of gguf_reference.py and gguf_writing.py; it has no command of its own.
"""

ARCHITECTURES = {"hunyuan-dense": "hunyuan_v1_dense", "hunyuan-moe": "hunyuan_v1_moe"}

LAYER_NAMES = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
    "ffn_gate_inp": "mlp.gate.wg",
    "ffn_gate_shexp": "mlp.shared_mlp.gate_proj",
    "ffn_up_shexp": "mlp.shared_mlp.up_proj",
    "ffn_down_shexp": "mlp.shared_mlp.down_proj",
}


def raised_base(config):
    """theta alpha^(D / (D - 2)), which rope.freq_base holds."""
    rope = config.rope_parameters
    return rope["rope_theta"] * rope.get("alpha", 1.0) ** (config.head_dim / (config.head_dim - 2))


def add_mixture(writer, config):
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.moe_topk)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    writer.add_expert_shared_count(1)


def configuration(metadata):
    """The keys of a transformers configuration that only these models have."""
    if metadata.architecture == "hunyuan-dense":
        return {}
    return {
        "num_experts": int(metadata.model("expert_count")),
        "moe_topk": int(metadata.model("expert_used_count")),
        "intermediate_size": int(metadata.model("expert_feed_forward_length")),
    }
