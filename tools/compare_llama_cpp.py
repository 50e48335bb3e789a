"""Compares the speed of csgl and llama.cpp on one GGUF file, run by run, on the same machine.

    python tools/compare_llama_cpp.py --model FILE.gguf [--csgl build/csgl] [--threads 2] [--repeats 5]
        [--input-len 512] [--output-len 128] [--json]

Needs numpy and llama-cpp-python, built from source for this machine (CMAKE_ARGS="-DGGML_NATIVE=ON", pip's
--no-binary llama-cpp-python); GCC before 13 miscompiles its AMX kernels unless amxtileintrin.h is given memory
clobbers. llama.cpp runs in this process with its defaults, n_batch = n_ubatch = the prompt's length; csgl runs as

    csgl bench_one_batch --model-path FILE.gguf --input-len 512 --output-len 128 --threads 2 --json

and prints one line with prefill_tokens_per_s and decode_tokens_per_s. Both decode one token a step after the prompt,
and each warms up once. A run of one is followed by a run of the other, so that a change in the machine's speed
meets both; the table has the medians and the median of the paired ratios (above 1: csgl is faster). Without --csgl
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
PAUSE_S = 0.3  # lets the worker threads of the run before go to sleep


@llama_cpp.llama_log_callback
def ignore_log(level, text, user_data):
    pass


class LlamaCpp:
    """One model and one context; measure() may be called any number of times."""

    def __init__(self, path, threads, input_len, output_len):
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


def summarize(results):
    """Medians for each engine and phase, and for each phase the median of the paired ratios csgl / llama.cpp."""
    summary = {name: {phase: statistics.median(run[phase] for run in runs) for phase in PHASES}
               for name, runs in results.items()}
    if "csgl" in results:
        summary["ratio"] = {
            phase: statistics.median(
                ours[phase] / theirs[phase] for ours, theirs in zip(results["csgl"], results["llama.cpp"]))
            for phase in PHASES}
    return summary


def print_table(results, summary):
    print(f"{'':12}{'prefill tok/s':>16}{'(min-max)':>20}{'decode tok/s':>16}{'(min-max)':>20}")
    for name, runs in results.items():
        line = f"{name:12}"
        for phase in PHASES:
            speeds = [run[phase] for run in runs]
            line += f"{summary[name][phase]:16.1f}{f'({min(speeds):.1f}-{max(speeds):.1f})':>20}"
        print(line)
    if "ratio" in summary:
        print(f"{'ratio':12}" + "".join(f"{summary['ratio'][phase]:16.3f}{'':20}" for phase in PHASES))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--csgl", help="the csgl binary; without it only llama.cpp is measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="print one JSON line with every run")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    shape = (arguments.threads, arguments.input_len, arguments.output_len)
    engines = {"llama.cpp": LlamaCpp(arguments.model, *shape)}
    if arguments.csgl:
        engines["csgl"] = Csgl(arguments.csgl, arguments.model, *shape)
    results = measure_in_turn(engines, arguments.repeats)
    summary = summarize(results)
    system = llama_cpp.llama_print_system_info().decode().strip(" |\n")
    if arguments.json:
        print(json.dumps({"llama_cpp_version": llama_cpp.__version__, "system": system, "load": load, "summary": summary,
                          "runs": results}))
        return
    print(f"llama-cpp-python {llama_cpp.__version__}: {system}")
    print(f"{arguments.threads} threads, {arguments.input_len} tokens of prompt, {arguments.output_len} decoded, "
          f"{arguments.repeats} repeats, medians; load average at the start {load:.2f}")
    print_table(results, summary)


if __name__ == "__main__":
    main()
