"""Writes a GGUF file of random weights in the shape of a config.json, for comparisons of speed with other engines.

    python tools/make_random_gguf.py --config DIR --tokenizer DIR --type Q4_0 --output FILE.gguf

--config is a folder with the config.json of a llama, qwen2 or qwen3 model (dense or, for qwen3_moe, with experts),
--tokenizer one with a tokenizer.json of byte-level BPE. Matrices are normal with a standard deviation of 0.02, vectors
1; the text is noise, the work is that of the real model. Needs transformers (its configurations), gguf, numpy.
"""

import argparse
import json
import pathlib

import gguf
import numpy as np
from transformers import AutoConfig

from gguf_writing import CHAT_TEMPLATE, FILE_TYPES, add_configuration, add_mixture, encode, stored_kind

STANDARD_DEVIATION = 0.02
PRE_TOKENIZERS = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2", "qwen3moe": "qwen2"}
NORMAL, UNUSED, CONTROL = 1, 5, 3


def add_tokenizer(writer, architecture, folder, size):
    """The vocabulary of tokenizer.json, filled up to the rows of the embedding."""
    with open(folder / "tokenizer.json", encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for text, token in tokenizer["model"]["vocab"].items():
        tokens[token], types[token] = text, NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    end = next(added["id"] for added in tokenizer["added_tokens"] if added["special"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS[architecture])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def shapes_of(config, architecture):
    """(GGUF name, shape) of every tensor; a shape of one number is a norm."""
    hidden, head = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    yield "token_embd", (config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield "output", (config.vocab_size, hidden)
    yield "output_norm", (hidden,)
    for i in range(config.num_hidden_layers):
        layer = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (q, hidden), "attn_k": (kv, hidden),
                 "attn_v": (kv, hidden), "attn_output": (hidden, q)}
        if architecture.startswith("qwen3"):
            layer |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
        if architecture.endswith("moe"):
            n, middle = config.num_experts, config.moe_intermediate_size
            layer |= {"ffn_gate_inp": (n, hidden), "ffn_gate_exps": (n, middle, hidden),
                      "ffn_up_exps": (n, middle, hidden), "ffn_down_exps": (n, hidden, middle)}
        else:
            middle = config.intermediate_size
            layer |= {"ffn_gate": (middle, hidden), "ffn_up": (middle, hidden), "ffn_down": (hidden, middle)}
        for name, shape in layer.items():
            yield f"blk.{i}.{name}", shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--type", default="Q4_0", choices=[kind.name for kind in FILE_TYPES])
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    config = AutoConfig.from_pretrained(options.config)
    architecture = config.model_type.replace("_moe", "moe")
    kind = gguf.GGMLQuantizationType[options.type]
    writer = gguf.GGUFWriter(options.output, architecture)
    writer.add_type("model")
    writer.add_name(f"random {config.model_type}")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[kind]))
    add_configuration(writer, config)
    if architecture.endswith("moe"):
        add_mixture(writer, config)
    add_tokenizer(writer, architecture, options.tokenizer, config.vocab_size)
    random = np.random.default_rng(0)
    for name, shape in shapes_of(config, architecture):
        if len(shape) == 1:
            writer.add_tensor(name + ".weight", np.ones(shape, np.float32))
            continue
        values = random.standard_normal(shape, np.float32) * np.float32(STANDARD_DEVIATION)
        if name.endswith("ffn_gate_inp"):
            writer.add_tensor(name + ".weight", values)
            continue
        stored = stored_kind(values, kind)
        writer.add_tensor(name + ".weight", encode(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
