#!/usr/bin/env python3
"""Time to first token with and without a shared prefix, and how many prompt tokens are computed.

    tools/measure_prefix_reuse.py --binary build/release/csgl --model MODEL

Starts a server; asks with a 2,048-token prefix and a suffix of 32 tokens, cold and warm; then while the
first is still in prefill; then 16 clients at once. Prints the figures beside their bars.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import threading
import time
import urllib.request

PREFIX, SUFFIX, PAGE = 2048, 32, 16


class Server:
    def __init__(self, binary, model):
        self.process = subprocess.Popen([binary, "serve", "--model-path", model, "--port", "0"],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "ready on" in line:
                self.url = re.search(r"http://\S+", line).group(0)
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, tokens, n=2):
        body = {"prompt": tokens, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if re.match(name + r"(\{|\s)", line))


def make_prompts(seed):
    draw = random.Random(seed)
    prefix = [draw.randrange(100, 40000) for _ in range(PREFIX)]
    return lambda: prefix + [draw.randrange(100, 40000) for _ in range(SUFFIX)]


def ttft(reply):
    return reply["timings"]["ttft_ms"]


def cold_and_warm(server, seed):
    """The first request's TTFT, a second's with the same prefix, and one decode step."""
    prompt = make_prompts(seed)
    first, second = server.ask(prompt(), 17), server.ask(prompt(), 17)
    return ttft(first), ttft(second), second["timings"]["decode_ms"] / 16


def in_flight(server, seed):
    """TTFT of a request that comes while another computes its prefix, counted from that one's end."""
    prompt = make_prompts(seed)
    prompts, replies, ends = [prompt(), prompt()], [None, None], [0.0, 0.0]

    def run(i):
        replies[i] = server.ask(prompts[i])
        ends[i] = time.time()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    threads[0].start()
    time.sleep(0.1)
    threads[1].start()
    for thread in threads:
        thread.join()
    return replies[1]["usage"]["prompt_tokens_details"]["cached_tokens"], ttft(replies[0])


def crowd(server, seed, clients=16):
    prompt = make_prompts(seed)
    prompts = [prompt() for _ in range(clients)]
    before = server.metric("csgl_prefill_tokens_total")
    threads = [threading.Thread(target=server.ask, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return server.metric("csgl_prefill_tokens_total") - before


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/csgl")
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    server = Server(arguments.binary, arguments.model)
    try:
        server.ask(list(range(200, 300)))
        runs = [cold_and_warm(server, seed) for seed in range(arguments.runs)]
        cold, warm, step = (statistics.median(values) for values in zip(*runs))
        print(f"cold TTFT {cold:.1f} ms, warm {warm:.1f} ms, decode step {step:.2f} ms; "
              f"bar: at most 3 % of cold plus a step = {0.03 * cold + step:.1f} ms")
        cached, _ = in_flight(server, 1000)
        print(f"in flight: {cached} of {PREFIX} prefix tokens came from the other request")
        computed = crowd(server, 2000)
        print(f"16 clients: {computed:.0f} prompt tokens computed; "
              f"bar: at most {PREFIX + 16 * (SUFFIX + PAGE)}")
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
