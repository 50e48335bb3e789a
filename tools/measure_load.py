"""Measures how long csgl takes to load a model in every weight format, for docs/formats.md.

    python tools/measure_load.py CSGL [--runs 3] [--only NAME ...]

Needs numpy, torch, gguf, mlx, compressed-tensors, safetensors. One model of 0.25 billion random weights (4 layers of width
2048) is written a format: a tile of 256 outputs is encoded and repeated, which no loader can tell. The time is that of
`csgl bench_one_batch` of one token, files in the page cache, the best of the runs, less that of a model without layers to
speak of; printed are seconds for a billion weights and a GB of file.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile
import time

import gguf
import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_hf_quantized_models as hub
from gguf_writing import FILE_TYPES, encode
from make_mlx_models import MODELS as MLX_MODELS

HIDDEN, WIDTH, HEADS, KV_HEADS, DIM, VOCAB, LAYERS, TILE = 2048, 8192, 16, 4, 128, 4096, 4, 256
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN), "mlp.down_proj": (HIDDEN, WIDTH),
}
GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}
NORMS = ("input_layernorm", "post_attention_layernorm")
CONFIG = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": True,
}


def tile(cols):
    return torch.randn(TILE, cols, generator=torch.Generator().manual_seed(cols)) / math.sqrt(cols)


def matrices(n_layers):
    """(layer or None, module, rows, cols); the embedding first."""
    yield None, "embed_tokens", VOCAB, HIDDEN
    for i in range(n_layers):
        for module, (rows, cols) in LINEARS.items():
            yield i, module, rows, cols


def write_gguf(folder, kind, n_layers):
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[kind]))
    for key, value in {"block_count": n_layers, "context_length": 512, "embedding_length": HIDDEN,
                       "feed_forward_length": WIDTH, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
                       "rope.dimension_count": DIM, "vocab_size": VOCAB}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    tiles = {cols: encode(tile(cols).numpy(), kind) for cols in (HIDDEN, WIDTH)}
    for layer, module, rows, cols in matrices(n_layers):
        name = "token_embd" if layer is None else f"blk.{layer}.{GGUF_NAMES[module]}"
        writer.add_tensor(f"{name}.weight", np.tile(tiles[cols], (rows // TILE, 1)), raw_dtype=kind)
    for name in ["output_norm", *(f"blk.{i}.{norm}" for i in range(n_layers) for norm in ("attn_norm", "ffn_norm"))]:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def write_folder(folder, n_layers, parts_of, quantization, quantizes_embedding):
    """`parts_of(cols)`: {ending: (tensor of a tile, axis of its outputs or None)}."""
    tiles = {cols: parts_of(cols) for cols in (HIDDEN, WIDTH)}
    state = {}
    for layer, module, rows, cols in matrices(n_layers):
        name = f"model.{module}" if layer is None else f"model.layers.{layer}.{module}"
        if layer is None and not quantizes_embedding:
            state[f"{name}.weight"] = tile(cols).repeat(rows // TILE, 1).bfloat16()
            continue
        for ending, (part, axis) in tiles[cols].items():
            if ending == "weight_shape":
                part = torch.tensor([rows, cols])
            elif axis is not None:
                part = torch.cat([part] * (rows // TILE), axis)
            state[f"{name}.{ending}"] = part.clone()
    for name in ["norm", *(f"layers.{i}.{norm}" for i in range(n_layers) for norm in NORMS)]:
        state[f"model.{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": n_layers, **quantization}))
    return folder


def write_floats(folder, n_layers, dtype):
    return write_folder(folder, n_layers, lambda cols: {"weight": (tile(cols).to(dtype), 0)}, {}, True)


def write_mlx(folder, n_layers, arguments):
    def parts_of(cols):
        values = mx.quantize(mx.array(tile(cols).numpy()).astype(mx.bfloat16), **arguments)
        named = dict(zip(("weight", "scales", "biases"), values))
        return {ending: (to_torch(value), 0) for ending, value in named.items()}

    block = {"group_size": 32, "bits": 4, "mode": "affine", **arguments}
    if block["mode"] != "affine":
        block |= {"mxfp4": {"bits": 4}, "mxfp8": {"bits": 8}, "nvfp4": {"bits": 4, "group_size": 16}}[block["mode"]]
    return write_folder(folder, n_layers, parts_of, {"quantization": block}, True)


def to_torch(value):
    if value.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(value.astype(mx.float32))).bfloat16()
    return torch.from_numpy(np.array(value))


def write_hub(folder, n_layers, name):
    """One of make_hf_quantized_models.py, in groups of 128 where it has groups of another size."""
    _, _, encoder, config_of, arguments = hub.MODELS[name]
    arguments = {key: 128 if key in ("group", "group_size") and value in (32, 64) else value
                 for key, value in arguments.items()}

    def parts_of(cols):
        parts, _ = encoder(name, "a.b", tile(cols), **arguments)
        axis = 1 if name.startswith(("gptq", "awq")) else 0
        whole = ("g_idx", "weight_g_idx", "weight_scale_2", "input_scale", "weight_global_scale")
        return {ending: (part, None if ending in whole or part.dim() < 2 and "shape" not in ending else axis)
                for ending, part in parts.items()}

    return write_folder(folder, n_layers, parts_of, {"quantization_config": config_of(**arguments)}, False)


def write_gpt_oss(folder, n_layers):
    """Mixtures of 8 experts of width 2048 in mxfp4; a quarter of the layers' weights are floats in attention."""
    config = {"model_type": "gpt_oss", "intermediate_size": HIDDEN, "num_local_experts": 8, "num_experts_per_tok": 2,
              "sliding_window": 128, "attention_bias": False, "tie_word_embeddings": True,
              "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
              "quantization_config": {"quant_method": "mxfp4"}}
    write_folder(folder, 0, lambda cols: {"weight": (tile(cols).bfloat16(), 0)}, {}, True)
    state = load_file(folder / "model.safetensors")
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        for module, (rows, cols) in LINEARS.items():
            if "self_attn" in module:
                state[f"{layer}.{module}.weight"] = tile(cols).repeat(rows // TILE, 1).bfloat16()
        state |= {f"{layer}.{norm}.weight": torch.ones(HIDDEN, dtype=torch.bfloat16) for norm in NORMS}
        state[f"{layer}.self_attn.sinks"] = torch.zeros(HEADS, dtype=torch.bfloat16)
        state[f"{layer}.mlp.router.weight"] = torch.zeros(8, HIDDEN, dtype=torch.bfloat16)
        state[f"{layer}.mlp.router.bias"] = torch.zeros(8, dtype=torch.bfloat16)
        for part, rows in {"gate_up_proj": 2 * HIDDEN, "down_proj": HIDDEN}.items():
            stem = f"{layer}.mlp.experts.{part}"
            state[f"{stem}_blocks"] = torch.randint(0, 256, (8, rows, HIDDEN // 32, 16), dtype=torch.uint8)
            state[f"{stem}_scales"] = torch.full((8, rows, HIDDEN // 32), 118, dtype=torch.uint8)
            state[f"{stem}_bias"] = torch.zeros(8, rows, dtype=torch.bfloat16)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config, "num_hidden_layers": n_layers}))
    return folder


def n_weights(name, n_layers):
    """Of the matrices."""
    total = sum(rows * cols for _, module, rows, cols in matrices(n_layers) if name != GPT_OSS or "mlp" not in module)
    return total + (n_layers * 8 * 3 * HIDDEN * HIDDEN if name == GPT_OSS else 0)


GPT_OSS, AT_LOAD = "gpt_oss mxfp4", "safetensors bfloat16, mlx_q4 at load"


def writers():
    """{name: function of (folder, layers)}"""
    kinds = {f"gguf {kind.name}": kind for kind in FILE_TYPES}
    found = {name: lambda folder, n, kind=kind: write_gguf(folder, kind, n) for name, kind in kinds.items()}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found[f"safetensors {str(dtype)[6:]}"] = lambda folder, n, dtype=dtype: write_floats(folder, n, dtype)
    found |= {AT_LOAD: lambda folder, n: write_floats(folder, n, torch.bfloat16), GPT_OSS: write_gpt_oss}
    for name, (_, _, arguments, _) in MLX_MODELS.items():
        if "moe" not in name and "overrides" not in name:
            found[name] = lambda folder, n, arguments=arguments: write_mlx(folder, n, arguments)
    for name in hub.MODELS:
        if "moe" not in name:
            found[name] = lambda folder, n, name=name: write_hub(folder, n, name)
    return found


def seconds(command, path, runs):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([*command, "--model-path", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csgl")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    command = [arguments.csgl, "bench_one_batch", "--input-len", "1", "--output-len", "1", "--runs", "1"]
    for name, write in writers().items():
        if arguments.only and name not in arguments.only:
            continue
        results = []
        for n_layers in (1, LAYERS):
            with tempfile.TemporaryDirectory() as folder:
                path = write(pathlib.Path(folder), n_layers)
                size = sum(file.stat().st_size for file in pathlib.Path(folder).iterdir())
                more = ["--quantization", "mlx_q4"] if name == AT_LOAD else []
                results.append((seconds([*command, *more], path, arguments.runs), size))
        (short, short_size), (long, long_size) = results
        per_weight = (long - short) / (n_weights(name, LAYERS) - n_weights(name, 1))
        per_byte = (long - short) / (long_size - short_size)
        print(f"{name}: {per_weight * 1e9:.2f} s a billion weights, {per_byte * 1e9:.2f} s a GB of file", flush=True)


if __name__ == "__main__":
    main()
