"""Writes the seed corpora of the fuzzers of JSON and checkpoints, tests/fuzz/corpus/NAME/*.

    python tools/make_checkpoint_seeds.py
"""

import json
import struct
from pathlib import Path

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item):
    """The type and the bytes of one GGUF metadata value."""
    if isinstance(item, bool):
        return BOOL, struct.pack("<B", item)
    if isinstance(item, int):
        return U32, struct.pack("<I", item)
    if isinstance(item, float):
        return F32, struct.pack("<f", item)
    if isinstance(item, str):
        return STRING, string(item)
    kind = value(item[0])[0]
    return ARRAY, struct.pack("<IQ", kind, len(item)) + b"".join(value(x)[1] for x in item)


def gguf_file(keys, tensors, alignment=32):
    """`tensors`: name, dimensions fastest first, type, bytes."""
    out, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), b""
    for key, item in keys.items():
        kind, stored = value(item)
        out += string(key) + struct.pack("<I", kind) + stored
    for name, dims, kind, stored in tensors:
        data += bytes(-len(data) % alignment)
        out += string(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, len(data))
        data += stored
    return out + bytes(-len(out) % alignment) + data


def gguf_seeds():
    vocabulary = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": "{{ messages }}",
    }
    llama = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 8, "llama.feed_forward_length": 16,
        "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1, "llama.context_length": 64,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
    }
    floats = lambda n: struct.pack(f"<{n}f", *range(n))  # noqa: E731
    yield "llama", gguf_file({**llama, **vocabulary}, [
        ("token_embd.weight", [8, 4], 0, floats(32)),
        ("blk.0.attn_q.weight", [8, 8], 1, bytes(128)),
        ("blk.0.attn_k.weight", [8, 4], 30, bytes(64)),
        ("blk.0.attn_q.bias", [8], 0, floats(8)),
        ("rope_freqs.weight", [2], 0, floats(2)),
    ])
    blocks = [("q4_0", 2, 32, 18), ("q4_1", 3, 32, 20), ("q5_0", 6, 32, 22), ("q8_0", 8, 32, 34), ("q4_k", 12, 256, 144),
              ("q6_k", 14, 256, 210), ("other", 99, 1, 1)]
    yield "blocks", gguf_file({"general.architecture": "qwen3", "general.alignment": 8}, [
        (f"blk.0.{name}.weight", [columns, 2], kind, bytes(range(size)) * 2) for name, kind, columns, size in blocks], 8)
    yield "hunyuan", gguf_file({
        "general.architecture": "hunyuan-moe", "hunyuan-moe.feed_forward_length": 8, "hunyuan-moe.attention.head_count": 2,
        "hunyuan-moe.expert_count": 2, "hunyuan-moe.expert_used_count": 1, "hunyuan-moe.expert_feed_forward_length": 8,
        "hunyuan-moe.expert_shared_feed_forward_length": 16, "hunyuan-moe.rope.scaling.type": "none",
        "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_eos_token": True,
    }, [("blk.0.attn_q_norm.weight", [4], 0, floats(4)), ("blk.0.ffn_gate_inp.weight", [4, 2], 0, floats(8))])
    yield "yarn", gguf_file({
        "general.architecture": "qwen2", "qwen2.embedding_length": 8, "qwen2.attention.head_count": 2,
        "qwen2.attention.key_length": 4, "qwen2.rope.dimension_count": 2, "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.attn_factor": 1.5,
        "qwen2.rope.scaling.original_context_length": 32, "qwen2.feed_forward_length": [16, 32],
        "tokenizer.ggml.eot_token_id": 1, "split.count": 1}, [])


def safetensors_file(tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, stored in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    yield "plain", safetensors_file([
        ("model.norm.weight", "BF16", [2], bytes(4)), ("lm_head.weight", "F16", [2, 3], bytes(12)),
        ("model.embed_tokens.weight", "F32", [1, 2, 2], bytes(16))], {"format": "pt"})
    yield "wrapped", safetensors_file([
        ("model.language_model.norm.weight", "F32", [1], bytes(4)), ("model.visual.x", "U8", [3], bytes(3)),
        ("language_model.model.y", "F8_E4M3", [2], bytes(2)), ("a.rotary_emb.inv_freq", "I64", [], bytes(8)),
        ("empty", "F32", [0, 4], b"")])
    yield "none", safetensors_file([])


def mlx_seeds():
    """A configuration, a NUL, a safetensors file."""
    levels = [("m.scales", "F16", [2, 1], bytes(4)), ("m.biases", "F16", [2, 1], bytes(4))]
    for bits, group in (2, 32), (3, 64), (4, 128), (5, 32), (6, 64), (8, 128):
        config = {"quantization": {"group_size": group, "bits": bits}}
        words = ("m.weight", "U32", [2, group * bits // 32], bytes(group * bits // 4))
        yield f"affine_{bits}", json.dumps(config).encode() + b"\0" + safetensors_file([words, *levels])
    for mode, group, bits in ("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4):
        config = {"quantization": {"group_size": 32, "bits": 3, "m": {"group_size": group, "bits": bits, "mode": mode}}}
        stored = [("m.weight", "U32", [1, group * bits // 32], bytes(range(group * bits // 8))), ("m.scales", "U8", [1, 1], b"x")]
        yield mode, json.dumps(config).encode() + b"\0" + safetensors_file(stored)
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    stored = [("x_blocks", "U8", [2, 1, 16], bytes(range(32))), ("x_scales", "U8", [2, 1], b"\x7f\x80")]
    yield "two_tensors", json.dumps(config).encode() + b"\0" + safetensors_file(stored)
    yield "floats", b"{}\0" + safetensors_file([("m.weight", "BF16", [2, 32], bytes(range(128)))])


def quantized_seeds():
    """The same of the hub's quantizers: modules of 8 x 32."""
    floats = struct.pack("<8f", *range(1, 9))
    scales, words = ("scales", "F32", [1, 8], floats), bytes(range(128))
    order = ("g_idx", "I32", [32], bytes(128))
    gptq = [("qweight", "I32", [4, 8], words), ("qzeros", "I32", [1, 1], b"wxyz"), scales, order]
    awq = [("qweight", "I32", [32, 1], words), ("qzeros", "I32", [1, 1], b"wxyz"), scales]
    packed = [("weight_packed", "I32", [8, 4], words), ("weight_scale", "F32", [8, 1], floats),
              ("weight_shape", "I64", [2], struct.pack("<2q", 8, 32)), ("weight_zero_point", "I32", [1, 1], b"wxyz"),
              ("weight_g_idx", "I32", [32], bytes(128))]
    fp4 = [("weight", "U8", [8, 16], words), ("weight_scale", "F8_E4M3", [8, 2], bytes(range(40, 56))),
           ("weight_scale_2", "F32", [], floats[:4])]
    fp8 = [("weight", "F8_E4M3", [8, 32], words * 2), ("weight_scale_inv", "BF16", [2, 2], bytes(range(60, 68)))]
    integers = [("weight", "I8", [8, 32], words * 2), ("weight_scale", "F32", [8, 1], floats)]
    ways = {
        "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq),
        "gptq_8": ({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}, gptq),
        "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
        "packed": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, packed),
        "integers": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, integers),
        "fp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, fp4),
        "fp8": ({"quant_method": "fp8", "weight_block_size": [4, 16]}, fp8),
    }
    for name, (config, parts) in ways.items():
        stored = [(f"m.{ending}", dtype, shape, data) for ending, dtype, shape, data in parts]
        yield name, json.dumps({"quantization_config": config}).encode() + b"\0" + safetensors_file(stored)


CONFIGS = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "rope_theta": 1e6,
              "rope_scaling": None, "tie_word_embeddings": True},
    "gptq": {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
    "compressed": {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"weights": {"block_structure": [128, 128]}}}}},
    "mlx": {"text_config": {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}}},
}
DOCUMENTS = {
    "request": '{"messages": [{"role": "user", "content": "Grüße \\ud83d\\ude00\\n"}], "temperature": 0.7, "stream": true}',
    "numbers": "[0, -0, 1.5, 1e5, -1E-05, 123456789012345678901234567890]",
    "nested": '[[], {}, [{"a": [null, true, false]}], "\\u0000\\"\\\\\\/"]',
    "lone": '"\\ud800\\udc00\\udc00"',
}


def main():
    corpus = Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "corpus"
    seeds = {
        "checkpoint_gguf": dict(gguf_seeds()),
        "checkpoint_safetensors": dict(safetensors_seeds()),
        "checkpoint_mlx": dict(mlx_seeds()),
        "checkpoint_quantized": dict(quantized_seeds()),
        "checkpoint_config": {name: json.dumps(config).encode() for name, config in CONFIGS.items()},
        "base_json": {name: text.encode() for name, text in DOCUMENTS.items()},
    }
    for folder, files in seeds.items():
        (corpus / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (corpus / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
