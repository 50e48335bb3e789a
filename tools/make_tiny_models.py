"""Makes tiny random checkpoints and records transformers' logits for them in float32.

    python tools/make_tiny_models.py [--output tests/models] [--only NAME ...]

Needs torch, transformers==5.17.0, gguf, safetensors, numpy. Everything is seeded by the model's name, so a
second run writes the same files. A folder NAME holds

    config.json, model.safetensors    as save_pretrained writes them (sharded: model.safetensors.index.json and
                                      parts), or model.gguf (split: model-00001-of-0000N.gguf)
    case.json                         {"model": "." or a file or folder beside it, "n_tokens": T, "vocab": V,
                                       "tokens": [T ids], "positions": "all", "dtype": "f32",
                                       "logits": "logits.bin", "float64_diff": d}
    logits.bin                        T x V little-endian f32, row t is the prediction after tokens[0..t]

Weights stored as bf16 or in a GGUF block format are rounded first: the logits are those of the stored values,
computed in float32 with eager attention. `float64_diff` is the largest difference from the same
computation with float64 matrices: the rounding noise of the reference itself. The values of random checkpoints
are spread so that attention is not uniform and norms, biases and windows leave a mark on the logits.
"""

import argparse
import copy
import json
import math
import pathlib
import shutil
import zlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, GptOssConfig, HunYuanDenseV1Config, HunYuanMoEV1Config, LlamaConfig,
                          MistralConfig, Qwen2Config, Qwen2MoeConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3Config, Qwen3MoeConfig, Qwen3NextConfig)

import tiny_hybrids
from gguf_reference import load_model
from gguf_writing import write_gguf

STORED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ROUTING_GAP = 2e-4  # the tolerance of logits
N_LONG_TOKENS = 200  # chunks of 64, experts; a case's shorter sequences are its beginnings
N_TOKENS = 131  # not a multiple of a page, a block or a vector

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(kind, theta=10000.0, **keys):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **keys}}


LLAMA3_ROPE = rope("llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
YARN_ROPE = {"max_position_embeddings": 160, **rope("yarn", factor=4.0, original_max_position_embeddings=40)}

GPT_OSS = {
    "vocab_size": 64, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 37,
}
GPT_OSS_ROPE = {
    "max_position_embeddings": 320,
    **rope("yarn", theta=150000.0, factor=8.0, original_max_position_embeddings=40, beta_fast=32.0, beta_slow=1.0,
           truncate=False),
}

# name: (configuration class, keys over SMALL, stored dtype, other options)
MODELS = {
    "llama_mha": (LlamaConfig, {}, "f32", {}),
    "llama_gqa3_tied": (LlamaConfig, {
        "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True,
    }, "bf16", {}),
    "llama_f16": (LlamaConfig, {"num_key_value_heads": 1, "num_hidden_layers": 1, "tie_word_embeddings": True}, "f16", {}),
    "llama_bias": (LlamaConfig, {
        "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    }, "f32", {}),
    "llama_gqa8_head96": (LlamaConfig, {
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 96, "num_hidden_layers": 1,
    }, "bf16", {}),
    "llama_linear_rope": (LlamaConfig, {"num_key_value_heads": 1, **rope("linear", factor=2.5)}, "bf16", {}),
    "llama_llama3_rope": (LlamaConfig, {"num_key_value_heads": 1, **LLAMA3_ROPE}, "bf16", {}),
    "llama_yarn": (LlamaConfig, {"num_key_value_heads": 1, **YARN_ROPE}, "bf16", {}),
    "llama_old_config": (LlamaConfig, {
        "head_dim": None, "num_attention_heads": 1, "num_key_value_heads": 1,
        **rope("linear", theta=20000.0, factor=2.0),
    }, "bf16", {"old_config": True}),
    "mistral_sliding": (MistralConfig, {"num_key_value_heads": 1, "sliding_window": 37}, "bf16", {}),
    "qwen2_gqa2_tied": (Qwen2Config, {
        "hidden_size": 128, "head_dim": None, "num_key_value_heads": 1, "tie_word_embeddings": True,
    }, "bf16", {}),
    "qwen2_gqa3": (Qwen2Config, {
        "hidden_size": 192, "head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 1,
        "num_hidden_layers": 1, **rope("default", theta=1000000.0),
    }, "bf16", {}),
    "qwen2_sliding": (Qwen2Config, {
        "head_dim": None, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 3,
        "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1,
    }, "f32", {"old_config": True}),
    "qwen2_yarn": (Qwen2Config, {
        "head_dim": None, "num_attention_heads": 1, "num_key_value_heads": 1, **YARN_ROPE,
    }, "bf16", {}),
    "qwen3_mha": (Qwen3Config, {}, "bf16", {}),
    "qwen3_gqa3_head128_tied": (Qwen3Config, {
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 128,
        "intermediate_size": 32, "tie_word_embeddings": True,
    }, "bf16", {}),
    "qwen3_gqa8": (Qwen3Config, {"num_attention_heads": 8, "num_key_value_heads": 1}, "bf16", {}),
    "qwen3_sliding_sharded": (Qwen3Config, {
        "num_key_value_heads": 1, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 33,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }, "f32", {"max_shard_size": "200KB"}),
    "qwen3_bias_yarn": (Qwen3Config, {
        "num_key_value_heads": 1, "attention_bias": True, "max_position_embeddings": 160,
        **rope("yarn", factor=8.0, original_max_position_embeddings=20, beta_fast=4.0, beta_slow=0.5,
               attention_factor=1.2, truncate=False),
    }, "bf16", {}),
    "hunyuan_dense_mha": (HunYuanDenseV1Config, {"num_hidden_layers": 1}, "bf16", {}),
    "hunyuan_dense_gqa8_alpha": (HunYuanDenseV1Config, {
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True,
        **rope("dynamic", alpha=1000.0, factor=1.0),
    }, "bf16", {}),
    "hunyuan_dense_gqa3_bias": (HunYuanDenseV1Config, {
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "attention_bias": True,
        **rope("dynamic", alpha=20.0, factor=1.0),
    }, "bf16", {"old_config": True}),
    "hunyuan_moe_gqa2": (HunYuanMoEV1Config, {
        "vocab_size": 64, "intermediate_size": 32, "num_experts": 4, "moe_topk": 2, "num_attention_heads": 4,
        "head_dim": 16, "tie_word_embeddings": True, **rope("dynamic", alpha=1000.0, factor=1.0),
    }, "bf16", {"old_config": True, "n_tokens": N_LONG_TOKENS}),
    "hunyuan_moe_topk_list": (HunYuanMoEV1Config, {
        "intermediate_size": 16, "num_experts": 6, "moe_topk": [1, 3], "num_key_value_heads": 1, "head_dim": 32,
        "attention_bias": True, "vocab_size": 64,
    }, "bf16", {"n_tokens": N_LONG_TOKENS}),
    "hunyuan_moe_gqa8": (HunYuanMoEV1Config, {
        "hidden_size": 96, "intermediate_size": 16, "num_experts": 5, "moe_topk": 5, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": 64,
    }, "bf16", {"n_tokens": N_LONG_TOKENS}),
    "gpt_oss_gqa2": (GptOssConfig, {**GPT_OSS, **GPT_OSS_ROPE}, "bf16", {"n_tokens": N_LONG_TOKENS, "old_config": True}),
    "gpt_oss_gqa8": (GptOssConfig, {
        **GPT_OSS, "intermediate_size": 12, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 16,
        "layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2, **rope("default", theta=150000.0),
    }, "bf16", {"n_tokens": N_LONG_TOKENS}),
    "gpt_oss_all_experts": (GptOssConfig, {
        **GPT_OSS, "num_experts_per_tok": 4, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3,
        "head_dim": 32, "attention_bias": False, "intermediate_size": 12,
    }, "f32", {"n_tokens": N_LONG_TOKENS}),
}

QWEN2_MIXTURE = {"head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": 4,
                 "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}

# The option "experts" says how the file holds them: "single" as transformers 4 (save_pretrained), "fused" as
# transformers 5 has them in memory, "switch" as MLX.
MODELS |= {
    "qwen2_moe_top4": (Qwen2MoeConfig, {**QWEN2_MIXTURE, "num_experts": 7}, "bf16", {"experts": "single"}),
    "qwen2_moe_top1_tied": (Qwen2MoeConfig, {
        **QWEN2_MIXTURE, "num_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "norm_topk_prob": True,
        "num_hidden_layers": 3, "decoder_sparse_step": 2, "tie_word_embeddings": True,
    }, "bf16", {"experts": "fused"}),
    "qwen2_moe_top10_sliding": (Qwen2MoeConfig, {
        **QWEN2_MIXTURE, "num_experts": 13, "num_experts_per_tok": 10, "moe_intermediate_size": 16,
        "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1,
        "qkv_bias": False,
    }, "bf16", {"experts": "switch", "old_config": True}),
    "qwen3_moe_top4_tied": (Qwen3MoeConfig, {
        "num_key_value_heads": 1, "head_dim": 32, "num_experts": 9, "num_experts_per_tok": 4,
        "moe_intermediate_size": 24, "norm_topk_prob": True, "tie_word_embeddings": True,
    }, "bf16", {"experts": "fused"}),
    "qwen3_moe_top1_sliding": (Qwen3MoeConfig, {
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "num_experts": 3, "num_experts_per_tok": 1,
        "moe_intermediate_size": 40, "use_sliding_window": True, "sliding_window": 37, "hidden_size": 48,
    }, "f32", {"experts": "single", "max_shard_size": "100KB"}),
    "qwen3_moe_top10": (Qwen3MoeConfig, {
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32, "num_experts": 11,
        "num_experts_per_tok": 10, "moe_intermediate_size": 16, "attention_bias": True, "mlp_only_layers": [1],
    }, "bf16", {"experts": "switch"}),
}

MODELS |= tiny_hybrids.MODELS

GGUF_SMALL = {"vocab_size": 288, "rms_norm_eps": 1e-6}
GGUF_LLAMA = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
GGUF_WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1}
# One layer, and K types where rows are whole superblocks only: o_proj and down_proj fall back to other types.
GGUF_TINY = {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True}
GGUF_TINY_K = {**GGUF_TINY, "hidden_size": 256}
N_GGUF_TOKENS = 45
N_GGUF_TINY_TOKENS = 24

GGUF_HYBRID = {
    **tiny_hybrids.THRICE, "vocab_size": 288, "hidden_size": 64, **tiny_hybrids.ROPE,
    **tiny_hybrids.layers(tiny_hybrids.LINEAR, tiny_hybrids.FULL), "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "tie_word_embeddings": True,
}
GGUF_HYBRID_MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                       "shared_expert_intermediate_size": 64}

# name: (configuration class, keys over SMALL and GGUF_SMALL, block format of the matrices[, number of tokens[, most tensors a
# file[, whether experts are fused]]])
GGUF_MODELS = {
    "gguf_f32": (LlamaConfig, {**GGUF_LLAMA, "tie_word_embeddings": True}, "F32"),
    "gguf_f16": (Qwen2Config, {"head_dim": None, "num_key_value_heads": 1}, "F16"),
    "gguf_bf16": (Qwen3Config, {"num_key_value_heads": 1, "tie_word_embeddings": True}, "BF16"),
    "gguf_q4_0": (LlamaConfig, {**GGUF_LLAMA, "attention_bias": True, "mlp_bias": True}, "Q4_0"),
    "gguf_q4_1": (Qwen2Config, {"head_dim": None, "num_key_value_heads": 1, "tie_word_embeddings": True}, "Q4_1"),
    "gguf_q8_0": (Qwen3Config, {"num_key_value_heads": 1}, "Q8_0"),
    "gguf_q4_k": (LlamaConfig, GGUF_WIDE, "Q4_K"),
    "gguf_q6_k": (LlamaConfig, {**GGUF_WIDE, "intermediate_size": 256, "tie_word_embeddings": True}, "Q6_K"),
    "gguf_rope_freqs": (LlamaConfig, {"num_key_value_heads": 1, **LLAMA3_ROPE}, "Q8_0"),
    "gguf_yarn": (Qwen2Config, {
        "head_dim": None, "num_key_value_heads": 1, "max_position_embeddings": 64,
        **rope("yarn", factor=4.0, original_max_position_embeddings=16),
    }, "Q8_0"),
    "gguf_q5_0": (LlamaConfig, GGUF_TINY, "Q5_0", N_GGUF_TINY_TOKENS),
    "gguf_q5_1": (Qwen3Config, GGUF_TINY, "Q5_1", N_GGUF_TINY_TOKENS),
    "gguf_iq4_nl": (LlamaConfig, GGUF_TINY, "IQ4_NL", N_GGUF_TINY_TOKENS),
    "gguf_mxfp4": (Qwen3Config, GGUF_TINY, "MXFP4", N_GGUF_TINY_TOKENS),
    "gguf_q2_k": (LlamaConfig, GGUF_TINY_K, "Q2_K", N_GGUF_TINY_TOKENS),
    "gguf_q3_k": (Qwen3Config, GGUF_TINY_K, "Q3_K", N_GGUF_TINY_TOKENS),
    "gguf_q5_k": (LlamaConfig, GGUF_TINY_K, "Q5_K", N_GGUF_TINY_TOKENS),
    "gguf_qwen2moe": (Qwen2MoeConfig, {
        **QWEN2_MIXTURE, "num_hidden_layers": 1, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    }, "Q8_0"),
    "gguf_qwen3moe": (Qwen3MoeConfig, {
        "num_key_value_heads": 1, "head_dim": 32, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
        "norm_topk_prob": True, "tie_word_embeddings": True,
    }, "Q4_0"),
    "gguf_qwen35": (Qwen3_5TextConfig, GGUF_HYBRID, "Q8_0"),
    "gguf_qwen35moe": (Qwen3_5MoeTextConfig, {**GGUF_HYBRID, **GGUF_HYBRID_MIXTURE}, "Q8_0", N_GGUF_TOKENS, 0, True),
    "gguf_qwen3next": (Qwen3NextConfig, {**GGUF_HYBRID, **GGUF_HYBRID_MIXTURE}, "Q4_0"),
    "gguf_hunyuan_dense": (HunYuanDenseV1Config, {
        **GGUF_TINY, **rope("dynamic", alpha=1000.0, factor=1.0),
    }, "Q8_0", N_GGUF_TINY_TOKENS),
    "gguf_hunyuan_moe": (HunYuanMoEV1Config, {
        **GGUF_TINY, "num_experts": 6, "moe_topk": 2, **rope("dynamic", alpha=1000.0, factor=1.0),
    }, "Q4_0", N_GGUF_TINY_TOKENS),
    "gguf_split": (LlamaConfig, GGUF_TINY, "IQ4_NL", N_GGUF_TINY_TOKENS, 4),
}


def seed(name):
    return zlib.crc32(name.encode())


def deviation(name, parameter, config):
    """(mean, standard deviation) of a random weight, by its role."""
    module, kind = name.split(".")[-2:]
    own = tiny_hybrids.deviation(name, parameter) if config.model_type in tiny_hybrids.TYPES else None
    if own:
        return own
    if kind == "bias" or kind.endswith("_bias"):
        return 0.0, 0.4
    if kind == "sinks":
        return 1.0, 2.0
    if config.model_type == "gpt_oss" and parameter.dim() == 3:  # stored [experts, in, out]
        return 0.0, 1.5 / math.sqrt(parameter.shape[-2])
    if module in ("q_norm", "k_norm", "query_layernorm", "key_layernorm"):
        return 1.4, 0.3
    if parameter.dim() == 1:
        return 1.0, 0.3
    if module == "embed_tokens":
        return 0.0, 2.5 / math.sqrt(config.hidden_size) if config.tie_word_embeddings else 1.0
    gain = {"q_proj": 1.5, "k_proj": 1.5, "lm_head": 2.5, "gate": 2.0, "router": 2.0, "wg": 2.0}.get(module, 1.0)
    return 0.0, gain / math.sqrt(parameter.shape[-1])


def random_model(name, config, has_wrapper=False):
    """A float32 model with eager attention; weights depend on the name alone."""
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    if has_wrapper:
        config, model_class = tiny_hybrids.wrap(config)
        model = model_class._from_config(config, **options).eval()
    else:
        model = AutoModelForCausalLM.from_config(config, **options).eval()
    generator = torch.Generator().manual_seed(seed(name))
    for key, parameter in model.named_parameters():
        mean, std = deviation(key, parameter, config.get_text_config())
        parameter.data = mean + std * torch.randn(parameter.shape, generator=generator)
    model.tie_weights()
    return model


def random_tokens(name, n_tokens, vocab):
    """Ids with some repetition, as text has."""
    generator = np.random.default_rng(seed(name))
    ids = generator.integers(3, vocab, n_tokens)
    for i in range(8, n_tokens):
        if generator.random() < 0.3:
            ids[i] = ids[i - generator.integers(1, 8)]
    return [int(i) for i in ids]


@torch.no_grad()
def routing_gap(model, tokens):
    """The smallest distance of the last chosen expert's logit from the next one's, over all rows and layers."""
    gaps = [math.inf]

    def measure(module, _, outputs):
        best = outputs[0].topk(min(module.top_k + 1, module.num_experts)).values
        if best.shape[-1] > module.top_k:
            gaps.append(float((best[:, -2] - best[:, -1]).min()))

    hooks = [module.register_forward_hook(measure)
             for name, module in model.named_modules() if name.endswith(("mlp.gate", "mlp.router"))]
    logits_of(model, tokens)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def decisive_tokens(name, n_tokens, model):
    """Random tokens for which no rounding changes the choice of an expert."""
    for attempt in range(100):
        tokens = random_tokens(name + "+" * attempt, n_tokens, model.config.get_text_config().vocab_size)
        if routing_gap(model, tokens) > ROUTING_GAP:
            return tokens
    raise ValueError(f"{name}: some expert is always chosen by a hair, choose other ranges")


@torch.no_grad()
def logits_of(model, tokens):
    """[tokens, vocab], one forward pass over the whole sequence, without a cache."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def write_case(folder, model_path, tokens, logits, exact):
    if not 1.0 < logits.std() < 8.0:
        raise ValueError(f"{folder.name}: the logits have a spread of {logits.std():.2f}, choose other ranges")
    logits.numpy().astype("<f4").tofile(folder / "logits.bin")
    case = {
        "model": model_path,
        "n_tokens": len(tokens),
        "vocab": logits.shape[1],
        "positions": "all",
        "dtype": "f32",
        "logits": "logits.bin",
        "float64_diff": float(f"{(logits - exact).abs().max():.3g}"),
        "tokens": tokens,
    }
    (folder / "case.json").write_text(json.dumps(case) + "\n")


def record(folder, model_path, model, tokens):
    logits = logits_of(model, tokens)
    write_case(folder, model_path, tokens, logits, logits_of(copy.deepcopy(model).double(), tokens))


def round_to(model, dtype):
    """Rounds the parameters only: casting the module would also round its rotary frequencies."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).float()


def save_checkpoint(folder, model, dtype, max_shard_size):
    stored = copy.deepcopy(model).to(STORED[dtype])
    stored.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)


def write_experts(path, form):
    """Replaces the single experts of a checkpoint of one file by stacks."""
    state = load_file(path)
    layers = {name.split(".experts.")[0] for name in state if ".experts." in name}
    for layer in layers:
        stacks = {}
        for part in ("gate_proj", "up_proj", "down_proj"):
            n = sum(name.startswith(f"{layer}.experts.") and name.endswith(f".{part}.weight") for name in state)
            stacks[part] = torch.stack([state.pop(f"{layer}.experts.{e}.{part}.weight") for e in range(n)])
        if form == "fused":
            state[f"{layer}.experts.gate_up_proj"] = torch.cat([stacks["gate_proj"], stacks["up_proj"]], dim=1)
            state[f"{layer}.experts.down_proj"] = stacks["down_proj"]
        else:
            state |= {f"{layer}.switch_mlp.{part}.weight": stack for part, stack in stacks.items()}
    save_file(state, path, metadata={"format": "mlx" if form == "switch" else "pt"})


def check_reload(folder, model, tokens):
    """What was saved is what was computed."""
    loaded = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                         experts_implementation="eager")
    if not torch.equal(logits_of(loaded.eval(), tokens), logits_of(model, tokens)):
        raise ValueError(f"{folder.name}: the saved checkpoint computes other logits")


def write_old_config(path):
    """config.json as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype, no layer_types, and but for Hunyuan and
    gpt-oss no head_dim."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")
    if not config["model_type"].startswith(("hunyuan", "gpt_oss", "qwen3_next")):  # whose files state it
        config.pop("head_dim", None)
    types = config.pop("layer_types", [])
    if tiny_hybrids.LINEAR in types:
        config["full_attention_interval"] = tiny_hybrids.interval(types)
    path.write_text(json.dumps(config, indent=2) + "\n")


def new_folder(output, name):
    folder = output / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def build_config(config_class, *layers):
    keys = {key: value for layer in layers for key, value in layer.items()}
    return config_class(**{key: value for key, value in keys.items() if value is not None})


def make_checkpoint(output, name):
    config_class, keys, dtype, options = MODELS[name]
    folder = new_folder(output, name)
    model = random_model(name, build_config(config_class, SMALL, keys), "wrapper" in options)
    round_to(model, STORED[dtype])
    if "mlx" in options:
        tiny_hybrids.round_norms(model)
    is_long = "experts" in options or name in tiny_hybrids.MODELS
    n_tokens = options.get("n_tokens", N_LONG_TOKENS if is_long else N_TOKENS)
    tokens = decisive_tokens(name, n_tokens, model)
    if "mlx" in options:
        tiny_hybrids.write_mlx(folder, model)
        tiny_hybrids.check_mlx(folder, tokens, logits_of(model, tokens))
        record(folder, ".", model, tokens)
        return
    save_checkpoint(folder, model, dtype, options.get("max_shard_size", "5GB"))
    if options.get("old_config"):
        write_old_config(folder / "config.json")
    check_reload(folder, model, tokens)
    if "wrapper" in options:
        tiny_hybrids.add_mtp(folder / "model.safetensors")
    if options.get("experts", "single") != "single":
        write_experts(folder / "model.safetensors", options["experts"])
    record(folder, ".", model, tokens)
    if name == "llama_mha":
        record(new_folder(output, "llama_one_token"), f"../{name}", model, tokens[:1])


def make_gguf(output, name):
    config_class, keys, kind, *options = GGUF_MODELS[name]
    n_tokens, split_max_tensors, has_fused_experts = [*options, *[N_GGUF_TOKENS, 0, False][len(options):]]
    folder = new_folder(output, name)
    model = random_model(name, build_config(config_class, SMALL, GGUF_SMALL, keys))
    if not hasattr(model.config, "head_dim"):
        model.config.head_dim = model.config.hidden_size // model.config.num_attention_heads
    write_gguf(folder / "model.gguf", name, model, gguf.GGMLQuantizationType[kind], split_max_tensors,
               has_fused_experts)
    files = sorted(folder.iterdir())
    _, stored = load_model(*files)
    record(folder, files[0].name, stored, decisive_tokens(name, n_tokens, stored))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make these folders alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only or [*MODELS, *GGUF_MODELS]:
        make = make_gguf if name in GGUF_MODELS else make_checkpoint
        make(arguments.output, name)
        size = sum(file.stat().st_size for file in (arguments.output / name).iterdir())
        print(f"{name}: {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
