"""Checks that mlx-lm loads what `csgl quantize` writes, and that the tensors are those of mlx-lm's own conversion.

    python tools/check_quantize.py CSGL [--only NAME ...]

Needs mlx, mlx-lm, torch, transformers. Tiny random models, one of every way in which files hold experts, are saved as
transformers or transformers 5 in memory have them; `csgl quantize` writes one folder, mlx-lm's functions (those of
mlx_lm.convert) another. Compared are the names, the bytes and the logits that mlx-lm computes from both. Routers stay floats
in csgl's folder and so does the comparison's.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import torch
import transformers
from mlx.utils import tree_flatten
from transformers import (GptOssConfig, HunYuanMoEV1Config, Qwen2MoeConfig, Qwen3_5MoeTextConfig, Qwen3MoeConfig,
                          Qwen3NextConfig)

import tiny_hybrids
from make_mlx_models import write_gpt_oss
from make_tiny_models import (GPT_OSS, QWEN2_MIXTURE, SMALL, build_config, random_model, random_tokens, rope, round_to,
                              write_experts)

BITS, GROUP = 4, 32
HYBRID = {**tiny_hybrids.EVEN, **tiny_hybrids.ROPE, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
          "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "linear_key_head_dim": 32,
          "linear_value_head_dim": 32, **tiny_hybrids.layers(tiny_hybrids.LINEAR, tiny_hybrids.FULL)}
QWEN3 = {"num_key_value_heads": 1, "head_dim": 32, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "norm_topk_prob": True}

# name: (configuration class, keys over SMALL, how the file holds the experts)
MODELS = {
    "gpt_oss": (GptOssConfig, {**GPT_OSS, **rope("default", theta=150000.0)}, "fused"),
    "qwen2_moe": (Qwen2MoeConfig, {**QWEN2_MIXTURE, "num_experts": 5, "shared_expert_intermediate_size": 64}, "single"),
    "qwen3_moe": (Qwen3MoeConfig, QWEN3, "single"),
    "qwen3_moe_fused": (Qwen3MoeConfig, QWEN3, "fused"),
    "qwen3_moe_uneven": (Qwen3MoeConfig, {**QWEN3, "moe_intermediate_size": 40}, "fused"),  # down_proj stays floats
    "qwen3_moe_switch": (Qwen3MoeConfig, QWEN3, "switch"),
    "qwen3_next": (Qwen3NextConfig, HYBRID, "single"),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, HYBRID, "single"),
    "qwen3_5_moe_fused": (Qwen3_5MoeTextConfig, HYBRID, "fused"),
    "hunyuan_moe": (HunYuanMoEV1Config, {
        "intermediate_size": 32, "num_experts": 4, "moe_topk": 4, "num_attention_heads": 4, "head_dim": 16,
        "tie_word_embeddings": True, **rope("dynamic", alpha=1000.0, factor=1.0),
    }, "single"),
}


def old_keys(model):
    """What mlx-lm reads of a configuration and transformers 5 no longer writes."""
    config, keys = model.config, {"rope_theta": model.config.rope_parameters["rope_theta"]}
    if config.model_type == "hunyuan_v1_moe":
        keys |= {"model_type": "hunyuan", "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_cla": False,
                 "cla_share_factor": 2, "use_qk_norm": True, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}
    if config.model_type in tiny_hybrids.TYPES:
        keys |= {"full_attention_interval": tiny_hybrids.interval(config.layer_types), "partial_rotary_factor": 0.25,
                 "decoder_sparse_step": 1}
    if hasattr(config, "num_experts"):
        keys |= {"num_experts": config.num_experts}
    return keys


def save(folder, model, experts):
    """bf16, as published; "fused" of the hybrids is what transformers holds, with the wrapper's nested configuration."""
    model.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | old_keys(model)
    if config["model_type"] == "qwen3_5_moe_text":
        config = {"model_type": "qwen3_5_moe", "text_config": config}
    path.write_text(json.dumps(config))
    if model.config.model_type == "gpt_oss" and experts == "single":
        write_gpt_oss(folder / "model.safetensors")
    elif model.config.model_type != "gpt_oss" and experts != "single":
        write_experts(folder / "model.safetensors", experts)


def is_quantized(path, module):
    return hasattr(module, "to_quantized") and not path.endswith(("mlp.gate", "mlp.router", "gate.wg", "shared_expert_gate"))


def convert(folder, source, dtype=mx.bfloat16):
    """What mlx_lm.convert does, but for the tokenizer."""
    model, config = mlx_lm.utils.load_model(source)
    model.set_dtype(dtype)
    model, config = mlx_lm.utils.quantize_model(model, config, GROUP, BITS, quant_predicate=is_quantized)
    mlx_lm.utils.save_model(folder, model)
    mlx_lm.utils.save_config(config, folder / "config.json")


def load(folder, tokens):
    """(tensors, logits)"""
    model, _ = mlx_lm.utils.load_model(folder)
    tensors = dict(tree_flatten(model.parameters()))
    model.set_dtype(mx.float32)  # its CPU backend multiplies stacks of floats in no other type
    logits = np.array(model(mx.array([tokens]))[0].astype(mx.float32))
    return tensors, logits


def check(csgl, name):
    config_class, keys, experts = MODELS[name]
    model = random_model(name, build_config(config_class, SMALL, keys))
    round_to(model, torch.bfloat16)
    tokens = random_tokens(name, 24, model.config.vocab_size)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        readable = "fused" if "qwen3_5" in name else "single"  # by mlx-lm
        for form in {readable, experts}:
            save(folder / form, model, form)
        subprocess.run([csgl, "quantize", folder / experts, folder / "ours", "--bits", str(BITS), "--group-size", str(GROUP),
                        "--quiet"], check=True, stdout=subprocess.DEVNULL)
        convert(folder / "theirs", folder / readable)
        ours, our_logits = load(folder / "ours", tokens)
        theirs, their_logits = load(folder / "theirs", tokens)
    if set(ours) != set(theirs):
        raise ValueError(f"{name}: {sorted(set(ours) ^ set(theirs))} are in one folder alone")
    for key, value in theirs.items():
        # A_log stays F32 or BF16 as the file has it; mlx-lm's own conversion casts floats
        if not mx.array_equal(ours[key].astype(value.dtype), value):
            raise ValueError(f"{name}: {key} differs")
    n = sum(key.endswith(".scales") for key in ours)
    difference = float(np.abs(our_logits - their_logits).max())
    print(f"{name}: {len(ours)} tensors equal, {n} quantized; logits differ by {difference:.1e}")
    if difference:
        raise ValueError(f"{name}: the logits differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csgl")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only or MODELS:
        check(arguments.csgl, name)


if __name__ == "__main__":
    main()
