"""Writes a transformers llama, qwen, Qwen3.5 or Hunyuan model, a mixture or a hybrid of those as a GGUF file, with
block encoders for Q2_K to Q6_K and IQ4_NL.

The `gguf` package encodes F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4 itself; for the others it only
decodes, so plain encoders stand here. They are valid, not optimal: the judge of a test is what the file
dequantizes to. This is a module of make_tiny_models.py and has no command of its own.
"""

import gguf
import numpy as np

import gguf_hunyuan
import gguf_hybrids
from gguf_reference import EXPERT_NAMES, FUSED_NAME, GLOBAL_NAMES, layer_names, permute_rows

SUPERBLOCK = 256


def affine_codes(values, group, code_max, level_max):
    """(d, dmin, sc, m, q) of w = d * sc * q - dmin * m for each `group` values of a superblock."""
    x = values.reshape(-1, SUPERBLOCK // group, group).astype(np.float32)
    low = np.minimum(x.min(axis=2), 0)
    scale = (x.max(axis=2).clip(min=0) - low) / code_max
    d = (scale.max(axis=1, keepdims=True) / level_max).astype(np.float16)
    dmin = (-low.min(axis=1, keepdims=True) / level_max).astype(np.float16)
    sc = divide_rounded(scale, d.astype(np.float32), 0, level_max)
    m = divide_rounded(-low, dmin.astype(np.float32), 0, level_max)
    step = (d.astype(np.float32) * sc)[:, :, None]
    offset = (dmin.astype(np.float32) * m)[:, :, None]
    q = divide_rounded(x + offset, step, 0, code_max).astype(np.uint8)
    return d, dmin, sc.astype(np.uint8), m.astype(np.uint8), q


def symmetric_codes(values, offset, level_max):
    """(d, sc, q) of w = d * sc * (q - offset) for each 16 values; sc is signed."""
    x = values.reshape(-1, 16, 16).astype(np.float32)
    at_peak = np.take_along_axis(x, np.abs(x).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scale = at_peak / -offset  # the largest value becomes code 0, that is -offset
    d = (np.abs(scale).max(axis=1, keepdims=True) / level_max).astype(np.float16)
    sc = divide_rounded(scale, d.astype(np.float32), -level_max, level_max)
    step = (d.astype(np.float32) * sc)[:, :, None]
    q = (divide_rounded(x, step, -offset, offset - 1) + offset).astype(np.uint8)
    return d, sc.astype(np.int8), q


def pack_pairs(q):
    """The lowest two bits of 256 codes in 64 bytes: each half of 128 is four runs of 32."""
    runs = (q.reshape(-1, 2, 4, 32) & 3) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return np.bitwise_or.reduce(runs, axis=2).reshape(-1, 64)


def pack_bits(bits):
    """256 bits in 32 bytes: bit r of byte j is that of value 32 r + j."""
    return np.packbits(bits.reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)


def encode_q2_k(values):
    """w = d * sc * q - dmin * m for each 16 values; sc and m are the nibbles of a byte."""
    d, dmin, sc, m, q = affine_codes(values, 16, 3, 15)
    return np.concatenate([sc | m << 4, pack_pairs(q), d.view(np.uint8), dmin.view(np.uint8)], axis=1)


def encode_q3_k(values):
    """w = d * sc * (q - 4) for each 16 values; sc has six bits, 32 above its value."""
    d, sc, q = symmetric_codes(values, 4, 31)
    sc = (sc + 32).astype(np.uint8)
    low = sc[:, :8] & 15 | (sc[:, 8:] & 15) << 4
    high = np.bitwise_or.reduce(sc.reshape(-1, 4, 4) >> 4 << np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1), axis=1)
    return np.concatenate([pack_bits(q >> 2), pack_pairs(q), low, high, d.view(np.uint8)], axis=1)


def encode_q4_k(values):
    """w = d * sc * q - dmin * m for each 32 values; 8 six-bit pairs (sc, m) a superblock."""
    d, dmin, sc, m, q = affine_codes(values, 32, 15, 63)
    nibbles = q[:, 0::2] | q[:, 1::2] << 4
    return np.concatenate(
        [d.view(np.uint8), dmin.view(np.uint8), pack_six_bit_pairs(sc, m), nibbles.reshape(-1, 128)], axis=1)


def encode_q5_k(values):
    """As Q4_K, with the fifth bits before the nibbles."""
    d, dmin, sc, m, q = affine_codes(values, 32, 31, 63)
    nibbles = q[:, 0::2] & 15 | (q[:, 1::2] & 15) << 4
    return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), pack_six_bit_pairs(sc, m), pack_bits(q >> 4),
                           nibbles.reshape(-1, 128)], axis=1)


def encode_iq4_nl(values):
    """w = d * table[index] for each 32 values; the largest becomes -127 d."""
    x = values.reshape(-1, 32).astype(np.float32)
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    d = (np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1) / -127).astype(np.float16)
    q = np.abs(d.astype(np.float32)[:, :, None] * table - x[:, :, None]).argmin(axis=2).astype(np.uint8)
    return np.concatenate([d.view(np.uint8), q[:, :16] | q[:, 16:] << 4], axis=1)


def pack_six_bit_pairs(sc, m):
    """Eight scales and eight minima of six bits in twelve bytes."""
    return np.concatenate([
        sc[:, :4] | (sc[:, 4:] >> 4) << 6,
        m[:, :4] | (m[:, 4:] >> 4) << 6,
        (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
    ], axis=1)


def encode_q6_k(values):
    """w = d * sc * (q - 32) for each 16 values; sc is a signed byte."""
    d, sc, q = symmetric_codes(values, 32, 127)
    q = q.reshape(-1, 2, 4, 32)
    low = q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4
    high = q[:, :, 0] >> 4 | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    return np.concatenate(
        [low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8), d.view(np.uint8)], axis=1)


def divide_rounded(x, step, lowest, highest):
    """round(x / step), clipped; 0 where step is 0."""
    quotient = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    return np.clip(np.rint(quotient), lowest, highest)


KINDS = gguf.GGMLQuantizationType
ENCODERS = {KINDS.Q2_K: encode_q2_k, KINDS.Q3_K: encode_q3_k, KINDS.Q4_K: encode_q4_k, KINDS.Q5_K: encode_q5_k,
            KINDS.Q6_K: encode_q6_k, KINDS.IQ4_NL: encode_iq4_nl}
# What llama.cpp stores instead where rows are not whole superblocks.
FALLBACKS = {KINDS.Q2_K: KINDS.IQ4_NL, KINDS.Q3_K: KINDS.IQ4_NL, KINDS.Q4_K: KINDS.Q5_0, KINDS.Q5_K: KINDS.Q5_1,
             KINDS.Q6_K: KINDS.Q8_0}


def stored_kind(values, kind):
    """The block format in which a matrix of a model in format `kind` is stored."""
    return FALLBACKS[kind] if kind in FALLBACKS and values.shape[-1] % SUPERBLOCK else kind


def encode(values, kind):
    """The bytes (or floats) of one matrix in the block format `kind`; the shape stays [rows, row bytes]."""
    if kind not in ENCODERS:
        return gguf.quantize(values, kind)
    return ENCODERS[kind](values).reshape(*values.shape[:-1], -1)


def architecture_of(config):
    """What GGUF calls a model type."""
    theirs = {theirs: ours for ours, theirs in (gguf_hybrids.ARCHITECTURES | gguf_hunyuan.ARCHITECTURES).items()}
    return theirs.get(config.model_type, config.model_type.replace("_moe", "moe"))


def gguf_name(name, architecture):
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    for ours, theirs in GLOBAL_NAMES.items():
        if theirs == name:
            return ours
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    module, kind = rest.rsplit(".", 1)
    ours = next(key for key, value in layer_names(architecture).items() if value == module)
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
    is_hunyuan = config.model_type in gguf_hunyuan.ARCHITECTURES.values()
    writer.add_rope_freq_base(gguf_hunyuan.raised_base(config) if is_hunyuan else config.rope_parameters["rope_theta"])
    if is_hunyuan:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1)))
    if config.rope_parameters["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope_parameters["rope_type"]))
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])


def add_mixture(writer, config):
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def tensors_of(model, has_fused_experts):
    """(GGUF name, values) of all tensors: stacks of gate and up rows in two or one, the shared expert's gate as a vector."""
    architecture = architecture_of(model.config)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        module = name.split(".")[-2]
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if model.config.model_type in gguf_hybrids.ARCHITECTURES.values():
            if module == "in_proj_qkvz":
                parts = gguf_hybrids.split_qkvz(values, model.config)
                yield from ((f"blk.{name.split('.')[2]}.{ours}", rows) for ours, rows in parts)
                continue
            ours, values = gguf_hybrids.to_gguf(name, values, model.config)
            if ours:
                yield ours, values
                continue
        if module == "experts":
            stacks = [(FUSED_NAME if name.endswith("gate_up_proj") else EXPERT_NAMES[2], values)]
            if name.endswith("gate_up_proj") and not has_fused_experts:
                stacks = zip(EXPERT_NAMES, np.split(values, 2, axis=1))
            for ours, stack in stacks:
                yield f"blk.{name.split('.')[2]}.{ours}.weight", stack
            continue
        if module == "shared_expert_gate":
            values = values[0]
        if model.config.model_type == "llama" and module in heads:
            values = permute_rows(values, heads[module])
        yield gguf_name(name, architecture), values


def rope_divisors(model):
    """What GGUF stores for llama3 rope: plain frequency / scaled frequency, for each pair."""
    config = model.config
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    plain = 1 / np.power(np.float32(config.rope_parameters["rope_theta"]), pairs)
    return (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)


def write_gguf(path, name, model, kind, split_max_tensors=0, has_fused_experts=False):
    """Matrices in block format `kind`, vectors in F32. With a maximum, the model becomes several files of at most so
    many tensors: path.stem + -00001-of-0000N.gguf. Fused experts are what llama.cpp's converter writes when it is asked
    to: gate and up in one stack."""
    config = model.config
    architecture = architecture_of(config)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[kind]))
    add_configuration(writer, config)
    if architecture in gguf_hybrids.ARCHITECTURES:
        gguf_hybrids.add_configuration(writer, config)
    if architecture == "hunyuan-moe":
        gguf_hunyuan.add_mixture(writer, config)
    elif hasattr(config, "num_experts"):
        add_mixture(writer, config)
    add_tokenizer(writer, architecture, config.vocab_size)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(model))
    for theirs, values in tensors_of(model, has_fused_experts):
        values = np.ascontiguousarray(values)
        if values.ndim == 1 or "ffn_gate_inp" in theirs or "ssm_conv1d" in theirs:
            writer.add_tensor(theirs, values)
        else:
            stored = stored_kind(values, kind)
            writer.add_tensor(theirs, encode(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


FILE_TYPES = {
    KINDS.F32: "ALL_F32",
    KINDS.F16: "MOSTLY_F16",
    KINDS.BF16: "MOSTLY_BF16",
    KINDS.Q4_0: "MOSTLY_Q4_0",
    KINDS.Q4_1: "MOSTLY_Q4_1",
    KINDS.Q5_0: "MOSTLY_Q5_0",
    KINDS.Q5_1: "MOSTLY_Q5_1",
    KINDS.Q8_0: "MOSTLY_Q8_0",
    KINDS.Q2_K: "MOSTLY_Q2_K",
    KINDS.Q3_K: "MOSTLY_Q3_K_M",
    KINDS.Q4_K: "MOSTLY_Q4_K_M",
    KINDS.Q5_K: "MOSTLY_Q5_K_M",
    KINDS.Q6_K: "MOSTLY_Q6_K",
    KINDS.IQ4_NL: "MOSTLY_IQ4_NL",
    KINDS.MXFP4: "MOSTLY_MXFP4_MOE",
}
