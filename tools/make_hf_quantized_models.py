"""Makes tiny random checkpoints as the quantizers of the Hugging Face hub store them and records transformers' logits.

    python tools/make_hf_quantized_models.py [--output tests/models] [--only NAME ...]

Needs torch, transformers, safetensors, compressed-tensors. Folders are those of make_tiny_models.py. The encoders of FP8, GPTQ, AWQ
and ModelOpt are written here from the formats' definitions; those of compressed-tensors are the package's own, and so is its
decoder. The logits are transformers' in float32 on the dequantized weights.
"""

import argparse
import json
import pathlib

import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from make_tiny_models import build_config, decisive_tokens, new_folder, random_model, random_tokens, record, seed, SMALL

TINY = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "num_hidden_layers": 1, "tie_word_embeddings": True}
N_TOKENS = 24
FP8_MAX, FP4_MAX = 448.0, 6.0


def groups_of(weight, group):
    """[out, groups, group]"""
    return weight.reshape(weight.shape[0], -1, group)


def integer_levels(weight, bits, symmetric, dtype):
    """Scales and zero points [out, groups] of unsigned codes, for [out, groups, group]."""
    low, high = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
    if symmetric:
        scales = torch.maximum(-low, high) / (2 ** (bits - 1) - 1)
        return scales.to(dtype), torch.full(scales.shape, 2 ** (bits - 1))
    scales = ((high - low) / (2**bits - 1)).to(dtype)
    return scales, (-low / scales.float()).round().clamp(0, 2**bits - 1).long()


def pack(codes, bits, places=None):
    """Words of 32 bits along the last dimension, the first code lowest, or code i at place places[i]."""
    per = 32 // bits
    codes = codes.reshape(*codes.shape[:-1], -1, per).long()
    places = torch.tensor(places or range(per))
    words = (codes << (places * bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


# --- GPTQ and AWQ: [config, {module: tensors}, {module: dequantized}] ---


def column_groups(name, path, n_cols, group, act_order):
    groups = torch.arange(n_cols) // group
    if not act_order:
        return groups
    # q, k and v were calibrated apart in "own": each has an order of its own.
    key = path if act_order == "own" else path.rsplit(".", 1)[0] + str(n_cols)
    return groups[torch.randperm(n_cols, generator=torch.Generator().manual_seed(seed(name + key)))]


def gptq(name, path, weight, bits, group, symmetric=False, version="gptq", act_order=None, dtype=torch.float16):
    n_out, n_in = weight.shape
    width = group if group > 0 else n_in
    groups = column_groups(name, path, n_in, width, act_order)
    order = torch.argsort(groups, stable=True)
    scales, zeros = integer_levels(groups_of(weight[:, order], width), bits, symmetric, dtype)
    s, z = scales.float()[:, groups], zeros[:, groups]
    codes = ((weight / s).round() + z).clamp(0, 2**bits - 1).long()
    stored = zeros if version == "gptq_v2" else (zeros - 1) % 2**bits
    tensors = {
        "qweight": pack(codes.T.reshape(n_in * bits // 32, -1, n_out).transpose(1, 2), bits).squeeze(-1),
        "qzeros": pack(stored.T, bits),
        "scales": scales.T.contiguous(),
        "g_idx": groups.to(torch.int32),
    }
    return tensors, (codes - z) * s


def gptq_config(bits, group, symmetric=False, version="gptq", act_order=None, **_):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order is not None,
            "checkpoint_format": version}


def awq(name, path, weight, group):
    scales, zeros = integer_levels(groups_of(weight, group), 4, False, torch.float16)
    s, z = scales.float().repeat_interleave(group, 1), zeros.repeat_interleave(group, 1)
    codes = ((weight / s).round() + z).clamp(0, 15).long()
    places = [0, 4, 1, 5, 2, 6, 3, 7]
    tensors = {"qweight": pack(codes.T, 4, places), "qzeros": pack(zeros.T, 4, places), "scales": scales.T.contiguous()}
    return tensors, (codes - z) * s


def awq_config(group):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


# --- FP8 and ModelOpt ---


def fp8(name, path, weight, block, dtype=torch.float32):
    rows, cols = block
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % cols, 0, -weight.shape[0] % rows))
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)
    scales = (tiles.abs().amax((1, 3)) / FP8_MAX).to(dtype)
    s = scales.float().repeat_interleave(rows, 0).repeat_interleave(cols, 1)[: weight.shape[0], : weight.shape[1]]
    codes = (weight / s).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * s


def fp8_config(block, **_):
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(block),
            "modules_to_not_convert": ["lm_head"]}


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def modelopt(name, path, weight, algorithm):
    if algorithm == "FP8":
        scale = weight.abs().max() / FP8_MAX
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, codes.float() * scale
    tiles = groups_of(weight, 16)
    factor = weight.abs().max() / (FP4_MAX * FP8_MAX)
    scales = (tiles.abs().amax(-1) / FP4_MAX / factor).to(torch.float8_e4m3fn)
    s = (scales.float() * factor).unsqueeze(-1)
    indices = ((tiles / s).abs().unsqueeze(-1) - FP4).abs().argmin(-1)
    values = FP4[indices] * tiles.sign()
    codes = (indices + 8 * (tiles < 0)).reshape(weight.shape).to(torch.uint8)
    tensors = {"weight": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales, "weight_scale_2": factor,
               "input_scale": torch.tensor(1.0)}
    return tensors, (values * s).reshape(weight.shape)


def modelopt_config(algorithm):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}


# --- compressed-tensors ---


def compressed(name, path, weight, format, act_order=False, **arguments):
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    width = args.group_size or weight.shape[1]
    state = {"weight": weight}
    if format == "nvfp4-pack-quantized":
        state["weight_global_scale"] = FP8_MAX * FP4_MAX / weight.abs().max().reshape(1)
        scales = groups_of(weight, width).abs().amax(-1) / FP4_MAX * state["weight_global_scale"]
        state["weight_scale"] = scales.to(torch.float8_e4m3fn).float()
    elif args.type == "float":
        state["weight_scale"] = weight.abs().amax(-1, keepdim=True) / FP8_MAX
    else:
        groups = column_groups(name, path, weight.shape[1], width, "shared" if act_order else None)
        order = torch.argsort(groups, stable=True)
        state["weight"] = weight[:, order]
        scales, zeros = integer_levels(groups_of(state["weight"], width), args.num_bits, args.symmetric, torch.bfloat16)
        state["weight_scale"] = scales.float()
        if not args.symmetric:
            state["weight_zero_point"] = (zeros - 2 ** (args.num_bits - 1)).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format)
    tensors = compressor.compress(state, scheme)
    if format == "nvfp4-pack-quantized":  # the package's own decompress rounds to bf16
        values = unpack_fp4_from_uint8(tensors["weight_packed"], *weight.shape, torch.float32)
        s = tensors["weight_scale"].float() / tensors["weight_global_scale"]
        dequantized = (groups_of(values, width) * s.unsqueeze(-1)).reshape(weight.shape)
    else:
        dequantized = compressor.decompress(tensors, scheme)["weight"].float()
    if act_order:  # the package packs columns in their own places and has their groups beside them
        back = torch.argsort(order)
        codes = unpack_from_int32(tensors["weight_packed"], args.num_bits, weight.shape)
        tensors["weight_packed"] = pack_to_int32(codes[:, back].contiguous(), args.num_bits)
        tensors["weight_g_idx"] = groups.to(torch.int32)
        dequantized = dequantized[:, back]
    if args.type == "int":
        tensors["weight_scale"] = tensors["weight_scale"].bfloat16()
    return tensors, dequantized


def compressed_config(format, act_order=False, **arguments):
    weights = {**arguments, "actorder": "group" if act_order else None}
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
PACKED = "pack-quantized"
HEAD = {"tie_word_embeddings": False}
MIXTURE = {"hidden_size": 64, "num_attention_heads": 2, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
           "norm_topk_prob": True}

# name: (configuration class, own keys, encoder, its configuration, their arguments)
MODELS = {
    "fp8_block": (Qwen3Config, {"hidden_size": 160, "intermediate_size": 256, "vocab_size": 48}, fp8, fp8_config, {"block": (128, 128)}),
    "fp8_block_bf16": (LlamaConfig, {"mlp_bias": True}, fp8, fp8_config, {"block": (128, 64), "dtype": torch.bfloat16}),
    "gptq_q4_g32": (LlamaConfig, {"attention_bias": True}, gptq, gptq_config, {"bits": 4, "group": 32}),
    "gptq_q4_g64_sym": (Qwen3Config, {}, gptq, gptq_config, {"bits": 4, "group": 64, "symmetric": True}),
    "gptq_q4_act_order": (LlamaConfig, {}, gptq, gptq_config, {"bits": 4, "group": 32, "act_order": "own"}),
    "gptq_q4_v2_act_order": (Qwen2Config, {"head_dim": None}, gptq, gptq_config,
                             {"bits": 4, "group": 64, "version": "gptq_v2", "act_order": "shared"}),
    "gptq_q8_row": (Qwen3Config, HEAD, gptq, gptq_config, {"bits": 8, "group": -1}),
    "gptq_q8_g128_sym": (LlamaConfig, {"intermediate_size": 256}, gptq, gptq_config,
                         {"bits": 8, "group": 128, "symmetric": True}),
    "awq_q4_g64": (Qwen2Config, {"head_dim": None}, awq, awq_config, {"group": 64}),
    "ct_q4_group": (LlamaConfig, {}, compressed, compressed_config, {"format": PACKED, **INT4, "symmetric": True}),
    "ct_q4_channel": (Qwen3Config, {}, compressed, compressed_config,
                      {"format": PACKED, "num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}),
    "ct_q4_group_zeros": (LlamaConfig, {}, compressed, compressed_config, {"format": PACKED, **INT4, "symmetric": False}),
    "ct_q4_act_order": (Qwen3Config, {}, compressed, compressed_config,
                        {"format": PACKED, **INT4, "symmetric": True, "act_order": True}),
    "ct_q8_int": (LlamaConfig, {}, compressed, compressed_config,
                  {"format": "int-quantized", "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}),
    "ct_fp8": (Qwen3Config, HEAD, compressed, compressed_config,
               {"format": "float-quantized", "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}),
    "ct_nvfp4": (LlamaConfig, {}, compressed, compressed_config,
                 {"format": "nvfp4-pack-quantized", "num_bits": 4, "type": "float", "strategy": "tensor_group",
                  "group_size": 16, "symmetric": True}),
    # Packers store one linear an expert; the router stays as it is.
    "gptq_q4_moe": (Qwen3MoeConfig, MIXTURE, gptq, gptq_config, {"bits": 4, "group": 32, "symmetric": True}),
    "gptq_q4_moe_act_order": (Qwen3MoeConfig, MIXTURE, gptq, gptq_config, {"bits": 4, "group": 32, "act_order": "shared"}),
    "awq_q4_moe": (Qwen3MoeConfig, MIXTURE, awq, awq_config, {"group": 32}),
    "ct_q4_moe": (Qwen3MoeConfig, MIXTURE, compressed, compressed_config, {"format": PACKED, **INT4, "symmetric": True}),
    "modelopt_nvfp4": (Qwen3Config, {}, modelopt, modelopt_config, {"algorithm": "NVFP4"}),
    "modelopt_fp8": (LlamaConfig, {}, modelopt, modelopt_config, {"algorithm": "FP8"}),
}


def linears(model):
    """(path, weight) of all linears but the head, and of each expert's three, which transformers holds in stacks."""
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            yield path, module.weight.data
        elif path.endswith(".experts"):
            for e in range(module.gate_up_proj.shape[0]):
                gate, up = module.gate_up_proj.data[e].chunk(2)
                for part, weight in {"gate_proj": gate, "up_proj": up, "down_proj": module.down_proj.data[e]}.items():
                    yield f"{path}.{e}.{part}", weight


@torch.no_grad()
def make(output, name):
    config_class, keys, encode, config_of, arguments = MODELS[name]
    folder = new_folder(output, name)
    model = random_model(name, build_config(config_class, SMALL, TINY, keys))
    tensors = {}
    for path, weight in linears(model):
        parts, values = encode(name, path, weight.clone(), **arguments)
        tensors.update({f"{path}.{ending}": part.contiguous() for ending, part in parts.items()})
        weight.copy_(values)
    done = {key.rsplit(".", 1)[0] + ".weight" for key in tensors}
    for key, parameter in model.named_parameters():
        if key not in done and ".experts." not in key:
            parameter.data = parameter.data.bfloat16().float()
            tensors[key] = parameter.data.bfloat16()
    model.tie_weights()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads(model.config.to_json_string()) | {"quantization_config": config_of(**arguments)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    choose = decisive_tokens if config_class is Qwen3MoeConfig else random_tokens
    record(folder, ".", model, choose(name, N_TOKENS, model if choose is decisive_tokens else model.config.vocab_size))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/models"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make these folders alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only or MODELS:
        make(arguments.output, name)
        size = sum(file.stat().st_size for file in (arguments.output / name).iterdir())
        print(f"{name}: {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
