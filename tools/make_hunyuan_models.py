"""Makes tiny checkpoints of the older Hunyuan mixtures and records mlx-lm's logits for them.

    python tools/make_hunyuan_models.py [--output tests/models]

Needs mlx, mlx-lm, torch, transformers. The folders hunyuan_cla and hunyuan_fused are those of make_tiny_models.py. transformers
knows neither keys and values that layers share (use_cla), nor sizes of experts by layer, nor fused weights; mlx-lm does. mlx-lm does not divide the weights of the
chosen experts by their sum, so every token chooses all experts here: the sum is then 1. `float64_diff` is the largest
difference from the same computation over two chunks with a cache.
"""

import argparse
import json
import pathlib
import zlib

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import cache as caches
from mlx_lm.models import hunyuan
from safetensors.numpy import save_file

from make_tiny_models import new_folder, random_tokens, write_case

N_TOKENS = 100
CONFIG = {
    "model_type": "hunyuan", "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": False, "num_experts": 3, "moe_topk": 3,
    "num_shared_expert": [1, 2, 1, 1], "moe_intermediate_size": [16, 8, 16, 8], "use_mixed_mlp_moe": True, "use_qk_norm": True,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0},
    "use_cla": True, "cla_share_factor": 2, "tie_word_embeddings": True, "max_position_embeddings": 512,
}


# Keys over CONFIG.
MODELS = {"hunyuan_cla": {}, "hunyuan_fused": {
    "num_hidden_layers": 1, "use_cla": False, "num_shared_expert": 1, "moe_intermediate_size": 16, "num_key_value_heads": 1,
}}


def random_weights(name, model):
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        noise = generator.standard_normal(value.shape).astype(np.float32)
        scale, mean = (0.3, 1.2) if value.ndim == 1 else (1.5 / value.shape[-1] ** 0.5, 0)
        weights[name] = mean + scale * noise
    return weights


def as_published(weights):
    """One tensor an expert."""
    published = {}
    for name, value in weights.items():
        if ".switch_mlp." in name:
            for i, expert in enumerate(value):
                published[name.replace("switch_mlp", f"experts.{i}")] = np.ascontiguousarray(expert)
        else:
            published[name] = value
    return published


def fused(weights, config):
    """Up and gate in one weight; q, k and v in one, for each key-value head its query heads, its key, its value."""
    heads = (config["num_key_value_heads"], -1, config["hidden_size"] // config["num_attention_heads"], config["hidden_size"])
    out = dict(weights)
    for name in weights:
        if name.endswith(".gate_proj.weight"):
            up = name.replace("gate_proj", "up_proj")
            out[name.replace("gate_proj", "gate_and_up_proj")] = np.concatenate([out.pop(up), out.pop(name)])
        elif name.endswith(".q_proj.weight"):
            parts = [out.pop(name.replace("q_proj", part)).reshape(heads) for part in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts, axis=1).reshape(-1, config["hidden_size"])
    return out


def check_fused():
    """mlx-lm takes fused weights apart into the parts that were meant; it does so for dense models alone."""
    config = {**CONFIG, "num_experts": 1, "use_cla": False}
    model = hunyuan.Model(hunyuan.ModelArgs.from_dict(config))
    weights = random_weights("dense", model)
    parts = model.sanitize({key: mx.array(value) for key, value in fused(weights, config).items()})
    if set(parts) != set(weights) or not all(np.array_equal(np.array(parts[key]), weights[key]) for key in weights):
        raise ValueError("mlx-lm reads fused weights otherwise")


def make(output, name):
    config = {**CONFIG, **MODELS[name]}
    folder = new_folder(output, name)
    model = hunyuan.Model(hunyuan.ModelArgs.from_dict(config))
    weights = random_weights(name, model)
    published = as_published(weights)
    if name == "hunyuan_fused":
        published = fused(published, config)
    save_file(published, folder / "model.safetensors", metadata={"format": "pt"})
    model.load_weights([(key, mx.array(value)) for key, value in weights.items()])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = random_tokens(name, N_TOKENS, config["vocab_size"])
    whole = np.array(model(mx.array([tokens]))[0])
    cache = caches.make_prompt_cache(model)
    parts = [np.array(model(mx.array([part]), cache=cache)[0]) for part in (tokens[:37], tokens[37:])]
    write_case(folder, ".", tokens, torch.from_numpy(whole), torch.from_numpy(np.concatenate(parts)))
    print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir()) / 1024:.0f} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    output = parser.parse_args().output
    mx.set_default_device(mx.cpu)
    check_fused()
    for name in MODELS:
        make(output, name)


if __name__ == "__main__":
    main()
