"""Writes a transformers llama, qwen2 or qwen3 model as a GGUF file, with block encoders for Q4_K and Q6_K.

The `gguf` package encodes F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 itself; for Q4_K and Q6_K it only
decodes, so plain encoders stand here. They are valid, not optimal: the judge of a test is what the file
dequantizes to. This is a module of make_tiny_models.py and has no command of its own.
"""

import gguf
import numpy as np

from gguf_reference import GLOBAL_NAMES, LAYER_NAMES, permute_rows

SUPERBLOCK = 256


def encode_q4_k(values):
    """w = d * sc * q - dmin * m for each 32 values; 8 six-bit pairs (sc, m) a superblock."""
    x = values.reshape(-1, 8, 32).astype(np.float32)
    low = np.minimum(x.min(axis=2), 0)
    scale = (x.max(axis=2).clip(min=0) - low) / 15
    d = (scale.max(axis=1, keepdims=True) / 63).astype(np.float16)
    dmin = (-low.min(axis=1, keepdims=True) / 63).astype(np.float16)
    sc = divide_rounded(scale, d.astype(np.float32), 0, 63)
    m = divide_rounded(-low, dmin.astype(np.float32), 0, 63)
    step = (d.astype(np.float32) * sc)[:, :, None]
    offset = (dmin.astype(np.float32) * m)[:, :, None]
    q = divide_rounded(x + offset, step, 0, 15).astype(np.uint8)
    nibbles = q[:, 0::2] | q[:, 1::2] << 4
    return np.concatenate(
        [d.view(np.uint8), dmin.view(np.uint8), pack_six_bit_pairs(sc, m), nibbles.reshape(-1, 128)], axis=1)


def pack_six_bit_pairs(sc, m):
    """Eight scales and eight minima of six bits in twelve bytes."""
    sc, m = sc.astype(np.uint8), m.astype(np.uint8)
    return np.concatenate([
        sc[:, :4] | (sc[:, 4:] >> 4) << 6,
        m[:, :4] | (m[:, 4:] >> 4) << 6,
        (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
    ], axis=1)


def encode_q6_k(values):
    """w = d * sc * (q - 32) for each 16 values; sc is a signed byte."""
    x = values.reshape(-1, 16, 16).astype(np.float32)
    at_peak = np.take_along_axis(x, np.abs(x).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scale = at_peak / -32  # the largest value becomes code 0, that is -32
    d = (np.abs(scale).max(axis=1, keepdims=True) / 127).astype(np.float16)
    sc = divide_rounded(scale, d.astype(np.float32), -127, 127)
    step = (d.astype(np.float32) * sc)[:, :, None]
    q = (divide_rounded(x, step, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4
    high = q[:, :, 0] >> 4 | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    return np.concatenate(
        [low.reshape(-1, 128), high.reshape(-1, 64), sc.astype(np.int8).view(np.uint8), d.view(np.uint8)], axis=1)


def divide_rounded(x, step, lowest, highest):
    """round(x / step), clipped; 0 where step is 0."""
    quotient = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    return np.clip(np.rint(quotient), lowest, highest)


ENCODERS = {gguf.GGMLQuantizationType.Q4_K: encode_q4_k, gguf.GGMLQuantizationType.Q6_K: encode_q6_k}


def encode(values, kind):
    """The bytes (or floats) of one matrix in the block format `kind`; the shape stays [rows, row bytes]."""
    if kind not in ENCODERS:
        return gguf.quantize(values, kind)
    if values.shape[-1] % SUPERBLOCK:
        raise ValueError(f"{kind.name} needs rows of a multiple of {SUPERBLOCK}, got {values.shape[-1]}")
    return ENCODERS[kind](values).reshape(values.shape[0], -1)


def gguf_name(name):
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    for ours, theirs in GLOBAL_NAMES.items():
        if theirs == name:
            return ours
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    module, kind = rest.rsplit(".", 1)
    ours = next(key for key, value in LAYER_NAMES.items() if value == module)
    return f"blk.{layer}.{ours}.{kind}"


def byte_characters():
    """The printable character that byte-level BPE shows for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


def tiny_vocabulary(size):
    """(tokens, token types, merges) of a byte-level BPE with three control tokens, 256 bytes and some merges."""
    words = ["Ġ t", "h e", "i n", "Ġ a", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "Ġ o", "e n", "Ġ c",
             "i t", "i s", "a n", "o r", "e s", "Ġ b", "e d", "Ġ f", "in g", "Ġ p", "o u", "Ġa n", "a l", "a r",
             "Ġt o"]
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = control + byte_characters() + [word.replace(" ", "") for word in words]
    if len(tokens) != size:
        raise ValueError(f"the tiny vocabulary has {len(tokens)} tokens, the model {size}")
    return tokens, [3] * len(control) + [1] * (size - len(control)), words


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def add_tokenizer(writer, architecture, size):
    tokens, types, merges = tiny_vocabulary(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if architecture == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_configuration(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    if config.rope_parameters["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope_parameters["rope_type"]))
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])


def rope_divisors(model):
    """What GGUF stores for llama3 rope: plain frequency / scaled frequency, for each pair."""
    config = model.config
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    plain = 1 / np.power(np.float32(config.rope_parameters["rope_theta"]), pairs)
    return (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)


def write_gguf(path, name, model, kind):
    """Matrices in block format `kind`, vectors in F32."""
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[kind]))
    add_configuration(writer, config)
    add_tokenizer(writer, architecture, config.vocab_size)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(model))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for theirs, tensor in model.state_dict().items():
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        module = theirs.split(".")[-2]
        if architecture == "llama" and module in heads:
            values = permute_rows(values, heads[module])
        values = np.ascontiguousarray(values)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(theirs), values)
        else:
            writer.add_tensor(gguf_name(theirs), encode(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FILE_TYPES = {
    gguf.GGMLQuantizationType.F32: "ALL_F32",
    gguf.GGMLQuantizationType.F16: "MOSTLY_F16",
    gguf.GGMLQuantizationType.BF16: "MOSTLY_BF16",
    gguf.GGMLQuantizationType.Q4_0: "MOSTLY_Q4_0",
    gguf.GGMLQuantizationType.Q4_1: "MOSTLY_Q4_1",
    gguf.GGMLQuantizationType.Q5_0: "MOSTLY_Q5_0",
    gguf.GGMLQuantizationType.Q5_1: "MOSTLY_Q5_1",
    gguf.GGMLQuantizationType.Q8_0: "MOSTLY_Q8_0",
    gguf.GGMLQuantizationType.Q4_K: "MOSTLY_Q4_K_M",
    gguf.GGMLQuantizationType.Q6_K: "MOSTLY_Q6_K",
}
