"""Makes one tiny gpt-oss checkpoint in the three formats whose experts are mxfp4, with transformers' logits for it.

    python tools/make_gpt_oss_models.py [--output tests/models]

Needs torch, transformers, mlx, mlx-lm, gguf, safetensors, numpy. Folders are those of make_tiny_models.py:

    gpt_oss_mxfp4     as its authors publish it: experts.X_blocks and experts.X_scales
    mlx_gpt_oss       what mlx-lm makes of that folder
    gguf_gpt_oss      GGUF blocks of the same codes; dequantized by the `gguf` package as a check

The judge is the same transformers model, float32 on the values that the codes stand for.
"""

import argparse
import json
import pathlib

import gguf
import mlx.core as mx
import mlx_lm.utils
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GptOssConfig, Mxfp4Config

from gguf_writing import add_configuration, add_tokenizer
from make_tiny_models import GPT_OSS, GPT_OSS_ROPE, SMALL, build_config, decisive_tokens, new_folder, random_model, record

NAME = "gpt_oss_mxfp4"
KEYS = {"vocab_size": 288, "hidden_size": 32, "intermediate_size": 64, "num_local_experts": 3, "num_hidden_layers": 2, "num_key_value_heads": 1}
N_TOKENS = 70
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
GROUP = 32


def encode(values):
    """(codes, exponents) of [..., cols]: a byte a value, and the E8M0 byte of each group."""
    groups = values.reshape(*values.shape[:-1], -1, GROUP)
    largest = np.abs(groups).max(axis=-1)
    exponents = np.floor(np.log2(largest)).astype(np.int32) - 2
    scaled = groups / np.exp2(exponents)[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - E2M1).argmin(axis=-1) + 8 * (scaled < 0)
    return codes.astype(np.uint8), (exponents + 127).astype(np.uint8)


def decode(codes, exponents):
    values = E2M1[codes & 7] * np.where(codes & 8, -1, 1) * np.exp2(exponents.astype(np.float32) - 127)[..., None]
    return values.reshape(*codes.shape[:-2], -1).astype(np.float32)


def quantize_experts(model):
    """Rounds the experts to mxfp4; {module path: (codes, exponents)} of [E, out, in]."""
    stacks = {}
    for i, layer in enumerate(model.model.layers):
        for part in ("gate_up_proj", "down_proj"):
            parameter = getattr(layer.mlp.experts, part)
            codes, exponents = encode(np.ascontiguousarray(parameter.data.transpose(1, 2).numpy()))
            parameter.data = torch.from_numpy(decode(codes, exponents)).transpose(1, 2).contiguous()
            stacks[f"model.layers.{i}.mlp.experts.{part}"] = (codes, exponents)
    return stacks


def write_huggingface(folder, model, stacks):
    tensors = {k: v.bfloat16().contiguous() for k, v in model.state_dict().items() if k not in stacks}
    for name, (codes, exponents) in stacks.items():
        tensors[f"{name}_blocks"] = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
        tensors[f"{name}_scales"] = torch.from_numpy(exponents)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def check_huggingface(folder, model):
    """transformers' own reader of the format sees the values that were meant."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32)
    for name, parameter in loaded.named_parameters():
        if not torch.equal(parameter.float(), dict(model.named_parameters())[name]):
            raise ValueError(f"{name}: transformers reads other values")


def write_mlx(folder, source):
    model, config = mlx_lm.utils.load_model(source)
    mlx_lm.utils.save_model(folder, model)
    mlx_lm.utils.save_config(config, folder / "config.json")
    (folder / "model.safetensors.index.json").unlink()


def gguf_blocks(codes, exponents):
    """One byte of scale and sixteen of codes: element j and j + 16 share a byte."""
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([exponents[..., None], packed], axis=-1).reshape(*codes.shape[:-2], -1)


LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.router": "ffn_gate_inp",
}
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_tensors(model, stacks):
    """(name, array, raw type or None): gate and up apart, the rest F32 and F16."""
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        module, _, kind = name.rpartition(".")
        _, _, rest = name.partition("model.layers.")
        layer, _, rest = rest.partition(".")
        if name in stacks:
            codes, exponents = stacks[name]
            parts = {"ffn_gate_exps": np.s_[:, 0::2], "ffn_up_exps": np.s_[:, 1::2]} if "gate_up" in name else {"ffn_down_exps": np.s_[:]}
            for part, rows in parts.items():
                blocks = gguf_blocks(codes[rows], exponents[rows])
                if not np.array_equal(gguf.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4), decode(codes[rows], exponents[rows])):
                    raise ValueError(f"{name}: gguf reads other values")
                yield f"blk.{layer}.{part}.weight", blocks, gguf.GGMLQuantizationType.MXFP4
        elif name.endswith("gate_up_proj_bias"):
            yield f"blk.{layer}.ffn_gate_exps.bias", np.ascontiguousarray(values[:, 0::2]), None
            yield f"blk.{layer}.ffn_up_exps.bias", np.ascontiguousarray(values[:, 1::2]), None
        elif name.endswith("down_proj_bias"):
            yield f"blk.{layer}.ffn_down_exps.bias", values, None
        elif name.endswith("sinks"):
            yield f"blk.{layer}.attn_sinks.weight", values, None
        elif layer:
            module = rest.rpartition(".")[0]
            is_matrix = values.ndim == 2 and module != "mlp.router"
            yield f"blk.{layer}.{LAYER[module]}.{kind}", values.astype(np.float16) if is_matrix else values, None
        else:
            yield f"{GLOBAL[module]}.{kind}", values.astype(np.float16) if values.ndim == 2 else values, None


def write_gguf(path, model, stacks):
    config = model.config
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_type("model")
    writer.add_name("gguf_gpt_oss")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)
    add_configuration(writer, config)
    add_tokenizer(writer, "gpt-oss", config.vocab_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_sliding_window(config.sliding_window)
    for name, values, kind in gguf_tensors(model, stacks):
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    transformers.utils.logging.disable_progress_bar()
    model = random_model(NAME, build_config(GptOssConfig, SMALL, GPT_OSS, GPT_OSS_ROPE, KEYS))
    for parameter in model.parameters():  # exact in bf16 and in f16
        parameter.data = parameter.data.mul(256).round().div(256).bfloat16().float()
    stacks = quantize_experts(model)
    tokens = decisive_tokens(NAME, N_TOKENS, model)
    folders = {name: new_folder(output, name) for name in (NAME, "mlx_gpt_oss", "gguf_gpt_oss")}
    write_huggingface(folders[NAME], model, stacks)
    check_huggingface(folders[NAME], model)
    write_mlx(folders["mlx_gpt_oss"], folders[NAME])
    write_gguf(folders["gguf_gpt_oss"] / "model.gguf", model, stacks)
    for name, folder in folders.items():
        record(folder, "model.gguf" if name == "gguf_gpt_oss" else ".", model, tokens)
        print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
