"""Measures what csgl takes, against what it plans, for a checkpoint that nobody has to download.

    python tools/measure_memory.py --csgl build/release/csgl --tokenizer FOLDER CONFIG [--layers 4] [--folder DIR] [--keep]
        [--options ...]
    python tools/measure_memory.py --csgl build/release/csgl MODEL.gguf [--options ...]

Of a config.json it needs numpy, torch and transformers (which know the names and shapes of a configuration's weights); with
--layers the model is cut to its first layers. Random weights in MLX's 4 bits (groups of 64; what 64 does not divide, and vectors,
as bf16) are written to DIR, served and removed. A model that is there is served as it is.

Asked for: --prompts prompts of --prompt tokens, --clients at once, drawn with penalties and logprobs, which need memory of their own, one of
them scored, for the logits of more rows, and the tokens of a text with more words than the tokenizer's cache has pages. Sampled while it loads and answers: the proportional set
size of all of csgl's processes together, of memory and of mapped files. The plan is the line that csgl prints.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import urllib.request

import numpy as np

GROUP = 64
MIB = 1 << 20
N_WORDS = 20000
NOISE = np.random.default_rng(1).integers(0, 256, 16 * MIB, dtype=np.uint8)


def cut(config, n_layers):
    config = json.loads(json.dumps(config))
    for level in (config, config.get("text_config", {})):
        if "num_hidden_layers" in level:
            level["num_hidden_layers"] = n_layers
        if level.get("layer_types"):
            level["layer_types"] = level["layer_types"][:n_layers]
    return config


def shapes(config):
    """Name and shape of every weight, in MLX's form: experts in three stacks [E, out, in]."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    text = config.get("text_config", config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**text))
    is_gpt_oss = text["model_type"] == "gpt_oss"
    for name, tensor in model.state_dict().items():
        shape = list(tensor.shape)
        stem, _, part = name.rpartition(".")
        if name == "lm_head.weight" and text.get("tie_word_embeddings"):
            continue
        if not stem.endswith("mlp.experts"):
            yield name, [shape[0], shape[2], 1] if name.endswith("conv1d.weight") else shape
            continue
        stem = stem if is_gpt_oss else stem.replace("experts", "switch_mlp")
        is_bias = part.endswith("_bias")
        if is_gpt_oss and not is_bias:
            shape = [shape[0], shape[2], shape[1]]
        for ours in ("gate_proj", "up_proj") if part.startswith("gate_up") else ("down_proj",):
            half = [shape[0], shape[1] // 2, *shape[2:]] if part.startswith("gate_up") else shape
            yield f"{stem}.{ours}.{'bias' if is_bias else 'weight'}", half


def tensors(config):
    """(name, dtype, shape, bytes of one value's kind): what is stored of each weight."""
    for name, shape in shapes(config):
        is_router = name.endswith((".mlp.gate.weight", ".mlp.router.weight", "shared_expert_gate.weight"))
        if len(shape) < 2 or shape[-1] % GROUP or is_router or "conv1d" in name or not name.endswith(".weight"):
            yield name, "BF16", shape
            continue
        yield name, "U32", [*shape[:-1], shape[-1] // 8]
        for levels in ("scales", "biases"):
            yield f"{name.removesuffix('weight')}{levels}", "BF16", [*shape[:-1], shape[-1] // GROUP]


def write_checkpoint(folder, config):
    """model.safetensors and config.json; returns the bytes of the weights."""
    header, end, sizes = {"__metadata__": {"format": "mlx"}}, 0, []
    for name, dtype, shape in tensors(config):
        size = int(np.prod(shape)) * (4 if dtype == "U32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        sizes.append((dtype, size))
        end += size
    text = json.dumps(header).encode()
    small = (0x3A80 | NOISE.view(np.uint16) & 0x803F).view(np.uint8)  # bf16 of about +-0.001
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for dtype, size in sizes:
            source = NOISE if dtype == "U32" else small
            for at in range(0, size, len(source)):
                file.write(memoryview(source)[:min(len(source), size - at)])
    config = {**config, "quantization": {"group_size": GROUP, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    return end


def copy_tokenizer(source, folder):
    for path in source.glob("tokenizer*.json"):
        shutil.copy(path, folder)


def tree(pid):
    """The process and all below it."""
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            pids += tree(int(child))
    return pids


def proportional(pid):
    """(all, of mapped files) in bytes; zeros once the process is gone."""
    try:
        rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    values = dict(re.findall(r"^(Pss\w*): +(\d+) kB", rollup, re.MULTILINE))
    return int(values.get("Pss", 0)) * 1024, int(values.get("Pss_File", 0)) * 1024


def role_of(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    return words[words.index("--role") + 1] if "--role" in words else "supervisor"


class Peak:
    """Samples the processes; `phase` names what is going on."""

    def __init__(self, pid):
        self.pid, self.phase, self.most, self.is_over = pid, "load", {}, False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.is_over:
            try:
                parts = [(role_of(pid), *proportional(pid)) for pid in tree(self.pid)]
            except (FileNotFoundError, ProcessLookupError):
                parts = []
            total = (sum(part[1] for part in parts), sum(part[2] for part in parts), parts)
            if total > self.most.get(self.phase, (0,)):
                self.most[self.phase] = total
            time.sleep(0.01)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def many_words():
    letters = np.random.default_rng(2).integers(ord("a"), ord("z") + 1, (N_WORDS, 6), dtype=np.uint8)
    return " ".join(bytes(word).decode() for word in letters)


def ask(url, arguments, seed):
    """The ids of all prompts lie evenly over the vocabulary, so that all of the embedding's pages come to be in memory."""
    n = arguments.prompts * arguments.prompt
    ids = [(i * arguments.prompts + seed) * (arguments.vocabulary - 1) // n for i in range(arguments.prompt)]
    return post(url + "/v1/completions", {"prompt": ids, "max_tokens": arguments.answer, "ignore_eos": True, "seed": seed, "logprobs": 20,
                                          "temperature": 1, "top_p": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.1,
                                          "echo": seed == 0})


def serve(arguments, model):
    """(plan in bytes, weights in bytes, peaks by phase)"""
    process = subprocess.Popen([arguments.csgl, "serve", "--model-path", model, "--port", "0", *arguments.options],
                               stderr=subprocess.PIPE, text=True)
    peak = Peak(process.pid)
    plan = url = None
    for line in process.stderr:
        print("   ", line, end="")
        found = re.search(r"memory: (\d+) MiB of .*?weights (\d+)", line)
        plan = plan or (found and [int(found[1]) * MIB, int(found[2]) * MIB])
        url = re.search(r"ready on (http://\S+)", line)
        if url:
            break
    threading.Thread(target=process.stderr.read, daemon=True).start()
    if url:
        peak.phase = "answers"
        with concurrent.futures.ThreadPoolExecutor(arguments.clients) as pool:
            pool.submit(post, url[1] + "/tokenize", {"prompt": many_words()}).result()
            list(pool.map(lambda seed: ask(url[1], arguments, seed), range(arguments.prompts)))
    peak.is_over = True
    peak.thread.join()
    process.terminate()
    process.wait()
    return plan, peak.most


def measure_shape(arguments):
    config = json.loads(arguments.model.read_text())
    if arguments.layers:
        config = cut(config, arguments.layers)
    arguments.vocabulary = config.get("text_config", config)["vocab_size"]
    folder = arguments.folder or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.safetensors").exists():
        print(f"{write_checkpoint(folder, config) / MIB:.0f} MiB of weights in {folder}")
    copy_tokenizer(arguments.tokenizer, folder)
    try:
        return serve(arguments, folder)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a config.json, or a model that is there")
    parser.add_argument("--csgl", required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a folder with tokenizer.json, for a config.json")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--folder", type=pathlib.Path, help="where to write the checkpoint, for once")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=4, help="how many")
    parser.add_argument("--vocabulary", type=int, default=32000, help="ids of prompts are below; of a config.json all")
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="of csgl serve, all that follow")
    arguments = parser.parse_args()
    if arguments.model.name.endswith(".json"):
        plan, most = measure_shape(arguments)
    else:
        plan, most = serve(arguments, arguments.model)
    if not plan:
        raise SystemExit("csgl made no plan")
    for phase, (total, files, parts) in most.items():
        print(f"{phase:8} at most {total / MIB:6.0f} MiB ({100 * total / plan[0] - 100:+.1f} % of the plan, {plan[0] / MIB:.0f}), "
              f"mapped files {files / MIB:.0f}; {', '.join(f'{role} {part / MIB:.1f}' for role, part, _ in parts)}")


if __name__ == "__main__":
    main()
