"""Makes tiny random checkpoints in MLX's formats and records mlx-lm's logits for them.

    python tools/make_mlx_models.py [--output tests/models] [--only NAME ...]

Needs mlx, mlx-lm, torch, transformers. Folders are those of make_tiny_models.py. transformers makes the model, mlx-lm's own
functions (those of mlx_lm.convert) quantize and save it, and mlx-lm computes the logits on the CPU from the saved folder, all
floats cast to float32. `float64_diff` is the largest difference from transformers in float64 on the weights that mlx.core
dequantizes: two references that must agree. A case with "quantize" names a model of floats that is quantized while it is
loaded.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

import mlx.core as mx
import mlx.nn
import mlx_lm.utils
import numpy as np
import torch
import transformers
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, Qwen2MoeConfig, Qwen3_5MoeTextConfig, Qwen3Config, Qwen3MoeConfig,
                          Qwen3NextConfig)

import tiny_hybrids

from make_tiny_models import (build_config, logits_of, new_folder, random_model, random_tokens, routing_gap, ROUTING_GAP,
                              SMALL, write_case)

TINY = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "num_hidden_layers": 1}
N_TOKENS = 24
DTYPES = ["bfloat16", "float16", "float32"]

# name: (model of make_tiny_models.py beside it, bits, group): nothing is stored, csgl quantizes when it loads
AT_LOAD = {"mlx_at_load_q4": ("qwen3_mha", 4, 64), "mlx_at_load_q8": ("llama_gqa3_tied", 8, 32),
           "mlx_at_load_moe": ("qwen2_moe_top4", 4, 32), "mlx_at_load_fused": ("qwen3_moe_top4_tied", 4, 32),
           "mlx_at_load_gpt_oss": ("gpt_oss_gqa2", 4, 32)}


def own_choice(path, _):
    """Everything a predicate may answer: another width, another mode, not at all, the defaults."""
    if path.endswith("v_proj"):
        return {"group_size": 32, "bits": 6}
    if path.endswith("down_proj"):
        return {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    return not path.endswith(("o_proj", "embed_tokens"))


def not_a_router(path, _):
    """csgl leaves what chooses experts in floats."""
    return not path.endswith(("mlp.gate", "mlp.router", "shared_expert_gate"))


# name: (configuration class, own keys, arguments of quantize_model, stored floats)
MODELS = {
    "mlx_mxfp4": (Qwen3Config, {"tie_word_embeddings": True}, {"mode": "mxfp4"}, "bfloat16"),
    "mlx_mxfp8": (LlamaConfig, {"tie_word_embeddings": True}, {"mode": "mxfp8"}, "bfloat16"),
    "mlx_nvfp4": (LlamaConfig, {"tie_word_embeddings": True}, {"mode": "nvfp4"}, "float16"),
    "mlx_overrides": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}, {"quant_predicate": own_choice}, "bfloat16"),
}
MIXTURE = {"moe_intermediate_size": 64, "num_experts": 5, "num_experts_per_tok": 2, "hidden_size": 64,
           "intermediate_size": 64, "num_attention_heads": 2, "head_dim": None}
MODELS |= {
    "mlx_qwen2_moe": (Qwen2MoeConfig, {**MIXTURE, "shared_expert_intermediate_size": 64, "vocab_size": 64},
                      {"bits": 4, "group_size": 32}, "bfloat16"),
    "mlx_qwen3_moe": (Qwen3MoeConfig, {**MIXTURE, "head_dim": 32, "norm_topk_prob": True, "vocab_size": 64},
                      {"mode": "mxfp4"}, "bfloat16"),
}
HYBRID = {**MIXTURE, **tiny_hybrids.THRICE, **tiny_hybrids.MROPE, "hidden_size": 64, "num_attention_heads": 4,
          "linear_num_value_heads": 4, "shared_expert_intermediate_size": 64, "moe_intermediate_size": 32,
          # mlx-lm's head dims: whole simd groups of 32
          "linear_key_head_dim": 32, "linear_value_head_dim": 32, "tie_word_embeddings": True,
          **tiny_hybrids.layers(tiny_hybrids.LINEAR, tiny_hybrids.FULL)}
MODELS |= {
    "mlx_qwen3_next": (Qwen3NextConfig, HYBRID, {"bits": 4, "group_size": 32}, "bfloat16"),
    "mlx_qwen3_5_moe": (Qwen3_5MoeTextConfig, HYBRID, {"bits": 8, "group_size": 64}, "bfloat16"),
}
for i, (bits, group) in enumerate((b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)):
    MODELS[f"mlx_q{bits}_g{group}"] = (
        (LlamaConfig, Qwen3Config)[i % 2],
        {"tie_word_embeddings": bits != 4},
        {"bits": bits, "group_size": group},
        DTYPES[i // 3 % 3 if group == 64 else (i + bits) % 3],
    )


def add_old_keys(path, config):
    """What transformers 4 wrote and mlx-lm still reads of mixtures and hybrids."""
    keys = json.loads(path.read_text())
    keys |= {"num_experts": config.num_experts, "rope_theta": config.rope_parameters["rope_theta"]}
    if config.model_type in tiny_hybrids.TYPES:
        keys |= {"full_attention_interval": tiny_hybrids.interval(config.layer_types),
                 "partial_rotary_factor": config.rope_parameters["partial_rotary_factor"]}
    if config.model_type == "qwen3_5_moe_text":  # mlx-lm knows the wrapper alone
        keys = {"model_type": "qwen3_5_moe", "text_config": keys, "tie_word_embeddings": config.tie_word_embeddings}
    path.write_text(json.dumps(keys))


def save_plain(folder, model):
    """The folder that mlx-lm converts. It knows Qwen3.5's experts only as the published files hold them, in stacks."""
    model.save_pretrained(folder)
    if hasattr(model.config, "num_experts"):
        add_old_keys(folder / "config.json", model.config)
    if model.config.model_type == "qwen3_5_moe_text":
        state = {name: values.contiguous() for name, values in model.state_dict().items() if name != "lm_head.weight"}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def quantize(folder, model, arguments, dtype):
    """What mlx_lm.convert does, but for the tokenizer, which these models lack."""
    with tempfile.TemporaryDirectory() as plain:
        save_plain(pathlib.Path(plain), model)
        mlx_model, config = mlx_lm.utils.load_model(pathlib.Path(plain))
    mlx_model.set_dtype(getattr(mx, dtype))
    arguments = {"group_size": None, "bits": None, **arguments}
    mlx_model, config = mlx_lm.utils.quantize_model(mlx_model, config, **arguments)
    mlx_lm.utils.save_model(folder, mlx_model)
    mlx_lm.utils.save_config({**config, "torch_dtype": dtype}, folder / "config.json")
    (folder / "model.safetensors.index.json").unlink()


def write_gpt_oss(path):
    """The stacks as mlx-lm names them: it cannot read transformers' floats of this family."""
    state = load_file(path)
    for name in [name for name in state if "experts.gate_up_proj" in name or "experts.down_proj" in name]:
        values, kind = state.pop(name), "bias" if name.endswith("_bias") else "weight"
        values = values if kind == "bias" else values.transpose(1, 2)
        stem, part = name.removesuffix("_bias").rsplit(".", 1)
        rows = {"gate_proj": values[:, 0::2], "up_proj": values[:, 1::2]} if part == "gate_up_proj" else {part: values}
        state |= {f"{stem}.{key}.{kind}": value.contiguous() for key, value in rows.items()}
    save_file(state, path, metadata={"format": "mlx"})


def readable(source, temporary):
    """The folder, or a copy whose experts lie as mlx-lm looks for floats: apart, or gpt-oss's in stacks of its own."""
    state = load_file(source / "model.safetensors")
    fused = [name for name in state if name.endswith("experts.gate_up_proj")]
    if not fused:
        return source
    shutil.copytree(source, temporary, dirs_exist_ok=True)
    if any(name.endswith("gate_up_proj_bias") for name in state):
        write_gpt_oss(temporary / "model.safetensors")
        return temporary
    for name in fused:
        stem = name.removesuffix("gate_up_proj")
        gate, up = state.pop(name).chunk(2, dim=1)
        for part, stack in {"gate": gate, "up": up, "down": state.pop(f"{stem}down_proj")}.items():
            state |= {f"{stem}{e}.{part}_proj.weight": expert.clone() for e, expert in enumerate(stack)}
    save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
    return temporary


def make_at_load(output, name):
    source, bits, group = AT_LOAD[name]
    model = AutoModelForCausalLM.from_pretrained(output / source, dtype=torch.float32)
    folder = new_folder(output, name)
    tokens = random_tokens(name, N_TOKENS, model.config.vocab_size)
    with tempfile.TemporaryDirectory() as quantized, tempfile.TemporaryDirectory() as plain:
        quantized = pathlib.Path(quantized)
        keys = {"rope_theta": model.config.rope_parameters["rope_theta"]}  # mlx-lm's qwen2_moe reads no other key
        if hasattr(model.config, "num_experts"):
            keys["num_experts"] = model.config.num_experts
        mlx_model, config = mlx_lm.utils.load_model(readable(output / source, pathlib.Path(plain)), model_config=keys)
        mlx_model, config = mlx_lm.utils.quantize_model(mlx_model, config, group, bits, quant_predicate=not_a_router)
        mlx_lm.utils.save_model(quantized, mlx_model)
        mlx_lm.utils.save_config(config, quantized / "config.json")
        mlx_model, logits = mlx_logits(quantized, tokens)
    exact = exact_logits(model, mlx_model, tokens)
    if model.config.rope_parameters["rope_type"] == "yarn":  # whose ramp mlx-lm rounds, whatever the file says
        logits = exact_logits(model, mlx_model, tokens, torch.float32)
    write_case(folder, f"../{source}", tokens, logits, exact)
    case = json.loads((folder / "case.json").read_text())
    case["quantize"] = {"bits": bits, "group_size": group}
    (folder / "case.json").write_text(json.dumps(case) + "\n")


def mlx_logits(folder, tokens):
    model, _ = mlx_lm.utils.load_model(folder)
    model.set_dtype(mx.float32)
    return model, torch.from_numpy(np.array(model(mx.array([tokens]))[0], dtype=np.float32))


def exact_logits(model, mlx_model, tokens, dtype=torch.float64):
    """transformers, in float64, on what mlx.core.dequantize makes of the weights."""
    weights = {}
    for path, module in mlx_model.named_modules():
        if isinstance(module, (mlx.nn.QuantizedLinear, mlx.nn.QuantizedEmbedding, QuantizedSwitchLinear)):
            weights[f"{path}.weight"] = mx.dequantize(module.weight, module.scales, module.get("biases"), module.group_size,
                                                      module.bits, module.mode, dtype=mx.float32)
    for key, value in tree_flatten(mlx_model.parameters()):
        if not key.endswith((".scales", ".biases")):
            weights.setdefault(key, value)
    exact = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager", experts_implementation="eager",
                                             dtype=dtype).eval()
    weights = fuse_experts({k.removeprefix("language_model."): torch.from_numpy(np.array(v)) for k, v in weights.items()})
    if model.config.model_type in tiny_hybrids.TYPES:
        weights = {k: tiny_hybrids.undo_mlx(k, v) for k, v in weights.items()}
    missing, extra = exact.load_state_dict(weights, strict=False)
    if extra or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"the two references name their weights differently: {missing}, {extra}")
    exact.tie_weights()
    if routing_gap(exact, tokens) < ROUTING_GAP:
        raise ValueError("an expert is chosen by a hair, choose other tokens")
    return logits_of(exact, tokens)


def fuse_experts(weights):
    """mlx-lm's stacks under transformers' names, gate and up in one."""
    for name in [name for name in weights if name.endswith("switch_mlp.gate_proj.weight")]:
        stem = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (weights.pop(f"{stem}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down"))
        weights[f"{stem}experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        weights[f"{stem}experts.down_proj"] = down
    for name in [name for name in weights if ".experts.gate_proj." in name]:
        stem, kind = name.split("gate_proj.")
        gate, up, down = (weights.pop(f"{stem}{part}_proj.{kind}") for part in ("gate", "up", "down"))
        pair = torch.stack([gate, up], dim=2).flatten(1, 2)  # gate and up in turn
        suffix = "_bias" if kind == "bias" else ""
        weights[f"{stem}gate_up_proj{suffix}"] = pair if suffix else pair.transpose(1, 2)
        weights[f"{stem}down_proj{suffix}"] = down if suffix else down.transpose(1, 2)
    return weights


def make(output, name):
    config_class, keys, arguments, dtype = MODELS[name]
    folder = new_folder(output, name)
    model = random_model(name, build_config(config_class, SMALL, TINY, keys))
    tokens = random_tokens(name, N_TOKENS, model.config.vocab_size)
    quantize(folder, model, arguments, dtype)
    mlx_model, logits = mlx_logits(folder, tokens)
    exact = exact_logits(model, mlx_model, tokens)
    if (logits - exact).abs().max() > 1e-4:
        raise ValueError(f"{name}: the references differ by {(logits - exact).abs().max():.2g}")
    write_case(folder, ".", tokens, logits, exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make these folders alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only or [*MODELS, *AT_LOAD]:
        (make_at_load if name in AT_LOAD else make)(arguments.output, name)
        case = json.loads((arguments.output / name / "case.json").read_text())
        size = sum(file.stat().st_size for file in (arguments.output / name).iterdir())
        print(f"{name}: {size / 1024:.0f} KiB, references differ by {case['float64_diff']}")


if __name__ == "__main__":
    main()
