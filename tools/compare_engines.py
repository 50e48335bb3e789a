"""Compares the speed of csgl with llama.cpp on one GGUF file: interleaved runs on one machine, medians and ratios.

    python tools/compare_engines.py --model FILE.gguf --csgl build/release/csgl [--threads 2] [--repeats 5]
        [--modes prefill decode context rows sequences serving load memory]
        [--llama-bench NAME=PATH ...] [--llama-server NAME=PATH ...] [--json]

Opponents: llama-cpp-python, if it can be imported (build it from source for this machine: CMAKE_ARGS=-DGGML_NATIVE=ON,
pip's --no-binary llama-cpp-python; GCC before 13 miscompiles its AMX kernels unless amxtileintrin.h is given memory
clobbers), once with and once without flash attention (on CPUs the one is faster in prefill, the other in decode); and
the llama-bench and llama-server binaries of llama.cpp or ik_llama.cpp that are given by path.

  prefill    tokens/s of a prompt of --input-len tokens
  decode     tokens/s of --output-len single tokens after --input-len others
  context    the same after --context-len tokens
  rows       tokens/s of forward steps of --rows tokens of one sequence, on an empty cache
  sequences  tokens/s, all together, of --sequences sequences that decode at once
  serving    output tokens/s of --clients clients at once over HTTP, by csgl bench_serving
  load       seconds from the start of the process to the first token of a short prompt
  memory     MiB: proportional set size, summed over the processes of a server after it has answered

Engines that cannot do a mode are left out of it. Every engine warms up once; then the engines take turns, and the order
alternates from repeat to repeat, so that a change in the machine's speed meets all. The table has medians, and medians
of the paired ratios, csgl over opponent for rates and opponent over csgl for seconds and MiB: above 1 csgl is better.
Engines spin at barriers: on a machine with other work the numbers mean nothing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

MODES = {"prefill": "tok/s", "decode": "tok/s", "context": "tok/s", "rows": "tok/s", "sequences": "tok/s",
         "serving": "tok/s", "load": "s", "memory": "MiB"}
PAUSE_S = 0.3  # lets the worker threads of the run before go to sleep
START_S = 300
SHORT_PROMPT = "The sea is"


def run_json(command):
    """The JSON objects of a command's standard output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def seconds_to_first_byte(command):
    """From starting the process until it writes something to standard output; then it is ended."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        byte = os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - start
        process.kill()
    if not byte:
        raise SystemExit(f"{' '.join(map(str, command))} wrote nothing")
    return seconds


def children_of(pid):
    found = [pid]
    for process in found:
        for task in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def proportional_mib(pid):
    """Pages shared by several processes count for each by its part (Linux)."""
    total = 0
    for process in children_of(pid):
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        total += int(re.search(r"^Pss:\s+(\d+) kB", text, re.M).group(1))
    return total / 1024


class Server:
    """An OpenAI-compatible server of one run: started, used, stopped."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise SystemExit(f"{' '.join(map(str, command))} did not start")
            time.sleep(0.05)

    def is_ready(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(self.url + "/health", timeout=2).status == 200
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class HttpModes:
    """What is measured through a server: `serve(port)` is its command line."""

    def serving(self):
        port = free_port()
        with Server(self.serve(port), port) as server:
            o = self.options
            command = [o.csgl, "bench_serving", "--base-url", server.url, "--num-prompts", 3 * o.clients,
                       "--max-concurrency", o.clients, "--random-input-len", o.input_len, "--random-output-len",
                       o.output_len, "--vocab-size", 1000, "--json"]
            result = run_json(list(map(str, command)))[-1]
        if result["failed"]:
            raise SystemExit(f"{self.name}: {result['failed']} requests failed")
        return result["output_throughput"]

    def memory(self):
        port = free_port()
        with Server(self.serve(port), port) as server:
            body = json.dumps({"prompt": SHORT_PROMPT, "max_tokens": 16, "model": "any"}).encode()
            with contextlib.suppress(OSError):  # the name does not matter to llama-server; csgl's is asked for
                names = json.load(urllib.request.urlopen(server.url + "/v1/models"))
                body = json.dumps({"prompt": SHORT_PROMPT, "max_tokens": 16,
                                   "model": names["data"][0]["id"]}).encode()
            request = urllib.request.Request(server.url + "/v1/completions", body,
                                             {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=START_S).read()
            return proportional_mib(server.process.pid)


class Csgl(HttpModes):
    name = "csgl"

    def __init__(self, options):
        self.options = options
        self.common = ["--threads", str(options.threads)]
        self.model = ["--model-path", options.model]

    def one_batch(self, key, batch_size, input_len, output_len):
        command = [self.options.csgl, "bench_one_batch", *self.model, *self.common, "--batch-size", batch_size,
                   "--input-len", input_len, "--output-len", output_len, "--runs", 1, "--json"]
        return run_json(list(map(str, command)))[-1][key]

    def prefill(self):
        return self.one_batch("prefill_tokens_per_s", 1, self.options.input_len, 1)

    def decode(self):
        return self.one_batch("decode_tokens_per_s", 1, self.options.input_len, self.options.output_len)

    def context(self):
        return self.one_batch("decode_tokens_per_s", 1, self.options.context_len, self.options.output_len)

    def rows(self):
        return self.one_batch("prefill_tokens_per_s", 1, self.options.rows, 1)

    def sequences(self):
        return self.one_batch("decode_tokens_per_s", self.options.sequences, 16, self.options.output_len)

    def load(self):
        return seconds_to_first_byte([self.options.csgl, "generate", *self.model, *self.common, "--quiet",
                                      "--max-tokens", "4", SHORT_PROMPT])

    def serve(self, port):
        return [self.options.csgl, "serve", *self.model, *self.common, "--port", str(port), "--context-length", "2048",
                "--max-running-requests", str(self.options.clients), "--log-level", "error"]


class LlamaBench:
    """llama-bench of llama.cpp or of a fork, one test a run."""

    def __init__(self, options, name, path):
        self.options, self.name, self.path = options, name, path

    def bench(self, *arguments):
        command = [self.path, "-m", self.options.model, "-t", str(self.options.threads), "-ngl", "0", "-r", "1", "-o",
                   "json", *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout[done.stdout.index("["):])[-1]["avg_ts"]

    def prefill(self):
        length = self.options.input_len
        return self.bench("-p", length, "-n", 0, "-b", length, "-ub", length)

    def decode(self):
        return self.bench("-p", 0, "-n", self.options.output_len, "-d", self.options.input_len)

    def context(self):
        return self.bench("-p", 0, "-n", self.options.output_len, "-d", self.options.context_len)

    def rows(self):
        return self.bench("-p", self.options.rows, "-n", 0)


class LlamaServer(HttpModes):
    """llama-server of llama.cpp or of a fork."""

    def __init__(self, options, name, path):
        self.options, self.name, self.path = options, name, path

    def serve(self, port):
        o = self.options
        return [self.path, "-m", o.model, "-t", str(o.threads), "-ngl", "0", "--port", str(port), "-np",
                str(o.clients), "-c", str(2048 * o.clients)]


class LlamaCpp:
    """llama-cpp-python in this process: one model, a context for each mode."""

    def __init__(self, options, flash_attention):
        import ctypes
        import llama_cpp
        import numpy
        self.api, self.numpy, self.options = llama_cpp, numpy, options
        self.name = f"llama.cpp, flash {'on' if flash_attention else 'off'}"
        self.flash_attention = flash_attention
        self.ignore_log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.ignore_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(options.model.encode(), parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {options.model}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    @contextlib.contextmanager
    def open(self, n_context, n_batch, n_sequences=1):
        """A context and a batch of `n_batch` tokens; the step function of both."""
        api = self.api
        parameters = api.llama_context_default_params()
        parameters.n_ctx = n_sequences * (-(-n_context // 256) * 256)
        parameters.n_batch = parameters.n_ubatch = n_batch
        parameters.n_seq_max = n_sequences
        parameters.n_threads = parameters.n_threads_batch = self.options.threads
        parameters.flash_attn_type = int(self.flash_attention)  # enum llama_flash_attn_type
        context = api.llama_init_from_model(self.model, parameters)
        if not context:
            raise SystemExit(f"llama.cpp cannot make a context of {parameters.n_ctx} tokens")
        batch = api.llama_batch_init(n_batch, 0, 1)

        def step(tokens, position, sequences=None):
            """Tokens of one sequence from `position` on, or one of each of `sequences` there; waits for the logits of
            the last."""
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = position if sequences else position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequences[i] if sequences else 0
                batch.logits[i] = bool(sequences) or i == len(tokens) - 1
            status = api.llama_decode(context, batch)
            if status != 0:
                raise SystemExit(f"llama_decode of {len(tokens)} tokens returned {status}")
            logits = api.llama_get_logits_ith(context, -1)
            return int(self.numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax())

        try:
            yield context, step
        finally:
            api.llama_batch_free(batch)
            api.llama_free(context)

    def tokens(self, n):
        return self.numpy.random.default_rng(0).integers(100, self.vocab, n).tolist()

    def clear(self, context):
        self.api.llama_memory_clear(self.api.llama_get_memory(context), True)

    def feed(self, n):
        """Tokens a second of one step of n tokens; the step before warms up."""
        with self.open(n, n) as (context, step):
            step(self.tokens(n), 0)
            self.clear(context)
            start = time.perf_counter()
            step(self.tokens(n), 0)
            return n / (time.perf_counter() - start)

    def after(self, length):
        """Tokens a second of single tokens after a prompt of this length."""
        n = self.options.output_len
        with self.open(length + n + 1, length) as (_, step):
            token = step(self.tokens(length), 0)
            token = step([token], length)
            start = time.perf_counter()
            for i in range(n):
                token = step([token], length + 1 + i)
            return n / (time.perf_counter() - start)

    def prefill(self):
        return self.feed(self.options.input_len)

    def rows(self):
        return self.feed(self.options.rows)

    def decode(self):
        return self.after(self.options.input_len)

    def context(self):
        return self.after(self.options.context_len)

    def sequences(self):
        n, steps = self.options.sequences, self.options.output_len
        with self.open(steps + 32, max(n, 16), n) as (_, step):
            ids = list(range(n))
            for position in range(16):
                step(self.tokens(n), position, ids)
            start = time.perf_counter()
            for i in range(steps):
                step(self.tokens(n), 16 + i, ids)
            return n * steps / (time.perf_counter() - start)

    def load(self):
        code = ("import sys, llama_cpp; m = llama_cpp.Llama(sys.argv[1], n_threads=int(sys.argv[2]), verbose=False);"
                "print(next(m.create_completion(sys.argv[3], max_tokens=4, stream=True)), flush=True)")
        return seconds_to_first_byte([sys.executable, "-c", code, self.options.model, str(self.options.threads),
                                      SHORT_PROMPT])


def opponents(options):
    found = []
    with contextlib.suppress(ImportError):
        found += [LlamaCpp(options, True), LlamaCpp(options, False)]
    for kind, given in ((LlamaBench, options.llama_bench), (LlamaServer, options.llama_server)):
        for text in given:
            name, _, path = text.rpartition("=")
            found.append(kind(options, name or pathlib.Path(path).name, path))
    return found


def measure_in_turn(engines, mode, repeats):
    """{name: [one result a repeat]}; the order alternates from repeat to repeat."""
    able = [engine for engine in engines if hasattr(engine, mode)]
    results = {engine.name: [] for engine in able}
    for engine in able:
        getattr(engine, mode)()
    for i in range(repeats):
        for engine in able if i % 2 == 0 else reversed(able):
            time.sleep(PAUSE_S)
            results[engine.name].append(getattr(engine, mode)())
    return results


def ratios(results, mode):
    """The median of the paired ratios for each opponent; above 1: csgl is better."""
    is_rate = MODES[mode] == "tok/s"
    return {name: statistics.median(ours / theirs if is_rate else theirs / ours
                                    for ours, theirs in zip(results["csgl"], runs))
            for name, runs in results.items() if name != "csgl"}


def print_mode(mode, results):
    print(f"{mode}, {MODES[mode]}")
    better = ratios(results, mode)
    for name, runs in results.items():
        extent = f"({min(runs):.4g} to {max(runs):.4g})"
        ratio = f"csgl is {better[name]:.2f} times as good" if name in better else ""
        print(f"  {name:28}{statistics.median(runs):10.4g}  {extent:24}{ratio}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--csgl", required=True, help="the csgl binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--context-len", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--llama-bench", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--llama-server", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--json", action="store_true", help="print one JSON line with every run")
    return parser.parse_args()


def main():
    options = parse()
    load = os.getloadavg()[0]
    engines = [Csgl(options), *opponents(options)]
    if len(engines) == 1:
        print("no opponent: llama_cpp cannot be imported and no binary was given", file=sys.stderr)
    results = {mode: measure_in_turn(engines, mode, options.repeats) for mode in options.modes}
    if options.json:
        print(json.dumps({"load": load, "options": vars(options), "runs": results,
                          "ratios": {mode: ratios(runs, mode) for mode, runs in results.items()}}))
        return
    print(f"{options.model}, {options.threads} threads, {options.repeats} repeats; load average at the start {load:.2f}")
    for mode, runs in results.items():
        print_mode(mode, runs)


if __name__ == "__main__":
    main()
