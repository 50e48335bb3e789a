"""Compares the speed of csgl and llama.cpp on one GGUF file, run by run, on the same machine.

    python tools/compare_llama_cpp.py --model FILE.gguf [--csgl build/csgl] [--threads 2] [--repeats 5]
        [--input-len 512] [--output-len 128] [--flash-attention on off] [--json]

Needs numpy and llama-cpp-python, built from source for this machine (CMAKE_ARGS="-DGGML_NATIVE=ON", pip's
--no-binary llama-cpp-python); GCC before 13 miscompiles its AMX kernels unless amxtileintrin.h is given memory
clobbers. llama.cpp runs in this process with its defaults, n_batch = n_ubatch = the prompt's length, once with and once
without flash attention (on CPUs the one is faster in prefill, the other in decode); csgl runs as

    csgl bench_one_batch --model-path FILE.gguf --input-len 512 --output-len 128 --threads 2 --json

and prints one line with prefill_tokens_per_s and decode_tokens_per_s. Both decode one token a step after the prompt,
and each warms up once. A run of one is followed by a run of the other, so that a change in the machine's speed
meets both; the table has the medians and the medians of the paired ratios (above 1: csgl is faster). Without --csgl
only llama.cpp is measured. Both spin at barriers: on a machine with other work the numbers mean nothing.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import time

import llama_cpp
import numpy as np

PHASES = ("prefill_tokens_per_s", "decode_tokens_per_s")
FLASH_ATTENTION = {"on": 1, "off": 0, "auto": -1}  # enum llama_flash_attn_type
PAUSE_S = 0.3  # lets the worker threads of the run before go to sleep


@llama_cpp.llama_log_callback
def ignore_log(level, text, user_data):
    pass


class LlamaCpp:
    """One model and one context; measure() may be called any number of times."""

    def __init__(self, path, threads, input_len, output_len, flash_attention):
        llama_cpp.llama_log_set(ignore_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_parameters = llama_cpp.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = -(-(input_len + output_len) // 256) * 256
        parameters.n_batch = parameters.n_ubatch = input_len
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = FLASH_ATTENTION[flash_attention]
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {parameters.n_ctx} tokens")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.input_len, self.output_len = input_len, output_len
        self.batch = llama_cpp.llama_batch_init(input_len, 0, 1)

    def decode(self, tokens, first_position):
        """One step over `tokens`; returns the greedy choice after the last of them."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = first_position + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = i == len(tokens) - 1
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit(f"llama_decode of {len(tokens)} tokens returned {status}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())

    def measure(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        prompt = np.random.default_rng(0).integers(100, self.vocab, self.input_len).tolist()
        start = time.perf_counter()
        token = self.decode(prompt, 0)
        middle = time.perf_counter()
        for i in range(self.output_len):
            token = self.decode([token], self.input_len + i)
        end = time.perf_counter()
        return dict(zip(PHASES, (self.input_len / (middle - start), self.output_len / (end - middle))))


class Csgl:
    """Runs the benchmark command; measure() starts a process each time."""

    def __init__(self, binary, path, threads, input_len, output_len):
        self.command = [binary, "bench_one_batch", "--model-path", path, "--input-len", str(input_len),
                        "--output-len", str(output_len), "--threads", str(threads), "--json"]

    def measure(self):
        done = subprocess.run(self.command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(self.command)} ended with {done.returncode}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise SystemExit(f"{' '.join(self.command)} printed no JSON line")
        result = json.loads(lines[-1])
        return {phase: float(result[phase]) for phase in PHASES}


def measure_in_turn(engines, repeats):
    """{name: [one result a repeat]}; the order alternates from repeat to repeat."""
    results = {name: [] for name in engines}
    for engine in engines.values():
        engine.measure()
    for i in range(repeats):
        names = list(engines) if i % 2 == 0 else list(reversed(engines))
        for name in names:
            time.sleep(PAUSE_S)
            results[name].append(engines[name].measure())
    return results


def medians(runs):
    return {phase: statistics.median(run[phase] for run in runs) for phase in PHASES}


def paired_ratios(results):
    """For each llama.cpp engine the ratios csgl / llama.cpp, run by run; empty when csgl was not measured."""
    if "csgl" not in results:
        return {}
    return {name: [{phase: ours[phase] / theirs[phase] for phase in PHASES}
                   for ours, theirs in zip(results["csgl"], runs)]
            for name, runs in results.items() if name != "csgl"}


def print_table(results):
    print(f"{'':30}{'prefill tok/s':>16}{'(min-max)':>20}{'decode tok/s':>16}{'(min-max)':>20}")
    for name, runs in results.items():
        print_row(name, runs, 1)
    for name, runs in paired_ratios(results).items():
        print_row(f"csgl / {name}", runs, 3)


def print_row(name, runs, digits):
    line = f"{name:30}"
    for phase, median in medians(runs).items():
        values = [run[phase] for run in runs]
        extent = f"({min(values):.{digits}f}-{max(values):.{digits}f})"
        line += f"{median:16.{digits}f}{extent:>20}"
    print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--csgl", help="the csgl binary; without it only llama.cpp is measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--flash-attention", nargs="+", choices=FLASH_ATTENTION, default=["on", "off"],
                        help="settings of llama.cpp to measure, each by itself")
    parser.add_argument("--json", action="store_true", help="print one JSON line with every run")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    shape = (arguments.threads, arguments.input_len, arguments.output_len)
    engines = {f"llama.cpp, flash {setting}": LlamaCpp(arguments.model, *shape, setting)
               for setting in arguments.flash_attention}
    if arguments.csgl:
        engines["csgl"] = Csgl(arguments.csgl, arguments.model, *shape)
    results = measure_in_turn(engines, arguments.repeats)
    system = llama_cpp.llama_print_system_info().decode().strip(" |\n")
    if arguments.json:
        print(json.dumps({
            "llama_cpp_version": llama_cpp.__version__, "system": system, "load": load, "runs": results,
            "medians": {name: medians(runs) for name, runs in results.items()},
            "ratios": {name: medians(runs) for name, runs in paired_ratios(results).items()}}))
        return
    print(f"llama-cpp-python {llama_cpp.__version__}: {system}")
    print(f"{arguments.threads} threads, {arguments.input_len} tokens of prompt, {arguments.output_len} decoded, "
          f"{arguments.repeats} repeats, medians; load average at the start {load:.2f}")
    print_table(results)


if __name__ == "__main__":
    main()
