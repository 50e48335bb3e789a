"""Makes a tiny checkpoint of the older Hunyuan mixtures and records mlx-lm's logits for it.

    python tools/make_hunyuan_models.py [--output tests/models]

Needs mlx, mlx-lm, torch, transformers. The folder hunyuan_cla is one of make_tiny_models.py. transformers knows neither
keys and values that layers share (use_cla) nor sizes of experts by layer; mlx-lm does. mlx-lm does not divide the weights of the
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

NAME = "hunyuan_cla"
N_TOKENS = 100
CONFIG = {
    "model_type": "hunyuan", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": False, "num_experts": 3, "moe_topk": 3,
    "num_shared_expert": [1, 2, 1, 1], "moe_intermediate_size": [16, 32, 16, 32], "use_mixed_mlp_moe": True, "use_qk_norm": True,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0},
    "use_cla": True, "cla_share_factor": 2, "tie_word_embeddings": True, "max_position_embeddings": 512,
}


def random_weights(model):
    generator = np.random.default_rng(zlib.crc32(NAME.encode()))
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        noise = generator.standard_normal(value.shape).astype(np.float32)
        scale, mean = (0.3, 1.2) if value.ndim == 1 else (1.5 / value.shape[-1] ** 0.5, 0)
        weights[name] = mean + scale * noise
    return weights


def as_published(weights):
    """One tensor an expert."""
    for name, value in weights.items():
        if ".switch_mlp." in name:
            for i, expert in enumerate(value):
                yield name.replace("switch_mlp", f"experts.{i}"), np.ascontiguousarray(expert)
        else:
            yield name, value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    folder = new_folder(parser.parse_args().output, NAME)
    mx.set_default_device(mx.cpu)
    model = hunyuan.Model(hunyuan.ModelArgs.from_dict(CONFIG))
    weights = random_weights(model)
    model.load_weights([(name, mx.array(value)) for name, value in weights.items()])
    save_file(dict(as_published(weights)), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokens = random_tokens(NAME, N_TOKENS, CONFIG["vocab_size"])
    whole = np.array(model(mx.array([tokens]))[0])
    cache = caches.make_prompt_cache(model)
    parts = [np.array(model(mx.array([part]), cache=cache)[0]) for part in (tokens[:37], tokens[37:])]
    write_case(folder, ".", tokens, torch.from_numpy(whole), torch.from_numpy(np.concatenate(parts)))
    print(f"{NAME}: {sum(file.stat().st_size for file in folder.iterdir()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
