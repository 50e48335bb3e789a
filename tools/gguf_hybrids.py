"""How llama.cpp's converter writes the layers of Qwen3-Next and Qwen3.5 that transformers has otherwise, and the way back.

    norms hold 1 + w; ssm_a is -exp(A_log); conv1d loses its middle axis. Of Qwen3.5 and its mixtures the value heads of a
    linear layer are in another order: the first ones of all key heads, then the second ones, and so on. Of Qwen3-Next they
    stay where they are, and the fused weight of q, k, v and z becomes one of all q, all k, all v and one of z.

A module of gguf_reference.py and gguf_writing.py; it has no command of its own.
"""

import numpy as np

ARCHITECTURES = {"qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text", "qwen3next": "qwen3_next"}

LAYER_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
VECTORS = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}


def add_configuration(writer, config):
    writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)


def configuration(metadata):
    """The keys of a transformers configuration that only these models have."""
    n_heads = int(metadata.model("ssm.time_step_rank"))
    interval = int(metadata.model("full_attention_interval"))
    n_layers = int(metadata.model("block_count"))
    return {
        "layer_types": ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_layers)],
        "linear_conv_kernel_dim": int(metadata.model("ssm.conv_kernel")),
        "linear_key_head_dim": int(metadata.model("ssm.state_size")),
        "linear_num_key_heads": int(metadata.model("ssm.group_count")),
        "linear_num_value_heads": n_heads,
        "linear_value_head_dim": int(metadata.model("ssm.inner_size")) // n_heads,
    }


def turn_heads(values, config, axis, first, head, back):
    """The value heads of `head` places each from place `first` of an axis into GGUF's order, or back."""
    n_keys, n_values = config.linear_num_key_heads, config.linear_num_value_heads
    shape = (n_values // n_keys, n_keys) if back else (n_keys, n_values // n_keys)
    order = np.arange(n_values).reshape(shape).T.reshape(-1)
    places = (order[:, None] * head + np.arange(head)).reshape(-1) + first
    return np.take(values, np.concatenate([np.arange(first), places]), axis=axis)


def turn(name, values, config, back):
    """A tensor of a linear layer by its transformers name."""
    if config.model_type == "qwen3_next":
        return values
    n, dim = config.linear_num_key_heads * config.linear_key_head_dim * 2, config.linear_value_head_dim
    module = name.split("linear_attn.")[1].removesuffix(".weight")
    axis, first, head = {
        "in_proj_qkv": (0, n, dim), "conv1d": (0, n, dim), "in_proj_z": (0, 0, dim), "out_proj": (1, 0, dim),
        "in_proj_a": (0, 0, 1), "in_proj_b": (0, 0, 1), "A_log": (0, 0, 1), "dt_bias": (0, 0, 1),
    }.get(module, (0, 0, 0))
    return turn_heads(values, config, axis, first, head, back) if head else values


def of_key_heads(config):
    """How many rows of q, k, v and z one key head has in Qwen3-Next's fused weight."""
    values = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    return np.cumsum([config.linear_key_head_dim, config.linear_key_head_dim, values, values])


def split_qkvz(values, config):
    """[(name behind the layer, rows)] of Qwen3-Next's in_proj_qkvz."""
    borders = of_key_heads(config)
    heads = values.reshape(config.linear_num_key_heads, borders[-1], -1)
    q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in np.split(heads, borders[:-1], axis=1))
    return [("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)]


def join_qkvz(qkv, z, config):
    """The way back."""
    n, keys = config.linear_num_key_heads, config.linear_num_key_heads * config.linear_key_head_dim
    parts = [*np.split(qkv, [keys, 2 * keys]), z]
    return np.concatenate([part.reshape(n, -1, qkv.shape[-1]) for part in parts], axis=1).reshape(-1, qkv.shape[-1])


def is_zero_centred(name):
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def to_gguf(name, values, config):
    """(GGUF name, values) of a transformers tensor that only these models have or hold otherwise; None for others."""
    if is_zero_centred(name):
        values = values + 1
    if "linear_attn." in name:
        values = turn(name, values, config, back=False)
    if name.endswith("conv1d.weight"):
        values = values[:, 0]
    if name.endswith("A_log"):
        values = -np.exp(values)
    if not name.startswith("model.layers."):
        return None, values
    _, _, layer, module = name.split(".", 3)
    for ours, theirs in {**VECTORS, **{f"{key}.weight": f"{value}.weight" for key, value in LAYER_NAMES.items()}}.items():
        if theirs == module:
            return f"blk.{layer}.{ours}", values
    return None, values


def from_gguf(name, values, config):
    """(transformers name, values) of a GGUF tensor; the name is None where other models have the same one."""
    theirs = None
    if name.startswith("blk."):
        _, layer, module = name.split(".", 2)
        kind = module.removesuffix(".weight")
        if module in VECTORS or kind in LAYER_NAMES:
            theirs = f"model.layers.{layer}." + (VECTORS.get(module) or f"{LAYER_NAMES[kind]}.weight")
    if theirs and theirs.endswith("A_log"):
        values = np.log(-values)
    if theirs and theirs.endswith("conv1d.weight"):
        values = values[:, None]
    if theirs and "linear_attn." in theirs:
        values = turn(theirs, values, config, back=True)
    if name.endswith("norm.weight") and "ssm_norm" not in name:
        values = values - 1
    return theirs, values
